"""Crash states against an independent oracle: what each single sector may hold, worked out sector by sector."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts import SECTOR, SECTORS, Step, played, sectors, steps, values

from durabench_vm import CrashBuilder, CrashState, Mode, Recording, build, enumerate_states, sample_states
from durabench_vm.crash import in_flight, pieces
from durabench_vm.recording import Entry, Kind, LogWriter

if TYPE_CHECKING:
    from pathlib import Path

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
        for sector, value in enumerate(sectors(out)):
            assert value in oracles[position].legal(sector)


@LOOSE
@given(steps, st.data())
def test_all_is_every_completed_write_and_drop_is_none_unflushed(script: list[Step], data: st.DataObject) -> None:
    with played(script) as (base, recording, oracles):
        position = data.draw(st.integers(0, len(script)))
        out = base.with_name("out")
        build(base, recording, CrashState(position, Mode.ALL), out)
        oracle = oracles[position]
        flight = in_flight(recording, position) is not None  # is in neither: it was not completed
        newest = [newer[:-1] if flight and _hit(script[position], n) else newer for n, newer in enumerate(oracle.newer)]
        assert sectors(out) == [newer[-1] if newer else oracle.certain[n] for n, newer in enumerate(newest)]
        build(base, recording, CrashState(position, Mode.DROP), out)
        assert sectors(out) == oracle.certain


def _hit(step: Step, sector: int) -> bool:
    return step[1] <= sector < step[1] + step[2]


@LOOSE
@given(steps, st.integers(0, 2**32))
def test_a_prefix_is_what_the_disk_held_at_an_earlier_moment(script: list[Step], seed: int) -> None:
    script = [step for step in script if step[0] in {"write", "zero", "mark"}]
    with played(script) as (base, recording, oracles):
        out = base.with_name("out")
        build(base, recording, CrashState(len(script), Mode.PREFIX, seed), out)
        moments = [[n[-1] if n else o.certain[s] for s, n in enumerate(o.newer)] for o in oracles]
        assert sectors(out) in moments


@LOOSE
@given(steps, st.integers(0, 2**32))
def test_a_subset_keeps_or_loses_a_write_whole(script: list[Step], seed: int) -> None:
    script = [("write", *step[1:]) for step in script if step[0] == "write"]
    with played(script) as (base, recording, _):
        out = base.with_name("out")
        build(base, recording, CrashState(len(script), Mode.SUBSET, seed), out)
        found = sectors(out)
        kept = {value[0] for value in found if value[:4] != b"base"}
        expected = [b"base" * 128] * SECTORS
        for number, step in enumerate(script):
            if number + 1 in kept:
                written = values(number, step)
                expected[step[1] : step[1] + len(written)] = written
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


def test_the_words_of_stored_states_mean_what_they_meant(tmp_path: Path) -> None:
    """States of folders written before there were classes: sha256 of their pieces, as the code of then had them."""
    writer = LogWriter(tmp_path / "log", {"size_bytes": 1 << 20, "unit_bytes": 512})
    for k in range(4):
        for i in range(5):
            sectors_n = 1 + i * 2
            entry = Entry(Kind.WRITE, 0, SECTOR * (7 * k + 3 * i), SECTOR * sectors_n)
            writer.append(entry, bytes([i + 1]) * SECTOR * sectors_n)
        writer.append(Entry(Kind.WRITE, 0, 4096 * (k + 3), 2048, fua=True), b"f" * 2048)
        writer.append(Entry(Kind.MARK, 0, mark=[0, k]))
        if k == 1:
            writer.append(Entry(Kind.FLUSH, 0, covers=writer.position - 3))
    writer.close()
    recording = Recording.load(tmp_path / "log")
    known = {
        Mode.ALL: "ed4b5860783d4353",
        Mode.DROP: "40fa546a81ba4626",
        Mode.PREFIX: "ceada68f98c138f6",
        Mode.SUBSET: "75330ce5ccbcc6a2",
        Mode.TORN: "47ba5a00987bf326",
        Mode.MASK: "33b36624d7fb27d8",
    }
    for mode, digest in known.items():
        told = [
            ";".join(f"{one.index}.{one.start}.{one.stop}" for one in pieces(recording, state))
            for position in (3, 9, 16, 20, len(recording))
            for seed in (0, 1, 5, 77, 2**31)
            for unit in (512, 4096)
            for lie in (None, 2)
            for state in [CrashState(position, mode, seed, unit, lie)]
        ]
        assert hashlib.sha256("|".join(told).encode()).hexdigest()[:16] == digest, mode
