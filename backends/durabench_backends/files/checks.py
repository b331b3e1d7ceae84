"""What a live directory means for a goal, from its facts alone: how it is written to, and what lies below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends import place
from durabench_backends.contract import Check, Domain
from durabench_backends.files.promises import (
    FSYNC_DIR,
    FSYNC_FILE,
    IN_PLACE,
    IN_PLACE_FSYNC,
    RENAME,
    UNKNOWN,
    WATCHED,
    unsaid,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from durabench_backends.contract import Fact, Goal

PAGES = {
    "files.write": (
        "How the program writes a file, as the URL says (?write=…) or as durabench saw it (verify URL -- CMD). "
        "in-place: an overwrite, neither flushed nor all-or-nothing. rename: a temporary file takes the old one's "
        "place, unflushed: after a crash the name may be missing or the file empty. fsync-file: flushed before the "
        "rename, but the new name is not: it may be missing. fsync-dir: file and directory flushed; nothing is lost. "
        "in-place-fsync (seen, not said): flushed, but a crash inside a write leaves a part of it. Mend it: write a "
        "temporary file in the same directory, fsync it, rename it, fsync the directory, then acknowledge. Source: "
        "fsync(2), rename(2)."
    ),
    **place.pages("files", "the directory"),
}
LOSES = {
    IN_PLACE: "acknowledgements of the last 30 s or so, until the kernel writes back, and the file being overwritten",
    RENAME: "new files: missing, or there and empty; none of it was flushed",
    FSYNC_FILE: "new names: the file's bytes are on the disk, its entry in the directory may not be",
}
FIX = "write a temporary file, fsync it, rename it, fsync the directory; then say ?write=fsync-dir"


def checks(facts: Iterable[Fact], goal: Goal) -> list[Check]:
    """One check per id that needs no probe."""
    by_id = {fact.id: fact for fact in facts}
    write = by_id.get("files.write")
    flushes = write is not None and write.value in {FSYNC_FILE, FSYNC_DIR, IN_PLACE_FSYNC}
    return [_write(write, goal), *place.checks("files", by_id, goal, flushes=flushes)]


def _write(fact: Fact | None, goal: Goal) -> Check:
    way = fact.value if fact is not None else ""
    promise = WATCHED.get(way, UNKNOWN)
    met = goal.is_met_by(promise)
    if fact is None or way not in WATCHED:
        said = (fact.unread if fact else "") or unsaid("file:///DIR")
        why, _, fix = said.partition(": ")
        loses = "possibly everything: bytes may still be in the program's own buffer"
        return Check("files.write", "skip" if met else "unknown", loses=loses, fix=fix or FIX, evidence=why)
    if not met:
        return Check("files.write", "fail", way, fact.origin, LOSES.get(way), FIX)
    if promise.atomic is None or promise.atomic < min(goal.survive, Domain.DRIVE):
        loses = "the file that is being overwritten when it happens: neither the old nor the new content is whole"
        return Check("files.write", "warn", way, fact.origin, loses, FIX)
    return Check("files.write", "ok", way, fact.origin)
