"""The device's own flush latency, measured in the same run as the puts it is printed beside."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from durabench.results import Folder

SIZES_BYTES = {2048: 40, 1 << 20: 6}
"""How much is written before each flush → how many flushes a measurement takes."""


@dataclass(frozen=True)
class Floor:
    """One measurement: the latency of each write + fdatasync of ``size_bytes``, in ns."""

    size_bytes: int
    latencies_ns: tuple[int, ...]


def measure(directory: Path, times: int = 1) -> Iterator[Floor]:
    """Append and fdatasync in a file of ``directory``, ``times`` as often as usual, for each size. OSError if it
    cannot.
    """
    path = directory / "floor"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for size_bytes, flushes in SIZES_BYTES.items():
            block = os.urandom(size_bytes)
            latencies = []
            for _ in range(flushes * times):
                start_ns = time.perf_counter_ns()
                os.write(descriptor, block)
                os.fdatasync(descriptor)
                latencies.append(time.perf_counter_ns() - start_ns)
            yield Floor(size_bytes, tuple(latencies))
    finally:
        os.close(descriptor)
        path.unlink()


def record(folder: Folder, host: str, directory: Path, when: str, times: int = 1) -> None:
    """Measure in ``directory`` and write it down in ``folder``, a row a size. OSError if it cannot."""
    for measured in measure(directory, times):
        at, n = folder.append_samples(measured.latencies_ns)
        folder.append_floor(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "when": when,
                "host": host,
                "size_bytes": measured.size_bytes,
                "n": n,
                "p50_ns": sorted(measured.latencies_ns)[n // 2],
                "samples_at": at,
                "samples_n": n,
            }
        )
