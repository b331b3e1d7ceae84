"""The threads that call: their memory, where they are, and the rights they have."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_model.kernel import libc

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_FDCWD = -100
NAME_BYTES = 4096
IOVEC = struct.Struct("<QQ")
FOLDERS_KEPT = 10_000


class Gone(OSError):
    """The thread ended while its call was carried out: nobody waits for an answer."""

    def __init__(self) -> None:
        super().__init__(errno.ESRCH, "gone")


class _Task:
    """What is remembered of one thread."""

    def __init__(self, thread: int) -> None:
        status = Path(f"/proc/{thread}/status").read_text(encoding="utf-8", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        self.process = int(fields["Tgid"])
        self.user, self.group = int(fields["Uid"].split()[3]), int(fields["Gid"].split()[3])
        self.groups = [int(word) for word in fields["Groups"].split()]
        self.umask = int(fields.get("Umask", "022"), 8)
        self.memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)


class Place(tuple[str, str, str]):
    """(path, its folder, its name) of something below the recorded folder; the folder is canonical."""

    __slots__ = ()


class Callers:
    """All threads that made a call. Methods raise Gone where a thread has ended, OSError with what to answer else."""

    def __init__(self, root: str) -> None:
        self.root, self._prefix = root, root + "/"
        self._tasks: dict[int, _Task] = {}
        self._folders: dict[str, str] = {}  # canonical folders, by how they were written
        self._root_user = os.geteuid() == 0
        self._groups = os.getgroups()

    def _task(self, thread: int) -> _Task:
        task = self._tasks.get(thread)
        if task is None:
            try:
                task = self._tasks[thread] = _Task(thread)
            except (FileNotFoundError, ProcessLookupError):
                raise Gone from None
        return task

    def process(self, thread: int) -> int:
        """The process of a thread."""
        return self._task(thread).process

    def forget_the_dead(self) -> None:
        """Close what was open of threads that ended."""
        for thread in [thread for thread in self._tasks if not os.path.exists(f"/proc/{thread}")]:
            os.close(self._tasks.pop(thread).memory)

    def forget(self, thread: int) -> None:
        """It is about to become somebody else."""
        task = self._tasks.pop(thread, None)
        if task is not None:
            os.close(task.memory)

    def set_umask(self, thread: int, mask: int) -> None:
        """The mask belongs to all threads of a process; its children inherit it and read it afresh."""
        process = self.process(thread)
        for task in self._tasks.values():
            if task.process == process:
                task.umask = mask & 0o777

    # --- memory

    def memory(self, thread: int, address: int, count: int) -> bytes:
        """Bytes of the caller's memory; fewer where it ends. EFAULT where there is none."""
        if not count:
            return b""
        for _ in range(2):  # an exec gives a thread a new memory: then it is opened again
            data = b""
            with suppress(OSError):
                data = os.pread(self._task(thread).memory, count, address)
            if data:
                return data
            old = self._tasks.pop(thread, None)
            if old is None:
                raise Gone
            os.close(old.memory)
        raise OSError(errno.EFAULT, "unreadable")

    def text(self, thread: int, address: int) -> str:
        """A name in the caller's memory."""
        data = self.memory(thread, address, NAME_BYTES)
        end = data.find(b"\0")
        if end < 0:
            raise OSError(errno.ENAMETOOLONG, "no end within a page")
        return os.fsdecode(data[:end])

    def vector(self, thread: int, address: int, count: int, at_most: int) -> bytes:
        """What an array of buffers holds, up to so many bytes."""
        parts: list[bytes] = []
        for base, length in IOVEC.iter_unpack(self.memory(thread, address, IOVEC.size * min(count, 1024))):
            taken = min(length, at_most)
            at_most -= taken
            if taken:
                parts.append(self.memory(thread, base, taken))
        return b"".join(parts)

    # --- places

    def place(self, thread: int, folder: int, name: str) -> Place | None:
        """Where a name leads that is relative to a descriptor; None where that is not below the recorded folder."""
        if not name:
            raise OSError(errno.ENOENT, "no name")
        if not name.startswith("/"):
            name = f"{self._at(thread, folder)}/{name}"
        elif name.startswith("/proc/self/"):
            name = f"/proc/{thread}/{name[11:]}"
        head, _, last = name.rstrip("/").rpartition("/")
        if last in {"", ".", ".."}:
            head, _, last = os.path.realpath(name).rpartition("/")
        canonical = self._folders.get(head)
        if canonical is None:
            if len(self._folders) > FOLDERS_KEPT:
                self._folders.clear()
            canonical = self._folders[head] = os.path.realpath(head)
        if canonical != self.root and not canonical.startswith(self._prefix):
            return None
        return Place((f"{canonical}/{last}", canonical, last))

    def followed(self, path: str) -> Place | None:
        """Where a link leads."""
        return self.place(0, AT_FDCWD, os.path.realpath(path))

    def forget_folders(self) -> None:
        """After a folder was moved or removed."""
        self._folders.clear()

    def _at(self, thread: int, folder: int) -> str:
        number = folder & 0xFFFFFFFF
        if number == AT_FDCWD & 0xFFFFFFFF:
            return os.readlink(f"/proc/{thread}/cwd")
        try:
            return os.readlink(f"/proc/{thread}/fd/{number}")
        except FileNotFoundError:
            raise OSError(errno.EBADF, "no such descriptor") from None

    # --- rights

    @contextmanager
    def rights(self, thread: int, *, creating: bool = False) -> Iterator[None]:
        """With the caller's rights, where they are less than ours, and, `creating`, its umask. (Ours is 0.)"""
        task = self._task(thread)
        if creating:
            os.umask(task.umask)
        other = self._root_user and task.user != 0
        if other:
            if task.groups != self._groups:
                os.setgroups(task.groups)
            libc.setfsgid(task.group)
            libc.setfsuid(task.user)
        try:
            yield
        finally:
            if other:
                libc.setfsuid(0)
                libc.setfsgid(0)
                if task.groups != self._groups:
                    os.setgroups(self._groups)
            if creating:
                os.umask(0)
