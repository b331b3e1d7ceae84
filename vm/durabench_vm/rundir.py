"""Run folders: where images, logs and consoles of one process live, and how none is left behind.

A run folder names its owner by process id *and* start time, since ids are reused. Whoever makes the next one first
sweeps away the folders whose owner is gone, and ends the processes recorded in them: also after `kill -9`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PREFIX = "durabench-vm-"
OWNER = "owner.json"
PROCESSES = "processes"
ROOM_BYTES = 2 << 30  # images of a campaign fit into memory if it has this much to spare


class NoRoom(Exception):
    """There is no place with room for the images; the message names the mend."""


def start_time(pid: int) -> str | None:
    """When process `pid` started, in the kernel's ticks, or None where there is none (a zombie counts as none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]


def default_parent() -> Path:
    """Where run folders go: DURABENCH_VM_RUN, else /dev/shm where it has room, else the temporary folder."""
    if chosen := os.environ.get("DURABENCH_VM_RUN"):
        return Path(chosen)
    shared = Path("/dev/shm")  # noqa: S108  a place to look at
    try:
        if shutil.disk_usage(shared).free >= ROOM_BYTES and os.access(shared, os.W_OK):
            return shared
    except OSError:
        pass
    return Path(tempfile.gettempdir())


class RunFolder:
    """A folder of this process's own, removed by `close`, or by the next run where this process was killed."""

    def __init__(self, parent: Path | None = None, *, need_bytes: int = 512 << 20) -> None:
        parent = default_parent() if parent is None else parent
        sweep(parent)
        free = shutil.disk_usage(parent).free
        if free < need_bytes:
            message = (
                f"{parent} has {free >> 20} MiB free, the machine's images need {need_bytes >> 20} MiB:"
                " make room, or set DURABENCH_VM_RUN to a folder elsewhere"
            )
            raise NoRoom(message)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.path.chmod(0o755)  # servers that drop their privileges reach what lies in it
        (self.path / PROCESSES).mkdir()
        self.own(os.getpid())

    def own(self, pid: int) -> None:
        """Make process `pid` the one whose end makes the folder stale."""
        temporary = self.path / (OWNER + ".part")
        temporary.write_text(json.dumps({"pid": pid, "start": start_time(pid)}))
        temporary.replace(self.path / OWNER)

    def record(self, pid: int) -> None:
        """Remember a process that must not outlive the owner."""
        (self.path / PROCESSES / str(pid)).write_text(start_time(pid) or "")

    def forget(self, pid: int) -> None:
        """It was reaped."""
        (self.path / PROCESSES / str(pid)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        """Be removed at the end of a `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove."""
        self.close()


def sweep(parent: Path) -> list[Path]:
    """Remove the run folders in `parent` whose owner is gone; gives what was removed. Other users' stay."""
    gone = []
    for folder in parent.glob(PREFIX + "*"):
        owner = folder / OWNER
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            named = json.loads(owner.read_text())
        except (OSError, ValueError):
            continue  # just being made, or just being removed
        if named["start"] is not None and start_time(named["pid"]) == named["start"]:
            continue
        _end_processes(folder / PROCESSES)
        shutil.rmtree(folder, ignore_errors=True)
        gone.append(folder)
    return gone


def _end_processes(folder: Path) -> None:
    for record in folder.glob("*"):
        pid = int(record.name)
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)  # from here on the id cannot be reused under us
            try:
                if start_time(pid) == record.read_text():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
