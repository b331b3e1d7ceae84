"""The benchmarks still work: one tiny round of each kind, in a pytest of its own as a person starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).with_name("benchmarks")


@pytest.mark.parametrize(
    "which,tests,tables",
    [
        ("test_judging.py", 7, ["what judging costs"]),
        ("test_put_latency.py and (files or valkey)", 2, ["put latency"]),
        ("test_kill_client and (rename-fresh or wal-full-forked)", 2, ["confirmed kills"]),
        ("test_kill_server and valkey", 1, ["confirmed kills"]),
    ],
)
def test_a_benchmark_works(tmp_path, no_leftovers, which, tests, tables):
    measured = tmp_path / "measured.json"
    command = [sys.executable, "-m", "pytest", str(BENCHMARKS), "--benchmark-only", "--brief", "-k", which]
    options = ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'pytest'}", f"--benchmark-json={measured}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=280, env=env, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert all(table in done.stdout for table in tables)
    assert len(json.loads(measured.read_text())["benchmarks"]) == tests
