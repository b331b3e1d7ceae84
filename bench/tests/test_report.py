"""What a report says about recorded trials: sums, bounds, verdicts, exit status, and every format of it."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import random
import re
import runpy
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from durabench import output, report
from durabench.report import NOT_POSSIBLE, Cell, Expectation, html
from durabench.results import Differs, Folder, NotAFolder, runs_in

GOLDEN = Path(__file__).parent / "golden"
MACHINE = runpy.run_path(str(Path(__file__).parent / "all_settings.py"))["MACHINE"]
HOST = MACHINE["id"]
DESTROYED = {
    "none": "nothing",
    "kill-client": "client",
    "kill-server": "server",
    "reset-machine": "machine",
    "cut-power": "drive",
    "lying-drive": "flushed",
}
TIERS = {
    "memory:dict": "T0",
    "files:rename": "T1",
    "files:fsync-dir": "T3",
    "postgres:on": "T3",
    "postgres:off": "T2 0.6 s",
    "redis:aof-everysec": "T2 2 s",
    "s3-moto:unversioned": NOT_POSSIBLE,
}


def row(label="files:fsync-dir", fault="kill-client", namespace="metadata", trial=0, **more):
    backend, setting = label.split(":")
    lane = "here" if fault in ("none", "kill-client", "kill-server") else "guest"
    usual = {
        "trial": trial,
        "backend": backend,
        "setting": setting,
        "tier": TIERS[label],
        "namespace": namespace,
        "workload": "agent",
        "writers": 1,
        "fault": fault,
        "destroyed": DESTROYED[fault],
        "lane": lane,
        "host": HOST,
        "seed": trial * 7,
        "struck": None if fault == "none" else "inside",
        "acked": 20,
        "in_doubt": 1,
        **dict.fromkeys(("lost", "torn", "corrupt", "damaged_acked", "stale", "phantom", "resurrected", "hole"), 0),
        "unavailable": False,
        "payload_bytes": 40_960,
        "verdict": "kept",
    }
    return {**usual, **more}


def entry(label, fault, namespace="metadata", **more):
    whole = row(label, fault, namespace)
    return {name: whole[name] for name in report.KEY} | more


def cell_of(*rows, **more):
    (found,) = report.cells(rows, **more)
    return found


# ---------------------------------------------------------------------------------------------------- cells


def test_counts_are_sums_that_skip_what_was_not_measured():
    cell = cell_of(row(lost=2, size_bytes=None), row(trial=1, lost=None, dangling=3), row(trial=2, lost=1, acked=None))
    assert (cell.lost, cell.acked, cell.dangling) == (3, 40, 3)
    assert cell.trials == 3
    assert cell.orphan is None, "null only where every row is"
    assert cell.size_bytes is None
    assert cell.versions_lost is None


def test_the_bound_of_a_process_fault_counts_trials():
    clean = cell_of(*(row(trial=trial) for trial in range(3)))
    assert (clean.trials_with_loss, clean.trials_counted) == (0, 3)
    assert clean.loss_rate_low == 0
    assert clean.loss_rate_high == pytest.approx(1 - 0.025 ** (1 / 3), abs=1e-6)
    lossy = cell_of(*(row(trial=trial, lost=9 * (trial < 2), verdict="broken") for trial in range(5)))
    assert (lossy.trials_with_loss, lossy.trials_counted) == (2, 5)
    assert 0.05 < lossy.loss_rate_low < 2 / 5 < lossy.loss_rate_high < 0.9


@pytest.mark.parametrize("how", ["lost", "stale", "damaged_acked"])
def test_an_acknowledged_value_that_is_stale_or_damaged_is_a_loss(how):
    assert cell_of(row(**{how: 1}, verdict="broken")).trials_with_loss == 1


def test_a_torn_put_in_doubt_is_no_loss():
    assert cell_of(row(torn=1, damaged_acked=0)).trials_with_loss == 0


def test_unavailable_and_unknown_trials_stand_apart_from_the_loss_rate():
    cell = cell_of(
        row(trial=0),
        row(trial=1, unavailable=True, lost=None, verdict="broken", why="unavailable"),
        row(trial=2, lost=5, verdict="unknown", why="a control failed"),
    )
    assert (cell.trials, cell.trials_unknown, cell.unavailable) == (3, 1, 1)
    assert (cell.trials_with_loss, cell.trials_counted) == (0, 1)
    assert (cell.verdict, cell.why) == ("broken", "unavailable")
    nothing = cell_of(row(verdict="unknown", why="a control failed"))
    assert nothing.trials_with_loss is None
    assert nothing.loss_rate_high is None


def test_the_bound_of_a_recorded_fault_counts_gaps_not_states():
    states = [
        row(
            "files:fsync-dir",
            "cut-power",
            trial=at,
            recording=f"r{at % 2}",
            position=at,
            gap=at // 10,
            lost=int(at == 3),
        )
        for at in range(40)
    ]
    cell = cell_of(*states)
    assert (cell.trials, cell.recordings, cell.gaps, cell.gaps_with_loss) == (40, 2, 8, 1)
    assert (cell.loss_rate_low, cell.loss_rate_high) == pytest.approx((0.003160, 0.526510), abs=1e-5)
    clean = cell_of(*({**state, "lost": 0} for state in states))
    assert clean.loss_rate_high == pytest.approx(1 - 0.025 ** (1 / 8), abs=1e-6), (
        "forty states of eight gaps prove eight"
    )


def test_gaps_of_two_runs_are_not_the_same_gaps():
    states = [row("files:fsync-dir", "cut-power", recording="r0", gap=1, run=run) for run in ("a", "b")]
    cell = cell_of(*states)
    assert (cell.trials, cell.recordings, cell.gaps) == (2, 2, 2)


@pytest.mark.parametrize(
    "verdicts,expected",
    [
        ("kept kept", "kept"),
        ("kept within", "within"),
        ("within no-promise kept", "no-promise"),
        ("kept broken unknown", "broken"),
        ("kept unknown unknown", "kept"),
        ("unknown unknown", "unknown"),
    ],
)
def test_a_cell_has_the_worst_verdict_and_unknown_decides_only_alone(verdicts, expected):
    rows = [row(trial=at, verdict=verdict, why=f"{verdict}!") for at, verdict in enumerate(verdicts.split())]
    random.Random(verdicts).shuffle(rows)
    cell = cell_of(*rows)
    assert (cell.verdict, cell.why) == (expected, f"{expected}!")


def test_slow_puts_that_were_mostly_missed_are_not_called_kept():
    def found(p50_ns, struck, verdict="kept"):
        rows = [row(fault="none"), *(row(trial=at, struck=where, verdict=verdict) for at, where in enumerate(struck))]
        return report.cells(rows, latencies=lambda _: [p50_ns] * 10)[1]

    missed = found(2_000_000, ["inside", "before", "after"])
    assert missed.verdict == "unknown"
    assert "1 of 3 strikes" in (missed.why or "")
    assert found(2_000_000, ["inside", "inside", "after", "before"]).verdict == "kept", "half is enough"
    assert found(900_000, ["before"] * 3).verdict == "kept", "a signal takes longer than such a put"
    assert found(2_000_000, ["before"] * 3, "broken").verdict == "broken", "a loss is a loss, wherever the strike fell"


def test_slow_puts_are_known_from_the_killed_trials_where_there_was_no_peace():
    def found(usual_ns, struck, **more):
        rows = [row(trial=at, struck=where, usual_put_ns=usual_ns, **more) for at, where in enumerate(struck)]
        return cell_of(*rows)

    missed = found(5_000_000, ["after"] * 20)
    assert missed.verdict == "unknown"
    assert missed.why == "only 0 of 20 strikes fell inside a put, which usually takes 5 ms"
    assert found(5_000_000, ["after"] * 20, verdict="within").verdict == "unknown"
    assert found(900_000, ["after"] * 20).verdict == "kept"
    assert found(5_000_000, ["inside", "after"]).verdict == "kept"
    older = found(None, ["after"] * 20)
    assert older.verdict == "unknown"
    assert "how long one usually takes was not recorded" in older.why
    assert found(None, ["inside", "after"]).verdict == "kept", "half is enough, whatever a put takes"


def test_the_quicker_part_says_how_long_a_put_takes_and_peace_before_a_trial_that_was_killed():
    kills = [row(trial=at, struck="after", usual_put_ns=5_000_000) for at in range(4)]
    quick = [row(trial=at, namespace="data", struck="after", usual_put_ns=500_000) for at in range(4)]
    assert {cell.verdict for cell in report.cells([*kills, *quick])} == {"kept"}
    peace = row(fault="none", trial=9)
    assert report.cells([peace, *kills], latencies=lambda _: [500_000] * 10)[1].verdict == "kept"
    elsewhere = {**peace, "host": "ffffffff"}
    assert report.cells([elsewhere, *kills], latencies=lambda _: [500_000] * 10)[1].verdict == "unknown"


def test_strikes_of_trials_that_were_not_judged_say_nothing_for_those_that_were():
    rows = [row(trial=at, struck="after", usual_put_ns=5_000_000) for at in range(9)]
    doubted = [row(trial=at, struck="inside", verdict="unknown", why="x") for at in range(10, 30)]
    cell = cell_of(*rows, *doubted)
    assert (cell.struck_inside, cell.trials, cell.trials_unknown) == (0, 29, 20)
    assert cell.verdict == "unknown"
    assert "0 of 9 strikes" in cell.why


# ------------------------------------------------------------------------------------------ trials not judged

GONE = [{"lost": 1}, {"stale": 2}, {"resurrected": 1}, {"damaged_acked": 1}, {"phantom": 1}, {"torn": 1}]
GONE += [{"unavailable": True, "lost": None}, {"corrupt": 3}]


@pytest.mark.parametrize("seen", GONE, ids=lambda seen: next(iter(seen)))
@pytest.mark.parametrize("verdict", ["kept", "within"])
def test_nothing_is_kept_against_what_trials_without_a_verdict_saw(seen, verdict):
    judged = [row(trial=at, verdict=verdict) for at in range(5)]
    doubted = [row(trial=at, verdict="unknown", why="a reader died", **seen) for at in range(5, 8)]
    doubted.append(row(trial=9, verdict="unknown", why="nothing acknowledged"))
    cell = cell_of(*judged, *doubted)
    assert cell.verdict == "unknown"
    name, count = next(iter(seen.items()))
    of = "3 of 4 trials that could not be judged"
    assert cell.why == f"{verdict} where judged, but seen in {of}: {3 * count} {name} (a reader died)"
    assert status_of(*judged, *doubted) == 3
    assert report.layout.cell_text(cell.as_json()) == ("? unknown", "9 trials", "4 unknown")


@pytest.mark.parametrize("verdict", ["broken", "no-promise"])
def test_what_is_broken_or_not_promised_stays_so_whatever_else_was_seen(verdict):
    cell = cell_of(row(verdict=verdict, lost=1), row(trial=1, verdict="unknown", lost=1))
    assert cell.verdict == verdict


def test_a_window_that_was_not_exercised_is_no_contradiction_but_its_losses_are_seen():
    short = row(trial=1, verdict="unknown", lost=3, why="window not exercised: no acknowledgement was older than 2 s")
    assert cell_of(row(verdict="within", lost=1), short).verdict == "within"
    cell = cell_of(row(), short)
    assert (cell.verdict, cell.why) == ("within", short["why"])
    assert cell_of(row(), {**short, "lost": 0}).verdict == "kept"


def test_a_torn_put_in_doubt_is_no_contradiction_where_judged_trials_were_held_in_spite_of_one():
    doubted = row(trial=1, verdict="unknown", torn=1)
    assert cell_of(row(torn=1), doubted).verdict == "kept"
    assert cell_of(row(torn=1), {**doubted, "damaged_acked": 1}).verdict == "unknown"


def test_trials_that_were_not_judged_are_said_wherever_a_verdict_is(tmp_path):
    folder = Folder.create_at(tmp_path / "run")
    folder.begin({"machine": MACHINE, "cells": [], "seed": 1})
    for fault in ("kill-client", "none"):
        for at in range(17):
            more = {"verdict": "unknown", "why": "the reader died"} if at >= 12 else {}
            folder.append([row(fault=fault, trial=at + 100 * (fault == "none"), **more)])
    folder.finish(0)
    made = report.document([folder])
    shown = {form: report.render(made, form) for form in ("table", "markdown", "csv", "json")}
    assert "✓ kept<br>0/12 ≤ 26 %<br>5 unknown | ✓ kept<br>0/12 ≤ 26 %<br>5 unknown" in shown["markdown"]
    assert shown["table"].count("0/12 ≤ 26 % 5 unknown") == 2, "the orderly stop is shown, too"
    assert "? 5 of 17 trials unknown files:fsync-dir, kill-client, metadata: the reader died" in shown["table"]
    assert shown["csv"].count("the reader died") == 2
    assert [cell["trials_unknown"] for cell in json.loads(shown["json"])["cells"]] == [5, 5]
    page = html.render(made, [folder])
    assert "<small>0/12 ≤ 26 % 5 unknown</small>" in page
    assert "; 1 of 1 cells have trials that could not be judged." in page
    assert "+5?" in page


def test_latency_comes_from_peace_on_this_host_only():
    samples = list(range(1_000_000, 1_400_000, 1_000))

    def found(fault, lane="here", taken=samples):
        return cell_of(row(fault=fault, lane=lane), latencies=lambda _: taken, floor_of=lambda _host, _size: 0.5)

    peace = found("none")
    assert peace.put_p50_ms == pytest.approx(1.2, abs=0.01)
    assert peace.put_p99_ms == pytest.approx(1.396, abs=0.01)
    assert peace.floor_p50_ms == 0.5
    for other in (found("kill-client"), found("none", "guest")):
        assert (other.put_p50_ms, other.put_p99_ms, other.floor_p50_ms) == (None, None, None)
    assert found("none", taken=samples[:367]).put_p99_ms is None, "no p99 under 368"
    assert found("none", taken=[]).put_p50_ms is None


def test_bytes_per_payload_byte_uses_trials_that_have_both():
    assert cell_of(row(size_bytes=100, payload_bytes=50), row(trial=1, payload_bytes=999)).bytes_per_payload_byte == 2
    assert cell_of(row()).bytes_per_payload_byte is None


def test_cells_that_were_not_judged_say_why():
    planned = [
        entry("s3-moto:unversioned", "kill-server", verdict="not rated", why="a mock: it has no disk"),
        entry("files:rename", "kill-server", verdict=NOT_POSSIBLE, why="no server"),
        entry("postgres:on", "kill-client"),
        entry("postgres:on", "kill-client", why="budget"),
    ]
    found = {(cell.backend, cell.fault): cell for cell in report.cells([], planned)}
    assert {(cell.trials, cell.verdict, cell.why) for cell in found.values()} == {
        (0, "not rated", "a mock: it has no disk"),
        (0, NOT_POSSIBLE, "no server"),
        (0, "not run", "budget"),
    }


def test_rows_of_controls_enter_no_cell():
    assert report.cells([row("memory:dict", control="positive", verdict="broken", lost=3)]) == []


def test_every_field_of_a_cell_is_documented_in_order():
    assert [field.name for field in fields(Cell)] == list(report.CELL)
    promised = """backend setting tier namespace workload fault lane host trials trials_with_loss gaps gaps_with_loss
        loss_rate_low loss_rate_high loss_window_p50_s loss_window_max_s put_p50_ms put_p99_ms floor_p50_ms
        bytes_per_payload_byte verdict why lost torn stale"""
    assert set(promised.split()) <= set(report.CELL)


# ---------------------------------------------------------------------------------------------------- exit status


def status_of(*rows, planned=(), expectations=(), doubts=()):
    found = report.cells(rows, planned, expectations=expectations)
    return report.exit_status({"cells": [cell.as_json() for cell in found]}, doubts=doubts)


def test_the_exit_status_by_the_table_of_the_design():
    broken = row(verdict="broken", lost=1)
    unknown = row(namespace="data", verdict="unknown")
    known = [Expectation(setting="files:fsync-dir", fault="kill-client", reason="known")]
    asked = entry("postgres:on", "kill-server", verdict="not run", why="x", by_name=True)
    unasked = {**asked, "by_name": False}
    assert status_of(row()) == 0
    assert status_of(row(verdict="no-promise", lost=9), row(namespace="data", verdict="within", lost=1)) == 0
    assert status_of(planned=[entry("s3-moto:unversioned", "cut-power", verdict="not rated", by_name=True)]) == 0
    assert status_of(planned=[entry("files:rename", "kill-server", verdict=NOT_POSSIBLE, by_name=True)]) == 0
    assert status_of(row(), planned=[unasked]) == 0
    assert status_of(row(), planned=[asked]) == 3
    assert status_of(row(), unknown) == 3
    assert status_of(row(), doubts=["a control failed"]) == 3
    assert status_of(broken) == 1
    assert status_of(broken, unknown, planned=[asked], doubts=["x"]) == 1, "1 before 3"
    assert status_of(broken, expectations=known) == 0
    assert status_of(broken, unknown, expectations=known) == 3
    assert status_of({**broken, "fault": "kill-server"}, expectations=known) == 1, "known under another fault only"


def test_expectations_are_read_and_mistakes_named(tmp_path):
    path = tmp_path / "expected.toml"
    path.write_text('[[expected]]\nsetting = "a:b"\nfault = "cut-power"\nreason = "known since 2024"\n')
    assert report.load_expectations(path) == [Expectation(setting="a:b", fault="cut-power", reason="known since 2024")]
    for wrong in ('[[expected]]\nsetting = "a:b"\n', '[[expect]]\nsetting = "a:b"\n', "x ="):
        path.write_text(wrong)
        with pytest.raises(report.ExpectationsError, match="setting, fault and reason"):
            report.load_expectations(path)
    with pytest.raises(report.ExpectationsError, match="cannot be read"):
        report.load_expectations(tmp_path / "absent.toml")


# ---------------------------------------------------------------------------------------------------- documents


def recorded(path, machine=MACHINE, *, done=True, trials=3, created="2026-12-01T10:15:00+00:00", **more):
    """A small campaign with one of everything, written through the result folder."""
    planned = [
        entry(label, fault, namespace, host=machine["id"])
        for label in TIERS
        for namespace in ("metadata", "data")
        for fault in ("none", "kill-client", "kill-server", "cut-power")
    ]
    for one in planned:
        label = f"{one['backend']}:{one['setting']}"
        if label == "s3-moto:unversioned" and one["fault"] in ("kill-server", "cut-power"):
            one.update(verdict="not rated", why="a mock: it has no disk")
        elif one["fault"] == "kill-server" and one["backend"] in ("memory", "files"):
            one.update(verdict=NOT_POSSIBLE, why="an embedded store has no server")
        elif one["fault"] == "cut-power" and one["backend"] in ("memory", "redis"):
            one.update(verdict="not run", why="QEMU is missing: apt-get install qemu-system-x86")
    folder = Folder.create_at(path)
    folder.begin({"created": created, "profile": "quick", "seed": 1, "machine": machine, "cells": planned, **more})
    for when, p50_ns in (("before", 200_000), ("between", 210_000), ("after", 190_000)):
        for size_bytes, factor in ((2048, 1), (1 << 20, 10)):
            at, n = folder.append_samples([p50_ns * factor] * 40)
            common = {"when": when, "host": machine["id"], "size_bytes": size_bytes, "samples_at": at, "samples_n": n}
            folder.append_floor({"time": "2026-12-01T10:15:01+00:00", "n": n, "p50_ns": p50_ns * factor, **common})
    number = 0
    for _ in range(trials):
        for label, fault in OUTCOMES:
            rows = [one for one in _rows(folder, label, fault, number, machine["id"]) if one]
            folder.write_history(number, [{"e": "trial", "seed": 0}])
            folder.append(rows)
            number += 1
    (path / "recordings").mkdir()
    (path / "recordings" / "r0.gz").write_bytes(b"")
    if done:
        folder.finish(1, stopped="budget")
    folder.close()
    return Folder.open(path)


P50_NS = {
    "memory:dict": 2_000,
    "files:rename": 60_000,
    "files:fsync-dir": 900_000,
    "postgres:on": 500_000,
    "postgres:off": 100_000,
    "redis:aof-everysec": 90_000,
    "s3-moto:unversioned": 3_000_000,
}
OUTCOMES = {
    ("memory:dict", "none"): {"lost": 20, "verdict": "no-promise"},
    ("memory:dict", "kill-client"): {"lost": 20, "loss_window_s": 0.2, "verdict": "no-promise"},
    ("files:rename", "none"): {},
    ("files:rename", "kill-client"): {},
    ("files:rename", "cut-power"): {"lost": 12, "loss_window_s": 4.5, "verdict": "no-promise"},
    ("files:fsync-dir", "none"): {},
    ("files:fsync-dir", "kill-client"): {},
    ("files:fsync-dir", "cut-power"): {},
    ("postgres:on", "none"): {},
    ("postgres:on", "kill-client"): {},
    ("postgres:on", "kill-server"): {},
    ("postgres:on", "cut-power"): {},
    ("postgres:off", "none"): {},
    ("postgres:off", "kill-client"): {},
    ("postgres:off", "kill-server"): {"lost": 3, "loss_window_s": 0.15, "verdict": "within"},
    ("redis:aof-everysec", "kill-client"): {"verdict": "unknown", "why": "window not exercised"},
    ("redis:aof-everysec", "kill-server"): {
        "lost": 2,
        "loss_window_s": 2.5,
        "verdict": "broken",
        "why": "2 lost, 2.5 s old | [bold]",
    },
    ("s3-moto:unversioned", "kill-client"): {
        "unavailable": True,
        "lost": None,
        "verdict": "broken",
        "why": "unavailable",
    },
}


def _rows(folder, label, fault, number, host):
    for namespace, factor in (("metadata", 1), ("data", 20)):
        more = dict(OUTCOMES[label, fault])
        more["payload_bytes"] = 40_960 if namespace == "metadata" else 20 << 20
        if fault == "none":
            rng = random.Random(f"{number}/{namespace}")
            taken = [int(P50_NS[label] * factor * rng.uniform(0.9, 1.2)) for _ in range(130)]
            more["samples_at"], more["samples_n"] = folder.append_samples(taken)
            more["size_bytes"] = more["payload_bytes"] * 2
        if fault == "cut-power":
            more |= {"recording": f"r{number % 2}", "position": number, "gap": number % 5}
        if more.get("verdict") == "broken":
            more["replay"] = f"durabench replay results/local/x {number}"
        if namespace == "metadata":
            more |= {"dangling": 1 if label == "postgres:off" and fault == "kill-server" else 0, "orphan": 2}
        yield row(label, fault, namespace, number, host=host, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("report") / "2026-12-01T101500Z-0a1b2c3d-quick")


@pytest.fixture(scope="module")
def made(run):
    known = [Expectation(setting="s3-moto:unversioned", fault="kill-client", reason="it is killed with its client")]
    return report.document([run], expected=known)


def test_the_document_has_what_the_design_promises(made):
    assert {"schema_version", "machine", "floor", "pick", "cells"} <= set(made)
    assert made["machine"]["id"] == HOST
    assert made["floor"]["p50_ms"] == 0.2
    assert (made["floor"]["lowest_p50_ms"], made["floor"]["highest_p50_ms"]) == (0.19, 0.21)
    assert [size["size_bytes"] for size in made["floor"]["sizes"]] == [2048, 1 << 20]
    assert made["pick"]["setting"] == "postgres:on"
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    for cell in made["cells"]:
        assert list(cell) == list(report.CELL)
    cells = {(c["backend"], c["setting"], c["namespace"], c["fault"]): c for c in made["cells"]}
    assert len(cells) == 7 * 2 * 4
    put = cells["files", "fsync-dir", "data", "none"]
    assert put["floor_p50_ms"] == 2, "data is put beside the floor of its own size"
    assert put["put_p99_ms"] is not None
    assert cells["redis", "aof-everysec", "metadata", "none"]["why"] == "budget"
    assert report.exit_status(made) == 1


def test_a_run_that_just_ended_says_why_cells_have_no_trials(tmp_path):
    folder = recorded(tmp_path / "run", done=False, trials=1)
    missing = entry("redis:aof-everysec", "none")

    def said(**more):
        cells = report.document([folder], **more)["cells"]
        return next(c["why"] for c in cells if (c["backend"], c["fault"]) == ("redis", "none"))

    assert said() == "not finished"
    assert said(not_run=[{**missing, "verdict": "not run", "why": "it did not come up"}]) == "it did not come up"


def test_runs_of_one_machine_are_added_up_and_those_of_two_are_not(run, tmp_path):
    again = recorded(tmp_path / "again", trials=2, created="2026-12-01T10:16:00+00:00")
    elsewhere = recorded(tmp_path / "elsewhere", {**MACHINE, "id": "ffffffff"})
    together = report.document([run, again])
    kept = [
        c for c in together["cells"] if (c["backend"], c["setting"], c["fault"]) == ("postgres", "on", "kill-client")
    ]
    assert [c["trials"] for c in kept] == [5, 5]
    assert together["pick"]["setting"] == "postgres:on"
    apart = report.document([run, elsewhere])
    assert len(apart["cells"]) == 2 * 7 * 2 * 4
    assert apart["pick"]["setting"] is None
    assert set(apart["machines"]) == {HOST, "ffffffff"}
    assert "host ffffffff" in report.render(apart, "table")


def test_runs_of_several_hosts_merge_by_copying_folders_together(run, tmp_path, capsys):
    (tmp_path / "all").mkdir()
    shutil.copytree(run.path, tmp_path / "all" / "one")
    shutil.copytree(run.path, tmp_path / "all" / "one-again")
    recorded(tmp_path / "all" / "other", {**MACHINE, "id": "ffffffff"})
    (tmp_path / "all" / "notes").mkdir()
    found = runs_in([tmp_path / "all", run.path])
    assert [folder.path.name for folder in found] == ["one", "one-again", "other", run.path.name]
    merged = report.document(found)
    assert sum(one["trials"] for one in merged["runs"]) == 2 * 54, "a run that is there three times counts once"
    assert set(merged["machines"]) == {HOST, "ffffffff"}
    with pytest.raises(NotAFolder, match="not a results folder"):
        runs_in([tmp_path / "all" / "notes"])


def test_of_copies_of_a_run_the_one_that_went_on_counts(tmp_path):
    whole = recorded(tmp_path / "whole", trials=2)
    begun = recorded(tmp_path / "begun", trials=1, done=False)
    for order in ([begun, whole], [whole, begun]):
        (told,) = report.document(order)["runs"]
        assert (told["trials"], told["finished"]) == (36, True)


def test_runs_of_two_methodologies_are_not_added_up(run, tmp_path):
    newer = recorded(tmp_path / "newer", methodology=99)
    with pytest.raises(Differs, match="methodology 99"):
        report.document([run, newer])
    assert report.document([newer])["runs"][0]["trials"] == 54


def test_a_folder_that_lost_parts_gives_a_report_that_says_so(tmp_path):
    folder = recorded(tmp_path / "run", done=False)
    for number in range(20):
        (folder.path / "histories" / f"{number}.jsonl.gz").unlink()
    shutil.rmtree(folder.path / "recordings")
    (folder.path / "samples.i64").unlink()
    with (folder.path / "trials.jsonl").open("ab") as file:
        file.write(b'{"trial": 99')
    made = report.document([folder])
    shown = report.render(made, "table")
    assert "20 trials without history, which cannot be judged again" in shown
    assert "1 losing recording not kept, which cannot be replayed" in shown
    assert "1 torn row dropped" in shown
    assert "unfinished" in shown
    assert all(cell["put_p50_ms"] is None for cell in made["cells"])
    assert any(cell["trials"] for cell in made["cells"])


def test_a_folder_without_a_trial_gives_a_report_that_says_so(tmp_path):
    for name, cells in (("planned", [entry("postgres:on", "cut-power")]), ("empty", [])):
        folder = Folder.create_at(tmp_path / name)
        folder.begin({"machine": MACHINE, "cells": cells})
        folder.close()
        made = report.document([Folder.open(folder.path)])
        for form in ("table", "markdown", "csv", "json"):
            said = report.render(made, form)
            assert form in ("csv", "json") or "no trial of it ended" in said
        assert made["pick"]["setting"] is None
        assert all(cell["verdict"] == "not run" for cell in made["cells"])


def test_a_trial_is_repeated_from_where_its_folder_lies_now(run, tmp_path):
    moved = shutil.copytree(run.path, tmp_path / "moved")
    replays = {cell["replay"] for cell in report.document([Folder.open(moved)])["cells"]} - {None}
    assert replays
    assert all(each.startswith(f"durabench replay {moved} ") for each in replays)


def test_what_stands_against_trusting_a_run_is_told_whenever_it_is_shown(tmp_path):
    folder = Folder.resume(recorded(tmp_path / "run", done=False, trials=1).path, {"machine": {"id": HOST}})
    folder.finish(3, doubts=["a control failed: positive"])
    assert "doubt: a control failed: positive" in report.render(report.document([Folder.open(folder.path)]), "table")


def test_dropped_rows_are_told(tmp_path):
    folder = recorded(tmp_path / "torn", done=False, trials=1)
    with (folder.path / "trials.jsonl").open("ab") as file:
        file.write(b'{"trial": 99')
    assert "1 torn row dropped" in report.render(report.document([folder]), "table")


# ---------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("form,name", [("table", "txt"), ("json", "json"), ("csv", "csv"), ("markdown", "md")])
def test_formats_look_as_they_did_when_somebody_looked(made, run, form, name, tmp_path):
    """To accept a change: look at the file that the failure names, then copy it over the golden one."""
    shown = tmp_path / f"report.{name}"
    some = {**made, "cells": made["cells"][:10]} if form == "json" else made
    shown.write_text(report.render(some, form).replace(str(run.path), "results/local/x"))
    assert (GOLDEN / shown.name).read_text() == shown.read_text(), f"look at {shown}"


def test_a_table_is_plain_and_fits_where_it_is_piped(made):
    shown = report.render(made, "table")
    assert "\x1b" not in shown
    assert "0/3 ≤ 71 %" in shown
    tables = [line for line in shown.splitlines() if line.startswith("   ")]
    assert len(tables) > 20
    assert max(map(len, tables)) <= 120


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_table_adapts_to_the_terminal_and_to_no_color(made, monkeypatch, width):
    def shown():
        sink = io.StringIO()
        report.table(made, Console(file=sink, force_terminal=True, width=width))
        return sink.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[(\d+;)*3\d", shown()), "a colour"
    assert "[bold]" in shown(), "what a server says is not markup"
    if width >= 100:
        assert "…" not in shown(), "nothing is cut off"


def test_csv_has_a_line_per_cell_and_nothing_where_nothing_was_measured(made):
    lines = list(csv.DictReader(io.StringIO(report.render(made, "csv"))))
    assert len(lines) == len(made["cells"])
    first = lines[0]
    assert list(first) == list(report.CELL)
    assert first["put_p99_ms"] != ""
    assert first["recovery_p50_s"] == ""


def test_markdown_keeps_what_servers_say_inside_its_line(made):
    shown = report.render(made, "markdown")
    assert "2.5 s old \\| [bold]" in shown
    for line in shown.splitlines():
        if line.startswith("| "):
            assert line.count("|") - line.count("\\|") == 10


def test_secrets_do_not_pass_through_a_report(made):
    leaky = {**made, "runs": [{**made["runs"][0], "name": "redis://:hunter2@h/0"}]}
    for form in ("table", "json", "markdown"):
        assert "hunter2" not in report.render(leaky, form)


def test_formats_and_files_are_checked_before_anything_runs(tmp_path, made, capsys):
    asked = report.outputs(["table", f"json={tmp_path / 'a.json'}", f"csv={tmp_path / 'a.csv'}"])
    report.write(made, asked)
    assert json.loads((tmp_path / "a.json").read_text()) == made
    assert (tmp_path / "a.csv").read_text() == report.render(made, "csv")
    assert "pick: postgres:on" in capsys.readouterr().out
    with pytest.raises(report.OutputError, match="table, json, csv, markdown"):
        report.outputs(["html"])
    with pytest.raises(report.OutputError, match="json=FILE"):
        report.outputs(["table", "json"])
    with pytest.raises(report.OutputError, match="cannot be written"):
        report.write(made, report.outputs([f"json={tmp_path}/no/such/folder/a.json"]))


def test_the_block_of_a_readme_is_replaced_and_the_rest_stays(tmp_path, made):
    readme = tmp_path / "README.md"
    readme.write_text("# Mine\n\n<!-- durabench:begin -->\nold\n<!-- durabench:end -->\n\nThe end.\n")
    report.write_block(readme, made)
    first = readme.read_text()
    assert first.startswith("# Mine\n\n<!-- durabench:begin -->\n")
    assert first.endswith("<!-- durabench:end -->\n\nThe end.\n")
    assert report.render(made, "markdown") in first
    assert "old" not in first.split("durabench:begin")[1][:10]
    report.write_block(readme, made)
    assert readme.read_text() == first
    for wrong in ("# Mine\n", "<!-- durabench:end -->\n<!-- durabench:begin -->\n"):
        readme.write_text(wrong)
        with pytest.raises(report.OutputError, match="durabench:begin"):
            report.write_block(readme, made)
        assert readme.read_text() == wrong


QUOTED = (
    "# Mine\n\nThe marks are `<!-- durabench:begin -->` and <!-- durabench:end -->, quoted:\n\n"
    "    <!-- durabench:begin -->\n    <!-- durabench:end -->\n\nand below they are meant:\n"
)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_of_the_rest_of_a_file_every_byte_stays_marks_in_prose_too(tmp_path, made, newline):
    before, after = (
        text.replace("\n", newline).encode() for text in (QUOTED, "\nThe end,\t\x0c \u2028 without a newline")
    )
    after += b"\xff\xfe not UTF-8 \r alone"
    begin, end = (f"<!-- durabench:{word} -->{newline}".encode() for word in ("begin", "end"))
    readme = tmp_path / "README.md"
    readme.write_bytes(before + begin + b"old" + end.replace(b"<", b"\n<") + after)
    report.write_block(readme, made)
    block = report.render(made, "markdown").replace("\n", newline).encode()
    assert readme.read_bytes() == before + begin + newline.encode() + block + newline.encode() + end + after
    whole = readme.read_bytes()
    report.write_block(readme, made)
    assert readme.read_bytes() == whole


@pytest.mark.parametrize(
    "wrong",
    [
        "see <!-- durabench:begin --> and\n<!-- durabench:end -->\n",
        "{begin}{end}{begin}{end}",
        "{begin}{begin}{end}",
        "{begin}{end}{end}",
        "{end}{begin}",
        "{begin}",
        "```\n{begin}{end}```\n{begin}{end}",
    ],
)
def test_anything_but_one_pair_of_marks_is_refused_and_nothing_written(tmp_path, made, wrong):
    readme = tmp_path / "README.md"
    text = wrong.format(begin="<!-- durabench:begin -->\n", end="<!-- durabench:end -->\n")
    readme.write_text(text)
    before = readme.stat()
    with pytest.raises(report.OutputError, match="each alone on its line") as refusal:
        report.write_block(readme, made)
    assert "\n" not in str(refusal.value)
    assert (readme.read_text(), readme.stat().st_mtime_ns) == (text, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["README.md"]


def test_what_is_no_file_has_no_block(tmp_path, made):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent"):
        with pytest.raises(report.OutputError, match="cannot be read"):
            report.write_block(path, made)


def written(path, made):
    """By each of the ways in which a report becomes a file."""
    yield lambda: report.write(made, report.outputs([f"json={path}"]))
    yield lambda: output.replace_file(path, "text")
    yield lambda: output.replace_file(path, b"bytes")
    marks = "<!-- durabench:begin -->\n<!-- durabench:end -->\n"
    yield lambda: (path.write_text(marks), report.write_block(path, made))


@pytest.mark.parametrize("way", range(4))
def test_a_file_that_is_replaced_keeps_its_mode_and_its_link(tmp_path, made, way):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.md", tmp_path / "link.md"
    target.write_text("old")
    target.chmod(0o604)
    link.symlink_to("there/real.md")
    list(written(link, made))[way]()
    assert link.is_symlink()
    assert target.read_text() != "old"
    assert target.stat().st_mode & 0o7777 == 0o604
    assert sorted(os.listdir(tmp_path)) == ["link.md", "there"]
    assert os.listdir(tmp_path / "there") == ["real.md"]


def test_a_new_file_is_made_as_others_are_also_where_a_link_points_to_it(tmp_path):
    plain, target, link = tmp_path / "plain", tmp_path / "target", tmp_path / "link"
    plain.write_text("")
    link.symlink_to(target)
    output.replace_file(link, "new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    assert target.stat().st_mode == plain.stat().st_mode
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(report.OutputError, match="Too many levels of symbolic links"):
        output.replace_file(circle, "x")
    assert circle.is_symlink()


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "report.md"
    path.write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(report.OutputError, match="No space left on device"):
        output.replace_file(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.md"]


def test_a_hostile_name_of_a_workload_ends_no_block(tmp_path, made):
    """Names come from rows, and rows from somebody's folder."""
    hostile = "x\n<!-- durabench:end -->\n"
    cells = [{**cell, "workload": hostile, "fault": hostile} for cell in made["cells"]]
    readme = tmp_path / "README.md"
    readme.write_text("<!-- durabench:begin -->\n<!-- durabench:end -->\n")
    for _ in range(2):
        report.write_block(readme, {**made, "cells": cells})
    assert readme.read_text().count("<!-- durabench:end -->") == 1
