"""The system calls of a program or of a server, by strace: started, attached, ended without harm, and read.

Only what writes, flushes or names files is traced, with paths and sizes and never with a byte of the content.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from durabench import process
from durabench_backends.contract import DELETED, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from durabench_backends.contract import CallKind

STRACE = "strace"
INSTALL = "apt-get install strace"
ATTACH_S = 5.0
"""Longest wait for the tracer to hold every process it was to attach to."""
DETACH_S = 10.0
"""Longest wait for it to let go; killed after that, the kernel lets go for it."""
POLL_S = 0.01

OPENS = ("open", "openat", "openat2", "creat")
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
COPIES = {"sendfile": 0, "copy_file_range": 2, "splice": 2}
"""Calls that write without a buffer of the program → the position of what they write to."""
FLUSHES = ("fsync", "fdatasync", "msync")
FLUSH_ALL = ("sync", "syncfs")
RENAMES = ("rename", "renameat", "renameat2", "link", "linkat")
UNLINKS = ("unlink", "unlinkat")
MKDIRS = ("mkdir", "mkdirat")
TRUNCATES = ("truncate", "ftruncate")
HIDDEN = ("io_uring_setup", "io_submit")
MOVES = ("chdir", "fchdir")
TRACED = (
    *OPENS,
    *WRITES,
    *COPIES,
    *FLUSHES,
    *FLUSH_ALL,
    *RENAMES,
    *UNLINKS,
    *MKDIRS,
    *TRUNCATES,
    *HIDDEN,
    *MOVES,
    "fcntl",
)
OPTIONS = (
    *("-f", "-I", "2"),
    *("-y", "-xx", "-s", "0"),
    *("-e", "signal=none", "-e", "trace=" + ",".join(f"?{name}" for name in TRACED)),
)
"""``-I 2`` lets the tracer be ended; ``-y`` gives descriptors their paths, ``-xx`` makes them unambiguous, ``-s 0``
leaves out what was written.
"""
ORPHANS_END = ("/bin/sh", "-c", 'read -r parent <"/proc/$PPID/comm"; [ "$parent" = strace ] || exit 1; exec "$@"', "sh")
"""Ends at once where the tracer died before its program could ask to die with it; then comes the program."""
MAPPED = "(mapped memory)"
"""What stands for the path of a flush by msync(2), which names none."""


@dataclass(frozen=True)
class Seen:
    """A call, and when it began and ended: numbers that order all calls of one trace, whoever made them."""

    call: Call
    began: int
    ended: int


class NotAllowed(process.HarnessError):
    """Tracing is not possible here: ``why``, and in ``fix`` what would allow it."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(f"{why}: {fix}")
        self.why, self.fix = why, fix


def require() -> None:
    """NotAllowed unless strace is here and may trace a program that it starts."""
    lack = _lack()
    if lack is not None:
        raise NotAllowed(*lack)


@cache
def _lack() -> tuple[str, str] | None:
    """Why no program can be traced here, and what would allow it; None where one can."""
    if shutil.which(STRACE) is None:
        return "strace is not installed", INSTALL
    try:
        process.output([STRACE, "-o", os.devnull, "-e", "trace=none", "true"], deadline_s=ATTACH_S)
    except process.HarnessError as error:
        return f"strace may not trace here ({error})", "in a container: docker run --cap-add SYS_PTRACE"
    return None


def start(
    argv: Sequence[str],
    trace: Path,
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    pids: Iterable[int] = (),
    piped: bool = False,
    visible: bool = False,
) -> process.Process:
    """Start a program under a tracer that also holds ``pids``; its calls go to ``trace``.

    The process that is returned is the tracer: it ends with the program's own exit status, unless it holds others
    (`let_go`). NotAllowed where it may not attach to one of ``pids``; those that are gone meanwhile are no error.
    """
    require()
    attached = [option for pid in pids for option in ("-p", str(pid))]
    # A filter in the kernel spares a traced program all other calls; it cannot be put into one that runs already.
    how = attached or ["--seccomp-bpf"]
    quiet = ["-qq"] if visible else []
    # The program dies with its tracer, as the tracer does with us.
    guarded = [*process.guard(as_server=False, paths=()), *ORPHANS_END, *argv]
    command = [shutil.which(STRACE) or STRACE, *OPTIONS, *quiet, "-o", str(trace), *how, "--", *guarded]
    tracer = process.start(command, env=env, cwd=cwd, log=log, piped=piped, visible=visible)
    try:
        _wait_until_attached(tracer, log, set(pids))
    except BaseException:
        let_go(tracer)
        raise
    return tracer


def _wait_until_attached(tracer: process.Process, log: Path, pids: set[int]) -> None:
    """By what the kernel says: strace tells of its successes only sometimes."""
    end = time.monotonic() + ATTACH_S
    while missing := {pid for pid in pids if not _is_held(pid, tracer.pid)}:
        said = log.read_text(errors="replace")
        for pid in sorted(missing):
            refusal = re.search(rf"ptrace\(PTRACE_\w+, {pid}\S*: (.*)", said)
            if refusal and "No such process" not in refusal[1]:
                why = f"process {pid} may not be traced ({refusal[1].lower()})"
                raise NotAllowed(why, _leave(pid))
        if time.monotonic() > end or not tracer.alive():
            why = f"strace did not attach to process {min(missing)}{process.tail(log)}"
            raise NotAllowed(why, "run it as root")
        time.sleep(POLL_S)


def _is_held(pid: int, tracer: int) -> bool:
    """Whether every thread of a process is traced by ``tracer``, or the process is gone."""
    wanted = f"TracerPid:\t{tracer}\n"
    try:
        return all(wanted in (task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return not Path(f"/proc/{pid}").exists()


def _leave(pid: int) -> str:
    """What would allow to trace a process."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    try:
        own = Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
        if own and scope.read_text("ascii").strip() != "0":
            return "sudo sysctl kernel.yama.ptrace_scope=0, or run it as root"
    except OSError:
        pass
    return "run it as root (in a container: docker run --cap-add SYS_PTRACE)"


def let_go(tracer: process.Process) -> None:
    """End a tracer; what it attached to goes on unharmed, what it started has ended or is ended."""
    tracer.stop(DETACH_S)
    tracer.close()


def read(trace: Path, cwd: Path) -> list[Seen]:
    """The calls of a trace that succeeded, in the order in which they ended; ``cwd`` is where the program began."""
    reader = _Reader(str(cwd))
    with trace.open("r", encoding="ascii", errors="replace") as lines:
        return list(reader.read(lines))


def writes_to(trace: Path, descriptor: str) -> list[int]:
    """When each write to what is no file (``pipe:[1234]``) began, numbered as `read` numbers calls."""
    shown = re.compile(r"\d+ +write\(\d+<([^>]*)>")
    with trace.open("r", encoding="ascii", errors="replace") as lines:
        return [n for n, line in enumerate(lines) if (found := shown.match(line)) and _decode(found[1]) == descriptor]


_LINE = re.compile(r"(\d{1,10}) +(.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>(\(deleted\))?)?")
_FD = re.compile(r"(AT_FDCWD|-?\d+)<([^>]*)>(\(deleted\))?")
_FLAG = re.compile(r"(?:O|RWF)_\w+")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_FIELD = re.compile(r"(l_type|l_start|l_len)=(\w+)")
_UNFINISHED = " <unfinished ...>"


class _Line(NamedTuple):
    pid: int
    name: str
    arguments: list[str]
    result: int
    opened: str


@dataclass
class _Reader:
    home: str
    at: dict[int, str] = field(default_factory=dict)
    """Where a process is, as far as its own calls tell."""
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)
    opened: dict[int, str] = field(default_factory=dict)
    """What a descriptor's number was last opened for, for names like /proc/self/fd/3."""

    def read(self, lines: Iterable[str]) -> Iterator[Seen]:
        for number, line in enumerate(lines):
            found = _LINE.match(line.rstrip("\n"))
            if found is None:
                continue
            pid, text = int(found[1]), found[2]
            began = number
            if text.endswith(_UNFINISHED):
                self.pending[pid] = text.removesuffix(_UNFINISHED), number
                continue
            if resumed := _RESUMED.match(text):
                first, began = self.pending.pop(pid, (resumed[1] + "(", number))
                text = first + resumed[2].lstrip()
            if (parsed := _CALL.match(text)) and not parsed[3].startswith("-"):
                call = self._parsed(pid, parsed, number)
                if call is not None:
                    yield Seen(call, began, number)

    def _parsed(self, pid: int, parsed: re.Match[str], number: int) -> Call | None:
        opened = _shown(parsed[4] or "", parsed[5])
        try:
            return self._call(_Line(pid, parsed[1], _split(parsed[2]), int(parsed[3]), opened))
        except (LookupError, ValueError):
            message = f"line {number + 1} of a trace cannot be read: what was called cannot be told"
            raise process.HarnessError(message) from None

    def _call(self, line: _Line) -> Call | None:
        name = line.name
        if name in MOVES:
            self.at[line.pid] = self._path(line, 0)
            return None
        if name in HIDDEN:
            return Call("hidden", line.pid, name)
        if name in (*FLUSH_ALL, "msync"):
            waits = name != "msync" or "MS_SYNC" in line.arguments[2]
            return Call("flush", line.pid, MAPPED if name == "msync" else "") if waits else None
        if name in RENAMES or name == "fcntl":
            return self._renamed(line) if name in RENAMES else self._locked(line)
        kind, path, flags, size, offset = self._plain(line)
        return Call(kind, line.pid, path, "", frozenset(_FLAG.findall(flags)), size, offset) if path else None

    def _plain(self, line: _Line) -> tuple[CallKind, str, str, int, int | None]:
        """(kind, path, flags, size, offset) of a call on one file."""
        name, arguments = line.name, line.arguments
        if name in OPENS:
            flags = "O_WRONLY|O_CREAT|O_TRUNC" if name == "creat" else arguments[1 if name == "open" else 2]
            self.opened[line.result] = line.opened
            return "open", _regular(line.opened), flags, 0, None
        if name in WRITES:
            offset = int(arguments[3]) if name.startswith("p") and arguments[3].isdigit() else None
            return "write", self._path(line, 0), arguments[-1] if name == "pwritev2" else "", line.result, offset
        if name in COPIES:
            return "write", self._path(line, COPIES[name]), "", line.result, None
        if name in TRUNCATES:
            return "truncate", self._path(line, 0), "", int(arguments[1]), None
        if name in (*UNLINKS, *MKDIRS):
            named = self._named(line, 0, at=name.endswith("at"))
            return "unlink" if name in UNLINKS else "mkdir", named, "", 0, None
        return "flush", self._path(line, 0), "", 0, None

    def _renamed(self, line: _Line) -> Call:
        at = "at" in line.name
        old, new = (self._named(line, position, at=at) for position in ((0, 2) if at else (0, 1)))
        return Call("rename", line.pid, old, new)

    def _locked(self, line: _Line) -> Call | None:
        if "SETLK" not in line.arguments[1]:
            return None
        fields = dict(_FIELD.findall(line.arguments[2]))
        kinds: dict[str, CallKind] = {"F_WRLCK": "lock", "F_UNLCK": "unlock"}
        kind = kinds.get(fields.get("l_type", ""))
        if kind is None:
            return None
        start, size = int(fields["l_start"]), int(fields["l_len"])
        return Call(kind, line.pid, self._path(line, 0), size=size or 1 << 62, offset=start)

    def _path(self, line: _Line, position: int) -> str:
        """The file of a descriptor, or of a path that is an argument; empty for a pipe, a socket or a terminal."""
        argument = line.arguments[position]
        if descriptor := _FD.match(argument):
            return _regular(_shown(descriptor[2], descriptor[3]))
        return self._named(line, position, at=False) if argument.startswith('"') else ""

    def _named(self, line: _Line, position: int, *, at: bool) -> str:
        """The absolute path of a name, which may be relative to a directory in the argument before it."""
        base = self.at.get(line.pid, self.home)
        name = _decode(line.arguments[position + at].strip('"'))
        if at and (descriptor := _FD.match(line.arguments[position])):
            base = _shown(descriptor[2], descriptor[3])
        if not name:
            return base  # the descriptor itself
        if by_descriptor := re.fullmatch(r"/proc/(?:self|\d+)/fd/(\d+)", name):
            return self.opened.get(int(by_descriptor[1]), name)
        path = os.path.join(base, name)  # noqa: PTH118 - many names
        folder, last = os.path.split(path)
        # Descriptors have real paths; a name is made comparable with them. The last part may be gone, or a link itself.
        return os.path.join(os.path.realpath(folder), last)  # noqa: PTH118 - the same


def _split(arguments: str) -> list[str]:
    """Arguments of a call; a structure or a vector is one."""
    found, depth, begin = [], 0, 0
    for position, sign in enumerate(arguments):
        depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth == 0:
            found.append(arguments[begin:position].strip())
            begin = position + 1
    return [*found, arguments[begin:].strip()]


def _decode(text: str) -> str:
    """A path from its hexadecimal form; what is no UTF-8 stays as Python spells such file names."""
    if "\\x" not in text:
        return text
    return os.fsdecode(bytes.fromhex("".join(_ESCAPE.findall(text))))


def _shown(path: str, gone: str | None) -> str:
    """The path of a descriptor; of a file without a name, or with none any more, it ends in `DELETED`."""
    return _decode(path) + (DELETED if gone else "")


def _regular(path: str) -> str:
    """The path, where it is a file's: ``pipe:[1]`` and the like are none, nor is what /dev and /proc make up."""
    made_up = path.startswith(("/dev/", "/proc/", "/sys/")) and not path.startswith("/dev/shm/")  # noqa: S108 - not made here
    return path if path.startswith("/") and not made_up else ""
