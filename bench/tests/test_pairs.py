"""Metadata in one store and data in another, under a fault that takes the machine: every pair of kinds, each store read
where it is, and judged by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOM = Path(__file__).parent.parent
METADATA = ("sqlite:wal-full", "postgres:on")
DATA = ("files:fsync-dir", "valkey:aof-always")
"""Embedded and served, under either name."""


@pytest.mark.timeout(900)
def test_two_stores_on_one_disk_are_read_and_judged_apart(tmp_path):
    shipped = (ROOM / "durabench" / "profiles" / "full.toml").read_text().splitlines()
    one = ["recordings = 1" if line.startswith("recordings =") else line for line in shipped]
    (tmp_path / "one.toml").write_text("\n".join(one))
    words = [word for name in METADATA for word in ("--metadata", name)]
    words += [word for name in DATA for word in ("--data", name)]
    words += ["--profile", tmp_path / "one.toml", "--fault", "cut-power", "--trials", "3", "--seed", "3"]
    words += ["--lane", "loop" if os.geteuid() == 0 else "swap", "--filesystem", "ext4"]
    words += ["--dir", tmp_path / "disk", "--out", tmp_path / "run"]
    command = [sys.executable, "-m", "durabench", "run", *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    rows = [json.loads(line) for line in (tmp_path / "run" / "trials.jsonl").read_text().splitlines()]
    seen: dict[tuple[str, str], set[tuple[str, bool]]] = {}
    for row in rows:
        if row["control"] is None:
            pair = (f"{row['backend']}:{row['setting']}", row["partner"])
            seen.setdefault(pair if row["namespace"] == "metadata" else pair[::-1], set()).add(
                (row["verdict"], row["unavailable"])
            )
    assert ran.returncode in (0, 3), ran.stdout + ran.stderr  # 3: of so few states none may tell anything of the data
    assert seen == {pair: {("kept", False)} for pair in product(METADATA, DATA)}, ran.stdout
