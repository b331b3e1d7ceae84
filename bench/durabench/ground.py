"""The disk under test and what a campaign keeps on it: one scratch directory, ports, nurseries of drivers."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from durabench import device
from durabench.machine import Here, Nurseries, Ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from durabench.service import Target

SCRATCH = ".durabench-"


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
    _hold: device.Hold | None = None
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.directory = self.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.alone and not device.shared():
            self._hold = device.Hold(self.directory)
        sweep(self.directory)
        mine = f"{SCRATCH}{os.getpid()}-{int(psutil.Process().create_time())}"
        self.scratch = self.directory / mine
        self.scratch.mkdir(mode=0o755)
        self.nurseries = Nurseries(self.scratch)

    def machine(self, targets: Sequence[Target], workload: str, server_kill: str = "tree") -> Here:
        """A fresh directory with this host as its machine."""
        with self._lock:
            self._count += 1
            root = self.scratch / f"{self._count}"
        names = [target.backend for target in targets]
        nursery = self.nurseries.get(names, workload) if self.driver == "forked" else None
        return Here(root, self.ports, nursery, server_kill)

    def close(self) -> None:
        """End the nurseries, remove the scratch directory and give the device back."""
        self.nurseries.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self._hold is not None:
            self._hold.close()


def sweep(directory: Path) -> None:
    """Remove scratch directories of campaigns that are no more (a ``kill -9`` leaves its own)."""
    for path in directory.glob(f"{SCRATCH}*-*"):
        pid, _, created = path.name.removeprefix(SCRATCH).partition("-")
        try:
            alive = int(psutil.Process(int(pid)).create_time()) == int(created)
        except (psutil.NoSuchProcess, ValueError):
            alive = False
        if not alive:
            shutil.rmtree(path, ignore_errors=True)
