"""Crash states: every content a disk may legally have held when the power went, rebuilt from one recording.

At a position of the log, the writes covered by an answered flush (and FUA writes) are on the medium. Each of the
others may be there or not, in whole or, in units the drive promises to write whole, in part; order of destaging is the
drive's own. What remains of two writes to one place is the later one kept, since a cache never writes the older last.

The log has a write where it was answered, so the entry after a position had been received there and was in flight. Of
a plain write that is nothing new (one position later it is an unflushed one); a FUA write, which is on the medium once
it is answered, may be absent or in part only while it is in flight.

A state is named by a few numbers and rebuilt bit by bit from them, so that a finding can be looked at again. Which
states are looked at is drawn in `drawing`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from durabench_vm.image import copy_sparse, zero_range
from durabench_vm.recording import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from durabench_vm.recording import Entry, Recording

SECTOR_BYTES = 512
EXHAUSTIVE_BITS = 8  # up to 2^8 subsets of the unflushed writes are listed one by one


class Mode(StrEnum):
    """Which of the unflushed writes are still there. `seed` picks where there is a choice.

    The words stand in stored results: what one means for a seed never changes.
    """

    ALL = "all"  # every completed write: what a machine reset leaves
    DROP = "drop"  # none
    PREFIX = "prefix"  # the first few, whole
    SUFFIX = "suffix"  # the last few, whole, and none before
    HOLE = "hole"  # all but some in the middle
    TORN_HEAD = "torn-head"  # of one write only its head; the others all, or any of them
    TORN_TAIL = "torn-tail"  # … only its tail
    TORN_MIDDLE = "torn-middle"  # … all but its middle
    IN_FLIGHT = (
        "in-flight"  # a part of the FUA write that was received and not yet answered; of the others none, any, all
    )
    SUBSET = "subset"  # any, whole
    TORN = "torn"  # any, each whole, absent or a part of its units
    MASK = "mask"  # exactly those whose bit is set in `seed`, the oldest being bit 0
    CONTENT = "content"  # the content of number `seed`, counting through what every unit of the disk may hold


@dataclass(frozen=True, slots=True)
class CrashState:
    """One legal content. `lie_from`: flushes answered from that position on were lies (and so was FUA)."""

    position: int
    mode: Mode
    seed: int = 0
    unit_bytes: int = SECTOR_BYTES
    lie_from: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one entry that survived: its index in the log, and which of its bytes."""

    index: int
    start: int
    stop: int


def pieces(recording: Recording, state: CrashState) -> tuple[Piece, ...]:
    """What of the entries after the last answered flush survives in `state`, in log order.

    ValueError for a state that is not legal for this recording: beyond its end, or torn finer than its drive tears.
    """
    _legal(recording, state)
    durable = recording.durable(state.position, state.lie_from)
    unflushed = recording.unflushed(state.position, state.lie_from)
    chosen = dict(_chosen(recording, unflushed, state))
    forced = set(range(durable, state.position)).difference(unflushed)
    result: list[Piece] = []
    for index in range(durable, min(state.position + 1, len(recording))):
        entry = recording.entries[index]
        if index not in forced:
            result.extend(Piece(index, start, stop) for start, stop in chosen.get(index, ()))
        elif entry.changes:
            result.append(Piece(index, 0, entry.length))  # FUA: on the medium by itself
    return tuple(result)


def in_flight(recording: Recording, position: int, lie_from: int | None = None) -> int | None:
    """The FUA write that had been received at `position` and was not answered, if there is one. A lie has no FUA."""
    if position >= len(recording) or (lie_from is not None and position >= lie_from):
        return None
    entry = recording.entries[position]
    return position if entry.changes and entry.fua else None


def _legal(recording: Recording, state: CrashState) -> None:
    if not 0 <= state.position <= len(recording):
        message = f"position {state.position} is not in the recording (0…{len(recording)})"
        raise ValueError(message)
    if state.unit_bytes <= 0 or state.unit_bytes % recording.unit_bytes:
        message = f"the drive declared {recording.unit_bytes} B as its unit: it does not tear at {state.unit_bytes} B"
        raise ValueError(message)


def _chosen(
    recording: Recording, unflushed: Sequence[int], state: CrashState
) -> Iterator[tuple[int, Sequence[tuple[int, int]]]]:
    if state.mode is Mode.CONTENT:
        yield from _numbered(recording, state)
        return
    rng = Random(state.seed)
    if state.mode is Mode.TORN:
        for index in unflushed:
            yield index, _torn(recording.entries[index], state.unit_bytes, rng)
        return
    torn: dict[int, Sequence[tuple[int, int]]] = {}
    if state.mode in _TORN_UNITS:
        torn = _torn_once(recording, unflushed, state, rng)
    elif state.mode is Mode.IN_FLIGHT:
        torn = _torn_in_flight(recording, state, rng)
    for index, kept in zip(unflushed, _kept(len(unflushed), state, rng), strict=True):
        if kept and index not in torn:
            yield index, ((0, recording.entries[index].length),)
    yield from torn.items()


def _kept(count: int, state: CrashState, rng: Random) -> Sequence[bool]:
    """Of each unflushed write whether it is there, for the modes that keep writes whole."""
    if state.mode is Mode.MASK:
        return [bool(state.seed >> number & 1) for number in range(count)]
    if state.mode is Mode.SUBSET or state.mode in _SHARES:
        share = 0.5 if state.mode is Mode.SUBSET else rng.choice(_SHARES[state.mode])
        return [rng.random() < share for _ in range(count)]
    begin, end = 0, count  # of what is there, or, for a hole, of what is not
    if state.mode is Mode.DROP:
        end = 0
    elif state.mode is Mode.PREFIX:
        end = rng.randint(0, count)
    elif state.mode is Mode.SUFFIX:
        begin = rng.randint(1, max(1, count - 1))
    elif state.mode is Mode.HOLE:
        begin = rng.randint(1, max(1, count - 2))
        end = rng.randint(begin + 1, max(begin + 1, count - 1))
    return [(begin <= number < end) is not (state.mode is Mode.HOLE) for number in range(count)]


_SHARES = {
    Mode.TORN_HEAD: (1.0, 0.5),
    Mode.TORN_TAIL: (1.0, 0.5),
    Mode.TORN_MIDDLE: (1.0, 0.5),
    Mode.IN_FLIGHT: (1.0, 0.5, 0.0),
}
"""How many of the other writes are kept: one of these shares is drawn."""
_TORN_UNITS = {Mode.TORN_HEAD: 2, Mode.TORN_TAIL: 2, Mode.TORN_MIDDLE: 3}
"""How many units a write must have to be torn so."""


def _torn_once(
    recording: Recording, unflushed: Sequence[int], state: CrashState, rng: Random
) -> dict[int, Sequence[tuple[int, int]]]:
    """One write of those that have enough units, and what is there of it; nothing where there is none."""
    found = [(index, list(units(recording.entries[index], state.unit_bytes))) for index in unflushed]
    found = [(index, every) for index, every in found if len(every) >= _TORN_UNITS[state.mode]]
    if not found:
        return {}
    index, every = rng.choice(found)
    if state.mode is Mode.TORN_MIDDLE:
        begin = rng.randint(1, len(every) - 2)
        return {index: every[:begin] + every[rng.randint(begin + 1, len(every) - 1) :]}
    cut = rng.randint(1, len(every) - 1)
    return {index: every[:cut] if state.mode is Mode.TORN_HEAD else every[cut:]}


def _torn_in_flight(recording: Recording, state: CrashState, rng: Random) -> dict[int, Sequence[tuple[int, int]]]:
    """What is there of the FUA write in flight: its head, its tail, or any of its units; whole where it has but one."""
    index = in_flight(recording, state.position, state.lie_from)
    if index is None:
        return {}
    every = list(units(recording.entries[index], state.unit_bytes))
    cut = rng.randint(1, max(1, len(every) - 1))
    return {index: rng.choice((every[:cut], every[-cut:], [unit for unit in every if rng.random() < 0.5]))}


# --- all contents of a position, by number --------------------------------------------------------------------------

Part = tuple[int, int, int, bool]
"""What an entry may leave in one unit of the disk: its index, which of its bytes, whether that is all of the unit."""


def choices(recording: Recording, position: int, unit_bytes: int, lie_from: int | None = None) -> list[list[Part]]:
    """Of each unit of the disk that may hold one thing or another at `position`, by place: what may be written over
    the durable content, oldest first.
    """
    parts: dict[int, list[Part]] = {}
    flight = in_flight(recording, position, lie_from)
    for index in (*recording.unflushed(position, lie_from), *(() if flight is None else (flight,))):
        entry = recording.entries[index]
        for start, stop in units(entry, unit_bytes):
            place = (entry.offset + start) // unit_bytes
            parts.setdefault(place, []).append((index, start, stop, stop - start == unit_bytes))
    return [parts[place] for place in sorted(parts)]


def ways(parts: Sequence[Part]) -> int:
    """In how many ways a unit can be left: the last whole write that is there decides; parts of it add up."""
    return len(parts) + 1 if all(whole for *_, whole in parts) else 1 << len(parts)


def _numbered(recording: Recording, state: CrashState) -> Iterator[tuple[int, Sequence[tuple[int, int]]]]:
    number = state.seed
    found: dict[int, list[tuple[int, int]]] = {}
    for parts in choices(recording, state.position, state.unit_bytes, state.lie_from):
        number, way = divmod(number, ways(parts))
        mask = way if ways(parts) > len(parts) + 1 else 1 << way >> 1
        for bit, (index, start, stop, _) in enumerate(parts):
            if mask >> bit & 1:
                found.setdefault(index, []).append((start, stop))
    return iter(found.items())


def _torn(entry: Entry, unit_bytes: int, rng: Random) -> list[tuple[int, int]]:
    every = list(units(entry, unit_bytes))
    shape = rng.choice(("absent", "whole", "first", "last", "any"))
    cut = rng.randint(0, len(every))
    if shape == "absent":
        kept = []
    elif shape == "whole":
        kept = every
    elif shape == "first":
        kept = every[:cut]
    elif shape == "last":
        kept = every[cut:]
    else:
        kept = [unit for unit in every if rng.random() < 0.5]
    return kept


def units(entry: Entry, unit_bytes: int) -> Iterator[tuple[int, int]]:
    """The parts of an entry that a drive writes whole: from where to where in it.

    Units are places of the disk, not of the write: a write that begins in the middle of one tears at its end.
    """
    start = 0
    while start < entry.length:
        stop = min(entry.length, start + unit_bytes - (entry.offset + start) % unit_bytes)
        yield start, stop
        start = stop


def enumerate_states(
    recording: Recording,
    position: int,
    *,
    unit_bytes: int | None = None,
    lie_from: int | None = None,
    bits: int = EXHAUSTIVE_BITS,
) -> tuple[CrashState, ...] | None:
    """Every subset of the unflushed writes at `position`, or None where there are more than 2^bits of them."""
    count = len(recording.unflushed(position, lie_from))
    if count > bits:
        return None
    unit = recording.unit_bytes if unit_bytes is None else unit_bytes
    return tuple(CrashState(position, Mode.MASK, mask, unit, lie_from) for mask in range(1 << count))


class CrashBuilder:
    """Builds many images from one recording: keeps a durable image that moves forward with the states' positions.

    States in ascending position cost a sparse copy and their own few writes; going back starts over from the base.
    `scratch` is the path of the moving image; it is removed by `close`.
    """

    def __init__(self, base_image: Path, recording: Recording, scratch: Path) -> None:
        self._base, self._recording, self._scratch = base_image, recording, scratch
        self._at = -1
        self._fd = -1

    def build(self, state: CrashState, out: Path) -> None:
        """Write the image of `state` to `out` (over an older file). Bit for bit the same for the same state."""
        survivors = pieces(self._recording, state)
        self._move_to(self._recording.durable(state.position, state.lie_from))
        copy_sparse(self._scratch, out)
        fd = os.open(out, os.O_RDWR)
        try:
            for piece in survivors:
                _apply(fd, self._recording, piece)
        finally:
            os.close(fd)

    def _move_to(self, position: int) -> None:
        if self._fd < 0 or position < self._at:
            if self._fd >= 0:
                os.close(self._fd)
            copy_sparse(self._base, self._scratch)
            self._fd = os.open(self._scratch, os.O_RDWR)
            self._at = 0
        for index in range(self._at, position):
            entry = self._recording.entries[index]
            if entry.changes:
                _apply(self._fd, self._recording, Piece(index, 0, entry.length))
        self._at = position

    def close(self) -> None:
        """Remove the moving image."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._scratch.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Be closed at the end of a `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def _apply(fd: int, recording: Recording, piece: Piece) -> None:
    entry = recording.entries[piece.index]
    offset = entry.offset + piece.start
    if entry.kind is Kind.WRITE:
        data = recording.data(entry)[piece.start : piece.stop]
        while data:
            done = os.pwrite(fd, data, offset)
            data, offset = data[done:], offset + done
    else:
        zero_range(fd, offset, piece.stop - piece.start)


def build(base_image: Path, recording: Recording, state: CrashState, out_path: Path) -> None:
    """Build one image. For many, use CrashBuilder."""
    with CrashBuilder(base_image, recording, out_path.with_name(out_path.name + ".durable")) as builder:
        builder.build(state, out_path)
