"""The controls: the right way survives, leaving out a sync loses, and a lying drive loses even the right way."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from durabench_vm import (
    Checked,
    Filesystem,
    GuestLane,
    Job,
    LoopLane,
    Mode,
    Recording,
    SwapLane,
    build,
    check_states,
    sample_states,
)

from conftest import PROGRAMS, Recorded  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from durabench_vm import CrashState, Lane, RunFolder

READER = Job((sys.executable, "-u", "-c", (PROGRAMS / "reader.py").read_text()), lasting=True)
EACH = pytest.mark.parametrize("name", ["ext4", "xfs", "btrfs"])


def losses(lane: Lane, run: Recorded, states: Sequence[CrashState], folder: RunFolder) -> Counter[str]:
    """How many states lost an acknowledged checkpoint of each way; "findings": how many gave no answer at all."""
    count: Counter[str] = Counter(states=0, findings=0)
    outcomes = check_states(
        lane, run.recording, states, base_image=run.base, filesystem=run.filesystem, job_of=lambda _: READER,
        folder=folder,
    )  # fmt: skip
    for state, outcome in outcomes:
        count["states"] += 1
        if not isinstance(outcome, Checked) or "error" in outcome.answer:
            count["findings"] += 1
            continue
        for way, number in dict(run.recording.acknowledged(state.position)).items():
            count[way] += outcome.answer[way] < number
    lane.close()
    return count


def fast_lane(run: Recorded, folder: RunFolder) -> Lane:
    return LoopLane(folder) if os.geteuid() == 0 else SwapLane(run.template, folder)


@EACH
def test_an_honest_drive(name: str, recorded: Callable[[str], Recorded], folder: RunFolder) -> None:
    run = recorded(name)
    unit = 4096 if name == "btrfs" else 512  # its superblock is one block of 4096 and does not survive a tear in it
    states = sample_states(run.recording, 100, 1, unit_bytes=unit, first=run.first)
    count = losses(fast_lane(run, folder), run, states, folder)
    assert count["findings"] == 0
    assert count["right"] == 0
    assert count["wal"] == 0
    assert count["no_sync"] > 50
    assert count["no_folder_sync"] > 5


@EACH
def test_a_lying_drive(name: str, recorded: Callable[[str], Recorded], folder: RunFolder) -> None:
    run = recorded(name)
    states = sample_states(run.recording, 60, 2, unit_bytes=4096, first=run.first, lie_from=run.first)
    count = losses(fast_lane(run, folder), run, states, folder)
    assert count["right"] + count["findings"] > 20
    assert count["wal"] + count["findings"] > 20


@EACH
def test_a_reset_keeps_what_the_drive_completed(
    name: str, recorded: Callable[[str], Recorded], folder: RunFolder
) -> None:
    run = recorded(name)
    states = sample_states(run.recording, 30, 3, first=run.first, modes=(Mode.ALL,))
    count = losses(fast_lane(run, folder), run, states, folder)
    assert count["right"] == count["wal"] == count["findings"] == 0
    assert count["no_sync"] > 15


@EACH
def test_the_lanes_agree(name: str, recorded: Callable[[str], Recorded], folder: RunFolder) -> None:
    """The same states, looked at by a guest of their own, in a running guest, and by this host's kernel."""
    run = recorded(name)
    states = sample_states(run.recording, 6, 4, unit_bytes=4096, first=run.first)
    lanes: list[Lane] = [SwapLane(run.template, folder), GuestLane(run.template, folder)]
    if os.geteuid() == 0:
        lanes.append(LoopLane(folder))
    answers = []
    for lane in lanes:
        outcomes = check_states(
            lane, run.recording, states[:: 1 if lane.name != "guest" else 3], base_image=run.base,
            filesystem=run.filesystem, job_of=lambda _: READER, folder=folder,
        )  # fmt: skip
        answers.append({state: outcome.answer for state, outcome in outcomes if isinstance(outcome, Checked)})
        assert lane.facts()["lane"] == lane.name
        assert lane.facts()["recovering_kernel"]
        lane.close()
    assert len(answers[0]) == 6
    assert len(answers[1]) == 2
    assert answers[1].items() <= answers[0].items()
    assert all(found == answers[0] for found in answers[2:])


def test_a_state_is_rebuilt_from_a_saved_recording(
    recorded: Callable[[str], Recorded], folder: RunFolder, tmp_path: Path
) -> None:
    run = recorded("ext4")
    run.recording.save(tmp_path / "saved", base=run.base)
    again = Recording.load(tmp_path / "saved")
    again.write_base(tmp_path / "base")
    for state in sample_states(run.recording, 5, 6, first=run.first):
        build(run.base, run.recording, state, tmp_path / "one")
        build(tmp_path / "base", again, state, tmp_path / "two")
        one, two = (hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("one", "two"))
        assert one == two


def test_mount_options_reach_the_kernel(recorded: Callable[[str], Recorded], folder: RunFolder) -> None:
    run = recorded("ext4")
    job = Job((sys.executable, "-c", "import json; print(json.dumps(open('/proc/self/mountinfo').read()))"))
    lane = fast_lane(run, folder)
    [(_, outcome)] = check_states(
        lane, run.recording, sample_states(run.recording, 1, 1), base_image=run.base,
        filesystem=Filesystem.parse("ext4:noauto_da_alloc,commit=1"), job_of=lambda _: job, folder=folder,
    )  # fmt: skip
    lane.close()
    assert isinstance(outcome, Checked)
    assert "noauto_da_alloc,commit=1" in outcome.answer
