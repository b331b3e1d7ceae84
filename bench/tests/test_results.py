"""What a person relies on after durabench, its disk or its machine died: the folder reads, and a resume goes on."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench import results
from durabench.results import Folder

ROOM = Path(__file__).resolve().parents[2]
MACHINE = {"id": "0a1b2c3d", "kernel": "6.1"}
RUN = {
    "plan": [{"trial": trial, "seed": trial * 7} for trial in range(20)],
    "machine": MACHINE,
    "versions": {"engine": {"version": "9.1", "sha256": "ab"}},
    "commit": {"commit": "c0ffee", "dirty": False},
    "command": ["durabench", "run", "--seed", "1"],
}


def rows_of(trial: int, **more: object) -> list[dict[str, object]]:
    common = {
        "trial": trial,
        "backend": "toy",
        "setting": "safe",
        "tier": "T3",
        "workload": "agent",
        "fault": "kill-client",
        "lane": "here",
        "host": MACHINE["id"],
        "seed": trial * 7,
        "acked": 12,
        "lost": 0,
        "verdict": "kept",
    }
    return [{**common, "namespace": namespace, **more} for namespace in ("metadata", "data")]


def read(path: Path) -> tuple[list[results.Row], results.Tally]:
    tally = results.Tally()
    return [row for trial in Folder.open(path).each_trial(tally) for row in trial], tally


def begun(path: Path) -> Folder:
    folder = Folder.create_at(path)
    folder.begin(RUN)
    return folder


# ---------------------------------------------------------------------------------------------------- the folder


def test_a_folder_is_named_by_time_machine_and_profile_and_never_shared(tmp_path):
    now = datetime(2026, 12, 1, 10, 15, 0, tzinfo=UTC)
    first = Folder.create(tmp_path, "quick", "0a1b2c3d", now=now)
    assert first.path == tmp_path / "2026-12-01T101500Z-0a1b2c3d-quick"
    second = Folder.create(tmp_path, "quick", "0a1b2c3d", now=now)
    assert second.path != first.path
    profile = Folder.create(tmp_path, "mine/night run.toml", "0a1b2c3d", now=now)
    assert profile.path.name == "2026-12-01T101500Z-0a1b2c3d-night-run"


def test_of_creators_at_one_place_one_wins(tmp_path):
    start = threading.Barrier(8)

    def create(_: int) -> str:
        start.wait()
        try:
            folder = Folder.create_at(tmp_path / "out")
        except results.NotEmpty:
            return "not empty"
        except results.Busy:
            return "busy"
        folder.begin(RUN)
        return "made"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(8)))
    assert outcomes.count("made") == 1, outcomes
    assert Folder.open(tmp_path / "out").plan() == RUN["plan"]


def test_creators_at_the_same_second_get_folders_of_their_own(tmp_path):
    now = datetime(2026, 12, 1, tzinfo=UTC)
    start = threading.Barrier(8)

    def create(_: int) -> Path:
        start.wait()
        return Folder.create(tmp_path, "quick", "0a1b2c3d", now=now).path

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 8


def test_what_is_there_already_is_refused_with_the_mend(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(results.NotEmpty, match="--resume"):
        Folder.create_at(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    for create in (
        lambda: Folder.create_at(tmp_path / "mine" / "thesis.tex"),
        lambda: Folder.create_at(Path("/proc/x")),
    ):
        with pytest.raises(results.NotWritable, match="--out") as refusal:
            create()
        assert "\n" not in str(refusal.value)


def test_a_run_reads_back_as_it_was_written(tmp_path):
    with_latency = begun(tmp_path / "run")
    assert with_latency.append_samples([5, 6, 2**40]) == (0, 3)
    at, n = with_latency.append_samples([7])
    with_latency.append(rows_of(0, samples_at=at, samples_n=n, recovery_s=0.25))
    with_latency.append_floor(
        {"time": "t", "when": "before", "host": "0a1b2c3d", "size_bytes": 4096, "n": 9, "p50_ns": 90}
    )
    events = [{"e": "trial", "seed": 3}, {"e": "info", "why": "nobody knows"}]
    with_latency.write_history(0, events)
    with_latency.finish(3, stopped="interrupted")

    folder = Folder.open(tmp_path / "run")
    assert folder.run["schema_version"] == results.SCHEMA_VERSION
    metadata, data = folder.trials()
    assert (metadata["namespace"], data["namespace"]) == ("metadata", "data")
    assert list(metadata) == list(results.ROW)
    assert metadata["attempt"] == 1
    assert metadata["recovery_s"] == 0.25
    assert metadata["stale"] is None, "what was not measured is null, never 0"
    assert list(folder.samples(0, 3)) == [5, 6, 2**40]
    assert list(folder.samples(metadata["samples_at"], metadata["samples_n"])) == [7]
    assert (tmp_path / "run" / "samples.i64").read_bytes()[:8] == (5).to_bytes(8, "little")
    assert folder.floors()[0]["p50_ns"] == 90
    assert folder.history(0) == events
    assert folder.done is not None
    assert folder.done["exit_status"] == 3
    assert folder.done["stopped"] == "interrupted"
    assert folder.done["counts"] == {"trials": 1, "floors": 1}


def test_the_same_events_give_the_same_bytes(tmp_path):
    folder = begun(tmp_path / "run")
    events = [{"e": "armed", "seq": seq, "t": seq * 1000} for seq in range(50)]
    first = folder.write_history(1, events).read_bytes()
    assert folder.write_history(2, events).read_bytes() == first
    assert gzip.decompress(first).count(b"\n") == 50


def test_rows_are_checked_against_the_table(tmp_path):
    folder = begun(tmp_path / "run")
    good = rows_of(0)
    for wrong, message in [
        ({"lots": 1}, "lots"),
        ({"lost": "0"}, "lost must be integer"),
        ({"lost": True}, "lost must be integer"),
        ({"recovery_s": float("nan")}, "finite"),
        ({"verdict": None}, "verdict must be string"),
    ]:
        with pytest.raises(ValueError, match=message):
            folder.append([{**good[0], **wrong}, good[1]])
    with pytest.raises(ValueError, match="exactly one trial"):
        folder.append([*rows_of(0), *rows_of(1)])
    with pytest.raises(ValueError, match="exactly one trial"):
        folder.append([])
    assert Folder.open(tmp_path / "run").trials() == []


def test_no_row_comes_before_its_plan_and_nothing_is_written_twice(tmp_path):
    folder = Folder.create_at(tmp_path / "run")
    with pytest.raises(RuntimeError, match="begin"):
        folder.append(rows_of(0))
    folder.begin(RUN)
    with pytest.raises(RuntimeError, match="once"):
        folder.begin(RUN)
    with pytest.raises(RuntimeError, match="reading"):
        Folder.open(tmp_path / "run").append(rows_of(0))


def test_what_is_no_results_folder_is_refused_with_the_mend(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, content in [("foreign", "[]"), ("torn", '{"schema_version": 1'), ("other", '{"name": "x"}')]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    for name in ("file", "empty", "foreign", "torn", "other", "absent"):
        with pytest.raises(results.NotAFolder, match="durabench run") as refusal:
            Folder.open(tmp_path / name)
        assert "\n" not in str(refusal.value)


def test_a_newer_schema_is_refused(tmp_path):
    begun(tmp_path / "run").close()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**run, "schema_version": results.SCHEMA_VERSION + 1}))
    with pytest.raises(results.NewerSchema, match="upgrade") as refusal:
        Folder.open(tmp_path / "run")
    assert f"needs durabench {run['durabench']} or newer" in str(refusal.value)


def test_an_older_schema_is_read_as_it_is(tmp_path):
    begun(tmp_path / "run").close()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    for name in ("plan_shared", "methodology", "durabench"):
        del run[name]
    (tmp_path / "run" / "run.json").write_text(json.dumps({**run, "schema_version": 1, "plan": RUN["plan"]}))
    folder = Folder.open(tmp_path / "run")
    assert folder.plan() == RUN["plan"]
    assert folder.remaining() == [row["trial"] for row in RUN["plan"]]
    assert folder.methodology == 1
    Folder.resume(tmp_path / "run", RUN).close()


def test_what_trials_share_is_written_once_and_read_back_in_full(tmp_path):
    shared = [{"fault": fault, "metadata": {"backend": "toy", "url": None}, "puts": 40} for fault in ("a", "b")]
    plan = [{"trial": at, "seed": 1 << 40, **shared[at % 2]} for at in range(1000)]
    folder = Folder.create_at(tmp_path / "run")
    folder.begin({**RUN, "plan": plan})
    folder.close()
    assert Folder.open(folder.path).plan() == plan
    assert (folder.path / "run.json").stat().st_size < 60 * len(plan)
    written = json.loads((folder.path / "run.json").read_text())
    assert [(row["trial"], row["seed"]) for row in written["plan"]] == [(row["trial"], row["seed"]) for row in plan]


def test_the_scratch_directory_is_in_no_file(tmp_path):
    scratch = str(tmp_path / "disk" / ".durabench-1")
    folder = Folder.create_at(tmp_path / "run")
    folder.forget = scratch
    folder.begin({**RUN, "targets": {"toy": {"facts": {"place": {"value": f"{scratch}/store"}}}}})
    folder.write_history(0, [{"e": "down", "why": f"{scratch}/store/log says no"}])
    folder.append(rows_of(0, why=f"{scratch}/store/log says no"))
    folder.finish(0, doubts=[f"{scratch}/store is gone"])
    written = [path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.suffix != ".gz"]
    assert [part for part in written if scratch.encode() in part] == []
    assert Folder.open(folder.path).history(0)[0]["why"] == "…/store/log says no"
    assert Folder.open(folder.path).run["targets"]["toy"]["facts"]["place"]["value"] == "…/store"


# ---------------------------------------------------------------------------------------------------- bad luck


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("torn") / "run"
    folder = begun(path)
    for trial in range(3):
        folder.append(rows_of(trial, why="ümläut" if trial == 2 else None))
    folder.close()
    return path, (path / "trials.jsonl").read_bytes()


def test_a_file_torn_at_any_byte_keeps_every_whole_trial_and_counts_the_rest(whole):
    path, content = whole
    lines = content.splitlines(keepends=True)
    ends = [sum(map(len, lines[: 2 * trials])) for trials in range(4)]
    for cut in (*range(0, ends[2], 41), *range(ends[2], len(content) + 1)):
        (path / "trials.jsonl").write_bytes(content[:cut])
        rows, tally = read(path)
        trials = sum(end <= cut for end in ends) - 1
        assert [row["trial"] for row in rows] == [trial for trial in range(trials) for _ in range(2)], cut
        assert (tally.dropped == 0) == (cut in ends), cut
        assert tally.whole_bytes == ends[trials], cut


@given(cut=st.integers(0, 10**6), tail=st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_resume_cuts_off_what_is_torn_and_goes_on(whole, cut, tail):
    path, content = whole
    (path / "trials.jsonl").write_bytes(content[: cut % (len(content) + 1)] + tail.replace(b"\n", b"\r") + b"\xff\x00")
    (path / "samples.i64").write_bytes(b"\0" * 13)
    (path / "floors.jsonl").write_bytes(b'{"time":')
    folder = Folder.resume(path, RUN)
    before = len(folder.trials()) // 2
    assert folder.remaining() == list(range(before, 20))
    assert folder.append_samples([1]) == (0, 1)
    folder.append(rows_of(before))
    folder.close()
    rows, tally = read(path)
    assert [row["trial"] for row in rows] == [trial for trial in range(before + 1) for _ in range(2)]
    assert tally.dropped == 0
    assert Folder.open(path).floors() == []


def test_damage_in_the_middle_costs_that_trial_only(whole):
    path, content = whole
    lines = content.splitlines(keepends=True)
    (path / "trials.jsonl").write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    rows, tally = read(path)
    assert {row["trial"] for row in rows} == {0, 2}
    assert tally.dropped == 2


def test_of_a_trial_that_ran_twice_the_first_recording_counts(tmp_path):
    folder = begun(tmp_path / "run")
    folder.append(rows_of(0, acked=1))
    folder.append(rows_of(0, acked=2, attempt=2))
    rows, tally = read(tmp_path / "run")
    assert {row["acked"] for row in rows} == {1}
    assert tally.repeated == 2


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_results import RUN, rows_of
from durabench.results import Folder
path = Path(sys.argv[1])
folder = Folder.resume(path, RUN) if (path / "run.json").exists() else Folder.create_at(path)
if not (path / "run.json").exists():
    folder.begin({**RUN, "plan": []})
trial = len(folder.trials()) // 2
while True:
    at, n = folder.append_samples(range(trial, trial + 50))
    folder.write_history(trial, [{"e": "trial", "seed": trial}] * 100)
    folder.append(rows_of(trial, samples_at=at, samples_n=n))
    print(trial, flush=True)
    trial += 1
"""


def test_a_kill_while_writing_loses_no_recorded_trial(tmp_path):
    rng = random.Random(1)
    path = tmp_path / "run"
    recorded = -1
    plan = {**RUN, "plan": []}
    for _ in range(4):
        code = WRITER.replace("Folder.resume(path, RUN)", "Folder.resume(path, {**RUN, 'plan': []})")
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(rng.randint(3, 40)):
            recorded = int(child.stdout.readline())
        with pytest.raises(results.Busy, match="another durabench"):
            Folder.resume(path, plan, patience_s=0.0)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        assert child.wait() == -signal.SIGKILL
        recorded = int(rest[-1]) if rest else recorded

        folder = Folder.open(path)
        trials = folder.trials()
        numbers = [row["trial"] for row in trials[::2]]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= recorded + 1, "an acknowledged trial is gone"
        for row in trials:
            assert list(folder.samples(row["samples_at"], row["samples_n"])) == list(
                range(row["trial"], row["trial"] + 50)
            )
            assert len(folder.history(row["trial"])) == 100
        assert not folder.finished


FILLER = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_results import begun, rows_of
from durabench.results import ResultsFull
folder = begun(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
try:
    for trial in range(100):
        folder.append(rows_of(trial))
except ResultsFull as full:
    print(trial, full)
"""


def test_results_so_far_are_readable_when_there_is_no_more_room(tmp_path):
    argv = [sys.executable, "-c", FILLER, str(tmp_path / "run"), str(Path(__file__).parent)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    trials, message = said.strip().split(" ", 1)
    assert int(trials) > 1
    assert f"{trials} trials are kept" in message
    assert "--resume" in message
    rows, tally = read(tmp_path / "run")
    assert len(rows) == 2 * int(trials)
    assert tally.dropped == 0, "the half-written trial was taken back"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    Folder.resume(tmp_path / "run", RUN).append(rows_of(50))


@pytest.mark.parametrize("name", ["trials.jsonl", "samples.i64", "floors.jsonl"])
def test_a_full_disk_is_said_in_one_line(tmp_path, name, monkeypatch):
    folder = begun(tmp_path / "run")
    write = os.write

    def full_for_one(descriptor, content):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full_for_one)
    floor = {"time": "t", "when": "before", "host": "h", "size_bytes": 1, "n": 1}
    with pytest.raises(results.ResultsFull, match=r"No space left on device.*0 trials are kept") as full:  # noqa: PT012
        folder.append_samples([1])
        folder.append_floor(floor)
        folder.append(rows_of(0))
    assert "\n" not in str(full.value)


# ---------------------------------------------------------------------------------------------------- resume


def test_a_complete_run_never_changes_again(tmp_path):
    folder = begun(tmp_path / "run")
    folder.append(rows_of(0))
    folder.finish(0)
    with pytest.raises(RuntimeError):
        folder.append(rows_of(1))
    with pytest.raises(results.Finished, match="start a new run"):
        Folder.resume(tmp_path / "run", RUN)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"machine": {**MACHINE, "id": "ffffffff"}}, "machine was 0a1b2c3d, is ffffffff"),
        ({"versions": {"engine": {"version": "9.2", "sha256": "ab"}}}, "versions.engine.version was 9.1, is 9.2"),
        ({"commit": {"commit": "c0ffee", "dirty": True}}, "commit.dirty was False, is True"),
        ({"plan": [*RUN["plan"][:4], {"trial": 4, "seed": 0}]}, "plan differs from entry 4"),
    ],
)
def test_a_resume_elsewhere_names_what_differs(tmp_path, change, named):
    begun(tmp_path / "run").close()
    with pytest.raises(results.Differs, match=named):
        Folder.resume(tmp_path / "run", {**RUN, **change})
    Folder.resume(tmp_path / "run", {**RUN, "machine": {**MACHINE, "kernel": "6.2"}, "command": ["other"]}).close()


# ---------------------------------------------------------------------------------------------------- secrets


SECRETS = [
    ("postgresql://ann:hunter2@db.example/prod?sslmode=require", "postgresql://***@db.example/prod?sslmode=require"),
    ("redis://:hunter2@127.0.0.1:6379/0", "redis://***@127.0.0.1:6379/0"),
    ("postgresql://ann:hun/ter2?x#y@z@db/prod", "postgresql://***@db/prod"),
    ("s3://b/p?endpoint_url=http://ak:hunter2@h:1&x=1", "s3://b/p?endpoint_url=http://***@h:1&x=1"),
    (
        "postgresql://db/prod?user=ann&password=hunter2&sslmode=require",
        "postgresql://db/prod?user=ann&password=***&sslmode=require",
    ),
    ("host=db password='hun\\'ter2' dbname=prod", "host=db password=*** dbname=prod"),
    ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7+x= durabench", "AWS_SECRET_ACCESS_KEY=*** durabench"),
    ("key AKIAIOSFODNN7EXAMPLE", "key ***"),
    ("Authorization: Bearer hunter2.x-y", "Authorization: Bearer ***"),
    ("https://h/?X-Amz-Signature=hunter2&X-Amz-Date=1", "https://h/?X-Amz-Signature=***&X-Amz-Date=1"),
    ("CONFIG SET requirepass hunter2", "CONFIG SET requirepass ***"),
    ("--password hunter2 --seed 1", "--password *** --seed 1"),
]
PLAIN = [
    "sqlite:////data/a@b.db?journal_mode=wal&synchronous=full",
    "file:///data/x@y?write=fsync-dir",
    "durabench replay results/local/2026-12-01T101500Z-0a1b2c3d-quick 17",
    "3 keys lost, the earliest 0.4 s old",
    "postgresql://db/prod",
    "author: nobody",
]


@pytest.mark.parametrize("text, shown", SECRETS)
def test_secrets_are_taken_out(text, shown):
    assert results.redact(text) == shown
    assert results.redact(shown) == shown


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text):
    assert results.redact(text) == text


def test_no_secret_reaches_any_file(tmp_path):
    folder = Folder.create_at(tmp_path / "run")
    url = "redis://ann:hunter2@h/0"
    facts = [{"id": "toy.requirepass", "value": "hunter2", "origin": "toy.conf:3"}, {"id": "toy.save", "value": "60 1"}]
    command = ["durabench", "run", "--backend", url, "--password", "hunter2", "--seed", "1"]
    folder.begin({**RUN, "command": command, "effective": facts, "env": {"PGPASSWORD": "hunter2"}})
    folder.append(rows_of(0, why=f"no connection to {url}", replay=f"durabench replay {url}"))
    folder.write_history(0, [{"e": "info", "why": f"{url} went away"}])
    folder.finish(3, stopped=url)
    for path in folder.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"hunter2" not in (gzip.decompress(content) if path.suffix == ".gz" else content), path
    run = Folder.open(folder.path).run
    assert run["command"] == ["durabench", "run", "--backend", "redis://***@h/0", "--password", "***", "--seed", "1"]
    assert run["effective"][1] == facts[1]


# ---------------------------------------------------------------------------------------------------- facts


def test_machine_facts_name_the_disk_and_no_person(tmp_path):
    facts = results.machine_facts(tmp_path / "not" / "there" / "yet")
    assert {
        "kernel",
        "cpu_model",
        "cores",
        "memory_bytes",
        "virtualisation",
        "python",
        "filesystem",
        "mount_options",
    } <= set(facts)
    hardware = {"driver", "bus", "size_bytes", "block_bytes", "scheduler"}
    assert set(facts["device"]) == {"name", "model", "rotational", "write_cache", "fua", *hardware}
    assert facts["id"] == results.machine8(facts) == results.machine_facts(tmp_path)["id"]
    assert len(facts["id"]) == 8
    assert os.uname().nodename not in json.dumps(facts)
    other = {**facts, "filesystem": "xfs"}
    assert results.machine8(other) != facts["id"], "two file systems of one machine are two hosts"
    assert results.machine8({**facts, "memory_bytes": facts["memory_bytes"] + 4096}) == facts["id"]


LIKE = {
    "architecture": "x86_64",
    "cpu_model": "A processor",
    "cores": 4,
    "memory_bytes": 8 << 30,
    "virtualisation": "KVM",
    "kernel": "6.1.0-41",
    "filesystem": "ext4",
    "mount_options": "rw,relatime,errors=panic",
    "device": {"name": "vda", "model": None, "driver": "virtio_blk", "bus": "0000:00:02.0", "size_bytes": 1 << 38},
}


def with_device(**changed):
    return {**LIKE, "device": {**LIKE["device"], **changed}}


@pytest.mark.parametrize(
    "other",
    [
        {**LIKE, "kernel": "6.12.1"},
        {**LIKE, "mount_options": "rw,relatime,errors=panic,nobarrier"},
        {**LIKE, "mount_options": "rw,relatime,errors=panic,data=writeback"},
        {**LIKE, "mount_options": "rw,noatime,errors=panic"},
        {**LIKE, "filesystem": "xfs"},
        with_device(bus="0000:00:03.0"),
        with_device(size_bytes=1 << 39),
        with_device(driver="nvme"),
        with_device(write_cache="write through"),
        with_device(scheduler="none"),
    ],
)
def test_what_makes_numbers_unlike_makes_another_host(other):
    assert results.machine8(other) != results.machine8(LIKE)


@pytest.mark.parametrize(
    "same",
    [
        {**LIKE, "mount_options": "rw,errors=panic,relatime,seclabel,resuid=65534"},
        {**LIKE, "python": "3.14", "latency": "why not"},
        with_device(name="vdb", shared=True),
    ],
)
def test_what_a_reboot_may_change_does_not(same):
    assert results.machine8(same) == results.machine8(LIKE)


def test_links_in_a_results_folder_are_not_followed(tmp_path):
    """Whoever may write there must not get something of ours overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = begun(tmp_path / "run")
    for name in ("trials.jsonl", ".done.json.part"):
        (tmp_path / "run" / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        folder.append(rows_of(0))
    (tmp_path / "run" / "trials.jsonl").unlink()
    folder.append(rows_of(0))
    folder.finish(0)
    assert victim.read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(results.NotWritable, match="it is a link"):
        Folder.create_at(tmp_path / "link")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(results.NotWritable, match="it is a link"):
        Folder.create_at(tmp_path / "link")


def test_a_run_killed_while_it_wrote_its_first_file_leaves_a_free_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.part").write_text("{")
    folder = begun(tmp_path / "run")
    assert [path.name for path in folder.path.iterdir()] == ["run.json"]


def test_latency_means_nothing_in_memory():
    assert "memory" in (results.why_no_latency(Path("/dev/shm/durabench")) or "")


# ---------------------------------------------------------------------------------------------------- the public table


def test_the_readme_of_the_results_has_the_tables_as_they_are():
    from durabench.report import CELL, crossings
    from durabench.report.compare import COMPARISON
    from durabench.row import as_markdown

    readme = (ROOM / "results" / "README.md").read_text()
    assert as_markdown(results.ROW) in readme
    assert as_markdown(results.FLOOR) in readme
    assert as_markdown(CELL) in readme
    assert as_markdown(COMPARISON) in readme
    assert as_markdown(crossings.GATED) in readme
    assert f"| {results.METHODOLOGY} |" in readme.partition("## Methodology log")[2]
    assert f"| {results.SCHEMA_VERSION} |" in readme


def test_the_table_has_every_field_of_the_design():
    promised = """trial attempt backend setting tier namespace workload writers fault destroyed lane host seed struck
        settle_s recording position gap acked in_doubt lost torn corrupt stale phantom resurrected hole dangling orphan
        unavailable damage_seen loss_window_s recovery_s put_p50_ns put_p99_ns size_bytes payload_bytes verdict why
        replay versions_lost samples_at samples_n"""
    assert set(promised.split()) <= set(results.ROW)
