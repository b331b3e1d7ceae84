"""A program recorded, and the states of it: shared by the tests of the model."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from durabench_model.folder import copy_base
from durabench_model.log import Log
from durabench_model.rules import Model
from durabench_model.states import DRAWN, Class, Profile, State, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 120
HEAD = """
import os, sys
from durabench_model import mark
def put(name, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, sync=False):
    fd = os.open(name, flags, 0o644)
    os.write(fd, data)
    if sync:
        os.fsync(fd)
    os.close(fd)
def sync_dir(name='.'):
    fd = os.open(name, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
APPEND = os.O_WRONLY | os.O_APPEND
OVER = os.O_WRONLY
OLD, NEW = b'o' * 6000, b'n' * 9000
"""
OLD, NEW = b"o" * 6000, b"n" * 9000


@dataclass
class Recorded:
    """A log, the copy of the folder from before, and the folder as it is now."""

    log: Log
    base: Path
    root: Path

    def model(self, profile: Profile, **options: bool) -> Model:
        return Model(self.log, self.base, profile, **options)

    def trees(self, profile: Profile, position: int | None = None, draws: int = 40, **options: bool) -> Iterator[Tree]:
        """Every class, several times, at a position: the end, if none is said."""
        model, rng = self.model(profile, **options), Random(1)
        where = len(self.log) - 1 if position is None else position  # before the entry that says how it ended
        for kind in DRAWN:
            for _ in range(draws if kind not in {Class.NONE, Class.ALL, Class.NAMES} else 1):
                yield model.build(State(where, kind, rng.getrandbits(32), rng.choice((512, 4096))))


def record(where: Path, code: str, *options: str, before: dict[str, bytes] | None = None) -> Recorded:
    """Run Python under the recorder, in a folder that holds `before`."""
    root, base, log = where / "root", where / "base", where / "log"
    root.mkdir()
    for name, data in (before or {}).items():
        (root / name).write_bytes(data)
    copy_base(root, base)
    done = run(root, log, *options, "--", sys.executable, "-c", HEAD + code, cwd=root)
    assert done.returncode == 0, done.stderr
    made = Log.load(log)
    assert made.exit == (0, ""), done.stderr
    return Recorded(made, base, root)


def run(root: Path, log: Path, *rest: str, cwd: Path | None = None, **keywords: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "durabench_model.recorder", str(root), str(log), *rest]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **keywords
    )
