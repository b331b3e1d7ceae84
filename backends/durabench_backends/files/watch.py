"""From the system calls of a program to the way in which it writes files: the weakest that was seen decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from durabench_backends.contract import DELETED, Fact
from durabench_backends.files.promises import FSYNC_DIR, FSYNC_FILE, IN_PLACE, IN_PLACE_FSYNC, RENAME, WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from durabench_backends.contract import Call

WRITING = frozenset({"O_WRONLY", "O_RDWR"})
SYNCHRONOUS = frozenset({"O_SYNC", "O_DSYNC", "RWF_SYNC", "RWF_DSYNC"})
WEAKEST_FIRST = tuple(WATCHED)


def written(calls: Sequence[Call], directory: Path) -> Fact:
    """``files.write`` as the calls show it for files below ``directory``."""
    hidden = sorted({call.path for call in calls if call.kind == "hidden"})
    if hidden:
        why = (
            f"the program uses {', '.join(hidden)}, which a tracer cannot follow: say how it writes (?write=fsync-dir)"
        )
        return Fact("files.write", "", "", why)
    ways = dict(_ways(calls, directory.resolve()))
    if not ways:
        why = f"the program wrote no file below {directory}: let it write a checkpoint there while it is watched"
        return Fact("files.write", "", "", why)
    weakest = min(ways.values(), key=WEAKEST_FIRST.index)
    counts = ", ".join(f"{list(ways.values()).count(way)} {way}" for way in WEAKEST_FIRST if way in ways.values())
    example = next(name for name, way in ways.items() if way == weakest)
    return Fact("files.write", weakest, f"as watched: {counts}; {weakest}: {example}")


@dataclass
class _File:
    """What is known of one name: written since it was last flushed, and how it was written in place."""

    dirty: bool = False
    writes: int = 0
    unpaired: bool = False
    """A write followed another one without a flush between: neither need have been acknowledged, or both."""
    whole: bool = False
    """Opened empty, so that all its writes may be one put."""
    synchronous: bool = False
    made: bool = False
    """Its entry in the directory is not flushed."""


@dataclass
class _Watch:
    files: dict[str, _File] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    """Name and number of each put → the way it was made."""
    entries: dict[str, set[str]] = field(default_factory=dict)
    """Directory → puts whose rename into it has not been flushed, and that nothing has followed yet."""
    new: set[str] = field(default_factory=set)
    """Directories that were made and whose own entry is not flushed: what is below them goes with them."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Directory → puts of which only the entry of a new directory is not flushed."""

    def open(self, call: Call) -> None:
        if not call.flags & WRITING:
            return
        new = "O_TRUNC" in call.flags or "O_EXCL" in call.flags
        known = self.files.get(call.path)
        file = _File(whole=new) if known is None or new else known
        file.synchronous = bool(call.flags & SYNCHRONOUS)
        file.dirty |= new and not file.synchronous
        file.made |= "O_CREAT" in call.flags and known is None
        self.files[call.path] = file

    def write(self, call: Call) -> None:
        file = self.files.setdefault(call.path, _File())
        file.unpaired |= file.dirty and file.writes > 0 and not file.whole
        file.writes += 1
        file.dirty |= not (file.synchronous or call.flags & SYNCHRONOUS)

    def flush(self, call: Call) -> None:
        for path, file in self.files.items():
            if call.path in {"", path}:
                file.dirty = False
            if call.path in {"", str(PurePath(path).parent)}:
                file.made = False
        self.new = {made for made in self.new if call.path not in {"", str(PurePath(made).parent)}}
        for directory, puts in self.entries.items():
            if call.path in {"", directory}:
                self.waiting.setdefault(directory, set()).update(puts)
                puts.clear()
        for directory, puts in self.waiting.items():
            if not self.is_new(directory):
                self.ways.update(dict.fromkeys(puts, FSYNC_DIR))
                puts.clear()

    def mkdir(self, call: Call) -> None:
        self.new.add(call.path)

    def is_new(self, directory: str) -> bool:
        """Whether the entry of ``directory``, or of one above it, is not flushed."""
        return any(PurePath(directory).is_relative_to(made) for made in self.new)

    def rename(self, call: Call) -> None:
        """A file, or a whole directory of them, takes its place."""
        moved = [path for path in self.files if PurePath(path).is_relative_to(call.path)]
        below = {made for made in self.new if PurePath(made).is_relative_to(call.path)}
        self.new -= below  # the entry of what is moved is that of the put; those below it must have been flushed
        unflushed, entries = False, bool(below - {call.path})
        for path in moved:
            file = self.files.pop(path)
            unflushed |= file.dirty
            entries |= path != call.path and file.made
        if not moved:
            return
        into = str(PurePath(call.target).parent)
        put = f"{call.target} ({len(self.ways) + 1})"
        self.ways[put] = RENAME if unflushed else FSYNC_FILE
        # What was renamed here before and not flushed since may have been acknowledged before this one began.
        self.entries[into] = set() if unflushed or entries else {put}
        self.waiting.pop(into, None)

    def unlink(self, call: Call) -> None:
        self.files.pop(call.path, None)

    def in_place(self) -> Iterator[tuple[str, str]]:
        """What is left under the name that it was written to."""
        for path, file in self.files.items():
            if file.writes and not path.endswith(DELETED):
                lost = file.made or self.is_new(str(PurePath(path).parent))
                flushed = not (file.dirty or file.unpaired or lost)
                yield path, IN_PLACE_FSYNC if flushed else IN_PLACE


def _ways(calls: Sequence[Call], directory: Path) -> Iterator[tuple[str, str]]:
    """(name, way) of every put below ``directory``."""
    watch = _Watch()
    steps = {
        "open": watch.open,
        "write": watch.write,
        "truncate": watch.write,
        "flush": watch.flush,
        "rename": watch.rename,
        "unlink": watch.unlink,
        "mkdir": watch.mkdir,
    }
    for call in calls:
        below = call.path == "" or PurePath(call.path).is_relative_to(directory)
        # A temporary file may be elsewhere; it counts once it is renamed into the directory.
        if call.kind in steps and (below or call.kind != "unlink"):
            steps[call.kind](call)
    for name, way in [*watch.ways.items(), *watch.in_place()]:
        path = name.rpartition(" (")[0] if name in watch.ways else name
        if PurePath(path).is_relative_to(directory):
            yield name, way
