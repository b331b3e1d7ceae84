"""What is asked of the kernel: a seccomp filter that hands file calls to a supervisor, and the supervisor's ioctls.

A filter cannot see what a descriptor is. So descriptors below the recorded folder get numbers from `FIRST_FD` on; the
filter lets every write to a lower number pass at full speed (sockets, pipes), except 0, 1 and 2, where a shell puts
files. See seccomp_unotify(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import select
import signal
import socket
import struct
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from durabench_model import MARK_FD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FIRST_FD = 4000
LIMIT_FD = 16384
"""Descriptors below the folder have numbers from FIRST_FD on, below LIMIT_FD. (Some programs close them all.)"""
O_TMPFILE = 0o20000000
FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
F_DUPFD, F_OFD_SETLK, F_OFD_SETLKW, F_DUPFD_CLOEXEC = 0, 37, 38, 1030
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
PROOF_S = 5.0

_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_ALLOW, _NOTIFY, _KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
_RECV, _SEND, _ADDFD, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40182103, 0x40082104
_CONTINUE, _ADDFD_SETFD, _ADDFD_SEND, _SYNC_WAKE_UP = 1, 1, 2, 1
_NOTIFICATION = struct.Struct("<QIIiIQ6Q")  # id, thread, flags, number, architecture, instruction, arguments
_RESPONSE = struct.Struct("<QqiI")  # id, value, error, flags
_ADD = struct.Struct("<QIIII")  # id, flags, our descriptor, its number there, its flags there
_PIDFD_GETFD = 438  # everywhere
_X32 = 0x40000000
"""Numbers from here on are calls of the x32 ABI."""

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Architecture:
    """A machine's name for the kernel's audit, and its numbers of calls."""

    audit: int
    seccomp: int
    numbers: Mapping[str, int]


def _numbers(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (pair.split("=") for pair in text.split())}


ARCHITECTURES = {
    "x86_64": Architecture(
        0xC000003E,
        317,
        _numbers(
            "write=1 open=2 close=3 mmap=9 ioctl=16 pwrite64=18 writev=20 msync=26 dup=32 dup2=33 sendfile=40 fcntl=72 "
            "flock=73 fsync=74 fdatasync=75 truncate=76 ftruncate=77 rename=82 mkdir=83 rmdir=84 creat=85 link=86 "
            "unlink=87 symlink=88 chmod=90 fchmod=91 chown=92 fchown=93 lchown=94 umask=95 setuid=105 "
            "setgid=106 setreuid=113 setregid=114 setgroups=116 setresuid=117 setresgid=119 sync=162 setxattr=188 "
            "lsetxattr=189 fsetxattr=190 removexattr=197 lremovexattr=198 fremovexattr=199 io_setup=206 openat=257 "
            "mkdirat=258 fchownat=260 unlinkat=263 renameat=264 linkat=265 symlinkat=266 fchmodat=268 splice=275 "
            "sync_file_range=277 fallocate=285 dup3=292 pwritev=296 syncfs=306 renameat2=316 copy_file_range=326 "
            "pwritev2=328 io_uring_setup=425 openat2=437 fchmodat2=452"
        ),
    ),
    "aarch64": Architecture(
        0xC00000B7,
        277,
        _numbers(
            "io_setup=0 setxattr=5 lsetxattr=6 fsetxattr=7 removexattr=14 lremovexattr=15 fremovexattr=16 dup=23 "
            "dup3=24 fcntl=25 ioctl=29 flock=32 mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38 truncate=45 "
            "ftruncate=46 fallocate=47 fchmod=52 fchmodat=53 fchownat=54 fchown=55 openat=56 close=57 write=64 "
            "writev=66 pwrite64=68 pwritev=70 sendfile=71 splice=76 sync=81 fsync=82 fdatasync=83 sync_file_range=84 "
            "setregid=143 setgid=144 setreuid=145 setuid=146 setresuid=147 setresgid=149 setgroups=159 "
            "umask=166 mmap=222 msync=227 syncfs=267 renameat2=276 copy_file_range=285 pwritev2=287 "
            "io_uring_setup=425 openat2=437 fchmodat2=452"
        ),
    ),
}


class Unsupported(OSError):
    """Nothing can be recorded here; the message says why, and what would mend it."""


class Call(NamedTuple):
    """A call that waits for its answer."""

    id: int
    thread: int
    number: int
    arguments: list[int]


def architecture() -> Architecture:
    """This machine's. Unsupported where its numbers are not known."""
    found = ARCHITECTURES.get(platform.machine())
    if found is None:
        raise Unsupported(f"calls can be recorded on {' and '.join(ARCHITECTURES)}, not on {platform.machine()}")
    return found


# --- the filter


def filter_program(machine: Architecture) -> bytes:
    """The BPF program: which calls go to the supervisor. Calls of another ABI end the program by SIGSYS: their numbers
    mean something else, and nothing of what they did would be seen.
    """
    kill = _return(_KILL)
    program = [_load(4), _equal(machine.audit, 1, 0), kill, _load(0), _at_least(_X32, 0, 1), kill]
    for name, block in _blocks().items():
        if name in machine.numbers:
            program += [_equal(machine.numbers[name], 0, len(block)), *block]
    return b"".join([*program, _return(_ALLOW)])


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _instruction(0x20, offset)


def _argument(index: int) -> bytes:
    return _load(16 + 8 * index)


def _equal(value: int, yes: int, no: int) -> bytes:
    return _instruction(0x15, value, yes, no)


def _at_least(value: int, yes: int, no: int) -> bytes:
    return _instruction(0x35, value, yes, no)


def _any_bit(mask: int, yes: int, no: int) -> bytes:
    return _instruction(0x45, mask, yes, no)


def _return(value: int) -> bytes:
    return _instruction(6, value)


def _blocks() -> dict[str, list[bytes]]:
    """For each call the end of its branch: what of it is handed over."""
    allow, notify = _return(_ALLOW), _return(_NOTIFY)
    none = 0x80000000  # a negative number is no descriptor

    def ours(index: int) -> list[bytes]:
        return [_argument(index), _at_least(FIRST_FD, 0, 1), _at_least(none, 0, 1), allow, notify]

    def ours_or_low(index: int) -> list[bytes]:
        return [_argument(index), _at_least(3, 0, 3), _at_least(FIRST_FD, 0, 1), _at_least(none, 0, 1), allow, notify]

    def opens(index: int) -> list[bytes]:  # only what may write or create
        mask = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        return [_argument(index), _any_bit(mask, 0, 1), notify, allow]

    # About any path or descriptor; whether that is below the folder, only the supervisor can tell.
    always = _words(
        "fsync fdatasync sync syncfs truncate rename renameat renameat2 link linkat unlink unlinkat mkdir mkdirat "
        "rmdir symlink symlinkat creat openat2 umask chmod fchmod fchmodat fchmodat2 chown lchown fchown "
        "fchownat setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr io_uring_setup io_setup setuid "
        "setgid setreuid setregid setgroups setresuid setresgid"
    )
    with_ours = _words("close sync_file_range dup dup2 dup3 flock")
    duplicates = [_equal(F_DUPFD, 3, 0), _equal(F_DUPFD_CLOEXEC, 2, 0), _equal(F_OFD_SETLK, 1, 0)]
    shared_and_writable = [_argument(2), _any_bit(2, 0, 4), _argument(3), _any_bit(1, 0, 2), notify, allow, allow]
    return {
        **{
            name: ours_or_low(0)
            for name in _words("write writev pwrite64 pwritev pwritev2 ftruncate fallocate sendfile")
        },
        **{name: ours_or_low(2) for name in ("copy_file_range", "splice")},
        **{name: ours(0) for name in with_ours},
        "open": opens(1),
        "openat": opens(2),
        "fcntl": [
            *(_argument(1), *duplicates, _equal(F_OFD_SETLKW, 0, 3)),
            *(_argument(0), _at_least(FIRST_FD, 0, 1), notify, allow),
        ],
        "mmap": [_argument(4), _at_least(FIRST_FD, 0, 7), _at_least(none, 6, 0), *shared_and_writable],
        "ioctl": [_argument(1), _equal(FICLONE, 2, 0), _equal(FICLONERANGE, 1, 0), allow, notify],
        "msync": [_argument(2), _any_bit(4, 0, 1), notify, allow],
        **{name: [notify] for name in always},
    }


def _words(text: str) -> list[str]:
    return text.split()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(machine: Architecture) -> int:
    """Put this process, and all it will start, under the filter; gives the listener. Unsupported where it may not."""
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise Unsupported(ctypes.get_errno(), "no_new_privs is refused: seccomp is not in this kernel")
    code = filter_program(machine)
    packed = _Program(len(code) // 8, code)
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):  # the second for kernels before 5.19
        listener = libc.syscall(machine.seccomp, _SET_MODE_FILTER, flags, ctypes.byref(packed))
        if listener >= 0:
            return int(listener)
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise Unsupported(ctypes.get_errno(), _REFUSALS.get(ctypes.get_errno(), "seccomp refuses a listener (Linux 5.14)"))


_REFUSALS = {
    errno.EBUSY: "another supervisor listens to this process already (a container's); start durabench outside of it",
    errno.EACCES: "seccomp is not allowed here; in a container: docker run --security-opt seccomp=unconfined",
    errno.EPERM: "seccomp is not allowed here; in a container: docker run --security-opt seccomp=unconfined",
}


# --- the supervisor's side


def send_listener(channel: socket.socket, listener: int) -> None:
    """From a program that put itself under the filter, to its supervisor."""
    channel.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [listener]))])


def receive_listener(channel: socket.socket) -> int:
    """The listener; Unsupported with the reason that the program told instead."""
    told, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(4))
    if not ancillary:
        raise Unsupported(told.decode() or "the program ended before it could be put under the filter")
    listener = array("i", ancillary[0][2])[0]
    fcntl.fcntl(listener, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    with suppress(OSError):  # wake the program on this processor (Linux 6.6): it is we who wait for it next
        fcntl.ioctl(listener, _SET_FLAGS, _SYNC_WAKE_UP)
    return listener


def receive(listener: int) -> Call | None:
    """The next call; None where its caller died or was interrupted meanwhile."""
    try:
        packed = fcntl.ioctl(listener, _RECV, bytes(_NOTIFICATION.size))  # must be zeroed
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.EINTR}:
            return None
        raise
    number, thread, _, call, _, _, *arguments = _NOTIFICATION.unpack(packed)
    return Call(number, thread, call, arguments)


def answer(listener: int, call: Call, value: int = 0, error: int = 0, *, proceed: bool = False) -> bool:
    """Answer a call: its result, or `proceed`: the kernel carries it out. False where nobody waits any more."""
    try:
        fcntl.ioctl(listener, _SEND, _RESPONSE.pack(call.id, value, -error, _CONTINUE if proceed else 0))
    except OSError as failed:
        if failed.errno != errno.ENOENT:
            raise
        return False
    return True


def give(listener: int, call: Call, fd: int, number: int, *, cloexec: bool) -> bool:
    """Put our descriptor into the caller at `number`, which is the call's answer. False where nobody waits any more."""
    packed = _ADD.pack(call.id, _ADDFD_SETFD | _ADDFD_SEND, fd, number, os.O_CLOEXEC if cloexec else 0)
    try:
        fcntl.ioctl(listener, _ADDFD, packed)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ESRCH}:
            return False
        raise
    return True


def descriptor_of(process: int, number: int) -> int:
    """Our own descriptor of an open file of another process: the same offset and flags. OSError where it has none."""
    end = os.pidfd_open(process)
    try:
        fd = libc.syscall(_PIDFD_GETFD, end, number, 0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "no such descriptor")
        return int(fd)
    finally:
        os.close(end)


def status_flags(fd: int) -> int:
    """The flags of an open file description: append, sync, how it is accessed."""
    return fcntl.fcntl(fd, fcntl.F_GETFL)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent's thread ends; forgotten by a change of user, so ask again then."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_subreaper() -> None:
    """Orphans among our descendants become our children."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> Iterator[int]:
    """The processes that a process started and that have not ended."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                yield from (int(word) for word in file.read().split())


def descendants(pid: int) -> list[int]:
    """All processes below one, without it."""
    found = [pid]
    for each in found:  # grows while it is gone through
        found += children(each)
    return found[1:]


# --- whether it works here


def why_not() -> str | None:
    """Why nothing can be recorded here, with the mend; None where a call was caught, read and answered just now."""
    try:
        machine = architecture()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < FIRST_FD + 256:
            return f"open files are limited to {hard}, {FIRST_FD + 256} are needed: ulimit -Hn {LIMIT_FD}"
        _prove(machine)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _prove(machine: Architecture) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(PROOF_S)
    pid = os.fork()
    if not pid:
        _proof_child(machine, theirs)
    theirs.close()
    try:
        listener = receive_listener(ours)
        try:
            _catch(listener, pid)
        finally:
            os.close(listener)
    finally:
        ours.close()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


_PROOF = b"durabench"


def _proof_child(machine: Architecture, channel: socket.socket) -> None:
    try:
        die_with_parent()
        send_listener(channel, install(machine))
        os.write(MARK_FD, _PROOF)
    except OSError as error:
        with suppress(OSError):
            channel.send((error.strerror or str(error)).encode())
    finally:
        os._exit(0)


def _catch(listener: int, pid: int) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    if not poll.poll(PROOF_S * 1000):
        raise Unsupported("a call of a process under the filter did not arrive")
    call = receive(listener)
    if call is None:
        raise Unsupported("a call of a process under the filter did not arrive")
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(call.arguments[1])
            if memory.read(len(_PROOF)) != _PROOF:
                raise Unsupported("what a process writes cannot be read from its memory")
    except PermissionError:
        raise Unsupported(
            "the memory of a process of ours may not be read (Yama): sudo sysctl kernel.yama.ptrace_scope=1"
        ) from None
    answer(listener, call, len(_PROOF))
