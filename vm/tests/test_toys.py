"""Every class of crash states convicts the toy store that has its bug, and none the honest one."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from disk_toys import (
    SECTOR,
    BelievesBothEnds,
    BelievesTheHead,
    BelievesTheTail,
    ErasesFirst,
    Honest,
    LooksAtBothEnds,
    LosesRename,
    NamesBeforeItHas,
    NeverFlushes,
    ThinksFuaIsAtomic,
)
from nbd_client import Client

from durabench_vm import CrashBuilder, Mode, PowerDisk, sample_states
from durabench_vm.drawing import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from durabench_vm import Recording

PUTS = 8
BUGS = {
    NeverFlushes: Mode.DROP,
    ErasesFirst: Mode.ALL,
    LosesRename: Mode.PREFIX,
    NamesBeforeItHas: Mode.SUFFIX,
    LooksAtBothEnds: Mode.HOLE,
    BelievesTheHead: Mode.TORN_HEAD,
    BelievesTheTail: Mode.TORN_TAIL,
    BelievesBothEnds: Mode.TORN_MIDDLE,
    ThinksFuaIsAtomic: Mode.IN_FLIGHT,
}


@contextmanager
def recorded(store: Honest) -> Iterator[tuple[Path, Recording]]:
    """Its puts on a power disk, over its own protocol; each is acknowledged when the disk has answered."""
    with tempfile.TemporaryDirectory() as folder:
        base, live = Path(folder, "base"), Path(folder, "live")
        for image in (base, live):
            image.write_bytes(bytes(SECTOR * 64))
        disk = PowerDisk(live, Path(folder, "log"))
        client = Client(disk.connect())
        for n in range(1, PUTS + 1):
            for verb, sector, data in store.put(n):
                if verb == "flush":
                    client.flush()
                else:
                    client.write(sector * SECTOR, data, fua=verb == "fua")
            disk.mark(n)
        disk.cut()
        yield base, disk.recording()
        disk.close()
        client.close()


def wrong(store: Honest, base: Path, recording: Recording, count: int, modes: Sequence[Mode], seed: int) -> set[Mode]:
    """The classes of the states in which the store gave neither the last acknowledged value nor the one in doubt."""
    found = set()
    out = base.with_name("out")
    with CrashBuilder(base, recording, base.with_name("moving")) as builder:
        for state in sample_states(recording, count, seed, modes=modes):
            builder.build(state, out)
            data = out.read_bytes()
            disk = [data[at] if len(set(data[at : at + SECTOR])) == 1 else -1 for at in range(0, len(data), SECTOR)]
            acknowledged = recording.gap(state.position)
            if store.read(disk) not in {acknowledged, acknowledged + 1}:
                found.add(state.mode)
    return found


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_convicted_by_its_class_and_by_a_usual_draw(bug: type[Honest]):
    with recorded(bug()) as (base, recording):
        for seed in range(5):
            assert wrong(bug(), base, recording, 12, (BUGS[bug],), seed) == {BUGS[bug]}
            assert wrong(bug(), base, recording, 40, CLASSES, seed), "forty states of all classes"


@pytest.mark.parametrize(
    "bug", [LooksAtBothEnds, BelievesTheHead, BelievesTheTail, BelievesBothEnds, ThinksFuaIsAtomic],
    ids=lambda bug: bug.__name__,
)  # fmt: skip
def test_none_all_and_prefixes_do_not_convict_it(bug: type[Honest]):
    """What was drawn before there were classes: a torn order passes for kept."""
    with recorded(bug()) as (base, recording):
        assert not wrong(bug(), base, recording, 1000, (Mode.DROP, Mode.ALL, Mode.PREFIX), 1)


def test_the_honest_twin_is_never_convicted():
    with recorded(Honest()) as (base, recording):
        assert not wrong(Honest(), base, recording, 100_000, CLASSES, 1)
        for mode in CLASSES:
            assert not wrong(Honest(), base, recording, 200, (mode,), 2)


def test_a_fua_write_is_in_the_log_when_it_is_answered_and_in_part_before(tmp_path: Path):
    image = tmp_path / "live"
    image.write_bytes(bytes(SECTOR * 64))
    base = tmp_path / "base"
    base.write_bytes(image.read_bytes())
    disk = PowerDisk(image, tmp_path / "log")
    client = Client(disk.connect())
    client.write(0, b"a" * SECTOR)
    client.write(SECTOR, b"b" * 2 * SECTOR, fua=True)
    disk.cut()
    recording = disk.recording()
    disk.close()
    client.close()
    assert recording.unflushed(2) == (0,), "answered: on the medium by itself"
    seen = set()
    with CrashBuilder(base, recording, tmp_path / "moving") as builder:
        for state in sample_states(recording, 1000, 1):
            builder.build(state, tmp_path / "out")
            data = (tmp_path / "out").read_bytes()
            seen.add("".join("-" if data[at] == 0 else chr(data[at]) for at in (0, SECTOR, 2 * SECTOR)))
    assert seen == {first + two for first in "a-" for two in ("--", "b-", "-b", "bb")}
