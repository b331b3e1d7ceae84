"""Every liar about a power cut is convicted of its own fault in every lane, by the public door; honest twins never.

Not collected by itself, since it takes long: `python -m pytest bench/tests/campaign_of_power_liars.py`.

One recording of each store and many crash states of it. Few states suffice in the lane that boots a guest for each, as
the same states are read in the others by the hundred; `DURABENCH_LIAR_STATES` asks for more of all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORDS = ("lost", "torn", "corrupt", "stale", "phantom", "resurrected")
STATES = {"loop": 40, "swap": 30, "guest": 4}
"""Crash states of each store in CI."""
HONEST = ("Honest", "HonestNotAtomic", "HonestWindow", "HonestAboutNothing")
LIES = {
    "append": {
        "NeverFlushes": "lost",
        "ForgetsTheName": "lost",
        "LeavesHoles": "lost",
        "Corrupts": "corrupt",
        "Invents": "phantom",
        "NeverUp": "unavailable",
        "LosesMore": "lost",
    },
    "overwrite": {"NeverFlushes": "lost", "KeepsTheOld": "stale", "Tears": "torn"},
    "rotate": {"Resurrects": "resurrected"},
}
MAY_ALSO = {
    "NeverFlushes": {"lost", "torn", "stale"},
    "KeepsTheOld": {"torn", "corrupt"},
    "Tears": {"corrupt"},
    "LosesMore": {"torn"},
    "LeavesHoles": {"torn"},
}
"""Zero-length files are torn, and a block that is half old and half new reads as corrupt."""


def lanes():
    return ["loop", "swap", "guest"] if os.geteuid() == 0 else ["swap", "guest"]


def run(out, lane, workload, names, states):
    """A campaign of power cuts; (exit status, rows by store, what was said)."""
    shipped = (HERE.parent / "durabench" / "profiles" / "full.toml").read_text().splitlines()
    lines = ["recordings = 1" if line.startswith("recordings =") else line for line in shipped]
    (out / "one.toml").write_text("\n".join(lines))
    backends = [word for name in names for word in ("--backend", f"power_liars:{name}")]
    words = ["--profile", out / "one.toml", "--fault", "cut-power", "--lane", lane, "--workload", workload]
    words += ["--trials", states, "--seed", "5", "--filesystem", "ext4", "--dir", out / "disk", "--out", out / "run"]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "durabench", "run", *backends, *map(str, words)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=2400)
    rows = {}
    for line in (out / "run" / "trials.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["control"] is None:
            rows.setdefault(row["backend"].partition(":")[2], []).append(row)
    return ran.returncode, rows, ran.stdout + ran.stderr


@pytest.mark.timeout(2500)
@pytest.mark.parametrize("workload", LIES)
@pytest.mark.parametrize("lane", lanes())
def test_liars_about_a_power_cut_are_convicted_and_honest_stores_are_not(lane, workload, tmp_path):
    states = int(os.environ.get("DURABENCH_LIAR_STATES", STATES[lane]))
    status, found, talk = run(tmp_path, lane, workload, [*LIES[workload], *HONEST], states)
    assert status == 1, talk
    for name, word in LIES[workload].items():
        rows = found[name]
        assert {row["verdict"] for row in rows} <= {"broken", "kept"}, (name, rows[0]["why"])
        convicted = [row for row in rows if row["verdict"] == "broken"]
        assert any(row[word] for row in convicted), (name, word, talk)
        seen = {word for row in convicted for word in WORDS if row[word]}
        assert seen <= {word, *MAY_ALSO.get(name, ())}, (name, seen)
    assert not any(row["hole"] for name, rows in found.items() if name != "LeavesHoles" for row in rows if row["hole"])
    for name in ("Honest", "HonestNotAtomic"):
        assert {row["verdict"] for row in found[name]} == {"kept"}, (name, found[name][0]["why"])
    late = [row for row in found["HonestWindow"] if row["verdict"] not in ("kept", "within")]
    assert len(late) <= states / 10, "it flushes with a later put: a machine that stalls makes even that too late"
    assert {row["verdict"] for row in found["HonestAboutNothing"]} == {"no-promise"}
    assert len(found["Honest"]) >= states
