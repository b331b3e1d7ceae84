"""Every liar is convicted of its own fault, through the public door, in at least 100 killed writers; honest ones never.

One campaign per workload. A liar may get away with a trial in which its lie had no time to show: killed in its second
put, say, or not between two halves. It may never be convicted of anything but its own fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

TRIALS = 100
WORDS = ("lost", "torn", "corrupt", "stale", "phantom", "resurrected", "hole")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Campaign:
    """What a run with liars left: its exit status, and the rows of each backend and namespace."""

    status: int
    rows: dict[tuple[str, str], list[dict]]
    talk: str

    def of(self, name: str, namespace: str = "metadata") -> list[dict]:
        found = self.rows[f"liars:{name}", namespace]
        assert len(found) == TRIALS, self.talk
        return found


def run(out: Path, workload: str, *names: str, trials: int = TRIALS) -> Campaign:
    backends = [word for name in names for word in ("--backend", f"liars:{name}")]
    options = ["--fault", "kill-client", "--workload", workload, "--trials", str(trials), "--seed", "1"]
    places = ["--dir", str(out / "disk"), "--out", str(out / "run")]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "durabench", "run", *backends, *options, *places]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1500)
    rows: dict[tuple[str, str], list[dict]] = {}
    for line in (out / "run" / "trials.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["control"] is None:
            rows.setdefault((row["backend"], row["namespace"]), []).append(row)
    return Campaign(ran.returncode, rows, ran.stdout + ran.stderr)


def convicted(rows: list[dict], *words: str) -> int:
    """How many trials convict of the first of ``words``; asserts that nothing but ``words`` is ever found."""
    for row in rows:
        assert row["verdict"] in ("kept", "broken"), row
        assert {word for word in WORDS if row[word]} <= set(words), row
        assert (row["verdict"] == "broken") == bool(row[words[0]]), row
    return sum(row["verdict"] == "broken" for row in rows)


@pytest.mark.timeout(1600)
def test_liars_that_append(tmp_path):
    liars = ("AcknowledgesEarly", "Tears", "DropsOne", "Corrupts", "Invents", "NeverUp")
    campaign = run(tmp_path, "append", *liars, "Honest", "HonestNotAtomic", "HonestAboutNothing")
    assert campaign.status == 1, campaign.talk
    assert convicted(campaign.of("AcknowledgesEarly"), "lost") == TRIALS
    assert convicted(campaign.of("Tears"), "torn") > TRIALS / 4
    assert convicted(campaign.of("DropsOne"), "lost", "hole") >= 0.9 * TRIALS
    assert sum("older than a survivor" in row["why"] for row in campaign.of("DropsOne")) >= 0.8 * TRIALS
    assert convicted(campaign.of("Corrupts"), "corrupt") == TRIALS
    assert convicted(campaign.of("Invents"), "phantom") == TRIALS
    for row in campaign.of("NeverUp"):
        assert row["verdict"] == "broken"
        assert row["why"].startswith("unavailable")
        assert row["unavailable"]
        assert all(row[word] is None for word in WORDS), "what cannot be read is not counted"
    assert convicted(campaign.of("Honest"), "lost") == 0
    torn = Counter(bool(row["torn"]) for row in campaign.of("HonestNotAtomic"))
    assert torn[True] > TRIALS / 4, "a put in doubt may be torn where atomicity is not promised"
    assert {row["verdict"] for row in campaign.of("HonestNotAtomic")} == {"kept"}
    for row in campaign.of("HonestAboutNothing"):
        assert row["verdict"] == "no-promise"
        assert row["lost"] == row["acked"] > 0


@pytest.mark.timeout(1600)
def test_a_liar_whose_deletes_come_back(tmp_path):
    campaign = run(tmp_path, "rotate", "Resurrects", "Honest")
    assert campaign.status == 1, campaign.talk
    assert convicted(campaign.of("Resurrects"), "resurrected", "hole") >= 0.8 * TRIALS, "older than a survivor"
    assert convicted(campaign.of("Honest"), "lost") == 0


@pytest.mark.timeout(1600)
def test_a_liar_that_returns_what_was_overwritten(tmp_path):
    campaign = run(tmp_path, "liars:Overwrites", "Stale", "Honest")
    assert campaign.status == 1, campaign.talk
    assert convicted(campaign.of("Stale"), "stale") >= 0.8 * TRIALS
    assert convicted(campaign.of("Stale", "data"), "stale") >= 0.8 * TRIALS
    assert convicted(campaign.of("Honest"), "lost") == 0


@pytest.mark.timeout(1600)
def test_a_liar_that_loses_data_and_keeps_metadata(tmp_path):
    campaign = run(tmp_path, "liars:Pairs", "LosesData", "Honest")
    assert campaign.status == 1, campaign.talk
    assert convicted(campaign.of("LosesData", "data"), "lost") == TRIALS
    metadata = campaign.of("LosesData")
    assert sum(row["dangling"] > 0 for row in metadata) >= 0.9 * TRIALS
    assert {row["verdict"] for row in metadata} <= {"kept", "unknown"}, (
        "dangling is counted here, its verdict falls there"
    )
    assert all(row["dangling"] == 0 for row in campaign.of("Honest"))
    assert convicted(campaign.of("Honest", "data"), "lost") == 0


@pytest.mark.timeout(1600)
def test_a_liar_that_loses_more_than_its_window(tmp_path):
    campaign = run(tmp_path, "append", "LosesMore", "HonestWindow")
    assert campaign.status == 1, campaign.talk
    assert convicted(campaign.of("LosesMore"), "lost") >= 0.9 * TRIALS
    assert all("0.3 s may be lost" in row["why"] for row in campaign.of("LosesMore") if row["verdict"] == "broken")
    honest = Counter(row["verdict"] for row in campaign.of("HonestWindow"))
    # It flushes with a later put: where the machine stalls for longer than the window, even that is too late.
    assert honest["broken"] <= TRIALS / 50, honest
    assert honest["within"] > TRIALS / 4, honest


@pytest.mark.timeout(600)
def test_an_instance_that_was_not_restarted_vouches_for_nothing(tmp_path):
    campaign = run(tmp_path, "append", "SameIdentity", trials=10)
    rows = campaign.rows["liars:SameIdentity", "metadata"]
    assert {row["verdict"] for row in rows} == {"unknown"}
    assert "the instance that answers is still the one from before" in rows[0]["why"]
    assert campaign.status == 3, campaign.talk
