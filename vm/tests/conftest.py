"""Shared by the tests of this room: small disks, run folders, and one prepared guest per file system."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the room's own test helpers; importlib mode adds no path

from durabench_vm import (
    Filesystem,
    PowerDisk,
    Recording,
    RootSpec,
    RunFolder,
    Template,
    base_image,
    cache_folder,
    copy_sparse,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from durabench_vm import Guest

PROGRAMS = Path(__file__).with_name("programs")
PUTS = 15


@dataclass(frozen=True)
class Recorded:
    """One run of the writer on a power disk."""

    filesystem: Filesystem
    template: Template
    base: Path
    recording: Recording
    first: int  # the position of its first acknowledgement


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    """A disk of 32 KiB, all zeroes."""
    image = tmp_path / "live.img"
    with image.open("wb") as file:
        file.truncate(64 * 512)
    made = PowerDisk(image, tmp_path / "log")
    yield made
    made.close()


@pytest.fixture(scope="session")
def folder() -> Iterator[RunFolder]:
    """One run folder for the session."""
    with RunFolder() as made:
        yield made


@pytest.fixture(scope="session")
def template_of(folder: RunFolder) -> Callable[[str], Template]:
    """A prepared guest for a file system; made once."""
    made: dict[str, Template] = {}

    def give(name: str) -> Template:
        if name not in made:
            warm = [[sys.executable, "-c", "import sqlite3, json"]]
            made[name] = prepare(RootSpec(), Filesystem.parse(name), folder, warm=warm)
        return made[name]

    return give


@pytest.fixture(scope="session")
def recorded(folder: RunFolder, template_of: Callable[[str], Template]) -> Callable[[str], Recorded]:
    """The writer's run on a file system; made once."""
    made: dict[str, Recorded] = {}

    def give(name: str) -> Recorded:
        if name not in made:
            made[name] = record(Filesystem.parse(name), template_of(name), folder)
        return made[name]

    return give


def record(filesystem: Filesystem, template: Template, folder: RunFolder) -> Recorded:
    base = base_image(filesystem, cache_folder())
    live, log = folder.path / f"{filesystem.name}.img", folder.path / f"{filesystem.name}.log"
    copy_sparse(base, live)
    disk = PowerDisk(live, log)
    with template.restore(disk, folder) as guest:
        guest.mount(filesystem)
        guest.send({"/run/writer.py": (PROGRAMS / "writer.py").read_bytes()})
        process = guest.start(
            [sys.executable, "/run/writer.py", guest.root, str(PUTS)],
            on_line=lambda line: disk.mark(json.loads(line)) if line.startswith("[") else None,
        )
        assert process.read_line() == "ready", list(process.stderr_tail)
        for _ in range(4 * PUTS):
            process.write_line("go")
            assert process.read_line() is not None, list(process.stderr_tail)
        guest.cut()
    recording = disk.recording()
    disk.close()
    live.unlink()
    first = next(position for position in range(len(recording)) if recording.acknowledged(position))
    return Recorded(filesystem, template, base, recording, first)


@pytest.fixture
def guest_on(folder: RunFolder, template_of: Callable[[str], Template]) -> Iterator[Callable[..., Guest]]:
    """A restored guest with an empty ext4 mounted; killed at the end."""
    guests: list[Guest] = []

    def give(**options: float) -> Guest:
        ext4 = Filesystem.parse("ext4")
        live = folder.path / f"own-{len(guests)}.img"
        copy_sparse(base_image(ext4, cache_folder()), live)
        disk = PowerDisk(live, live.with_suffix(".log"), **options)  # type: ignore[arg-type]
        guest = template_of("ext4").restore(disk, folder)
        guests.append(guest)
        guest.mount(ext4)
        return guest

    yield give
    for guest in guests:
        guest.kill()
        guest.disk.close()
