"""What a log says in words: paths, places in the source, operations, and which of them nothing made durable."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from durabench.explore.report import Finding, Missing
from durabench_model.log import BYTES, FLUSHES, NAMES, Entry, Kind, Log
from durabench_model.states import Profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from durabench_model.rules import Model

_DIGITS = re.compile(r"\d+|[0-9a-f]{6,}|(?<=tmp)\w{6,8}")


_REPLACE = frozenset({Kind.RENAME, Kind.UNLINK})


@dataclass(frozen=True)
class Suspect:
    """An operation that may be lost or seen in part, from `since` on, at the positions up to `until`."""

    index: int
    path: str
    missing: Missing
    since: int
    until: int


class Trail:
    """One log, told."""

    def __init__(self, log: Log, cwd: Path, ignore: Sequence[str] = ()) -> None:
        """`ignore`: patterns of paths, or of last parts of them, that hold nothing of value."""
        self.log, self._cwd, self._ignore = log, str(cwd) + "/", ignore
        flushed = {entry.a for entry in log.entries if entry.kind is Kind.FLUSH}
        noted = (entry for entry in log.entries if entry.kind is Kind.NOTE and log.data(entry).startswith(b"mapped"))
        self.mapped = {entry.a for entry in noted} - flushed
        """Files that were written through memory and never flushed: an index, or data; nobody can tell."""
        self._where = list(self._places())

    def _places(self) -> Iterator[str | None]:
        now: dict[int, str] = {}
        for entry in self.log.entries:
            if entry.kind is Kind.WHERE:
                now[entry.thread] = os.fsdecode(self.log.data(entry)).removeprefix(self._cwd)
            yield now.get(entry.thread)

    def matters(self, path: str) -> bool:
        """Whether a path holds something of value, as far as anybody said."""
        last = path.rpartition("/")[2]
        return not any(fnmatchcase(path, each) or fnmatchcase(last, each) for each in self._ignore)

    @property
    def unseen(self) -> bool:
        """Whether something of value was perhaps written through memory, and never flushed."""
        names = {entry.b: self.log.names(entry)[-1] for entry in self.log.entries if entry.kind in NAMES}
        return any(self.matters(names.get(node, "")) for node in self.mapped)

    def where(self, index: int) -> str | None:
        """FILE:LINE of an entry's call, where the program is Python."""
        return self._where[index]

    def operation(self, index: int, path: str) -> str:
        """An entry in words."""
        entry = self.log.entries[index]
        if entry.kind is Kind.RENAME:
            old, new = self.log.names(entry)
            return f"rename {old} to {new}"
        verbs = {
            Kind.WRITE: "write",
            Kind.SIZE: "truncate",
            Kind.ALLOCATE: "allocate",
            Kind.LINK: "link",
            Kind.UNLINK: "remove",
        }
        folder = entry.kind is Kind.CREATE and entry.c & 0o170000 == 0o040000
        return f"{'mkdir' if folder else verbs.get(entry.kind, 'create')} {path}"

    def did(self) -> tuple[str, ...]:
        """What the program did, in lines."""
        entries, count = self.log.entries, self._count
        size = sum(entry.length for entry in entries if entry.kind is Kind.WRITE)
        files = len({entry.a for entry in entries if entry.kind is Kind.WRITE})
        folders = {entry.b for entry in entries if entry.kind is Kind.CREATE and entry.c & 0o170000 == 0o040000}
        folders |= {entry.a for entry in entries if entry.kind in NAMES} | {entries[0].a}
        into = [entry.a in folders for entry in entries if entry.kind is Kind.FLUSH]
        return (
            f"{count(Kind.WRITE)} writes to {files} files, {size} B",
            f"{into.count(False)} flushes of files, {into.count(True)} of folders, {count(Kind.FLUSH_ALL)} of all",
            f"{count(Kind.CREATE)} made, {count(Kind.RENAME)} renamed, {count(Kind.UNLINK)} removed",
            f"{count(Kind.MARK)} acknowledgements",
        )

    def _count(self, kind: Kind) -> int:
        return sum(entry.kind is kind for entry in self.log.entries)

    def written_before(self, position: int) -> bool:
        """Whether anything was, that an acknowledgement there could be about."""
        return any(entry.kind in BYTES | NAMES for entry in self.log.entries[:position])

    @property
    def changed(self) -> bool:
        """Whether anything was done below the folder."""
        return any(entry.kind in BYTES | NAMES | FLUSHES for entry in self.log.entries)


def paths_of(model: Model) -> dict[int, str]:
    """Where each node is, as the program sees it at the model's position."""
    found = {model.root: ""}
    queue = [model.root]
    for folder in queue:
        for name, node in model.live.get(folder, {}).items():
            if node not in found:
                found[node] = f"{found[folder]}/{name}".lstrip("/")
                queue.append(node)
    return found


def suspects(trail: Trail, model: Model, promises: list[int], end: int) -> list[Suspect]:
    """Operations that nothing made durable before the acknowledgement after them, and those that can be seen half done.

    `promises`: the positions just after an acknowledgement.
    """
    found: list[Suspect] = []
    seen: set[tuple[int, str]] = set()
    for position in promises:
        model.move_to(position)
        fresh = [index for index in model.changes(position) if (index, "") not in seen]
        seen.update((index, "") for index in fresh)
        if fresh:
            paths = paths_of(model)
            told: dict[tuple[Missing, str], Suspect] = {}
            for index in fresh:
                for missing, path in _undurable(trail, model, index, paths):
                    told.setdefault((missing, path), Suspect(index, path, missing, position, end))
            found += told.values()
    return [each for each in (*found, *_half_done(trail, model, promises, end)) if trail.matters(each.path)]


def _undurable(trail: Trail, model: Model, index: int, paths: dict[int, str]) -> Iterator[tuple[Missing, str]]:
    """What is missing for an open change whose effect is still there."""
    entry = trail.log.entries[index]
    if entry.kind in BYTES:
        if entry.a in paths and entry.a not in trail.mapped:
            yield "fsync-file", paths[entry.a]
        return
    if entry.kind not in NAMES:
        return
    for number, (folder, name) in enumerate(model.keys(entry)):
        if folder not in paths:
            continue
        live, durable = model.live.get(folder, {}).get(name), model.nodes[folder].entries.get(name)
        removes = entry.kind is Kind.UNLINK or (entry.kind is Kind.RENAME and number == 0)
        if live == durable or (live is None) != removes:
            continue
        if removes and entry.kind is Kind.RENAME:
            continue  # told by its new name
        made = entry.kind is Kind.CREATE and entry.c & 0o170000 == 0o040000
        if live in trail.mapped:
            continue  # a file that lives in memory, like an index of a log
        yield "fsync-parent" if made else "fsync-directory", f"{paths[folder]}/{name}".lstrip("/")


def _half_done(trail: Trail, model: Model, promises: list[int], end: int) -> Iterator[Suspect]:
    """Replacements of something acknowledged that can be seen half done, before the next acknowledgement."""
    entries = trail.log.entries
    for begin, stop in zip(promises, [*promises[1:], end], strict=True):
        if any(each.kind in _REPLACE or (each.kind is Kind.SIZE and not each.b) for each in entries[begin:stop]):
            model.move_to(begin)
            gap = _Replacements(trail, model)
            for index in range(begin, stop):
                yield from (
                    Suspect(at, path, missing, begin, stop) for at, path, missing in gap.look(index, entries[index])
                )


class _Replacements:
    """What was there at an acknowledgement, and what was done to it since."""

    def __init__(self, trail: Trail, model: Model) -> None:
        self._model, self._mapped = model, trail.mapped
        self._paths = paths_of(model)
        self._there = {(folder, name) for folder, names in model.live.items() for name in names}
        self._emptied: dict[int, int] = {}
        self._removed: dict[tuple[int, str], int] = {}

    def look(self, index: int, entry: Entry) -> Iterator[tuple[int, str, Missing]]:
        """(the operation, its path, what is missing) where a replacement is complete only now."""
        model, node = self._model, entry.a
        if entry.kind is Kind.SIZE and entry.b == 0 and node in self._paths and node not in self._mapped:
            self._emptied[node] = index
        elif entry.kind is Kind.WRITE and node in self._emptied:
            yield self._emptied.pop(node), self._paths[node], "atomicity"
        elif entry.kind is Kind.UNLINK:
            self._removed[model.keys(entry)[0]] = index
        elif entry.kind in NAMES and (key := model.keys(entry)[-1]) in self._there:
            if key in self._removed and key[0] in self._paths:
                yield self._removed.pop(key), f"{self._paths[key[0]]}/{key[1]}".lstrip("/"), "atomicity"
            elif entry.kind is Kind.RENAME:
                yield from self._renamed(index, entry)

    def _renamed(self, index: int, entry: Entry) -> Iterator[tuple[int, str, Missing]]:
        self._model.move_to(index + 1)
        after, node = paths_of(self._model), self._model.nodes[entry.b]
        written_first = self._model.profile is Profile.EXT4 and node.markers  # before the name is committed
        if node.pending and not written_first and entry.b in after:
            yield index, after[entry.b], "order"


def group(trail: Trail, suspect: Suspect) -> str:
    """The id of the finding that a suspect is: the same operation at the same place, for whatever file."""
    verb = trail.operation(suspect.index, suspect.path).partition(" ")[0]
    where = trail.where(suspect.index)
    return f"{suspect.missing}:{verb}:{where or _DIGITS.sub('#', suspect.path)}"


def named(trail: Trail, suspect: Suspect, states: int, needs: str | None) -> Finding:
    """A suspect that was proved."""
    operation, where = trail.operation(suspect.index, suspect.path), trail.where(suspect.index)
    return Finding(group(trail, suspect), operation, suspect.path, suspect.missing, where, states, needs)
