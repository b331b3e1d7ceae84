"""A program run under the recorder, in the folder it works on."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from durabench import process
from durabench_model.folder import copy_base, differences
from durabench_model.kernel import why_not
from durabench_model.log import Log, LogError
from durabench_model.recorder import LIMIT_BYTES, record_call
from durabench_model.rules import Model
from durabench_model.states import Class, Profile, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOOK = Path(__file__).with_name("where")
LONGEST_RUN_S = 600.0
LARGEST_BASE = 2 << 30
STOP_S = 20.0


class UsageError(ValueError):
    """Something that was asked for cannot be; the message names the mend (exit 2)."""


class CannotRecord(process.HarnessError):
    """Nothing can be recorded here, or of this program (exit 3)."""


@dataclass(frozen=True)
class Recorded:
    """What a program did, and the copy of its folder from before."""

    log: Log
    base: Path
    end: int
    """The position at which the program had ended."""
    doubts: tuple[str, ...]
    notes: tuple[str, ...]


def program(words: Sequence[str], what: str) -> list[str]:
    """A command line whose program is there. UsageError where it is not."""
    if not words:
        raise UsageError(f"{what} is empty")
    found = shutil.which(words[0])
    if found is None:
        raise UsageError(f"{what}: there is no program {words[0]!r}")
    mode = os.stat(found).st_mode  # noqa: PTH116 - the name may be anybody's
    if mode & (stat.S_ISUID | stat.S_ISGID):
        raise UsageError(
            f"{what}: {words[0]} changes its user when it starts, and a recorded program may not; run it as that user"
        )
    return [found, *words[1:]]


def command(text: str, what: str) -> list[str]:
    """A command line from one string, split as a shell would, and run without one."""
    try:
        return program(shlex.split(text), what)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{what}: {error}") from None


def require(root: Path) -> None:
    """UsageError unless `root` can be recorded, CannotRecord unless anything can."""
    if not root.is_dir():
        raise UsageError(f"--root {root} is no folder")
    lack = why_not()
    if lack is not None:
        raise CannotRecord(f"file calls cannot be recorded here: {lack}")
    size = 0
    for folder, _, files in os.walk(root):
        for name in files:
            size += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - many names
        if size > LARGEST_BASE:
            raise UsageError(
                f"more than {LARGEST_BASE >> 30} GiB lie below {root}: choose a smaller folder with --root"
            )


def record(
    words: Sequence[str],
    root: Path,
    scratch: Path,
    *,
    acknowledged: str | None,
    limit_bytes: int,
    options: Sequence[str] = (),
) -> Recorded:
    """Run a program to its end. `scratch` gets the log and the copy of `root` from before."""
    base, log = scratch / "base", scratch / "log"
    copy_base(root, base)
    run(words, root, log, acknowledged=acknowledged, limit_bytes=limit_bytes, options=options)
    try:
        return _judged(Log.load(log), base, root)
    except (LogError, FileNotFoundError) as error:
        raise CannotRecord(f"the recorder left no log: {error}") from None


def run(
    words: Sequence[str],
    root: Path,
    log: Path,
    *,
    acknowledged: str | None = None,
    limit_bytes: int = LIMIT_BYTES,
    options: Sequence[str] = (),
) -> None:
    """Run a program under the recorder; what it prints goes to our stderr. CannotRecord where that fails."""
    path = os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH"))))
    marks = [] if acknowledged is None else ["--acknowledged", acknowledged]
    recorder = [
        *(sys.executable, "-m", "durabench_model.recorder", str(root), str(log), *marks, *options),
        *("--limit-bytes", str(limit_bytes), "--deadline", str(LONGEST_RUN_S), "--env", f"PYTHONPATH={path}"),
    ]
    said = log.with_suffix(".said")
    started = process.start([*recorder, "--", *words], env=os.environ, cwd=Path.cwd(), log=said, visible=True)
    try:
        code = started.wait(LONGEST_RUN_S + STOP_S)
    finally:
        started.stop(STOP_S)
        started.close()
    if code:
        raise CannotRecord("the recorder could not go on; its last words are above")


def record_function(function: Callable[[], object], root: Path, scratch: Path) -> Recorded:
    """Run a function in a fork of this process, recorded. CannotRecord where that fails."""
    base, log = scratch / "base", scratch / "log"
    require(root)
    copy_base(root, base)
    try:
        record_call(function, root, log, deadline_s=LONGEST_RUN_S)
        return _judged(Log.load(log), base, root)
    except (OSError, LogError) as error:
        raise CannotRecord(f"a function could not be recorded: {error}") from None


def _judged(log: Log, base: Path, root: Path) -> Recorded:
    ended = log.exit
    end = len(log) - (ended is not None)
    doubts = [text for text, doubt in log.notes().items() if doubt]
    notes = [text for text, doubt in log.notes().items() if not doubt]
    if ended is None:
        doubts.append("the recorder was killed: the log ends before the program")
    elif ended[1]:
        doubts.append(f"the program was ended: {ended[1]}")
    else:
        code = ended[0]
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        if code == -31:
            how += ": it makes calls of another architecture (32-bit), which are not seen"
        if code:
            notes.append(f"the program ended {how}")
        if code and not log.acknowledged(end):
            doubts.append(f"the program ended {how} and acknowledged nothing")
        other = differences(Model(log, base, Profile.POSIX).build(State(len(log), Class.ALL)), root)
        if other:
            doubts.append(
                f"the log does not explain what is there ({other[0]}): somebody else writes there, or a call was missed"
            )
    return Recorded(log, base, end, tuple(doubts), tuple(notes))
