"""Trials whose outcome is known beforehand: when one of them comes out otherwise, nothing of the run is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from durabench import judgement, profile, schedule
from durabench.results import Folder
from durabench.service import Target
from durabench.trial import TrialPlan

HERE = Path(__file__).parent
FILES = Target("files", "fsync-dir")


@pytest.fixture
def ran(tmp_path, toy_profile, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))

    def run(**controls):
        profile = toy_profile(**{name: f'"{label}"' for name, label in controls.items()})
        words = ["--profile", profile, "--backend", "files:fsync-dir", "--trials", "2", "--seed", "1"]
        words += ["--dir", tmp_path / "disk", "--out", tmp_path / "run", "--format", "json"]
        done = subprocess.run(
            [sys.executable, "-m", "durabench", "run", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done, Folder.open(tmp_path / "run").trials()

    return run


def test_controls_run_with_every_campaign_and_enter_no_cell(ran):
    done, rows = ran()
    assert done.returncode == 0, done.stderr
    controls = {row["control"]: row for row in rows if row["control"]}
    assert set(controls) == {"negative", "positive", "detector"}
    assert controls["negative"]["verdict"] == "kept"
    assert controls["positive"]["lost"] == controls["positive"]["acked"] > 0
    assert controls["detector"]["verdict"] == "broken"
    assert (controls["detector"]["corrupt"], controls["detector"]["lost"]) == (1, 1)
    assert sum(cell["trials"] for cell in json.loads(done.stdout)["cells"]) == 2


@pytest.mark.parametrize(
    "kind, label",
    [
        ("negative", "toys:Forgetful:fsync-dir"),  # what must keep everything loses
        ("positive", "files:fsync-dir"),  # what must lose everything keeps
        ("negative", "toys:Refusing:fsync-dir"),  # what must keep everything does not even come up
    ],
)
def test_a_control_that_fails_makes_the_run_unknown(kind, label, ran):
    done, rows = ran(**{kind: label})
    assert done.returncode == 3
    assert f"a control failed: {kind}" in done.stderr
    assert {row["verdict"] for row in rows if row["control"] is None} == {"unknown"}
    cells = [cell for cell in json.loads(done.stdout)["cells"] if cell["trials"]]
    assert {cell["verdict"] for cell in cells} == {"unknown"}
    assert "a control failed" in cells[0]["why"]


@pytest.mark.parametrize(
    "row, doubtful",
    [
        ({"control": "negative", "verdict": "kept", "lost": 0, "corrupt": 0}, False),
        ({"control": "negative", "verdict": "broken", "lost": 1, "corrupt": 0}, True),
        ({"control": "negative", "verdict": "unknown", "lost": 0, "corrupt": 0}, True),
        ({"control": "positive", "verdict": "no-promise", "lost": 3, "corrupt": 0}, False),
        ({"control": "positive", "verdict": "no-promise", "lost": 0, "corrupt": 0}, True),
        ({"control": "positive", "verdict": "unknown", "lost": None, "corrupt": None}, True),
        ({"control": "detector", "verdict": "broken", "lost": 1, "corrupt": 1}, False),
        ({"control": "detector", "verdict": "broken", "lost": 1, "corrupt": 0}, True),
        ({"control": "detector", "verdict": "broken", "lost": 0, "corrupt": 1}, True),
    ],
)
def test_what_a_control_must_show(row, doubtful):
    failed = judgement.failed_controls([control(**row)])
    assert bool(failed) == doubtful
    assert all(row["control"] in one.phrase and "so it was" in one.phrase for one in failed)


def control(**row):
    where = {"lane": "here", "filesystem": None, "recording": None}
    whole = {"backend": "files", "setting": "rename", "fault": "none", "why": "so it was", "unavailable": False}
    return {**whole, **where, **row}


def test_a_control_is_asked_of_every_file_system_and_voids_what_was_looked_at_in_the_same_way():
    loses = {"control": "positive", "verdict": "no-promise", "lost": 3, "corrupt": 0, "recording": "r", "lane": "loop"}
    rows = [control(**loses, filesystem="ext4"), control(**{**loses, "lost": 0}, filesystem="xfs")]
    (failed,) = judgement.failed_controls(rows)
    assert (failed.lane, failed.filesystem) == ("loop", "xfs")
    assert "on xfs" in failed.phrase
    plan = TrialPlan(0, 1, FILES, FILES, "append", "cut-power", lane="loop", filesystem="xfs", recording="r")
    assert failed.voids(plan)
    assert not failed.voids(replace(plan, filesystem="ext4"))
    assert not failed.voids(replace(plan, lane="here", filesystem=None, recording=None))
    (here,) = judgement.failed_controls([control(control="negative", verdict="broken", lost=1, corrupt=0)])
    assert here.voids(plan), "the harness itself failed"


def test_a_campaign_has_controls_in_every_lane_and_on_every_file_system_that_it_uses():
    asked = schedule.Asked(backends=("files:fsync-dir", "sqlite:wal-full"), faults=("cut-power",), trials=3)
    chosen = profile.load("full")
    cells = [
        schedule.Cell(*schedule.targets_of(name) * 2, "cut-power", "loop", filesystem)
        for name in asked.backends
        for filesystem in ("ext4", "xfs", "btrfs:unit=4096")
    ]
    plans = [plan for plan in schedule.plans(cells, asked, chosen) if plan.control]
    seen = {(plan.filesystem, plan.control, plan.fault) for plan in plans}
    assert len(seen) == 9
    assert {filesystem for filesystem, *_ in seen} == {"ext4", "xfs", "btrfs:unit=4096"}
    names = {(plan.recording, plan.filesystem) for plan in plans}
    assert len({name for name, _ in names}) == len(names), "no two file systems share a recording"
