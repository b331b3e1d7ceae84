"""Calls that open, name and describe files and folders."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from durabench_model import kernel
from durabench_model.caller import AT_FDCWD
from durabench_model.ground import Give, Ground, signed
from durabench_model.log import EXCHANGE, REMOVED, Kind
from durabench_model.table import OpenFile

if TYPE_CHECKING:
    from durabench_model.kernel import Call

AT_SYMLINK_NOFOLLOW, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = 0x100, 0x200, 0x400, 0x1000
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
HOW = struct.Struct("<QQQ")
MODE_BITS = 0o7777
LARGEST_VALUE = 1 << 16
_DESCRIPTOR = re.compile(r"/proc/(?:self|thread-self|\d+)/fd/(\d+)")


class Thing(NamedTuple):
    """Something below the folder: a path that leads to it from here, and its node."""

    path: str
    node: int


class Naming(Ground):
    """Handlers of opening, names, modes, owners and extended attributes."""

    # --- opening

    def open(self, call: Call) -> Give | None:
        return self._open(call, AT_FDCWD, *call.arguments[:3])

    def openat(self, call: Call) -> Give | None:
        return self._open(call, *call.arguments[:4])

    def creat(self, call: Call) -> Give | None:
        name, mode, *_ = call.arguments
        return self._open(call, AT_FDCWD, name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)

    def openat2(self, call: Call) -> Give | None:
        flags, mode, resolve = HOW.unpack(self.callers.memory(call.thread, call.arguments[2], HOW.size))
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return None
        if resolve:
            raise OSError(errno.ENOSYS, "openat2 with resolve flags: programs fall back to openat")
        return self._open(call, call.arguments[0], call.arguments[1], flags, mode)

    def _open(self, call: Call, folder: int, name: int, flags: int, mode: int) -> Give | None:
        flags &= 0xFFFFFFFF
        written = self.callers.text(call.thread, name)
        if flags & kernel.O_TMPFILE:
            return self._open_nameless(call, self.callers.place(call.thread, folder, f"{written}/-"), flags, mode)
        place = self.callers.place(call.thread, folder, written)
        if place is None:
            return None
        found = _lstat(place[0])
        if found is not None and stat.S_ISLNK(found.st_mode) and not flags & os.O_NOFOLLOW:
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise OSError(errno.EEXIST, "a link")
            place = self.callers.followed(place[0])
            if place is None:
                return None
            found = _lstat(place[0])
        if found is None and not flags & os.O_CREAT:
            return None
        if found is not None and not stat.S_ISREG(found.st_mode):
            return None  # a folder, a pipe, a device: the kernel's answer will do
        path, parent, last = place
        with self.callers.rights(call.thread, creating=found is None):
            fd = os.open(path, flags & ~os.O_DIRECT & ~os.O_NONBLOCK, mode & MODE_BITS)
        now = os.fstat(fd)
        node = self.node_of(now.st_ino, new=found is None)
        if found is None:
            self.log.append(Kind.CREATE, self.node_at(parent), node, now.st_mode, payload=os.fsencode(last))
        elif flags & os.O_TRUNC and found.st_size:
            self.log.append(Kind.SIZE, node, 0)
        return self._opened(fd, node, flags)

    def _open_nameless(self, call: Call, place: tuple[str, str, str] | None, flags: int, mode: int) -> Give | None:
        if place is None:
            return None
        with self.callers.rights(call.thread, creating=True):
            fd = os.open(place[1], flags & ~os.O_DIRECT, mode & MODE_BITS)
        now = os.fstat(fd)
        node = self.node_of(now.st_ino, new=True)
        self.log.append(Kind.CREATE, -1, node, now.st_mode)
        return self._opened(fd, node, flags)

    def _opened(self, fd: int, node: int, flags: int) -> Give:
        if flags & os.O_DIRECT:
            self.log.note(node, "O_DIRECT was carried out without it")
        return Give(OpenFile.opened(fd, node, flags), cloexec=bool(flags & os.O_CLOEXEC))

    # --- renaming

    def rename(self, call: Call) -> int | None:
        return self._rename(call, AT_FDCWD, call.arguments[0], AT_FDCWD, call.arguments[1], 0)

    def renameat(self, call: Call) -> int | None:
        old_in, old, new_in, new, *_ = call.arguments
        return self._rename(call, old_in, old, new_in, new, 0)

    def renameat2(self, call: Call) -> int | None:
        return self._rename(call, *call.arguments[:5])

    def _rename(self, call: Call, old_in: int, old: int, new_in: int, new: int, flags: int) -> int | None:
        source, target = self.place(call, old_in, old), self.place(call, new_in, new)
        if source is None and target is None:
            self.callers.forget_folders()
            return None
        if source is None or target is None:
            raise OSError(errno.EXDEV, "into or out of the recorded folder: programs fall back to copying")
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, "a whiteout")
        found, replaced = os.lstat(source[0]), _lstat(target[0])
        with self.callers.rights(call.thread):
            _renameat2(source[0], target[0], flags)
        if replaced is not None and replaced.st_ino == found.st_ino:
            return 0  # two names of one file: nothing happens
        exchanged = flags & RENAME_EXCHANGE
        if replaced is not None and not exchanged:
            self.forget(replaced)
        if exchanged or any(each is not None and _leads(each) for each in (found, replaced)):
            self.callers.forget_folders()
        folders = self.node_at(source[1]), self.node_at(target[1])
        names = os.fsencode(f"{source[2]}\0{target[2]}")
        flag = EXCHANGE if exchanged else 0
        self.log.append(Kind.RENAME, folders[0], self.node_of(found.st_ino), folders[1], payload=names, flags=flag)
        return 0

    # --- removing

    def unlink(self, call: Call) -> int | None:
        return self._remove(call, AT_FDCWD, call.arguments[0], 0)

    def rmdir(self, call: Call) -> int | None:
        return self._remove(call, AT_FDCWD, call.arguments[0], AT_REMOVEDIR)

    def unlinkat(self, call: Call) -> int | None:
        return self._remove(call, *call.arguments[:3])

    def _remove(self, call: Call, folder: int, name: int, flags: int) -> int | None:
        place = self.place(call, folder, name)
        if place is None:
            self.callers.forget_folders()
            return None
        path, parent, last = place
        found = os.lstat(path)
        with self.callers.rights(call.thread):
            (os.rmdir if flags & AT_REMOVEDIR else os.unlink)(path)
        if _leads(found):
            self.callers.forget_folders()
        node = self.node_of(found.st_ino)
        self.forget(found)
        self.log.append(Kind.UNLINK, self.node_at(parent), node, payload=os.fsencode(last))
        return 0

    # --- making

    def mkdir(self, call: Call) -> int | None:
        return self._mkdir(call, AT_FDCWD, *call.arguments[:2])

    def mkdirat(self, call: Call) -> int | None:
        return self._mkdir(call, *call.arguments[:3])

    def _mkdir(self, call: Call, folder: int, name: int, mode: int) -> int | None:
        place = self.place(call, folder, name)
        if place is None:
            return None
        with self.callers.rights(call.thread, creating=True):
            os.mkdir(place[0], mode & MODE_BITS)
        self._made(place)
        return 0

    def symlink(self, call: Call) -> int | None:
        return self._symlink(call, call.arguments[0], AT_FDCWD, call.arguments[1])

    def symlinkat(self, call: Call) -> int | None:
        return self._symlink(call, *call.arguments[:3])

    def _symlink(self, call: Call, target: int, folder: int, name: int) -> int | None:
        place = self.place(call, folder, name)
        self.callers.forget_folders()
        if place is None:
            return None
        to = self.callers.text(call.thread, target)
        with self.callers.rights(call.thread):
            os.symlink(to, place[0])
        self._made(place, f"\0{to}")
        return 0

    def _made(self, place: tuple[str, str, str], target: str = "") -> None:
        path, parent, last = place
        found = os.lstat(path)
        node = self.node_of(found.st_ino, new=True)
        self.log.append(Kind.CREATE, self.node_at(parent), node, found.st_mode, payload=os.fsencode(last + target))

    def link(self, call: Call) -> int | None:
        return self._link(call, AT_FDCWD, call.arguments[0], AT_FDCWD, call.arguments[1], 0)

    def linkat(self, call: Call) -> int | None:
        return self._link(call, *call.arguments[:5])

    def _link(self, call: Call, old_in: int, old: int, new_in: int, new: int, flags: int) -> int | None:
        target = self.place(call, new_in, new)
        written = self.callers.text(call.thread, old)
        source = self._linked(call, old_in, written, flags)
        if target is None and source is None:
            return None
        if target is None or source is None:
            raise OSError(errno.EXDEV, "into or out of the recorded folder: programs fall back to copying")
        with self.callers.rights(call.thread):
            _linkat(source, target[0], flags & AT_SYMLINK_FOLLOW if written else AT_SYMLINK_FOLLOW)
        node = self.node_of(os.lstat(target[0]).st_ino)
        self.log.append(Kind.LINK, self.node_at(target[1]), node, payload=os.fsencode(target[2]))
        return 0

    def _linked(self, call: Call, folder: int, written: str, flags: int) -> str | None:
        """What a link is made to: a name, or an open file that may have none."""
        by_number = _DESCRIPTOR.fullmatch(written) if flags & AT_SYMLINK_FOLLOW else None
        number = int(by_number[1]) if by_number else folder if flags & AT_EMPTY_PATH and not written else None
        if number is not None:
            file = self.files.get(number)
            return None if file is None else f"/proc/self/fd/{file.fd}"
        place = self.callers.place(call.thread, folder, written)
        return None if place is None else place[0]

    # --- modes, owners, extended attributes

    def chmod(self, call: Call) -> int | None:
        return self._chmod(call, self._named(call, AT_FDCWD, call.arguments[0]), call.arguments[1])

    def fchmod(self, call: Call) -> int | None:
        return self._chmod(call, self._described(call, call.arguments[0]), call.arguments[1])

    def fchmodat(self, call: Call) -> int | None:
        return self._chmod(call, self._named(call, call.arguments[0], call.arguments[1]), call.arguments[2])

    def fchmodat2(self, call: Call) -> int | None:
        folder, name, mode, flags, *_ = call.arguments
        return self._chmod(call, self._named(call, folder, name, flags), mode)

    def _chmod(self, call: Call, thing: Thing | None, mode: int) -> int | None:
        if thing is None:
            return None
        with self.callers.rights(call.thread):
            os.chmod(thing.path, mode & MODE_BITS)
        self.log.append(Kind.MODE, thing.node, os.stat(thing.path).st_mode)
        return 0

    def chown(self, call: Call) -> int | None:
        return self._chown(call, self._named(call, AT_FDCWD, call.arguments[0]), *call.arguments[1:3])

    def lchown(self, call: Call) -> int | None:
        thing = self._named(call, AT_FDCWD, call.arguments[0], AT_SYMLINK_NOFOLLOW)
        return self._chown(call, thing, *call.arguments[1:3], follow=False)

    def fchown(self, call: Call) -> int | None:
        return self._chown(call, self._described(call, call.arguments[0]), *call.arguments[1:3])

    def fchownat(self, call: Call) -> int | None:
        folder, name, user, group, flags, *_ = call.arguments
        thing = self._named(call, folder, name, flags)
        return self._chown(call, thing, user, group, follow=not flags & AT_SYMLINK_NOFOLLOW)

    def _chown(self, call: Call, thing: Thing | None, user: int, group: int, *, follow: bool = True) -> int | None:
        if thing is None:
            return None
        with self.callers.rights(call.thread):
            os.chown(thing.path, signed(user & 0xFFFFFFFF, 32), signed(group & 0xFFFFFFFF, 32), follow_symlinks=follow)
        found = os.stat(thing.path, follow_symlinks=follow)
        self.log.append(Kind.OWNER, thing.node, found.st_uid, found.st_gid)
        if stat.S_ISREG(found.st_mode):  # may have cleared set-user-id
            self.log.append(Kind.MODE, thing.node, found.st_mode)
        return 0

    def setxattr(self, call: Call) -> int | None:
        return self._setxattr(call, self._named(call, AT_FDCWD, call.arguments[0]))

    def lsetxattr(self, call: Call) -> int | None:
        return self._setxattr(call, self._named(call, AT_FDCWD, call.arguments[0], AT_SYMLINK_NOFOLLOW), follow=False)

    def fsetxattr(self, call: Call) -> int | None:
        return self._setxattr(call, self._described(call, call.arguments[0]))

    def _setxattr(self, call: Call, thing: Thing | None, *, follow: bool = True) -> int | None:
        if thing is None:
            return None
        _, name, address, size, flags, *_ = call.arguments
        written = self.callers.text(call.thread, name)
        value = self.callers.memory(call.thread, address, min(size, LARGEST_VALUE))
        with self.callers.rights(call.thread):
            os.setxattr(thing.path, written, value, flags & 0xFF, follow_symlinks=follow)
        self.log.append(Kind.ATTRIBUTE, thing.node, payload=os.fsencode(written) + b"\0" + value)
        return 0

    def removexattr(self, call: Call) -> int | None:
        return self._removexattr(call, self._named(call, AT_FDCWD, call.arguments[0]))

    def lremovexattr(self, call: Call) -> int | None:
        thing = self._named(call, AT_FDCWD, call.arguments[0], AT_SYMLINK_NOFOLLOW)
        return self._removexattr(call, thing, follow=False)

    def fremovexattr(self, call: Call) -> int | None:
        return self._removexattr(call, self._described(call, call.arguments[0]))

    def _removexattr(self, call: Call, thing: Thing | None, *, follow: bool = True) -> int | None:
        if thing is None:
            return None
        written = self.callers.text(call.thread, call.arguments[1])
        with self.callers.rights(call.thread):
            os.removexattr(thing.path, written, follow_symlinks=follow)
        self.log.append(Kind.ATTRIBUTE, thing.node, payload=os.fsencode(written) + b"\0", flags=REMOVED)
        return 0

    def _named(self, call: Call, folder: int, name: int, flags: int = 0) -> Thing | None:
        written = self.callers.text(call.thread, name)
        if not written and flags & AT_EMPTY_PATH:
            return self._described(call, folder)
        if by_number := _DESCRIPTOR.fullmatch(written):
            return self._described(call, int(by_number[1]))
        place = self.callers.place(call.thread, folder, written)
        if place is None:
            return None
        path = place[0] if flags & AT_SYMLINK_NOFOLLOW else os.path.realpath(place[0])
        node = self.known(os.lstat(path).st_ino)
        return None if node is None else Thing(path, node)

    def _described(self, call: Call, number: int) -> Thing | None:
        node = self.node_behind(call, number)
        return None if node is None else Thing(f"/proc/{call.thread}/fd/{number & 0xFFFFFFFF}", node)

    # --- who calls

    def umask(self, call: Call) -> None:
        self.callers.set_umask(call.thread, call.arguments[0])

    def setuid(self, call: Call) -> None:
        self.callers.forget(call.thread)

    setgid = setreuid = setregid = setresuid = setresgid = setgroups = setuid


def _leads(found: os.stat_result) -> bool:
    """Whether paths may go through it."""
    return stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode)


def _lstat(path: str) -> os.stat_result | None:
    """What is there; None where nothing is."""
    with suppress(FileNotFoundError):
        return os.lstat(path)
    return None


def _linkat(old: str, new: str, flags: int) -> None:
    if kernel.libc.linkat(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags):  # os.link does not follow
        raise OSError(ctypes.get_errno(), "linkat")


def _renameat2(old: str, new: str, flags: int) -> None:
    if not flags:
        os.rename(old, new)
    elif kernel.libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")
