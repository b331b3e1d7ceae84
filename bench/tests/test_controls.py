"""Trials whose outcome is known beforehand: when one of them comes out otherwise, nothing of the run is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from durabench import judgement
from durabench.results import Folder

HERE = Path(__file__).parent


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
    whole = {"backend": "files", "setting": "rename", "fault": "none", "why": "so it was", "unavailable": False, **row}
    failed = judgement.failed_controls([whole])
    assert bool(failed) == doubtful
    assert all(row["control"] in phrase and "so it was" in phrase for phrase in failed)


def test_what_must_lose_must_do_so_on_every_file_system():
    row = {"backend": "files", "setting": "rename", "fault": "cut-power", "control": "positive", "corrupt": 0}
    rows = [
        {
            **row,
            "verdict": "no-promise",
            "why": f"{lost} lost",
            "lost": lost,
            "unavailable": False,
            "lane": "loop",
            "filesystem": name,
        }
        for lost, name in ((3, "ext4"), (0, "xfs"))
    ]
    assert judgement.failed_controls(rows) == ["positive (files:rename, cut-power: 0 lost)"]
