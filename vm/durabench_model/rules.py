"""What a file system may have kept when the power went: crash states of a log, drawn by a seed.

A *state* is legal at a position of the log under a *profile*:

posix         Nothing is ordered. A file's bytes and size are safe after a flush of that file, its names after a flush
              of their folder. Of the rest any part may be there: each change of a name (renames are atomic), each unit
              of each write, a size without its bytes. Of writes to one unit a later one includes the earlier ones, as
              they meet in one page.

ext4-ordered  ext4 as shipped (data=ordered, delayed allocation, auto_da_alloc). Names, modes and sizes go through one
              journal: what is there is a prefix of all such changes, at least up to the last flush that had to commit.
              New blocks are invisible until their write-back began (so a file may be short or empty), and are NULs
              until it ended; they never show foreign bytes. A write into the last block that has storage grows the
              file at once, up to the end of that block, so a commit in between leaves NULs there. A rename over an old
              name, or a close after a truncation to nothing, writes the file before it commits.

When may ext4's journal have committed? At a flush of one's own, in some flush of somebody else that is in the log, or
when five seconds had gone since the first change. A commit at any other moment needs *somebody else's*, who shares the
file system and is not in the log: such a state says so (`Tree.needs`), and a model without `neighbours` has none.

Both are models. `posix` allows more than any file system in use does; `ext4-ordered` is held against a real ext4 in
the tests.
"""

from __future__ import annotations

import bisect
import json
import stat
from random import Random
from typing import TYPE_CHECKING

from durabench_model.choice import Choice, Ext4, Posix, blocks_of
from durabench_model.contents import BLOCK, apply
from durabench_model.log import ATTRIBUTES, BYTES, DATA_ONLY, EXCHANGE, FAILED, NAMES, REMOVED, Entry, Kind, Log
from durabench_model.states import DRAWN, Class, Item, Node, Profile, State, Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMIT_NS = 5_000_000_000
"""ext4's journal commits by itself when its oldest change is so old."""
EXHAUSTIVE_CHANGES = 8
"""Up to 2^8 selections of open changes are tried one by one."""
IDLE_DRAWS = 100

Key = tuple[int, str]


class Model:
    """The states of one log. Cheap in ascending positions; going back starts over."""

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
                self._settle(number)
            self._commit(index)

    def _take_bytes(self, index: int, entry: Entry) -> None:
        node = self.nodes[entry.a]
        node.pending.append(index)
        self.touched.add(entry.a)
        if self._dirty_ns is None:
            self._dirty_ns = entry.time_ns
        if entry.kind is Kind.WRITE:
            node.live_size = max(node.live_size, entry.b + entry.length)
        elif entry.kind is Kind.SIZE:
            node.emptied |= entry.b == 0 and node.live_size > 0
            node.live_size = entry.b

    def _journalled(self, index: int, entry: Entry) -> None:
        self.names.append(index)
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
        _change(lambda number: self.live.setdefault(number, {}), entry, keys)

    def keys(self, entry: Entry) -> list[Key]:
        """What a change is about: names in folders, or one attribute of a node."""
        if entry.kind in ATTRIBUTES:
            about = self.log.names(entry)[0] if entry.kind is Kind.ATTRIBUTE else ""
            return [(entry.a, f"{entry.kind.name}/{about}")]
        names = self.log.names(entry)
        return [(entry.a, names[0]), (entry.c, names[1])] if entry.kind is Kind.RENAME else [(entry.a, names[0])]

    def _flush(self, index: int, entry: Entry) -> None:
        number, node = entry.a, self.nodes[entry.a]
        data_only = bool(entry.flags & DATA_ONLY)
        if entry.flags & FAILED:
            node.failed = True
            node.doomed.update(node.pending)
            self.commits.append(index)
            return
        folder = stat.S_ISDIR(node.mode)
        if self.profile is Profile.POSIX:
            self._flush_posix(number, folder=folder, data_only=data_only)
            return
        commits = node.changed >= self.committed and not data_only
        if folder:
            commits |= self._folders.get(number, -1) >= self.committed
        else:
            commits |= node.born >= self.committed or any(self._allocates(node, each) for each in node.pending)
            self._settle(number)
        if commits:
            self._commit(index)
        else:
            self.commits.append(index)  # it changed a time, perhaps

    def _flush_posix(self, number: int, *, folder: bool, data_only: bool) -> None:
        def covered(entry: Entry) -> bool:
            if entry.kind in ATTRIBUTES:
                return entry.a == number and not data_only
            return folder and any(key[0] == number for key in self.keys(entry))

        self._keep(self.with_what_they_build_on(covered))
        if not folder:
            self._settle(number)

    def _allocates(self, node: Node, index: int) -> bool:
        """Whether writing this back changes the file's size or storage."""
        entry = self.log.entries[index]
        if entry.kind is not Kind.WRITE or entry.b + entry.length > node.size:
            return True
        return bool(node.holes) and not node.holes.isdisjoint(blocks_of(entry))

    def _settle(self, number: int) -> None:
        """All bytes of a file are on the medium."""
        node = self.nodes[number]
        node.markers.clear()
        if node.failed:
            node.must.update(set(node.pending) - node.doomed)
            return
        self._take_over(number, node.pending)

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

    def _commit(self, index: int) -> None:
        self._keep(list(self.names))
        self.committed, self._dirty_ns = index, None
        self.commits.clear()
        for number in [number for number in self.touched if self.nodes[number].markers]:
            node = self.nodes[number]
            if not node.failed:
                self._take_over(number, node.pending[: bisect.bisect(node.pending, node.markers[-1])])
            node.markers.clear()

    def _keep(self, indices: list[int]) -> None:
        """These changes of names and attributes are on the medium."""
        if not indices:
            return
        for index in indices:
            entry = self.log.entries[index]
            if entry.kind in ATTRIBUTES:
                _describe(self.nodes[entry.a], entry, self.log)
            else:
                _change(lambda folder: self.nodes[folder].entries, entry, self.keys(entry))
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

    # --- states

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

    def build(self, state: State) -> Tree:
        """The tree of a state. ValueError for a position that is not in the log."""
        changes = self.changes(state.position)
        choice = (Ext4 if self.profile is Profile.EXT4 else Posix)(self, state, changes)
        entries: dict[int, dict[str, int]] = {}
        described: dict[int, Node] = {}

        def entries_of(folder: int) -> dict[str, int]:
            return entries.setdefault(folder, dict(self.nodes[folder].entries))

        for index in choice.names():
            entry = self.log.entries[index]
            if entry.kind in ATTRIBUTES:
                node = described.setdefault(entry.a, _copy_of_attributes(self.nodes[entry.a]))
                _describe(node, entry, self.log)
            else:
                _change(entries_of, entry, self.keys(entry))
        items: dict[str, Item] = {}
        queue, seen = [("", self.root)], {self.root}
        while queue:
            prefix, folder = queue.pop()
            for name, number in (entries[folder] if folder in entries else self.nodes[folder].entries).items():
                node = self.nodes[number]
                made = self._item(number, node, choice)
                if number in described:
                    about = described[number]
                    made = made._replace(
                        mode=about.mode, owner=about.owner, attributes=tuple(sorted(about.attributes.items()))
                    )
                items[prefix + name] = made
                if stat.S_ISDIR(node.mode) and number not in seen:
                    seen.add(number)
                    queue.append((f"{prefix}{name}/", number))
        return Tree(items, choice.needs)

    def _item(self, number: int, node: Node, choice: Choice) -> Item:
        attributes = tuple(sorted(node.attributes.items()))
        plain = Item(node.mode, number, None, None, None, node.target, node.owner, attributes)
        if node.target is not None or not stat.S_ISREG(node.mode):
            return plain
        drawn = choice.content(node) if node.pending else None
        if drawn is None:
            data = node.data if node.source is None else None
            return plain._replace(token=(number, node.version), data=data, source=node.source)
        node.load()
        return plain._replace(token=(number, node.version, drawn.token), data=drawn.make())

    def draw(self, position: int, rng: Random) -> Iterator[tuple[State, Tree]]:
        """Distinct states at one position: each class once, then any. Where few changes are open, all selections; ends
        where IDLE_DRAWS draws in a row gave nothing new.
        """
        seen: set[bytes] = set()
        idle = 0
        for state in self._endless(position, rng):
            tree = self.build(state)
            digest = tree.digest()
            if digest not in seen:
                seen.add(digest)
                idle = 0
                yield state, tree
            elif (idle := idle + 1) >= IDLE_DRAWS:
                return

    def _endless(self, position: int, rng: Random) -> Iterator[State]:
        open_changes = len(self.changes(position))
        for each in DRAWN:
            yield State(position, each, rng.getrandbits(32), rng.choice((512, BLOCK)))
        if not open_changes:
            return
        if open_changes <= EXHAUSTIVE_CHANGES:
            for mask in range(1 << open_changes):
                yield State(position, Class.MASK, mask)
        while True:
            yield State(position, rng.choice(DRAWN), rng.getrandbits(32), rng.choice((512, BLOCK)))

    def count(self, position: int) -> int | None:
        """How many selections of whole changes are different at a position; None where there are too many to try."""
        open_changes = len(self.changes(position))
        if open_changes > EXHAUSTIVE_CHANGES:
            return None
        masks = (State(position, Class.MASK, mask) for mask in range(1 << open_changes))
        return len({self.build(state).digest() for state in masks})


def _change(entries_of: Callable[[int], dict[str, int]], entry: Entry, keys: list[Key]) -> None:
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


def _describe(node: Node, entry: Entry, log: Log) -> None:
    """Carry out one change of a mode, an owner or an extended attribute."""
    if entry.kind is Kind.MODE:
        node.mode = entry.b
    elif entry.kind is Kind.OWNER:
        node.owner = entry.b, entry.c
    else:
        name, _, value = log.data(entry).partition(b"\0")
        node.attributes[name.decode(errors="surrogateescape")] = None if entry.flags & REMOVED else value


def _copy_of_attributes(node: Node) -> Node:
    return Node(node.mode, owner=node.owner, attributes=dict(node.attributes))


def sample(model: Model, count: int, seed: int, *, first: int = 1, last: int | None = None) -> list[State]:
    """States in ascending positions: the gaps in shuffled rounds, in each a position and a class."""
    rng = Random(seed)
    gaps = model.log.gaps(first, last)
    found: set[State] = set()
    for _ in range(-(-count // max(1, len(gaps)))):
        for gap in rng.sample(gaps, min(len(gaps), count - len(found))):
            unit = rng.choice((512, BLOCK))
            found.add(State(rng.randint(gap.first, gap.last), rng.choice(DRAWN), rng.getrandbits(32), unit))
    return sorted(found)
