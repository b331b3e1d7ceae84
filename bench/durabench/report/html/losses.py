"""Every trial that lost something or broke a promise, with its seed, its moment and the command that runs it again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from durabench.report.cells import worst
from durabench.row import label as label_of
from durabench.row import loses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench.results import Folder
    from durabench.row import Row

SHOWN = 1200
"""So many trials are shown one by one, broken promises before all others; the rest is counted."""
_COUNTS = ("lost", "stale", "torn", "corrupt", "phantom", "resurrected", "hole", "dangling")


@dataclass(frozen=True)
class Loss:
    """One losing trial."""

    trial: int
    seed: int
    moment: str
    what: str
    command: str
    """Empty where it cannot be run again, because its recording was not kept."""
    verdict: str


@dataclass
class Group:
    """The losing trials of a setting under a fault. ``left_out`` of them are not in ``losses``."""

    label: str
    fault: str
    verdict: str
    losses: list[Loss] = field(default_factory=list)
    left_out: int = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.losses) + self.left_out


class Losses:
    """Collects losing trials as folders are read."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str, str], Group] = {}
        self._recordings: dict[tuple[str, str], bool] = {}

    def trial(self, rows: Sequence[Row], folder: Folder) -> None:
        """Take one whole trial."""
        first = rows[0]
        bad = [row for row in rows if loses(row) or row["verdict"] == "broken"]
        if not bad or first.get("control") is not None:
            return
        verdict = worst(row["verdict"] for row in bad)
        key = (first["host"], label_of(first), first["fault"], verdict)
        group = self._groups.setdefault(key, Group(key[1], key[2], verdict))
        command = (
            f"durabench replay {shlex.quote(str(folder.path))} {first['trial']}" if self._kept(first, folder) else ""
        )
        what = "; ".join(_what(row) for row in bad)
        # Words are made for those that may be shown only: a run may have 100,000 of them.
        if len(group.losses) < SHOWN:
            group.losses.append(Loss(first["trial"], first["seed"], _moment(first), what, command, verdict))
        else:
            group.left_out += 1

    def _kept(self, row: Row, folder: Folder) -> bool:
        """Whether the trial can be run again: a crash state only from its recording."""
        recording = row.get("recording")
        if recording is None:
            return True
        if (where := (str(folder.path), recording)) not in self._recordings:
            self._recordings[where] = folder.has_recording(recording)
        return self._recordings[where]

    def groups(self, several_hosts: bool) -> list[Group]:
        """Broken promises first, then by setting; together no more than `SHOWN` trials one by one."""
        order = {"broken": 0, "unknown": 1, "within": 2}
        found = sorted(self._groups.items(), key=lambda item: order.get(item[1].verdict, 3))
        broken = sum(len(group.losses) for _, group in found if group.verdict == "broken")
        others = [group for _, group in found if group.verdict != "broken"]
        share = max(5, (SHOWN - broken) // max(1, len(others)))
        for (host, *_), group in found:
            keep = len(group.losses) if group.verdict == "broken" else share
            group.left_out += max(0, len(group.losses) - keep)
            del group.losses[keep:]
            if several_hosts and not group.label.endswith(f"@{host}"):
                group.label = f"{group.label} @{host}"
        return [group for _, group in found]


def _moment(row: Row) -> str:
    """Where it was struck: within the put, or at which position of which recording."""
    put = f" put {row['victim']}" if row.get("victim") is not None else ""
    if row.get("recording") is not None:
        return f"position {row.get('position')}, gap {row.get('gap')} of {row['recording']}, kept {row.get('state')}"
    return f"{row.get('struck') or 'not struck'}{put}"


def _what(row: Row) -> str:
    """``metadata: 7 of 7 lost, 0.5 s back``."""
    if row.get("unavailable"):
        return f"{row['namespace']}: did not come up again"
    counts = [_count(row, name) for name in _COUNTS if row.get(name)]
    window = row.get("loss_window_s")
    back = [] if window is None else [f"{window:.3g} s back"]
    return f"{row['namespace']}: {', '.join([*counts, *back]) or row.get('why') or row['verdict']}"


def _count(row: Row, name: str) -> str:
    of = f" of {row['acked']}" if name == "lost" else ""
    return f"{row[name]}{of} {name}"
