"""How the suite goes: what a check works on, how it says what is wrong, and the one restart that all of them share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from durabench_backends.contract import Backend, Domain, NotReady, Setting, Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Found = TypeVar("Found")
Phase = Literal["stopped", "started"]
"""What a check that needs a restart waits for."""
Steps = Iterator[Phase]

READY_S = 60.0
"""Longest wait for a backend to answer after it was started again."""
POLL_S = 0.01
RESTART = "restart"


class Environment(Protocol):
    """A running backend of one setting, in a fresh root, and the means to look at it from elsewhere."""

    @property
    def backend(self) -> Backend:
        """An adapter for it in this process."""

    @property
    def setting(self) -> Setting:
        """The setting under which it runs."""

    @property
    def root(self) -> Path:
        """Where everything of the backend must live; its parent is nobody else's."""

    def stop(self) -> None:
        """An orderly stop."""

    def start(self) -> None:
        """Start it again on what is there."""

    def put_elsewhere(self, namespace: str, key: str, value: bytes) -> None:
        """Put in another process."""

    def elsewhere(self, namespace: str, key: str) -> bytes | None:
        """Get in another process, which has never written."""


class Failed(Exception):
    """A check did not find what it must; the message is the one-line reason."""


class NotOffered(Exception):
    """The backend, or this setting, does not offer what a check needs; the message says what."""


class CannotTell(Exception):
    """A check could not look at all that it must; the message says at what."""


@dataclass
class Subject:
    """What a check works on: its own namespaces of one backend, closed and dropped when it ends."""

    environment: Environment
    check: str
    backend: Backend
    _closing: ExitStack = field(default_factory=ExitStack)
    _dropping: dict[str, None] = field(default_factory=dict)

    def namespace(self, name: str = "a") -> str:
        """The full name of one of this check's namespaces."""
        full = f"conform-{self.check}-{name}"
        self._dropping[full] = None
        return full

    def open(self, name: str = "a") -> Store:
        """A new connection to a namespace of this check."""
        full = self.namespace(name)
        store = when_ready(lambda: self.backend.open(full))
        self._closing.callback(store.close)
        return store

    @property
    def embedded(self) -> bool:
        """Whether nothing but this process holds the store."""
        return not any(command.role == "daemon" for command in self.backend.commands())

    @property
    def kept(self) -> bool:
        """Whether the setting promises to keep anything over an orderly stop."""
        return is_kept(self.environment)

    def restarted(self) -> None:
        """Forget connections to what was stopped."""
        self._closing.pop_all()
        self.backend = self.environment.backend

    def close(self) -> None:
        """Close connections, drop namespaces. What these do wrong is for their own checks to say."""
        with suppress(Exception):
            self._closing.close()
        for namespace in self._dropping:
            with suppress(Exception):
                self.backend.drop(namespace)


@dataclass(frozen=True)
class Check:
    """One check. ``needs``: ``store``, ``another process``, ``restart`` or an optional protocol.

    ``clauses`` are what the contract's docstrings say and this check holds a backend to: ``Protocol.method: words``.
    A function that needs a restart is a generator, which yields what it waits for: ``stopped``, then ``started``, or
    only the second; all of them share one restart. ``where`` says on which settings it is run: all, those whose promise
    covers an orderly stop, or the others.
    """

    id: str
    description: str
    needs: str
    function: Callable[[Subject], Steps | None]
    clauses: Sequence[str]
    where: Literal["all", "kept", "not kept"] = "all"


@dataclass(frozen=True)
class Result:
    """The outcome of one check, with a one-line reason unless it passed."""

    check: Check
    outcome: Literal["passed", "failed", "unknown", "not offered"]
    reason: str = ""


def when_ready(attempt: Callable[[], Found]) -> Found:
    """What ``attempt`` returns, repeated while the backend is not ready; NotReady after `READY_S`."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return attempt()
        except NotReady:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def expect(condition: bool, reason: str) -> None:
    """Failed with ``reason`` unless ``condition``."""
    if not condition:
        raise Failed(reason)


def not_offered(owner: object, protocol: str) -> NotOffered:
    """The exception that ends a check of an optional protocol."""
    return NotOffered(f"{type(owner).__name__} is not {protocol}")


def brief(value: object) -> str:
    """A value in few letters."""
    if isinstance(value, bytes) and len(value) > 40:
        return f"{len(value)} bytes beginning {value[:16]!r}"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def expect_value(store: Store, key: str, value: bytes | None, when: str) -> None:
    """Failed unless ``store`` has exactly ``value`` under ``key`` (None: nothing)."""
    found = store.get(key)
    if found != value:
        message = f"{when}, get({brief(key)}) is {brief(found)}, not {brief(value)}"
        raise Failed(message)


def expect_keys(store: Store, keys: Iterable[str], when: str) -> None:
    """Failed unless ``store`` lists exactly ``keys``, each once."""
    listed, wanted = list(store.keys()), set(keys)
    missing, extra = wanted - set(listed), set(listed) - wanted
    expect(not missing, f"{when}, keys() leaves out {brief(sorted(missing)[:1])} and {max(len(missing) - 1, 0)} more")
    expect(
        not extra,
        f"{when}, keys() lists {brief(sorted(extra)[:1])} and {max(len(extra) - 1, 0)} more that are not there",
    )
    expect(len(listed) == len(wanted), f"{when}, keys() lists {len(listed) - len(wanted)} keys twice")


def random_bytes(size: int, seed: str) -> bytes:
    """Bytes that no storage can compress, the same at every run."""
    return Random(seed).randbytes(size)


def is_kept(environment: Environment) -> bool:
    """Whether the setting's promise covers an orderly stop."""
    return Domain.NOTHING in environment.setting.promise.may_lose_s


@dataclass
class _Waiting:
    """A check that waits for the restart."""

    check: Check
    subject: Subject
    steps: Steps
    phase: Phase


def run(environment: Environment, checks: Sequence[Check]) -> list[Result]:
    """Run ``checks`` on a running backend in a fresh root; results come in the order of ``checks``.

    Those that need a restart share one and come first: only before anything was dropped must a store grow, instead of
    using its free space again.
    """
    kept = is_kept(environment)
    results: dict[str, Result] = {}
    waiting: list[_Waiting] = []
    for check in sorted(checks, key=lambda check: check.needs != RESTART):
        if check.where != "all" and (check.where == "kept") != kept:
            covers = "covers" if kept else "does not cover"
            reason = f"the promise of this setting {covers} an orderly stop"
            results[check.id] = Result(check, "not offered", reason)
            continue
        subject = Subject(environment, check.id, environment.backend)
        if check.needs == RESTART:
            _before_restart(check, subject, results, waiting)
            continue
        if waiting:
            _restart(environment, results, waiting)
            waiting.clear()
        results[check.id] = _attempt(check, subject, partial(check.function, subject))
    if waiting:
        _restart(environment, results, waiting)
    return [results[check.id] for check in checks]


def _before_restart(check: Check, subject: Subject, results: dict[str, Result], waiting: list[_Waiting]) -> None:
    try:
        steps = check.function(subject)
        assert steps is not None, "a check that needs a restart yields"
        phase = next(steps)
    except Exception as error:
        results[check.id] = _judge(check, error)
        subject.close()
    else:
        waiting.append(_Waiting(check, subject, steps, phase))


def _restart(environment: Environment, results: dict[str, Result], waiting: list[_Waiting]) -> None:
    try:
        environment.stop()
        for each in waiting:
            if each.phase == "stopped":
                _while_stopped(each, results)
        environment.start()
    except Exception as error:
        results.update({each.check.id: _judge(each.check, error) for each in waiting})
        return
    for each in waiting:
        each.subject.restarted()
        result = _attempt(each.check, each.subject, partial(next, each.steps, None))
        results.setdefault(each.check.id, result)


def _while_stopped(waiting: _Waiting, results: dict[str, Result]) -> None:
    """Go on while it is stopped. What went wrong is the result; the steps have then ended."""
    try:
        waiting.phase = next(waiting.steps)
    except Exception as error:
        results[waiting.check.id] = _judge(waiting.check, error)


def _attempt(check: Check, subject: Subject, work: Callable[[], object]) -> Result:
    try:
        work()
    except Exception as error:
        return _judge(check, error)
    finally:
        subject.close()
    return Result(check, "passed")


def _judge(check: Check, error: Exception) -> Result:
    if isinstance(error, NotOffered):
        return Result(check, "not offered", str(error))
    if isinstance(error, CannotTell):
        return Result(check, "unknown", str(error))
    lines = str(error).splitlines()
    text = lines[0] if lines else ""
    return Result(check, "failed", text if isinstance(error, Failed) else f"{type(error).__name__}: {text}")
