"""Which crash states are one and the same content: a number for each, worked out without building an image.

Two states have the same number where every sector holds the same bytes, however they are called and at whatever
position they were: a journal that is written over with what it held already makes no new content.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import os
from typing import TYPE_CHECKING

from durabench_vm.crash import SECTOR_BYTES, CrashState, Piece, choices, pieces
from durabench_vm.recording import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from durabench_vm.crash import Part
    from durabench_vm.recording import Recording

_MODULUS = 1 << 64
_ZEROES = bytes(SECTOR_BYTES)


class Contents:
    """Numbers the contents of one recording. With `base`, the image that it began from, what only repeats that is no
    other content; without it, whatever was written counts as new.
    """

    def __init__(self, recording: Recording, base: Path | None = None) -> None:
        self._recording = recording
        self._before: dict[int, int] = {}  # sector → what it held before the first entry
        self._written: dict[int, tuple[list[int], list[int]]] = {}  # sector → entries, what it held after each of them
        self._sums = [0]  # what the whole disk held after so many entries, less what it held before
        fd = -1 if base is None else os.open(base, os.O_RDONLY)
        try:
            for index in range(len(recording)):
                self._sums.append(self._take(index, fd))
        finally:
            if fd >= 0:
                os.close(fd)

    def _take(self, index: int, base: int) -> int:
        entry, total = self._recording.entries[index], self._sums[-1]
        if not entry.changes:
            return total
        for sector in self._sectors(Piece(index, 0, entry.length)):
            if sector not in self._written:
                held = b"" if base < 0 else os.pread(base, SECTOR_BYTES, sector * SECTOR_BYTES)
                self._before[sector], self._written[sector] = _number(sector, held) if held else 0, ([], [])
            indices, values = self._written[sector]
            was = values[-1] if values else self._before[sector]
            now = self._over(index, sector, was)
            indices.append(index)
            values.append(now)
            total += now - was
        return total % _MODULUS

    def number(self, state: CrashState) -> int:
        """The number of a state's content. ValueError for one that is not legal."""
        survivors = pieces(self._recording, state)
        durable = self._recording.durable(state.position, state.lie_from)
        holds: dict[int, int] = {}
        for piece in survivors:
            for sector in self._sectors(piece):
                was = holds.get(sector)
                holds[sector] = self._over(piece.index, sector, self._durable(sector, durable) if was is None else was)
        changed = sum(now - self._durable(sector, durable) for sector, now in holds.items())
        return (self._sums[durable] + changed) % _MODULUS

    def more_than_bits(self, position: int, unit_bytes: int, lie_from: int | None = None) -> int:
        """There are at least 2 to this power different contents at `position`."""
        durable = self._recording.durable(position, lie_from)
        return math.floor(
            sum(
                math.log2(self._different(parts, durable))
                for parts in choices(self._recording, position, unit_bytes, lie_from)
            )
        )

    def _different(self, parts: Sequence[Part], durable: int) -> int:
        """How many different things a unit may hold at least: as it is durably, or with one of its writes over it."""
        unit = {sector for part in parts for sector in self._sectors(Piece(*part[:3]))}
        held = {sector: self._durable(sector, durable) for sector in sorted(unit)}
        found = {tuple(held.values())}
        for index, start, stop, _ in parts:
            over = dict(held)
            for sector in self._sectors(Piece(index, start, stop)):
                over[sector] = self._over(index, sector, held[sector])
            found.add(tuple(over.values()))
        return len(found)

    def _durable(self, sector: int, durable: int) -> int:
        indices, values = self._written[sector]
        at = bisect.bisect_left(indices, durable)
        return values[at - 1] if at else self._before[sector]

    def _sectors(self, piece: Piece) -> Iterator[int]:
        at = self._recording.entries[piece.index].offset
        return iter(range((at + piece.start) // SECTOR_BYTES, -(-(at + piece.stop) // SECTOR_BYTES)))

    def _over(self, index: int, sector: int, was: int) -> int:
        """What a sector holds once an entry is written over what it held."""
        entry = self._recording.entries[index]
        start = sector * SECTOR_BYTES - entry.offset
        begin, end = max(0, start), min(entry.length, start + SECTOR_BYTES)
        data = _ZEROES[: end - begin] if entry.kind is not Kind.WRITE else self._recording.data(entry)[begin:end]
        if end - begin == SECTOR_BYTES:
            return _number(sector, data)
        return _number(sector, b"%d %d %b" % (was, begin - start, bytes(data)))  # no drive is asked for less


def _number(sector: int, data: bytes | memoryview) -> int:
    made = hashlib.blake2b(data, digest_size=8, salt=sector.to_bytes(8, "little"))
    return int.from_bytes(made.digest(), "little")
