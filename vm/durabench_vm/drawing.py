"""Which crash states are looked at: drawn from all legal contents of a recording's gaps, none twice in a gap.

Every gap gets as many as every other one until it has no more. In a gap the classes come first, each that exists in it
once, the one that was drawn least often from the recording before the others: nothing kept, everything, a prefix, a
suffix, a hole, a torn head, tail or middle, a FUA write in flight. After that any subset, whole or torn; where a gap
has so few contents that they can be counted, those that are left.

The first state of a gap is of a moment at which nothing has been flushed since its acknowledgement: what is durable
there, the store itself has flushed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from durabench_vm.contents import Contents
from durabench_vm.crash import CrashState, Mode, choices, in_flight, pieces, units, ways

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from durabench_vm.recording import Gap, Recording

CLASSES = (
    *(Mode.DROP, Mode.ALL, Mode.PREFIX, Mode.SUFFIX, Mode.HOLE),
    *(Mode.TORN_HEAD, Mode.TORN_TAIL, Mode.TORN_MIDDLE, Mode.IN_FLIGHT, Mode.SUBSET, Mode.TORN),
)
"""The classes of states that a power cut may leave. The last two are any: they come after the others."""
COUNTABLE = 1 << 10
"""A gap has so few contents, at most, that they are counted one by one."""
TRIES = 12
"""How often a class is tried in a gap where what it gave had been drawn before."""
_ANY = (Mode.SUBSET, Mode.TORN)
_NEEDED = {Mode.ALL: 1, Mode.PREFIX: 2, Mode.SUFFIX: 2, Mode.HOLE: 3, Mode.SUBSET: 2, Mode.TORN: 1}
"""How many unflushed writes there must be, so that a class is not another one."""
_NEEDED_UNITS = {Mode.TORN_HEAD: 2, Mode.TORN_TAIL: 2, Mode.TORN_MIDDLE: 3, Mode.TORN: 2}
_SEEDLESS = (Mode.DROP, Mode.ALL)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A state and the number of its content (`Contents`)."""

    state: CrashState
    content: int


@dataclass(frozen=True)
class Draw:
    """States of one recording, by position. ``of``: how many contents their gaps have together, None where they were
    not counted; there are then at least 2^``bits``.
    """

    states: Sequence[Drawn]
    of: int | None
    bits: int


def sample_states(
    recording: Recording,
    count: int,
    seed: int,
    *,
    unit_bytes: int | None = None,
    lie_from: int | None = None,
    first: int = 0,
    last: int | None = None,
    modes: Sequence[Mode] = CLASSES,
) -> tuple[CrashState, ...]:
    """Draw at most `count` states between positions `first` and `last`, sorted by position (the order that builds
    fastest); fewer only where no gap has another content.
    """
    draw = draw_states(
        recording,
        count,
        seed,
        strata=[recording.gaps(first, last)],
        unit_bytes=unit_bytes,
        lie_from=lie_from,
        modes=modes,
    )
    return tuple(one.state for one in draw.states)


def draw_states(
    recording: Recording,
    count: int,
    seed: int,
    *,
    strata: Sequence[Sequence[Gap]],
    contents: Contents | None = None,
    unit_bytes: int | None = None,
    lie_from: int | None = None,
    modes: Sequence[Mode] = CLASSES,
) -> Draw:
    """Draw at most `count` states from gaps, taken from each of `strata` in turn while it has some left in the round:
    so a few states are of all of them, and which comes first is drawn. `modes`: the classes to draw from.
    """
    rng = Random(seed)
    unit = recording.unit_bytes if unit_bytes is None else unit_bytes
    made = _Space(recording, contents or Contents(recording), unit, lie_from, tuple(modes), rng)
    pools = [[_Pool(gap) for gap in gaps] for gaps in rng.sample(strata, len(strata))]
    found: list[Drawn] = []
    left = True
    while left and len(found) < count:
        left = False
        for pool in _in_turn([rng.sample(some, len(some)) for some in pools]):
            one = made.draw(pool) if len(found) < count else None
            if one is not None:
                found.append(one)
                left = True
    found.sort(key=lambda one: (one.state.position, one.state.mode, one.state.seed))
    seen = [pool for some in pools for pool in some if pool.seen]
    return Draw(tuple(found), made.counted(seen), made.bits(seen))


def _in_turn(strata: Sequence[Sequence[_Pool]]) -> Iterator[_Pool]:
    for number in range(max(map(len, strata), default=0)):
        yield from (some[number] for some in strata if number < len(some))


@dataclass(frozen=True, slots=True)
class _Moment:
    """A position, and what decides which classes exist there. ``fresh``: nothing was flushed since the gap began."""

    position: int
    writes: int
    most_units: int
    flight: bool
    fresh: bool

    def has(self, mode: Mode) -> bool:
        """Whether a class exists there, and is none of the others."""
        if mode is Mode.IN_FLIGHT:
            return self.flight
        return self.writes >= _NEEDED.get(mode, 0) and self.most_units >= _NEEDED_UNITS.get(mode, 0)


@dataclass
class _Pool:
    """A gap, what was drawn from it, and what it has left."""

    gap: Gap
    seen: set[int] = field(default_factory=set)
    times: Counter[Mode] = field(default_factory=Counter)
    spent: set[Mode] = field(default_factory=set)
    moments: list[_Moment] | None = None
    every: dict[int, CrashState] | None = None
    is_counted: bool = False


@dataclass
class _Space:
    """Draws from pools, and remembers which classes the recording has had."""

    recording: Recording
    contents: Contents
    unit_bytes: int
    lie_from: int | None
    modes: Sequence[Mode]
    rng: Random
    times: Counter[Mode] = field(default_factory=Counter)

    def draw(self, pool: _Pool) -> Drawn | None:
        """A state of a content that the pool has not given; None where there is no other."""
        moments = self._moments(pool)
        fresh = [] if pool.seen else [moment for moment in moments if moment.fresh]
        return self._by_class(pool, fresh) or self._by_class(pool, moments) or self._left(pool)

    def _by_class(self, pool: _Pool, moments: Sequence[_Moment]) -> Drawn | None:
        while modes := self._due(pool, moments):
            mode = modes[0]
            places = [moment.position for moment in moments if self._has(moment, mode)]
            for _ in range(TRIES):
                number = 0 if mode in _SEEDLESS else self.rng.getrandbits(32)
                state = CrashState(self.rng.choice(places), mode, number, self.unit_bytes, self.lie_from)
                content = self.contents.number(state)
                if content not in pool.seen and self._is_proper(state):
                    pool.seen.add(content)
                    pool.times[mode] += 1
                    self.times[mode] += 1
                    return Drawn(state, content)
            if len(moments) < len(self._moments(pool)):
                return None
            pool.spent.add(mode)
        return None

    def _due(self, pool: _Pool, moments: Sequence[_Moment]) -> list[Mode]:
        """The classes that exist, the one that is next first."""
        found = [mode for mode in self.modes if mode not in pool.spent]
        found = [mode for mode in found if any(self._has(moment, mode) for moment in moments)]
        return sorted(found, key=lambda mode: (pool.times[mode], mode in _ANY, self.times[mode], self.rng.random()))

    def _has(self, moment: _Moment, mode: Mode) -> bool:
        return moment.has(mode) or (mode is Mode.ALL and Mode.DROP not in self.modes)

    def _is_proper(self, state: CrashState) -> bool:
        """Whether a state is what its class says, where the class leaves room for nothing and for all."""
        if state.mode not in {Mode.PREFIX, Mode.IN_FLIGHT}:
            return True
        there = {piece.index for piece in pieces(self.recording, state)}
        if state.mode is Mode.IN_FLIGHT:
            return state.position in there
        kept = [index in there for index in self.recording.unflushed(state.position, self.lie_from)]
        return any(kept) and not all(kept)

    def _left(self, pool: _Pool) -> Drawn | None:
        every = self._every(pool) or {}
        left = [content for content in every if content not in pool.seen]
        if not left:
            return None
        content = self.rng.choice(left)
        pool.seen.add(content)
        return Drawn(every[content], content)

    def _moments(self, pool: _Pool) -> list[_Moment]:
        if pool.moments is None:
            pool.moments = list(self._look(pool.gap))
        return pool.moments

    def _look(self, gap: Gap) -> Iterator[_Moment]:
        recording, was = self.recording, -1
        writes = most = 0
        for position in range(gap.first, gap.last + 1):
            durable = recording.durable(position, self.lie_from)
            if durable != was or position == gap.first:
                unflushed = recording.unflushed(position, self.lie_from)
                writes, most = len(unflushed), max(map(self._units, unflushed), default=0)
            elif recording.needs_flush(position - 1, self.lie_from):
                writes, most = writes + 1, max(most, self._units(position - 1))
            was = durable
            flight = in_flight(recording, position, self.lie_from) is not None
            yield _Moment(position, writes, most, flight, durable < gap.first)

    def _units(self, index: int) -> int:
        return sum(1 for _ in units(self.recording.entries[index], self.unit_bytes))

    # --- how many there are

    def counted(self, pools: Sequence[_Pool]) -> int | None:
        """How many different contents the pools have together, where each of them can be counted."""
        found: set[int] = set()
        for pool in pools:
            every = self._every(pool)
            if every is None:
                return None
            found.update(every)
        return len(found)

    def bits(self, pools: Sequence[_Pool]) -> int:
        """The pool with most has at least 2 to this power."""
        moments = [moment for pool in pools for moment in self._moments(pool)]
        if not moments:
            return 0
        fullest = max(moments, key=lambda moment: moment.writes + moment.most_units)
        return self.contents.more_than_bits(fullest.position, self.unit_bytes, self.lie_from)

    def _every(self, pool: _Pool) -> dict[int, CrashState] | None:
        """Every content of a gap with a state that has it; None where there are too many, or not all may be drawn."""
        if not pool.is_counted:
            pool.is_counted = True
            states = self._all_states(pool)
            pool.every = None if states is None else {self.contents.number(state): state for state in states}
        return pool.every

    def _all_states(self, pool: _Pool) -> list[CrashState] | None:
        if set(self.modes) <= set(_SEEDLESS):
            places = [moment.position for moment in self._moments(pool)]
            return [CrashState(at, mode, 0, self.unit_bytes, self.lie_from) for at in places for mode in self.modes]
        if not set(self.modes) >= set(CLASSES):
            return None
        found: list[CrashState] = []
        for position in self._last_moments(pool.gap):
            number = 1
            for parts in choices(self.recording, position, self.unit_bytes, self.lie_from):
                number *= ways(parts)
                if number + len(found) > COUNTABLE:
                    return None
            found += [
                CrashState(position, Mode.CONTENT, each, self.unit_bytes, self.lie_from) for each in range(number)
            ]
        return found

    def _last_moments(self, gap: Gap) -> list[int]:
        """Positions whose contents are together all of the gap's: what the next entry only adds to has no own ones."""
        found = []
        for position in range(gap.first, gap.last + 1):
            is_flight = in_flight(self.recording, position, self.lie_from) is not None
            durable = [self.recording.durable(at, self.lie_from) for at in (position, position + 1)]
            if position == gap.last or is_flight or durable[0] != durable[1]:
                found.append(position)
        return found
