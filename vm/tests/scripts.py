"""Scripts of writes and flushes played on a disk, and an oracle that knows what every sector may then hold."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from durabench_vm import PowerDisk, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTORS = 16
SECTOR = 512
Step = tuple[str, int, int]  # verb, first sector, sectors

writes = st.tuples(st.just("write"), st.integers(0, SECTORS - 1), st.integers(1, 6))
steps = st.lists(
    st.one_of(
        writes,
        writes,
        writes.map(lambda w: ("fua", *w[1:])),
        writes.map(lambda w: ("zero", *w[1:])),
        st.just(("flush", 0, 0)),
        st.just(("mark", 0, 0)),
    ),
    max_size=14,
)


class Oracle:
    """Knows, for each sector, the value it surely has and the newer ones a drive may hold instead. No log, no index."""

    def __init__(self) -> None:
        self.certain = [b"base" * 128] * SECTORS
        self.newer: list[list[bytes]] = [[] for _ in range(SECTORS)]

    def write(self, first: int, values: list[bytes]) -> None:
        for sector, value in enumerate(values, first):
            self.newer[sector].append(value)

    def fua(self, first: int, values: list[bytes]) -> None:
        for sector, value in enumerate(values, first):
            self.certain[sector], self.newer[sector] = value, []

    def flush(self) -> None:
        for sector in range(SECTORS):
            if self.newer[sector]:
                self.certain[sector], self.newer[sector] = self.newer[sector][-1], []

    def legal(self, sector: int) -> set[bytes]:
        return {self.certain[sector], *self.newer[sector]}


@contextmanager
def played(script: list[Step], *, honest_until: int | None = None) -> Iterator[tuple[Path, Recording, list[Oracle]]]:
    """Run a script on a disk; give the base image, the recording and one oracle per position."""
    with tempfile.TemporaryDirectory() as folder:
        base, live = Path(folder, "base"), Path(folder, "live")
        for image in (base, live):
            image.write_bytes(b"base" * 128 * SECTORS)
        disk = PowerDisk(live, Path(folder, "log"))
        snapshots = []
        for end in range(len(script) + 1):
            oracle = Oracle()
            for number, step in enumerate(script[: end + 1]):
                honest = honest_until is None or number < honest_until
                if number < end:
                    _tell(oracle, number, step, honest=honest)
                elif step[0] == "fua" and honest:
                    oracle.write(step[1], values(number, step))  # received, and not answered: there or not
            snapshots.append(oracle)
        for number, step in enumerate(script):
            _do(disk, number, step)
        disk.cut()
        yield base, disk.recording(), snapshots
        disk.close()


def values(number: int, step: Step) -> list[bytes]:
    count = min(step[2], SECTORS - step[1])
    if step[0] == "zero":
        return [bytes(SECTOR)] * count
    return [bytes([number + 1, sector + 1]) * 256 for sector in range(count)]


def _tell(oracle: Oracle, number: int, step: Step, *, honest: bool) -> None:
    if step[0] in {"write", "zero"} or (step[0] == "fua" and not honest):
        oracle.write(step[1], values(number, step))
    elif step[0] == "fua":
        oracle.fua(step[1], values(number, step))
    elif step[0] == "flush" and honest:
        oracle.flush()


def _do(disk: PowerDisk, number: int, step: Step) -> None:
    data = b"".join(values(number, step)) if step[0] != "flush" else b""
    if step[0] in {"write", "fua"}:
        disk.write(step[1] * SECTOR, data, fua=step[0] == "fua")
    elif step[0] == "zero":
        disk.zero(step[1] * SECTOR, len(data))
    elif step[0] == "flush":
        disk.flush(disk.position)
    else:
        disk.mark(number)


def sectors(image: Path) -> list[bytes]:
    data = image.read_bytes()
    return [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
