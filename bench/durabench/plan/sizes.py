"""The sizes of a sweep, and sizes as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

STEP = 4
"""From one size of the coarse pass to the next."""
BIN = 1.26
"""From one edge of a histogram to the next: as fine as the fine pass."""


def grid(low: int, high: int) -> list[int]:
    """From ``low`` up by the factor 4, and ``high``. ValueError unless 0 < low < high."""
    if not 0 < low < high:
        message = f"sizes go from a smaller to a larger one, above 0: {low}..{high} does not"
        raise ValueError(message)
    sizes = [low]
    while sizes[-1] * STEP <= high:
        sizes.append(sizes[-1] * STEP)
    if sizes[-1] != high:
        # Neighbours closer than a factor of 2 tell nothing apart.
        sizes = [*sizes[: len(sizes) - (len(sizes) > 1 and high < 2 * sizes[-1])], high]
    return sizes


def histogram(sizes: Iterable[int]) -> list[list[int]]:
    """How many values there are from each edge up to the next: [edge, count], edges a factor of 1.26 apart, an empty
    value under 0.
    """
    counts: dict[int, int] = {}
    for size in sizes:
        edge = math.ceil(BIN ** math.floor(math.log(size) / math.log(BIN) + 1e-9)) if size else 0
        counts[edge] = counts.get(edge, 0) + 1
    return [[edge, count] for edge, count in sorted(counts.items())]


def text(size_bytes: float) -> str:
    """``512 B``, ``2 KiB``, ``1.5 MiB``: three significant digits."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor * 0.9995:
            return f"{_digits(size_bytes / factor)} {unit}"
    return f"{_digits(size_bytes)} B"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
