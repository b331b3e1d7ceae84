"""The raw rows of folders, small enough to travel in a page: by column, a word once, a constant once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from durabench.redact import redact_all
from durabench.row import ROW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durabench.row import Row

LIMIT_BYTES = 450_000
"""Of JSON. What does not fit is told, with how many rows it is; losing rows come first."""
_MOST = LIMIT_BYTES // 32
"""No row takes less than so many bytes."""
_LEFT_OUT = ("attempt", "rows", "samples_at", "samples_n", "replay", "why", "started", "position", "victim", "mount")
COLUMNS = tuple(name for name in ROW if name not in _LEFT_OUT)


class Rows:
    """Collects rows as folders are read, without keeping more of them than can be shown."""

    def __init__(self) -> None:
        self.total = 0
        self._losing: list[list[Any]] = []
        self._others: list[list[Any]] = []

    def row(self, row: Row, *, losing: bool) -> None:
        """Take one row; ``losing`` ones are the last to be left out."""
        self.total += 1
        kept = self._losing if losing else self._others
        if len(kept) < _MOST:
            kept.append([row.get(name) for name in COLUMNS])

    def compact(self) -> dict[str, Any]:
        """``{"columns", "rows", "total"}``: column → {"all": value}, {"words", "at"} or a list, of so many rows."""
        rows = [*self._losing, *self._others][:_MOST]
        while True:
            columns = {name: _column([row[at] for row in rows]) for at, name in enumerate(COLUMNS)}
            size = len(json.dumps(columns, separators=(",", ":"), ensure_ascii=False))
            if size <= LIMIT_BYTES or len(rows) < 2:
                return {"columns": columns, "rows": len(rows), "total": self.total}
            rows = rows[: min(len(rows) - 1, int(len(rows) * LIMIT_BYTES / size * 0.97))]


def _column(values: list[Any]) -> Mapping[str, Any] | list[Any]:
    """As it takes least: one value for all, numbers as they are, words by their number."""
    kinds = {type(value) for value in values}
    if float in kinds:
        values = [float(f"{value:.4g}") if isinstance(value, float) else value for value in values]
    if len(kinds) < 2 and (not values or values.count(values[0]) == len(values)):
        return {"all": redact_all(values[0]) if values else None}
    if str in kinds:
        words = {word: number for number, word in enumerate(dict.fromkeys(values))}
        return {"words": [redact_all(word) for word in words], "at": [words[value] for value in values]}
    return values
