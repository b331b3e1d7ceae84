"""What every call needs: the log, the callers, the open files, and which node a descriptor or a name is."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from durabench_model import kernel
from durabench_model.caller import Callers, Place
from durabench_model.log import Kind, LogWriter
from durabench_model.table import OpenFile, OpenFiles

if TYPE_CHECKING:
    from durabench_model.kernel import Call


class Give(NamedTuple):
    """The call's result is a descriptor of this file."""

    file: OpenFile
    cloexec: bool


class Late(NamedTuple):
    """The call is a flush that is answered, and logged, some time later; meanwhile others go on."""

    node: int
    flags: int
    covers: int


class Ground:
    """What is below the recorded folder. The base of the handlers, which are methods named after their calls."""

    def __init__(self, root: str, log: LogWriter) -> None:
        self.root, self.log = root, log
        self.callers = Callers(root)
        self.files = OpenFiles()
        self.device = os.stat(root).st_dev
        self.low = False  # whether a file was ever moved to 0…2
        self.borrowed: list[int] = []  # descriptors to be closed when the call is answered
        self._nodes: dict[int, int] = {}  # inode number → node, of what has a name
        self._next_node = 0
        self._walk()

    def _walk(self) -> None:
        """Number what is there at the beginning, so that a copy of it can be told apart."""
        listing: list[list[Any]] = []
        top = self.node_of(os.lstat(self.root).st_ino)
        for folder, folders, files in os.walk(self.root):
            here = self.node_at(folder)
            for name in sorted(folders + files):
                path = os.path.join(folder, name)
                found = os.lstat(path)
                link = os.readlink(path) if stat.S_ISLNK(found.st_mode) else None
                listing.append([here, name, self.node_of(found.st_ino), found.st_mode, link])
        self.log.append(Kind.BASE, top, payload=json.dumps(listing).encode())

    # --- nodes

    def node_of(self, inode: int, *, new: bool = False) -> int:
        """The node of something with a name; a number that is used again is a new node."""
        node = None if new else self._nodes.get(inode)
        if node is None:
            node = self._nodes[inode] = self._next_node
            self._next_node += 1
        return node

    def node_at(self, path: str) -> int:
        """The node at a path."""
        return self.node_of(os.lstat(path).st_ino)

    def known(self, inode: int) -> int | None:
        """The node of an inode number, if it has one."""
        return self._nodes.get(inode)

    def forget(self, found: os.stat_result) -> None:
        """A name of it was removed; with the last one its number may be used again."""
        if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
            self._nodes.pop(found.st_ino, None)

    # --- descriptors and names

    def place(self, call: Call, folder: int, name: int) -> Place | None:
        """Where a name in the caller's memory leads; None where that is not below the folder."""
        return self.callers.place(call.thread, folder, self.callers.text(call.thread, name))

    def file(self, call: Call, number: int) -> OpenFile | None:
        """The file below the folder that a descriptor is, if it was opened for writing."""
        number &= 0xFFFFFFFF
        return self._moved(call, number) if number <= 2 and self.low else self.files.get(number)

    def _moved(self, call: Call, number: int) -> OpenFile | None:
        """What a shell moved to 0…2: told by its inode, used by a descriptor of the same description."""
        node = self.node_behind(call, number)
        if node is None:
            return None
        fd = self.borrow(call, number)
        return OpenFile.opened(fd, node, kernel.status_flags(fd))

    def borrow(self, call: Call, number: int) -> int:
        """Our own descriptor of any open file of the caller, until the call is answered."""
        fd = kernel.descriptor_of(self.callers.process(call.thread), number & 0xFFFFFFFF)
        self.borrowed.append(fd)
        return fd

    def node_behind(self, call: Call, number: int) -> int | None:
        """The node of any descriptor of the caller; None where it is not below the folder."""
        number &= 0xFFFFFFFF
        file = self.files.get(number)
        if file is not None:
            return file.node
        try:
            found = os.stat(f"/proc/{call.thread}/fd/{number}")
        except OSError:
            return None
        return self._nodes.get(found.st_ino) if found.st_dev == self.device else None


def signed(value: int, bits: int = 64) -> int:
    """An argument that may be negative."""
    return value - (1 << bits) if value >> (bits - 1) else value


def offset(value: int) -> int:
    """An argument that is an offset or a size. EINVAL where it is negative."""
    if value >> 63:
        raise OSError(errno.EINVAL, "negative")
    return value
