"""The conformance suite on every setting of every backend, and on stores that are broken in exactly one way each."""

import unicodedata
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from durabench import service
from durabench_backends import conformance, locate, registry
from durabench_backends.contract import Command, Domain, Fact, NotReady, Promise, Setting, check_key

KEEPS = Promise({domain: 0.0 for domain in Domain if domain <= Domain.DRIVE}, Domain.DRIVE, Domain.DRIVE, "made up")
NOTHING = Promise({}, None, None, "made up")

# What is broken → the one check that must say so. "" is the honest store.
DEFECTS = {
    "drops the last byte of 2 KiB": "get-returns-put",
    "ignores case where a key is absent": "absent-is-none",
    "a shorter value leaves the end of the longer one": "overwrite-wins",
    "a deleted key cannot be put again": "delete-deletes",
    "deleting what is absent raises": "delete-absent",
    "lists at most 1000 keys": "keys-exact",
    "drop takes the neighbouring namespace along": "namespaces-apart",
    "takes an empty value for none": "empty-value",
    "keeps 1 MiB of a value": "large-value",
    "composes Unicode": "keys-at-the-edge",
    "checks no key": "keys-outside",
    "keeps to its own process": "another-process",
    "size stands still": "size-grows",
    "what was deleted returns with a restart": "reopen-after-stop",
    "keeps what it does not promise": "loses-as-said",
    "always has the same identity": "identity-differs",
    "drop forgets older versions": "drop-leaves-nothing",
    "drop of what is absent raises": "drop-absent",
    "creates again": "second-create",
    "a second close raises": "close-idempotent",
    "versions come oldest first": "versions",
    "put_many is not all or nothing": "put-many",
    "put_if_absent puts anyway": "put-if-absent",
    "runs with a weaker setting": "promise-of-facts",
    "takes missing facts for good ones": "missing-facts",
    "writes a copy elsewhere": "nothing-outside-root",
}


@dataclass
class World:
    """What outlives a connection: namespace → key → versions, oldest first; None marks a delete."""

    root: Path
    namespaces: dict[str, dict[str, list[bytes | None]]] = field(default_factory=dict)
    starts: int = 0


@dataclass
class ToyStore:
    world: World
    namespace: str
    defect: str
    closed: bool = False

    @property
    def kept(self) -> dict[str, list[bytes | None]]:
        return self.world.namespaces.setdefault(self.namespace, {})

    def check(self, key):
        if self.defect == "checks no key":
            return key
        check_key(key)
        return unicodedata.normalize("NFC", key) if self.defect == "composes Unicode" else key

    def put(self, key, value):
        versions = self.kept.setdefault(self.check(key), [])
        if self.defect == "a deleted key cannot be put again" and None in versions:
            return
        if self.defect == "drops the last byte of 2 KiB" and len(value) == 2048:
            value = value[:-1]
        if self.defect == "keeps 1 MiB of a value":
            value = value[: 1024 * 1024]
        if self.defect == "a shorter value leaves the end of the longer one" and versions and versions[-1]:
            value = value + versions[-1][len(value) :]
        if self.defect == "writes a copy elsewhere":
            (self.world.root.parent / "copy").write_bytes(value)
        versions.append(value)

    def get(self, key):
        key = self.check(key)
        if self.defect == "ignores case where a key is absent" and key not in self.kept:
            key = {name.lower(): name for name in self.kept}.get(key.lower(), key)
        value = self.kept.get(key, [None])[-1]
        return value or None if self.defect == "takes an empty value for none" else value

    def delete(self, key):
        key = self.check(key)
        if self.get(key) is None:
            if self.defect == "deleting what is absent raises":
                raise KeyError(key)
            return
        self.kept[key].append(None)

    def keys(self):
        found = [key for key, versions in self.kept.items() if versions and versions[-1] is not None]
        return found[:1000] if self.defect == "lists at most 1000 keys" else found

    def versions(self, key):
        found = [(str(at), value) for at, value in enumerate(self.kept.get(self.check(key), ())) if value is not None]
        return found if self.defect == "versions come oldest first" else found[::-1]

    def put_many(self, values):
        if self.defect != "put_many is not all or nothing":
            for _, key in values:
                self.check(key) or check_key(key)
        for (namespace, key), value in values.items():
            check_key(key)
            ToyStore(self.world, namespace, self.defect).put(key, value)

    def put_if_absent(self, key, value):
        if self.get(key) is not None and self.defect != "put_if_absent puts anyway":
            return False
        self.kept.setdefault(key, []).append(value)
        return True

    def size_bytes(self):
        if self.defect == "size stands still":
            return 42
        return sum(len(value or b"") for versions in self.kept.values() for value in versions)

    def close(self):
        if self.closed and self.defect == "a second close raises":
            raise OSError("closed already")
        self.closed = True


@dataclass
class Toy:
    """A server of sorts: everything in a World, versioned, transactional and conditional."""

    world: World
    defect: str = ""
    settings: ClassVar = (Setting("toy", {}, KEEPS), Setting("loose", {}, NOTHING))

    def commands(self):
        return [Command("daemon", ("/bin/toy",))]

    def create(self):
        if self.defect != "creates again":
            raise FileExistsError

    def open(self, namespace):
        return ToyStore(self.world, namespace, self.defect)

    def drop(self, namespace):
        if self.defect == "drop of what is absent raises" and namespace not in self.world.namespaces:
            raise KeyError(namespace)
        if self.defect == "drop takes the neighbouring namespace along":
            for other in [name for name in self.world.namespaces if name[:-1] == namespace[:-1]]:
                del self.world.namespaces[other]
        old = self.world.namespaces.pop(namespace, {})
        if self.defect == "drop forgets older versions":
            self.world.namespaces[namespace] = {key: [*versions, None] for key, versions in old.items()}

    def size_bytes(self):
        return sum(ToyStore(self.world, name, self.defect).size_bytes() for name in list(self.world.namespaces))

    def identity(self):
        return "toy" if self.defect == "always has the same identity" else f"start {self.world.starts}"

    def inspect(self):
        return [Fact("toy.sync", "off" if self.defect == "runs with a weaker setting" else "on", "made up")]

    def promise(self, facts):
        values = {fact.id: fact.value for fact in facts}
        otherwise = KEEPS if self.defect == "takes missing facts for good ones" and not values else NOTHING
        return KEEPS if values.get("toy.sync") == "on" else otherwise


class ForgetfulToy(Toy):
    """A mock: promises nothing, and keeps nothing over a stop (unless that is its defect)."""

    def promise(self, facts):
        del facts
        return NOTHING


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
        self.others = deepcopy(self.world) if self.defect == "keeps to its own process" else self.world

    @property
    def backend(self):
        return (Toy if self.setting.promise == KEEPS else ForgetfulToy)(self.world, self.defect)

    def stop(self):
        self.world.starts += 1
        if self.setting.promise == NOTHING and self.defect != "keeps what it does not promise":
            self.world.namespaces.clear()
        if self.defect == "what was deleted returns with a restart":
            for kept in self.world.namespaces.values():
                for versions in kept.values():
                    versions[:] = [value for value in versions if value is not None]

    def start(self):
        pass

    def put_elsewhere(self, namespace, key, value):
        ToyStore(self.others, namespace, self.defect).put(key, value)

    def elsewhere(self, namespace, key):
        return ToyStore(self.others, namespace, self.defect).get(key)


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
    }


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_broken_store_is_convicted_by_exactly_its_check(root, defect):
    setting = Toy.settings[defect == "keeps what it does not promise"]
    convicted = failed(conformance.run(Lab(defect, root, setting)))
    assert set(convicted) == {DEFECTS[defect]}
    (reason,) = convicted.values()
    assert reason
    assert "\n" not in reason


def test_every_check_can_fail():
    assert set(DEFECTS.values()) == {check.id for check in conformance.CHECKS}


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
            raise RuntimeError("the server does not start\nmore of its log")

    convicted = failed(conformance.run(Dead("", root)))
    assert set(convicted) == {"size-grows", "reopen-after-stop", "identity-differs"}
    assert set(convicted.values()) == {"RuntimeError: the server does not start"}


def test_a_backend_that_never_gets_ready_fails_within_a_deadline(root, monkeypatch):
    class Slow(Toy):
        def open(self, namespace):
            raise NotReady("still loading")

    class Loading(Lab):
        @property
        def backend(self):
            return Slow(self.world)

    monkeypatch.setattr(conformance, "READY_S", 0.05)
    check = next(check for check in conformance.CHECKS if check.id == "get-returns-put")
    assert failed(conformance.run(Loading("", root), [check])) == {"get-returns-put": "NotReady: still loading"}


# Every setting of every backend, through the harness's own service.


def cells():
    """(backend, setting); a backend that cannot be loaded is one cell, so that a test says why."""
    for name in registry.names():
        try:
            settings = [setting.name for setting in registry.load(name).settings]
        except (locate.MissingExtra, registry.UnknownBackend):
            settings = ["?"]
        yield from ((name, setting) for setting in settings)


@pytest.mark.timeout(600)
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
    assert sum(result.outcome == "passed" for result in results) >= len(conformance.CHECKS) - 6
