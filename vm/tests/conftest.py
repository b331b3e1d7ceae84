"""Shared by the tests of this room: a disk of 64 sectors, and where images go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the room's own test helpers; importlib mode adds no path

from durabench_vm import PowerDisk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    """A disk of 32 KiB, all zeroes."""
    image = tmp_path / "live.img"
    with image.open("wb") as file:
        file.truncate(64 * 512)
    made = PowerDisk(image, tmp_path / "log")
    yield made
    made.close()
