"""What a driver tells of a store that forgets, loads, hangs or errs; and whose fault an error is."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from durabench import driver, guest, payload, workload
from durabench.service import Target
from durabench_backends.contract import METADATA, NotReady, Op

SEED = 3


class Kept:
    """A store in a dict; ``raises`` gives, for every call of get in turn, an exception or None."""

    def __init__(self, values, raises=(), keys_raise=None):
        self.values, self.raises, self.keys_raise, self.closed = values, list(raises), keys_raise, 0

    def get(self, key):
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error
        return self.values.get(key)

    def put(self, key, value):
        self.values[key] = value

    def delete(self, key):
        self.values.pop(key, None)

    def keys(self):
        if self.keys_raise:
            raise self.keys_raise
        return list(self.values)

    def size_bytes(self):
        return 0

    def close(self):
        self.closed += 1


class Answers:
    """A backend of such stores; ``opens`` are what its opens in turn raise, or None."""

    def __init__(self, store, opens=(), who="one"):
        self.store, self.opens, self.who = store, list(opens), who

    def open(self, namespace):
        error = self.opens.pop(0) if self.opens else None
        if error is not None:
            raise error
        return self.store

    def identity(self):
        return self.who


@pytest.fixture
def read(monkeypatch):
    """Reads backends, by namespace; the events that were told."""

    def run(backends, deadline_s=0.05, keys=()):
        monkeypatch.setattr(driver, "backend_of", lambda target: backends[target["backend"]])
        targets = {name: {"backend": name, "namespace": name} for name in backends}
        order = {"do": "read", "targets": targets, "seed": SEED, "deadline_s": deadline_s, "sizes": False}
        told = []
        driver.carry_out({**order, "keys": dict.fromkeys(backends, keys)}, told.append)
        return told

    return run


def of(told, kind):
    return [event for event in told if event["e"] == kind]


def test_a_server_that_still_loads_is_waited_for(read):
    loading = NotReady("it is loading its data")
    told = read({METADATA: Answers(Kept({"a": b"x"}, [loading, loading, None]))}, deadline_s=5)
    assert [event["value"]["length"] for event in of(told, "reading")] == [1]
    assert told[-1]["e"] == "done"


@pytest.mark.parametrize(
    "error", [NotReady("it is loading"), TimeoutError("timed out"), ConnectionResetError("hung up")], ids=repr
)
def test_a_store_that_stays_silent_when_it_is_read_is_down_and_its_values_are_not_called_corrupt(error, read):
    told = read({METADATA: Answers(Kept({"a": b"x"}, [error] * 10_000))})
    assert of(told, "reading") == []
    (down,) = of(told, "down")
    assert down["ns"] == [METADATA]
    assert type(error).__name__ in down["why"]
    assert told[-1] == {"e": "done", "identity": {}, "sizes": {}}


def test_an_error_that_stays_with_a_key_is_what_the_key_reads(read):
    told = read({METADATA: Answers(Kept({"a": b"x"}, [ValueError("bad page")] * 2))})
    assert [event["error"] for event in of(told, "reading")] == ["ValueError: bad page"]


def test_an_error_that_goes_away_on_a_fresh_connection_is_no_finding(read):
    store = Kept({"a": b"x"}, [ValueError("connection lost"), None])
    told = read({METADATA: Answers(store)})
    assert [(event.get("error"), event["value"]["length"]) for event in of(told, "reading")] == [(None, 1)]
    assert store.closed >= 1, "the first connection was given up"


@pytest.mark.parametrize("error", [MemoryError(), ImportError("no module"), OSError(errno.ENFILE, "files")], ids=repr)
@pytest.mark.parametrize("where", ["get", "keys", "open"])
def test_what_the_machine_lacks_is_the_harness_s_and_ends_the_order(error, where, read):
    store = Kept({"a": b"x"}, [error] * 9 if where == "get" else [], error if where == "keys" else None)
    told = read({METADATA: Answers(store, [error] * 9 if where == "open" else [])})
    assert of(told, "down") == of(told, "reading") == []
    assert (told[-1]["e"], told[-1]["ours"]) == ("failed", True)


def test_of_two_stores_the_one_that_is_down_is_named_and_the_other_is_read(read):
    down = Answers(Kept({}), [NotReady("it will not start")] * 10_000, "dead")
    for backends in (
        {METADATA: down, "data": Answers(Kept({"a": b"x"}))},
        {"data": Answers(Kept({"a": b"x"})), METADATA: down},
    ):
        told = read(backends)
        assert [(event["ns"], event["why"]) for event in of(told, "down")] == [
            ([METADATA], "NotReady: it will not start")
        ]
        assert [(event["ns"], event["key"]) for event in of(told, "reading")] == [("data", "a")]
        assert told[-1]["identity"] == {"data": "one"}


# --- what a writer's gets find in peacetime


class Reads:
    """A workload of one get."""

    name, needs = "reads", object

    def __init__(self, writer, writers):
        pass

    def plan(self, rng):
        yield Op("get", METADATA, "a", 7, 0)

    def step(self, store, op, value):
        assert store.size_bytes() == 0, "all else of the store is there"
        if store.get(op.key) is None:
            raise LookupError("it was acknowledged")


@pytest.fixture
def write(monkeypatch):
    def run(store, work):
        monkeypatch.setattr(driver, "backend_of", lambda target: Answers(store))
        monkeypatch.setattr(workload, "load", lambda name: work)
        order = {"do": "write", "writer": 0, "writers": 1, "seed": SEED, "pace_s": 0, "limit": 9, "limit_s": None}
        told = []
        target = {"backend": METADATA, "namespace": METADATA}
        driver.carry_out({**order, "targets": {METADATA: target}, "workload": "x", "deadline_s": 1}, told.append)
        return [event for event in told if event["e"] not in ("ready", "closed")]

    return run


def test_what_a_get_reads_is_told_before_its_answer(write):
    value = payload.make(SEED, METADATA, "a", 1, 2048)
    armed, found, answer, done = write(Kept({"a": value}), Reads)
    assert (armed["verb"], found["e"], answer["e"], done["e"]) == ("get", "found", "ok", "done")
    assert found["value"]["blocks"] == ((1, 4),)
    assert (found["w"], found["i"]) == (armed["w"], armed["i"])


def test_what_a_get_does_not_find_is_told_whatever_the_workload_makes_of_it(write):
    _, found, answer, _ = write(Kept({}), Reads)
    assert (found["e"], found["value"], answer["e"]) == ("found", None, "info")


def test_a_get_that_raises_has_found_nothing_out(write):
    _, answer, _ = write(Kept({}, [TimeoutError("timed out")]), Reads)
    assert (answer["e"], answer["why"]) == ("info", "TimeoutError: timed out")


def test_the_shipped_workload_that_reads_goes_on_when_it_finds_nothing():
    work = workload.load("rotate")(0, 1)
    op = next(op for op in work.plan(Random(0)) if op.verb == "get")
    work.step(Kept({}), op, b"")


def test_settings_in_force_are_told_where_they_are_asked_for(monkeypatch, tmp_path):
    target = {"backend": "files", "setting": "fsync-dir", "root": str(tmp_path), "ports": {}, "namespace": "n"}
    order = {"targets": {METADATA: target, "data": target}, "deadline_s": 5}
    assert driver._in_force(order) == {}
    said = driver._in_force({**order, "look": True})["settings"]
    assert set(said) == {METADATA, "data"}
    assert said[METADATA]["promise"]["may_lose_s"]["drive"] == 0.0
    monkeypatch.setattr(driver, "backend_of", lambda target: SimpleNamespace())
    assert "AttributeError" in driver._in_force({**order, "look": True})["settings"][METADATA]["why"]
    assert Path(tmp_path).exists()


def test_a_driver_needs_no_more_of_us_than_what_is_copied_into_a_guest():
    env = guest.driver_env([Target("files", "fsync-dir"), Target("sqlite", "wal-full")], "append")
    code = "import durabench.driver, sys; print(*(m for m in sys.modules if m.startswith('durabench_')), sep='\\n')"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {name.partition(".")[0] for name in done.stdout.split()} == {"durabench_backends"}
