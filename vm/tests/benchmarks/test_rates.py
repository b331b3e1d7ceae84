"""How fast the machine is: restores, and crash states a minute in each lane. Printed, not asserted.

Run by name: python3 bench test vm/tests/benchmarks -s
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durabench_vm import (
    Checked,
    Filesystem,
    Job,
    LoopLane,
    PowerDisk,
    Recording,
    RootSpec,
    RunFolder,
    SwapLane,
    check_states,
    copy_sparse,
    prepare,
    sample_states,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_vm import CrashState, Lane, Template

ROOM = Path(__file__).parents[1]
PROCESSES = 2
STATES = {"loop": 1000, "swap": 200}


def helpers():
    spec = spec_from_file_location("vm_conftest", ROOM / "conftest.py")
    module = module_from_spec(spec)
    sys.modules["vm_conftest"] = module
    spec.loader.exec_module(module)
    return module


def check_some(lane: str, template: Template, base: Path, log: Path, states: Sequence[CrashState]) -> int:
    """In a process of its own: the answers among `states`."""
    reader = Job((sys.executable, "-u", "-c", (ROOM / "programs/reader.py").read_text()), lasting=True)
    filesystem = Filesystem.parse(template.filesystem)
    with RunFolder() as folder:
        recording = Recording.load(log)
        made: Lane = LoopLane(folder) if lane == "loop" else SwapLane(template, folder)
        outcomes = check_states(
            made, recording, states, base_image=base, filesystem=filesystem, job_of=lambda _: reader, folder=folder
        )
        answered = sum(isinstance(outcome, Checked) for _, outcome in outcomes)
        made.close()
    return answered


@pytest.mark.parametrize("name", ["ext4", "xfs", "btrfs"])
def test_rates(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    filesystem = Filesystem.parse(name)
    with RunFolder() as folder, ProcessPoolExecutor(PROCESSES) as pool:
        begin = time.monotonic()
        template = prepare(RootSpec(), filesystem, folder, warm=[[sys.executable, "-c", "import sqlite3, json"]])
        lines = [f"prepare {time.monotonic() - begin:.1f} s"]
        run = helpers().record(filesystem, template, folder)
        for number in range(3):
            live = folder.path / f"again-{number}.img"
            copy_sparse(run.base, live)
            disk = PowerDisk(live, live.with_suffix(".log"))
            with template.restore(disk, folder) as guest:
                lines.append(f"restore {guest.boot_s:.2f} s, {guest.rss_bytes() >> 20} MiB")
            disk.close()
        log = run.recording.source
        for lane, count in STATES.items():
            if lane == "loop" and os.geteuid() != 0:
                lines.append("loop: not run, needs root")
                continue
            states = sample_states(run.recording, count, 1, unit_bytes=4096, first=run.first)
            half = len(states) // PROCESSES
            begin = time.monotonic()
            parts = [states[at * half : (at + 1) * half] for at in range(PROCESSES)]
            todo = [pool.submit(check_some, lane, template, run.base, log, part) for part in parts]
            answered = sum(one.result() for one in todo)
            took = time.monotonic() - begin
            lines.append(f"{lane}: {answered / took * 60:.0f} states a minute, {PROCESSES} processes, start included")
    with capsys.disabled():
        print(f"\n{name}: " + "; ".join(lines))
