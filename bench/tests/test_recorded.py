"""Crash states without a machine: what had been begun at a position, whose fault it is that nothing answers, and which
settings were in force. Recordings are written by hand; nothing is booted.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import pytest

import durabench_vm as vm
from durabench import checker, judgement, payload, process, recorded
from durabench.history import from_events
from durabench.process import HarnessError, Process
from durabench.service import Target
from durabench.trial import Outcome, TrialPlan
from durabench_backends.contract import METADATA, Domain, Promise
from durabench_vm.recording import Entry, Kind, LogWriter

MS = 1_000_000
SAFE = Promise(dict.fromkeys(Domain, 0.0), Domain.AT_REST, Domain.AT_REST, "everything")
FILES = Target("files", "fsync-dir")


def plan_of(**edit):
    words = {
        "workload": "append",
        "fault": "cut-power",
        "lane": "loop",
        "filesystem": "ext4",
        "recording": "r0",
        "puts": 3,
    }
    return TrialPlan(0, 1, FILES, FILES, **{**words, **edit})


def armed(index, key, t=0, writer=0, verb="put"):
    op = {"verb": verb, "ns": METADATA, "key": key, "seq": index + 1, "size": 2048}
    return {"e": "armed", "w": writer, "i": index, **op, "t": t}


def ok(index, t=0, writer=0):
    return {"e": "ok", "w": writer, "i": index, "latency_ns": 1, "t": t}


def value(key, sequence, seed=1):
    made = payload.make(seed, METADATA, key, sequence, 2048)
    blocks = payload.read(seed, METADATA, key, made)
    return {"length": 2048, "sha256": payload.digest(made), "blocks": blocks}


def reads(key, sequence, seed=1):
    return {"e": "reading", "ns": METADATA, "key": key, "value": value(key, sequence, seed)}


@pytest.fixture
def made(tmp_path):
    """A recording of ``entries`` with the controller's ``events`` beside it."""

    def make(entries, events=()):
        writer = LogWriter(tmp_path / "log", {"size_bytes": 1 << 20, "unit_bytes": 512})
        for entry in entries:
            writer.append(entry, b"x" * entry.length if entry.kind is Kind.WRITE else b"")
        writer.close()
        base = tmp_path / "base.img"
        base.write_bytes(bytes(1 << 20))
        folders = {METADATA: "store-metadata", "data": "store-metadata"}
        log = vm.Recording.load(tmp_path / "log")
        return recorded.Recorded("r0", log, recorded.Base(base, folders, {}), events, {}, vm.Filesystem("ext4"), 512)

    return make


def two_puts(made, heard_ms):
    """Two puts that reached the disk at 1 and at 10 ms; the controller heard of the second at ``heard_ms``."""
    entries = [
        Entry(Kind.WRITE, 1 * MS, 0, 512),
        Entry(Kind.FLUSH, 2 * MS, covers=1),
        Entry(Kind.MARK, 3 * MS, mark=[0, 0]),
        Entry(Kind.WRITE, 10 * MS, 512, 512),
        Entry(Kind.FLUSH, 11 * MS, covers=4),
        Entry(Kind.MARK, 90 * MS, mark=[0, 1]),
    ]
    events = [armed(0, "step-0"), ok(0, 3 * MS), armed(1, "step-1", heard_ms * MS), ok(1, 90 * MS)]
    return made(entries, [*events, armed(2, "step-2", 91 * MS)])


@pytest.mark.parametrize("heard_ms", [4, 71, 5000])
def test_a_put_heard_of_late_is_in_doubt_and_no_phantom(heard_ms, made):
    one = two_puts(made, heard_ms)
    events = recorded.written_before(one, 5)
    assert [(event["e"], event.get("key")) for event in events] == [
        ("armed", "step-0"),
        ("ok", None),
        ("armed", "step-1"),
    ]
    read = [
        {"e": "reading", "ns": METADATA, "key": key, "value": value(key, at)}
        for at, key in ((1, "step-0"), (2, "step-1"))
    ]
    strike = [{"e": "strike", "t": recorded.strike_ns(one, 5)}, {"e": "struck", "where": "inside"}]
    listing = {"e": "listing", "ns": METADATA, "keys": ["step-0", "step-1"]}
    history = from_events([{"e": "trial", "seed": 1}, *events, *strike, listing, *read])
    assert checker.judge(checker.find(history, METADATA), SAFE, Domain.DRIVE).verdict == "kept"


@pytest.mark.parametrize("position, keys", [(0, 1), (2, 1), (3, 2), (5, 2), (6, 3)])
def test_a_writer_in_lockstep_has_one_operation_open(position, keys, made):
    events = recorded.written_before(two_puts(made, 71), position)
    assert [event["key"] for event in events if event["e"] == "armed"] == [f"step-{n}" for n in range(keys)]
    assert sum(event["e"] == "ok" for event in events) == keys - 1


def test_what_never_began_cannot_excuse_what_is_there(made):
    """step-2 begins after the second mark: at position 5 nobody can have put it."""
    events = recorded.written_before(two_puts(made, 4), 5)
    found = [
        {"e": "listing", "ns": METADATA, "keys": ["step-2"]},
        {"e": "reading", "ns": METADATA, "key": "step-2", "value": value("step-2", 3)},
    ]
    history = from_events([{"e": "trial", "seed": 1}, *events, {"e": "strike", "t": 11 * MS}, *found])
    assert checker.find(history, METADATA).phantom == 1


def test_writers_have_their_own_open_operation_and_refusals_do_not_count(made):
    entries = [
        Entry(Kind.MARK, 1 * MS, mark=[0, 0]),
        Entry(Kind.MARK, 2 * MS, mark=[1, 1]),
        Entry(Kind.MARK, 3 * MS, mark=[0, 1]),
    ]
    events = [
        {"e": "ready", "w": 0, "identity": {}, "t": 0},
        armed(0, "a"), armed(0, "b", writer=1), {"e": "fail", "w": 1, "i": 0, "why": "full", "t": 0},
        armed(1, "c", writer=1), ok(0), ok(1, writer=1), armed(1, "d"), ok(1), {"e": "held", "w": 0, "t": 0},
    ]  # fmt: skip
    at_first = recorded.written_before(made(entries, events), 1)
    assert [event["key"] for event in at_first if event["e"] == "armed"] == ["a", "b", "c", "d"]
    assert [event["e"] for event in at_first if event["e"] != "armed"] == ["ready", "fail", "ok"]


def test_what_a_get_found_counts_where_its_answer_does(made):
    entries = [Entry(Kind.MARK, 1 * MS, mark=[0, 0]), Entry(Kind.MARK, 2 * MS, mark=[0, 1])]
    get = armed(1, "a", verb="get")
    events = [armed(0, "a"), ok(0), get, {"e": "found", "w": 0, "i": 1, "value": None, "t": 0}, ok(1)]
    assert "found" not in [event["e"] for event in recorded.written_before(made(entries, events), 1)]
    assert "found" in [event["e"] for event in recorded.written_before(made(entries, events), 2)]


# --- whose fault it is


class Place:
    """A lane whose ``outcomes`` are given, one for each image that it is handed."""

    name = "loop"

    def __init__(self, *outcomes):
        self.outcomes, self.images = list(outcomes), []

    def check(self, image, filesystem, job, *, user=None):
        self.images.append(image.read_bytes()[:4])
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


def answered(*keys, absent=(), failed=None):
    read = [{"e": "listing", "ns": METADATA, "keys": list(keys)}]
    read += [
        {"e": "reading", "ns": METADATA, "key": key, "value": value(key, at + 1, plan_of().payload_seed)}
        for at, key in enumerate(keys)
    ]
    read += [{"e": "reading", "ns": METADATA, "key": key, "value": None} for key in absent]
    last = {"e": "done", "identity": {METADATA: "reader"}, "sizes": {}}
    return vm.Checked([*read, failed or last], 0.1)


EMPTY = answered()
NO_MOUNT = vm.Finding("will not mount", "mount ext4: Structure needs cleaning")


@pytest.fixture
def judged(made, tmp_path):
    """Runs the one crash state right after the first acknowledgement; (verdict, why) or the error."""

    def run(*outcomes):
        lane = Place(*outcomes)
        one = two_puts(made, 4)
        one.events.insert(0, {"e": "ready", "w": 0, "identity": {METADATA: "writer"}, "t": 0})
        laboratory = SimpleNamespace(
            undamaged=set(), folder=SimpleNamespace(path=tmp_path), lane=lambda name, filesystem: lane
        )
        told = []
        recorded.run_states(one, [plan_of(puts=1)], laboratory, told.append, lambda: False)
        held = dict.fromkeys((METADATA, "data"), judgement.Held(SAFE))
        row = judgement.rows(Outcome(told[0].plan, told[0].events), held, "h", "f")[0]
        return row["verdict"], row["why"], lane

    return run


def test_a_state_is_judged_once_its_undamaged_disk_came_up(judged):
    verdict, why, lane = judged(EMPTY, answered("step-0", "step-1", absent=["step-2"]))
    assert verdict == "kept", why
    assert len(lane.images) == 2


@pytest.mark.parametrize(
    "lost", [NO_MOUNT, vm.Finding("harness failed", "no such device"), vm.Finding("no answer", "60 s")]
)
def test_where_not_even_the_undamaged_disk_comes_up_nothing_is_judged(lost, judged):
    with pytest.raises(HarnessError, match="the undamaged disk does not come up in lane loop on ext4"):
        judged(lost)


def test_a_state_that_does_not_come_up_is_broken_where_the_undamaged_disk_still_does(judged):
    verdict, why, lane = judged(EMPTY, NO_MOUNT, EMPTY)
    assert (verdict, why) == ("broken", "unavailable: will not mount: mount ext4: Structure needs cleaning")
    assert len(lane.images) == 3


def test_a_state_that_does_not_come_up_where_the_undamaged_disk_does_not_either_is_unknown(judged):
    verdict, why, _ = judged(EMPTY, NO_MOUNT, vm.Finding("will not mount", "no loop device"))
    assert verdict == "unknown"
    assert why.startswith("the undamaged disk fails too: will not mount: no loop device")


@pytest.mark.parametrize("what", ["machine lost", "harness failed", "job failed", "garbage"])
def test_what_the_lane_or_the_reader_did_is_never_held_against_the_store(what, judged):
    verdict, why, _ = judged(EMPTY, vm.Finding(what, "as it happens"))
    assert verdict == "unknown"
    assert why.startswith(f"{what}: as it happens")


@pytest.mark.parametrize(
    "failed, verdict",
    [
        ({"e": "failed", "why": "MemoryError", "ours": True}, "unknown"),
        ({"e": "failed", "why": "NotReady: the log is damaged", "ours": False}, "broken"),
        ({"e": "done", "identity": {METADATA: "writer"}}, "unknown"),
    ],
)
def test_a_reader_s_last_word_decides_whose_fault_it_is(failed, verdict, judged):
    assert judged(EMPTY, answered(failed=failed), EMPTY)[0] == verdict


# --- a reader of ours that dies


@pytest.fixture
def ask_reader(monkeypatch):
    """Asks a reader that runs ``code``, beside a server that lives; its last event, and the seconds it took."""

    def run(code):
        told_read, told_write = os.pipe()
        asked_read, asked_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(asked_read, 0)
            os.dup2(told_write, 1)
            os.execv(sys.executable, [sys.executable, "-c", code])
        os.close(told_write)
        os.close(asked_read)
        reap = lambda _deadline_s: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: E731
        reader = Process(pid, os.pidfd_open(pid), reap, asked_write, told_read)
        nurseries = SimpleNamespace(get=lambda names, workload: SimpleNamespace(fork=lambda: reader))
        laboratory = SimpleNamespace(ground=SimpleNamespace(nurseries=nurseries))
        placed = SimpleNamespace(dead_daemon=lambda root: None, address=lambda port: ("127.0.0.1", port))
        order = {"targets": {METADATA: {"ports": {}, "root": "/nowhere"}}}
        began = time.process_time()
        events = recorded._ask_reader(order, plan_of(), placed, laboratory)
        return events, time.process_time() - began

    return run


SAYS = 'import json, os, time; print(json.dumps({"e": "listing", "ns": "metadata", "keys": ["k"]}), flush=True); '


@pytest.mark.parametrize("number, ours", [(9, True), (15, True), (11, False), (6, False)])
def test_a_reader_that_is_killed_is_ours_and_one_that_crashes_on_what_it_reads_is_not(number, ours, ask_reader):
    events, _ = ask_reader(f"{SAYS} time.sleep(0.2); os.kill(os.getpid(), {number})")
    assert (events[-1]["e"], events[-1]["ours"]) == ("failed", ours)
    assert f"ended with -{number}" in events[-1]["why"]


def test_a_reader_that_is_gone_is_not_waited_for_in_a_busy_loop(ask_reader):
    events, busy_s = ask_reader(f"{SAYS} os._exit(0)")
    assert [event["e"] for event in events] == ["listing", "failed"]
    assert events[-1]["ours"]
    assert busy_s < recorded.UP_S / 4, "it would have gone round for two minutes"


def test_a_reader_that_says_nothing_by_its_deadline_is_the_stores(ask_reader, monkeypatch):
    monkeypatch.setattr(recorded, "UP_S", 0.2)
    monkeypatch.setattr(recorded, "ANSWER_S", 0.2)
    events, _ = ask_reader(f"{SAYS} time.sleep(100)")
    assert events[-1] == {"e": "failed", "why": "no answer in time", "ours": False}


# --- settings in force


def ready(**said):
    return {"e": "ready", "w": 0, "t": 7, "identity": {}, "settings": {METADATA: said}}


def test_a_setting_that_is_in_force_is_no_doubt(tmp_path):
    found, _ = FILES.load()
    promise = next(setting.promise for setting in found.settings if setting.name == "fsync-dir")
    assert recorded._not_in_force(plan_of(), [ready(facts=[], promise=promise.as_json())]) == []


def test_a_setting_that_is_not_in_force_voids_every_state(tmp_path):
    found, _ = FILES.load()
    weaker = next(setting.promise for setting in found.settings if setting.name == "rename")
    (doubt,) = recorded._not_in_force(plan_of(), [ready(facts=[], promise=weaker.as_json())] * 2)
    assert (doubt["e"], doubt["voids"]) == ("doubt", True)
    assert doubt["why"] == "files:fsync-dir: the effective settings promise something else (T1)"
    (unread,) = recorded._not_in_force(plan_of(), [ready(why="NotReady: too many clients")])
    assert unread["why"] == "files:fsync-dir: its effective settings could not be read back: NotReady: too many clients"
    assert unread["voids"]


# --- who answers


LISTENS = """import socket, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
time.sleep(60)"""


def test_a_stranger_at_our_port_is_told_from_our_own_daemon(tmp_path):
    log = tmp_path / "log"
    ours, theirs = (
        process.start([sys.executable, "-c", LISTENS], env=dict(os.environ), cwd=tmp_path, log=log, piped=True)
        for _ in range(2)
    )
    try:
        ports = [int(os.read(one.fileno(), 100)) for one in (ours, theirs)]
        assert process.stranger(ports[:1], [ours]) is None
        assert process.stranger(ports, [ours, theirs]) is None
        assert process.stranger(ports, [ours]) == f"port {ports[1]} is answered by a process that is none of ours"
        assert process.stranger([1], [ours]) is None, "nobody listens there"
    finally:
        ours.close()
        theirs.close()
