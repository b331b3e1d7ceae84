"""Run folders: where images, logs and consoles of one process live, and how none is left behind.

A folder of ours holds a lock as long as the process lives that made it: the kernel lets go of it, whatever ended that
process, and it means the same in every process namespace, where an id would mean another process or none. Whoever makes
the next folder first sweeps away those whose lock is free, and ends the processes recorded in them: also after
`kill -9`. What has another name, another owner or no lock in it is somebody's, and stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PREFIX = "durabench-vm-"
LOCK = "lock"
PROCESSES = "processes"
ROOM_BYTES = 2 << 30  # images of a campaign fit into memory if it has this much to spare
TRIES = 100


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


def open_lock(path: Path) -> int:
    """A file to lock, made where it is not there. OSError where that name is a link or anything else but our own file:
    it may lie in a folder that everybody writes to, and is never opened then.
    """
    with contextlib.suppress(FileExistsError):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        known = os.fstat(place)
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid() or known.st_nlink != 1:
            message = "not a lock of our own: remove it, or choose another folder"
            raise PermissionError(errno.EPERM, message, str(path))
        return os.open(f"/proc/self/fd/{place}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(place)


def remove(folder: Path) -> None:
    """Remove a folder of ours, following no link; one in which something is mounted stays, for that is not ours.

    The lock goes last: what could not be removed is swept the next time.
    """
    if _mounted_in(folder):
        return
    with contextlib.suppress(OSError, RecursionError):  # a tree may be deeper than what walks it
        for entry in list(os.scandir(folder)):
            if entry.name == LOCK:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)
        if [entry.name for entry in os.scandir(folder)] in ([], [LOCK]):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def _mounted_in(folder: Path) -> bool:
    inside = os.path.realpath(folder) + "/"
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4])
        if point.startswith(inside):
            return True
    return False


class OwnFolder:
    """A folder of this process's own in `parent`, removed by `close`, or by the next of its kind where this process was
    killed. `prefix` names the kind. Others may pass through it, not look around (servers drop their privileges).
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        sweep(parent, prefix)
        for _ in range(TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self.path.chmod(0o711)
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self._lock = open_lock(self.path / LOCK)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._lock), (self.path / LOCK).stat()):
                    return
            # Somebody swept it away before it was locked: once more.
        message = f"no folder of our own can be made in {parent}"
        raise OSError(errno.EBUSY, message)

    def close(self) -> None:
        """Remove the folder. May be called twice."""
        remove(self.path)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        """Be removed at the end of a `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove."""
        self.close()


class RunFolder(OwnFolder):
    """Where the images, logs and processes of a run are. NoRoom where they would not fit."""

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
        super().__init__(parent, PREFIX)
        (self.path / PROCESSES).mkdir()

    def record(self, pid: int) -> None:
        """Remember a process that must not outlive the owner."""
        (self.path / PROCESSES / str(pid)).write_text(_known_as(pid))

    def forget(self, pid: int) -> None:
        """It was reaped."""
        (self.path / PROCESSES / str(pid)).unlink(missing_ok=True)


def sweep(parent: Path, prefix: str = PREFIX) -> list[Path]:
    """Remove the folders of a kind in `parent` whose owner is gone; gives what was removed. What is not ours stays."""
    gone = []
    name = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")  # as tempfile makes them
    for folder in (path for path in parent.glob(prefix + "*") if name.fullmatch(path.name)):
        lock = _abandoned(folder)
        if lock is not None:
            _end_processes(folder / PROCESSES)
            remove(folder)
            os.close(lock)
            gone += [] if folder.exists() else [folder]
    return gone


def _abandoned(folder: Path) -> int | None:
    """The lock of a folder of ours whose owner is gone, taken over; None where it lives or is not ours."""
    try:
        known = folder.lstat()
        if not stat.S_ISDIR(known.st_mode) or known.st_uid != os.geteuid():
            return None
        if not (folder / LOCK).is_symlink() and not (folder / LOCK).exists():
            folder.rmdir()  # killed between making and locking it: only an empty one
            return None
        lock = open_lock(folder / LOCK)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _known_as(pid: int) -> str:
    """What tells a process from every other one of that id: when it started, since which boot, in which namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{start_time(pid)} {boot} {Path('/proc/self/ns/pid').readlink()}"


def _end_processes(folder: Path) -> None:
    for record in folder.glob("*"):
        with contextlib.suppress(OSError, ValueError):
            handle = os.pidfd_open(int(record.name))  # from here on the id cannot be reused under us
            try:
                if _known_as(int(record.name)) == record.read_text():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
