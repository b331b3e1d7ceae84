"""Crossings of two cost curves: coverage on synthetic stores whose truth is known, and what must hold for any two."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench.crossing import (
    BRACKET,
    FINEST_STEP,
    NONE_RELIABLE,
    Crossing,
    clearness,
    coarse_bracket,
    crossing,
    fine_sizes,
)

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=40)
COARSE = [256 * 4**step for step in range(10)]  # 256 B to 64 MiB
MB_S = 1e-3  # bytes per ns
CHEAP_TO_START = (0.2e6, 50 * MB_S)  # fixed ns, bandwidth
CHEAP_BY_SIZE = (2e6, 500 * MB_S)
TRUTH = (2e6 - 0.2e6) / (1 / (50 * MB_S) - 1 / (500 * MB_S))  # 100 kB


def store(rng, cost, sizes, noise, trials=8, puts=5):
    """Latencies of a store with a fixed cost and a bandwidth: noise per put, and half of it on a whole trial."""
    fixed, bandwidth = cost
    return {
        size: (fixed + size / bandwidth)
        * rng.lognormal(0, noise / 2, (trials, 1))
        * rng.lognormal(0, noise, (trials, puts))
        for size in sizes
    }


def measured(seed, noise, a=CHEAP_TO_START, b=CHEAP_BY_SIZE, resamples=200, sizes=COARSE):
    """Both passes, as `plan` makes them: coarse over the range, then twelve trials of six sizes inside the bracket."""
    rng = np.random.default_rng([seed, round(1000 * noise)])
    ours, theirs = store(rng, a, sizes, noise), store(rng, b, sizes, noise)
    bracket = coarse_bracket(ours, theirs)
    if bracket is not None:
        fine = [size for size in fine_sizes(*bracket) if size not in ours]
        ours |= store(rng, a, fine, noise, trials=12, puts=8)
        theirs |= store(rng, b, fine, noise, trials=12, puts=8)
    return crossing(ours, theirs, seed, resamples)


# --- statistical: does the interval say what it promises? ------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_the_interval_covers_the_truth_in_at_least_88_of_100_stores(noise):
    """One without a reliable crossing does not count as covered: the truth is in the middle of the measured range."""
    found = [measured(seed, noise) for seed in range(100)]
    covered = sum(one.reliable and one.low <= TRUTH <= one.high for one in found)
    assert covered >= 88
    assert all(one.below == "a" and one.above == "b" for one in found if one.reliable)
    widths = [one.high / one.low for one in found if one.reliable]
    assert np.median(widths) < 1 + 4 * noise  # an interval that covers everything would say nothing


def test_a_coarse_pass_alone_finds_a_bracket_with_the_truth_in_it():
    brackets = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        brackets.append(coarse_bracket(store(rng, CHEAP_TO_START, COARSE, 0.2), store(rng, CHEAP_BY_SIZE, COARSE, 0.2)))
    assert all(bracket is not None and bracket[0] < TRUTH < bracket[1] for bracket in brackets)


def test_a_clear_bracket_is_told_from_one_that_noise_made():
    rng = np.random.default_rng(9)
    clear = clearness(store(rng, CHEAP_TO_START, COARSE, 0.2), store(rng, CHEAP_BY_SIZE, COARSE, 0.2))
    alike = [
        clearness(store(rng, CHEAP_TO_START, COARSE, 0.2), store(rng, CHEAP_TO_START, COARSE, 0.2)) for _ in range(10)
    ]
    assert clear > 0.95
    assert max(alike) < clear - 0.1
    assert clearness({}, {}) == 0


def test_stores_that_differ_by_a_fixed_cost_only_are_seldom_said_to_cross():
    """Where size decides, they approach each other: noise alone puts either in front there."""
    found = [measured(seed, 0.2, (1e6, 100 * MB_S), (2e6, 100 * MB_S), resamples=100) for seed in range(40)]
    assert sum(one.reliable for one in found) <= 4
    assert all(NONE_RELIABLE in one.why or one.below == one.above for one in found if not one.reliable)


def test_equal_stores_have_no_crossing_and_no_winner():
    found = [measured(seed, 0.2, CHEAP_TO_START, CHEAP_TO_START, resamples=100) for seed in range(40)]
    assert sum(one.reliable for one in found) <= 1
    assert sum(one.below is not None for one in found) <= 1
    same = {size: [[1000.0]] * 6 for size in COARSE}
    assert crossing(same, same, seed=1).below is None
    assert crossing(same, same, seed=1).why == f"{NONE_RELIABLE}: the medians are equal"
    rng = np.random.default_rng(10)
    pairs = [[store(rng, CHEAP_TO_START, [4096, 5000], 0.2) for _ in "ab"] for _ in range(10)]
    assert any("have the other one in front everywhere" in crossing(*pair, seed=1, resamples=100).why for pair in pairs)


def test_a_step_at_one_size_is_told_and_not_smoothed_away():
    rng = np.random.default_rng(1)
    ours = store(rng, CHEAP_TO_START, [*COARSE, *fine_sizes(50_000, 200_000)], 0.05)
    theirs = store(rng, CHEAP_BY_SIZE, [*COARSE, *fine_sizes(50_000, 200_000)], 0.05)
    assert crossing(ours, theirs, seed=1).reliable
    ours[4096] = ours[4096] * 40  # some page limit
    found = crossing(ours, theirs, seed=1)
    assert not found.reliable
    assert found.why.startswith(NONE_RELIABLE)


def test_two_crossings_are_no_crossing():
    """Fast, slow, fast again."""
    rng = np.random.default_rng(2)
    ours = store(rng, (1e6, 100 * MB_S), COARSE, 0.05)
    theirs = {size: puts * (2 if size < 4096 or size > 2**22 else 0.5) for size, puts in ours.items()}
    found = crossing(ours, theirs, seed=1)
    assert (found.reliable, found.at_bytes, found.low, found.high, found.below) == (False, None, None, None, None)
    assert "several" in found.why


def test_a_slow_round_is_not_taken_for_a_slow_backend():
    """A round in which the disk was slow for every size of one backend: as uncertain as that round is."""
    rng = np.random.default_rng(3)
    sizes = [*COARSE, *fine_sizes(50_000, 200_000)]
    ours = store(rng, CHEAP_TO_START, sizes, 0.02, trials=10)
    theirs = store(rng, CHEAP_BY_SIZE, sizes, 0.02, trials=10)
    calm = crossing(ours, theirs, seed=1)
    rounds = rng.lognormal(0, 0.3, (10, 1))
    rough = crossing(ours, {size: puts * rounds for size, puts in theirs.items()}, seed=1)
    assert rough.high / rough.low > 1.15 * calm.high / calm.low
    assert rough.low <= TRUTH <= rough.high


# --- what is said when there is none ---------------------------------------------------------------------------------


def test_one_that_is_always_faster_is_named():
    rng = np.random.default_rng(4)
    fast, slow = store(rng, (1e6, 500 * MB_S), COARSE, 0.2), store(rng, (4e6, 100 * MB_S), COARSE, 0.2)
    assert coarse_bracket(fast, slow) is None
    found = crossing(fast, slow, seed=1)
    assert (found.reliable, found.at_bytes, found.below, found.above) == (False, None, "a", "a")
    assert "every size measured" in found.why
    assert not found.affine_disagrees
    assert crossing(slow, fast, seed=1).below == "b"


@pytest.mark.parametrize("sizes, trials", [([], 8), ([4096], 8), (COARSE, 4)])
def test_too_little_is_said_to_be_too_little(sizes, trials):
    rng = np.random.default_rng(5)
    found = crossing(
        store(rng, CHEAP_TO_START, sizes, 0.1, trials), store(rng, CHEAP_BY_SIZE, sizes, 0.1, trials), seed=1
    )
    assert not found.reliable
    assert found.why.startswith(NONE_RELIABLE)
    assert found.below is None


def test_sizes_of_one_only_and_empty_trials_are_left_out():
    rng = np.random.default_rng(6)
    ours, theirs = store(rng, CHEAP_TO_START, COARSE, 0.1), store(rng, CHEAP_BY_SIZE, COARSE, 0.1)
    alone = crossing(ours, theirs, seed=1)
    more = {size: [*puts, []] for size, puts in ours.items()} | {2**28: [[1.0]] * 8}
    assert crossing(more, theirs, seed=1) == alone
    with pytest.raises(ValueError, match="no time"):
        crossing(ours | {256: [[0.0]] * 8}, theirs, seed=1)


def test_the_cross_check_is_a_pair_of_straight_lines():
    sizes = [*COARSE, *fine_sizes(50_000, 200_000)]
    rng = np.random.default_rng(7)
    ours, theirs = store(rng, CHEAP_TO_START, sizes, 0.02), store(rng, CHEAP_BY_SIZE, sizes, 0.02)
    found = crossing(ours, theirs, seed=1)
    assert found.affine_bytes == pytest.approx(TRUTH, rel=0.05)
    # A backend that gets dearer per byte above 256 KiB is no straight line, and the check says something else.
    bent = {size: puts * (1 if size < 2**18 else 4) for size, puts in theirs.items()}
    bent = {size: puts / (3 if size < 2**14 else 1) for size, puts in bent.items()}
    other = crossing(ours, bent, seed=1)
    assert not other.reliable or other.affine_disagrees


# --- properties ------------------------------------------------------------------------------------------------------

COSTS = st.tuples(st.floats(1e5, 1e7), st.floats(10, 1000).map(lambda mb: mb * MB_S))


def noisy(seed, cost, noise=0.1, trials=6, puts=3):
    return store(np.random.default_rng(seed), cost, COARSE, noise, trials, puts)


def flipped(found: Crossing) -> Crossing:
    other = {"a": "b", "b": "a", None: None}
    return Crossing(
        found.at_bytes,
        found.low,
        found.high,
        found.reliable,
        found.affine_bytes,
        found.why,
        other[found.below],
        other[found.above],
        found.smallest_bytes,
        found.largest_bytes,
    )


@EXAMPLES
@given(COSTS, COSTS, st.integers(0, 2**32))
def test_the_order_of_the_two_does_not_matter_and_the_seed_decides(a, b, seed):
    ours, theirs = noisy(1, a), noisy(2, b)
    found = crossing(ours, theirs, seed, resamples=60)
    assert crossing(ours, theirs, seed, resamples=60) == found
    assert crossing(theirs, ours, seed, resamples=60) == flipped(found)
    assert coarse_bracket(ours, theirs) == coarse_bracket(theirs, ours)


@EXAMPLES
@given(COSTS, COSTS, st.sampled_from([0.001, 1000.0]), st.sampled_from([2, 1000]))
def test_other_units_give_the_same_crossing(a, b, time_unit, size_unit):
    ours, theirs = noisy(1, a), noisy(2, b)
    found = crossing(ours, theirs, 1, resamples=60)
    scaled = crossing(
        {size * size_unit: puts * time_unit for size, puts in ours.items()},
        {size * size_unit: puts * time_unit for size, puts in theirs.items()},
        1,
        resamples=60,
    )
    assert (scaled.reliable, scaled.below, scaled.above, scaled.why) == (
        found.reliable,
        found.below,
        found.above,
        found.why,
    )
    for one, other in ((found.at_bytes, scaled.at_bytes), (found.low, scaled.low), (found.high, scaled.high)):
        assert (one is None) == (other is None)
        assert one is None or other / size_unit == pytest.approx(one, rel=0.02, abs=1)


@EXAMPLES
@given(COSTS, COSTS, st.floats(0.0, 1.0), st.integers(0, 1000))
def test_what_is_said_is_inside_the_measured_range_and_in_order(a, b, noise, seed):
    found = crossing(noisy(seed, a, noise), noisy(seed + 1, b, noise), seed, resamples=60)
    assert found.affine_bytes is None or COARSE[0] <= found.affine_bytes <= COARSE[-1]
    if found.reliable:
        assert COARSE[0] <= found.low <= found.at_bytes <= found.high <= COARSE[-1]
        assert {found.below, found.above} == {"a", "b"}
    else:
        assert (found.at_bytes, found.low, found.high) == (None, None, None)
        assert found.below == found.above


@EXAMPLES
@given(COSTS, st.floats(1.2, 10))
def test_parallel_costs_do_not_cross(cost, ratio):
    """A constant factor: parallel on the scale that a person reads the curves on."""
    ours = noisy(1, cost, noise=0.01)
    found = crossing(ours, {size: puts * ratio for size, puts in noisy(2, cost, noise=0.01).items()}, 1, resamples=60)
    assert (found.reliable, found.below, found.above) == (False, "a", "a")


@EXAMPLES
@given(COSTS, COSTS)
def test_without_noise_the_crossing_is_the_arithmetical_one(a, b):
    """Where the two lines cross well inside the range, or not at all."""
    sizes = sorted({*COARSE})
    ours, theirs = ({size: [[cost[0] + size / cost[1]]] * 5 for size in sizes} for cost in (a, b))
    bracket = coarse_bracket(ours, theirs)
    gap = 1 / a[1] - 1 / b[1]
    truth = (b[0] - a[0]) / gap if gap else math.inf
    if not 4 * COARSE[0] < truth < COARSE[-1] / 4:
        return
    assert bracket is not None
    assert bracket[0] < truth < bracket[1]
    for size in fine_sizes(*bracket):
        ours[size], theirs[size] = ([[cost[0] + size / cost[1]]] * 5 for cost in (a, b))
    found = crossing(ours, theirs, 1, resamples=60)
    # Two that differ by a few per mille everywhere need not be told apart.
    apart = abs(math.log(ours[COARSE[0]][0][0] / theirs[COARSE[0]][0][0]))
    if apart > 0.01 and abs(math.log(ours[COARSE[-1]][0][0] / theirs[COARSE[-1]][0][0])) > 0.01:
        assert found.reliable
        assert found.at_bytes == pytest.approx(truth, rel=0.05)


@EXAMPLES
@given(st.integers(1, 2**26), st.floats(1.0, 4.0))
def test_fine_sizes_are_inside_their_bracket_and_close_to_each_other(low, ratio):
    high = math.ceil(low * ratio) + 1
    if high / low > FINEST_STEP**7:
        return
    sizes = fine_sizes(low, high)
    assert all(low < size < high for size in sizes)
    assert len(sizes) == min(6, high - low - 1) or low < 100
    if low > 1000:
        assert all(one / other < FINEST_STEP for one, other in zip(sizes[1:], sizes, strict=False))


@pytest.mark.parametrize("low, high", [(0, 10), (10, 10), (20, 10), (1000, 10_000)])
def test_what_is_no_bracket_is_an_error(low, high):
    with pytest.raises(ValueError, match="bytes"):
        fine_sizes(low, high)


def test_a_bracket_is_as_wide_as_the_coarse_step_and_inside_the_range():
    rng = np.random.default_rng(8)
    sizes = [256 * 4**step for step in range(5)]  # up to 64 KiB: the truth, 100 kB, is above
    near_end = coarse_bracket(
        store(rng, CHEAP_TO_START, [*sizes, 2**17], 0.0), store(rng, CHEAP_BY_SIZE, [*sizes, 2**17], 0.0)
    )
    assert near_end is not None
    assert near_end[1] <= 2**17
    assert near_end[1] / near_end[0] == pytest.approx(BRACKET, rel=0.001)
    assert coarse_bracket(store(rng, CHEAP_TO_START, sizes, 0.0), store(rng, CHEAP_BY_SIZE, sizes, 0.0)) is None
