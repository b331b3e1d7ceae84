"""Crash states: every content a disk may legally have held when the power went, rebuilt from one recording.

At a position of the log, the writes covered by an answered flush (and FUA writes) are on the medium. Each of the
others may be there or not, in whole or, in units the drive promises to write whole, in part; order of destaging is the
drive's own. What remains of two writes to one place is the later one kept, since a cache never writes the older last.

A state is named by a few numbers and rebuilt bit by bit from them, so that a finding can be looked at again.
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
EXHAUSTIVE_BITS = 8  # up to 2^8 subsets of the unflushed writes are tried one by one


class Mode(StrEnum):
    """Which of the unflushed writes are still there. `seed` picks where there is a choice."""

    ALL = "all"  # every completed write: what a machine reset leaves
    DROP = "drop"  # none
    PREFIX = "prefix"  # the first few, whole
    SUBSET = "subset"  # any, whole
    TORN = "torn"  # any, each whole, absent or a part of its units
    MASK = "mask"  # exactly those whose bit is set in `seed`, the oldest being bit 0


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
    unflushed = set(recording.unflushed(state.position, state.lie_from))
    chosen = dict(_chosen(recording, sorted(unflushed), state))
    result: list[Piece] = []
    for index in range(durable, state.position):
        entry = recording.entries[index]
        if index in unflushed:
            result.extend(Piece(index, start, stop) for start, stop in chosen.get(index, ()))
        elif entry.changes:
            result.append(Piece(index, 0, entry.length))  # FUA: on the medium by itself
    return tuple(result)


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
    rng = Random(state.seed)
    keep: Sequence[bool]
    if state.mode is Mode.TORN:
        for index in unflushed:
            yield index, _torn(recording.entries[index], state.unit_bytes, rng)
        return
    if state.mode is Mode.ALL:
        keep = [True] * len(unflushed)
    elif state.mode is Mode.DROP:
        keep = [False] * len(unflushed)
    elif state.mode is Mode.PREFIX:
        length = rng.randint(0, len(unflushed))
        keep = [number < length for number in range(len(unflushed))]
    elif state.mode is Mode.SUBSET:
        keep = [rng.random() < 0.5 for _ in unflushed]
    else:
        keep = [bool(state.seed >> number & 1) for number in range(len(unflushed))]
    for index, kept in zip(unflushed, keep, strict=True):
        if kept:
            yield index, ((0, recording.entries[index].length),)


def _torn(entry: Entry, unit_bytes: int, rng: Random) -> list[tuple[int, int]]:
    units = list(_units(entry, unit_bytes))
    shape = rng.choice(("absent", "whole", "first", "last", "any"))
    cut = rng.randint(0, len(units))
    if shape == "absent":
        kept = []
    elif shape == "whole":
        kept = units
    elif shape == "first":
        kept = units[:cut]
    elif shape == "last":
        kept = units[cut:]
    else:
        kept = [unit for unit in units if rng.random() < 0.5]
    return kept


def _units(entry: Entry, unit_bytes: int) -> Iterator[tuple[int, int]]:
    # Units are places of the disk, not of the write: a write that begins in the middle of one tears at its end.
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


def sample_states(
    recording: Recording,
    count: int,
    seed: int,
    *,
    unit_bytes: int | None = None,
    lie_from: int | None = None,
    first: int = 0,
    last: int | None = None,
    modes: Sequence[Mode] = (Mode.DROP, Mode.PREFIX, Mode.SUBSET, Mode.TORN, Mode.ALL),
) -> tuple[CrashState, ...]:
    """Draw `count` states between positions `first` and `last`, sorted by position (the order that builds fastest).

    Gaps are drawn evenly (shuffled rounds over all of them), since bounds count gaps; then a position in the gap, then
    a mode. Where nothing is unflushed all modes are one content, and the state is drawn as `drop`.
    """
    rng = Random(seed)
    unit = recording.unit_bytes if unit_bytes is None else unit_bytes
    gaps = recording.gaps(first, last)
    result: list[CrashState] = []
    while len(result) < count:
        for gap in rng.sample(gaps, min(len(gaps), count - len(result))):
            position = rng.randint(gap.first, gap.last)
            mode = rng.choice(modes) if recording.unflushed(position, lie_from) else Mode.DROP
            number = rng.getrandbits(32) if mode in {Mode.PREFIX, Mode.SUBSET, Mode.TORN, Mode.MASK} else 0
            result.append(CrashState(position, mode, number, unit, lie_from))
    return tuple(sorted(result, key=lambda state: (state.position, state.mode, state.seed)))


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
