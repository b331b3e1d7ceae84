"""Crash states against an independent oracle: what each single sector may hold, worked out sector by sector."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durabench_vm import CrashBuilder, CrashState, Mode, PowerDisk, Recording, build, enumerate_states, sample_states

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
            for number, step in enumerate(script[:end]):
                honest = honest_until is None or number < honest_until
                _tell(oracle, number, step, honest=honest)
            snapshots.append(oracle)
        for number, step in enumerate(script):
            _do(disk, number, step)
        disk.cut()
        yield base, disk.recording(), snapshots
        disk.close()


def _values(number: int, step: Step) -> list[bytes]:
    count = min(step[2], SECTORS - step[1])
    if step[0] == "zero":
        return [bytes(SECTOR)] * count
    return [bytes([number + 1, sector + 1]) * 256 for sector in range(count)]


def _tell(oracle: Oracle, number: int, step: Step, *, honest: bool) -> None:
    if step[0] in {"write", "zero"} or (step[0] == "fua" and not honest):
        oracle.write(step[1], _values(number, step))
    elif step[0] == "fua":
        oracle.fua(step[1], _values(number, step))
    elif step[0] == "flush" and honest:
        oracle.flush()


def _do(disk: PowerDisk, number: int, step: Step) -> None:
    data = b"".join(_values(number, step)) if step[0] != "flush" else b""
    if step[0] in {"write", "fua"}:
        disk.write(step[1] * SECTOR, data, fua=step[0] == "fua")
    elif step[0] == "zero":
        disk.zero(step[1] * SECTOR, len(data))
    elif step[0] == "flush":
        disk.flush(disk.position)
    else:
        disk.mark(number)


def _sectors(image: Path) -> list[bytes]:
    data = image.read_bytes()
    return [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]


LOOSE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@LOOSE
@given(steps, st.data())
def test_every_state_holds_only_what_a_drive_may_hold(script: list[Step], data: st.DataObject) -> None:
    lie_from = data.draw(st.none() | st.integers(0, len(script)))
    with played(script, honest_until=lie_from) as (base, recording, oracles):
        position = data.draw(st.integers(0, len(script)))
        mode = data.draw(st.sampled_from(list(Mode)))
        state = CrashState(position, mode, data.draw(st.integers(0, 2**32)), SECTOR, lie_from)
        out = base.with_name("out")
        build(base, recording, state, out)
        for sector, value in enumerate(_sectors(out)):
            assert value in oracles[position].legal(sector)


@LOOSE
@given(steps, st.data())
def test_all_is_every_completed_write_and_drop_is_none_unflushed(script: list[Step], data: st.DataObject) -> None:
    with played(script) as (base, recording, oracles):
        position = data.draw(st.integers(0, len(script)))
        out = base.with_name("out")
        build(base, recording, CrashState(position, Mode.ALL), out)
        oracle = oracles[position]
        assert _sectors(out) == [newer[-1] if newer else oracle.certain[n] for n, newer in enumerate(oracle.newer)]
        build(base, recording, CrashState(position, Mode.DROP), out)
        assert _sectors(out) == oracle.certain


@LOOSE
@given(steps, st.integers(0, 2**32))
def test_a_prefix_is_what_the_disk_held_at_an_earlier_moment(script: list[Step], seed: int) -> None:
    script = [step for step in script if step[0] in {"write", "zero", "mark"}]
    with played(script) as (base, recording, oracles):
        out = base.with_name("out")
        build(base, recording, CrashState(len(script), Mode.PREFIX, seed), out)
        moments = [[n[-1] if n else o.certain[s] for s, n in enumerate(o.newer)] for o in oracles]
        assert _sectors(out) in moments


@LOOSE
@given(steps, st.integers(0, 2**32))
def test_a_subset_keeps_or_loses_a_write_whole(script: list[Step], seed: int) -> None:
    script = [("write", *step[1:]) for step in script if step[0] == "write"]
    with played(script) as (base, recording, _):
        out = base.with_name("out")
        build(base, recording, CrashState(len(script), Mode.SUBSET, seed), out)
        found = _sectors(out)
        kept = {value[0] for value in found if value[:4] != b"base"}
        expected = [b"base" * 128] * SECTORS
        for number, step in enumerate(script):
            if number + 1 in kept:
                values = _values(number, step)
                expected[step[1] : step[1] + len(values)] = values
        assert found == expected  # nothing of the others shows, and of these nothing is missing


@LOOSE
@given(steps, st.integers(0, 2**32))
def test_torn_at_4096_changes_only_whole_units(script: list[Step], seed: int) -> None:
    with played(script) as (base, recording, _):
        out, whole = base.with_name("out"), base.with_name("whole")
        first = next((n for n, step in enumerate(script) if step[0] == "write"), None)
        if first is None:
            return
        position = first + 1  # one unflushed write at the end
        build(base, recording, CrashState(position, Mode.TORN, seed, 4096), out)
        build(base, recording, CrashState(position, Mode.DROP), base.with_name("drop"))
        build(base, recording, CrashState(position, Mode.ALL), whole)
        units = zip(
            *(
                [path.read_bytes()[at : at + 4096] for at in range(0, SECTORS * SECTOR, 4096)]
                for path in (out, base.with_name("drop"), whole)
            ),
            strict=True,
        )
        earlier = {step[0] for step in script[:first]} & {"zero"}
        if not earlier:
            assert all(found in {without, with_it} for found, without, with_it in units)


@LOOSE
@given(steps, st.integers(0, 2**16))
def test_a_builder_that_moves_forward_builds_what_a_fresh_one_builds(script: list[Step], seed: int) -> None:
    with played(script) as (base, recording, _):
        states = sample_states(recording, 8, seed)
        assert states == sample_states(recording, 8, seed)
        with CrashBuilder(base, recording, base.with_name("moving")) as builder:
            for state in (*states, *reversed(states)):
                builder.build(state, base.with_name("one"))
                build(base, recording, state, base.with_name("two"))
                assert base.with_name("one").read_bytes() == base.with_name("two").read_bytes()
        assert not base.with_name("moving").exists()


@LOOSE
@given(steps, st.data())
def test_enumeration_is_exhaustive(script: list[Step], data: st.DataObject) -> None:
    """Each subset of what is unflushed comes up; the rebuilt images are all that whole writes can leave."""
    with played(script) as (base, recording, _):
        position = data.draw(st.integers(0, len(script)))
        unflushed = recording.unflushed(position)
        states = enumerate_states(recording, position, bits=4)
        if len(unflushed) > 4:
            assert states is None
            return
        assert states is not None
        images = set()
        for state in states:
            build(base, recording, state, base.with_name("out"))
            images.add(base.with_name("out").read_bytes())
        for seed in range(10):
            build(base, recording, CrashState(position, Mode.SUBSET, seed), base.with_name("out"))
            assert base.with_name("out").read_bytes() in images


def test_a_state_that_the_drive_cannot_have_is_refused() -> None:
    with played([("write", 0, 1)]) as (base, recording, _):
        with pytest.raises(ValueError, match="not in the recording"):
            build(base, recording, CrashState(2, Mode.ALL), base.with_name("out"))
        with pytest.raises(ValueError, match="does not tear"):
            build(base, recording, CrashState(1, Mode.TORN, unit_bytes=256), base.with_name("out"))


def test_sampling_visits_all_gaps_evenly() -> None:
    script: list[Step] = []
    for _ in range(5):
        script += [("write", 0, 2), ("write", 4, 1), ("mark", 0, 0)]
    with played(script) as (_, recording, _oracles):
        states = sample_states(recording, 60, 1)
        counts = [sum(recording.gap(state.position) == gap.number for state in states) for gap in recording.gaps()]
        assert counts == [10] * 6
        assert [state.position for state in states] == sorted(state.position for state in states)
        assert {state.mode for state in states} == {Mode.DROP, Mode.PREFIX, Mode.SUBSET, Mode.TORN, Mode.ALL}
