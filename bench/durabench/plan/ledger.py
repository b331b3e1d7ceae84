"""Where a plan writes down what it measured, and who hears of it."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from durabench import floor
from durabench.trial import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from durabench.ground import Ground
    from durabench.plan.accounting import Device
    from durabench.plan.candidates import Candidate
    from durabench.results import Folder
    from durabench.row import Row


@dataclass
class Ledger:
    """The result folder of a plan, with what every pass of it needs: the disk under test, the seed, who is told."""

    folder: Folder
    ground: Ground
    device: Device
    host: str
    seed: int
    say: Callable[[str], None]
    line: Callable[[str], None]
    """Shows one line of progress, which the next one replaces."""
    total_s: float = float("inf")
    """How long all of it may take."""
    began: float = field(default_factory=time.monotonic)
    """When the command did, on the monotonic clock."""
    rows: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Mistakes of the harness itself: what was not met is not known (exit 3)."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, kind: str, candidate: Candidate, **words: Any) -> None:
        """Write down one trial; ``samples``, ``warm`` are its latencies in ns."""
        with self._lock:
            row: Row = {
                "kind": kind,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "host": self.host,
                "backend": candidate.target.backend,
                "setting": candidate.target.setting,
                "url": candidate.target.where,
                "tier": candidate.tier or "T0",
            }
            for name, prefix, median in (
                ("samples", "samples", "put_p50_ns"),
                ("warm", "warm", "reload_warm_p50_ns"),
            ):
                taken: Sequence[int] = words.pop(name, ())
                if taken:
                    row[f"{prefix}_at"], row[f"{prefix}_n"] = self.folder.append_samples(taken)
                    row[median] = int(statistics.median(taken))
            row |= words
            self.folder.append_plan(row)
            self.rows.append(row)

    def measure_floor(self, when: str, times: int = 1) -> None:
        """The device's own flush latency, now."""
        floor.record(self.folder, self.host, self.ground.scratch, when, times)

    def left_s(self) -> float:
        """How much of that is left."""
        return self.total_s - (time.monotonic() - self.began)

    def mistaken(self, what: str, error: BaseException) -> str:
        """Remember and say that the harness itself failed in ``what``; why, in one line."""
        why = in_one_line(error)
        self.errors.append(f"{what}: {why}")
        self.say(self.errors[-1])
        return why

    def progress(self, what: str) -> None:
        """Say what is being done, and how far that is from the end."""
        self.line(f"{time.monotonic() - self.began:5.0f} s of at most {self.total_s:.0f} s  {what}")
