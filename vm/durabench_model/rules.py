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

Both are models. `posix` is what a program may rely on anywhere; `ext4-ordered` is held against a real ext4 in the
tests. xfs and btrfs have no profile of their own.
"""

from __future__ import annotations

import stat
from random import Random
from typing import TYPE_CHECKING

from durabench_model.choice import Choice, Ext4, Posix
from durabench_model.contents import BLOCK
from durabench_model.log import ATTRIBUTES
from durabench_model.medium import Medium, change, describe
from durabench_model.states import DRAWN, Class, Item, Node, Profile, State, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

EXHAUSTIVE_CHANGES = 8
"""Up to 2^8 selections of open changes are tried one by one."""
IDLE_DRAWS = 100


class Model(Medium):
    """The states of one log."""

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
                describe(node, entry, self.log)
            else:
                change(entries_of, entry, self.keys(entry))
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
