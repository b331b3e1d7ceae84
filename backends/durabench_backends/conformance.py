"""The peacetime suite: what every store must do while nothing dies, as plain functions over a running backend.

`run` gives one `Result` per check. A check says what went wrong by raising; whatever else a store raises is a failure
of that check too. No check needs pytest, a server's name, or a second of fixed sleep. What the suite does not see: what
survives when something dies (that is the cycle's job), and leftovers below the backend's own root.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from durabench_backends.contract import (
    KEY_MAX_BYTES,
    RATED_DOMAINS,
    Backend,
    Conditional,
    Domain,
    NotReady,
    Promise,
    Setting,
    Store,
    Transactional,
    Versioned,
)
from durabench_backends.embedded import kept_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Found = TypeVar("Found")

READY_S = 60.0
"""Longest wait for a backend to answer after it was started again."""
POLL_S = 0.01
RESTART = "restart"
LARGE_BYTES = 16 * 1024 * 1024
MANY_KEYS = 1001
"""One more than the largest page in which any of our servers lists keys (S3: 1,000)."""
MANY_KEYS_S = 3.0
"""Where puts are dear, listing is tried with as many keys as this many seconds allow."""

EDGE_KEYS = (
    "k" * KEY_MAX_BYTES,
    "é" * (KEY_MAX_BYTES // 2),
    "🦀" * (KEY_MAX_BYTES // 4),
    "/" * KEY_MAX_BYTES,
    "%" * KEY_MAX_BYTES,
    "k",
    "K",
    "straße",
    "STRASSE",
    "\u00e9",
    "e\u0301",  # the same letter, decomposed: another key
    "a",
    "a/",
    "a/b",
    "a//b",
    "/a",
    "a/../b",
    "../a",
    "./a",
    ".",
    "..",
    ".a",
    "a.",
    "/",
    " ",
    " a",
    "a ",
    "a  b",
    "%",
    "%2F",
    "a%2Fb",
    "a%2fb",
    "a+b",
    "a\nb",
    "\n",
    "a\r",
    "\t",
    "\x01",
    "\x7f",
    "\\",
    "'",
    '"',
    "a;b--",
    "*",
    "a?b#c",
    "{a}[b]",
    "-rf",
    "~",
    "$HOME",
    "&<>",
    "0",
    "日本語",
    "\u202eabc",
    "\ufeffa",
)
"""Keys just inside what the contract allows, with pairs that only a careless encoding takes for one."""

OUTSIDE_KEYS = ("", "k" * (KEY_MAX_BYTES + 1), "é" * (KEY_MAX_BYTES // 2) + "k", "\0", "a\0b", "\ud800", "a\udfffb")
"""Keys just outside: empty, 201 bytes, NUL, halves of a surrogate pair."""


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

    A function that needs a restart is a generator: its one ``yield`` is the restart, which all of them share.
    ``where`` says on which settings it is run: all, those whose promise covers an orderly stop, or the others.
    """

    id: str
    description: str
    needs: str
    function: Callable[[Subject], Iterator[None] | None]
    where: Literal["all", "kept", "not kept"] = "all"


@dataclass(frozen=True)
class Result:
    """The outcome of one check, with a one-line reason unless it passed."""

    check: Check
    outcome: Literal["passed", "failed", "not offered"]
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


def not_offered(store: Store, protocol: str) -> NotOffered:
    """The exception that ends a check of an optional protocol."""
    return NotOffered(f"{type(store).__name__} is not {protocol}")


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


# The checks, in the order of CHECKS below.


def _get_returns_put(subject: Subject) -> None:
    store = subject.open()
    values = {
        "key": b"value",
        "all-bytes": bytes(range(256)),
        "text": "ü\r\n\0".encode(),
        "2KiB": random_bytes(2048, "get"),
    }
    for key, value in values.items():
        store.put(key, value)
        expect_value(store, key, value, "after the put")
    again = subject.open()
    for key, value in values.items():
        expect_value(again, key, value, "through a second connection")


def _absent_is_none(subject: Subject) -> None:
    store = subject.open()
    expect_value(store, "absent", None, "in an empty namespace")
    store.put("present", b"value")
    for key in ("absent", "presen", "present2", "Present"):
        expect_value(store, key, None, "beside another key")


def _overwrite_wins(subject: Subject) -> None:
    store = subject.open()
    for value in (b"middle", b"a longer one", b"short", random_bytes(300_000, "overwrite"), b"last"):
        store.put("key", value)
        expect_value(store, "key", value, "after an overwrite")


def _delete_deletes(subject: Subject) -> None:
    store = subject.open()
    store.put("key", b"value")
    store.put("other", b"stays")
    store.delete("key")
    expect_value(store, "key", None, "after delete")
    expect_value(subject.open(), "key", None, "after delete, through a second connection")
    expect_value(store, "other", b"stays", "after another key's delete")
    store.put("key", b"again")
    expect_value(store, "key", b"again", "put again after delete")


def _delete_absent(subject: Subject) -> None:
    store = subject.open()
    store.delete("absent")
    store.put("key", b"value")
    store.delete("key")
    store.delete("key")


def _keys_exact(subject: Subject) -> None:
    store = subject.open()
    expect_keys(store, (), "in an empty namespace")
    deadline = time.monotonic() + MANY_KEYS_S
    keys: list[str] = []
    while len(keys) < MANY_KEYS and (time.monotonic() < deadline or len(keys) < 3):
        keys.append(f"key-{len(keys):04}")
        store.put(keys[-1], b"value")
    expect_keys(store, keys, f"after {len(keys)} puts")
    store.put(keys[1], b"overwritten")
    store.delete(keys[0])
    expect_keys(store, keys[1:], "after an overwrite and a delete")


def _namespaces_apart(subject: Subject) -> None:
    one, other = subject.open("a"), subject.open("b")
    one.put("key", b"one")
    expect_value(other, "key", None, "with the key put in another namespace only")
    other.put("key", b"other")
    other.put("more", b"other")
    expect_value(one, "key", b"one", "with the key put in another namespace too")
    expect_keys(one, ("key",), "with more keys in another namespace")
    other.delete("key")
    expect_value(one, "key", b"one", "with the key deleted in another namespace")
    other.close()
    subject.backend.drop(subject.namespace("b"))
    expect_value(one, "key", b"one", "with another namespace dropped")


def _empty_value(subject: Subject) -> None:
    store = subject.open()
    store.put("empty", b"")
    expect_value(store, "empty", b"", "after a put of nothing")
    expect_keys(store, ("empty",), "after a put of nothing")


def _large_value(subject: Subject) -> None:
    store = subject.open()
    value = random_bytes(LARGE_BYTES, "large")
    store.put("large", value)
    found = store.get("large")
    expect(found is not None, "after the put, get is None")
    expect(found == value, f"{len(found or b'')} of {LARGE_BYTES} bytes came back, not all as they were put")


def _keys_at_the_edge(subject: Subject) -> None:
    store = subject.open()
    values = {key: f"{index}".encode() for index, key in enumerate(EDGE_KEYS)}
    for key, value in values.items():
        store.put(key, value)
    for key, value in values.items():
        expect_value(store, key, value, "with every key at the edge put")
    expect_keys(store, EDGE_KEYS, "with every key at the edge put")
    for key in EDGE_KEYS[::2]:
        store.delete(key)
    expect_keys(store, EDGE_KEYS[1::2], "with every other key deleted")


def _keys_outside(subject: Subject) -> None:
    store = subject.open()
    operations: Mapping[str, Callable[[str], object]] = {
        "put": lambda key: store.put(key, b"value"),
        "get": store.get,
        "delete": store.delete,
    }
    for key in OUTSIDE_KEYS:
        for name, operation in operations.items():
            try:
                operation(key)
            except ValueError:
                continue
            except Exception as error:
                message = f"{name}({brief(key)}) raised {type(error).__name__}, not ValueError"
                raise Failed(message) from error
            message = f"{name}({brief(key)}) was accepted"
            raise Failed(message)
    expect_keys(store, (), "after puts that were refused")


def _another_process_sees(subject: Subject) -> None:
    store, namespace = subject.open(), subject.namespace()
    for value in (b"first", b"second"):
        store.put("here", value)
        found = subject.environment.elsewhere(namespace, "here")
        expect(found == value, f"another process reads {brief(found)}, not the acknowledged {brief(value)}")
    subject.environment.put_elsewhere(namespace, "there", b"value")
    expect_value(store, "there", b"value", "after a put by another process")


def _reopen_after_stop(subject: Subject) -> Iterator[None]:
    store = subject.open()
    values = {"key": b"value", "overwritten": b"new", "large": random_bytes(1_000_000, "reopen")}
    store.put("overwritten", b"old")
    store.put("deleted", b"value")
    for key, value in values.items():
        store.put(key, value)
    store.delete("deleted")
    store.close()
    yield
    store = subject.open()
    for key, value in values.items():
        expect_value(store, key, value, "after an orderly stop and a start")
    expect_keys(store, values, "after an orderly stop and a start")


def _loses_as_said(subject: Subject) -> Iterator[None]:
    store, namespace = subject.open(), subject.namespace()
    store.put("key", b"value")
    store.close()
    yield
    expect_value(subject.open(), "key", None, "after an orderly stop, which no promise covers")
    found = subject.environment.elsewhere(namespace, "key")
    expect(found is None, f"another process still reads {brief(found)} after a stop that no promise covers")


def _size_grows(subject: Subject) -> Iterator[None]:
    store = subject.open()
    own, all_of_it = store.size_bytes(), subject.backend.size_bytes()
    store.put("key", random_bytes(1_000_000, "size"))
    grown = store.size_bytes()
    expect(grown >= own + 500_000, f"the namespace's size_bytes() went from {own} to {grown} with a put of 1,000,000")
    store.close()
    yield  # a log or a dump may be written only now
    grown = when_ready(subject.backend.size_bytes)
    expect(
        grown >= all_of_it + 500_000,
        f"the backend's size_bytes() went from {all_of_it} to {grown} with a put of 1,000,000 and an orderly stop",
    )


def _identity_differs(subject: Subject) -> Iterator[None]:
    before = subject.backend.identity()
    expect(bool(before) and before == subject.backend.identity(), "identity() is empty or differs without a restart")
    yield
    after = when_ready(subject.backend.identity)
    if any(command.role == "daemon" for command in subject.backend.commands()):
        expect(before != after, f"identity() is {brief(after)} before and after a restart")
    else:
        expect(str(os.getpid()) in after, f"identity() {brief(after)} does not name the asking process")


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
        if not _kept(subject.environment):
            subject.backend.create()  # what lives in one process cannot know what others created
    except NotReady as error:
        message = "a second create() raised NotReady: it would be asked again for ever"
        raise Failed(message) from error
    except Exception:
        expect_value(subject.open(), "key", b"value", "after a second create()")
        return
    raise Failed("a second create() was no error")


def _close_idempotent(subject: Subject) -> None:
    store = subject.open()
    store.put("key", b"value")
    store.close()
    store.close()
    expect_value(subject.open(), "key", b"value", "after close")


def _versions(subject: Subject) -> None:
    store = subject.open()
    if not isinstance(store, Versioned):
        raise not_offered(store, "Versioned")
    expect(not list(store.versions("key")), "a key that was never put has versions")
    values = [b"first", b"other", b"third"]
    for value in values:
        store.put("key", value)
    store.put("key2", b"another key's")
    found = list(store.versions("key"))
    expect(len({version for version, _ in found}) == len(found), "two versions have one id")
    expect([value for _, value in found][:1] == values[-1:], f"the newest of versions() is {brief(found[:1])}")
    # In a suspended bucket (S3's word) a put replaces the version before it.
    if "suspended" not in {value.lower() for value in subject.environment.setting.options.values()}:
        expect(
            [value for _, value in found] == values[::-1], f"versions() are {brief(found)}, not the three, newest first"
        )
    store.delete("key")
    expect_value(store, "key", None, "after delete")


def _put_many(subject: Subject) -> None:
    one, other = subject.open("a"), subject.open("b")
    a, b = subject.namespace("a"), subject.namespace("b")
    if not isinstance(one, Transactional):
        raise not_offered(one, "Transactional")
    one.put("overwritten", b"old")
    one.put_many({(b, "key"): b"data", (a, "key"): b"metadata", (a, "overwritten"): b"new"})
    expect_value(one, "key", b"metadata", "after put_many")
    expect_value(one, "overwritten", b"new", "after put_many")
    expect_value(other, "key", b"data", "after put_many into two namespaces")
    try:
        one.put_many({(b, "later"): b"data", (a, ""): b"metadata"})
    except ValueError:
        expect_keys(other, ("key",), "after a put_many that was refused")
        return
    raise Failed("put_many accepted an empty key")


def _put_if_absent(subject: Subject) -> None:
    store = subject.open()
    if not isinstance(store, Conditional):
        raise not_offered(store, "Conditional")
    expect(store.put_if_absent("key", b"first") is True, "put_if_absent of an absent key is not True")
    expect_value(store, "key", b"first", "after put_if_absent")
    expect(store.put_if_absent("key", b"second") is False, "put_if_absent of a present key is not False")
    expect_value(store, "key", b"first", "after put_if_absent of a present key")
    store.delete("key")
    expect(store.put_if_absent("key", b"third") is True, "put_if_absent of a deleted key is not True")
    expect_keys(store, ("key",), "after put_if_absent")


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
        rest = facts[:index] + facts[index + 1 :]
        expect(
            not _stronger(subject.backend.promise(rest), whole), f"promise() without {fact.id} is stronger than with it"
        )


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


def find_outside(root: Path, marker: bytes, since: float) -> Path | None:
    """A file, changed after ``since`` (seconds since the epoch), that holds ``marker`` and is not below ``root``.

    Looked for where programs write when nobody says where: beside the root, in the working, home and temporary
    directories and in shared memory, each with its folders one level down.
    """
    places = {root.resolve().parent, Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path("/dev/shm")}  # noqa: S108
    for place in sorted(places):
        for path in _recent_files(place, since - 2.0, levels=1, root=root.resolve()):
            try:
                if marker in path.read_bytes():
                    return path
            except OSError:  # somebody else's, or gone again
                continue
    return None


def _recent_files(folder: Path, since: float, levels: int, root: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        if path.resolve() == root or root.is_relative_to(path.resolve()):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if entry.is_file(follow_symlinks=False) and status.st_mtime >= since and status.st_size <= 4 * LARGE_BYTES:
            yield path
        elif levels and entry.is_dir(follow_symlinks=False):
            yield from _recent_files(path, since, levels - 1, root)


CHECKS: Sequence[Check] = (
    Check("get-returns-put", "get returns what was put, byte for byte", "store", _get_returns_put),
    Check("absent-is-none", "a key that is not there reads None", "store", _absent_is_none),
    Check("overwrite-wins", "the last put of a key wins, longer or shorter", "store", _overwrite_wins),
    Check("delete-deletes", "a deleted key is gone, others stay, it can be put again", "store", _delete_deletes),
    Check("delete-absent", "deleting what is not there is no error", "store", _delete_absent),
    Check("keys-exact", f"keys lists exactly what is there, {MANY_KEYS:,} keys too", "store", _keys_exact),
    Check("namespaces-apart", "namespaces do not see each other", "store", _namespaces_apart),
    Check("empty-value", "an empty value is a value", "store", _empty_value),
    Check("large-value", "16 MiB go in and come out", "store", _large_value),
    Check("keys-at-the-edge", "every key that the contract allows works and is its own", "store", _keys_at_the_edge),
    Check("keys-outside", "a key that it does not allow is a ValueError and stores nothing", "store", _keys_outside),
    Check(
        "another-process", "another process sees an acknowledged put", "another process", _another_process_sees, "kept"
    ),
    Check("size-grows", "size_bytes grows with what is put", RESTART, _size_grows, "kept"),
    Check("reopen-after-stop", "all is there after an orderly stop and a start", RESTART, _reopen_after_stop, "kept"),
    Check(
        "loses-as-said",
        "what no promise covers, not even a stop, is gone after one",
        "restart",
        _loses_as_said,
        "not kept",
    ),
    Check("identity-differs", "identity tells a restarted server from the one before", RESTART, _identity_differs),
    Check("drop-leaves-nothing", "drop removes all of a namespace, versions too", "store", _drop_leaves_nothing),
    Check("drop-absent", "dropping what is not there is no error", "store", _drop_absent),
    Check("second-create", "a second create is an error and harms nothing", "store", _second_create),
    Check("close-idempotent", "closing twice is no error and loses nothing", "store", _close_idempotent),
    Check("versions", "versions come newest first, all of them", "Versioned", _versions),
    Check("put-many", "put_many puts everything, in several namespaces, or nothing", "Transactional", _put_many),
    Check("put-if-absent", "put_if_absent puts once and says whether", "Conditional", _put_if_absent),
    Check("promise-of-facts", "the promise read back from what runs is the setting's", "store", _promise_of_facts),
    Check("missing-facts", "facts that are missing never make the promise stronger", "store", _missing_facts),
    Check("nothing-outside-root", "nothing is written outside the root", "store", _nothing_outside_root),
)
"""The whole suite. Ids are stable: they stand in the output of ``durabench conform``."""


def run(environment: Environment, checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Run ``checks`` on a running backend in a fresh root; results come in the order of ``checks``.

    Those that need a restart share one and come first: only before anything was dropped must a store grow, instead of
    using its free space again.
    """
    kept = _kept(environment)
    results: dict[str, Result] = {}
    waiting: list[tuple[Check, Subject, Iterator[None]]] = []
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


def _kept(environment: Environment) -> bool:
    return Domain.NOTHING in environment.setting.promise.may_lose_s


def _before_restart(
    check: Check, subject: Subject, results: dict[str, Result], waiting: list[tuple[Check, Subject, Iterator[None]]]
) -> None:
    try:
        steps = check.function(subject)
        assert steps is not None, "a check that needs a restart yields"
        next(steps)
    except Exception as error:
        results[check.id] = _judge(check, error)
    else:
        waiting.append((check, subject, steps))


def _restart(
    environment: Environment, results: dict[str, Result], waiting: Sequence[tuple[Check, Subject, Iterator[None]]]
) -> None:
    try:
        environment.stop()
        environment.start()
    except Exception as error:
        results.update({check.id: _judge(check, error) for check, _, _ in waiting})
        return
    for check, subject, steps in waiting:
        subject.restarted()
        results[check.id] = _attempt(check, subject, partial(next, steps, None))


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
    lines = str(error).splitlines()
    text = lines[0] if lines else ""
    return Result(check, "failed", text if isinstance(error, Failed) else f"{type(error).__name__}: {text}")
