"""The raw rows of folders, small enough to travel in a page: by column, a word once, a constant once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from durabench.row import ROW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durabench.row import Row

LIMIT_BYTES = 450_000
"""Of JSON. What does not fit is told, with how many rows it is; losing rows come first."""
_LEFT_OUT = ("attempt", "rows", "samples_at", "samples_n", "replay", "why", "started", "position", "victim", "mount")
COLUMNS = tuple(name for name in ROW if name not in _LEFT_OUT)


class Rows:
    """Collects rows as folders are read, without keeping more of them than can be shown."""

    def __init__(self) -> None:
        self.total = 0
        self._losing: list[tuple[Any, ...]] = []
        self._others: list[tuple[Any, ...]] = []

    def row(self, row: Row, *, losing: bool) -> None:
        """Take one row; ``losing`` ones are the last to be left out."""
        self.total += 1
        kept = self._losing if losing else self._others
        if len(kept) < LIMIT_BYTES // 16:  # no row takes less
            kept.append(tuple(_short(row.get(name)) for name in COLUMNS))

    def compact(self) -> dict[str, Any]:
        """``{"columns", "rows", "total"}``: column → {"all": value}, {"words", "at"} or a list, of so many rows."""
        rows = [*self._losing, *self._others]
        shown = len(rows)
        columns = _columns(rows)
        while shown > 1 and (size := len(json.dumps(columns, separators=(",", ":")))) > LIMIT_BYTES:
            shown = min(shown - 1, int(shown * LIMIT_BYTES / size * 0.97))
            columns = _columns(rows[:shown])
        return {"columns": columns, "rows": shown, "total": self.total}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _columns(rows: Sequence[tuple[Any, ...]]) -> dict[str, Mapping[str, Any] | list[Any]]:
    return {name: _column([row[at] for row in rows]) for at, name in enumerate(COLUMNS)}


def _column(values: list[Any]) -> Mapping[str, Any] | list[Any]:
    """As it takes least: one value for all, numbers as they are, words by their number."""
    if not values or all(value == values[0] and type(value) is type(values[0]) for value in values):
        return {"all": values[0] if values else None}
    if any(isinstance(value, str) for value in values):
        words = {word: number for number, word in enumerate(dict.fromkeys(values))}
        return {"words": list(words), "at": [words[value] for value in values]}
    return values
