"""Which of what a program acknowledged can be lost when the power goes, by its file calls alone: no machine, no root,
any language.

`explore` runs the program under the recorder of `durabench_model`, draws crash states of what it did, and judges them:
by the person's own check, or, knowing nothing of the format, by whether everything acknowledged is as it was.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from durabench.explore.formats import FORMS, document, outputs, render, write
from durabench.explore.look import Check, Hangs, Look
from durabench.explore.recording import (
    CannotRecord,
    Recorded,
    UsageError,
    command,
    program,
    record,
    record_function,
    require,
    run,
)
from durabench.explore.report import EXIT_STATUS, MISSING, Finding, Losing, Report
from durabench.explore.trail import Trail
from durabench_model.folder import Folder, copy_base
from durabench_model.log import FLUSHES, Kind, Log, LogError
from durabench_model.recorder import LIMIT_BYTES
from durabench_model.states import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "EXIT_STATUS",
    "FORMS",
    "MISSING",
    "CannotRecord",
    "Finding",
    "Losing",
    "Report",
    "UsageError",
    "document",
    "explore",
    "explore_function",
    "outputs",
    "render",
    "write",
]

FAILURES = 40
"""With crash points the program runs again so many times at most, a call failing in each."""


@dataclass(frozen=True)
class Asked:
    """What is to be explored."""

    words: Sequence[str]
    root: Path
    profile: str = Profile.POSIX
    states: int = 400
    check: str | None = None
    acknowledged: str | None = None
    ignore: Sequence[str] = ()
    crash_points: bool = False
    seed: int = 1
    out: Path | None = None
    limit_bytes: int = LIMIT_BYTES


def explore(
    words: Sequence[str],
    root: Path,
    *,
    profile: str = Profile.POSIX,
    states: int = 400,
    check: str | None = None,
    acknowledged: str | None = None,
    ignore: Sequence[str] = (),
    crash_points: bool = False,
    seed: int = 1,
    out: Path | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Report:
    """Run a program and judge what it did. UsageError for what cannot be asked, CannotRecord where nothing is seen.

    `ignore`: patterns of paths that hold nothing of value. `out`: a new or empty folder that gets the log and the
    losing states.
    """
    asked = Asked(words, root, profile, states, check, acknowledged, ignore, crash_points, seed, out, limit_bytes)
    argv, checked = program(words, "the program"), None if check is None else command(check, "--check")
    _possible(asked)
    require(root)
    with tempfile.TemporaryDirectory(prefix="durabench-explore-") as name:
        scratch = Path(name)
        recorded = record(argv, root, scratch, acknowledged=acknowledged, limit_bytes=limit_bytes)
        report = _looked(asked, recorded, scratch, checked)
        if crash_points and report.verdict != "unknown":
            report = _with_failures(asked, argv, recorded, scratch, checked, report)
        return report


def explore_function(
    function: Callable[[], object], root: Path, *, profile: str = Profile.POSIX, states: int = 400, seed: int = 1
) -> Report:
    """Call a function in a fork of this process, recorded, and judge what it had promised when it returned, or by
    `durabench.mark`. CannotRecord where nothing is seen.
    """
    asked = Asked([getattr(function, "__qualname__", repr(function))], root, profile, states, seed=seed)
    _possible(asked)
    with tempfile.TemporaryDirectory(prefix="durabench-explore-") as name:
        return _looked(asked, record_function(function, root, Path(name)), Path(name), None)


def _possible(asked: Asked) -> None:
    if asked.profile not in set(Profile):
        raise UsageError(f"no profile {asked.profile!r}; there are {', '.join(Profile)}")
    if asked.states < 1:
        raise UsageError("--states must be 1 or more")
    if asked.out is not None and asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise UsageError(f"--out {asked.out} is there and not empty; choose another folder")
    try:
        re.compile((asked.acknowledged or "").encode())
    except re.error as error:
        raise UsageError(f"--acknowledged: {error} in {asked.acknowledged!r}") from None


def _looked(asked: Asked, recorded: Recorded, scratch: Path, checked: Sequence[str] | None) -> Report:
    log, trail = recorded.log, Trail(recorded.log, Path.cwd(), asked.ignore)
    doubts = list(recorded.doubts)
    report = Report(
        program=shlex.join(asked.words),
        profile=asked.profile,
        marks=len(log.acknowledged(recorded.end)),
        did=trail.did(),
        notes=recorded.notes,
        checked=checked is not None,
    )
    if not trail.changed:
        doubts.append(f"the program did nothing below {asked.root}; is it the right --root?")
        return replace(report, doubts=tuple(doubts))
    if asked.acknowledged is not None and not report.marks:
        doubts.append(f"no line on stdout matched {asked.acknowledged!r}; is it printed, and flushed?")
        return replace(report, doubts=tuple(doubts))
    look = Look(log, recorded.base, Profile(asked.profile), trail, end=recorded.end)
    drawn = look.states(asked.states, asked.seed, crash_points=asked.crash_points)
    try:
        check = None if checked is None else Check(checked, scratch)
        every_call = 2 * recorded.end if asked.crash_points else 0
        look.judge(drawn, asked.states + every_call, check)
    except (Hangs, OSError) as error:
        doubts.append(f"{error}; {look.seen.states} states were judged before")
    if not look.seen.states:
        doubts.append("no state was judged")
    if not trail.written_before(look.promises[-1]):
        doubts.append("nothing was written before an acknowledgement")
    if trail.unseen and checked is None:
        doubts.append("a file is written through memory and never flushed: say with --check or --ignore if it matters")
    kept = _keep(asked, look, scratch)
    return replace(
        report,
        states=look.seen.states,
        losing=tuple(look.seen.losing),
        findings=look.findings(),
        doubts=tuple(doubts),
        kept_in=kept,
    )


def _keep(asked: Asked, look: Look, scratch: Path) -> str | None:
    """Put the log, the folder from before and the first losing states where they were asked for."""
    if asked.out is None:
        return None
    asked.out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(scratch / "log", asked.out / "log")
    shutil.copytree(scratch / "base", asked.out / "base", symlinks=True)
    for number, tree in look.seen.trees.items():
        Folder(asked.out / "states" / str(number)).take_on(tree)
    return str(asked.out)


# --- crash points: calls that fail


def _with_failures(
    asked: Asked, argv: Sequence[str], recorded: Recorded, scratch: Path, checked: Sequence[str] | None, report: Report
) -> Report:
    """The program again, on an empty folder, with a write that finds no room, or a flush that fails once. Only where it
    was empty before: what the program did not make is never removed. What the first run left is there again afterwards.
    """
    if any(recorded.base.iterdir()):
        note = f"no call was made to fail: {asked.root} was not empty before, and nothing of yours is removed"
        return replace(report, notes=(*report.notes, note))
    after = scratch / "after"
    copy_base(asked.root, after)
    try:
        return _failed_in_turn(asked, argv, recorded, scratch, checked, report)
    finally:
        _put_back(after, asked.root)


def _failed_in_turn(
    asked: Asked, argv: Sequence[str], recorded: Recorded, scratch: Path, checked: Sequence[str] | None, report: Report
) -> Report:
    for number, options in enumerate(_failures(recorded.log)):
        again = scratch / f"failing-{number}"
        again.mkdir()
        _put_back(recorded.base, asked.root)
        once = replace(asked, crash_points=False, out=None, states=max(20, asked.states // FAILURES), acknowledged=None)
        log = again / "log"
        run(argv, asked.root, log, acknowledged=asked.acknowledged, limit_bytes=asked.limit_bytes, options=options)
        copy_base(recorded.base, again / "base")
        try:
            made = Recorded(Log.load(log), again / "base", _end(Log.load(log)), (), ())
        except LogError:
            continue
        if not made.log.acknowledged(made.end):
            continue  # it gave up, and acknowledged nothing: as it should
        report = _added(report, _looked(once, made, again, checked))
        shutil.rmtree(again)
    return report


def _failures(log: Log) -> Iterator[tuple[str, str]]:
    for option, kinds in (("--fail-flush", FLUSHES), ("--fail-write", {Kind.WRITE})):
        count = sum(entry.kind in kinds for entry in log.entries)
        step = max(1, count // (FAILURES // 2))
        yield from ((option, str(number)) for number in range(1, count + 1, step))


def _end(log: Log) -> int:
    return len(log) - (log.exit is not None)


def _put_back(base: Path, root: Path) -> None:
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)  # noqa: PTH108 - as scandir gives it
    shutil.copytree(base, root, symlinks=True, dirs_exist_ok=True)


def _added(report: Report, other: Report) -> Report:
    known = {finding.id for finding in report.findings}
    fresh = tuple(finding for finding in other.findings if finding.id not in known)
    losing = tuple(replace(lost, number=len(report.losing) + n) for n, lost in enumerate(other.losing, 1))
    return replace(
        report,
        states=report.states + other.states,
        findings=report.findings + fresh,
        losing=report.losing + losing,
        doubts=tuple(dict.fromkeys((*report.doubts, *other.doubts))),
    )
