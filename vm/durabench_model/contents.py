"""A file's bytes from what is certain and parts of what came after."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from durabench_model.log import Entry, Kind, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

BLOCK = 4096
KEEP_SIZE, PUNCH, ZERO = 1, 2, 0x10
"""Modes of fallocate(2)."""


def blocks_of(entry: Entry) -> range:
    """The blocks that a write is about."""
    return range(entry.b // BLOCK, -(-(entry.b + entry.length) // BLOCK))


class Part(NamedTuple):
    """What of one change is there: of a write some units and the size that it left, of another all or nothing."""

    entry: int
    units: tuple[int, ...] = ()
    size: int | None = None
    whole: bool = False

    @property
    def nothing(self) -> bool:
        """Whether the file is as if the change had not been made."""
        return not self.units and self.size is None and not self.whole


class Drawn(NamedTuple):
    """Bytes that can be made; `token` is equal only where they are."""

    token: object
    make: Callable[[], bytearray]


def whole(data: bytearray, source: Path | None, holes: set[int], log: Log, indices: Sequence[int]) -> Drawn:
    """All of the changes."""

    def make() -> bytearray:
        made, gaps = _loaded(data, source), set(holes)
        for index in indices:
            apply(made, gaps, log, log.entries[index])
        return made

    return Drawn(("all", indices[-1]), make)


def compose(data: bytearray, source: Path | None, log: Log, parts: Sequence[Part], unit: int) -> Drawn:
    """The parts, in order. Of two writes to one unit the later one includes the earlier: they met in one page."""

    def make() -> bytearray:
        made = _loaded(data, source)
        newest = {each: part.entry for part in parts for each in part.units}
        size = len(made)
        for part in parts:
            entry = log.entries[part.entry]
            if entry.kind is not Kind.WRITE:
                if part.whole:
                    size = _reshape(made, size, entry)
                continue
            _put(made, entry, _units(entry, unit, newest, part.entry), log, unit)
            size = max(size, part.size or 0)
        del made[size:]
        return _extend(made, size)

    return Drawn((unit, *parts), make)


def _loaded(data: bytearray, source: Path | None) -> bytearray:
    return bytearray(data) if source is None else bytearray(source.read_bytes())


def _units(entry: Entry, unit: int, newest: dict[int, int], index: int) -> list[int]:
    touched = range(entry.b // unit, -(-(entry.b + entry.length) // unit))
    return [each for each in touched if newest.get(each, -1) >= index]


def _put(data: bytearray, entry: Entry, units: list[int], log: Log, unit: int) -> None:
    if not units:
        return
    payload, end = log.data(entry), entry.b + entry.length
    for begin, stop in _runs(units, unit):
        low, high = max(begin, entry.b), min(stop, end)
        _extend(data, low)
        data[low:high] = payload[low - entry.b : high - entry.b]


def _reshape(data: bytearray, size: int, entry: Entry) -> int:
    if entry.kind is Kind.SIZE:
        del data[entry.b :]
        return entry.b
    stop = entry.b + entry.c
    if entry.flags & (PUNCH | ZERO):
        end = min(len(data), stop)
        if end > entry.b:
            data[entry.b : end] = bytes(end - entry.b)
    return size if entry.flags & KEEP_SIZE else max(size, stop)


def torn(units: list[int], shape: str, seed: int) -> list[int]:
    """Some units of a write: its head, its tail, all but some in the middle, or any."""
    rng = Random(seed)
    if len(units) < 2:
        return units if rng.random() < 0.5 else []
    if shape == "any":
        return [each for each in units if rng.random() < 0.5]
    cut = rng.randint(1, len(units) - 1)
    if shape == "head":
        return units[:cut]
    if shape == "tail":
        return units[cut:]
    first = rng.randrange(len(units))
    return units[:first] + units[rng.randint(first + 1, len(units)) :]


def _runs(units: list[int], unit: int) -> Iterator[tuple[int, int]]:
    begin = previous = units[0]
    for each in units[1:]:
        if each != previous + 1:
            yield begin * unit, (previous + 1) * unit
            begin = each
        previous = each
    yield begin * unit, (previous + 1) * unit


def apply(data: bytearray, holes: set[int], log: Log, entry: Entry) -> None:
    """One change of a file's bytes, whole; `holes` are the blocks below its end without storage of their own."""
    if entry.kind is Kind.WRITE:
        _reach(data, holes, entry.b)
        data[entry.b : entry.b + entry.length] = log.data(entry)
        if holes:
            holes.difference_update(range(entry.b // BLOCK, -(-(entry.b + entry.length) // BLOCK)))
    elif entry.kind is Kind.SIZE:
        if entry.b < len(data):
            del data[entry.b :]
            holes.difference_update({each for each in holes if each >= -(-entry.b // BLOCK)})
        else:
            _reach(data, holes, entry.b)
    else:
        stop = entry.b + entry.c
        if entry.flags & (PUNCH | ZERO):
            end = min(len(data), stop)
            if end > entry.b:
                data[entry.b : end] = bytes(end - entry.b)
            holes.update(range(-(-entry.b // BLOCK), stop // BLOCK))
        if not entry.flags & KEEP_SIZE:
            _reach(data, holes, stop)


def _reach(data: bytearray, holes: set[int], size: int) -> None:
    if size > len(data):
        holes.update(range(-(-len(data) // BLOCK), -(-size // BLOCK)))
        _extend(data, size)


def _extend(data: bytearray, size: int) -> bytearray:
    if size > len(data):
        data.extend(bytes(size - len(data)))
    return data
