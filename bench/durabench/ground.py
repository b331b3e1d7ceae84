"""The disk under test and what a campaign keeps on it: one scratch directory, ports, nurseries of drivers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from durabench import device
from durabench.machine import Here, Nurseries, Ports
from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from durabench.service import Target

SCRATCH = ".durabench-run-"
"""How scratch directories begin; those of campaigns that were killed are swept away by the next one."""


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

    def close(self) -> None:
        """End the nurseries, remove the scratch directory and give the device back."""
        self.nurseries.close()
        self._folder.close()
        if self._hold is not None:
            self._hold.close()
