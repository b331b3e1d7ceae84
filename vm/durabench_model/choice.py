"""One draw among what may be missing: what a class asks for, and what of it is legal under a profile."""

from __future__ import annotations

import bisect
from random import Random
from typing import TYPE_CHECKING

from durabench_model.contents import BLOCK, Drawn, Part, blocks_of, compose, torn, whole
from durabench_model.log import BYTES, Kind
from durabench_model.states import AT_RANDOM, NEEDS_COMMIT, TORN, Class, Node, State

if TYPE_CHECKING:
    from durabench_model.medium import Medium


class Choice:
    """One draw: which of the open changes are there. What a class asks for is the same under every profile."""

    def __init__(self, model: Medium, state: State, changes: list[int]) -> None:
        self.model, self.state, self.changes = model, state, changes
        self.entries = model.log.entries
        self.rng = Random(f"{state.seed}/{state.kind}/{model.profile}")
        self.needs = ""
        kind = state.kind
        pool = changes
        if kind in TORN:
            pool = [i for i in changes if self.entries[i].kind is Kind.WRITE] or changes
        self.one = self.rng.choice(pool) if pool else -1
        self.cut = self.one if kind in {Class.PREFIX, Class.SUFFIX} and pool else state.position
        share = self.rng.choice((0.15, 0.5, 0.85))
        self.kept = {index: self._wants(index, number, share) for number, index in enumerate(changes)}
        if kind in TORN and self.rng.random() < 0.5:  # of what came after the torn write everything, else some
            self.kept.update((index, True) for index in changes if index > self.one)
        self.torn = self.one if kind in TORN and self.one in self.kept else -1
        self.torn_seed = self.rng.getrandbits(20)

    def _wants(self, index: int, number: int, share: float) -> bool:
        kind = self.state.kind
        if kind in AT_RANDOM:
            return (kind in TORN and index <= self.one) or self.rng.random() < share
        wanted = {
            Class.ALL: True,
            Class.NAMES: self.entries[index].kind not in BYTES,
            Class.PREFIX: index < self.cut,
            Class.SUFFIX: index >= self.cut,
            Class.HOLE: index != self.one,
            Class.ONLY: index == self.one,
            Class.MASK: bool(self.state.seed >> number & 1),
        }
        return wanted.get(kind, False)

    def names(self) -> list[int]:
        """Which of the open changes of names and attributes are there, in order."""
        raise NotImplementedError

    def content(self, node: Node) -> Drawn | None:
        """A file's bytes; None for those that are certain."""
        raise NotImplementedError

    def _torn(self, index: int, units: list[int]) -> list[int]:
        """The units of a write that are there, where it is kept."""
        return torn(units, self.state.kind.removeprefix("torn "), self.torn_seed) if index == self.torn else units

    def _units(self, index: int) -> range:
        entry, unit = self.entries[index], self.state.unit
        return range(entry.b // unit, -(-(entry.b + entry.length) // unit))

    def _loosely(self, node: Node) -> Drawn | None:
        """Bytes of a file where nothing is ordered."""
        if self.torn in node.must:
            self.torn = -1
        parts = [self._loose(index, kept=self.kept[index] or index in node.must) for index in node.pending]
        if all(part.nothing for part in parts):
            return None
        return compose(node.data, node.source, self.model.log, parts, self.state.unit)

    def _loose(self, index: int, *, kept: bool) -> Part:
        entry, unit = self.entries[index], self.state.unit
        if entry.kind is not Kind.WRITE:
            return Part(index, whole=kept)
        end = entry.b + entry.length
        if not kept:
            return Part(index, size=end if self._grows_alone() else None)
        units = self._torn(index, list(self._units(index)))
        reached = min(end, (units[-1] + 1) * unit) if units else None
        return Part(index, tuple(units), reached)

    def _grows_alone(self) -> bool:
        """Whether a file grew by a write whose bytes are not there."""
        kind = self.state.kind
        return kind is Class.NAMES or (kind in AT_RANDOM and self.rng.random() < 0.25)


class Posix(Choice):
    def names(self) -> list[int]:
        model = self.model
        if self.state.kind is Class.ONLY:
            return model.with_what_they_build_on(lambda entry: self.one >= 0 and entry is self.entries[self.one])
        kept, missing = [], set[tuple[int, str]]()
        for index in model.names:
            keys = model.keys(self.entries[index])
            if self.kept[index] and missing.isdisjoint(keys):
                kept.append(index)
            else:
                missing.update(keys)
        return kept

    def content(self, node: Node) -> Drawn | None:
        if self.state.kind is Class.ALL:
            return whole(node.data, node.source, node.holes, self.model.log, node.pending)
        return self._loosely(node)


class Ext4(Choice):
    def __init__(self, model: Medium, state: State, changes: list[int]) -> None:
        super().__init__(model, state, changes)
        self.journal = self._commit()  # names and sizes before this entry are there
        nothing = not changes or changes[0] >= self.journal  # no commit is needed to be without what was not journalled
        if not nothing and not model.may_commit(self.journal, state.position) and state.kind is not Class.ALL:
            if model.neighbours:
                self.needs = NEEDS_COMMIT
            else:
                earlier = [index for index in (model.committed, *model.commits) if index <= self.journal]
                self.journal = max(earlier, default=model.committed)

    def _commit(self) -> int:
        """Before which entry the journal committed last."""
        model, kind, position = self.model, self.state.kind, self.state.position
        if kind in AT_RANDOM:
            later = [index for index in self.changes if index > model.committed]
            return self.rng.choice([model.committed, position, *model.commits, *later])
        about_bytes = self.one < 0 or self.entries[self.one].kind in BYTES
        missing = (index for index in model.names if not self.kept[index])
        wanted = {
            Class.NONE: model.committed,
            Class.PREFIX: self.cut,
            Class.HOLE: position if about_bytes else self.one,
            Class.ONLY: self.one + 1,
            Class.MASK: next(missing, position),
        }
        return max(model.committed, wanted.get(kind, position))

    def names(self) -> list[int]:
        names = self.model.names
        if self.state.kind is Class.ALL:
            return names
        return names[: bisect.bisect_left(names, self.journal)]

    def content(self, node: Node) -> Drawn | None:
        if self.state.kind is Class.ALL:
            return whole(node.data, node.source, node.holes, self.model.log, node.pending)
        if node.failed:
            return self._loosely(node)
        written = self._written(node)
        begun = self._begun(node, written)
        blank = self._blank(node, written)
        storage = _Storage(node)
        parts = [self._ordered(index, written, begun, blank, storage) for index in node.pending]
        if all(part.nothing for part in parts):
            return None
        return compose(node.data, node.source, self.model.log, parts, self.state.unit)

    def _ordered(self, index: int, written: int, begun: tuple[int, int], blank: int, storage: _Storage) -> Part:
        """What of a change is there: `written` says up to which one the file was written back before the commit,
        `begun` the one after it of which so many blocks were, `blank` from which on that had not ended.
        """
        entry = self.entries[index]
        if entry.kind is not Kind.WRITE:
            if entry.kind is Kind.SIZE:  # storage that was let go is not written to again before that is committed
                storage.cut(entry.b)
            return Part(index, whole=index < self.journal)
        end, blocks = entry.b + entry.length, blocks_of(entry)
        if index <= written:
            nuls = {block for block in blocks if index >= blank and not storage.has(block)}
            storage.more.update(blocks)
            return Part(index, tuple(u for u in self._units(index) if self._block(u) not in nuls), end)
        visible = self.kept[index]
        if index == begun[0]:
            storage.more.update(blocks[: begun[1]])
        size = self._grown(index, end, blocks, storage) if index < self.journal else None
        units = [unit for unit in self._units(index) if storage.has(self._block(unit))]
        if index == begun[0] and not visible:
            units = [unit for unit in units if self._block(unit) < blocks.start + begun[1]]
        elif not visible:
            units = []
        return Part(index, tuple(self._torn(index, units)), size)

    def _grown(self, index: int, end: int, blocks: range, storage: _Storage) -> int | None:
        """The size that a commit finds: the file grew at once where there was storage. Whether it also grew to the end
        of the last such block, where a write goes on behind it, depends on how the kernel split the write.
        """
        reached = storage.reach(blocks)
        if reached == blocks.start:
            return None
        kind = self.state.kind
        split = kind is Class.NAMES or (kind in AT_RANDOM and (self.state.seed ^ index) % 2 == 0)
        return end if reached == blocks.stop else reached * BLOCK if split else None

    def _block(self, unit: int) -> int:
        return unit * self.state.unit // BLOCK

    def _written(self, node: Node) -> int:
        """Up to which entry the write-back of the file had begun before the commit."""
        marker = max((each for each in node.markers if each < self.journal), default=-1)
        before = node.pending[: bisect.bisect_left(node.pending, self.journal)]
        end = self._whole_until(before) if before else 0
        return max(marker, max((each for each in before if each < end), default=-1))

    def _whole_until(self, before: list[int]) -> int:
        kind, here = self.state.kind, self.one in before
        if kind in TORN and here:
            return self.one
        if kind in AT_RANDOM:
            return self.rng.choice((0, self.journal, self.rng.choice(before) + 1))
        missing = (index for index in before if not self.kept[index])
        wanted = {
            Class.PREFIX: self.cut,
            Class.HOLE: self.one if here else self.journal,
            Class.ONLY: self.one + 1 if here else 0,
            Class.MASK: next(missing, self.journal),
        }
        return wanted.get(kind, 0)

    def _begun(self, node: Node, written: int) -> tuple[int, int]:
        """The write after `written` whose first so many blocks were written back, too, before the commit."""
        following = next((each for each in node.pending if written < each < self.journal), -1)
        if following < 0 or self.entries[following].kind is not Kind.WRITE:
            return -1, 0
        blocks = len(blocks_of(self.entries[following]))
        if following == self.torn:
            return following, self.rng.randrange(blocks + 1)
        if self.state.kind not in AT_RANDOM or self.rng.random() < 0.7:
            return -1, 0
        return following, self.rng.randrange(blocks)

    def _blank(self, node: Node, written: int) -> int:
        """From which entry on write-back had begun and not ended: sizes are there, bytes are NULs."""
        marker = max((each for each in node.markers if each < self.journal), default=-1)
        begun = [each for each in node.pending if marker < each <= written]
        if not begun or self.state.kind not in AT_RANDOM or self.rng.random() > 0.25:
            return self.state.position
        return self.rng.choice(begun)


class _Storage:
    """Which blocks of a file have storage, as its changes are gone through."""

    def __init__(self, node: Node) -> None:
        self.end, self.holes, self.more = -(-node.size // BLOCK), node.holes, set[int]()

    def has(self, block: int) -> bool:
        return block in self.more or (block < self.end and block not in self.holes)

    def cut(self, size: int) -> None:
        end = -(-size // BLOCK)
        self.end, self.more = min(self.end, end), {block for block in self.more if block < end}

    def reach(self, blocks: range) -> int:
        """The first of these blocks without storage."""
        return next((block for block in blocks if not self.has(block)), blocks.stop)
