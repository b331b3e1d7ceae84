"""The power disk: a block device with a volatile write cache, whose log holds writes, flushes and acknowledgements.

It is an NBD server inside the controller, so that an acknowledgement the controller has just read is marked in the
same log, under the same lock, as the writes: for every moment one knows what had been promised. It keeps no model of
the cache while it runs; every write goes to the live image at once, and `crash` rebuilds afterwards what a drive could
have held.

Threads of this process serve the disk. Whoever holds it must go on running while the guest does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from durabench_vm.image import zero_range
from durabench_vm.recording import Entry, Kind, LogWriter, Recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HANDSHAKE: Final = b"NBDMAGICIHAVEOPT"
OPTION_MAGIC: Final = b"IHAVEOPT"
REPLY_MAGIC: Final = 0x3E889045565A9
REQUEST_MAGIC: Final = 0x25609513
ANSWER_MAGIC: Final = 0x67446698
OPTION = struct.Struct(">8sII")
REQUEST = struct.Struct(">IHHQQI")
ANSWER = struct.Struct(">IIQ")
OPT_EXPORT_NAME, OPT_ABORT, OPT_INFO, OPT_GO = 1, 2, 6, 7
REP_ACK, REP_INFO, REP_UNSUPPORTED = 1, 3, 0x80000001
INFO_EXPORT, INFO_BLOCK_SIZE = 0, 3
READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
COMMAND_FUA = 1
CAPABILITIES = 1 | 4 | 8 | 32 | 64  # has flags, flush, FUA, trim, write zeroes
MAXIMUM_BYTES = 32 << 20
MAXIMUM_OPTION_BYTES = 1 << 16
UNITS = (512, 4096)


class PowerDiskError(Exception):
    """The disk cannot be offered, or its log could not be written."""


class PowerDisk:
    """One disk: a live image that the guest reads and writes, and the log of all that happened to it.

    `unit_bytes` is what the drive promises to write whole (512 or 4096) and declares as its sector. `flush_delay_s`
    answers flushes late, as a slow drive does; other requests go on meanwhile. May be changed while it runs.
    """

    def __init__(self, image: Path, log: Path, *, unit_bytes: int = 512, flush_delay_s: float = 0.0) -> None:
        if unit_bytes not in UNITS:
            message = f"unit_bytes must be one of {UNITS}, not {unit_bytes}"
            raise ValueError(message)
        self.image, self.log_path = image, log
        self.unit_bytes, self.flush_delay_s = unit_bytes, flush_delay_s
        self._fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size
        if not self.size_bytes or self.size_bytes % 4096:
            os.close(self._fd)
            message = f"{image}: the size of a disk is a multiple of 4096 bytes, not {self.size_bytes}"
            raise PowerDiskError(message)
        self._lock = threading.Lock()
        self._log = self._new_log()
        self._is_cut = False
        self._error: str | None = None
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []

    def _new_log(self) -> LogWriter:
        header = {
            "size_bytes": self.size_bytes,
            "unit_bytes": self.unit_bytes,
            "flush_delay_s": self.flush_delay_s,
            "started_ns": time.monotonic_ns(),
        }
        return LogWriter(self.log_path, header)

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        """Give the other end of a served connection, to be inherited by the process that uses the disk."""
        ours, theirs = socket.socketpair()
        self._serve_in_thread(ours)
        return theirs

    def listen(self, path: Path) -> None:
        """Serve on a unix socket at `path` as well, for tools that connect by a path."""
        self._listener = socket.socket(socket.AF_UNIX)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has 107 bytes at most
        finally:
            os.close(folder)
        self._listener.listen(4)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True, name="power-disk-accept").start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._serve_in_thread(connection)

    def _serve_in_thread(self, connection: socket.socket) -> None:
        self._sockets.append(connection)
        threading.Thread(target=self._serve, args=(connection,), daemon=True, name="power-disk").start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(EOFError, ConnectionError, OSError), connection:
            stream = connection.makefile("rb", MAXIMUM_BYTES // 32)

            def receive(count: int) -> bytes:
                data: bytes | None = stream.read(count)
                if data is None or len(data) < count:
                    raise EOFError
                return data

            if self._negotiate(connection, receive):
                _Session(self, connection, receive).run()

    def _negotiate(self, connection: socket.socket, receive: Callable[[int], bytes]) -> bool:
        connection.sendall(HANDSHAKE + struct.pack(">H", 3))
        receive(4)
        while True:
            magic, option, length = OPTION.unpack(receive(OPTION.size))
            if magic != OPTION_MAGIC or length > MAXIMUM_OPTION_BYTES:
                return False
            receive(length)

            def reply(kind: int, data: bytes = b"", option: int = option) -> None:
                connection.sendall(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(data)) + data)

            if option in {OPT_GO, OPT_INFO}:
                reply(REP_INFO, struct.pack(">HQH", INFO_EXPORT, self.size_bytes, CAPABILITIES))
                reply(REP_INFO, struct.pack(">HIII", INFO_BLOCK_SIZE, self.unit_bytes, 4096, MAXIMUM_BYTES))
                reply(REP_ACK)
                if option == OPT_GO:
                    return True
            elif option == OPT_EXPORT_NAME:
                connection.sendall(struct.pack(">QH", self.size_bytes, CAPABILITIES) + bytes(124))
                return True
            elif option == OPT_ABORT:
                reply(REP_ACK)
                return False
            else:
                reply(REP_UNSUPPORTED)

    # -- what the guest does ----------------------------------------------------------------------------------------

    def read(self, offset: int, length: int) -> bytes:
        """Content of the live image. OSError(EIO) once the power is gone."""
        if self._is_cut:
            raise OSError(errno.EIO, "the power is cut")
        return os.pread(self._fd, length, offset)

    def write(self, offset: int, data: bytes, *, fua: bool = False) -> None:
        """Complete one write: in the live image and in the log."""
        with self._lock:
            self._powered()
            os.pwrite(self._fd, data, offset)
            self._append(Entry(Kind.WRITE, time.monotonic_ns(), offset, len(data), fua=fua), data)

    def zero(self, offset: int, length: int, *, fua: bool = False, trim: bool = False) -> None:
        """Complete one write-zeroes, or one discard (which this disk answers by zeroes, too)."""
        with self._lock:
            self._powered()
            zero_range(self._fd, offset, length)
            self._append(Entry(Kind.TRIM if trim else Kind.ZERO, time.monotonic_ns(), offset, length, fua=fua))

    def flush(self, covers: int) -> None:
        """Answer a flush that was received at position `covers`."""
        with self._lock:
            self._powered()
            self._append(Entry(Kind.FLUSH, time.monotonic_ns(), covers=covers))

    def _powered(self) -> None:
        if self._is_cut:
            raise OSError(errno.EIO, "the power is cut")

    def _append(self, entry: Entry, data: bytes = b"") -> int:
        if self._error:
            raise OSError(errno.EIO, self._error)
        try:
            return self._log.append(entry, data)
        except OSError as error:  # a log with a hole would prove nothing: the disk fails from here on
            self._error = f"the log {self.log_path} could not be written ({error.strerror}): make room there"
            raise

    # -- what the controller does -----------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How many entries the log has."""
        with self._lock:
            return self._log.position

    def mark(self, mark: Any) -> int | None:
        """Put an acknowledgement (anything JSON can hold) into the log; gives the position after it.

        Call it at the moment the acknowledgement is held. None: the power was cut before, and nothing was promised.
        Raises PowerDiskError where the log is not to be trusted.
        """
        with self._lock:
            if self._error:
                raise PowerDiskError(self._error)
            if self._is_cut:
                return None
            return self._append(Entry(Kind.MARK, time.monotonic_ns(), mark=mark))

    def cut(self) -> int:
        """Cut the power: nothing is read, written or answered from now on. Gives the last position."""
        with self._lock:
            self._is_cut = True
            self._log.flush()
            return self._log.position

    def swap(self, image: Path, log: Path | None = None) -> None:
        """Put another content of the same size under the running disk; start a new log, over the old one by default.

        The guest must hold nothing of the old content: unmounted, and its buffers of the device dropped.
        """
        fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_size != self.size_bytes:
            os.close(fd)
            message = f"{image}: a disk of {self.size_bytes} bytes cannot become one of another size"
            raise PowerDiskError(message)
        with self._lock:
            old, self._fd, self.image = self._fd, fd, image
            self._log.close()
            self.log_path = log or self.log_path
            self._log = self._new_log()
        os.close(old)

    def recording(self) -> Recording:
        """What has happened so far. PowerDiskError where the log is not to be trusted."""
        with self._lock:
            if self._error:
                raise PowerDiskError(self._error)
            self._log.flush()
        return Recording.load(self.log_path)

    def close(self) -> None:
        """Cut the power, end all connections, close the files. The image and the log stay. May be called twice."""
        self._is_cut = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    self._log.close()
                os.close(self._fd)
                self._fd = -1


class _Session:
    """The transmission phase of one connection: reads requests, answers each once."""

    def __init__(self, disk: PowerDisk, connection: socket.socket, receive: Callable[[int], bytes]) -> None:
        self._disk, self._connection, self._receive = disk, connection, receive
        self._send_lock = threading.Lock()

    def run(self) -> None:
        while True:
            magic, flags, command, handle, offset, length = REQUEST.unpack(self._receive(REQUEST.size))
            if magic != REQUEST_MAGIC or command == DISCONNECT:
                return
            if command in {READ, WRITE} and length > MAXIMUM_BYTES:
                return
            payload = self._receive(length) if command == WRITE else b""
            fua = bool(flags & COMMAND_FUA)
            if command == FLUSH:
                self._flush(handle)
            elif offset + length > self._disk.size_bytes:
                self._answer(handle, errno.EINVAL)
            else:
                self._carry_out(command, handle, offset, length, payload, fua=fua)

    def _carry_out(self, command: int, handle: int, offset: int, length: int, payload: bytes, *, fua: bool) -> None:
        data = b""
        try:
            if command == READ:
                data = self._disk.read(offset, length)
            elif command == WRITE:
                self._disk.write(offset, payload, fua=fua)
            elif command in {TRIM, WRITE_ZEROES}:
                self._disk.zero(offset, length, fua=fua, trim=command == TRIM)
            else:
                self._answer(handle, errno.EINVAL)
                return
        except OSError as error:
            self._answer(handle, errno.ENOSPC if error.errno == errno.ENOSPC else errno.EIO)
            return
        self._answer(handle, 0, data)

    def _flush(self, handle: int) -> None:
        covers = self._disk.position
        delay_s = self._disk.flush_delay_s
        if delay_s <= 0:
            self._flush_now(handle, covers)
            return
        timer = threading.Timer(delay_s, self._flush_late, args=(handle, covers))
        timer.daemon = True
        timer.start()

    def _flush_late(self, handle: int, covers: int) -> None:
        with contextlib.suppress(OSError):  # the connection may be gone by now
            self._flush_now(handle, covers)

    def _flush_now(self, handle: int, covers: int) -> None:
        try:
            self._disk.flush(covers)
        except OSError:
            self._answer(handle, errno.EIO)
        else:
            self._answer(handle, 0)

    def _answer(self, handle: int, error: int, data: bytes = b"") -> None:
        with self._send_lock:
            self._connection.sendall(ANSWER.pack(ANSWER_MAGIC, error, handle) + data)
