"""The controller's side of the agent's line: requests with deadlines, processes with lines. Every wait ends."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

REQUEST_S = 60.0
GRACE_S = 10.0  # over the deadline of a request that has one of its own
TAIL_LINES = 40


class GuestLost(Exception):
    """The machine hangs, or is gone; the message ends with its last words."""


class AgentError(Exception):
    """A request was refused inside the machine. `errno` is the kernel's, 0 where there is none."""

    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended: exit status (negative: the signal; None: killed at its deadline), output as text."""

    status: int | None
    out: str
    err: str


@dataclass
class GuestProcess:
    """A process inside the machine. `pid` is its id there. `on_line` and `exited` are served by the reading thread."""

    number: int
    channel: Channel
    pid: int = 0
    on_line: Callable[[str], None] | None = None
    status: int | None = None
    stderr_tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _lines: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _ended: threading.Event = field(default_factory=threading.Event)

    def read_line(self, deadline_s: float = REQUEST_S) -> str | None:
        """The next line of its stdout without the newline; None when it has ended and all was read.

        TimeoutError where none comes in time, GuestLost where the machine is gone.
        """
        try:
            line = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            self.channel.check()
            message = f"no line from the process in {deadline_s} s"
            raise TimeoutError(message) from None
        if line is None:
            self._lines.put(None)  # for whoever asks again
        if line is None or self.on_line is not None:
            self.channel.check()
        return line

    def write_line(self, line: str, deadline_s: float = REQUEST_S) -> None:
        """Write a line to its stdin. AgentError where it has closed it."""
        self.channel.request("write", deadline_s, process=self.number, data=line + "\n", close=False)

    def close_stdin(self) -> None:
        """Let it see the end of its stdin."""
        self.channel.request("write", process=self.number, data="", close=True)

    def signal(self, number: int, *, tree: bool = False) -> int:
        """Signal it; with `tree`, stop it and all its descendants, list again, signal all. Gives how many."""
        count: int = self.channel.request("signal", process=self.number, number=int(number), tree=tree)
        return count

    def kill(self, *, tree: bool = True) -> None:
        """SIGKILL. It is gone when `wait` returns."""
        self.signal(signal.SIGKILL, tree=tree)

    def wait(self, deadline_s: float = REQUEST_S) -> int:
        """Its exit status (negative: the signal). TimeoutError, GuestLost."""
        if not self._ended.wait(deadline_s):
            self.channel.check()
            message = f"the process has not ended in {deadline_s} s"
            raise TimeoutError(message)
        if self.status is None:
            self.channel.check()
            message = "the machine went away before the process ended"
            raise GuestLost(message)
        return self.status

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.status

    def take(self, event: Mapping[str, Any]) -> None:
        """What the agent reported (called by the reading thread)."""
        if "out" in event:
            if self.on_line is not None:
                try:
                    self.on_line(event["out"])
                except Exception as error:
                    self.channel.fail(error)  # the reading thread must live; whoever asks next hears of it
            self._lines.put(event["out"])
        elif "err" in event:
            self.stderr_tail.append(event["err"])
        else:
            self.status = event["exit"]
            self.end()

    def end(self) -> None:
        """Nothing more will come."""
        self._lines.put(None)
        self._ended.set()


class Channel:
    """One connection to one agent. `last_words` gives the machine's console for messages of loss."""

    def __init__(self, connection: socket.socket, last_words: Callable[[], str]) -> None:
        self._socket, self._last_words = connection, last_words
        self._send_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._processes: dict[int, GuestProcess] = {}
        self._hellos: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._next = 0
        self._gone = False
        self._failure: Exception | None = None
        threading.Thread(target=self._read, daemon=True, name="guest-channel").start()

    def hello(self, deadline_s: float) -> Mapping[str, Any]:
        """Wait until an agent greets: after a boot. GuestLost where it does not."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                return self._hellos.get(timeout=min(0.2, max(0.001, end - time.monotonic())))
            self.check()
        raise self.lost(f"no greeting in {deadline_s:.0f} s")

    def request(self, do: str, wait_s: float = REQUEST_S, **arguments: object) -> Any:
        """Have `do` done; gives its result. AgentError where it failed, GuestLost where no answer comes."""
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._state_lock:
            self._next += 1
            number = self._next
            self._answers[number] = answers
        try:
            self._send({"id": number, "do": do, **arguments})
            end = time.monotonic() + wait_s
            while True:
                self.check()
                try:
                    answer = answers.get(timeout=min(1.0, max(0.001, end - time.monotonic())))
                    break
                except queue.Empty:
                    if time.monotonic() >= end:
                        raise self.lost(f"no answer to {do!r} in {wait_s:.0f} s") from None
        finally:
            with self._state_lock:
                self._answers.pop(number, None)
        if answer.get("gone"):
            raise self.lost("the machine went away")
        if "error" in answer:
            raise AgentError(answer["error"], answer["errno"])
        return answer["result"]

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        cwd: str = "/",
        user: str | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> GuestProcess:
        """Start a process. `stdin` text is written and closed; None leaves it open for `write_line`.

        `on_line` gets each stdout line in the reading thread, at the moment it arrives: mark acknowledgements there.
        """
        with self._state_lock:
            self._next += 1
            process = GuestProcess(self._next, self, on_line=on_line)
            self._processes[process.number] = process
        process.pid = self.request(
            "start", process=process.number, argv=list(argv), env=dict(env or {}), cwd=cwd, user=user, stdin=stdin
        )
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        cwd: str = "/",
        user: str | None = None,
        deadline_s: float = 60.0,
    ) -> Completed:
        """Run a command to its end; its status is None where it was killed at the deadline."""
        answer = self.request(
            "run", deadline_s + GRACE_S, argv=list(argv), env=dict(env or {}), cwd=cwd, user=user, stdin=stdin,
            deadline_s=deadline_s,
        )  # fmt: skip
        return Completed(answer["status"], answer["out"], answer["err"])

    def send(
        self,
        files: Mapping[str, bytes],
        *,
        user: str | None = None,
        root: str | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        """Write files (absolute path → content) inside the machine, making their folders; with `root`, only below that
        folder and not through a mount in it. No link is followed.
        """
        packed = {name: base64.b64encode(content).decode() for name, content in files.items()}
        self.request("send", deadline_s, files=packed, user=user, root=root)

    def fetch(self, path: str, deadline_s: float = 60.0) -> bytes:
        """Read a file of the machine."""
        return base64.b64decode(self.request("fetch", deadline_s, path=path))

    def wake(self) -> None:
        """After a restore: give the machine the time and fresh randomness."""
        self.request("wake", now=time.time(), entropy=base64.b64encode(os.urandom(64)).decode())

    def kill_all(self, but: Sequence[GuestProcess] = ()) -> None:
        """SIGKILL all that was started here, except `but`, and wait until it is gone."""
        kept = {process.number for process in but}
        self.request("kill_all", but=sorted(kept))
        with self._state_lock:
            others = [p for n, p in self._processes.items() if n not in kept]
        for process in others:
            process.wait()
            with self._state_lock:
                self._processes.pop(process.number, None)

    def restarted(self) -> None:
        """The machine was reset: what ran is gone, and so are the answers still owed."""
        self._end_all({"gone": True})
        self._hellos = queue.SimpleQueue()

    def fail(self, error: Exception) -> None:
        """Remember that an `on_line` raised: the acknowledgements of this machine are not to be trusted any more."""
        self._failure = self._failure or error

    def check(self) -> None:
        """Raise GuestLost where the machine is known to be gone, or what an `on_line` raised."""
        if self._failure is not None:
            raise self._failure
        if self._gone:
            raise self.lost("the machine is gone")

    def lost(self, why: str) -> GuestLost:
        """The exception with the machine's last words."""
        words = self._last_words()
        return GuestLost(f"{why}; last words:\n{words}" if words else why)

    def close(self) -> None:
        """End the connection; the agent ends with it. May be called twice."""
        self._gone = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(2)
        self._socket.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._send_lock:
                self._socket.sendall(data)
        except OSError:
            self._gone = True

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as stream:
                for line in stream:
                    self._take(line)
        except (OSError, ValueError):
            pass
        finally:
            self._gone = True
            self._end_all({"gone": True})

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line.lstrip(b"\0"))
        except (ValueError, RecursionError):
            return  # half a line from before a reset
        if not isinstance(message, dict):
            return
        if "hello" in message:
            self._hellos.put(message["hello"])
        elif "process" in message:
            process = self._processes.get(message["process"])
            if process is not None:
                process.take(message)
        else:
            with self._state_lock:
                answers = self._answers.get(message.get("id", -1))
            if answers is not None:
                answers.put(message)

    def _end_all(self, answer: dict[str, Any]) -> None:
        with self._state_lock:
            owed, processes = list(self._answers.values()), list(self._processes.values())
            self._processes = {}
        for answers in owed:
            answers.put(answer)
        for process in processes:
            if not process._ended.is_set():  # noqa: SLF001  its own channel
                process.end()
