"""The only module that starts or signals a process.

Everything it starts is in the foreground, dies with the thread that started it (so: start from threads that live), and
is known by pidfd. A kill is three steps: signal, reap, assert that the exit was that signal. Every wait is bounded.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, pidfd_send_signal
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

REAP_S = 10.0
"""Longest wait for a process that was sent SIGKILL; only a process stuck in the kernel takes longer."""
SERVER_USER = "nobody"
"""Exists everywhere and owns nothing; servers run as it where the caller is root."""
CAP_SYS_ADMIN = 1 << 21
LINE_BYTES = 1 << 16
TCP_LISTEN = "0A"
"""The state of a listening socket in the kernel's tables."""
CRASHES = frozenset({SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV})
"""Signals that a program brings on itself. Any other that ends it was sent, by a kernel out of memory, say."""
_ORPHANS_END = ("/bin/sh", "-c", '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"', "sh")
"""Ends at once where the parent died before its child could ask to die with it; then come its pid and the program."""


class HarnessError(RuntimeError):
    """The harness or its surroundings failed, not the store: a trial that meets it is unknown."""


class Hung(HarnessError):
    """A process did not do what it must within its deadline."""


class Died(HarnessError):
    """A process ended that should have lived."""


@dataclass
class Process:
    """One process of ours, with lines of JSON on its stdin and stdout where it has them."""

    pid: int
    pidfd: int
    reap: Callable[[float], int]
    """Waits at most so many seconds for its end; the exit code, negative for a signal. Raises Hung."""
    stdin: int | None = None
    stdout: int | None = None
    log: Path | None = None
    cwd: Path | None = None
    exit_code: int | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _ended: bool = False

    def fileno(self) -> int:
        """So that a selector can wait for its events."""
        if self.stdout is None:
            message = "this process has no stdout of ours"
            raise ValueError(message)
        return self.stdout

    def send(self, order: Mapping[str, Any]) -> None:
        """One JSON line to its stdin; Died if it is gone."""
        try:
            os.write(self.stdin or 0, (json.dumps(order) + "\n").encode())
        except BrokenPipeError:
            raise Died(self.last_words("ended before it could be asked")) from None

    def receive(self, timeout_s: float) -> list[dict[str, Any]]:
        """Events that arrived within ``timeout_s``, each with ``t``, the controller's monotonic ns. Empty: none in
        time, or `ended`.
        """
        ready, _, _ = select.select([self.fileno()], [], [], max(timeout_s, 0))
        if not ready:
            return []
        chunk = os.read(self.fileno(), LINE_BYTES)
        now_ns = time.monotonic_ns()
        if not chunk:
            self._ended = True
            return []
        self._buffer += chunk
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        return [{**self._event(line), "t": now_ns} for line in lines if line.strip()]

    def _event(self, line: bytes | bytearray) -> dict[str, Any]:
        """A line as an event; Died where it is none: somebody else wrote where only a driver tells."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("e"), str):
            raise Died(self.last_words(f"said what is no event: {bytes(line[:200])!r}"))
        return event

    @property
    def ended(self) -> bool:
        """Whether its stdout was read to the end."""
        return self._ended

    def drain(self, deadline_s: float = REAP_S) -> list[dict[str, Any]]:
        """Everything still in the pipe of a process that is dead or ending."""
        end = time.monotonic() + deadline_s
        events: list[dict[str, Any]] = []
        while not self._ended:
            if time.monotonic() > end:
                raise Hung(self.last_words(f"did not end within {deadline_s:g} s"))
            events += self.receive(end - time.monotonic())
        return events

    def ask(self, order: Mapping[str, Any], deadline_s: float) -> list[dict[str, Any]]:
        """Send an order; its events up to and including ``done`` or ``failed``. Hung or Died otherwise."""
        self.send(order)
        end = time.monotonic() + deadline_s
        events: list[dict[str, Any]] = []
        while not is_answered(events):
            if time.monotonic() > end:
                raise Hung(self.last_words(f"gave no answer to {order.get('do')} within {deadline_s:g} s"))
            events += self.receive(end - time.monotonic())
            if self._ended and not is_answered(events):
                raise Died(self.last_words(f"ended while it did {order.get('do')}"))
        return events

    def alive(self) -> bool:
        """Whether it has not ended (a zombie has)."""
        return not select.select([self.pidfd], [], [], 0)[0]

    def signal(self, number: int) -> None:
        """Send a signal; gone is no error."""
        with suppress(ProcessLookupError):
            pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """SIGKILL, reap, and assert that the exit was that signal. HarnessError if it ended otherwise."""
        self.signal(SIGKILL)
        code = self.wait(REAP_S)
        if code != -SIGKILL:
            raise Died(self.last_words(f"was to be killed, but had ended with {code}"))

    def wait(self, deadline_s: float) -> int:
        """Its exit code, negative for a signal; Hung after ``deadline_s``."""
        if self.exit_code is None:
            self.exit_code = self.reap(deadline_s)
        return self.exit_code

    def stop(self, deadline_s: float, number: int = SIGTERM) -> None:
        """End it in order if it goes in time, by SIGKILL if not; never raises for a process that is gone."""
        self.signal(number)
        with suppress(Hung):
            self.wait(deadline_s)
        if self.exit_code is None:
            self.signal(SIGKILL)
            self.wait(REAP_S)

    def close(self) -> None:
        """Give back its file descriptors; a process that still lives is killed first."""
        if self.exit_code is None:
            self.signal(SIGKILL)
            with suppress(HarnessError):  # also where the nursery that would reap it has ended
                self.wait(REAP_S)
        for name in ("stdin", "stdout", "pidfd"):
            fd = getattr(self, name)
            if fd is not None and fd >= 0:
                os.close(fd)
            setattr(self, name, -1 if name == "pidfd" else None)

    def last_words(self, what: str) -> str:
        """``what``, with the last lines of its log."""
        return what if self.log is None else f"{what}{tail(self.log)}"


def sent(status: int) -> int | None:
    """The signal that ended a program from outside, by its exit status; None where it ended or crashed by itself."""
    return -status if status < 0 and -status not in CRASHES else None


def is_answered(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an order has been answered to the end: its last event is ``done`` or ``failed``."""
    return bool(events) and events[-1]["e"] in ("done", "failed")


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log, ready to follow a sentence; empty when there are none."""
    try:
        text = log.read_bytes()[-4096:].decode(errors="replace")
    except OSError:
        return ""
    last = [line for line in text.splitlines() if line.strip()][-lines:]
    return "; last lines of its log: " + " | ".join(last) if last else ""


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    piped: bool = False,
    stdin: bytes = b"",
    as_server: bool = False,
    visible: bool = False,
) -> Process:
    """Start a program in the foreground, in a session of its own, dying with this thread; stderr (and stdout unless
    ``piped``) go to ``log``. A ``visible`` one is somebody's: it has our stdin, and what it prints goes to our stderr.
    """
    apart = _own_shared_memory() if as_server else []
    command = [*apart, *guard(as_server, [cwd, Path(argv[0])]), *_ORPHANS_END, str(os.getpid()), *argv]
    nothing = None if visible else subprocess.DEVNULL
    with log.open("ab") as sink:
        popen = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE if piped or stdin else nothing,
            stdout=subprocess.PIPE if piped else 2 if visible else sink,
            stderr=None if visible else sink,
            start_new_session=True,
        )
    if stdin and not piped and popen.stdin:
        with suppress(BrokenPipeError):
            popen.stdin.write(stdin)
            popen.stdin.close()

    def reap(deadline_s: float) -> int:
        try:
            return popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise Hung(f"{Path(argv[0]).name} did not end within {deadline_s:g} s{tail(log)}") from None

    pipes = (
        (os.dup(popen.stdin.fileno()), os.dup(popen.stdout.fileno()))
        if piped and popen.stdin and popen.stdout
        else (None, None)
    )
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            pipe.close()
    return Process(popen.pid, os.pidfd_open(popen.pid), reap, pipes[0], pipes[1], log, cwd)


def run(argv: Sequence[str], *, deadline_s: float, **keywords: Any) -> None:
    """Run a program to its end; Died with the last lines of its log unless it exits with 0."""
    process = start(argv, **keywords)
    try:
        code = process.wait(deadline_s)
        if code != 0:
            raise Died(process.last_words(f"{Path(argv[0]).name} ended with {code}"))
    finally:
        process.close()


def output(
    argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """What a small helper program prints. Died with its last words unless it exits with 0, Hung after the deadline."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=deadline_s, check=False, env=env, cwd=cwd
        )
    except subprocess.TimeoutExpired:
        raise Hung(f"{Path(argv[0]).name} did not end within {deadline_s:g} s") from None
    if done.returncode:
        raise Died(
            f"{Path(argv[0]).name} ended with {done.returncode}: {' | '.join(done.stderr.strip().splitlines()[-3:])}"
        )
    return done.stdout


def guard(as_server: bool, paths: Iterable[Path]) -> list[str]:
    """The prefix that makes a program die with its parent, and run without privileges where the caller has them."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        message = "setpriv not found; install it with: apt-get install util-linux"
        raise HarnessError(message)
    guard = [setpriv, "--pdeathsig", "KILL"]
    if as_server and os.geteuid() == 0:
        user = pwd.getpwnam(SERVER_USER)
        guard += ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
        if not all(_reachable(path) for path in paths):
            # A checkout or a result folder under a 0700 home: it may look, not touch.
            guard += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return [*guard, "--"]


def _own_shared_memory() -> list[str]:
    """The prefix that gives a server shared memory (System V) of its own, which goes with its last process: what it
    had on the host would stay for ever where both are killed. Empty where the caller may not (`kill_trees` then removes
    what the dead had made).
    """
    status = Path("/proc/self/status").read_text("ascii", errors="replace")
    held = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    unshare = shutil.which("unshare")
    return [unshare, "--ipc", "--"] if unshare and int(held, 16) & CAP_SYS_ADMIN else []


def _reachable(path: Path) -> bool:
    """Whether everybody may enter every folder above ``path`` and above what it links to (a venv's interpreter)."""
    return all(parent.stat().st_mode & 0o001 for parent in (*path.absolute().parents, *path.resolve().parents))


def server_owner() -> tuple[int, int] | None:
    """User and group that servers run as, where the caller is root; else None: the caller's own."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam(SERVER_USER)
    return user.pw_uid, user.pw_gid


def hand_over(path: Path) -> None:
    """Give a folder to the user that servers run as, where the caller is root."""
    if owner := server_owner():
        os.chown(path, *owner, follow_symlinks=False)


def kill_trees(trees: Sequence[Process], *, main_only: bool = False, also: Sequence[Process] = ()) -> int:
    """SIGSTOP whole trees, list them again until nothing new appears, SIGKILL all, wait for every one; how many died.

    Stopping first keeps a child from noticing its parent's death and flushing what a crash would have lost. With
    ``main_only`` only the roots are killed, and the rest is waited for: what a supervisor's kill does. ``also`` are
    single processes that die with them.
    """
    roots = [*trees, *also]
    seen: dict[int, int] = {root.pid: root.pidfd for root in roots}
    ours = set(seen)
    try:
        if not main_only:
            _send_all(seen.values(), SIGSTOP)
        while found := {pid for root in roots for pid in _children(root.pid)} - set(seen):
            for pid in found:
                with suppress(ProcessLookupError):
                    seen[pid] = os.pidfd_open(pid)
            if not main_only:
                _send_all((seen[pid] for pid in found if pid in seen), SIGSTOP)
        _send_all((fd for pid, fd in seen.items() if pid in ours or not main_only), SIGKILL)
        for root in roots:
            root.kill()
        end = time.monotonic() + REAP_S
        for pid, fd in seen.items():
            if pid not in ours and not select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
                _send_all(seen.values(), SIGKILL)  # a result it is not, but nothing may be left running
                message = f"process {pid}, a child of what was killed, still lives after {REAP_S:g} s"
                raise Hung(message)
    finally:
        for pid in set(seen) - ours:
            os.close(seen[pid])
    _forget_shared_memory(set(seen))
    return len(seen)


def _forget_shared_memory(dead: Collection[int]) -> None:
    """Remove the System V segments that these dead processes made: the kernel keeps them for ever, whoever is gone."""
    table = Path("/proc/sysvipc/shm")
    for line in table.read_text("ascii").splitlines()[1:] if table.exists() else ():
        _, segment, _, _, creator, _, attached, *_ = map(int, line.split())
        if creator in dead and attached == 0:
            ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID


def kill_descendants(spared: Collection[int] = ()) -> None:
    """SIGKILL every process below this one but ``spared``: whatever a thread of ours waits for ends with that. Those
    who started them reap them.
    """
    pidfds: dict[int, int] = {}
    for pid in set(_children(os.getpid())) - set(spared):
        with suppress(ProcessLookupError):
            pidfds[pid] = os.pidfd_open(pid)
    still = set(_children(os.getpid()))  # an id may have been another's when it was opened, but not one of these
    _send_all((fd for pid, fd in pidfds.items() if pid in still), SIGKILL)
    for fd in pidfds.values():
        os.close(fd)


def _send_all(pidfds: Iterable[int], number: int) -> None:
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            pidfd_send_signal(pidfd, number)


def tree(root: Process) -> list[int]:
    """Its pid and those of all its descendants now."""
    return [root.pid, *_children(root.pid)]


THREADS_CHILDREN = "/proc/thread-self/children"


def descendants(pid: int) -> list[int]:
    """The living processes below one, at this moment."""
    return _children(pid)


def _children(pid: int) -> list[int]:
    """Its descendants, by the kernel's own lists: looking through every process of the host takes as long as ten puts,
    and that between two steps of a kill.
    """
    if not Path(THREADS_CHILDREN).exists():  # a kernel without CONFIG_PROC_CHILDREN
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    found: list[int] = []
    parents = [pid]
    while parents:
        tasks = Path(f"/proc/{parents.pop()}/task")
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(tasks):  # noqa: PTH208 - names are enough
                with suppress(FileNotFoundError, ProcessLookupError):
                    children = [int(word) for word in (tasks / thread / "children").read_bytes().split()]
                    found += children
                    parents += children
    return found


def stranger(ports: Iterable[int], roots: Sequence[Process]) -> str | None:
    """The first of ``ports`` at which a process listens that is in none of the trees of ``roots``, in a sentence."""
    listening = _listening()
    wanted = {port: listening[port] for port in ports if port in listening}
    if not wanted:
        return None
    ours = {inode for root in roots for pid in tree(root) for inode in _sockets(pid)}
    for port, inodes in wanted.items():
        if inodes - ours:
            return f"port {port} is answered by a process that is none of ours"
    return None


def _listening() -> dict[int, set[int]]:
    """The inodes of the sockets that listen, by TCP port."""
    found: dict[int, set[int]] = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text("ascii").splitlines()[1:] if table.exists() else ():
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == TCP_LISTEN:
                found.setdefault(int(local.rpartition(":")[2], 16), set()).add(int(inode))
    return found


def _sockets(pid: int) -> set[int]:
    """The inodes of the sockets that a process holds."""
    found: set[int] = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                kind, _, inode = str(descriptor.readlink()).partition(":")
                if kind == "socket":
                    found.add(int(inode.strip("[]")))
    return found


def stop_tree(root: Process, deadline_s: float) -> None:
    """SIGTERM to the main process and wait for the whole tree; SIGKILL for what is left at the deadline."""
    end = time.monotonic() + deadline_s
    children = {}
    for pid in _children(root.pid):
        with suppress(ProcessLookupError):
            children[pid] = os.pidfd_open(pid)
    root.stop(deadline_s)
    for pidfd in children.values():
        if not select.select([pidfd], [], [], max(0, end - time.monotonic()))[0]:
            _send_all([pidfd], SIGKILL)
        os.close(pidfd)
    _forget_shared_memory({root.pid, *children})


class Nursery:
    """The controller's end of a `durabench.nursery` process; safe to use from several threads."""

    def __init__(self, backends: Sequence[str], workload: str, env: Mapping[str, str], log: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        self._lock = threading.Lock()
        self._control = ours
        argv = [
            *guard(as_server=False, paths=()),
            *_ORPHANS_END,
            str(os.getpid()),
            sys.executable,
            "-m",
            "durabench.nursery",
        ]
        with log.open("ab") as sink, theirs:
            self._popen = subprocess.Popen(
                [*argv, str(theirs.fileno()), workload, *backends],
                env=dict(env),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self._control.settimeout(60)
        self._answer()

    def _request(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(fds))
            except OSError as error:
                message = f"the nursery of drivers ended ({error.strerror}){tail(self._log)}"
                raise Died(message) from None
            return self._answer()

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, 4096, 1)
        except TimeoutError:
            self._control.close()  # an answer that comes late must not be taken for that to a later request
            raise Hung(f"the nursery of drivers did not answer{tail(self._log)}") from None
        except OSError as error:
            raise Died(f"the nursery of drivers ended ({error.strerror}){tail(self._log)}") from None
        except KeyboardInterrupt:
            self._control.close()  # for the same reason
            raise
        if not message:
            raise Died(f"the nursery of drivers ended{tail(self._log)}")
        return json.loads(message), fds

    def fork(self) -> Process:
        """A new driver, forked; its stderr goes to the nursery's log."""
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        try:
            with self._log.open("ab") as sink:
                answer, fds = self._request({"do": "fork"}, [in_read, out_write, sink.fileno()])
        except HarnessError:
            os.close(in_write)
            os.close(out_read)
            raise
        finally:
            os.close(in_read)
            os.close(out_write)
        pid, pidfd = answer["pid"], fds[0]

        def reap(deadline_s: float) -> int:
            if not select.select([pidfd], [], [], deadline_s)[0]:
                raise Hung(f"driver {pid} did not end within {deadline_s:g} s")
            return int(self._request({"do": "reap", "pid": pid})[0]["status"])

        return Process(pid, pidfd, reap, in_write, out_read, log=self._log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._control.fileno() >= 0 and self._popen.poll() is None

    def close(self) -> None:
        """End the nursery, and with it every driver it forked."""
        self._control.close()
        try:
            self._popen.wait(REAP_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(REAP_S)
