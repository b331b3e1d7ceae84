"""The look at a deployment: connects, reads, with leave proves by behaviour, and never waits for ever.

All of it happens in a thread of its own with a deadline. A server that hangs leaves that thread behind, which dies with
the process.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from durabench import redact
from durabench.verify import trouble
from durabench.verify.asked import UsageError
from durabench.verify.pages import ids_of, prefix_of
from durabench.verify.verdict import NEEDS_PROBE, Report
from durabench_backends import registry, urls
from durabench_backends.contract import Check, Domain, Goal, Verifiable
from durabench_backends.locate import MissingExtra, MissingProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from durabench.counting import Watched
    from durabench_backends.contract import Backend, Fact

LOOK_S = 8.0
"""Longest wait for connecting and reading."""
PROBE_S = 30.0
"""Longest wait for a probe, after that."""

Found = TypeVar("Found")


class Target(NamedTuple):
    """A URL that was understood: the registry's name for its backend, and the class."""

    url: str
    name: str
    backend: type[Backend]


class Seen(NamedTuple):
    """An open backend and what it said about itself."""

    backend: Backend
    facts: tuple[Fact, ...]


def verify(
    url: str,
    goal: Goal | None = None,
    *,
    probe: bool = False,
    ignore: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> Report:
    """Whether the deployment at ``url``, through this login, meets ``goal`` (default: nothing lost with the drive's
    cache). Writes nothing without ``probe``; ``command`` is a program to be watched as it writes there.

    UsageError and UnknownBackend for what cannot be asked; whatever the deployment does ends in a report.
    """
    goal = goal or Goal()
    ignored = dict(ignore or {})
    redact.learn_environment()
    redact.learn(url)
    report = Report(redact.shown(url, user=False), goal, goal, ignored=ignored)
    try:
        target = _target(url)
        known_ids(target.backend, ignored)
        effective = _judged_by(target.backend, goal)
        report = replace(report, judged_by=effective)
        backend = _bounded(lambda: _open(target), LOOK_S, "no answer")
        watched = _watched(target, backend, effective, command)  # first: it may make what is then looked at
        report = replace(report, program_status=watched.exit_status)
        facts = _bounded(lambda: tuple(backend.inspect()), LOOK_S, "no answer")
        seen = _with(Seen(backend, facts), watched.facts)
        checks = list(_checks(seen, effective))
    except (UsageError, registry.UnknownBackend):
        raise
    except Exception as error:
        return replace(report, unreached=trouble.line(url, error))
    promise = seen.backend.promise(seen.facts)
    asked_for = _probed(target, seen, effective) if probe else _not_probed(seen.backend)
    every = tuple(_without_secrets(check) for check in _one_per_id([*checks, *asked_for, *watched.checks]))
    return replace(report, checks=every, promise=promise, mock=_is_mock(seen.backend, every))


def known_ids(backend: type[Backend], asked: Iterable[str]) -> None:
    """UsageError, with the ids there are, unless every one of ``asked`` is a check of this backend."""
    known = ids_of(backend)
    for one in asked:
        if one not in known:
            there_are = f"there are {', '.join(known)}" if known else "this backend has no checks"
            message = f"no check {one!r} here; {there_are}"
            raise UsageError(message)


def _target(url: str) -> Target:
    try:
        urlsplit(urls.escaped(url))
    except ValueError as error:
        message = f"{redact.shown(url, user=False)} is no URL: {redact.redact(str(error))}"
        raise UsageError(message) from None
    if urls.split(url) is None:
        message = f"{redact.redact(url)} is no URL; write one of {registry.url_forms()}"
        raise UsageError(message)
    name = registry.name_for_url(url)
    return Target(url, name, registry.load(name))


def _judged_by(backend: type[Backend], goal: Goal) -> Goal:
    """An embedded store has no server but the writer itself: to survive it is to survive its client."""
    embedded = goal.survive == Domain.SERVER and _is_embedded(backend)
    return replace(goal, survive=Domain.CLIENT) if embedded else goal


def _is_embedded(backend: type[Backend]) -> bool:
    if not backend.settings:
        return False  # served by URL only
    try:
        commands = backend(backend.settings[0], Path(), lambda _: 0).commands()
    except (MissingProgram, MissingExtra):
        return False
    return not any(command.role == "daemon" for command in commands)


def _open(target: Target) -> Backend:
    registry.require(target.name)
    try:
        return target.backend.from_url(target.url)
    except ValueError as error:
        message = f"{redact.shown(target.url, user=False)}: {error}"
        raise UsageError(message) from None


def _checks(seen: Seen, goal: Goal) -> Iterable[Check]:
    return seen.backend.checks(seen.facts, goal) if isinstance(seen.backend, Verifiable) else ()


def _not_probed(backend: Backend) -> list[Check]:
    if not isinstance(backend, Verifiable):
        return []
    from durabench import counting

    ids = (*backend.probes, *counting.pages(prefix_of(backend)))
    return [Check(one, "skip", evidence=NEEDS_PROBE) for one in ids]


def _probed(target: Target, seen: Seen, goal: Goal) -> list[Check]:
    """The checks of the probes; one that was asked for and not made is unknown, with what stood against it."""
    backend = seen.backend
    if not isinstance(backend, Verifiable):
        return []
    from durabench import counting

    def count() -> Iterable[Check]:
        return counting.count(target.name, target.url, seen.backend, seen.backend.promise(seen.facts), goal)

    end = time.monotonic() + PROBE_S
    found = _gathered(lambda: backend.probe(goal), backend.probes, end)
    return [*found, *_gathered(count, tuple(counting.pages(prefix_of(backend))), end)]


def _gathered(probe: Callable[[], Iterable[Check]], ids: Sequence[str], end: float) -> list[Check]:
    made: list[Check] = []

    def gather() -> None:
        made.extend(probe())

    why = "the probe did not make this check"
    try:
        _bounded(gather, max(0.0, end - time.monotonic()), "the probe did not end in time")
    except Exception as error:
        why = trouble.said(error)
    done = list(made)  # a probe that hangs may go on adding
    missing = [one for one in ids if one not in {check.id for check in done}]
    return [*done, *(Check(one, "unknown", evidence=f"not proved: {why}") for one in missing)]


def _watched(target: Target, backend: Backend, goal: Goal, command: Sequence[str]) -> Watched:
    from durabench import counting

    if not command:
        return counting.Watched(0, (), ())
    return counting.watch(command, target.url, backend, goal)


def _with(seen: Seen, observed: Iterable[Fact]) -> Seen:
    """What a program was seen to do takes the place of facts that nobody but the program could know."""
    by_id = {fact.id: fact for fact in (*seen.facts, *observed)}
    return seen._replace(facts=tuple(by_id.values()))


def _one_per_id(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The last check of each id, where the id first came; one that fails is not talked over by a later one."""
    found: dict[str, Check] = {}
    for check in checks:
        if check.id not in found or found[check.id].status != "fail":
            found[check.id] = check
    return tuple(found.values())


def _without_secrets(check: Check) -> Check:
    told: dict[str, Any] = {
        name: redact.KNOWN.hidden(value)
        for name, value in asdict(check).items()
        if value is not None and name not in ("id", "status")
    }
    return replace(check, **told)


def _is_mock(backend: Backend, checks: Iterable[Check]) -> bool:
    told = any(check.id.endswith(".mock") and check.status in ("fail", "unknown") for check in checks)
    return told or bool(getattr(backend, "mock", False))


def _bounded(work: Callable[[], Found], deadline_s: float, late: str) -> Found:
    """The result of ``work``, or what it raised, from a thread that is left behind when the deadline has passed."""
    results: list[Found] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)
        except BaseException as error:  # SystemExit of a client library must not become our exit status
            errors.append(RuntimeError(f"left by {error!r}"))

    thread = threading.Thread(target=run, name="verify", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if errors:
        raise errors[0]
    if not results:
        message = f"{late} within {deadline_s:.3g} s"
        raise TimeoutError(message)
    return results[0]
