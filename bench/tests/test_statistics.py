"""Bounds, quantiles and intervals: published figures, exact reference implementations, and coverage by simulation."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench.statistics import (
    boschloo,
    bound_text,
    difference_by_trial,
    holm,
    loss_rate,
    permutation,
    quantile,
    quantile_by_trial,
    quantile_interval,
    ratio_by_trial,
    samples_for_quantile,
    smallest_permutation_p,
    trials_for_bound,
)

EXAMPLES = settings(deadline=None, derandomize=True)
COUNTS = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


# --- loss rates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials, percent", [(5, 52.2), (36, 9.74), (300, 1.22), (368, 0.997), (3, 70.8)])
def test_zero_losses_bound_the_rate_as_published(trials, percent):
    low, high = loss_rate(0, trials)
    assert low == 0
    assert 100 * high == pytest.approx(percent, rel=2e-3)
    assert high == 1 - 0.025 ** (1 / trials)


@EXAMPLES
@given(COUNTS)
def test_the_interval_is_the_exact_one(counts):
    from scipy.stats import binomtest

    losing, trials = counts
    exact = binomtest(losing, trials).proportion_ci(0.95, "exact")
    assert loss_rate(losing, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


@EXAMPLES
@given(COUNTS)
def test_the_interval_holds_the_rate_and_moves_with_it(counts):
    losing, trials = counts
    low, high = loss_rate(losing, trials)
    assert 0 <= low <= losing / trials <= high <= 1
    if losing < trials:
        assert loss_rate(losing + 1, trials) > (low, high)
    assert loss_rate(losing, trials + 1)[1] < high
    mirrored = loss_rate(trials - losing, trials)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.3, 0.5])
def test_the_interval_covers_the_true_rate_in_at_least_95_of_100(rate):
    losing = np.random.default_rng(1).binomial(40, rate, 4000)
    covered = [low <= rate <= high for low, high in map(loss_rate, losing.tolist(), [40] * len(losing))]
    assert np.mean(covered) >= 0.95


def test_without_trials_nothing_is_known():
    assert loss_rate(0, 0) == (0.0, 1.0)
    assert bound_text(0, 0) == "–"


@pytest.mark.parametrize("losing, trials", [(-1, 3), (4, 3)])
def test_what_is_no_count_is_an_error(losing, trials):
    with pytest.raises(ValueError, match="no count"):
        loss_rate(losing, trials)
    with pytest.raises(ValueError, match="no count"):
        boschloo(losing, trials, 1, 2)


def test_a_bound_of_one_percent_needs_368_clean_trials():
    assert trials_for_bound(0.01) == 368
    for rate in (0.001, 0.01, 0.1, 0.5, 0.71):
        trials = trials_for_bound(rate)
        assert loss_rate(0, trials)[1] <= rate + 1e-12
        assert trials == 1 or loss_rate(0, trials - 1)[1] > rate
    with pytest.raises(ValueError, match="between"):
        trials_for_bound(0)


@pytest.mark.parametrize(
    "losing, trials, text",
    [
        (0, 3, "≤ 71 %"),
        (0, 5, "≤ 52 %"),
        (0, 36, "≤ 9.7 %"),
        (0, 300, "≤ 1.2 %"),
        (0, 368, "≤ 1 %"),
        (6, 20, "12–54 %"),
        (3, 3, "29–100 %"),
        (1, 1000, "0.0025–0.56 %"),
    ],
)
def test_a_bound_is_printed_with_two_digits(losing, trials, text):
    assert bound_text(losing, trials) == text


def test_the_comparison_of_two_loss_rates_is_exact():
    """The sample of the write-up that the sources quote: 6 of 20 before a fix, 0 of 30 after.

    The reference is enumerated here: the supremum, over the common rate, of the probability of a table whose one-sided
    Fisher P is at most the observed one; twice that. (A quoted 0.0016 is what the transposed table gives, where the two
    trial counts are not what is held fixed.)
    """
    from scipy.stats import binom, fisher_exact

    fisher = np.array(
        [[fisher_exact([[a, b], [20 - a, 30 - b]], "greater").pvalue for b in range(31)] for a in range(21)]
    )
    as_extreme = fisher <= fisher[6, 0] * (1 + 1e-9)
    chance = [
        (np.outer(binom.pmf(range(21), 20, rate), binom.pmf(range(31), 30, rate)) * as_extreme).sum()
        for rate in np.linspace(0.001, 0.999, 999)
    ]
    assert boschloo(6, 20, 0, 30) == pytest.approx(2 * max(chance), rel=1e-3)
    assert boschloo(6, 20, 0, 30) == pytest.approx(0.00277, rel=0.01)


def test_a_permutation_is_what_scipy_says():
    from scipy.stats import permutation_test

    rng = np.random.default_rng(3)
    for n, m in ((3, 4), (5, 5), (6, 4)):
        ours, theirs = rng.integers(0, 5, n) / 4, rng.integers(0, 3, m) / 4
        mean = permutation_test((ours, theirs), lambda a, b, axis: abs(a.mean(axis) - b.mean(axis)),
                                vectorized=True, alternative="greater", n_resamples=np.inf)  # fmt: skip
        assert permutation(ours.tolist(), theirs.tolist(), seed=0) == pytest.approx(mean.pvalue, abs=1e-9)


def test_many_recordings_are_dealt_out_again_by_the_seed():
    ours, theirs = [1.0] * 20 + [0.0] * 20, [0.0] * 40
    assert permutation(ours, theirs, seed=1) == permutation(ours, theirs, seed=1) < 0.001
    assert permutation(theirs, theirs, seed=1) == 1.0
    assert permutation([], theirs, seed=1) == 1.0


@pytest.mark.parametrize("size, other", [(1, 1), (2, 2), (3, 3), (4, 4), (3, 5), (2, 9)])
def test_what_a_permutation_can_say_at_most_is_known_beforehand(size, other):
    assert permutation([1.0] * size, [0.0] * other, seed=0) == pytest.approx(smallest_permutation_p(size, other))
    assert smallest_permutation_p(0, other) == 1.0


def test_the_comparison_does_not_depend_on_the_order_and_equal_rates_do_not_differ():
    assert boschloo(6, 20, 0, 30) == pytest.approx(boschloo(0, 30, 6, 20), rel=1e-6)
    assert boschloo(2, 10, 4, 20) == 1.0
    assert boschloo(0, 0, 4, 20) == 1.0


# --- quantiles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q, needed", [(0.95, 72), (0.99, 368), (0.999, 3688)])
def test_a_quantile_is_not_printed_from_too_few_samples(q, needed):
    assert samples_for_quantile(q) == needed
    assert quantile(range(needed - 1), q) is None
    assert quantile_interval(range(needed - 1), q) is None
    enough = quantile_interval(range(needed), q)
    assert enough is not None
    assert enough.high == needed - 1
    assert quantile(range(needed), q) == enough.value


def test_a_median_is_printed_from_few_samples_without_an_interval():
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([], 0.5) is None
    few = quantile_interval([3, 1, 2, 5, 4], 0.5)
    assert few is not None
    assert (few.value, few.low, few.high) == (3, None, None)
    six = quantile_interval([6, 3, 1, 2, 5, 4], 0.5)
    assert six is not None
    assert (six.low, six.high) == (1, 6)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 0.95])
def test_the_interval_of_a_quantile_is_that_of_the_binomial(q):
    from scipy.stats import quantile_test

    samples = np.random.default_rng(2).lognormal(size=400)
    found = quantile_interval(samples, q)
    exact = quantile_test(samples, q=0, p=q).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("q, true", [(0.5, 0.6931), (0.95, 2.9957)])
def test_the_interval_of_a_quantile_covers_it_in_at_least_95_of_100(q, true):
    rng = np.random.default_rng(3)
    found = [quantile_interval(rng.exponential(size=100), q) for _ in range(2000)]
    covered = [f is not None and f.low is not None and f.high is not None and f.low <= true <= f.high for f in found]
    assert np.mean(covered) >= 0.94  # 0.95 less three standard errors of the simulation


@EXAMPLES
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.floats(0.05, 0.95))
def test_a_quantile_lies_inside_its_interval(samples, q):
    found = quantile_interval(samples, q)
    if found is None:
        assert len(samples) < samples_for_quantile(q)
        return
    assert found.low is None or min(samples) <= found.low <= found.value
    assert found.high is None or found.value <= found.high <= max(samples)


# --- intervals by trial ----------------------------------------------------------------------------------------------


def test_the_interval_by_trial_is_wider_than_that_by_put_where_trials_differ():
    rng = np.random.default_rng(4)
    trials = [rng.normal(level, 0.1, 50) for level in rng.normal(10, 1, 12)]
    by_trial = quantile_by_trial(trials, 0.5, seed=1)
    by_put = quantile_interval(np.concatenate(trials), 0.5)
    assert by_trial is not None
    assert by_put is not None
    assert by_trial.value == by_put.value
    assert by_trial.high - by_trial.low > 1.5 * (by_put.high - by_put.low)


def test_the_interval_by_trial_is_repeatable_and_covers():
    rng = np.random.default_rng(5)
    covered = 0
    for seed in range(60):
        trials = [rng.normal(level, 0.1, 20) for level in rng.normal(10, 1, 15)]
        found = quantile_by_trial(trials, 0.5, seed=seed, resamples=200)
        assert found == quantile_by_trial(trials, 0.5, seed=seed, resamples=200)
        covered += found.low <= 10 <= found.high
    assert covered >= 50


def test_one_trial_says_nothing_about_the_next():
    one = quantile_by_trial([[1, 2, 3]], 0.5, seed=1)
    assert (one.value, one.low, one.high) == (2, None, None)
    assert quantile_by_trial([], 0.5, seed=1) is None
    assert quantile_by_trial([[], []], 0.5, seed=1) is None
    assert quantile_by_trial([[1] * 10] * 3, 0.99, seed=1) is None


def test_the_ratio_of_two_medians():
    rng = np.random.default_rng(6)
    ours = [2.2 * rng.lognormal(0, 0.1, 40) for _ in range(10)]
    theirs = [2.0 * rng.lognormal(0, 0.1, 40) for _ in range(10)]
    ratio = ratio_by_trial(ours, theirs, 0.5, seed=1)
    assert ratio.low < 1.1 < ratio.high
    assert 1 < ratio.low < ratio.value < ratio.high < 1.2
    assert ratio_by_trial(ours, [], 0.5, seed=1) is None
    assert ratio_by_trial(ours, [[0], [0]], 0.5, seed=1) is None
    assert ratio_by_trial(ours[:1], theirs, 0.5, seed=1).low is None


def test_the_usual_bound_costs_no_heavy_import():
    code = "import sys, durabench.statistics as s; s.bound_text(0, 3), s.loss_rate(3, 3); print('scipy' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "False"


# --- two sides held against each other


def test_boschloo_is_what_scipy_says():
    from scipy.stats import boschloo_exact

    rng = random.Random(5)
    for _ in range(12):
        n, m = rng.randint(1, 12), rng.randint(1, 12)
        a, b = rng.randint(0, n), rng.randint(0, m)
        if a * m != b * n:
            theirs = boschloo_exact([[a, b], [n - a, m - b]], alternative="two-sided").pvalue
            assert boschloo(a, n, b, m) == pytest.approx(theirs, rel=1e-6)


def test_boschloo_of_a_thousand_trials_is_told():
    assert 1e-4 < boschloo(5, 1000, 20, 1000) < 0.01
    assert boschloo(0, 1000, 0, 1000) == 1


def test_holm_adjusts_for_how_many_there_are():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([]) == []


def test_a_difference_of_medians_is_drawn_by_trial():
    ours = [[10 + at, 12 + at, 14 + at] for at in range(6)]
    theirs = [[1 + at, 3 + at, 5 + at] for at in range(6)]
    found = difference_by_trial(ours, theirs, 0.5, seed=1)
    assert found.value == 9
    assert found.low < 9 < found.high
    assert found == difference_by_trial(ours, theirs, 0.5, seed=1)
    assert difference_by_trial(ours, [], 0.5, seed=1) is None
    alone = difference_by_trial(ours[:1], theirs, 0.5, seed=1)
    assert (alone.low, alone.high) == (None, None)
