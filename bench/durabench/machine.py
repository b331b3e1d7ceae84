"""Where a trial runs: this host, as a `Machine`. (`guest.py` is the one that can be reset.)

A machine starts what a backend asks for, knows what it started, and carries out the strike on it.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from durabench import process
from durabench_backends.contract import Command
from durabench_vm.agent import put
from durabench_vm.rundir import remove

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from durabench.fault import Fault
    from durabench.process import Process

SETUP_S = 60.0
STOP_S = 20.0
"""Longest orderly stop; a server that needs more is killed, which its promise for a kill then covers."""
PORTS = range(15000, 30000)
"""Below the ephemeral ones, so that a client that polls cannot connect to itself."""


class Machine(Protocol):
    """What the cycle needs of the place where it runs."""

    name: str
    root: Path

    driver: str
    """How drivers start there, as rows name it: forked or fresh."""
    writers: list[Process]
    writers_are_servers: bool
    until: float
    """The monotonic time at which what is done here must be over."""

    def left_s(self, most_s: float) -> float:
        """How long something may be waited for: ``most_s``, and no longer than until then. Never less than 0."""

    def start(self, command: Command, root: Path) -> Process:
        """Start a driver, with lines on stdin and stdout, or a daemon, with a log."""

    def run(self, command: Command, root: Path) -> None:
        """Run a set-up or configuration command to its end; HarnessError with its last words unless it succeeds."""

    def dead_daemon(self, root: Path | None = None) -> str | None:
        """The last words of a daemon (of the one store in ``root``) that should live and does not."""

    def ended_by(self, root: Path) -> int | None:
        """The signal from outside, such as that of a kernel out of memory, that ended a daemon of the store in
        ``root``.
        """

    def stranger(self) -> str | None:
        """Who answers, or keeps a daemon from answering, at a port of this machine without being one of its own."""

    def stop(self) -> None:
        """An orderly stop of all daemons."""

    def end(self, driver: Process) -> None:
        """End a driver that is no longer needed."""

    def port(self, name: str) -> int:
        """A free port; the same for the same name as long as this machine lives."""

    def address(self, port: int) -> tuple[str, int]:
        """Where a person's client reaches a port of this machine."""

    def send(self, root: Path, files: Mapping[str, bytes]) -> None:
        """Make ``root`` and write files under it."""

    def strike(self, fault: Fault, seed: int) -> None:
        """Do it; returns when it has happened."""

    def up(self) -> None:
        """Come up again on what is left."""

    def facts(self) -> Mapping[str, object]:
        """What a result must say about it."""

    def close(self) -> None:
        """End everything it started and remove what it wrote."""


@dataclass
class Ports:
    """Free ports, none handed out twice in a process."""

    taken: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self) -> int:
        """A port that nobody listens on now. HarnessError when there is none."""
        rng = random.SystemRandom()
        with self.lock:
            for _ in range(200):
                port = rng.choice(PORTS)
                if port not in self.taken and is_free(port):
                    self.taken.add(port)
                    return port
        message = f"no free port found between {PORTS.start} and {PORTS.stop}"
        raise process.HarnessError(message)


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this host."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@dataclass
class Nurseries:
    """One nursery of drivers per set of backends and workload, kept as long as a campaign."""

    scratch: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    made: dict[tuple[str, ...], process.Nursery] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, backends: Sequence[str], workload: str) -> process.Nursery:
        """The nursery for these backends and this workload, started if need be."""
        key = (*sorted(set(backends)), workload)
        with self.lock:
            if key in self.made and not self.made[key].alive():
                self.made.pop(key).close()
            if key not in self.made:
                log = self.scratch / f"nursery-{len(self.made)}.log"
                self.made[key] = process.Nursery(key[:-1], workload, self.env, log)
            return self.made[key]

    def pids(self) -> list[int]:
        """Their process ids."""
        return [nursery.pid for nursery in list(self.made.values())]

    def close(self) -> None:
        """End them all."""
        for nursery in self.made.values():
            nursery.close()
        self.made.clear()


@dataclass
class Here:
    """Processes on this host. Drivers are forked from a nursery, or started fresh where there is none."""

    root: Path
    ports: Ports
    nursery: process.Nursery | None = None
    server_kill: str = "tree"
    name: str = "here"
    driver: str = "fresh"
    writers: list[Process] = field(default_factory=list)
    """The drivers that a strike on the client kills; with ``writers_are_servers`` a strike on the server too."""
    writers_are_servers: bool = False
    until: float = float("inf")
    _drivers: list[Process] = field(default_factory=list)
    _daemons: list[Process] = field(default_factory=list)
    _ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.root.absolute()  # what runs there has a working directory of its own
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o711)  # servers run as another user
        self.driver = "forked" if self.nursery else "fresh"

    def left_s(self, most_s: float) -> float:
        """How long something may be waited for."""
        return max(0.0, min(most_s, self.until - time.monotonic()))

    def port(self, name: str) -> int:
        """A free port; the same for the same name."""
        if name not in self._ports:
            self._ports[name] = self.ports.draw()
        return self._ports[name]

    def daemon_pids(self) -> list[int]:
        """The whole trees of all daemons, now."""
        return [pid for daemon in self._daemons for pid in process.tree(daemon)]

    @property
    def ports_drawn(self) -> dict[str, int]:
        """Every port that was asked for, by name."""
        return dict(self._ports)

    def address(self, port: int) -> tuple[str, int]:
        """Loopback."""
        return "127.0.0.1", port

    def send(self, root: Path, files: Mapping[str, bytes]) -> None:
        """Write files under ``root``, as the user that servers run as."""
        root.mkdir(parents=True, exist_ok=True)
        process.hand_over(root)
        for name, content in files.items():
            put(str(root), name, content, process.server_owner())  # the server may have put anything there

    def start(self, command: Command, root: Path) -> Process:
        """Start a driver or a daemon in ``root``."""
        if command.role == "driver":
            made = self.nursery.fork() if self.nursery else self._fresh(command, root)
            self._drivers.append(made)
        else:
            made = process.start(command.argv, **self._as_server(command, root))
            self._daemons.append(made)
        return made

    def run(self, command: Command, root: Path) -> None:
        """Run a set-up or configuration command to its end. Died with its last words unless it succeeds."""
        process.run(command.argv, deadline_s=self.left_s(SETUP_S), **self._as_server(command, root))

    def _fresh(self, command: Command, root: Path) -> Process:
        env = {**os.environ, **command.env}
        return process.start(command.argv, env=env, cwd=root, log=self.root / "driver.log", piped=True)

    def _as_server(self, command: Command, root: Path) -> dict[str, Any]:
        """With as little environment as a server needs: nothing of the caller's secrets."""
        bare = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": str(root), "TMPDIR": str(root)}
        return {
            "env": {**bare, **command.env},
            "cwd": root,
            "log": self.root / f"{root.name}.log",
            "stdin": command.stdin,
            "as_server": True,
        }

    def dead_daemon(self, root: Path | None = None) -> str | None:
        """The last words of a daemon that should live and does not; None while all live."""
        for daemon in self._daemons:
            if not daemon.alive() and root in (None, daemon.cwd):
                return daemon.last_words(f"the server ended with {daemon.wait(0)}")
        return None

    def ended_by(self, root: Path) -> int | None:
        """See Machine."""
        dead = [daemon.wait(0) for daemon in self._daemons if daemon.cwd == root and not daemon.alive()]
        return next((number for status in dead if (number := process.sent(status))), None)

    def stranger(self) -> str | None:
        """See Machine: whose listening socket it is, by the kernel's own lists."""
        return process.stranger(self._ports.values(), self._daemons)

    def strike(self, fault: Fault, seed: int) -> None:
        """Kill the writers, or the servers (and the writers with them where they are what an embedded store has for
        one).
        """
        del seed
        if fault.needs_server:
            process.kill_trees(
                self._daemons,
                main_only=self.server_kill == "main",
                also=self.writers if self.writers_are_servers else (),
            )
            self._forget(self._daemons)
        else:
            process.kill_trees(self.writers)

    def up(self) -> None:
        """Nothing to do: this host was never down."""

    def facts(self) -> Mapping[str, object]:
        """How drivers start."""
        return {"driver": self.driver}

    def stop(self) -> None:
        """An orderly stop of all daemons, last started first; SIGKILL for what does not go in time."""
        for daemon in reversed(self._daemons):
            process.stop_tree(daemon, self.left_s(STOP_S))
        self._forget(self._daemons)

    def end(self, driver: Process) -> None:
        """Kill a driver that is no longer needed and forget it."""
        driver.close()
        self._drivers.remove(driver)

    def close(self) -> None:
        """End everything at once, for nothing of it is kept, and remove the root."""
        self._forget(self._drivers)
        with suppress(process.HarnessError):  # what had ended by itself is no matter here
            process.kill_trees(self._daemons)
        self._forget(self._daemons)
        remove(self.root)

    def _forget(self, processes: list[Process]) -> None:
        for each in processes:
            each.close()
        processes.clear()


DRIVER = Command("driver", (sys.executable, "-m", "durabench.driver"))
