"""Which crash states a recording is looked at in, and which of them can tell a loss of which namespace."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import pytest

import durabench_vm as vm
from durabench import campaign, recorded, report, schedule
from durabench.process import HarnessError
from durabench.profile import load
from durabench.row import loses
from durabench.statistics import loss_rate
from durabench.trial import Outcome
from durabench_vm.recording import Entry, Kind, LogWriter

SECTOR = 512


class Log:
    """A recording made by hand: writes, flushes, and acknowledged operations with their events."""

    def __init__(self, folder):
        self.folder = folder
        self.writer = LogWriter(folder / "log", {"size_bytes": 1 << 20, "unit_bytes": SECTOR})
        self.events = []
        self.time_ns = 0
        self.number = 0

    def write(self, times=1):
        for _ in range(times):
            self.time_ns += 1
            place = SECTOR * (self.writer.position % 2000)
            data = self.writer.position.to_bytes(4, "big") * (SECTOR // 4)
            self.writer.append(Entry(Kind.WRITE, self.time_ns, place, SECTOR), data)
        return self

    def flush(self):
        self.time_ns += 1
        self.writer.append(Entry(Kind.FLUSH, self.time_ns, covers=self.writer.position))
        return self

    def ok(self, namespace="metadata", verb="put"):
        self.time_ns += 1
        mark = [0, self.number]
        self.number += 1
        armed = {"e": "armed", "w": 0, "i": mark[1], "ns": namespace, "verb": verb, "t": self.time_ns}
        self.events += [armed, {"e": "ok", "w": 0, "i": mark[1], "t": self.time_ns}]
        self.writer.append(Entry(Kind.MARK, self.time_ns, mark=mark))
        return self

    def done(self):
        self.writer.close()
        base = self.folder / "base.img"
        base.write_bytes(bytes(1 << 20))
        log = vm.Recording.load(self.folder / "log")
        return recorded.Recorded("r", log, SimpleNamespace(image=base, ports={}), self.events, {}, None, SECTOR)


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def plans(count, fault="cut-power", settle_s=0.0, window_s=0.0):
    one = SimpleNamespace(fault=fault, settle_s=settle_s, window_s=window_s, payload_seed=7)
    return [SimpleNamespace(**vars(one), trial=number) for number in range(count)]


def telling(made, namespace):
    """Positions at which a loss of the namespace would show, with its gap there."""
    told = {at: recorded.told(made, at)[namespace] for at in range(len(made.recording) + 1)}
    return {at: row["gap"] for at, row in told.items() if row["telling"]}


def fsync_file(log, steps=20):
    """Like files:fsync-file: a put is flushed, its rename only by the next put's flush; data in one step of five."""
    for step in range(steps):
        for namespace in ("data", "metadata") if step % 5 == 0 else ("metadata",):
            log.write(3).flush().write(2).flush().ok(namespace)
    return log.done()


def test_only_a_gap_that_begins_with_an_acknowledgement_of_the_namespace_tells_for_it(log):
    """Data of files:fsync-file was lost in 15 of 18 gaps after a data acknowledgement, in none of 78 others."""
    made = fsync_file(log)
    marks = [entry.mark for entry in made.recording.entries if entry.mark]
    of = {(e["w"], e["i"]): e["ns"] for e in made.events if e["e"] == "armed"}
    for namespace, count in (("data", 4), ("metadata", 20)):
        at = telling(made, namespace)
        assert sorted(set(at.values())) == list(range(1, count + 1)), "each of its puts begins one gap"
        for position in at:
            assert of[tuple(made.recording.acknowledged(position)[-1])] == namespace
    assert len(marks) == 24


def test_the_next_flush_ends_what_a_gap_can_tell(log):
    made = log.write().flush().ok().write().flush().write().ok().done()
    #         0        1       2    3        4        5       6
    assert telling(made, "metadata") == {3: 1, 4: 1, 7: 2}


def test_a_flush_that_was_received_before_the_acknowledgement_does_not_end_it(log):
    made = log.write().ok().done()
    assert telling(made, "metadata") == {2: 1}
    assert recorded.told(made, 1)["metadata"] == {"gap": 0, "telling": False}, "nothing was acknowledged yet"


def test_gets_make_no_gaps(log):
    """A mark of a get stands between contents that are the same: counted, they doubled what a bound rested on."""
    for _ in range(10):
        log.write().flush().ok().ok(verb="get").ok(verb="get").write().flush().ok(verb="delete")
    made = log.done()
    assert len(set(telling(made, "metadata").values())) == 20, "ten puts and ten deletes"
    strata = recorded._strata(made, 3, len(made.recording))
    assert sum(map(len, strata)) == 20


def test_a_lying_drive_makes_every_acknowledgement_after_the_lie_tell(log):
    made = fsync_file(log)
    first = 12
    assert all(recorded.told(made, at, first)["metadata"]["telling"] for at in range(20, len(made.recording)))


def test_the_states_of_few_are_of_every_namespace(log):
    made = fsync_file(log)
    for seed in range(5):
        some = [SimpleNamespace(**{**vars(plan), "payload_seed": seed}) for plan in plans(6)]
        chosen = recorded.states(made, some)
        told = [recorded.told(made, each.state.position) for _, each in chosen]
        assert sum(row["data"]["telling"] for row in told) >= 2
        assert sum(row["metadata"]["telling"] for row in told) >= 3
        assert len({each.content for _, each in chosen}) >= 5


def test_no_state_comes_twice_before_all_have_come(log):
    """The script that showed it once: of the states that were built nearly all kept nothing unflushed."""
    made = fsync_file(log)
    chosen = [each for _, each in recorded.states(made, plans(300))]
    assert len({(recorded.told(made, one.state.position)["metadata"]["gap"], one.content) for one in chosen}) > 150
    modes = Counter(one.state.mode for one in chosen)
    assert modes[vm.Mode.DROP] < 80, modes
    assert {vm.Mode.ALL, vm.Mode.PREFIX, vm.Mode.SUFFIX, vm.Mode.HOLE} <= set(modes)
    assert chosen[0].contents_of == len({one.content for one in chosen}), "all there are"
    again = [each for _, each in recorded.states(made, plans(300))]
    assert again == chosen


def test_where_there_is_one_content_every_plan_still_gets_a_state(log):
    made = log.write().flush().ok().done()
    chosen = recorded.states(made, plans(5))
    assert [plan.trial for plan, _ in chosen] == [0, 1, 2, 3, 4]
    assert {each.as_row()["content"] for _, each in chosen} == {chosen[0][1].content}
    assert chosen[0][1].contents_of == 1


def test_what_cannot_be_counted_is_told_as_a_lower_bound(log):
    made = log.write().flush().ok().write(40).done()
    (_, chosen), *_ = recorded.states(made, plans(3))
    assert (chosen.contents_of, chosen.contents_bits) == (None, 40)


def test_a_reset_keeps_everything_that_was_completed(log):
    chosen = recorded.states(fsync_file(log), plans(30, fault="reset-machine"))
    assert {each.state.mode for _, each in chosen} == {vm.Mode.ALL}
    assert len({each.content for _, each in chosen}) > 25


def test_with_a_settling_time_every_state_is_of_the_end(log):
    made = log.write().flush().ok().write(2).done()
    chosen = recorded.states(made, plans(9, settle_s=1.0))
    assert {each.state.position for _, each in chosen} == {len(made.recording)}
    assert len({each.content for _, each in chosen}) == 4


def test_gets_alone_are_nothing_that_could_be_lost(log):
    with pytest.raises(HarnessError, match="nothing was acknowledged"):
        recorded.states(log.ok(verb="get").write().done(), plans(1))


def test_a_row_has_its_namespaces_gap(log):
    made = fsync_file(log)
    at = next(iter(telling(made, "data")))
    told = recorded.told(made, at)
    assert told == {"data": {"gap": 1, "telling": True}, "metadata": {"gap": 0, "telling": False}}
    outcome = Outcome(None, [], more={"position": at}, by_namespace=told)  # type: ignore[arg-type]
    assert outcome.by_namespace["data"]["gap"] == 1


def test_a_stored_history_that_ends_at_its_crash_state_tells_the_same(log):
    made = fsync_file(log)
    for at in range(20, len(made.recording) + 1, 7):
        cut = recorded.Recorded(**{**vars(made), "events": recorded.written_before(made, at)})
        now = {name: row for name, row in recorded.told(made, at).items() if row["gap"]}
        assert {name: row for name, row in recorded.told(cut, at).items() if row["gap"]} == now


# --- what cells make of it


def row(trial, recording, gap, *, lost=0, **more):
    usual = {
        "trial": trial,
        "backend": "files",
        "setting": "fsync-dir",
        "tier": "T3",
        "namespace": "data",
        "workload": "agent",
        "fault": "cut-power",
        "lane": "loop",
        "host": "0a1b2c3d",
        "destroyed": "drive",
        "acked": 9,
        "lost": lost,
        "unavailable": False,
        "verdict": "broken" if lost else "kept",
        "recording": recording,
        "gap": gap,
        "telling": True,
        "content": f"{trial:016x}",
    }
    return usual | more


def cell_of(rows):
    (found,) = report.cells(rows)
    return found


def test_gaps_that_cannot_lose_do_not_narrow_a_bound():
    rows = [row(at, f"r{at % 3}", at // 3, telling=at < 18) for at in range(96)]
    cell = cell_of(rows)
    assert (cell.gaps, cell.gaps_untold, cell.recordings) == (18, 78, 3)
    assert cell.loss_rate_high == pytest.approx(loss_rate(0, 18)[1], abs=1e-6)
    assert cell.recording_rate_high == pytest.approx(loss_rate(0, 3)[1], abs=1e-6)
    assert cell.loss_rate_unit == "gap"
    assert cell.verdict == "kept"


def test_a_gap_tells_if_one_of_its_states_does():
    cell = cell_of([row(0, "r", 1, telling=False), row(1, "r", 1), row(2, "r", 2, telling=False)])
    assert (cell.gaps, cell.gaps_untold) == (1, 1)


def test_kept_without_a_telling_state_is_unknown():
    cell = cell_of([row(at, "r", at, telling=False) for at in range(6)])
    assert (cell.verdict, cell.gaps, cell.loss_rate_high) == ("unknown", 0, None)
    assert "could have shown a loss" in cell.why
    cell = cell_of([row(at, "r", at, telling=False, verdict="no-promise") for at in range(6)])
    assert cell.verdict == "no-promise"


def test_a_loss_where_none_could_have_shown_makes_every_gap_count():
    """What is flushed later does then not make durable what was acknowledged earlier."""
    cell = cell_of([row(at, "r", at, telling=at < 2, lost=at == 5) for at in range(6)])
    assert (cell.gaps, cell.gaps_with_loss, cell.gaps_untold) == (6, 1, 0)


def test_rows_of_methodology_1_count_as_they_did():
    cell = cell_of([row(at, "r", at, telling=None, content=None) for at in range(6)])
    assert (cell.gaps, cell.gaps_untold, cell.contents, cell.verdict) == (6, 0, None, "kept")


def test_the_interval_by_recording_covers_where_gaps_share_their_fate():
    """The one by gap did in 0, 12 and 52 percent of 1, 2 and 10 recordings."""
    rng = random.Random(1)
    for recordings in (1, 2, 10):
        hits = 0
        for _ in range(200):
            bad = {number for number in range(recordings) if rng.random() < 0.3}
            cell = cell_of([row(at, f"r{at % recordings}", at, lost=at % recordings in bad) for at in range(20)])
            hits += cell.recording_rate_low <= 0.3 <= cell.recording_rate_high
        assert hits >= 185, (recordings, hits)


def test_different_contents_are_counted_across_rows_and_recordings():
    rows = [row(0, "r", 1, content="a" * 16, contents_of=4), row(1, "r", 2, content="a" * 16, contents_of=4)]
    cell = cell_of([*rows, row(2, "q", 1, content="b" * 16, contents_of=3)])
    assert (cell.contents, cell.contents_of, cell.contents_bits) == (2, 7, None)
    assert "3 states, 2 contents of 7" in report.render(document(cell), "table")
    cell = cell_of([*rows, row(2, "q", 1, content="b" * 16, contents_bits=40)])
    assert (cell.contents, cell.contents_of, cell.contents_bits) == (2, None, 40)
    shown = report.render(document(cell), "table")
    assert "3 states, 2 contents of ≥ 2^40" in shown
    assert "0/3 gaps ≤ 71 %" in shown
    assert "0/2 rec. ≤ 84 %" in shown


def document(cell):
    pick = {"setting": None, "why": "", "not_tried": []}
    return {"machine": {"id": "0a1b2c3d"}, "floor": None, "pick": pick, "cells": [cell.as_json()]}


@pytest.mark.parametrize("how", ["lost", "stale", "damaged_acked", "resurrected"])
def test_a_recording_is_kept_for_every_kind_of_loss(how, monkeypatch):
    assert loses({how: 1})
    kept = []
    lost = {"verdict": "no-promise", "destroyed": "drive", how: 1}
    made = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(recorded, "record", lambda *_: made)
    plan = SimpleNamespace(targets={}, fault="cut-power", filesystem="ext4", trial=0)
    outcome = SimpleNamespace(plan=plan)
    monkeypatch.setattr(recorded, "run_states", lambda _made, _some, _laboratory, hear, _stop: hear(outcome))
    monkeypatch.setattr(campaign.judgement, "rows", lambda *_: [lost])
    monkeypatch.setattr(campaign, "held", lambda *_: {})
    shelf = SimpleNamespace(keep=lambda one, _of, broken: kept.append((one, broken)))
    laboratory = SimpleNamespace(alone=lambda _targets: memoryview(b""))
    seconds = []
    campaign.run_recording(
        [plan], laboratory, shelf, {}, lambda _: None, SimpleNamespace(is_set=lambda: False), seconds
    )
    assert kept == [(made, False)]


# --- several short recordings


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_a_run_makes_several_short_recordings(profile):
    power = load(profile).power
    assert power.puts <= 15
    asked = schedule.Asked(backends=("files:fsync-dir",), faults=("cut-power",), trials=24, filesystem="ext4")
    cells = [schedule.Cell(*[schedule.targets_of("files:fsync-dir")[0]] * 2, "cut-power", "loop", "ext4")]
    made = [plan for plan in schedule.plans(cells, asked, load(profile)) if plan.control is None]
    grouped = schedule.recordings(made)
    assert len(made) == 24
    assert len(grouped) >= 8, "enough for a test by recording on either side"
    assert max(map(len, grouped)) - min(map(len, grouped)) <= 1


def test_each_namespace_is_put_early_enough_in_a_short_recording():
    """Data and metadata must both be acknowledged, and a later put of each be left to lose."""
    from durabench import workload

    for name in ("agent", "overwrite", "sharded"):
        for seed in range(50):
            ops = workload.load(name)(0, 1).plan(random.Random(seed))
            puts = [next(ops).namespace for _ in range(load("quick").power.puts)]
            first = max(puts.index("data"), puts.index("metadata"))
            assert {"data", "metadata"} <= set(puts[first:]), (name, seed, puts)
