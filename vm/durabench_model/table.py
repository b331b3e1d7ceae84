"""The open files below the recorded folder, by the numbers they have in the programs."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from durabench_model import kernel

O_SYNC, O_DSYNC = os.O_SYNC, os.O_DSYNC
COLLECT_AT = 512


class OpenFile:
    """One open file description; `fd` is our descriptor of it."""

    __slots__ = ("append", "fd", "locked", "node", "sync")

    def __init__(self, fd: int, node: int, *, append: bool, sync: bool) -> None:
        self.fd, self.node, self.append, self.sync = fd, node, append, sync
        self.locked = False

    @classmethod
    def opened(cls, fd: int, node: int, flags: int) -> OpenFile:
        """Just opened with these flags."""
        return cls(fd, node, append=bool(flags & os.O_APPEND), sync=bool(flags & (O_SYNC | O_DSYNC)))

    def twin(self) -> OpenFile:
        """Another descriptor of the same description."""
        return OpenFile(os.dup(self.fd), self.node, append=self.append, sync=self.sync)


class OpenFiles:
    """Each number is used for one open file only, so that it says which one is meant in whatever process."""

    def __init__(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = kernel.LIMIT_FD if hard == resource.RLIM_INFINITY else min(hard, kernel.LIMIT_FD)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limit, hard))
        self._files: dict[int, OpenFile] = {}
        self._number = kernel.FIRST_FD
        self._collect_at = COLLECT_AT
        self.any_locked = False

    def get(self, number: int) -> OpenFile | None:
        """The open file of a number."""
        return self._files.get(number)

    def put(self, number: int, file: OpenFile) -> None:
        """The program has it now."""
        self._files[number] = file

    def free_number(self) -> int:
        """A number that no program has open."""
        if len(self._files) >= self._collect_at:
            self.collect()
        if len(self._files) >= self._limit - kernel.FIRST_FD - 8:
            raise OSError(24, "too many open files below the recorded folder")  # EMFILE
        while self._number in self._files or self._number >= self._limit:
            self._number = kernel.FIRST_FD if self._number >= self._limit else self._number + 1
        self._number += 1
        return self._number - 1

    def collect(self) -> None:
        """Close what no program has open any more."""
        alive = kernel.descendants(os.getpid())
        kept = {
            number: file
            for number, file in self._files.items()
            if any(os.path.lexists(f"/proc/{pid}/fd/{number}") for pid in alive)
        }
        for number, file in self._files.items():
            if number not in kept:
                os.close(file.fd)
        self._files = kept
        self._collect_at = max(COLLECT_AT, 2 * len(kept))
        self.any_locked = any(file.locked for file in kept.values())

    def lock(self, file: OpenFile) -> None:
        """A lock of an open file ends when nobody has it open any more; that includes us."""
        if any(other.locked and other.node == file.node and other is not file for other in self._files.values()):
            self.collect()
        for other in self._files.values():
            other.locked |= other.node == file.node
        self.any_locked = True

    def let_go(self, number: int, own_process: int) -> None:
        """A process closes a locked file: what we hold would hold its lock, unless another has it, too."""
        others = (pid for pid in kernel.descendants(os.getpid()) if pid != own_process)
        if not any(os.path.lexists(f"/proc/{pid}/fd/{number}") for pid in others):
            os.close(self._files.pop(number).fd)

    def close(self) -> None:
        """Close all of them."""
        for file in self._files.values():
            with suppress(OSError):
                os.close(file.fd)
        self._files.clear()
