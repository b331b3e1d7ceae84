"""Drawn states against a brute-force enumeration of all that a drive may hold, written without the code under test."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts import SECTORS, Oracle, Step, played, sectors, steps

from durabench_vm import CrashState, Mode, build, draw_states, sample_states
from durabench_vm.contents import Contents
from durabench_vm.crash import pieces
from durabench_vm.drawing import CLASSES

if TYPE_CHECKING:
    from pathlib import Path

    from durabench_vm import Gap, Recording

LOOSE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = 200

small = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("write", "write", "write", "fua", "zero")), st.integers(0, 3), st.integers(1, 2)),
        st.just(("flush", 0, 0)),
        st.just(("mark", 0, 0)),
    ),
    max_size=9,
)


def every_content(oracles: list[Oracle], gap: Gap) -> set[bytes]:
    """All images that a gap may leave: of each sector each value it may hold, at every position."""
    found: set[bytes] = set()
    for oracle in oracles[gap.first : gap.last + 1]:
        found |= {b"".join(image) for image in product(*(sorted(oracle.legal(s)) for s in range(SECTORS)))}
    return found


def image_of(base: Path, recording: Recording, state: CrashState) -> bytes:
    out = base.with_name("out")
    build(base, recording, state, out)
    return out.read_bytes()


@LOOSE
@given(small, st.integers(0, 2**32), st.data())
def test_the_states_of_a_small_gap_are_all_that_a_drive_may_hold(script: list[Step], seed: int, data: st.DataObject):
    lie_from = data.draw(st.none() | st.integers(0, len(script)))
    with played(script, honest_until=lie_from) as (base, recording, oracles):
        for gap in recording.gaps():
            sizes = [math.prod(len(o.legal(s)) for s in range(SECTORS)) for o in oracles[gap.first : gap.last + 1]]
            if sum(sizes) > FEW:
                continue
            draw = draw_states(
                recording, 10_000, seed, strata=[[gap]], contents=Contents(recording, base), lie_from=lie_from
            )
            images = [image_of(base, recording, one.state) for one in draw.states]
            assert len(images) == len(set(images)), "no content twice"
            assert set(images) == every_content(oracles, gap)
            assert draw.of == len(images)
            assert 2**draw.bits <= draw.of


@LOOSE
@given(steps, st.integers(0, 2**32), st.integers(1, 40), st.booleans(), st.data())
def test_every_drawn_state_is_legal_distinct_and_rebuilt_bit_for_bit(
    script: list[Step], seed: int, count: int, wide: bool, data: st.DataObject
):
    lie_from = data.draw(st.none() | st.integers(0, len(script)))
    unit = 4096 if wide else 512
    with played(script, honest_until=lie_from) as (base, recording, oracles):
        contents = Contents(recording, base)
        draw = draw_states(
            recording, count, seed, strata=[recording.gaps()], contents=contents, unit_bytes=unit, lie_from=lie_from
        )
        seen: set[tuple[int, bytes]] = set()
        by_number: dict[int, bytes] = {}
        for one in draw.states:
            image = image_of(base, recording, one.state)
            assert image == image_of(base, recording, one.state)
            for sector, value in enumerate(sectors(base.with_name("out"))):
                assert value in oracles[one.state.position].legal(sector)
            assert by_number.setdefault(one.content, image) == image, "one number, one content"
            seen.add((recording.gap(one.state.position), image))
        assert len(seen) == len(draw.states), "no content twice in a gap"
        assert len(set(by_number.values())) == len(by_number), "one content, one number"
        if draw.of is not None:
            assert len(by_number) <= draw.of
        if len(draw.states) < count:
            assert draw.of == len(by_number), "fewer than asked for only where there is no other"


def test_what_only_repeats_is_no_other_content():
    with played([("zero", 0, 2), ("flush", 0, 0), ("zero", 0, 2), ("zero", 1, 1)]) as (base, recording, _):
        draw = draw_states(recording, 50, 1, strata=[recording.gaps(2)], contents=Contents(recording, base))
        assert (len(draw.states), draw.of) == (1, 1)


def test_gaps_are_drawn_evenly_as_long_as_they_have_another_content():
    script: list[Step] = []
    for _ in range(5):
        script += [("write", 0, 3), ("write", 4, 3), ("flush", 0, 0), ("mark", 0, 0)]
    with played(script) as (_, recording, _oracles):
        states = sample_states(recording, 60, 1)
        counts = Counter(recording.gap(state.position) for state in states)
        assert sorted(counts.values()) == [1, 11, 12, 12, 12, 12]
        assert counts[5] == 1, "the last gap has one content only"
        assert [state.position for state in states] == sorted(state.position for state in states)
        assert states == sample_states(recording, 60, 1)


def test_each_class_that_exists_is_drawn_before_any_comes_again():
    script: list[Step] = [("write", 0, 4), ("write", 4, 4), ("write", 8, 4), ("fua", 12, 4), ("mark", 0, 0)]
    with played(script) as (_, recording, _oracles):
        for seed in range(20):
            states = sample_states(recording, len(CLASSES), seed, last=4)
            assert {state.mode for state in states} == set(CLASSES)
    with played(script * 3) as (_, recording, _oracles):
        for seed in range(20):
            states = sample_states(recording, 12, seed, last=14)
            assert len({state.mode for state in states}) >= 9, "over several gaps, too"


def test_a_class_that_does_not_exist_is_not_drawn():
    with played([("write", 0, 1), ("write", 1, 1), ("mark", 0, 0)]) as (_, recording, _oracles):
        modes = {state.mode for state in sample_states(recording, 100, 1)}
        assert modes <= {Mode.DROP, Mode.ALL, Mode.PREFIX, Mode.SUFFIX, Mode.SUBSET, Mode.CONTENT}


def test_a_fsync_heavy_store_is_seen_with_holes_and_prefixes_as_with_nothing():
    """Three writes, a flush, one write, a flush, an acknowledgement: such states once all kept nothing."""
    script: list[Step] = []
    for k in range(36):
        script += [("write", (3 * k) % 12, 1), ("write", (3 * k + 1) % 12, 1), ("write", (3 * k + 2) % 12, 1)]
        script += [("flush", 0, 0), ("write", 12 + k % 3, 1), ("flush", 0, 0), ("mark", 0, 0)]
    with played(script) as (_, recording, _oracles):
        for count in (24, 100):
            kinds: Counter[str] = Counter()
            for seed in range(10):
                for state in sample_states(recording, count, seed, first=7):
                    unflushed = recording.unflushed(state.position)
                    kept = {piece.index for piece in pieces(recording, state)} & set(unflushed)
                    if len(unflushed) > 1:
                        kinds[_kind(unflushed, kept)] += 1
            assert kinds["hole"] > 0.15 * kinds.total(), kinds
            assert kinds["prefix"] > 0.1 * kinds.total(), kinds
            assert kinds["none"] < 0.5 * kinds.total(), kinds


def _kind(unflushed: tuple[int, ...], kept: set[int]) -> str:
    if not kept:
        return "none"
    if kept == set(unflushed):
        return "all"
    return "prefix" if kept == set(unflushed[: len(kept)]) else "hole"


def test_the_first_state_of_a_gap_is_of_a_moment_without_a_later_flush():
    script: list[Step] = []
    for k in range(6):
        script += [("write", k, 1), ("flush", 0, 0), *[("write", 8 + n, 1) for n in range(6)], ("flush", 0, 0)]
        script += [("mark", 0, 0)]
    with played(script) as (_, recording, _oracles):
        gaps = recording.gaps(10)
        states = sample_states(recording, len(gaps), 3, first=10)
        assert len({recording.gap(state.position) for state in states}) == len(gaps)
        begins = {gap.number: gap.first for gap in gaps}
        assert all(recording.durable(state.position) < begins[recording.gap(state.position)] for state in states)


def test_strata_take_turns():
    script: list[Step] = [("write", 0, 2), ("mark", 0, 0)] * 10
    with played(script) as (_, recording, _oracles):
        gaps = recording.gaps()
        draw = draw_states(recording, 4, 1, strata=[gaps[:2], gaps[2:]])
        assert sum(recording.gap(one.state.position) < 2 for one in draw.states) == 2


@pytest.mark.parametrize("modes", [(Mode.ALL,), (Mode.DROP,)])
def test_a_reset_has_one_content_a_position(modes: tuple[Mode, ...]):
    with played([("write", 0, 1), ("write", 1, 1), ("flush", 0, 0), ("write", 1, 1)]) as (base, recording, _):
        contents = Contents(recording, base)
        draw = draw_states(recording, 50, 1, strata=[recording.gaps()], modes=modes, contents=contents)
        assert (len(draw.states), draw.of) == ((4, 4) if modes == (Mode.ALL,) else (2, 2))


def test_what_cannot_be_counted_has_a_lower_bound():
    with played([("write", 0, 6), ("write", 6, 6), ("write", 3, 4)]) as (_, recording, _oracles):
        draw = draw_states(recording, 5, 1, strata=[recording.gaps()])
        assert draw.of is None
        assert draw.bits == math.floor(8 + 4 * math.log2(3))
