"""A minimal NBD client: enough to speak to the power disk as the kernel and QEMU do."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
FUA = 1


@dataclass
class Client:
    """One connection. Requests may be sent without waiting; `answer` gives (handle, error)."""

    socket: socket.socket
    size_bytes: int = 0
    handle: int = 0

    def __post_init__(self) -> None:
        self.socket.settimeout(10)
        self.stream = self.socket.makefile("rb")
        assert self.stream.read(16) == b"NBDMAGICIHAVEOPT"
        self.stream.read(2)
        self.socket.sendall(struct.pack(">I", 3) + struct.pack(">8sII", b"IHAVEOPT", 99, 3) + b"abc")
        assert self.option()[1] == 0x80000001  # an unknown option is refused, not fatal
        self.socket.sendall(struct.pack(">8sII", b"IHAVEOPT", 7, 6) + struct.pack(">IH", 0, 0))
        while (reply := self.option())[1] != 1:
            if reply[2][:2] == b"\0\0":
                self.size_bytes = struct.unpack(">HQH", reply[2])[1]

    def option(self) -> tuple[int, int, bytes]:
        _, option, kind, length = struct.unpack(">QIII", self.stream.read(20))
        return option, kind, self.stream.read(length)

    def send(self, command: int, offset: int = 0, length: int = 0, data: bytes = b"", flags: int = 0) -> int:
        self.handle += 1
        head = struct.pack(">IHHQQI", 0x25609513, flags, command, self.handle, offset, length or len(data))
        self.socket.sendall(head + data)
        return self.handle

    def answer(self) -> tuple[int, int]:
        magic, error, handle = struct.unpack(">IIQ", self.stream.read(16))
        assert magic == 0x67446698
        return handle, error

    def call(self, command: int, offset: int = 0, length: int = 0, data: bytes = b"", flags: int = 0) -> int:
        handle = self.send(command, offset, length, data, flags)
        answered, error = self.answer()
        assert answered == handle
        return error

    def write(self, offset: int, data: bytes, *, fua: bool = False) -> None:
        assert self.call(WRITE, offset, data=data, flags=FUA if fua else 0) == 0

    def flush(self) -> None:
        assert self.call(FLUSH) == 0

    def read(self, offset: int, length: int) -> bytes:
        assert self.call(READ, offset, length) == 0
        return self.stream.read(length)

    def close(self) -> None:
        self.socket.close()
