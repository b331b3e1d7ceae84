"""A backend brought up on a machine: set up, started, proved ready by a real write, stopped, started again.

The harness never opens a store in its own process: every contact with a backend is an order to a driver.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from durabench.machine import DRIVER, Here, Machine, Ports
from durabench.process import HarnessError
from durabench.redact import shown
from durabench.row import label
from durabench_backends import registry
from durabench_backends.contract import Backend, Domain, Fact, Promise, Setting
from durabench_backends.embedded import kept_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from durabench.process import Process

READY_S = 60.0
"""Longest wait for a backend to come up; "does not come up" is a result."""
ANSWER_S = 60.0
"""Longest wait for a driver's answer beyond its own deadlines."""


@dataclass(frozen=True)
class Target:
    """What a namespace is kept in: a backend under a setting, or somebody's at a URL (setting ``live``)."""

    backend: str
    setting: str
    url: str | None = None
    """As it is asked for, secrets and all: for the driver alone."""

    def __repr__(self) -> str:
        return f"Target(backend={self.backend!r}, setting={self.setting!r}, url={self.where!r})"

    @property
    def where(self) -> str | None:
        """Its URL without secrets: what tells it from others of its backend, in everything that is written."""
        return None if self.url is None else shown(self.url)

    @property
    def label(self) -> str:
        """``backend:setting``; of somebody's, ``backend:live (URL)`` without secrets."""
        return label(self.as_json())

    def as_json(self) -> dict[str, str | None]:
        """Its part of a row of the plan."""
        return {"backend": self.backend, "setting": self.setting, "url": self.where}

    def load(self) -> tuple[type[Backend], Setting | None]:
        """Its class and, for one of ours, its setting. UnknownBackend or MissingExtra."""
        found = registry.load(self.backend)
        return found, None if self.url else registry.setting_of(found, self.backend, self.setting)


@dataclass
class Service:
    """One target on one machine, under ``root``."""

    machine: Machine
    target: Target
    root: Path
    identity: str | None = None
    facts: tuple[Fact, ...] = ()
    promise: Promise | None = None
    _admin: Process | None = None
    _ports: dict[str, int] = field(default_factory=dict)
    _left: list[str] = field(default_factory=list)
    _token: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def backend(self) -> Backend:
        """The adapter itself, for what needs no contact: its commands, its settings."""
        found, _ = self.target.load()
        if self.target.url:
            return found.from_url(self.target.url)
        return found(self.setting, self.root, self._port)

    @property
    def setting(self) -> Setting:
        """The setting it runs under. LookupError for somebody's backend, which has none of ours."""
        _, setting = self.target.load()
        if setting is None:
            message = f"{self.target.backend} at a URL runs under its owner's settings"
            raise LookupError(message)
        return setting

    def _port(self, name: str) -> int:
        self._ports[name] = self.machine.port(f"{self.root.name}/{name}")
        return self._ports[name]

    @property
    def embedded(self) -> bool:
        """Whether it has no server of its own (one at a URL has, but not one of ours to kill)."""
        return not self.target.url and not any(command.role == "daemon" for command in self.backend.commands())

    def namespace(self, name: str) -> str:
        """The full name of a namespace of ours: in somebody's store nobody else's, and remembered, to be dropped."""
        if not self.target.url:
            return name
        self._left.append(f"durabench-{self._token}-{name}")
        return self._left[-1]

    def leave(self) -> None:
        """Drop what was put into somebody's store; ours go with their directory. HarnessError if it cannot be."""
        if self._left:
            names, self._left = self._left, []
            self.ask({"do": "drop", "target": self.order(), "namespaces": names})

    def order(self, namespace: str | None = None) -> dict[str, Any]:
        """How a driver finds it (`driver.backend_of` is the other side), with a namespace where one is opened."""
        if self.target.url:
            found: dict[str, Any] = {"backend": self.target.backend, "url": self.target.url}
        else:
            self.backend.commands()  # draws the ports
            found = {
                "backend": self.target.backend,
                "setting": self.target.setting,
                "root": str(self.root),
                "ports": self._ports,
            }
        return found if namespace is None else {**found, "namespace": namespace}

    def set_up(self) -> None:
        """From nothing to ready: files, set-up, daemons, schema, configuration, a real write. HarnessError if it does
        not come up.
        """
        commands = self.backend.commands()
        self._send_files()
        for command in commands:
            if command.role == "setup":
                self.machine.run(command, self.root)
        self.start()
        if not self.target.url:
            self.ask({"do": "create", "target": self.order()})
        for command in commands:
            if command.role == "configure":
                self.machine.run(command, self.root)
        self.ready()

    def _send_files(self) -> None:
        files: dict[str, bytes] = {}
        for command in self.backend.commands():
            files.update(command.files)
        self.machine.send(self.root, files)

    def start(self) -> None:
        """Start the daemons; a driver's open waits until they answer."""
        self._send_files()
        for command in self.backend.commands():
            if command.role == "daemon":
                self.machine.start(command, self.root)

    def ready(self) -> None:
        """Prove by a real write that it answers, and remember who it is."""
        answer = self.ask({"do": "ready", "target": self.order(), "namespace": self.namespace("ready")})
        self.identity = answer["identity"]

    def look(self) -> None:
        """Read back the settings in force and the promise they add up to."""
        answer = self.ask({"do": "inspect", "target": self.order()})
        self.facts = tuple(Fact(*fact) for fact in answer["facts"])
        self.promise = promise_from(answer["promise"])

    def ask(self, order: Mapping[str, Any], deadline_s: float = READY_S) -> dict[str, Any]:
        """An order to a driver that is neither a writer nor a reader. HarnessError with why if it fails."""
        if self._admin is None:
            self._admin = self.machine.start(DRIVER, self.root)
        try:
            wait_s = self.machine.left_s(deadline_s + ANSWER_S)
            answer = self._admin.ask({**order, "deadline_s": deadline_s}, wait_s)[-1]
        except HarnessError:
            self._admin = None
            raise
        if answer["e"] == "failed":
            dead = self.machine.dead_daemon()
            message = f"{self.target.label}: {order['do']} failed: {answer['why']}" + (f"; {dead}" if dead else "")
            raise HarnessError(message)
        return answer

    def put_elsewhere(self, namespace: str, key: str, value: bytes) -> None:
        """Put in another process."""
        self.ask({"do": "put", "target": self.order(), "namespace": namespace, "key": key, "value": value.hex()})

    def elsewhere(self, namespace: str, key: str) -> bytes | None:
        """Get in another process, which has never written."""
        reader = self.machine.start(DRIVER, self.root)
        try:
            order = {"do": "get", "target": self.order(), "namespace": namespace, "key": key, "deadline_s": READY_S}
            answer = reader.ask(order, READY_S + ANSWER_S)[-1]
        finally:
            self.machine.end(reader)
        if answer["e"] == "failed":
            raise HarnessError(answer["why"])
        return None if answer["value"] is None else bytes.fromhex(answer["value"])

    def stop(self) -> None:
        """An orderly stop of its server."""
        self._end_admin()
        self.machine.stop()

    def _end_admin(self) -> None:
        if self._admin is not None:
            self.machine.end(self._admin)
            self._admin = None


def not_in_force(target: Target, promise: Promise, facts: Iterable[Fact]) -> str | None:
    """Why what a store says of itself is not the setting that was asked for; None where it is, or where none was.

    The place is not the setting: on a disk of memory no setting keeps what it would keep on another.
    """
    _, setting = target.load()
    if setting is None or replace(kept_here(setting.promise, facts), source="") == replace(promise, source=""):
        return None
    return f"{target.label}: the effective settings promise something else ({promise.tier})"


def promise_from(words: Mapping[str, Any]) -> Promise:
    """A promise from its JSON form (`driver.inspect` writes it)."""
    by_label = {domain.label: domain for domain in Domain}
    return Promise(
        {by_label[label]: float(seconds) for label, seconds in words["may_lose_s"].items()},
        by_label[words["atomic"]] if words["atomic"] else None,
        by_label[words["ordered"]] if words["ordered"] else None,
        str(words["source"]),
    )


@contextmanager
def running(name: str, setting: str, root: Path, machine: Machine | None = None) -> Iterator[Service]:
    """A backend of ours, ready, under ``root`` on this host (or on ``machine``); everything is ended and removed
    afterwards.
    """
    where = machine or Here(root, Ports())
    service = Service(where, Target(name, setting), where.root / "store")
    try:
        service.set_up()
        yield service
    finally:
        where.close()
