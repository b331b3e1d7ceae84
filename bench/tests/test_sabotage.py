"""The table of sabotages fits the code as it is, and a few of its rows are noticed, while no change is not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import sabotage  # beside this file; importlib mode adds no path


def test_every_sabotage_is_about_one_place_of_the_code_as_it_is():
    assert len(sabotage.TABLE) >= 60
    assert len({(row.file, row.old) for row in sabotage.TABLE}) == len(sabotage.TABLE)
    for row in sabotage.TABLE:
        assert row.source.count(row.old) == 1, f"{row.file}: {row.old}"
        compile(row.source.replace(row.old, row.new), row.file, "exec")
        assert all((sabotage.ROOT / test.partition("::")[0]).exists() for test in row.tests), row.tests


def test_at_most_one_in_twenty_is_known_to_survive():
    assert sum(bool(row.survives) for row in sabotage.TABLE) * 20 <= len(sabotage.TABLE)


SAMPLE = {
    "bench/durabench/checker.py": 'yield bool(finding.phantom), "broken"',
    "bench/durabench/judgement.py": "held.promise, destroyed)",
    "bench/durabench/report/pick.py": "best_ms, best = timed[0]",
}


def test_some_sabotages_are_noticed_and_the_copy_without_them_is_fine(tmp_path):
    overlay = sabotage.Overlay(tmp_path)
    rows = [row for row in sabotage.TABLE if SAMPLE.get(row.file) == row.old]
    assert len(rows) == len(SAMPLE)
    before = [row.source for row in rows]
    for row in rows:
        assert overlay.under(row) == 1, (tmp_path / "said").read_text()
    assert overlay.run(tuple({test for row in rows for test in row.tests})) == 0, (tmp_path / "said").read_text()
    assert [row.source for row in rows] == before
