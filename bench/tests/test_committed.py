"""The committed results: judged again from their histories they say the same, and the README shows what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from durabench import report, results, run
from durabench.report.output import BEGIN, END
from durabench.results import Folder

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMITTED = sorted(path.parent for path in (ROOT / "results").glob("*/run.json"))
REFERENCE = {"kills", "power", "plan"}
MOST_BYTES = 8_000_000


@pytest.fixture(params=COMMITTED or [None], ids=lambda path: path.name if path else "none yet")
def folder(request):
    """Each committed run; None where there is none, so that nothing is skipped."""
    return request.param and Folder.open(request.param)


def test_the_reference_runs_are_there():
    names = {path.name for path in COMMITTED}
    assert not names or names >= REFERENCE, f"missing in results/: {REFERENCE - names}"


def test_judged_again_it_says_the_same(folder):
    if folder is None:
        return
    pairs = run.judge_again(folder)
    assert pairs
    assert [was["trial"] for was, now in pairs if now is None] == [], "without history"
    assert [
        (was["trial"], was["namespace"], was["verdict"], now["verdict"])
        for was, now in pairs
        if (was["verdict"], was["lost"]) != (now["verdict"], now["lost"])
    ] == []


def test_it_is_small_complete_and_of_a_known_commit(folder):
    if folder is None:
        return
    size_bytes = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
    assert size_bytes < MOST_BYTES, f"{folder.path.name} has {size_bytes:,} bytes"
    assert folder.done is not None
    assert folder.done.get("doubts", []) == []
    assert re.fullmatch("[0-9a-f]{40}", folder.run["commit"]["commit"])
    assert not folder.run["commit"]["dirty"]
    tally = results.Tally()
    list(folder.each_trial(tally))
    assert (tally.dropped, tally.repeated) == (0, 0)


def test_the_command_that_made_it_is_said(folder):
    if folder is None:
        return
    line = shlex.join(folder.run["command"])
    assert line in (ROOT / "results" / "README.md").read_text(), f"results/README.md does not say: {line}"


def test_the_table_of_the_readme_is_made_from_committed_runs(monkeypatch):
    block = README.partition(BEGIN)[2].partition(END)[0]
    names = re.findall(r"^- run (\S+): [\d,]+ trials", block, re.MULTILINE)
    assert names
    if not COMMITTED:
        return
    monkeypatch.chdir(ROOT)  # the commands that it shows are to be typed here
    folders = [Folder.open(Path("results") / name) for name in names]
    made = report.render(report.document(folders, expected=report.load_expectations()), "markdown")
    written = " ".join(["durabench report", *(f"results/{name}" for name in names), "--write README.md"])
    assert block == f"\n\n{made}\n", f"to be written again: {written}"


def test_every_known_finding_is_in_the_track_record():
    told = README.partition("\n## Track record\n")[2].partition("\n## ")[0]
    assert told, "README.md has a part Track record"
    for one in report.load_expectations():
        line = next((line for line in told.splitlines() if f"`{one.setting}`" in line), None)
        assert line, f"{one.setting} is known to be broken and is not told"
        assert f"`{one.fault}`" in line, f"{one.setting}: {one.fault}"
        assert "`durabench run " in line, f"{one.setting}: the command that shows it"
