"""Stores of a few lines on a bare disk, each with one known bug: which class of crash states convicts it?

One value is put again and again. `put` gives what the store asks of the disk for put `n`, `read` gives what it makes of
the sectors after a crash: which put's value that is (0: none was made), or None where it is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECTOR = 512
Ask = tuple[str, int, bytes]  # verb (write, fua, flush), first sector, data

FLUSH: Ask = ("flush", 0, b"")


def body(n: int, sectors: int) -> bytes:
    """The value of put `n`."""
    return bytes([n]) * SECTOR * sectors


class Honest:
    """Two slots in turn; the value is flushed before the one sector that names its slot is, and both before the ok."""

    sectors = 4

    def put(self, n: int) -> Iterator[Ask]:
        yield "write", self.slot(n), body(n, self.sectors)
        yield FLUSH
        yield "fua", 0, body(n, 1)

    def slot(self, n: int) -> int:
        return 1 + n % 2 * self.sectors

    def read(self, disk: Sequence[int]) -> int | None:
        return self.value(disk, disk[0])

    def value(self, disk: Sequence[int], n: int) -> int | None:
        slot = self.slot(n)
        return n if n == 0 or set(disk[slot : slot + self.sectors]) == {n} else None


class NeverFlushes(Honest):
    """The name is written as anything else is: nothing kept is the last value gone."""

    def put(self, n: int) -> Iterator[Ask]:
        yield "write", self.slot(n), body(n, self.sectors)
        yield FLUSH
        yield "write", 0, body(n, 1)


class ErasesFirst(Honest):
    """Takes the old name away before it writes the new one (one flush between them): everything kept is nothing."""

    def put(self, n: int) -> Iterator[Ask]:
        yield "write", self.slot(n), body(n, self.sectors)
        yield "write", 0, body(0, 1)
        yield FLUSH
        yield "write", 0, body(n, 1)
        yield FLUSH


class LosesRename(Honest):
    """Two names in turn, the old one removed before the new one is there, both under one flush."""

    def put(self, n: int) -> Iterator[Ask]:
        yield "write", self.slot(n), body(n, self.sectors)
        yield FLUSH
        yield "write", 20 + (n - 1) % 2, body(0, 1)
        yield "write", 20 + n % 2, body(n, 1)
        yield FLUSH

    def read(self, disk: Sequence[int]) -> int | None:
        return self.value(disk, max(disk[20], disk[21]))


class NamesBeforeItHas(Honest):
    """Value and name under one flush: the later kept, the earlier lost."""

    sectors = 1

    def put(self, n: int) -> Iterator[Ask]:
        yield "write", self.slot(n), body(n, 1)
        yield "write", 0, body(n, 1)
        yield FLUSH


class LooksAtBothEnds(Honest):
    """First, middle and last as three writes under one flush; believed where the first and the last are there."""

    sectors = 3

    def put(self, n: int) -> Iterator[Ask]:
        for sector in range(3):
            yield "write", self.slot(n) + sector, body(n, 1)
        yield FLUSH

    def read(self, disk: Sequence[int]) -> int | None:
        newest = 0
        for slot in (1, 4):
            if disk[slot] == disk[slot + 2]:
                newest = max(newest, disk[slot])
        return self.value(disk, newest)


class _InOneWrite(Honest):
    """A value in one write under one flush; believed where some of its sectors are of one put."""

    believes: tuple[int, ...]

    def put(self, n: int) -> Iterator[Ask]:
        yield "write", self.slot(n), body(n, self.sectors)
        yield FLUSH

    def read(self, disk: Sequence[int]) -> int | None:
        newest = 0
        for slot in (1, 1 + self.sectors):
            told = {disk[slot + sector] for sector in self.believes}
            newest = max(newest, *(told if len(told) == 1 else {0}))
        return self.value(disk, newest)


class BelievesTheHead(_InOneWrite):
    """A header without a checksum of what follows."""

    believes = (0,)


class BelievesTheTail(_InOneWrite):
    """A commit record at the end."""

    believes = (3,)


class BelievesBothEnds(_InOneWrite):
    """A header and a commit record."""

    believes = (0, 3)


class ThinksFuaIsAtomic(Honest):
    """Overwrites in place by one FUA write of four sectors."""

    def put(self, n: int) -> Iterator[Ask]:
        yield "fua", 1, body(n, self.sectors)

    def read(self, disk: Sequence[int]) -> int | None:
        return disk[1] if len(set(disk[1:5])) == 1 else None
