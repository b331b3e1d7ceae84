"""What a `Store` must do: its checks, one function each."""

from __future__ import annotations

import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from durabench_backends.conformance.suite import (
    RESTART,
    CannotTell,
    Check,
    Failed,
    Steps,
    Subject,
    brief,
    expect,
    expect_keys,
    expect_value,
    random_bytes,
    when_ready,
)
from durabench_backends.contract import KEY_MAX_BYTES, Conditional, Store, Transactional, Versioned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Item = TypeVar("Item")

SIZES_BYTES = (1, 511, 4095, 4096, 4097, 65_535, 65_537, 1_048_577, 8_388_609, 64 * 1024 * 1024)
"""Around what disks, file systems and servers cut values into, up to the largest that ``plan`` measures."""
MANY_KEYS = 1001
"""One more than the largest page in which any of our servers lists keys or versions (S3: 1,000)."""
MANY_KEYS_S = 300.0
"""A store that takes longer to put so many cannot be told to list them all: the check is then unknown."""
AT_ONCE = 8
"""Connections that put many keys: of a server, which is there for that; an embedded store gets one."""
CONNECTIONS = 16
"""Opened and closed again, to see whether each one is released."""

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


def put_all(subject: Subject, name: str, values: Mapping[str, bytes]) -> None:
    """Put ``values``: in one transaction where there are any, else over several connections to a server.

    CannotTell where that takes longer than `MANY_KEYS_S`.
    """
    store, namespace = subject.open(name), subject.namespace(name)
    if isinstance(store, Transactional):
        store.put_many({(namespace, key): value for key, value in values.items()})
        return
    spread(subject, name, list(values.items()), lambda store, item: store.put(*item))


def spread(subject: Subject, name: str, items: Sequence[Item], work: Callable[[Store, Item], object]) -> None:
    """Do ``work`` on every item, over `AT_ONCE` connections to a server. CannotTell after `MANY_KEYS_S`."""
    deadline = time.monotonic() + MANY_KEYS_S
    connections = 1 if subject.embedded else AT_ONCE
    namespace = subject.namespace(name)

    def some(first: int) -> int:
        backend = subject.environment.backend if first else subject.backend
        store = when_ready(lambda: backend.open(namespace))
        done = 0
        try:
            for item in items[first::connections]:
                if time.monotonic() > deadline:
                    break
                work(store, item)
                done += 1
        finally:
            store.close()
        return done

    with ThreadPoolExecutor(connections) as pool:
        done = sum(pool.map(some, range(connections)))
    if done < len(items):
        message = f"only {done} of {len(items):,} puts in {MANY_KEYS_S:g} s: too slow to try that many"
        raise CannotTell(message)


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


def _get_is_bytes(subject: Subject) -> None:
    store = subject.open()
    for key, value in (("one", b"the first value"), ("other", b"another value")):
        store.put(key, value)
        found = store.get(key)
        expect(type(found) is bytes, f"get returns {type(found).__name__}, not bytes: what it holds may change later")
    kept = store.get("one")
    store.get("other")
    store.put("one", b"overwritten")
    store.delete("other")
    expect(kept == b"the first value", f"what get returned has become {brief(kept)} after later calls")


def _absent_is_none(subject: Subject) -> None:
    store = subject.open()
    expect_value(store, "absent", None, "in an empty namespace")
    store.put("present", b"value")
    for key in ("absent", "presen", "present2", "Present"):
        expect_value(store, key, None, "beside another key")


def _error_is_no_absence(subject: Subject) -> None:
    def look(when: str, store: Store) -> None:
        """Who cannot read may raise; whoever answers must answer what is there."""
        for found in _answered(lambda: store.get("key")):
            expect(found == b"value", f"{when}, get says {brief(found)} of a key that is there, and raises nothing")
        for listed in _answered(lambda: list(store.keys())):
            expect("key" in listed, f"{when}, keys() says {brief(listed)}, and raises nothing")

    subject.open().put("key", b"value")
    for when, failing in FAILURES.items():
        store, sockets = _opened(subject)
        look("with everything at hand", store)
        with failing(sockets):
            look(when, store)
    closed = subject.open()
    look("with everything at hand", closed)
    closed.close()
    look("through a connection that is closed", closed)


def _error_is_no_acknowledgement(subject: Subject) -> None:
    acknowledged: dict[str, bytes | None] = {}
    for when, failing in FAILURES.items():
        store, sockets = _opened(subject)
        store.put(f"delete {when}", b"value")
        with failing(sockets):
            puts = _answered(partial(store.put, f"put {when}", b"value"))
        acknowledged.update((f"put {when}", b"value") for _ in puts)
        store, sockets = _opened(subject)  # the first failure may have ended the connection
        store.get("key")
        with failing(sockets):
            deletes = _answered(partial(store.delete, f"delete {when}"))
        acknowledged.update((f"delete {when}", None) for _ in deletes)
    again = subject.open()
    for key, value in acknowledged.items():
        expect_value(again, key, value, f"{key} that returned")


def _answered(ask: Callable[[], Item]) -> list[Item]:
    """The answer, or none where it raised."""
    try:
        return [ask()]
    except Exception:
        return []


def _opened(subject: Subject) -> tuple[Store, set[str]]:
    """A new connection of an adapter of its own, used once, and the sockets that came with it."""
    if not subject.embedded:
        subject.backend = subject.environment.backend
    before = _sockets()
    store = subject.open()
    store.get("key")
    return store, _sockets() - before


def _sockets() -> set[str]:
    """The sockets of this process, ``number of the descriptor:inode``."""
    found = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - many names
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - many names
            if target.startswith("socket:"):
                found.add(f"{number}:{target}")
    return found


@contextmanager
def _connection_cut(sockets: set[str]) -> Iterator[None]:
    """As a network or a server that goes away: what was connected is connected no more."""
    for each in sockets:
        with socket.socket(fileno=os.dup(int(each.partition(":")[0]))) as connected, suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
    yield


@contextmanager
def _no_descriptor_left(sockets: set[str]) -> Iterator[None]:
    """As a medium that fails, for whoever opens anything: this process may open nothing more, as root too."""
    del sockets
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _nothing_left(sockets: set[str]) -> Iterator[None]:
    """Both at once: whoever connects again cannot."""
    with _connection_cut(sockets), _no_descriptor_left(sockets):
        yield


FAILURES: Mapping[str, Callable[[set[str]], AbstractContextManager[None]]] = {
    "with no file descriptor left": _no_descriptor_left,
    "with the connection cut": _connection_cut,
    "with the connection cut for good": _nothing_left,
}
"""How this process is kept from reading and writing, while the store itself is well."""


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
    keys = [f"key-{number:04}" for number in range(MANY_KEYS)]
    put_all(subject, "a", dict.fromkeys(keys, b"value"))
    expect_keys(store, keys, f"after {len(keys)} puts")
    expect(all(type(key) is str for key in store.keys()), "keys() lists what is no str")  # noqa: SIM118 - no mapping
    store.put(keys[1], b"overwritten")
    store.delete(keys[0])
    expect_keys(store, keys[1:], "after an overwrite and a delete")


def _another_connection(subject: Subject) -> None:
    store, other = subject.open(), subject.open()
    for key in ("both", "deleted"):
        store.put(key, b"old")
        expect_value(other, key, b"old", "with a put by another connection")
    other.put("both", b"new")
    other.put("added", b"value")
    other.delete("deleted")
    for key, value in (("both", b"new"), ("added", b"value"), ("deleted", None)):
        expect_value(store, key, value, "with a put or delete by another connection")
    expect_keys(store, ("both", "added"), "with puts and a delete by another connection")
    store.delete("added")
    expect_value(other, "added", None, "with a delete by another connection")
    expect_keys(other, ("both",), "with a delete by another connection")


KEYS = ("key", "bkey", "/bkey")
NAMES = ("a", "ab", "A", "a.b", "a/b", "a%2Fb")
"""Namespaces that only a careless encoding takes for one another, or for a part of one another."""


def _namespaces_apart(subject: Subject) -> None:
    stores = {name: subject.open(name) for name in NAMES}
    # A key that begins as another namespace ends, so that names and keys that run into each other are seen.
    for name, store in stores.items():
        expect_keys(store, (), "with keys in other namespaces only")
        for key in KEYS:
            expect_value(store, key, None, "with the key put in other namespaces only")
            store.put(key, name.encode())
    for name, store in stores.items():
        for key in KEYS:
            expect_value(store, key, name.encode(), "with the key put in other namespaces too")
        expect_keys(store, KEYS, "with keys in other namespaces")
    stores["ab"].delete("key")
    expect_value(stores["a"], "key", b"a", "with the key deleted in another namespace")
    stores.pop("a").close()
    subject.backend.drop(subject.namespace("a"))
    expect_value(stores["ab"], "bkey", b"ab", "with another namespace dropped")
    for name in ("A", "a.b", "a/b", "a%2Fb"):
        expect_value(stores[name], "key", name.encode(), "with another namespace dropped")


def _empty_value(subject: Subject) -> None:
    store = subject.open()
    store.put("empty", b"")
    expect_value(store, "empty", b"", "after a put of nothing")
    expect_keys(store, ("empty",), "after a put of nothing")


def _large_value(subject: Subject) -> None:
    store = subject.open()
    largest = random_bytes(SIZES_BYTES[-1], "large")
    for size in SIZES_BYTES:
        store.put("large", largest[:size])
        found = store.get("large")
        expect(found is not None, f"after a put of {size:,} bytes, get is None")
        expect(found == largest[:size], f"{len(found or b''):,} of {size:,} bytes came back, not all as they were put")


def _keys_at_the_edge(subject: Subject) -> None:
    store = subject.open()
    values = {key: f"{index}".encode() for index, key in enumerate(EDGE_KEYS)}
    spread(subject, "a", list(values.items()), lambda store, item: store.put(*item))
    for key, value in values.items():
        expect_value(store, key, value, "with every key at the edge put")
    expect_keys(store, EDGE_KEYS, "with every key at the edge put")
    spread(subject, "a", EDGE_KEYS[::2], lambda store, key: store.delete(key))
    expect_keys(store, EDGE_KEYS[1::2], "with every other key deleted")


def _keys_outside(subject: Subject) -> None:
    store, namespace = subject.open(), subject.namespace()
    operations: dict[str, Callable[[str], object]] = {
        "put": lambda key: store.put(key, b"value"),
        "get": store.get,
        "delete": store.delete,
    }
    if isinstance(store, Versioned):
        operations["versions"] = lambda key: list(store.versions(key))
    if isinstance(store, Transactional):
        operations["put_many"] = lambda key: store.put_many({(namespace, key): b"value"})
    if isinstance(store, Conditional):
        operations["put_if_absent"] = lambda key: store.put_if_absent(key, b"value")
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
    expect_value(store, "here", b"second", "after the puts")  # whoever keeps what it read keeps it now
    subject.environment.put_elsewhere(namespace, "here", b"third")
    subject.environment.put_elsewhere(namespace, "there", b"value")
    expect_value(store, "here", b"third", "after a put by another process")
    expect_value(store, "there", b"value", "after a put by another process")
    expect_keys(store, ("here", "there"), "after a put by another process")
    store.delete("here")
    found = subject.environment.elsewhere(namespace, "here")
    expect(found is None, f"another process reads {brief(found)}, the delete of which was acknowledged")


def _reopen_after_stop(subject: Subject) -> Steps:
    store = subject.open()
    values = {"key": b"value", "overwritten": b"new", "large": random_bytes(1_000_000, "reopen")}
    store.put("overwritten", b"old")
    store.put("deleted", b"value")
    for key, value in values.items():
        store.put(key, value)
    store.delete("deleted")
    store.close()
    yield "started"
    store = subject.open()
    for key, value in values.items():
        expect_value(store, key, value, "after an orderly stop and a start")
    expect_keys(store, values, "after an orderly stop and a start")


def _loses_as_said(subject: Subject) -> Steps:
    store, namespace = subject.open(), subject.namespace()
    store.put("key", b"value")
    store.close()
    yield "started"
    expect_value(subject.open(), "key", None, "after an orderly stop, which no promise covers")
    found = subject.environment.elsewhere(namespace, "key")
    expect(found is None, f"another process still reads {brief(found)} after a stop that no promise covers")


def _size_grows(subject: Subject) -> Steps:
    store = subject.open()
    own, all_of_it = store.size_bytes(), subject.backend.size_bytes()
    store.put("key", random_bytes(1_000_000, "size"))
    grown = store.size_bytes()
    expect(grown >= own + 500_000, f"the namespace's size_bytes() went from {own} to {grown} with a put of 1,000,000")
    store.close()
    yield "started"  # a log or a dump may be written only now
    grown = when_ready(subject.backend.size_bytes)
    expect(
        grown >= all_of_it + 500_000,
        f"the backend's size_bytes() went from {all_of_it} to {grown} with a put of 1,000,000 and an orderly stop",
    )


def _size_is_its_own(subject: Subject) -> None:
    one, other = subject.open("a"), subject.open("b")
    one.put("key", b"value")
    before = one.size_bytes()
    other.put("key", random_bytes(1_000_000, "share"))
    after = one.size_bytes()
    expect(
        after < before + 500_000,
        f"a namespace's size_bytes() went from {before} to {after} with a put of 1,000,000 into another one",
    )


def _close_idempotent(subject: Subject) -> None:
    store = subject.open()
    store.put("key", b"value")
    store.close()
    store.close()
    expect_value(subject.open(), "key", b"value", "after close")


def _close_releases(subject: Subject) -> None:
    def used() -> None:
        store = subject.open()
        store.get("key")
        store.close()

    used()  # what is loaded or connected once for all stays
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    for _ in range(CONNECTIONS):
        used()
    more = len(os.listdir("/proc/self/fd")) - before  # noqa: PTH208 - a count
    expect(more < CONNECTIONS, f"{CONNECTIONS} connections were closed, and {more} more file descriptors are open")


CHECKS = (
    Check(
        "get-returns-put",
        "get returns what was put, byte for byte",
        "store",
        _get_returns_put,
        (
            "Store: keys to bytes.",
            "Store.put: Store ``value`` under ``key``, replacing what was there.",
            "Store.get: The bytes last put under ``key``;",
        ),
    ),
    Check(
        "get-is-bytes",
        "what get returns is bytes, and nothing changes it later",
        "store",
        _get_is_bytes,
        ("Store.get: The bytes last put under ``key``;",),
    ),
    Check(
        "absent-is-none",
        "a key that is not there reads None",
        "store",
        _absent_is_none,
        ("Store.get: None only when the key is certainly not there.",),
    ),
    Check(
        "error-is-no-absence",
        "who cannot read raises: an error is never None, nor an empty list",
        "store",
        _error_is_no_absence,
        (
            "Store.get: None only when the key is certainly not there.",
            "Store.keys: Exactly the keys that are there, in any order.",
        ),
    ),
    Check(
        "error-is-no-acknowledgement",
        "a put or delete that returns has happened, also where it met an error",
        "store",
        _error_is_no_acknowledgement,
        ("Store.put: Returning is the acknowledgement.", "Store.delete: Returning is the acknowledgement."),
    ),
    Check(
        "overwrite-wins",
        "the last put of a key wins, longer or shorter",
        "store",
        _overwrite_wins,
        ("Store.put: Store ``value`` under ``key``, replacing what was there.",),
    ),
    Check(
        "delete-deletes",
        "a deleted key is gone, others stay, it can be put again",
        "store",
        _delete_deletes,
        ("Store.delete: Remove ``key``;",),
    ),
    Check(
        "delete-absent",
        "deleting what is not there is no error",
        "store",
        _delete_absent,
        ("Store.delete: absent is no error.",),
    ),
    Check(
        "keys-exact",
        f"keys lists exactly what is there, {MANY_KEYS:,} keys too",
        "store",
        _keys_exact,
        ("Store.keys: Exactly the keys that are there, in any order.",),
    ),
    Check(
        "another-connection",
        "what one connection puts and deletes, another one open beside it sees",
        "store",
        _another_connection,
        (
            "Store.get: The bytes last put under ``key``;",
            "Store.keys: Exactly the keys that are there, in any order.",
            "Store.put: Returning is the acknowledgement.",
            "Store.delete: Returning is the acknowledgement.",
        ),
    ),
    Check(
        "namespaces-apart",
        "namespaces do not see each other, whatever their names have in common",
        "store",
        _namespaces_apart,
        (
            "Store: An open connection to one namespace:",
            "Backend.drop: Remove all of a namespace, versions and unfinished uploads too;",
        ),
    ),
    Check(
        "empty-value",
        "an empty value is a value",
        "store",
        _empty_value,
        ("Store.get: None only when the key is certainly not there.",),
    ),
    Check(
        "large-value",
        f"values of 1 byte to {SIZES_BYTES[-1] >> 20} MiB come out as they went in",
        "store",
        _large_value,
        ("Store.put: Store ``value`` under ``key``, replacing what was there.",),
    ),
    Check(
        "keys-at-the-edge",
        "every key that the contract allows works and is its own",
        "store",
        _keys_at_the_edge,
        ("Store: Keys are 1–200 bytes of UTF-8, case-sensitive, without NUL, else ValueError (see `check_key`).",),
    ),
    Check(
        "keys-outside",
        "a key that it does not allow is a ValueError and stores nothing",
        "store",
        _keys_outside,
        ("Store: Keys are 1–200 bytes of UTF-8, case-sensitive, without NUL, else ValueError (see `check_key`).",),
    ),
    Check(
        "another-process",
        "another process sees an acknowledged put or delete, and is seen",
        "another process",
        _another_process_sees,
        (
            "Store.put: Returning is the acknowledgement.",
            "Store.delete: Returning is the acknowledgement.",
            "Store.close: Never flushes on the caller's behalf.",
        ),
        "kept",
    ),
    Check(
        "size-grows",
        "size_bytes grows with what is put",
        RESTART,
        _size_grows,
        (
            "Store.size_bytes: This namespace's share of the bytes at rest.",
            "Backend.size_bytes: All bytes at rest (allocated), logs included;",
        ),
        "kept",
    ),
    Check(
        "size-is-its-own",
        "size_bytes of a namespace leaves out what others hold",
        "store",
        _size_is_its_own,
        ("Store.size_bytes: This namespace's share of the bytes at rest.",),
        "kept",
    ),
    Check(
        "reopen-after-stop",
        "all is there after an orderly stop and a start",
        RESTART,
        _reopen_after_stop,
        (
            "Backend: One storage software under one setting, on a directory and ports of ours or at a URL of somebody's.",  # noqa: E501
        ),
        "kept",
    ),
    Check(
        "loses-as-said",
        "what no promise covers, not even a stop, is gone after one",
        RESTART,
        _loses_as_said,
        (
            "Backend: One storage software under one setting, on a directory and ports of ours or at a URL of somebody's.",  # noqa: E501
        ),
        "not kept",
    ),
    Check(
        "close-idempotent",
        "closing twice is no error and loses nothing",
        "store",
        _close_idempotent,
        ("Store.close: idempotent.",),
    ),
    Check(
        "close-releases",
        "closing gives back what the connection held",
        "store",
        _close_releases,
        ("Store.close: Release the connection;",),
    ),
)
