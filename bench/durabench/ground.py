"""The disk under test and what a campaign keeps on it: one scratch directory, ports, nurseries of drivers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from durabench import device, process
from durabench.machine import Here, Nurseries, Ports
from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from durabench.service import Target

SCRATCH = ".durabench-run-"
"""How scratch directories begin; those of campaigns that were killed are swept away by the next one."""
LEAVE_S = 3.0
"""How long what is under way when a campaign stops may take to end by itself …"""
KILLED_S = 4.0
"""… and then, twice, by the death of what it waits for."""
POLL_S = 0.02


@dataclass
class Ground:
    """The disk under test: a scratch directory of ours on it, ports, and nurseries of drivers.

    ``alone``: no other campaign may work on the same device, unless a person shares it (`device.SHARE`). device.Busy
    if one does.
    """

    directory: Path
    driver: str = "forked"
    alone: bool = False
    ports: Ports = field(default_factory=Ports)
    scratch: Path = field(init=False)
    nurseries: Nurseries = field(init=False)
    _folder: OwnFolder = field(init=False)
    _hold: device.Hold | None = None
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.directory = self.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.alone and not device.shared():
            self._hold = device.Hold(self.directory)
        self._folder = OwnFolder(self.directory, SCRATCH)
        self.scratch = self._folder.path
        self.nurseries = Nurseries(self.scratch)

    def machine(self, targets: Sequence[Target], workload: str, server_kill: str = "tree") -> Here:
        """A fresh directory with this host as its machine."""
        with self._lock:
            self._count += 1
            root = self.scratch / f"{self._count}"
        names = [target.backend for target in targets]
        nursery = self.nurseries.get(names, workload) if self.driver == "forked" else None
        return Here(root, self.ports, nursery, server_kill)

    def call_off(self, ended: Callable[[], bool], leave_s: float = LEAVE_S) -> None:
        """Wait until what other threads of ours do has ``ended``: by itself; then by the death of every process below
        this one but the nurseries, so that a fresh driver can still take out of somebody's store what was put there; at
        last with nothing left alive.
        """
        if _wait(ended, leave_s):
            return
        process.kill_descendants(self.nurseries.pids())
        if not _wait(ended, KILLED_S):
            _wait(ended, KILLED_S, process.kill_descendants)

    def dismiss(self, executor: Executor) -> None:
        """End the threads of a pool; what has not begun never does. Nothing may be taken away from under them before,
        and Python itself would wait for them without end.
        """
        leaving = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        leaving.start()
        self.call_off(lambda: not leaving.is_alive())

    def close(self) -> None:
        """End the nurseries, remove the scratch directory and give the device back."""
        self.nurseries.close()
        self._folder.close()
        if self._hold is not None:
            self._hold.close()


def _wait(ended: Callable[[], bool], most_s: float, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Whether it ended in time."""
    end = time.monotonic() + most_s
    while not (over := ended()) and time.monotonic() < end:
        meanwhile()
        time.sleep(POLL_S)
    return over
