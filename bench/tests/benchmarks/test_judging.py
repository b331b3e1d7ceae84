"""What judging costs: find and judge per history, payloads made and read, rows of a large run reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from random import Random

from durabench import checker, history, judgement, payload
from durabench.campaign import held
from durabench.results import Folder
from durabench.service import Target
from durabench.trial import Outcome, TrialPlan

TITLE = "what judging costs"
HEAD = ("what", "each", "rate")
SIZE_BYTES = 2048
TARGET = Target("files", "fsync-dir")


def events_of(seed, puts):
    """The events of a killed writer whose last put is in doubt, as a campaign stores them."""
    found = [{"e": "trial", "t": 0, "seed": seed, "trial": 0, "attempt": 1}]
    for at in range(puts):
        armed = {"e": "armed", "w": 0, "i": at, "verb": "put", "ns": "metadata", "key": f"step-{at:06d}", "seq": at}
        found.append({**armed, "size": SIZE_BYTES, "t": 2000 * at})
        if at < puts - 1:
            found.append({"e": "ok", "w": 0, "i": at, "latency_ns": 900, "t": 2000 * at + 1000})
    found.append({"e": "strike", "t": 2000 * puts})
    found.append({"e": "struck", "t": 2000 * puts + 1, "where": "inside"})
    found.append({"e": "up", "t": 2000 * puts + 2, "recovery_ns": 1})
    keys = [f"step-{at:06d}" for at in range(puts - 1)]
    found.append({"e": "listing", "t": 2000 * puts + 2, "ns": "metadata", "keys": keys})
    for at, key in enumerate(keys):
        value = payload.make(seed, "metadata", key, at, SIZE_BYTES)
        described = {"length": SIZE_BYTES, "sha256": payload.digest(value)}
        blocks = [list(run) for run in payload.read(seed, "metadata", key, value)]
        found.append({"e": "reading", "t": 1, "ns": "metadata", "key": key, "value": {**described, "blocks": blocks}})
    last = f"step-{puts - 1:06d}"
    return [*found, {"e": "reading", "t": 1, "ns": "metadata", "key": last, "value": None}]


def plan(trial=0, fault="kill-client"):
    return TrialPlan(trial, trial, TARGET, TARGET, "append", fault)


def test_find_and_judge(benchmark, brief, table):
    events = json.loads(json.dumps(events_of(1, 20)))
    asked = held(plan(), {})
    promise = asked["metadata"].promise

    def judge():
        made = checker.find(history.from_events(events), "metadata")
        return checker.judge(made, promise, judgement.fault.load("kill-client").destroys)

    verdict = benchmark.pedantic(judge, rounds=2 if brief else 300, warmup_rounds=1)
    assert verdict.verdict == "kept"
    tell(table, benchmark, "find and judge a history of 20 puts", 1, "histories")


def test_rows_of_an_outcome(benchmark, brief, table):
    """All that a campaign's one writing thread computes for a trial, without its file operations."""
    outcome = Outcome(plan(), events_of(0, 20), driver="forked")
    rows = benchmark.pedantic(
        lambda: judgement.rows(outcome, held(plan(), {}), "host", "folder"),
        rounds=2 if brief else 300,
        warmup_rounds=1,
    )
    assert [row["verdict"] for row in rows] == ["kept"]
    tell(table, benchmark, "rows of a trial of 20 puts", 1, "trials")


def test_recording_a_trial(benchmark, brief, table, tmp_path):
    """The same with its history and its rows written down and synced: what bounds trials a minute however many run."""
    folder = Folder.create_at(tmp_path / "results")
    folder.begin({"plan": [], "cells": []})
    outcomes = iter([Outcome(plan(n), events_of(n, 20), driver="forked") for n in range(3 if brief else 200)])

    def record():
        outcome = next(outcomes)
        folder.write_history(outcome.plan.trial, outcome.events)
        folder.append(judgement.rows(outcome, held(outcome.plan, {}), "host", "folder"))

    benchmark.pedantic(record, rounds=2 if brief else 199, warmup_rounds=1)
    assert len(folder.trials()) == (3 if brief else 200)
    folder.close()
    tell(table, benchmark, "judge, store and sync a trial of 20 puts", 1, "trials")


def test_make_payload(benchmark, brief, table):
    for_each = 8 if brief else 256
    made = benchmark.pedantic(
        lambda: [payload.make(1, "metadata", f"step-{at:06d}", at, SIZE_BYTES) for at in range(for_each)],
        rounds=1 if brief else 20,
    )
    assert {len(one) for one in made} == {SIZE_BYTES}
    tell(table, benchmark, "make a payload of 2 KiB", for_each, "payloads")


def test_read_payload(benchmark, brief, table):
    values = [payload.make(1, "metadata", f"step-{at:06d}", at, SIZE_BYTES) for at in range(8 if brief else 256)]
    found = benchmark.pedantic(
        lambda: [payload.read(1, "metadata", f"step-{at:06d}", value) for at, value in enumerate(values)],
        rounds=1 if brief else 20,
    )
    assert found == [((at, SIZE_BYTES // payload.BLOCK_BYTES),) for at in range(len(values))]
    tell(table, benchmark, "read a payload of 2 KiB", len(values), "payloads")


def test_read_large_payload(benchmark, brief, table):
    size = 1 << 20
    value = payload.make(1, "data", "data-000000", 3, size)
    found = benchmark.pedantic(lambda: payload.read(1, "data", "data-000000", value), rounds=1 if brief else 20)
    assert found == ((3, size // payload.BLOCK_BYTES),)
    tell(table, benchmark, "read a payload of 1 MiB", 1, "payloads")


def test_report_of_a_large_run(benchmark, brief, table, tmp_path):
    """A folder of so many rows as JSON, by the command, start of the interpreter included; and the memory it takes."""
    trials = 50 if brief else 50_000
    folder = large_run(tmp_path / "results", trials)
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "durabench", "report", str(folder.path), "--format", f"json={out}"]
    peak_mib = []

    def report():
        process = subprocess.Popen(command)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peak_mib.append(used.ru_maxrss / 1024)

    benchmark.pedantic(report, rounds=1 if brief else 3)
    assert sum(cell["trials"] for cell in json.loads(out.read_text())["cells"]) == trials
    benchmark.extra_info.update(peak_mib=max(peak_mib))
    tell(table, benchmark, f"report {trials:,} rows, in {max(peak_mib):.0f} MiB", trials, "rows")


def large_run(path, trials):
    """A run of 36 settings under three faults, a hundred latencies in every trial of peace."""
    folder = Folder.create_at(path)
    folder.begin({"plan": [], "cells": [], "machine": {"id": "00000000"}, "seed": 1, "profile": "quick"})
    rng = Random(1)
    (like,) = judgement.rows(Outcome(plan(), events_of(0, 20), driver="forked"), held(plan(), {}), "00000000", "folder")
    folder.append([like])
    faults = {"kill-client": "client", "kill-server": "server", "none": "nothing"}
    with (folder.path / "trials.jsonl").open("a") as file:  # what `append` writes, without a sync for each
        for trial in range(1, trials):
            fault = list(faults)[trial % 3]
            row = {**folder_row(like), "trial": trial, "seed": rng.getrandbits(48), "fault": fault, "rows": 1}
            row |= {"setting": f"setting-{trial // 3 % 36}", "destroyed": faults[fault], "duration_s": rng.random()}
            if fault == "none":
                taken = [rng.randrange(100_000, 900_000) for _ in range(100)]
                row["samples_at"], row["samples_n"] = 100 * (trial // 3), 100
                with (folder.path / "samples.i64").open("ab") as samples:
                    samples.write(array("q", taken).tobytes())
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    folder.close()
    return folder


def folder_row(like):
    from durabench.row import ROW

    return {name: like.get(name) for name in ROW} | {"attempt": 1}


def tell(table, benchmark, what, units, name):
    median = benchmark.stats.stats.median
    benchmark.extra_info.update(units=units, rate=units / median)
    table(TITLE, HEAD, [what, f"{1e6 * median / units:,.0f} us", f"{units / median:,.0f} {name}/s"])
