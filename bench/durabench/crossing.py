"""From which size on the other backend is the faster one: crossings of two cost curves, with intervals.

Measured in two passes: a coarse one over the whole range finds a bracket (`coarse_bracket`), a fine one puts six sizes
into it (`fine_sizes`). `crossing` then takes all sizes of both. It estimates where the difference of the medians
changes sign, on the log of the ratio over the log of the size, through a smoothing spline whose stiffness follows the
noise: one line from a coarse size to the next would be biased, and six noisy sizes joined by lines cross several times.

The unit is the trial: puts of one are not independent. Trial k of every size and of both backends belongs to round k,
and whole rounds are drawn again, so whatever slowed a round slows it in all sizes at once. Pure; numpy and scipy are
imported where they are needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from durabench.statistics import RESAMPLES, TAIL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Trials = Sequence[ArrayLike]
    Curve = Mapping[int, Trials]

FINE_SIZES = 6
FINEST_STEP = 1.26
"""Neighbours of the fine pass are at most this factor apart."""
BRACKET = 4.0
"""How wide a bracket is: the step of the coarse pass. Six sizes inside it are a factor of 1.22 apart."""
UNCERTAIN = 0.05
"""A larger part of resamples without a crossing, or with several, and there is no reliable crossing."""
FEWEST_TRIALS = 5
"""With fewer, drawing them again says nothing about the next one."""
NONE_RELIABLE = "no reliable crossing in the measured range"

_BENDS = 0.7
# How fast the slope of log(ratio) may change, per square root of an e-fold in size: costs of a fixed part and a
# bandwidth bend by at most 1/4 per e-fold squared, over a few e-folds; the rest is for pages and blocks. It sets the
# spline's stiffness against the noise.
_CLEARLY = 3.0  # standard errors by which a size contradicts
_QUIET = 1e-4  # two medians are never known better than to this part of each other
_GRID = 16  # points an octave at which the spline is looked at
_LOOK = 200  # resamples of the coarse pass, for its weights only

Side = Literal["a", "b"]


@dataclass(frozen=True)
class Crossing:
    """Where the faster of two backends changes, in bytes of payload.

    ``at_bytes`` with its two-sided 95 % interval ``low`` to ``high``, all None unless ``reliable``. ``below`` and
    ``above`` say who is faster at smaller and at larger sizes; the same twice where one is faster at every size that
    was measured, None where nobody can tell. ``affine_bytes`` is the cross-check: where two straight lines, fixed cost
    plus size by bandwidth, cross inside the measured range; None where they do not. ``why`` is a sentence without the
    names. ``smallest_bytes`` and ``largest_bytes`` are the measured range: the sizes that both have.
    """

    at_bytes: int | None
    low: int | None
    high: int | None
    reliable: bool
    affine_bytes: int | None
    why: str
    below: Side | None = None
    above: Side | None = None
    smallest_bytes: int | None = None
    largest_bytes: int | None = None

    @property
    def affine_disagrees(self) -> bool:
        """Whether the cross-check says something else than the interval: both must then be told."""
        if not self.reliable or self.low is None or self.high is None:
            return self.affine_bytes is not None and self.below is not None
        return self.affine_bytes is None or not self.low <= self.affine_bytes <= self.high


def coarse_bracket(a: Curve, b: Curve) -> tuple[int, int] | None:
    """Between which sizes to look closer: a factor of at most 4 around the crossing of a coarse pass, inside its range.

    ``a`` and ``b`` map a size in bytes to its trials, each an array of put latencies in one unit. None where the
    medians do not cross. Where they cross several times, the crossing that leaves the least on the wrong side.
    """
    import numpy as np

    seen = _difference(a, b, seed=0, resamples=_LOOK)
    if seen is None:
        return None
    grid, smooth = _smoothed(seen)
    at = _roots(grid, smooth[0], _signs(smooth[:1])[0])
    if not at.size:
        return None
    # The split whose two sides have most of one sign each: noise crosses beside it, not instead of it.
    sums = np.cumsum(smooth[0])
    best = float(max(at, key=lambda root: abs(sums[-1] - 2 * sums[np.searchsorted(grid, root) - 1])))
    lowest, highest = float(grid[0]), float(grid[-1])
    width = min(math.log(BRACKET), highest - lowest)
    low = min(max(best - width / 2, lowest), highest - width)
    return _bytes(low), _bytes(low + width)


def clearness(a: Curve, b: Curve) -> float:
    """How much of a coarse pass speaks for one crossing, 0 to 1: the part of its resamples that cross once, as the
    medians do. What to look at first, where there is no time for every bracket; no verdict.
    """
    import numpy as np

    seen = _difference(a, b, seed=0, resamples=_LOOK)
    if seen is None:
        return 0.0
    changes, alike = _compared(_signs(_smoothed(seen)[1]))
    return float(np.mean(alike[1:])) if changes[0] == 1 else 0.0


def fine_sizes(low: int, high: int) -> list[int]:
    """Six sizes inside ``low`` to ``high``, ends left out, each the same factor above the one before.

    Fewer where there are not six whole numbers. ValueError if that factor were more than 1.26, or the bracket is none.
    """
    if not 0 < low < high:
        raise ValueError(f"{low} to {high} bytes is no bracket")
    step = (high / low) ** (1 / (FINE_SIZES + 1))
    if step > FINEST_STEP:
        raise ValueError(
            f"six sizes between {low} and {high} bytes are a factor of {step:.3g} apart, not {FINEST_STEP}"
        )
    sizes = {round(low * step**number) for number in range(1, FINE_SIZES + 1)}
    return sorted(size for size in sizes if low < size < high)


def crossing(a: Curve, b: Curve, seed: int, resamples: int = RESAMPLES) -> Crossing:
    """The crossing of two backends from all their sizes, those of the fine pass included.

    ``a`` and ``b`` map a size in bytes to its trials, each an array of put latencies in one unit; sizes that only one
    has are left out, as are trials without a put. The same ``seed`` gives the same answer, and the two in the other
    order the same with its sides exchanged. ValueError for latencies that are not above 0.
    """
    seen = _difference(a, b, seed, resamples)
    if seen is None:
        return _unreliable("fewer than two sizes were measured in both")
    found = _decided(seen)
    ends = (_bytes(seen.log_sizes[0]), _bytes(seen.log_sizes[-1]))
    return replace(found, affine_bytes=_affine_crossing(seen), smallest_bytes=ends[0], largest_bytes=ends[1])


def _decided(seen: _Seen) -> Crossing:
    import numpy as np

    if seen.trials.min() < FEWEST_TRIALS:
        return _unreliable(f"{seen.trials.min()} trials of a size, and it takes {FEWEST_TRIALS}")
    grid, smooth = _smoothed(seen)
    signs = _signs(smooth)
    changes, alike = _compared(signs)
    below = _faster(signs[0, 0] or signs[0, -1])
    if below is None:
        return _unreliable("the medians are equal")
    if changes[0] > 1 or np.mean(alike[1:]) < 1 - UNCERTAIN:
        return _unreliable(_shares(changes, alike))
    if changes[0] == 0:
        odd = _contradicting(seen, None, below)
        return _unreliable(_other_way(odd)) if odd else _everywhere(below)
    roots = _first_roots(grid, smooth, signs)
    # A resample without a crossing has it beyond an end of the range; of several nobody knows which.
    beyond = np.where(signs[:, -1] == signs[0, -1], grid[0], grid[-1])
    places = np.where(changes == 0, beyond, roots)[(changes == 0) | alike]
    at = float(roots[0])
    low, high = (float(end) for end in np.quantile(places[1:], (TAIL, 1 - TAIL)))
    low, high = min(low, at), max(high, at)
    odd = _contradicting(seen, (low, high), below)
    if odd is not None:
        return _unreliable(_other_way(odd))
    why = f"{100 * float(np.mean(alike[1:])):.3g} % of {len(alike) - 1:,} resamples cross once, in this order"
    above: Side = "b" if below == "a" else "a"
    return Crossing(
        _bytes(at), _bytes(low), _bytes(high), reliable=True, affine_bytes=None, why=why, below=below, above=above
    )


# --- what is said ----------------------------------------------------------------------------------------------------


def _unreliable(why: str) -> Crossing:
    return Crossing(None, None, None, reliable=False, affine_bytes=None, why=f"{NONE_RELIABLE}: {why}")


def _everywhere(side: Side) -> Crossing:
    why = "no crossing: the same backend is faster at every size measured"
    return Crossing(None, None, None, reliable=False, affine_bytes=None, why=why, below=side, above=side)


def _shares(changes: Ints, alike: NDArray[np.bool_]) -> str:
    import numpy as np

    never, once = changes == 0, changes == 1
    one_sided = changes[0] == 0  # what was measured does not cross: then it matters who is in front
    kinds = {
        "do not cross": never & (alike | (not one_sided)),
        "have the other one in front everywhere": never & ~alike & one_sided,
        "cross several times": changes > 1,
        "cross once": once & (changes[0] != 1),
        "cross the other way": once & ~alike & (changes[0] == 1),
    }
    parts = [f"{100 * float(np.mean(rows[1:])):.2g} % {what}" for what, rows in kinds.items() if rows[1:].any()]
    return f"of {len(changes) - 1:,} resamples {', '.join(parts)}"


def _other_way(size_bytes: int | None) -> str:
    return f"at {size_bytes:,} bytes alone the order is clearly the other way round"


def _faster(sign: float) -> Side | None:
    """The sign of log(a / b): below 0 ``a`` takes less."""
    return None if sign == 0 else "a" if sign < 0 else "b"


def _bytes(log_size: float) -> int:
    return round(math.exp(log_size))


# --- the difference of the medians, size by size, and drawn again ----------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """``log_ratio``: log(median of a / median of b); the first row as measured, then one per resample."""

    log_sizes: Floats
    log_ratio: Floats
    error: Floats
    medians: tuple[Floats, Floats]
    trials: Ints


def _difference(a: Curve, b: Curve, seed: int, resamples: int) -> _Seen | None:
    import numpy as np

    both = {size: (_trials(a[size]), _trials(b[size])) for size in sorted(a.keys() & b.keys())}
    both = {size: trials for size, trials in both.items() if all(trials)}
    if len(both) < 2:
        return None
    draws = {
        count: _draws(count, seed, resamples) for count in {len(trials) for pair in both.values() for trials in pair}
    }
    medians = [np.array([_medians(pair[side], draws[len(pair[side])]) for pair in both.values()]).T for side in (0, 1)]
    ratio = np.log(medians[0]) - np.log(medians[1])
    counts = [min(map(len, pair)) for pair in both.values()]
    widened = ratio[0] + (ratio - ratio[0]) * np.array([_widening(count) for count in counts])
    error = np.maximum(np.std(widened[1:], axis=0), _QUIET)
    sizes = np.log(np.array(list(both), dtype=np.float64))
    return _Seen(sizes, widened, error, (medians[0][0], medians[1][0]), np.array(counts))


def _trials(trials: Trials) -> list[Floats]:
    import numpy as np

    arrays = [np.asarray(trial, dtype=np.float64) for trial in trials]
    if any(array.size and not array.min() > 0 for array in arrays):
        raise ValueError("a put takes more than no time")
    return [array for array in arrays if array.size]


def _draws(trials: int, seed: int, resamples: int) -> Ints:
    """How often each round is drawn, the first row as measured. One draw for all sizes with this many rounds."""
    import numpy as np

    rng = np.random.default_rng([seed, trials])
    drawn = rng.multinomial(trials, np.full(trials, 1 / trials), size=resamples)
    return np.vstack([np.ones((1, trials), dtype=np.int64), drawn])


def _medians(trials: Sequence[Floats], draws: Ints) -> Floats:
    """The median of all puts of the trials drawn, for each row of ``draws``. Every trial counts the same: one that was
    given up early had fewer puts because they were slow.
    """
    import numpy as np

    values = np.concatenate(trials)
    order = np.argsort(values, kind="stable")
    owners = np.repeat(np.arange(len(trials)), [trial.size for trial in trials])[order]
    values = values[order]
    each = np.array([1 / trial.size for trial in trials])
    upto = np.cumsum((draws * each)[:, owners], axis=1)
    half = upto[:, -1:] / 2
    close = 1e-9 * half
    lower = np.argmax(upto > half - close, axis=1)
    upper = np.argmax(upto > half + close, axis=1)
    middle: Floats = (values[lower] + values[upper]) / 2
    return middle


def _widening(trials: int) -> float:
    """By how much a bootstrap over so few trials must be stretched to say 95 % (Hesterberg 2015, "What teachers should
    know about the bootstrap", 5.3): it draws with the spread over n instead of n - 1, and the normal's tail instead of
    Student's.
    """
    from scipy.special import ndtri, stdtrit

    if trials < 2:
        return 1.0
    return float(stdtrit(trials - 1, TAIL) / ndtri(TAIL)) * math.sqrt(trials / (trials - 1))


# --- where the difference changes sign -------------------------------------------------------------------------------


def _smoothed(seen: _Seen) -> tuple[Floats, Floats]:
    """log(size) over the whole range, and the spline through each row of ``log_ratio`` there."""
    import numpy as np

    first, last = seen.log_sizes[0], seen.log_sizes[-1]
    grid = np.linspace(first, last, 2 + math.ceil(_GRID * (last - first) / math.log(2)))
    # Half of each weight is what all sizes have in common: a size whose few trials happen to agree is not that certain.
    common = np.exp(np.mean(np.log(seen.error * np.sqrt(seen.trials))))
    error = np.sqrt(seen.error * common / np.sqrt(seen.trials))
    return grid, seen.log_ratio @ _spline(seen.log_sizes, error, grid).T


def _spline(knots: Floats, error: Floats, at: Floats) -> Floats:
    """The natural cubic smoothing spline as a matrix: values at ``knots``, each with its standard error, to values at
    ``at`` (Green & Silverman 1994, 2.3).
    """
    import numpy as np

    gaps, inner = np.diff(knots), len(knots) - 2
    second = np.zeros((len(knots), inner))
    tension = np.zeros((inner, inner))
    for column in range(inner):
        second[column : column + 3, column] = (
            1 / gaps[column],
            -1 / gaps[column] - 1 / gaps[column + 1],
            1 / gaps[column + 1],
        )
        tension[column, column] = (gaps[column] + gaps[column + 1]) / 3
        if column + 1 < inner:
            tension[column, column + 1] = tension[column + 1, column] = gaps[column + 1] / 6
    bending = np.linalg.solve(tension, second.T)
    smooth = np.linalg.inv(np.eye(len(knots)) + (error[:, None] / _BENDS) ** 2 * (second @ bending))
    curvature = np.vstack([np.zeros(len(knots)), bending @ smooth, np.zeros(len(knots))])
    left = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(gaps) - 1)
    width = gaps[left][:, None]
    up, down = at[:, None] - knots[left][:, None], knots[left + 1][:, None] - at[:, None]
    chord = (up * smooth[left + 1] + down * smooth[left]) / width
    bow = (1 + up / width) * curvature[left + 1] + (1 + down / width) * curvature[left]
    matrix: Floats = chord - up * down * bow / 6
    return matrix


def _signs(rows: Floats) -> Floats:
    """The sign at every point; one that is exactly 0 has the sign before it."""
    import numpy as np

    signs = np.sign(rows)
    last = np.maximum.accumulate(np.where(signs != 0, np.arange(rows.shape[1]), 0), axis=1)
    return np.take_along_axis(signs, last, axis=1)


def _roots(grid: Floats, row: Floats, signs: Floats) -> Floats:
    """Every place where ``row`` changes its sign."""
    import numpy as np

    at = np.flatnonzero(signs[1:] * signs[:-1] < 0)
    before, after = row[at], row[at + 1]
    return grid[at] + (grid[at + 1] - grid[at]) * before / (before - after)


def _compared(signs: Floats) -> tuple[Ints, NDArray[np.bool_]]:
    """How often each row changes its sign, and whether it does as the first one, in the same order."""
    import numpy as np

    changes = np.asarray(np.count_nonzero(signs[:, 1:] * signs[:, :-1] < 0, axis=1), dtype=np.int64)
    return changes, (changes == changes[0]) & (signs[:, -1] == signs[0, -1])


def _first_roots(grid: Floats, rows: Floats, signs: Floats) -> Floats:
    """Where each row changes its sign first; of no meaning in a row that does not."""
    import numpy as np

    first = np.argmax(signs[:, 1:] * signs[:, :-1] < 0, axis=1)
    each = np.arange(len(rows))
    before, after = rows[each, first], rows[each, first + 1]
    crosses = before != after
    share = np.divide(before, before - after, where=crosses, out=np.zeros_like(before))
    roots: Floats = grid[first] + (grid[first + 1] - grid[first]) * share
    return roots


def _contradicting(seen: _Seen, interval: tuple[float, float] | None, below: Side) -> int | None:
    """A size outside the interval whose own medians are clearly in the other order: no smooth curve may hide it."""
    expected = -1.0 if below == "a" else 1.0
    for log_size, ratio, error in zip(seen.log_sizes, seen.log_ratio[0], seen.error, strict=True):
        if interval is not None and interval[0] <= log_size <= interval[1]:
            continue
        beyond = interval is not None and log_size > interval[1]
        if (-expected if beyond else expected) * ratio < -_CLEARLY * error:
            return _bytes(log_size)
    return None


# --- the cross-check: fixed cost plus size by bandwidth --------------------------------------------------------------


def _affine_crossing(seen: _Seen) -> int | None:
    """Where the two fitted lines cross, if inside the measured range."""
    import numpy as np

    sizes = np.exp(seen.log_sizes)
    (fixed_a, slope_a), (fixed_b, slope_b) = (_affine(sizes, medians) for medians in seen.medians)
    if slope_a == slope_b:
        return None
    at = (fixed_b - fixed_a) / (slope_a - slope_b)
    return round(at) if sizes[0] <= at <= sizes[-1] else None


def _affine(sizes: Floats, medians: Floats) -> tuple[float, float]:
    """Fixed cost and cost per byte with the least sum of absolute relative errors, by reweighting: one odd size, or a
    step in the curve, does not turn it.
    """
    import numpy as np

    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / medians[:, None]
    weights: Floats = np.ones(len(sizes), dtype=np.float64)
    fitted: Floats = np.zeros(2, dtype=np.float64)
    for _ in range(20):
        fitted = np.asarray(np.linalg.lstsq(rows * weights[:, None], weights, rcond=None)[0], dtype=np.float64)
        weights = np.asarray(1 / np.sqrt(np.maximum(np.abs(rows @ fitted - 1), 1e-3)), dtype=np.float64)
    return float(fitted[0]), float(fitted[1])
