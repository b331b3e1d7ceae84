"""What a `Backend` must do: its checks, one function each."""

from __future__ import annotations

import os
import re
import time
from math import inf
from typing import TYPE_CHECKING

from durabench_backends.conformance.outside import find_outside
from durabench_backends.conformance.suite import (
    RESTART,
    Check,
    Failed,
    NotOffered,
    Steps,
    Subject,
    brief,
    expect,
    expect_keys,
    expect_value,
    random_bytes,
    when_ready,
)
from durabench_backends.contract import RATED_DOMAINS, Fact, NotReady, Promise, Versioned
from durabench_backends.embedded import kept_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROLES = ("setup", "daemon", "configure")
NO_URLS = ("", "durabench", "durabench-no-such-scheme://host/name", "://")


def below(root: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Every file and folder below ``root``, with what changes when it is written to."""
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        yield str(path.relative_to(root)), (status.st_ino, status.st_size, status.st_mtime_ns)


def _init_touches_nothing(subject: Subject) -> None:
    root = subject.environment.root.parent / "conform-never-made"
    made = type(subject.backend)(subject.environment.setting, root, lambda _: 1)
    made.commands()
    expect(not root.exists(), "a backend that was only constructed has made its root")


def _commands_in_order(subject: Subject) -> None:
    commands = list(subject.backend.commands())
    roles = [command.role for command in commands]
    strange = sorted({role for role in roles if role not in ROLES})
    expect(not strange, f"commands() has the roles {strange}; known are {', '.join(ROLES)}")
    expect(
        roles == sorted(roles, key=ROLES.index), f"commands() come as {roles}: set-up, daemons, configuration is right"
    )
    expect("daemon" in roles or not roles, f"commands() of an embedded store are {roles}, not none")
    expect(commands == list(subject.backend.commands()), "commands() says something else when asked again")


def _url_refused(subject: Subject) -> None:
    for url in NO_URLS:
        try:
            type(subject.backend).from_url(url)
        except ValueError as error:
            expect(bool(str(error)), f"from_url({url!r}) raised a ValueError that names nothing")
            continue
        except Exception as error:
            message = f"from_url({url!r}) raised {type(error).__name__}, not ValueError"
            raise Failed(message) from error
        message = f"from_url({url!r}) was accepted"
        raise Failed(message)


def _open_leaves(subject: Subject) -> None:
    store = subject.open()
    store.put("key", b"value")
    for when in ("while it is open elsewhere", "again"):
        expect_value(subject.open(), "key", b"value", f"opened {when}")
    expect_value(store, "key", b"value", "with the namespace opened again")


def _not_ready(subject: Subject) -> Steps:
    if subject.embedded:
        raise NotOffered("an embedded store is always there")
    yield "stopped"
    backend, namespace = subject.environment.backend, subject.namespace()
    attempts: dict[str, Callable[[], object]] = {"open": lambda: backend.open(namespace), "create": backend.create}
    for name, attempt in attempts.items():
        try:
            attempt()
        except NotReady:
            continue
        except Exception as error:
            message = f"while the server is down, {name}() raised {type(error).__name__}, not NotReady"
            raise Failed(message) from error
        message = f"while the server is down, {name}() raised nothing"
        raise Failed(message)
    yield "started"


def _identity_differs(subject: Subject) -> Steps:
    before = subject.backend.identity()
    expect(bool(before) and before == subject.backend.identity(), "identity() is empty or differs without a restart")
    yield "started"
    after = when_ready(subject.backend.identity)
    if not subject.embedded:
        expect(before != after, f"identity() is {brief(after)} before and after a restart")
    else:
        names = str(os.getpid()) in re.findall(r"\d+", after)
        expect(names, f"identity() {brief(after)} does not name the asking process, {os.getpid()}")


def _drop_leaves_nothing(subject: Subject) -> None:
    store, namespace = subject.open(), subject.namespace()
    store.put("key", b"old")
    store.put("key", b"new")
    store.put("a/b", b"value")
    store.put("large", random_bytes(1_000_000, "drop"))
    store.delete("a/b")
    store.close()
    subject.backend.drop(namespace)
    store = subject.open()
    expect_keys(store, (), "after drop")
    expect_value(store, "key", None, "after drop")
    if isinstance(store, Versioned):
        expect(not list(store.versions("key")), "after drop, versions() still has some")


def _drop_absent(subject: Subject) -> None:
    namespace = subject.namespace("never-opened")
    subject.backend.drop(namespace)
    subject.open("opened").close()
    subject.backend.drop(subject.namespace("opened"))
    subject.backend.drop(subject.namespace("opened"))


def _second_create(subject: Subject) -> None:
    store = subject.open()
    store.put("key", b"value")
    try:
        subject.backend.create()
        if not subject.kept:
            subject.backend.create()  # what lives in one process cannot know what others created
    except NotReady as error:
        message = "a second create() raised NotReady: it would be asked again for ever"
        raise Failed(message) from error
    except Exception:
        expect_value(subject.open(), "key", b"value", "after a second create()")
        return
    raise Failed("a second create() was no error")


def _promise_of_facts(subject: Subject) -> None:
    facts = list(subject.backend.inspect())
    found, said = subject.backend.promise(facts), kept_here(subject.environment.setting.promise, facts)
    expect(
        (found.may_lose_s, found.atomic, found.ordered) == (said.may_lose_s, said.atomic, said.ordered),
        f"promise(inspect()) is {_words(found)}, the setting's is {_words(said)}",
    )


def _missing_facts(subject: Subject) -> None:
    facts = list(subject.backend.inspect())
    whole = subject.backend.promise(facts)
    for setting in subject.backend.settings:
        none = subject.backend.promise(())
        expect(not _stronger(none, setting.promise), f"promise() without any fact is stronger than {setting.name}'s")
    for index, fact in enumerate(facts):
        for how, instead in (("without", ()), ("with an unread", (Fact(fact.id, "", "", "may not read: GRANT"),))):
            found = subject.backend.promise([*facts[:index], *instead, *facts[index + 1 :]])
            expect(not _stronger(found, whole), f"promise() {how} {fact.id} is stronger than with it")


def _promise_is_pure(subject: Subject) -> None:
    facts, promise = list(subject.backend.inspect()), type(subject.backend).promise
    first = promise(facts)
    for how, again in (
        ("the second time", facts),
        ("of an iterator", iter(facts)),
        ("in another order", facts[::-1]),
        ("after others", facts),
    ):
        found = promise(again)
        expect(found == first, f"promise() of the same facts {how} is {_words(found)}, and was {_words(first)}")
        promise(())


def _inspect_reads(subject: Subject) -> None:
    store = subject.open()
    store.put("key", b"value")
    # Of a server's files only the server knows why they change; what its clients see must stay.
    before = dict(below(subject.environment.root)) if subject.embedded else {}
    first = [(fact.id, fact.unread) for fact in subject.backend.inspect()]
    again = [(fact.id, fact.unread) for fact in subject.backend.inspect()]
    after = dict(below(subject.environment.root)) if subject.embedded else {}
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    expect(not changed, f"inspect() changed {brief(changed[:1])} below the root")
    expect(first == again, "inspect() has other facts when asked again")
    expect_keys(store, ("key",), "after inspect()")
    expect_value(store, "key", b"value", "after inspect()")


def _nothing_outside_root(subject: Subject) -> None:
    began = time.time()
    marker = b"durabench-conform-" + random_bytes(32, f"{began}").hex().encode()
    store = subject.open()
    store.put("key", marker + random_bytes(100_000, "outside"))
    found = find_outside(subject.environment.root, marker, began)
    expect(found is None, f"what was put stands in {found}, outside {subject.environment.root}")


def _words(promise: Promise) -> str:
    losses = ", ".join(f"{domain.label} {seconds:g}" for domain, seconds in sorted(promise.may_lose_s.items()))
    atomic = promise.atomic.label if promise.atomic is not None else "never"
    ordered = promise.ordered.label if promise.ordered is not None else "never"
    return f"({losses or 'nothing kept'}; atomic {atomic}; ordered {ordered})"


def _stronger(one: Promise, other: Promise) -> bool:
    """Whether ``one`` promises more than ``other`` when something dies; what a mock loses at a stop does not count."""
    never = -1
    loses_less = any(one.may_lose_s.get(domain, inf) < other.may_lose_s.get(domain, inf) for domain in RATED_DOMAINS)
    atomic = (never if one.atomic is None else one.atomic) > (never if other.atomic is None else other.atomic)
    ordered = (never if one.ordered is None else one.ordered) > (never if other.ordered is None else other.ordered)
    return loses_less or atomic or ordered


CHECKS = (
    Check(
        "init-touches-nothing",
        "a backend that was only constructed has made nothing",
        "store",
        _init_touches_nothing,
        ("Backend.__init__: Remember where it lives;", "Backend.__init__: touches nothing."),
    ),
    Check(
        "commands-in-order",
        "commands are set-up, daemons, configuration, the same when asked again",
        "store",
        _commands_in_order,
        (
            "Backend.commands: Set-up, daemons and configuration, in that order;",
            "Backend.commands: empty for an embedded store.",
        ),
    ),
    Check(
        "url-refused",
        "what is no URL of its own is a ValueError that says why",
        "store",
        _url_refused,
        ("Backend.from_url: ValueError names what is wrong with the URL.",),
    ),
    Check(
        "open-leaves",
        "opening makes a namespace once, and leaves what is there",
        "store",
        _open_leaves,
        ("Backend.open: Connect to a namespace, making it if need be.",),
    ),
    Check(
        "not-ready",
        "while the server is down, open and create say NotReady",
        RESTART,
        _not_ready,
        ("Backend.open: NotReady while the backend comes up.", "Backend.create: NotReady while it comes up."),
    ),
    Check(
        "identity-differs",
        "identity tells a restarted server from the one before",
        RESTART,
        _identity_differs,
        (
            "Backend.identity: Differs after a restart:",
            "Backend.identity: the server's own start mark;",
            "Backend.identity: for embedded stores that of the asking process.",
        ),
    ),
    Check(
        "drop-leaves-nothing",
        "drop removes all of a namespace, versions too",
        "store",
        _drop_leaves_nothing,
        ("Backend.drop: Remove all of a namespace, versions and unfinished uploads too;",),
    ),
    Check(
        "drop-absent",
        "dropping what is not there is no error",
        "store",
        _drop_absent,
        ("Backend.drop: absent is no error.",),
    ),
    Check(
        "second-create",
        "a second create is an error and harms nothing",
        "store",
        _second_create,
        ("Backend.create: Once per fresh root, when it answers:", "Backend.create: A second call is an error;"),
    ),
    Check(
        "promise-of-facts",
        "the promise read back from what runs is the setting's",
        "store",
        _promise_of_facts,
        (
            "Backend.inspect: The settings in force, read and never written.",
            "Backend.promise: The promise that ``facts`` add up to;",
        ),
    ),
    Check(
        "promise-is-pure",
        "the same facts make the same promise, in any order, at any time",
        "store",
        _promise_is_pure,
        ("Backend.promise: pure.",),
    ),
    Check(
        "missing-facts",
        "facts that are missing or unread never make the promise stronger",
        "store",
        _missing_facts,
        ("Backend.promise: Facts that are missing never make it stronger.",),
    ),
    Check(
        "inspect-reads",
        "inspecting changes nothing",
        "store",
        _inspect_reads,
        ("Backend.inspect: The settings in force, read and never written.",),
    ),
    Check(
        "nothing-outside-root",
        "nothing is written outside the root",
        "store",
        _nothing_outside_root,
        (
            "Backend: One storage software under one setting, on a directory and ports of ours or at a URL of somebody's.",  # noqa: E501
        ),
    ),
)
