"""The conformance suite on every setting of every backend, and on stores that are broken in exactly one way each."""

import os
import re
import threading
import time
import unicodedata
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol

import pytest

from durabench import service
from durabench_backends import conformance, contract, locate, registry
from durabench_backends.conformance import store as suite_of_stores
from durabench_backends.conformance import suite
from durabench_backends.contract import Check, Command, Domain, Fact, NotReady, Promise, Setting, check_key

KEEPS = Promise({domain: 0.0 for domain in Domain if domain <= Domain.DRIVE}, Domain.DRIVE, Domain.DRIVE, "made up")
NOTHING = Promise({}, None, None, "made up")

# What is broken → the check that must say so, and the clause of the contract that is broken. "" is the honest store.
DEFECTS = {
    "drops the last byte of 2 KiB": ("get-returns-put", "Store.put: Store"),
    "hands out a buffer that it uses again": ("get-is-bytes", "Store.get: The bytes"),
    "hands out a bytearray": ("get-is-bytes", "Store.get: The bytes"),
    "ignores case where a key is absent": ("absent-is-none", "Store.get: None only"),
    "an error reads as absent": ("error-is-no-absence", "Store.get: None only"),
    "an error lists nothing": ("error-is-no-absence", "Store.keys: Exactly"),
    "a closed connection reads None": ("error-is-no-absence", "Store.get: None only"),
    "an error acknowledges a put": ("error-is-no-acknowledgement", "Store.put: Returning"),
    "an error acknowledges a delete": ("error-is-no-acknowledgement", "Store.delete: Returning"),
    "a shorter value leaves the end of the longer one": ("overwrite-wins", "Store.put: Store"),
    "a deleted key cannot be put again": ("delete-deletes", "Store.delete: Remove"),
    "deleting what is absent raises": ("delete-absent", "Store.delete: absent"),
    "lists at most 1000 keys": ("keys-exact", "Store.keys: Exactly"),
    "lists keys as bytes-like text": ("keys-exact", "Store.keys: Exactly"),
    "keeps what it read": ("another-connection", "Store.get: The bytes"),
    "knows the keys of when it was opened": ("another-connection", "Store.keys: Exactly"),
    "acknowledges a put before others see it": ("another-connection", "Store.put: Returning"),
    "acknowledges a delete before others see it": ("another-connection", "Store.delete: Returning"),
    "names and keys run into each other": ("namespaces-apart", "Store: An open connection"),
    "drop takes the neighbouring namespace along": ("namespaces-apart", "Backend.drop: Remove"),
    "takes an empty value for none": ("empty-value", "Store.get: None only"),
    "keeps 20 MiB of a value": ("large-value", "Store.put: Store"),
    "composes Unicode": ("keys-at-the-edge", "Store: Keys are"),
    "checks no key": ("keys-outside", "Store: Keys are"),
    "checks no key of versions": ("keys-outside", "Store: Keys are"),
    "keeps to its own process": ("another-process", "Store.put: Returning"),
    "writes when it is closed": ("another-process", "Store.close: Never"),
    "size stands still": ("size-grows", "Store.size_bytes: This"),
    "the backend's size stands still": ("size-grows", "Backend.size_bytes: All"),
    "counts what others hold": ("size-is-its-own", "Store.size_bytes: This"),
    "what was deleted returns with a restart": ("reopen-after-stop", "Backend: One storage"),
    "keeps what it does not promise": ("loses-as-said", "Backend: One storage"),
    "a second close raises": ("close-idempotent", "Store.close: idempotent"),
    "holds a descriptor for ever": ("close-releases", "Store.close: Release"),
    "makes its root when constructed": ("init-touches-nothing", "Backend.__init__: touches"),
    "daemons before set-up": ("commands-in-order", "Backend.commands: Set-up"),
    "embedded, with a set-up": ("commands-in-order", "Backend.commands: empty"),
    "takes any URL": ("url-refused", "Backend.from_url: ValueError"),
    "a URL is a KeyError": ("url-refused", "Backend.from_url: ValueError"),
    "opening empties": ("open-leaves", "Backend.open: Connect"),
    "opens while it is down": ("not-ready", "Backend.open: NotReady"),
    "creates with an error of its own while it is down": ("not-ready", "Backend.create: NotReady"),
    "always has the same identity": ("identity-differs", "Backend.identity: Differs"),
    "embedded, with an identity of its own": ("identity-differs", "Backend.identity: for embedded"),
    "drop forgets older versions": ("drop-leaves-nothing", "Backend.drop: Remove"),
    "drop of what is absent raises": ("drop-absent", "Backend.drop: absent"),
    "creates again": ("second-create", "Backend.create: A second"),
    "runs with a weaker setting": ("promise-of-facts", "Backend.inspect: The settings"),
    "a promise depends on what was asked before": ("promise-is-pure", "Backend.promise: pure"),
    "takes missing facts for good ones": ("missing-facts", "Backend.promise: Facts"),
    "takes unread facts for good ones": ("missing-facts", "Backend.promise: Facts"),
    "inspecting writes": ("inspect-reads", "Backend.inspect: The settings"),
    "writes a copy elsewhere": ("nothing-outside-root", "Backend: One storage"),
    "versions come oldest first": ("versions", "Versioned.versions: (the server's"),
    "versions share an id": ("versions", "Versioned.versions: (the server's"),
    "lists the marker of a delete": ("versions-after-delete", "Versioned.versions: delete markers"),
    "put_many is not all or nothing": ("put-many", "Transactional.put_many: all of it"),
    "put_many puts one after the other": ("put-many-at-once", "Transactional.put_many: Put every"),
    "put_if_absent puts anyway": ("put-if-absent", "Conditional.put_if_absent: Put only"),
    "put_if_absent says False": ("put-if-absent", "Conditional.put_if_absent: True"),
    "put_if_absent looks, then puts": ("put-if-absent-once", "Conditional: A store"),
    "never alarms": ("checks-follow-promise", "Verifiable.checks: Where"),
    "always alarms": ("checks-follow-promise", "Verifiable.checks: where it does"),
    "has a check twice": ("checks-follow-promise", "Verifiable.checks: One check"),
    "checks only once": ("checks-follow-promise", "Verifiable.checks: pure"),
    "a probe stays silent": ("probe-cleans-up", "Verifiable.probe: Each"),
    "a probe writes anywhere": ("probe-cleans-up", "Verifiable.probe: writes"),
    "a probe makes other checks": ("probe-cleans-up", "Verifiable.probe: The checks"),
    "names a process that is not there": ("writer-pids", "Verifiable.writer_pids: Processes"),
    "embedded, with a writer": ("writer-pids", "Verifiable.writer_pids: an embedded"),
    "a rewrite loses what was overwritten": ("compact-keeps", "Compactable: A backend"),
    "a rewrite says nothing": ("compact-keeps", "Compactable.compact: the name"),
    "leaves out the size of what is empty": ("sizes-exact", "Sized.sizes_bytes: The size"),
    "any part is all of it": ("sizes-exact", "Sized.sizes_bytes: ValueError"),
    "embedded, and marks what it sized": ("sizes-exact", "Sized.sizes_bytes: opens"),
    "takes silence for the best way": ("watched-nothing", "Watchable.watched: `Fact.unread`"),
}
# What shows at other checks too, since nothing much works with it.
WIDE = {
    "a deleted key cannot be put again",
    "a shorter value leaves the end of the longer one",
    "acknowledges a delete before others see it",
    "acknowledges a put before others see it",
    "keeps what it read",
    "knows the keys of when it was opened",
    "opening empties",
    "put_if_absent puts anyway",
    "put_if_absent says False",
    "writes when it is closed",
}


@dataclass
class World:
    """What outlives a connection: namespace → key → versions, oldest first; None marks a delete."""

    root: Path
    namespaces: dict[str, dict[str, list[bytes | None]]] = field(default_factory=dict)
    starts: int = 0
    up: bool = True
    asked: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


def medium():
    """Reach for the medium; OSError where this process may open nothing."""
    os.close(os.open(os.devnull, os.O_RDONLY))


class Text(str):
    """No str, and equal to one."""

    __slots__ = ()


class ToyStore:
    buffer = bytearray(1 << 16)

    def __init__(self, world, namespace, defect, opened=True):
        self.world, self.namespace, self.defect = world, namespace, defect
        self.closed = False
        self.waiting = {}
        self.read = {}
        with world.lock:
            self.listed = set(self.live()) if defect == "knows the keys of when it was opened" else set()
            if defect == "opening empties" and opened:
                self.kept.clear()
        if defect == "holds a descriptor for ever":
            self.held = os.open(os.devnull, os.O_RDONLY)

    @property
    def kept(self):
        return self.world.namespaces.setdefault(self.namespace, {})

    def live(self):
        return [key for key, versions in list(self.kept.items()) if versions and versions[-1] is not None]

    def check(self, key):
        if self.defect == "checks no key":
            return key
        check_key(key)
        return unicodedata.normalize("NFC", key) if self.defect == "composes Unicode" else key

    def put(self, key, value):
        key = self.check(key)
        try:
            medium()
        except OSError:
            if self.defect == "an error acknowledges a put":
                return
            raise
        if self.defect in {"writes when it is closed", "acknowledges a put before others see it"}:
            self.waiting[key] = value
            return
        self.listed.add(key)
        self.read[key] = value
        with self.world.lock:
            self.append(key, value)

    def append(self, key, value):
        versions = self.kept.setdefault(key, [])
        if self.defect == "a deleted key cannot be put again" and None in versions:
            return
        if self.defect == "drops the last byte of 2 KiB" and len(value) == 2048:
            value = value[:-1]
        if self.defect == "keeps 20 MiB of a value":
            value = value[: 20 << 20]
        if self.defect == "a shorter value leaves the end of the longer one" and versions and versions[-1]:
            value = value + versions[-1][len(value) :]
        if self.defect == "writes a copy elsewhere":
            (self.world.root.parent / "copy").write_bytes(value)
        if len(value) > 1 << 22:
            versions.clear()  # room
        versions.append(value)

    def get(self, key):  # noqa: PLR0911 - as many as there are defects
        key = self.check(key)
        if self.defect == "a closed connection reads None" and self.closed:
            return None
        try:
            medium()
        except OSError:
            if self.defect == "an error reads as absent":
                return None
            raise
        if key in self.waiting:
            return self.waiting[key]
        if self.defect == "keeps what it read" and key in self.read:
            return self.read[key]
        if self.defect == "ignores case where a key is absent" and key not in self.kept:
            key = {name.lower(): name for name in self.kept}.get(key.lower(), key)
        with self.world.lock:
            value = self.read[key] = self.kept.get(key, [None])[-1]
        if value and self.defect == "hands out a bytearray":
            return bytearray(value)
        if value and len(value) <= len(self.buffer) and self.defect == "hands out a buffer that it uses again":
            self.buffer[: len(value)] = value
            return memoryview(self.buffer)[: len(value)]
        return value or None if self.defect == "takes an empty value for none" else value

    def delete(self, key):
        key = self.check(key)
        try:
            medium()
        except OSError:
            if self.defect == "an error acknowledges a delete":
                return
            raise
        if self.get(key) is None:
            if self.defect == "deleting what is absent raises":
                raise KeyError(key)
            return
        if self.defect == "acknowledges a delete before others see it":
            self.waiting[key] = None
            return
        self.waiting.pop(key, None)
        self.listed.discard(key)
        self.read[key] = None
        with self.world.lock:
            self.kept.setdefault(key, []).append(None)

    def keys(self):
        try:
            medium()
        except OSError:
            if self.defect == "an error lists nothing":
                return []
            raise
        if self.defect == "knows the keys of when it was opened":
            return list(self.listed)
        found = [key for key in {*self.live(), *self.waiting} if self.waiting.get(key, b"") is not None]
        if self.defect == "lists keys as bytes-like text":
            return [Text(key) for key in found]
        return found[:1000] if self.defect == "lists at most 1000 keys" else found

    def versions(self, key):
        key = key if self.defect == "checks no key of versions" else self.check(key)
        kept = self.kept.get(key, ())
        found = [(str(at), value) for at, value in enumerate(kept) if value is not None]
        if self.defect == "lists the marker of a delete":
            found = [(str(at), value or b"") for at, value in enumerate(kept)]
        if self.defect == "versions share an id":
            found = [("null", value) for _, value in found]
        return found if self.defect == "versions come oldest first" else found[::-1]

    def put_many(self, values):
        if self.defect != "put_many is not all or nothing":
            for _, key in values:
                self.check(key) or check_key(key)
        if self.defect == "put_many puts one after the other":
            for (namespace, key), value in values.items():
                ToyStore(self.world, namespace, self.defect).put(key, value)
                time.sleep(0.002 if len(values) < 9 else 0)
            return
        with self.world.lock:
            for (namespace, key), value in values.items():
                check_key(key)
                if namespace == self.namespace:
                    self.put(key, value)
                else:
                    ToyStore(self.world, namespace, self.defect, opened=False).put(key, value)

    def put_if_absent(self, key, value):
        check_key(key)
        if self.defect == "put_if_absent looks, then puts":
            there = self.get(key) is not None
            time.sleep(0.002)
            if there:
                return False
        with self.world.lock:
            looked = self.defect in {"put_if_absent puts anyway", "put_if_absent looks, then puts"}
            if not looked and self.get(key) is not None:
                return False
            self.put(key, value)
        return self.defect != "put_if_absent says False"

    def size_bytes(self):
        if self.defect == "size stands still":
            return 42
        if self.defect == "counts what others hold":
            return Toy.bytes_of(self.world)
        return sum(len(value or b"") for versions in self.kept.values() for value in versions)

    def close(self):
        if self.closed and self.defect == "a second close raises":
            raise OSError("closed already")
        self.closed = True
        if self.defect == "writes when it is closed":
            for key, value in self.waiting.items():
                self.kept.setdefault(key, []).append(value)
            self.waiting.clear()


class Toy:
    """A server of sorts: everything in a World, and all that the contract offers."""

    settings: ClassVar = (Setting("toy", {}, KEEPS), Setting("loose", {}, NOTHING))
    pages: ClassVar = {"toy.sync": "whether it syncs", "toy.proved": "whether it was seen to"}
    probes: ClassVar = ("toy.proved",)
    world: ClassVar[World]
    defect: ClassVar[str] = ""

    def __init__(self, setting, root, port):
        if self.defect == "makes its root when constructed":
            root.mkdir(exist_ok=True)

    @classmethod
    def from_url(cls, url):
        if cls.defect == "takes any URL":
            return cls(cls.settings[0], Path("/"), None)
        raise (KeyError if cls.defect == "a URL is a KeyError" else ValueError)("no URL")

    @property
    def embedded(self):
        return self.defect.startswith("embedded")

    def commands(self):
        setup, daemon = Command("setup", ("/bin/init",)), Command("daemon", ("/bin/toy",))
        if self.embedded:
            return [setup] if self.defect == "embedded, with a set-up" else []
        return [daemon, setup] if self.defect == "daemons before set-up" else [setup, daemon]

    def create(self):
        if not self.world.up and self.defect != "creates with an error of its own while it is down":
            raise NotReady("starting")
        if self.defect != "creates again":
            raise FileExistsError

    def open(self, namespace):
        if not self.world.up and self.defect != "opens while it is down":
            raise NotReady("starting")
        if self.defect == "names and keys run into each other" and "namespaces-apart" in namespace:
            return Flat(self.world, namespace)
        return ToyStore(self.world, namespace, self.defect)

    def drop(self, namespace):
        if self.defect == "drop of what is absent raises" and namespace not in self.world.namespaces:
            raise KeyError(namespace)
        if self.defect == "drop takes the neighbouring namespace along":
            for other in [name for name in self.world.namespaces if name.startswith(namespace) and name != namespace]:
                self.world.namespaces[other].clear()
        old = self.world.namespaces.pop(namespace, {})
        if self.defect == "drop forgets older versions":
            self.world.namespaces[namespace] = {key: [*versions, None] for key, versions in old.items()}

    @staticmethod
    def bytes_of(world):
        return sum(ToyStore(world, name, "").size_bytes() for name in list(world.namespaces))

    def size_bytes(self):
        return 42 if self.defect == "the backend's size stands still" else self.bytes_of(self.world)

    def identity(self):
        if self.embedded:
            return "toy" if self.defect == "embedded, with an identity of its own" else f"{os.getpid()}:1"
        return "toy" if self.defect == "always has the same identity" else f"start {self.world.starts}"

    def inspect(self):
        if self.defect == "inspecting writes":
            for name in list(self.world.namespaces):
                ToyStore(self.world, name, "").put("inspected", b"")
        return [Fact("toy.sync", "off" if self.defect == "runs with a weaker setting" else "on", "made up")]

    @classmethod
    def promise(cls, facts):
        values = {fact.id: fact for fact in facts}
        sync = values.get("toy.sync")
        good = sync is not None and sync.value == "on"
        if cls.defect == "takes missing facts for good ones":
            good |= sync is None
        if cls.defect == "takes unread facts for good ones" and sync is not None and sync.unread:
            return replace(KEEPS, atomic=Domain.FLUSHED)
        if cls.defect == "a promise depends on what was asked before":
            cls.world.asked += not facts
            good &= cls.world.asked < 1
        return KEEPS if good else NOTHING

    @classmethod
    def checks(cls, facts, goal):
        met = goal.is_met_by(cls.promise(facts))
        cls.world.asked += 1
        if cls.defect == "checks only once" and cls.world.asked % 2 == 0:
            return []
        if cls.defect in {"never alarms", "always alarms"}:
            met = cls.defect == "never alarms"
        check = Check("toy.sync", "ok" if met else "fail")
        return [check] * (2 if cls.defect == "has a check twice" else 1)

    def probe(self, goal):
        if self.defect == "a probe writes anywhere":
            for name in list(self.world.namespaces):
                ToyStore(self.world, name, "").put("probed", b"")
        name = "toy.other" if self.defect == "a probe makes other checks" else "toy.proved"
        yield Check(name, "ok", evidence=None if self.defect == "a probe stays silent" else "wrote 4 KiB")

    def writer_pids(self):
        if self.embedded and self.defect != "embedded, with a writer":
            return []
        return [2**22 + 1 if self.defect == "names a process that is not there" else os.getpid()]

    def compact(self):
        if self.defect == "a rewrite loses what was overwritten":
            for kept in self.world.namespaces.values():
                for key in [key for key, versions in kept.items() if len(versions) > 2]:
                    del kept[key]
        return None if self.defect == "a rewrite says nothing" else "REWRITE"

    def sizes_bytes(self, within):
        if self.defect == "embedded, and marks what it sized":
            (self.world.root / "sized").write_text(str(time.monotonic_ns()))
        if within and self.defect != "any part is all of it":
            raise ValueError("no such part")
        for name in list(self.world.namespaces):
            store = ToyStore(self.world, name, "")
            sizes = [len(store.get(key)) for key in store.live()]
            yield from (size for size in sizes if size or self.defect != "leaves out the size of what is empty")

    def watched(self, calls):
        if self.defect == "takes silence for the best way":
            return [Fact("toy.sync", "on", "watched")]
        return [Fact("toy.sync", "", "", "the program wrote nothing")]


class ForgetfulToy(Toy):
    """A mock: promises nothing, and keeps nothing over a stop (unless that is its defect)."""

    @staticmethod
    def promise(facts):
        del facts
        return NOTHING


class Flat:
    """One dictionary for all namespaces, under the name and the key without anything between them."""

    def __init__(self, world, namespace):
        self.all = ToyStore(world, "all", "")
        self.name = namespace.removeprefix("conform-namespaces-apart-")

    def put(self, key, value):
        self.all.put(self.name + key, value)

    def get(self, key):
        return self.all.get(self.name + key)

    def delete(self, key):
        self.all.delete(self.name + key)

    def keys(self):
        return [key.removeprefix(self.name) for key in self.all.live() if key.startswith(self.name)]

    def close(self):
        pass


@dataclass
class Lab:
    """The environment of a toy: stops and starts are counted, and another process is another adapter."""

    defect: str
    root: Path
    setting: Setting = Toy.settings[0]
    world: World = field(init=False)
    others: World = field(init=False)

    def __post_init__(self):
        self.world = World(self.root)
        self.others = World(self.root) if self.defect == "keeps to its own process" else self.world

    @property
    def backend(self):
        kind = Toy if self.setting.promise == KEEPS else ForgetfulToy
        made = type(kind.__name__, (kind,), {"world": self.world, "defect": self.defect})
        return made(self.setting, self.root, lambda _: 1)

    def stop(self):
        self.world.starts += 1
        self.world.up = False
        if self.setting.promise == NOTHING and self.defect != "keeps what it does not promise":
            self.world.namespaces.clear()
        if self.defect == "what was deleted returns with a restart":
            for kept in self.world.namespaces.values():
                for versions in kept.values():
                    versions[:] = [value for value in versions if value is not None]

    def start(self):
        self.world.up = True

    def put_elsewhere(self, namespace, key, value):
        store = ToyStore(self.others, namespace, self.defect, opened=False)
        store.put(key, value)
        store.close()

    def elsewhere(self, namespace, key):
        return ToyStore(self.others, namespace, self.defect, opened=False).get(key)


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "store"
    path.mkdir()
    return path


def failed(results):
    return {result.check.id: result.reason for result in results if result.outcome == "failed"}


def test_an_honest_store_passes_every_check_that_applies(root):
    results = conformance.run(Lab("", root))
    assert {result.check.id: result.outcome for result in results if result.outcome != "passed"} == {
        "loses-as-said": "not offered"
    }


def test_an_honest_mock_passes_and_is_asked_to_lose(root):
    results = conformance.run(Lab("", root, Toy.settings[1]))
    assert failed(results) == {}
    assert {result.check.id for result in results if result.outcome == "not offered"} == {
        "another-process",
        "reopen-after-stop",
        "size-grows",
        "size-is-its-own",
    }


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_broken_store_is_convicted_by_exactly_its_check(root, defect, monkeypatch):
    if DEFECTS[defect][0] != "large-value":
        monkeypatch.setattr(suite_of_stores, "SIZES_BYTES", (1, 4096))  # the large ones take seconds
    setting = Toy.settings[defect == "keeps what it does not promise"]
    convicted = failed(conformance.run(Lab(defect, root, setting)))
    check, _ = DEFECTS[defect]
    assert check in convicted
    assert defect in WIDE or set(convicted) == {check}
    assert all(reason and "\n" not in reason for reason in convicted.values())


def test_every_check_can_fail():
    assert {check for check, _ in DEFECTS.values()} == {check.id for check in conformance.CHECKS}


def clauses():
    """Every clause of the docstrings of the contract's protocols, ``Protocol.method: words``."""
    protocols = [each for each in vars(contract).values() if getattr(each, "_is_protocol", False)]
    for protocol in protocols:
        if protocol in {contract.Workload, Protocol}:
            continue
        told = {"": protocol, **{name: getattr(each, "__func__", each) for name, each in vars(protocol).items()}}
        for name, each in told.items():
            if callable(each) and (not name.startswith("_") or name == "__init__") and each.__doc__:
                where = f"{protocol.__name__}.{name}".strip(".")
                for words in re.split(r"(?<=[.;:])\s+", " ".join(each.__doc__.split())):
                    yield f"{where}: {words}"


def test_every_clause_of_the_contract_is_checked_or_said_to_be_unseen():
    checked = {clause for check in conformance.CHECKS for clause in check.clauses}
    assert set(clauses()) == checked | set(conformance.UNSEEN)
    assert not checked & set(conformance.UNSEEN)
    assert all(conformance.UNSEEN.values())


def test_every_clause_that_is_checked_has_a_toy_that_breaks_it():
    checks = {check.id: check for check in conformance.CHECKS}
    broken = {clause for check, words in DEFECTS.values() for clause in checks[check].clauses if words in clause}
    for check, words in DEFECTS.values():
        assert any(clause.startswith(words) for clause in checks[check].clauses), (check, words)
    assert broken | NAMED_WITH_ANOTHER == {clause for check in checks.values() for clause in check.clauses}


# What only introduces the clause after it: the toys of that one break both.
NAMED_WITH_ANOTHER = {
    "Store: keys to bytes.",
    "Versioned: A store that keeps older versions of a key.",
    "Transactional: A store whose backend can commit several puts at once.",
    "Backend.__init__: Remember where it lives;",
    "Backend.create: Once per fresh root, when it answers:",
    "Backend.identity: the server's own start mark;",
    "Backend.promise: The promise that ``facts`` add up to;",
    "Verifiable.checks: What ``facts`` mean for ``goal``;",
}


def test_a_store_too_slow_for_many_keys_is_unknown_and_not_passed(root, monkeypatch):
    monkeypatch.setattr(suite_of_stores, "MANY_KEYS_S", 0.0)
    monkeypatch.setattr(suite_of_stores, "Transactional", type("Unoffered", (), {}))
    check = next(check for check in conformance.CHECKS if check.id == "keys-exact")
    (result,) = conformance.run(Lab("lists at most 1000 keys", root), [check])
    assert result.outcome == "unknown", result.reason
    assert "of 1,001 puts" in result.reason


def test_the_keys_at_the_edge_are_legal_and_those_outside_are_not():
    assert len(set(conformance.EDGE_KEYS)) == len(conformance.EDGE_KEYS)
    for key in conformance.EDGE_KEYS:
        check_key(key)
    for key in conformance.OUTSIDE_KEYS:
        with pytest.raises(ValueError, match="a key must"):
            check_key(key)


def test_results_come_in_the_order_of_the_checks(root):
    assert [result.check for result in conformance.run(Lab("", root))] == list(conformance.CHECKS)


def test_a_start_that_fails_fails_what_waited_for_it(root):
    class Dead(Lab):
        def start(self):
            super().start()
            raise RuntimeError("the server does not start\nmore of its log")

    convicted = failed(conformance.run(Dead("", root)))
    assert set(convicted) == {"size-grows", "reopen-after-stop", "identity-differs", "not-ready"}
    assert set(convicted.values()) == {"RuntimeError: the server does not start"}


def test_a_backend_that_never_gets_ready_fails_within_a_deadline(root, monkeypatch):
    class Slow(Toy):
        world = World(root)

        def open(self, namespace):
            raise NotReady("still loading")

    class Loading(Lab):
        @property
        def backend(self):
            return Slow(self.setting, self.root, None)

    monkeypatch.setattr(suite, "READY_S", 0.05)
    check = next(check for check in conformance.CHECKS if check.id == "get-returns-put")
    assert failed(conformance.run(Loading("", root), [check])) == {"get-returns-put": "NotReady: still loading"}


# Every setting of every backend, through the harness's own service.


OPTIONAL = {"Versioned", "Transactional", "Conditional", "Verifiable", "Compactable", "Sized", "Watchable"}


def cells():
    """(backend, setting); a backend that cannot be loaded is one cell, so that a test says why."""
    for name in registry.names():
        try:
            settings = [setting.name for setting in registry.load(name).settings]
        except (locate.MissingExtra, registry.UnknownBackend):
            settings = ["?"]
        yield from ((name, setting) for setting in settings)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name, setting", list(cells()))
def test_every_setting_passes(name, setting, tmp_path):
    try:
        backend = registry.load(name)
        backend(registry.setting_of(backend, name, setting), tmp_path, lambda _: 1).commands()
    except (locate.MissingExtra, locate.MissingProgram) as missing:
        pytest.skip(str(missing))  # which is a failure in CI
    with service.running(name, setting, tmp_path / "machine") as running:
        results = conformance.run(running)
    assert failed(results) == {}
    for result in results:
        # A check may be left out only where what it needs is optional, or is no matter of this setting.
        optional = result.check.needs in OPTIONAL or result.check.where != "all" or result.check.id == "not-ready"
        assert result.outcome == "passed" or (result.outcome == "not offered" and optional), result
