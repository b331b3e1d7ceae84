"""What certainly is on the medium at a position of a log, and which changes may be missing, under a profile."""

from __future__ import annotations

import bisect
import json
import stat
from typing import TYPE_CHECKING

from durabench_model.contents import apply, blocks_of
from durabench_model.log import ATTRIBUTES, BYTES, DATA_ONLY, EXCHANGE, FAILED, NAMES, REMOVED, Entry, Kind, Log
from durabench_model.states import Node, Profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMIT_NS = 5_000_000_000
"""ext4's journal commits by itself when its oldest change is so old."""

Key = tuple[int, str]


class Medium:
    """One log, taken in up to a position. Cheap in ascending positions; going back starts over."""

    def __init__(
        self, log: Log, base: Path, profile: Profile, *, neighbours: bool = True, lie_from: int | None = None
    ) -> None:
        """`base`: a copy of the folder as it was when the recording began. `neighbours`: others flush there, too.

        `lie_from`: flushes from that position on were answered and not done; the positive control.
        """
        self.log, self.base, self.profile = log, base, profile
        self.neighbours, self.lie_from = neighbours, lie_from
        self._restart()

    def _restart(self) -> None:
        first = self.log.entries[0]
        self.root = first.a
        self.nodes: dict[int, Node] = {self.root: Node(stat.S_IFDIR | 0o755)}
        paths = {self.root: self.base}
        for folder, name, number, mode, target in json.loads(self.log.data(first)):
            path = paths[folder] / name
            paths[number] = path
            if number not in self.nodes:
                made = self.nodes[number] = Node(mode, target, path if stat.S_ISREG(mode) else None)
                made.live_size = made.size if stat.S_ISREG(mode) else 0
            self.nodes[folder].entries[name] = number
        self.live = {number: dict(node.entries) for number, node in self.nodes.items() if node.entries}
        self.at = 1  # entries before this one are taken in
        self.names: list[int] = []  # changes of names, modes, owners and attributes that may be missing
        self.touched: set[int] = set()  # files with pending bytes
        self.committed = 1  # ext4: names and sizes before this entry are on the medium
        self.commits: list[int] = []  # ext4: flushes since then that may have committed
        self._last_change = 0
        self._dirty_ns: int | None = None  # ext4: when the oldest change since then was made
        self._folders: dict[int, int] = {}  # when a name in it was last changed

    # --- taking the log in

    def move_to(self, position: int) -> None:
        """Bring `nodes` to what certainly is on the medium at `position`."""
        if not 1 <= position <= len(self.log):
            raise ValueError(f"position {position} is not in the log (1…{len(self.log)})")
        if position < self.at:
            self._restart()
        for index in range(self.at, position):
            self._take(index, self.log.entries[index])
        self.at = max(self.at, position)

    def _take(self, index: int, entry: Entry) -> None:
        kind = entry.kind
        if kind in BYTES:
            self._take_bytes(index, entry)
        elif kind in NAMES:
            self._take_name(index, entry)
        elif kind in ATTRIBUTES:
            self.nodes[entry.a].changed = index
            self._journalled(index, entry)
        elif kind is Kind.CLOSE:
            node = self.nodes[entry.a]
            if node.emptied:
                node.emptied = False
                node.markers.append(index)
        elif self.lie_from is not None and index >= self.lie_from:
            return
        elif kind is Kind.FLUSH:
            self._flush(index, entry)
        elif kind is Kind.FLUSH_ALL:
            for number in sorted(self.touched):
                self._settle(number, index)
            self._commit(index)

    def _take_bytes(self, index: int, entry: Entry) -> None:
        node = self.nodes[entry.a]
        node.pending.append(index)
        self.touched.add(entry.a)
        self._last_change = index
        if self._dirty_ns is None:
            self._dirty_ns = entry.time_ns
        if entry.kind is Kind.WRITE:
            node.live_size = max(node.live_size, entry.b + entry.length)
        elif entry.kind is Kind.SIZE:
            node.emptied |= entry.b == 0 and node.live_size > 0
            node.live_size = entry.b

    def _journalled(self, index: int, entry: Entry) -> None:
        self.names.append(index)
        self._last_change = index
        if self._dirty_ns is None:
            self._dirty_ns = entry.time_ns

    def _take_name(self, index: int, entry: Entry) -> None:
        if entry.kind is Kind.CREATE:
            name, *target = self.log.names(entry)
            self.nodes[entry.b] = Node(entry.c, target[0] if target else None, born=index)
            if entry.a < 0:
                return  # without a name: only a later link is a change of names
        self._journalled(index, entry)
        keys = self.keys(entry)
        for folder, _ in keys:
            self._folders[folder] = index
        folder, name = keys[-1]
        replaced = self.live.get(folder, {}).get(name)
        if entry.kind is not Kind.CREATE:
            self.nodes[entry.b].changed = index
        if entry.kind is Kind.RENAME and replaced is not None and not entry.flags & EXCHANGE:
            self.nodes[entry.b].markers.append(index)
        change(lambda number: self.live.setdefault(number, {}), entry, keys)

    def keys(self, entry: Entry) -> list[Key]:
        """What a change is about: names in folders, or one attribute of a node."""
        if entry.kind in ATTRIBUTES:
            about = self.log.names(entry)[0] if entry.kind is Kind.ATTRIBUTE else ""
            return [(entry.a, f"{entry.kind.name}/{about}")]
        names = self.log.names(entry)
        return [(entry.a, names[0]), (entry.c, names[1])] if entry.kind is Kind.RENAME else [(entry.a, names[0])]

    def _flush(self, index: int, entry: Entry) -> None:
        number, node = entry.a, self.nodes[entry.a]
        data_only, covers = bool(entry.flags & DATA_ONLY), entry.b or index
        if entry.flags & FAILED:
            node.failed = True
            node.doomed.update(node.pending)
            self.commits.append(index)
            return
        folder = stat.S_ISDIR(node.mode)
        if self.profile is Profile.POSIX:
            self._flush_posix(number, covers, folder=folder, data_only=data_only)
            return
        changes = [self._folders.get(number, -1)] if folder else [node.born]
        changes += [] if data_only else [node.changed]
        commits = any(self.committed <= each < covers for each in changes)
        if not folder:
            commits |= any(self._allocates(node, each) for each in node.pending if each < covers)
            self._settle(number, covers)
        if commits:
            self._commit(covers)
        if not commits or covers < index:
            self.commits.append(index)  # it changed a time, perhaps; or it committed as late as that

    def _flush_posix(self, number: int, covers: int, *, folder: bool, data_only: bool) -> None:
        def covered(entry: Entry) -> bool:
            if entry.kind in ATTRIBUTES:
                return entry.a == number and not data_only
            return folder and any(key[0] == number for key in self.keys(entry))

        self._keep([each for each in self.with_what_they_build_on(covered) if each < covers])
        if not folder:
            self._settle(number, covers)

    def _allocates(self, node: Node, index: int) -> bool:
        """Whether writing this back changes the file's size or storage."""
        entry = self.log.entries[index]
        if entry.kind is not Kind.WRITE or entry.b + entry.length > node.size:
            return True
        return bool(node.holes) and not node.holes.isdisjoint(blocks_of(entry))

    def _settle(self, number: int, covers: int) -> None:
        """All bytes of a file that were written before `covers` are on the medium."""
        node = self.nodes[number]
        node.markers = [each for each in node.markers if each >= covers]
        before = node.pending[: bisect.bisect_left(node.pending, covers)]
        if node.failed:
            node.must.update(set(before) - node.doomed)
            return
        self._take_over(number, before)

    def _take_over(self, number: int, indices: list[int]) -> None:
        node = self.nodes[number]
        if indices:
            node.load()
            for index in indices:
                apply(node.data, node.holes, self.log, self.log.entries[index])
            node.version += 1
            node.pending = node.pending[len(indices) :]
        if not node.pending:
            self.touched.discard(number)

    def _commit(self, covers: int) -> None:
        """ext4: names and sizes before `covers` are on the medium."""
        self._keep([each for each in self.names if each < covers])
        self.committed = max(self.committed, covers)
        self.commits = [each for each in self.commits if each >= covers]
        for number in [number for number in self.touched if self.nodes[number].markers]:
            node = self.nodes[number]
            marker = max((each for each in node.markers if each < covers), default=-1)
            if not node.failed:
                self._take_over(number, node.pending[: bisect.bisect(node.pending, marker)])
            node.markers = [each for each in node.markers if each >= covers]
        self._dirty_ns = None
        if self._last_change >= covers:
            later = [*self.names, *(i for number in self.touched for i in self.nodes[number].pending if i >= covers)]
            self._dirty_ns = self.log.entries[min(later)].time_ns

    def _keep(self, indices: list[int]) -> None:
        """These changes of names and attributes are on the medium."""
        if not indices:
            return
        for index in indices:
            entry = self.log.entries[index]
            if entry.kind in ATTRIBUTES:
                describe(self.nodes[entry.a], entry, self.log)
            else:
                change(lambda folder: self.nodes[folder].entries, entry, self.keys(entry))
        gone = set(indices)
        self.names = [index for index in self.names if index not in gone]

    def with_what_they_build_on(self, wanted: Callable[[Entry], bool]) -> list[int]:
        """Open changes of names that are wanted, and those before them that are about the same names."""
        chosen: list[int] = []
        keys: set[Key] = set()
        for index in reversed(self.names):
            entry = self.log.entries[index]
            own = self.keys(entry)
            if wanted(entry) or not keys.isdisjoint(own):
                chosen.append(index)
                keys.update(own)
        return chosen[::-1]

    def changes(self, position: int) -> list[int]:
        """The entries that may be missing at `position`, in order."""
        self.move_to(position)
        pending = (index for number in self.touched for index in self.nodes[number].pending)
        return sorted([*self.names, *pending])

    def may_commit(self, journal: int, position: int) -> bool:
        """ext4: whether its journal may have committed just before entry `journal` without anybody else."""
        if journal <= self.committed or journal in self.commits:
            return True
        if self._dirty_ns is None:
            return False
        entries = self.log.entries
        if journal >= len(entries) and position >= len(entries):
            return True  # nothing happened any more: time enough
        return entries[min(journal, len(entries) - 1)].time_ns - self._dirty_ns >= COMMIT_NS


def change(entries_of: Callable[[int], dict[str, int]], entry: Entry, keys: list[Key]) -> None:
    """Carry out one change of names."""
    folder, name = keys[0]
    if entry.kind in {Kind.CREATE, Kind.LINK}:
        entries_of(folder)[name] = entry.b
        return
    old = entries_of(folder).pop(name, None)
    if entry.kind is Kind.RENAME:
        to, new = keys[1]
        replaced = entries_of(to).pop(new, None)
        entries_of(to)[new] = entry.b
        if entry.flags & EXCHANGE and replaced is not None and old is not None:
            entries_of(folder)[name] = replaced


def describe(node: Node, entry: Entry, log: Log) -> None:
    """Carry out one change of a mode, an owner or an extended attribute."""
    if entry.kind is Kind.MODE:
        node.mode = entry.b
    elif entry.kind is Kind.OWNER:
        node.owner = entry.b, entry.c
    else:
        name, _, value = log.data(entry).partition(b"\0")
        node.attributes[name.decode(errors="surrogateescape")] = None if entry.flags & REMOVED else value
