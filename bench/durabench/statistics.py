"""What n trials can and cannot say: exact bounds for loss rates, quantiles with intervals, intervals by trial.

All intervals are two-sided, 95 %. A zero is printed with its bound, a quantile only from as many samples as an interval
for it takes, and never a mean with its deviation: latencies and losses are not normal. scipy is imported only where it
is needed; the bound of the usual result, no loss at all, has a closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Groups = Sequence[ArrayLike]
    Pick = Callable[[NDArray[np.float64]], float]

TAIL = 0.025
"""What each end of a two-sided 95 % interval leaves out."""
RESAMPLES = 1000
DEALS = 10_000
"""Up to so many ways to deal values out again all are counted, and of more so many are drawn."""


@dataclass(frozen=True)
class Interval:
    """A value with its two-sided 95 % interval; an end is None where the samples do not reach that far."""

    value: float
    low: float | None
    high: float | None


# --- loss rates: the unit is the trial ------------------------------------------------------------------------------


def loss_rate(losing: int, trials: int) -> tuple[float, float]:
    """The exact (Clopper-Pearson) two-sided 95 % interval of a rate seen as ``losing`` of ``trials``.

    (0, 1) for no trial at all. ValueError unless 0 <= losing <= trials.
    """
    if not 0 <= losing <= trials:
        raise ValueError(f"{losing} of {trials} trials is no count")
    if trials == 0:
        return 0.0, 1.0
    if losing == 0:
        return 0.0, 1 - TAIL ** (1 / trials)
    if losing == trials:
        return TAIL ** (1 / trials), 1.0
    from scipy.special import betaincinv

    low = betaincinv(losing, trials - losing + 1, TAIL)
    high = betaincinv(losing + 1, trials - losing, 1 - TAIL)
    return float(low), float(high)


def trials_for_bound(rate: float) -> int:
    """How many trials without any loss bound the loss rate by ``rate`` (0 < rate < 1): 368 for 1 %."""
    if not 0 < rate < 1:
        raise ValueError(f"a bound is between 0 and 1, not {rate}")
    return math.ceil(math.log(TAIL) / math.log1p(-rate) - 1e-9)


def bound_text(losing: int, trials: int) -> str:
    """The interval as a cell prints it: ``≤ 71 %`` for 0 of 3, ``5.7–44 %`` for 4 of 20, a dash without trials."""
    if trials == 0:
        return "–"
    low, high = loss_rate(losing, trials)
    return f"≤ {_percent(high)} %" if losing == 0 else f"{_percent(low)}–{_percent(high)} %"


def _percent(rate: float) -> str:
    """Two significant digits, never in scientific notation."""
    return f"{float(f'{100 * rate:.2g}'):.12g}"


def boschloo(losing: int, trials: int, other_losing: int, other_trials: int) -> float:
    """P of a difference between two loss rates as large as this by chance: Boschloo's exact test, two-sided.

    1.0 where either has no trials. ValueError unless both are counts. Our own, and held against scipy's by a test,
    because scipy's takes a minute where each has a thousand trials, and a comparison makes a hundred tests.
    """
    for count, of in ((losing, trials), (other_losing, other_trials)):
        if not 0 <= count <= of:
            raise ValueError(f"{count} of {of} trials is no count")
    if not trials or not other_trials or losing * other_trials == other_losing * trials:
        return 1.0
    if losing * other_trials > other_losing * trials:
        losing, trials, other_losing, other_trials = other_losing, other_trials, losing, trials
    return min(1.0, 2 * _boschloo_less(losing, trials, other_losing, other_trials))


def _boschloo_less(losing: int, trials: int, other_losing: int, other_trials: int) -> float:
    """One-sided, for a rate that is lower than the other: the largest probability, over every common rate, of a table
    that Fisher's test finds as extreme as this one.
    """
    import numpy as np
    from scipy.special import gammaln

    both = trials + other_trials
    log_factorial = gammaln(np.arange(both + 1) + 1.0)

    def log_choose(n: int, k: NDArray[np.int_]) -> NDArray[np.float64]:
        return np.asarray(log_factorial[n] - log_factorial[k] - log_factorial[n - k])

    def tails(total: int) -> NDArray[np.float64]:
        """Fisher's p of every table with so many losing trials in all."""
        here = np.arange(max(0, total - other_trials), min(total, trials) + 1)
        whole = log_choose(both, np.array(total))
        return np.cumsum(np.exp(log_choose(trials, here) + log_choose(other_trials, total - here) - whole))

    seen = tails(losing + other_losing)[losing - max(0, losing + other_losing - other_trials)] * (1 + 1e-9)
    # Of the tables with the same total, those as extreme are a tail: its probability is the largest Fisher p in it.
    extreme = np.array([max(tail[tail <= seen], default=0.0) for tail in map(tails, range(both + 1))])
    totals = np.arange(both + 1)
    weights = log_choose(both, totals)

    def probability(rates: NDArray[np.float64]) -> NDArray[np.float64]:
        logs = totals * np.log(rates)[:, None] + (both - totals) * np.log1p(-rates)[:, None]
        return np.asarray(np.exp(logs + weights) @ extreme)

    low, high = 0.0, 1.0
    for _ in range(3):  # every round looks closer at the neighbourhood of the largest
        rates = np.linspace(low, high, 402)[1:-1]
        found = probability(rates)
        at, step = int(found.argmax()), (high - low) / 401
        low, high = max(0.0, rates[at] - step), min(1.0, rates[at] + step)
    return float(found.max())


def permutation(values: Sequence[float], others: Sequence[float], seed: int) -> float:
    """P of a difference between two means as large as this by chance, two-sided: of all ways to deal the values out
    again, how many differ as much. Drawn with ``seed`` where there are too many ways to count; 1.0 where a side is
    empty.
    """
    import numpy as np

    if not values or not others:
        return 1.0
    both = np.asarray([*values, *others], dtype=np.float64)
    size, total = len(values), float(both.sum())

    def difference(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.abs(sums / size - (total - sums) / len(others)))

    seen = difference(both[:size].sum(keepdims=True))[0] - 1e-9
    if math.comb(len(both), size) <= DEALS:
        every = np.array([both[list(chosen)].sum() for chosen in combinations(range(len(both)), size)])
        return float(np.mean(difference(every) >= seen))
    rng = np.random.default_rng(seed)
    drawn = np.array([rng.permutation(both)[:size].sum() for _ in range(DEALS)])
    return float((1 + np.count_nonzero(difference(drawn) >= seen)) / (1 + DEALS))


def smallest_permutation_p(size: int, other: int) -> float:
    """The smallest p that `permutation` can give for so many values on either side: 0.029 for 4 and 4."""
    return min(1.0, (2 if size == other else 1) / math.comb(size + other, size)) if size and other else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p adjusted for how many there are, by Holm: how likely the smallest of so many would be by chance alone."""
    adjusted = [1.0] * len(p_values)
    worst = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        worst = max(worst, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = worst
    return adjusted


# --- quantiles: only from as many samples as an interval for them takes ----------------------------------------------


def samples_for_quantile(q: float) -> int:
    """The fewest samples whose largest one is above quantile ``q`` with 97.5 %: 72 for p95, 368 p99, 3688 p99.9.

    1 for the median and below: those are printed whatever their interval.
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile is between 0 and 1, not {q}")
    return math.ceil(math.log(TAIL) / math.log(q) - 1e-9) if q > 0.5 else 1


def quantile(samples: ArrayLike, q: float) -> float | None:
    """Quantile ``q`` of ``samples``, in their unit; None where they are too few (`samples_for_quantile`)."""
    import numpy as np

    values = np.asarray(samples)
    return float(np.quantile(values, q)) if values.size >= samples_for_quantile(q) else None


def quantile_interval(samples: ArrayLike, q: float) -> Interval | None:
    """Quantile ``q`` with its distribution-free interval: two of the samples themselves. None from too few."""
    import numpy as np
    from scipy.special import bdtr

    value = quantile(samples, q)
    if value is None:
        return None
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    # below[k] is the probability that at most k samples are below the quantile.
    below = bdtr(np.arange(ordered.size, dtype=np.float64), ordered.size, q)
    low = int(np.searchsorted(below, TAIL, side="right")) - 1
    high = int(np.searchsorted(below, 1 - TAIL, side="left"))
    return Interval(
        value,
        float(ordered[low]) if low >= 0 else None,
        float(ordered[high]) if high < ordered.size else None,
    )


# --- intervals by trial: puts of one trial are not independent --------------------------------------------------------


def quantile_by_trial(trials: Groups, q: float, seed: int, resamples: int = RESAMPLES) -> Interval | None:
    """Quantile ``q`` of all samples of all trials, its interval by drawing whole trials again. None if too few samples.

    The ends are None with fewer than two trials: nothing can then be said about the next one.
    """
    import numpy as np

    groups = _groups(trials)
    value = quantile(np.concatenate(groups), q) if groups else None
    if value is None:
        return None
    low, high = (
        _spread(_resampled(groups, q, np.random.default_rng(seed), resamples)) if len(groups) > 1 else (None, None)
    )
    return Interval(value, low, high)


def ratio_by_trial(trials: Groups, others: Groups, q: float, seed: int, resamples: int = RESAMPLES) -> Interval | None:
    """Quantile ``q`` of ``trials`` divided by that of ``others``, its interval by drawing whole trials of both again.

    None if either has too few samples, or if the divisor is 0.
    """
    import numpy as np

    ours, theirs = _groups(trials), _groups(others)
    if not ours or not theirs:
        return None
    above, below = quantile(np.concatenate(ours), q), quantile(np.concatenate(theirs), q)
    if above is None or not below:
        return None
    if min(len(ours), len(theirs)) < 2:
        return Interval(above / below, None, None)
    rng = np.random.default_rng(seed)
    ratios = _resampled(ours, q, rng, resamples) / _resampled(theirs, q, rng, resamples)
    return Interval(above / below, *_spread(ratios))


def difference_by_trial(
    trials: Groups, others: Groups, q: float, seed: int, resamples: int = RESAMPLES
) -> Interval | None:
    """Quantile ``q`` of ``trials`` less that of ``others``, its interval by drawing whole trials of both again.

    None if either has too few samples; the ends are None with fewer than two trials of either.
    """
    import numpy as np

    ours, theirs = _groups(trials), _groups(others)
    if not ours or not theirs:
        return None
    one, other = quantile(np.concatenate(ours), q), quantile(np.concatenate(theirs), q)
    if one is None or other is None:
        return None
    if min(len(ours), len(theirs)) < 2:
        return Interval(one - other, None, None)
    rng = np.random.default_rng(seed)
    differences = _resampled(ours, q, rng, resamples) - _resampled(theirs, q, rng, resamples)
    return Interval(one - other, *_spread(differences))


def _groups(trials: Groups) -> list[NDArray[np.float64]]:
    import numpy as np

    arrays = [np.asarray(trial, dtype=np.float64) for trial in trials]
    return [array for array in arrays if array.size]


def _resampled(
    groups: Sequence[NDArray[np.float64]], q: float, rng: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    import numpy as np

    drawn = rng.integers(0, len(groups), size=(resamples, len(groups)))
    samples = np.concatenate(groups)
    order = np.argsort(samples, kind="stable")
    samples = samples[order]
    group_of = np.repeat(np.arange(len(groups)), [group.size for group in groups])[order]
    found = np.empty(resamples)
    for number, row in enumerate(drawn):
        # How many samples are at or below each one, were every group there as often as it was drawn: sorting once is
        # enough for all resamples.
        below = np.cumsum(np.bincount(row, minlength=len(groups))[group_of])
        wanted = q * (below[-1] - 1)
        low, high = np.searchsorted(below, (math.floor(wanted), math.ceil(wanted)), side="right")
        found[number] = samples[low] + (samples[high] - samples[low]) * (wanted - math.floor(wanted))
    return found


def _spread(values: NDArray[np.float64]) -> tuple[float, float]:
    import numpy as np

    low, high = np.quantile(values, (TAIL, 1 - TAIL))
    return float(low), float(high)
