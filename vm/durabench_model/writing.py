"""Calls that change bytes, and calls that make them durable.

Flushes are logged and answered without being done, since the model decides what they are worth.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from durabench_model import MARK_FD, WHERE_FD, kernel
from durabench_model.caller import AT_FDCWD
from durabench_model.ground import Give, Ground, Late, offset
from durabench_model.log import DATA_ONLY, FAILED, Kind, LogWriter

if TYPE_CHECKING:
    import re

    from durabench_model.kernel import Call
    from durabench_model.table import OpenFile

RWF_DSYNC, RWF_SYNC, RWF_APPEND = 2, 4, 16
COLLAPSE, INSERT = 8, 0x20
PAGE = 4096
LARGEST_WRITE, LARGEST_COPY, LARGEST_MAPPED = 256 << 20, 8 << 20, 64 << 20
LONGEST_LINE = 1 << 16
CURRENT = (1 << 64) - 1
"""The offset that means: where the file is."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong once: the so-manieth write (ENOSPC) or flush (EIO), counted from 1; 0 for none."""

    write: int = 0
    flush: int = 0


class Writing(Ground):
    """Handlers of writes, flushes, mappings, and descriptors."""

    def __init__(
        self,
        root: str,
        log: LogWriter,
        *,
        do_flushes: bool = False,
        late_flushes: bool = False,
        faults: Faults | None = None,
        acknowledged: re.Pattern[bytes] | None = None,
    ) -> None:
        """`acknowledged`: a line on the recorder's own stdout that matches is a mark."""
        super().__init__(root, log)
        self._do_flushes, self._late_flushes, self._faults = do_flushes, late_flushes, faults or Faults()
        self._writes = self._flushes = 0
        self._mapped: dict[int, tuple[int, bytearray]] = {}  # node → our descriptor, its content as logged
        self._pattern, self._stdout, self._line = acknowledged, os.fstat(1) if acknowledged else None, b""

    def finish(self) -> None:
        """Log what was written to mapped files, and close everything."""
        for node, (fd, _) in self._mapped.items():
            self._look(node)
            os.close(fd)
        self._mapped.clear()
        self.files.close()

    # --- writing

    def write(self, call: Call) -> int | None:
        number, address, count, *_ = call.arguments
        file = self.file(call, number)
        if file is not None:
            return self._put(file, self.callers.memory(call.thread, address, min(count, LARGEST_WRITE)), None)
        if number == MARK_FD:
            self._look_at_all()
            self.log.append(Kind.MARK, payload=self.callers.memory(call.thread, address, min(count, LONGEST_LINE)))
            return count
        if number == WHERE_FD:
            self.log.append(Kind.WHERE, payload=self.callers.memory(call.thread, address, min(count, LONGEST_LINE)))
            return count
        if number == 1 and self._shown(call):
            return self._say(self.callers.memory(call.thread, address, min(count, LONGEST_LINE)))
        return None

    def writev(self, call: Call) -> int | None:
        number, address, count, *_ = call.arguments
        file = self.file(call, number)
        if file is not None:
            return self._put(file, self.callers.vector(call.thread, address, count, LARGEST_WRITE), None)
        if number == 1 and self._shown(call):
            return self._say(self.callers.vector(call.thread, address, count, LONGEST_LINE))
        return None

    def pwrite64(self, call: Call) -> int | None:
        number, address, count, at, *_ = call.arguments
        file = self.file(call, number)
        if file is None:
            return None
        return self._put(file, self.callers.memory(call.thread, address, min(count, LARGEST_WRITE)), offset(at))

    def pwritev(self, call: Call) -> int | None:
        number, address, count, at, *_ = call.arguments
        file = self.file(call, number)
        if file is None:
            return None
        return self._put(file, self.callers.vector(call.thread, address, count, LARGEST_WRITE), offset(at))

    def pwritev2(self, call: Call) -> int | None:
        number, address, count, at, _, flags = call.arguments
        file = self.file(call, number)
        if file is None:
            return None
        if flags & RWF_APPEND:
            raise OSError(errno.EOPNOTSUPP, "RWF_APPEND")
        data = self.callers.vector(call.thread, address, count, LARGEST_WRITE)
        done = self._put(file, data, None if at == CURRENT else offset(at))
        if flags & (RWF_DSYNC | RWF_SYNC):
            self.log.append(Kind.FLUSH, file.node, flags=DATA_ONLY)
        return done

    def _put(self, file: OpenFile, data: bytes, at: int | None) -> int:
        self._writes += 1
        if self._writes == self._faults.write:
            raise OSError(errno.ENOSPC, "asked for")
        self._look(file.node)
        if at is None:
            done = os.write(file.fd, data)
            at = os.lseek(file.fd, 0, os.SEEK_CUR) - done
        else:
            done = os.pwrite(file.fd, data, at)
            if file.append:  # Linux appends whatever the offset says
                at = os.fstat(file.fd).st_size - done
        if done:
            self.log.append(Kind.WRITE, file.node, at, payload=data[:done])
            self._know(file.node)
            if file.sync:
                self.log.append(Kind.FLUSH, file.node, flags=DATA_ONLY)
        return done

    def ftruncate(self, call: Call) -> int | None:
        file = self.file(call, call.arguments[0])
        if file is None:
            return None
        size = offset(call.arguments[1])
        self._look(file.node)
        os.ftruncate(file.fd, size)
        self.log.append(Kind.SIZE, file.node, size)
        self._know(file.node)
        return 0

    def truncate(self, call: Call) -> int | None:
        place = self.place(call, AT_FDCWD, call.arguments[0])
        if place is None:
            return None
        path, size = os.path.realpath(place[0]), offset(call.arguments[1])
        with self.callers.rights(call.thread):
            os.truncate(path, size)
        self.log.append(Kind.SIZE, self.node_at(path), size)
        return 0

    def fallocate(self, call: Call) -> int | None:
        file = self.file(call, call.arguments[0])
        if file is None:
            return None
        mode, begin, length = call.arguments[1], offset(call.arguments[2]), offset(call.arguments[3])
        if mode & (COLLAPSE | INSERT):
            raise OSError(errno.EOPNOTSUPP, "programs fall back to reading and writing")
        long = ctypes.c_long
        if kernel.libc.fallocate(file.fd, ctypes.c_int(mode), long(begin), long(length)):
            raise OSError(ctypes.get_errno(), "fallocate")
        self.log.append(Kind.ALLOCATE, file.node, begin, length, flags=mode & 0xFF)
        return 0

    # --- copying inside the kernel

    def copy_file_range(self, call: Call) -> int | None:
        source, from_at, target, to_at, count, _ = call.arguments
        return self._copy(call, source, target, count, errno.EXDEV, plain=not (from_at or to_at))

    def sendfile(self, call: Call) -> int | None:
        target, source, from_at, count, *_ = call.arguments
        return self._copy(call, source, target, count, errno.EINVAL, plain=not from_at)

    def splice(self, call: Call) -> int | None:
        source, _, target, _, count, _ = call.arguments
        return self._copy(call, source, target, count, errno.EINVAL, plain=False)

    def _copy(self, call: Call, source: int, target: int, count: int, refusal: int, *, plain: bool) -> int | None:
        """Read here and write here, where both files stand where they are; else refused, and programs fall back."""
        file = self.file(call, target)
        if file is None:
            return None
        if not plain:
            raise OSError(refusal, "programs fall back to reading and writing, whose bytes the log can hold")
        known = self.file(call, source)
        data = os.read(known.fd if known else self.borrow(call, source), min(count, LARGEST_COPY))
        return self._put(file, data, None) if data else 0

    def ioctl(self, call: Call) -> int | None:
        if self.node_behind(call, call.arguments[0]) is None:
            return None
        raise OSError(errno.EOPNOTSUPP, "reflinks: programs fall back to reading and writing")

    def io_uring_setup(self, _call: Call) -> int:
        self.log.note(-1, "io_uring was refused")
        raise OSError(errno.ENOSYS, "programs fall back")

    def io_setup(self, _call: Call) -> int:
        self.log.note(-1, "asynchronous I/O (libaio) was refused")
        raise OSError(errno.ENOSYS, "programs fall back")

    # --- flushing

    def fsync(self, call: Call, flags: int = 0) -> int | Late | None:
        number = call.arguments[0]
        node = self.node_behind(call, number)
        if node is None:
            return None
        self._look(node)
        self._flushes += 1
        if self._flushes == self._faults.flush:
            self.log.append(Kind.FLUSH, node, flags=flags | FAILED)
            raise OSError(errno.EIO, "asked for")
        if self._do_flushes:
            file = self.files.get(number)
            fd = self.borrow(call, number) if file is None else file.fd
            (os.fdatasync if flags & DATA_ONLY else os.fsync)(fd)
        if self._late_flushes:
            return Late(node, flags, self.log.position)
        self.log.append(Kind.FLUSH, node, flags=flags)
        return 0

    def fdatasync(self, call: Call) -> int | Late | None:
        return self.fsync(call, DATA_ONLY)

    def sync(self, _call: Call) -> int:
        self._look_at_all()
        if self._do_flushes:
            fd = os.open(self.root, os.O_RDONLY)
            kernel.libc.syncfs(fd)
            os.close(fd)
        self.log.append(Kind.FLUSH_ALL)
        return 0

    def syncfs(self, call: Call) -> int | None:
        try:
            found = os.stat(f"/proc/{call.thread}/fd/{call.arguments[0] & 0xFFFFFFFF}")
        except OSError:
            return None
        return self.sync(call) if found.st_dev == self.device else None

    def sync_file_range(self, _call: Call) -> int:
        return 0  # begins to write; promises nothing

    # --- mapped files

    def mmap(self, call: Call) -> None:
        file = self.files.get(call.arguments[4])
        if file is None or file.node in self._mapped:
            return
        size = os.fstat(file.fd).st_size
        if size > LARGEST_MAPPED:
            self.log.note(file.node, "mapped shared and writable, too large to be compared: not seen", doubt=True)
            return
        self.log.note(file.node, "mapped shared and writable: seen at flushes and marks only, in no order")
        fd = os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._mapped[file.node] = fd, bytearray(os.pread(fd, size, 0))

    def _look_at_all(self) -> None:
        for node in self._mapped:
            self._look(node)

    def _look(self, node: int) -> None:
        """Log what was written to a mapped file without a call, by comparing pages."""
        if node not in self._mapped:
            return
        fd, known = self._mapped[node]
        now = os.pread(fd, LARGEST_MAPPED, 0)
        if now == known:
            return
        for at in range(0, len(now), PAGE):
            page = now[at : at + PAGE]
            if page != known[at : at + PAGE]:
                self.log.append(Kind.WRITE, node, at, payload=page)
        known[:] = now

    def _know(self, node: int) -> None:
        """A mapped file was changed by a call that is in the log."""
        if node in self._mapped:
            fd, known = self._mapped[node]
            known[:] = os.pread(fd, LARGEST_MAPPED, 0)

    def msync(self, call: Call) -> None:
        begin, end = call.arguments[0], call.arguments[0] + call.arguments[1]
        if not self._mapped:
            return
        with open(f"/proc/{call.thread}/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                span, _, _, _, inode, *_ = line.split(maxsplit=5)
                low, high = (int(word, 16) for word in span.split("-"))
                node = self.known(int(inode))
                if low < end and begin < high and node in self._mapped:
                    self._look(node)
                    self.log.append(Kind.FLUSH, node, flags=DATA_ONLY)

    # --- descriptors

    def close(self, call: Call) -> None:
        file = self.files.get(call.arguments[0])
        if file is None:
            return
        self.log.append(Kind.CLOSE, file.node)
        if file.locked:
            self.files.let_go(call.arguments[0], self.callers.process(call.thread))

    def flock(self, call: Call) -> None:
        file = self.files.get(call.arguments[0])
        if file is not None:
            self.files.lock(file)

    def dup(self, call: Call) -> Give | None:
        file = self.files.get(call.arguments[0])
        return None if file is None else Give(file.twin(), cloexec=False)

    def fcntl(self, call: Call) -> Give | None:
        file = self.files.get(call.arguments[0])
        if file is None:
            return None
        command = call.arguments[1]
        if command in {kernel.F_OFD_SETLK, kernel.F_OFD_SETLKW}:
            self.files.lock(file)
            return None
        return Give(file.twin(), cloexec=command == kernel.F_DUPFD_CLOEXEC)

    def dup2(self, call: Call) -> None:
        file, to = self.files.get(call.arguments[0]), call.arguments[1]
        if file is None or to == call.arguments[0]:
            return
        if to <= 2:
            self.low = True
        else:
            self.log.note(file.node, f"a descriptor was moved to {to}: what is written there is not seen", doubt=True)

    dup3 = dup2

    # --- what the program says

    def _shown(self, call: Call) -> bool:
        """Whether the caller's stdout is ours, and its lines are looked at."""
        if self._stdout is None:
            return False
        with suppress(OSError):
            found = os.stat(f"/proc/{call.thread}/fd/1")
            return (found.st_dev, found.st_ino) == (self._stdout.st_dev, self._stdout.st_ino)
        return False

    def _say(self, data: bytes) -> int:
        """Print for the program, so that a line that acknowledges stands where it was printed."""
        done = os.write(1, data)
        *lines, self._line = (self._line + data[:done]).split(b"\n")
        self._line = self._line[-LONGEST_LINE:]
        for line in lines:
            if self._pattern is not None and self._pattern.search(line):
                self._look_at_all()
                self.log.append(Kind.MARK, payload=line)
        return done
