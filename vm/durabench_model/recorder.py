"""Runs a program and records what it and its children do below one folder: every write, flush, name and mark.

The programs run under the filter of `kernel`. This process makes each call in their place and answers with the result,
one after the other. So the log's order is the order in which things happened, and every entry has its true result.

::

    python -m durabench_model.recorder ROOT LOG [options] -- CMD…

That is two processes: one records; the other waits for it, and ends all that is left when it, or whoever started it,
has ended. A mark is a write to `MARK_FD`, from any recorded process, or with ``--acknowledged`` a line on stdout.

Linux ≥ 5.14 (5.19 for programs that get signals). An ordinary user suffices; as root, programs may become others.
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import re
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from durabench_model import kernel
from durabench_model.caller import Gone
from durabench_model.ground import Give, Late
from durabench_model.log import Kind, LogFailed, LogWriter
from durabench_model.naming import Naming
from durabench_model.writing import Faults, Writing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from durabench_model.kernel import Call

COULD_NOT = 3
"""Exit status where nothing could be recorded."""
LOCK_CHECK_MS = 50
KILL_S = 10.0
LIMIT_BYTES = 1 << 30


class Calls(Writing, Naming):
    """All handlers."""


class Recorder:
    """Records what programs do below `root` into `log`. Runs with umask 0 and a raised limit of open files."""

    def __init__(
        self,
        root: Path,
        log: Path,
        *,
        do_flushes: bool = False,
        flush_delay_s: float = 0.0,
        faults: Faults | None = None,
        acknowledged: re.Pattern[bytes] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """`limit_bytes`: the programs are ended when the log reaches it. `flush_delay_s`: how long a flush takes, as on
        a device: meanwhile others write, and flush.
        """
        machine = kernel.architecture()
        self._machine, self._limit_bytes = machine, limit_bytes
        real = os.path.realpath(root)
        self._umask, self._nofile = os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE)
        self._log = LogWriter(log, {"root": real, "machine": os.uname().machine, "started_ns": time.monotonic_ns()})
        self._flush_delay_s = flush_delay_s
        self._late: deque[tuple[float, int, Call, Late]] = deque()  # flushes that are under way, in order
        self._calls = Calls(
            real,
            self._log,
            do_flushes=do_flushes,
            late_flushes=flush_delay_s > 0,
            faults=faults,
            acknowledged=acknowledged,
        )
        self._handlers = {
            number: getattr(self._calls, name) for name, number in machine.numbers.items() if hasattr(self._calls, name)
        }
        self._unanswered: dict[int, tuple[tuple[int, list[int]], int, int]] = {}  # thread → call, result, error
        self._poll = select.poll()
        self._listeners: set[int] = set()
        self._children: dict[int, int] = {}  # pidfd → pid
        self.status: dict[int, int] = {}
        """Exit status of every program that was started and has ended, by pid; negative for a signal."""
        self.ended = ""
        """Why the programs were ended, if they were."""
        self.calls = 0
        kernel.become_subreaper()

    # --- programs

    def start(
        self,
        program: Sequence[str] | Callable[[], object],
        *,
        user: tuple[int, int] | None = None,
        output: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Start a program under the filter; gives its pid. Unsupported where the kernel does not let us.

        `program`: a command line, or a function that is called in a fork of this process (exit status 1 if it raises).
        `user`: numbers of user and group (root only). `output`: a descriptor for its stdout and stderr.
        """
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            self._become(theirs, program, user, output, cwd, env)
        theirs.close()
        try:
            listener = kernel.receive_listener(ours)
        except OSError:
            os.waitpid(pid, 0)
            raise
        finally:
            ours.close()
        self._listeners.add(listener)
        self._poll.register(listener, select.POLLIN)
        end = os.pidfd_open(pid)
        self._children[end] = pid
        self._poll.register(end, select.POLLIN)
        return pid

    def _become(
        self,
        channel: socket.socket,
        program: Sequence[str] | Callable[[], object],
        user: tuple[int, int] | None,
        output: int | None,
        cwd: Path | None,
        env: Mapping[str, str] | None,
    ) -> NoReturn:
        try:
            kernel.die_with_parent()
            os.setsid()
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            if user is not None:
                os.setgroups([])
                os.setgid(user[1])
                os.setuid(user[0])
                kernel.die_with_parent()
            os.umask(self._umask)
            if cwd is not None:
                os.chdir(cwd)
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            try:
                kernel.send_listener(channel, kernel.install(self._machine))
            except OSError as error:
                channel.send((error.strerror or str(error)).encode())
                os._exit(127)
            if callable(program):
                _call(program)
            os.execvpe(program[0], list(program), dict(os.environ if env is None else env))
        except OSError as error:
            name = "a function" if callable(program) else program[0]
            os.write(2, f"{name}: {error.strerror}\n".encode())
        os._exit(127)

    def run(self, until: int | None = None, *, stop_at: int | None = None, deadline_s: float | None = None) -> bool:
        """Serve until the program `until` ended (default: all that were started, and their children).

        With `stop_at`, only until the log has so many entries: then every program stands still at its next call. False
        where `deadline_s` or the log's limit was reached before: then `ended` says so, and they stand still, too.
        """
        end = math.inf if deadline_s is None else time.monotonic() + deadline_s
        while self._listeners or self._children:
            left_ms = 1000 * (end - time.monotonic())
            if left_ms <= 0:
                self.ended = f"it did not end within {deadline_s:g} s"
                return False
            wait_ms = min(left_ms, self._answer_late(), LOCK_CHECK_MS if self._calls.files.any_locked else math.inf)
            events = self._poll.poll(None if wait_ms == math.inf else wait_ms)
            if not events and self._calls.files.any_locked:  # somebody may wait for the lock of a process that ended
                self._calls.files.collect()
            for fd, event in events:
                if fd in self._listeners:
                    self._hear(fd, event)
                elif self._reap(fd) == until:
                    return True
                if self._log.size_bytes > self._limit_bytes:
                    self.ended = f"the log reached its limit of {self._limit_bytes >> 20} MiB"
                    return False
                if stop_at is not None and self._log.position >= stop_at:
                    return True
        return True

    def _answer_late(self) -> float:
        """Answer the flushes whose time has come; gives the time to the next in ms."""
        while self._late:
            due, listener, call, flush = self._late[0]
            left_ms = 1000 * (due - time.monotonic())
            if left_ms > 0:
                return left_ms
            self._late.popleft()
            self._log.thread = call.thread
            self._log.append(Kind.FLUSH, flush.node, flush.covers, flags=flush.flags)
            if listener in self._listeners:
                kernel.answer(listener, call)
        return math.inf

    def _hear(self, listener: int, event: int) -> None:
        if event & select.POLLIN:
            self._serve(listener)
        elif event & select.POLLHUP:  # the last process under this filter is gone
            self._poll.unregister(listener)
            os.close(listener)
            self._listeners.remove(listener)

    def _reap(self, end: int) -> int:
        pid = self._children.pop(end)
        self._poll.unregister(end)
        os.close(end)
        self.status[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return pid

    def mark(self, value: object) -> None:
        """An acknowledgement that this process heard of."""
        self._log.append(Kind.MARK, payload=json.dumps(value).encode())

    @property
    def position(self) -> int:
        """How many entries the log has."""
        return self._log.position

    def close(self, pid: int | None = None) -> None:
        """Close the log and all files; with `pid`, say first how that program ended."""
        self._calls.finish()
        if pid is not None:
            self._log.append(Kind.EXIT, self.status.get(pid, -signal.SIGKILL), payload=self.ended.encode())
        self._log.close()
        for fd in (*self._listeners, *self._children):
            os.close(fd)
        os.umask(self._umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._nofile)

    # --- one call

    def _serve(self, listener: int) -> None:
        call = kernel.receive(listener)
        if call is None:
            return
        self.calls += 1
        self._log.thread = call.thread
        same = (call.number, call.arguments)
        made = self._unanswered.pop(call.thread, None)
        if made is not None and made[0] == same:
            value, error = made[1:]  # the same call again, after a signal: it has been made
        else:
            try:
                outcome = self._make(call)
                if isinstance(outcome, Give):
                    self._give(listener, call, outcome)
                    return
                if isinstance(outcome, Late):
                    self._late.append((time.monotonic() + self._flush_delay_s, listener, call, outcome))
                    return
            except Gone:
                return
            except OSError as failed:
                value, error = 0, failed.errno or errno.EIO
            else:
                if outcome is None:
                    kernel.answer(listener, call, proceed=True)
                    return
                value, error = outcome, 0
        if not kernel.answer(listener, call, value, error):
            # Killed meanwhile: the call was made all the same, as it may be by the kernel. Or, before Linux 5.19, a
            # signal came: the caller will repeat the call, and gets this answer then.
            self._unanswered[call.thread] = same, value, error

    def _make(self, call: Call) -> int | Give | Late | None:
        try:
            made: int | Give | Late | None = self._handlers[call.number](call)
        except (ValueError, OverflowError) as error:  # what Python refuses to pass on
            raise OSError(errno.EINVAL, str(error)) from None
        finally:
            for fd in self._calls.borrowed:
                os.close(fd)
            self._calls.borrowed.clear()
        return made

    def _give(self, listener: int, call: Call, given: Give) -> None:
        """Put an open file into the caller at a number of its own, which is the call's answer."""
        files = self._calls.files
        try:
            number = files.free_number()
            if kernel.give(listener, call, given.file.fd, number, cloexec=given.cloexec):
                files.put(number, given.file)
                return
        except OSError as error:
            lowered = f"a program limits its open files to fewer than {kernel.FIRST_FD}: it could not open one"
            self._log.note(given.file.node, lowered, doubt=True)
            kernel.answer(listener, call, 0, error.errno or errno.EMFILE)
        os.close(given.file.fd)


def _call(program: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        program()
        status = 0
    except BaseException:  # whatever it is, nothing may return from here
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def record_call(program: Callable[[], object], root: Path, log: Path, *, deadline_s: float) -> None:
    """Record what a function does below `root`, in a fork of this process, which should have no other threads.

    How it ended stands in the log. Unsupported where nothing can be recorded.
    """
    why_not = kernel.why_not()
    if why_not is not None:
        raise kernel.Unsupported(why_not)
    pid = os.fork()
    if not pid:
        _supervise(lambda: Recorder(root, log), program, deadline_s)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise kernel.Unsupported("the recorder could not go on; its last words are above")


def kill_descendants() -> None:
    """End all processes below this one, whatever they are doing; bounded, since one may make others all the time."""
    end = time.monotonic() + KILL_S
    while time.monotonic() < end:
        held = {}
        for pid in kernel.descendants(os.getpid()):
            with suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        still = set(kernel.descendants(os.getpid()))  # a number that was used again is not below us any more
        for pid, end_fd in held.items():
            if pid in still:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(end_fd, signal.SIGKILL)
            os.close(end_fd)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not held:
            return
        time.sleep(0.001)


# --- the program


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one program; its exit status stands in the log. Gives 0, or `COULD_NOT` with a line on stderr."""
    asked = _parser().parse_args(arguments)
    why_not = kernel.why_not()
    if why_not is not None:
        print(f"recorder: {why_not}", file=sys.stderr)
        return COULD_NOT
    kernel.become_subreaper()
    kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    pid = os.fork()
    if not pid:
        _record(asked)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) and COULD_NOT
    finally:
        kill_descendants()


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _record(asked: argparse.Namespace) -> NoReturn:
    """The process that records what was asked for on the command line."""

    def recorder() -> Recorder:
        return Recorder(
            asked.root,
            asked.log,
            do_flushes=asked.do_flushes,
            flush_delay_s=asked.flush_delay,
            faults=Faults(asked.fail_write, asked.fail_flush),
            acknowledged=re.compile(asked.acknowledged.encode()) if asked.acknowledged else None,
            limit_bytes=asked.limit_bytes,
        )

    environment = {**os.environ, **dict(pair.split("=", 1) for pair in asked.env)}
    _supervise(recorder, asked.command, asked.deadline, user=asked.user, env=environment)


def _supervise(
    make: Callable[[], Recorder],
    program: Sequence[str] | Callable[[], object],
    deadline_s: float | None,
    *,
    user: tuple[int, int] | None = None,
    env: Mapping[str, str] | None = None,
) -> NoReturn:
    """Be the process that records: it answers for the programs, so it does nothing else."""
    status = COULD_NOT
    try:
        kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _leave)
        recorder = make()
        pid = recorder.start(program, user=user, env=env)
        recorder.run(pid, deadline_s=deadline_s)
        recorder.close(pid)
        status = 0
    except OSError as error:
        print(f"recorder: {error.strerror or error}", file=sys.stderr)
    except LogFailed as error:
        print(f"recorder: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    finally:  # also where our parent was killed, and we were told to leave
        kill_descendants()
        sys.stderr.flush()
        os._exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("durabench_model.recorder", description="Record what a program does to files.")
    parser.add_argument("root", type=Path, metavar="ROOT", help="the folder that is looked at")
    parser.add_argument("log", type=Path, metavar="LOG", help="where the log goes, outside of it")
    parser.add_argument("--acknowledged", metavar="PATTERN", help="a line on stdout that matches is a mark")
    parser.add_argument("--do-flushes", action="store_true", help="flushes are done, not only logged and answered")
    parser.add_argument("--flush-delay", type=float, default=0.0, metavar="SECONDS", help="how long a flush takes")
    parser.add_argument("--fail-write", type=int, default=0, metavar="N", help="the N-th write fails with ENOSPC")
    parser.add_argument("--fail-flush", type=int, default=0, metavar="N", help="the N-th flush fails with EIO")
    parser.add_argument("--limit-bytes", type=int, default=LIMIT_BYTES, help="the log's largest size")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="the program is ended after so long")
    parser.add_argument("--user", type=_user, metavar="UID:GID", help="whom the program runs as (root only)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="set for the program alone")
    parser.add_argument("command", nargs="+", metavar="CMD")
    return parser


def _user(text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    return int(user), int(group)


if __name__ == "__main__":
    sys.exit(main())
