"""What a store or a backend must do that offers more: the checks of the optional protocols, one function each."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from durabench_backends.conformance.backend import below
from durabench_backends.conformance.suite import (
    READY_S,
    Check,
    Failed,
    NotOffered,
    Subject,
    brief,
    expect,
    expect_keys,
    expect_value,
    not_offered,
    random_bytes,
    when_ready,
)
from durabench_backends.contract import (
    KEY_MAX_BYTES,
    Compactable,
    Conditional,
    Domain,
    Goal,
    Sized,
    Transactional,
    Verifiable,
    Versioned,
    Watchable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_backends.contract import Backend, Fact

COMMITS = 8
"""Commits of which another connection must see all or nothing."""
COMMITTED_BYTES = 1_000_000
"""What stands between the first and the last put of such a commit, so that there is time to see a half."""
GUARDS, WRITERS = 8, 4
"""Keys that so many writers want at the same moment."""
GOALS = tuple(
    Goal(survive, lost)
    for survive in (Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE)
    for lost in (0.0, 2.0)
)


def _suspended(subject: Subject) -> bool:
    """Whether a put replaces the version before it (S3's word)."""
    return "suspended" in {value.lower() for value in subject.environment.setting.options.values()}


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
    expect(all(type(value) is bytes for _, value in found), "a value of versions() is not bytes")
    expect(all(type(version) is str and version for version, _ in found), "an id of versions() is no str, or empty")
    expect(len({version for version, _ in found}) == len(found), "two versions have one id")
    expect(found == list(store.versions("key")), "versions() says other ids or values when asked again")
    expect([value for _, value in found][:1] == values[-1:], f"the newest of versions() is {brief(found[:1])}")
    if not _suspended(subject):
        expect(
            [value for _, value in found] == values[::-1], f"versions() are {brief(found)}, not the three, newest first"
        )


def _versions_after_delete(subject: Subject) -> None:
    store = subject.open()
    if not isinstance(store, Versioned):
        raise not_offered(store, "Versioned")
    store.put("key", b"first")
    store.put("key", b"other")
    before = list(store.versions("key"))
    store.delete("key")
    expect_value(store, "key", None, "after delete")
    found = list(store.versions("key"))
    expect(all(each in before for each in found), f"after delete, versions() has {brief(found)}, which nobody put")
    if not _suspended(subject):
        expect(found == before, f"after delete, versions() are {brief(found)}, not {brief(before)}")


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


def _put_many_at_once(subject: Subject) -> None:
    one, other = subject.open("a"), subject.open("b")
    a, b = subject.namespace("a"), subject.namespace("b")
    if not isinstance(one, Transactional):
        raise not_offered(one, "Transactional")
    filling = random_bytes(COMMITTED_BYTES, "commit")
    commits = [f"{number:06}".encode() for number in range(COMMITS)]

    def commit(number: bytes) -> None:
        cast("Transactional", one).put_many(
            {(a, "first"): number, (a, "middle"): number + filling, (b, "last"): number}
        )

    commit(commits[0])
    other.close()
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(_halves, subject.environment.backend, (a, "first"), (b, "last"), done)
        try:
            for number in commits[1:]:
                commit(number)
        finally:
            done.set()
        half = seen.result()
    expect(half is None, f"while put_many was under way, another connection saw {half}")


def _halves(backend: Backend, first: tuple[str, str], last: tuple[str, str], done: threading.Event) -> str | None:
    """What was seen of a commit that was not yet whole, if anything.

    Numbers only grow, so what is read later may not be the older one. Each of the two is read first in turn: whichever
    a store puts first, one of the two ways shows it.
    """
    stores = {name: when_ready(lambda name=name: backend.open(name)) for name, _ in (first, last)}  # type: ignore[misc]
    try:
        while not done.is_set():
            for (namespace, key), (later_namespace, later_key) in ((first, last), (last, first)):
                earlier, later = stores[namespace].get(key), stores[later_namespace].get(later_key)
                if later is None or earlier is None or bytes(later) < bytes(earlier):
                    return f"{key} as of commit {brief(earlier)} and then {later_key} as of {brief(later)}"
    finally:
        for store in stores.values():
            store.close()
    return None


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


def _put_if_absent_once(subject: Subject) -> None:
    store, namespace = subject.open(), subject.namespace()
    if not isinstance(store, Conditional):
        raise not_offered(store, "Conditional")
    together = threading.Barrier(WRITERS)

    def write(number: int) -> list[bool]:
        backend = subject.environment.backend
        mine = when_ready(lambda: backend.open(namespace))
        won = []
        try:
            for guard in range(GUARDS):
                together.wait(READY_S)
                won.append(cast("Conditional", mine).put_if_absent(f"guard-{guard}", f"{number}".encode()))
        except threading.BrokenBarrierError:
            pass  # another writer failed, and says so
        except BaseException:
            together.abort()
            raise
        finally:
            mine.close()
        return won

    with ThreadPoolExecutor(WRITERS) as pool:
        results = list(pool.map(write, range(WRITERS)))
    for guard in range(GUARDS):
        winners = [number for number, won in enumerate(results) if won[guard]]
        expect(len(winners) == 1, f"of {WRITERS} that put one key at the same moment, {len(winners)} were told True")
        expect_value(store, f"guard-{guard}", f"{winners[0]}".encode(), "after a put_if_absent that was told True")


def _checks_follow_promise(subject: Subject) -> None:
    backend = subject.backend
    if not isinstance(backend, Verifiable):
        raise not_offered(backend, "Verifiable")
    facts = list(backend.inspect())
    for goal in GOALS:
        for known in (facts, *(facts[:index] + facts[index + 1 :] for index in range(len(facts)))):
            checks = list(backend.checks(iter(known), goal))
            expect(checks == list(backend.checks(tuple(known), goal)), "checks() differ for the same facts")
            ids = [check.id for check in checks]
            expect(len(set(ids)) == len(ids), f"checks() has an id twice: {brief(sorted(ids))}")
            strange = set(ids) - set(backend.pages)
            expect(not strange, f"checks() has {brief(sorted(strange))}, which no page explains")
            probed = set(ids) & set(backend.probes)
            expect(not probed, f"checks() has {brief(sorted(probed))}, which only probe() can make")
            _expect_verdict(subject, backend, known, goal)


def _expect_verdict(subject: Subject, backend: Verifiable, facts: Sequence[Fact], goal: Goal) -> None:
    bad = [check.id for check in backend.checks(facts, goal) if check.status in ("fail", "unknown")]
    met = goal.is_met_by(subject.backend.promise(facts))
    aim = f"to survive {goal.survive.label} losing {goal.max_loss_s:g} s"
    expect(met or bool(bad), f"the promise does not suffice {aim}, and no check says so")
    expect(not met or not bad, f"the promise suffices {aim}, and {brief(bad)} says that it does not")


def _probe_cleans_up(subject: Subject) -> None:
    backend = subject.backend
    if not isinstance(backend, Verifiable):
        raise not_offered(backend, "Verifiable")
    store = subject.open()
    store.put("key", b"value")
    before = set(below(subject.environment.root)) if subject.embedded else set()
    checks = list(backend.probe(Goal()))
    strange = {check.id for check in checks} - set(backend.probes)
    expect(not strange, f"probe() has {brief(sorted(strange))}, which is not in probes")
    silent = [check.id for check in checks if not check.evidence]
    expect(not silent, f"{brief(silent)} of probe() does not say how much it wrote")
    expect_keys(store, ("key",), "after probe()")
    expect_value(store, "key", b"value", "after probe()")
    left = (set(below(subject.environment.root)) if subject.embedded else set()) - before
    expect(not left, f"probe() left {brief(sorted(left)[:1])}")


def _writer_pids(subject: Subject) -> None:
    backend = subject.backend
    if not isinstance(backend, Verifiable):
        raise not_offered(backend, "Verifiable")
    pids = list(backend.writer_pids())
    if subject.embedded:
        expect(not pids, f"writer_pids() of an embedded store are {pids}")
    strange = [pid for pid in pids if not Path(f"/proc/{pid}").exists()]
    expect(not strange, f"writer_pids() has {strange}, and no such process is here")


def _compact_keeps(subject: Subject) -> None:
    backend = subject.backend
    if not isinstance(backend, Compactable):
        raise not_offered(backend, "Compactable")
    store = subject.open()
    for value in (b"old", random_bytes(300_000, "compact"), b"new"):
        store.put("overwritten", value)
    store.put("deleted", b"value")
    store.put("stays", b"value")
    store.delete("deleted")
    done = backend.compact()
    expect(type(done) is str, f"compact() returns {brief(done)}, not the name of what was done")
    for again in (store, subject.open()):
        expect_value(again, "overwritten", b"new", "after compact()")
        expect_value(again, "stays", b"value", "after compact()")
        expect_keys(again, ("overwritten", "stays"), "after compact()")


SIZES = (12_345, 0, 100_003)
NO_SUCH_PART = "durabench-no-such-part"


def _sizes_exact(subject: Subject) -> None:
    backend = subject.backend
    if not isinstance(backend, Sized):
        raise not_offered(backend, "Sized")
    store = subject.open()
    try:
        others = sorted(backend.sizes_bytes(""))
    except ValueError as error:
        message = f"only of a part that is named: {error}"
        raise NotOffered(message) from error
    for size in SIZES:
        store.put(f"{size}", random_bytes(size, "sizes"))
    before = dict(below(subject.environment.root)) if subject.embedded else {}
    found = list(backend.sizes_bytes(""))
    after = dict(below(subject.environment.root)) if subject.embedded else {}
    wanted = sorted((*others, *SIZES))
    # In a table a key stands beside its value, and counts as a column of the row.
    near = [size for size, least in zip(sorted(found), wanted, strict=False) if least <= size <= least + KEY_MAX_BYTES]
    expect(len(near) == len(found) == len(wanted), f"of values of {wanted} bytes, sizes_bytes() makes {brief(found)}")
    expect(before == after, "sizes_bytes() changed what is below the root")
    with suppress(ValueError):
        part = list(backend.sizes_bytes(NO_SUCH_PART))
        expect(not part, f"sizes_bytes() of a part that is not there are {brief(part)}")


def _watched_nothing(subject: Subject) -> None:
    backend = subject.backend
    if not isinstance(backend, Watchable):
        raise not_offered(backend, "Watchable")
    for fact in backend.watched(()):
        expect(
            bool(fact.unread) and not fact.value,
            f"watched() makes {fact.id} {brief(fact.value)} of a program that did nothing",
        )


CHECKS = (
    Check(
        "versions",
        "versions come newest first, all of them, each with its own id",
        "Versioned",
        _versions,
        (
            "Versioned: A store that keeps older versions of a key.",
            "Versioned.versions: (the server's version id, value) of every version there is, newest first;",
        ),
    ),
    Check(
        "versions-after-delete",
        "a delete leaves the versions there are and is none itself",
        "Versioned",
        _versions_after_delete,
        ("Versioned.versions: delete markers are left out.",),
    ),
    Check(
        "put-many",
        "put_many puts everything, in several namespaces, or nothing",
        "Transactional",
        _put_many,
        (
            "Transactional: A store whose backend can commit several puts at once.",
            "Transactional.put_many: Put every (namespace, key) → value of this backend in one commit:",
            "Transactional.put_many: all of it or nothing.",
        ),
    ),
    Check(
        "put-many-at-once",
        "another connection sees all of a put_many or nothing",
        "Transactional",
        _put_many_at_once,
        ("Transactional.put_many: Put every (namespace, key) → value of this backend in one commit:",),
    ),
    Check(
        "put-if-absent",
        "put_if_absent puts once and says whether",
        "Conditional",
        _put_if_absent,
        (
            "Conditional.put_if_absent: Put only where ``key`` is not there;",
            "Conditional.put_if_absent: True if this call put it, False if something was there.",
        ),
    ),
    Check(
        "put-if-absent-once",
        "of several that put_if_absent at the same moment, one is told that it did",
        "Conditional",
        _put_if_absent_once,
        ("Conditional: A store with a single-writer guard.",),
    ),
    Check(
        "checks-follow-promise",
        "checks alarm where the promise of the same facts misses a goal, and only there",
        "Verifiable",
        _checks_follow_promise,
        (
            "Verifiable.checks: What ``facts`` mean for ``goal``;",
            "Verifiable.checks: pure.",
            "Verifiable.checks: One check per id, none of `probes`.",
            "Verifiable.checks: Where `Backend.promise` does not meet the goal, at least one check is ``fail`` or ``unknown``;",  # noqa: E501
            "Verifiable.checks: where it does, none is.",
        ),
    ),
    Check(
        "probe-cleans-up",
        "a probe says what it wrote, and leaves nothing behind",
        "Verifiable",
        _probe_cleans_up,
        (
            "Verifiable.probe: The checks of `probes`, by behaviour:",
            "Verifiable.probe: writes in a namespace of its own, which it removes again, and removes one that an earlier probe left.",  # noqa: E501
            "Verifiable.probe: Each says in its evidence how much it wrote.",
        ),
    ),
    Check(
        "writer-pids",
        "who writes on this machine is a process here; nobody for an embedded store",
        "Verifiable",
        _writer_pids,
        (
            "Verifiable.writer_pids: Processes on this machine that make the bytes durable on a client's behalf;",
            "Verifiable.writer_pids: an embedded store, or a server elsewhere.",
        ),
    ),
    Check(
        "compact-keeps",
        "a rewrite says what it was, and changes no value",
        "Compactable",
        _compact_keeps,
        (
            "Compactable: A backend that can give back the space of what was overwritten or deleted, by a rewrite of its own files.",  # noqa: E501
            "Compactable.compact: the name of what was done, such as the statement, empty for nothing.",
        ),
    ),
    Check(
        "sizes-exact",
        "sizes_bytes has the size of every value and nothing else, and writes nothing",
        "Sized",
        _sizes_exact,
        (
            "Sized.sizes_bytes: The size of every value, and nothing else of it;",
            "Sized.sizes_bytes: opens and reads without writing anything.",
            "Sized.sizes_bytes: ValueError where there is no such part.",
        ),
    ),
    Check(
        "watched-nothing",
        "of a program that did nothing, nothing is known",
        "Watchable",
        _watched_nothing,
        ("Watchable.watched: `Fact.unread` says why where the calls do not tell.",),
    ),
)
