"""The only program inside the blast radius: it opens stores, writes until it dies, or reads what is left.

It speaks JSON lines: one order per line on stdin, events on stdout. It imports its adapter and its workload, nothing
else of the harness but payloads. What it acknowledges it tells at once; what it knows it does not keep. Started fresh
(``python -m durabench.driver``) or forked by `durabench.nursery` from a parent that never opened a store.

Orders: ``write`` (events ready, armed, found, ok, fail, info, closed), ``read`` (listing, reading, down),
``create``, ``ready``, ``inspect``, ``size``, ``drop``, ``get``, ``put``, ``conform`` is the harness's own; ``steps``,
``reloads``, ``share``, ``compact`` and ``sizes`` are what plans are made from. Every order ends with ``done`` or with
``failed`` and why.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from durabench import meter, payload, redact, workload
from durabench_backends import registry
from durabench_backends.contract import METADATA, Backend, Compactable, NotReady, Refused, Sized, Store, Versioned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from durabench_backends.contract import Op, Workload

Order = dict[str, Any]
T = TypeVar("T")
RETRY_S = 0.005
"""Between two attempts to open a backend that is coming up."""


def main() -> None:
    """Obey orders from stdin until it ends."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not look like an event
    redact.learn_environment()
    serve(0, out)


def lasting() -> None:
    """Obey like `main`, with one line for each order: all its events, with its targets below the ``root`` it names."""
    out = os.dup(1)
    os.dup2(2, 1)
    for line in iter(sys.stdin.buffer.readline, b""):
        order = json.loads(line)
        for target in order["targets"].values():
            target["root"] = str(Path(order["root"]) / target["root"])
        events: list[Mapping[str, Any]] = []
        carry_out(order, events.append)
        whole = memoryview((json.dumps(events) + "\n").encode())
        while whole:
            whole = whole[os.write(out, whole) :]


def serve(inlet: int, out: int) -> None:
    """Obey every order that arrives on ``inlet``; events go to ``out``."""
    with os.fdopen(inlet, "rb", closefd=False) as orders:
        for line in iter(orders.readline, b""):
            obey(json.loads(line), out)


def obey(order: Order, out: int) -> None:
    """Carry out one order, telling each event at once."""

    def tell(event: Mapping[str, Any]) -> None:
        os.write(out, (json.dumps(event) + "\n").encode())

    carry_out(order, tell)


def carry_out(order: Order, tell: Callable[[Mapping[str, Any]], None]) -> None:
    """Carry out one order; its last event is ``done`` or ``failed``."""
    try:
        answer = ORDERS[order["do"]](order, tell)
    except Exception as error:
        tell({"e": "failed", "why": _why(error), "not_ready": isinstance(error, NotReady), "ours": is_ours(error)})
    else:
        tell({"e": "done", **(answer or {})})


LACKS = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""What a machine, and never a store, may be short of."""


def is_ours(error: BaseException) -> bool:
    """Whether an error is the harness's own or its surroundings': nothing that a store may be blamed for."""
    return isinstance(error, MemoryError | ImportError) or (isinstance(error, OSError) and error.errno in LACKS)


def backend_of(target: Order) -> Backend:
    """The backend of a target: at a URL of somebody's, or on a root and ports of ours."""
    found = registry.load(target["backend"])
    if target.get("url"):
        redact.learn(target["url"])
        return found.from_url(target["url"])
    setting = registry.setting_of(found, target["backend"], target["setting"])
    return found(setting, Path(target["root"]), target["ports"].__getitem__)


def _until_ready(attempt: Callable[[], T], deadline_s: float) -> T:
    """Repeat ``attempt`` while the backend is not ready; NotReady after ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while True:
        began = time.monotonic()
        try:
            return attempt()
        except NotReady:
            if time.monotonic() > end:
                raise
            # Asking costs the server a process too: never more than half of the time that it needs to come up.
            time.sleep(max(RETRY_S, time.monotonic() - began))


def _distinct(order: Order) -> list[tuple[Backend, list[str]]]:
    """Each backend of an order once, with the namespaces that it keeps."""
    made: dict[str, tuple[Backend, list[str]]] = {}
    for namespace, target in order["targets"].items():
        same = json.dumps({**target, "namespace": None}, sort_keys=True)
        made.setdefault(same, (backend_of(target), []))[1].append(namespace)
    return list(made.values())


def _stores(order: Order) -> tuple[dict[str, Backend], dict[str, Store]]:
    backends = {namespace: backend for backend, names in _distinct(order) for namespace in names}
    stores = {
        namespace: _until_ready(partial(backend.open, order["targets"][namespace]["namespace"]), order["deadline_s"])
        for namespace, backend in backends.items()
    }
    return backends, stores


def _identities(backends: Mapping[str, Backend]) -> dict[str, str]:
    """Who answers, by namespace; each backend is asked once."""
    asked = {id(backend): backend.identity() for backend in {id(one): one for one in backends.values()}.values()}
    return {namespace: asked[id(backend)] for namespace, backend in backends.items()}


def write(order: Order, tell: Callable[[Mapping[str, Any]], None]) -> None:
    """Step through the workload's plan until killed, or until so many puts were acknowledged or seconds have passed;
    then close in order. After a put that was refused it waits for a line before the next one.
    """
    writer, seed, pace_s = order["writer"], order["seed"], order["pace_s"]
    puts, write_s = order["limit"] or float("inf"), order["limit_s"] or float("inf")
    backends, stores = _stores(order)
    work = workload.load(order["workload"])(writer, order["writers"])
    tell({"e": "ready", "w": writer, "identity": _identities(backends), **_in_force(order)})
    acknowledged = 0
    began = time.monotonic()
    for index, op in enumerate(work.plan(Random(f"{seed}/{writer}"))):
        store = stores[op.namespace]
        value = payload.make(seed, op.namespace, op.key, op.sequence, op.size) if op.verb == "put" else b""
        wait = began + index * pace_s - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        tell(_armed(writer, index, op))
        try:
            latency_ns = _timed(work, store, op, value, partial(_found, op, writer, index, seed, tell))
        except Refused as error:
            tell({"e": "fail", "w": writer, "i": index, "why": _why(error)})
            _wait_for_a_line()  # whether to go on: who refuses because it is dead would refuse for ever
        except Exception as error:
            tell({"e": "info", "w": writer, "i": index, "why": _why(error)})
            return
        else:
            tell({"e": "ok", "w": writer, "i": index, "latency_ns": latency_ns})
            if order.get("lockstep"):
                _wait_for_a_line()
            acknowledged += op.verb == "put"
        # Out of time only once a commit is done: a slow put of data would leave the metadata without any.
        if acknowledged >= puts or (op.namespace == METADATA and time.monotonic() - began >= write_s):
            if order.get("hold"):  # the power goes next: an orderly close would help the store
                tell({"e": "held", "w": writer})
                threading.Event().wait()
            break
    for store in stores.values():
        store.close()
    tell({"e": "closed", "w": writer})


def _armed(writer: int, index: int, op: Op) -> Order:
    armed = {
        "e": "armed",
        "w": writer,
        "i": index,
        "verb": op.verb,
        "ns": op.namespace,
        "key": op.key,
        "seq": op.sequence,
        "size": op.size,
    }
    return {**armed, "refers": op.refers} if op.refers else armed


def _in_force(order: Order) -> Order:
    """With ``look``, what each store says of its settings, by namespace, or why it cannot."""
    found: Order = {}
    for backend, names in _distinct(order) if order.get("look") else ():
        try:
            said = _settings(backend, order["deadline_s"])
        except Exception as error:
            said = {"why": _why(error)}
        found |= dict.fromkeys(names, said)
    return {"settings": found} if order.get("look") else {}


def _timed(
    work: Workload, store: Store, op: Op, value: bytes, tell_found: Callable[[Mapping[str, bytes | None]], None]
) -> int:
    """Carry out one operation; how long it took, in ns. What a get read is told, also where the workload then gives up:
    it is evidence, whatever the workload makes of it.
    """
    if op.verb != "get":
        start_ns = time.perf_counter_ns()
        work.step(store, op, value)
        return time.perf_counter_ns() - start_ns
    heard = _Heard(store)
    start_ns = time.perf_counter_ns()
    try:
        work.step(cast("Store", heard), op, value)
        return time.perf_counter_ns() - start_ns
    finally:
        tell_found(heard.read)


class _Heard:
    """A store whose gets are remembered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read: dict[str, bytes | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes | None:
        self.read[key] = self._store.get(key)
        return self.read[key]


def _found(
    op: Op,
    writer: int,
    index: int,
    seed: int,
    tell: Callable[[Mapping[str, Any]], None],
    read: Mapping[str, bytes | None],
) -> None:
    """Tell what the key of a get read, where it was read and did not raise."""
    if op.key in read:
        value = read[op.key]
        described = None if value is None else _describe(seed, op.namespace, op.key, value)
        tell({"e": "found", "w": writer, "i": index, "value": described})


def _wait_for_a_line() -> None:
    """Until the controller holds the answer: else the next put's flush could hide that an acknowledged one had none,
    and the failures of a dead server would pile up.
    """
    while os.read(0, 1) not in (b"\n", b""):
        pass


def read(order: Order, tell: Callable[[Mapping[str, Any]], None]) -> Order:
    """Open what is left and tell all of it: every key listed or asked for, with its versions where there are any.

    Each store stands for itself: of one that does not open, list or answer by the deadline ``down`` tells why, and the
    others are read all the same. An error that is ours ends the order.
    """
    identity: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for backend, names in _distinct(order):
        end = time.monotonic() + order["deadline_s"]
        try:
            for namespace in names:
                left = _Left(backend, order["targets"][namespace]["namespace"], max(0.0, end - time.monotonic()))
                _read_all(left, order["seed"], namespace, order["keys"].get(namespace, ()), tell)
                if order["sizes"]:
                    sizes[namespace] = left.store.size_bytes()
                left.store.close()
            identity |= dict.fromkeys(names, backend.identity())
        except Exception as error:
            if is_ours(error):
                raise
            tell({"e": "down", "ns": names, "why": _why(error)})
    return {"identity": identity, "sizes": sizes}


def _read_all(
    left: _Left, seed: int, namespace: str, asked: Iterable[str], tell: Callable[[Mapping[str, Any]], None]
) -> None:
    listed = sorted(set(left.patiently(lambda store: list(store.keys()))))
    tell({"e": "listing", "ns": namespace, "keys": listed})
    for key in sorted({*listed, *asked}):
        tell({"e": "reading", "ns": namespace, "key": key, **_read_key(left, seed, namespace, key)})


class _Left:
    """What is left of a store, read with patience: a server may still load, or hang up once, after it has answered."""

    def __init__(self, backend: Backend, namespace: str, deadline_s: float) -> None:
        self._open = partial(backend.open, namespace)
        self._end = time.monotonic() + deadline_s
        self.store = _until_ready(self._open, deadline_s)

    def patiently(self, ask: Callable[[Store], T]) -> T:
        """What ``ask`` gives. After NotReady again until the deadline, each time on a fresh connection; after any other
        error of the store's once.
        """
        try:
            return ask(self.store)
        except Exception as error:
            if is_ours(error):
                raise
            with suppress(Exception):
                self.store.close()
            return _until_ready(partial(self._afresh, ask), max(0.0, self._end - time.monotonic()))

    def _afresh(self, ask: Callable[[Store], T]) -> T:
        self.store = self._open()
        return ask(self.store)


def _read_key(left: _Left, seed: int, namespace: str, key: str) -> Order:
    """What one key reads. An error that stays is a finding, not the end of the reading; silence is the end of it."""
    try:
        return left.patiently(lambda store: _reading(store, seed, namespace, key))
    except Exception as error:
        if is_ours(error) or isinstance(error, NotReady | ConnectionError) or "Timeout" in type(error).__name__:
            raise
        return {"error": _why(error)}


def _reading(store: Store, seed: int, namespace: str, key: str) -> Order:
    value = store.get(key)
    found: Order = {"value": None if value is None else _describe(seed, namespace, key, value)}
    if isinstance(store, Versioned):
        found["versions"] = [
            {**_describe(seed, namespace, key, older), "version": version} for version, older in store.versions(key)
        ]
    return found


def _describe(seed: int, namespace: str, key: str, value: bytes) -> Order:
    return {"length": len(value), "sha256": payload.digest(value), "blocks": payload.read(seed, namespace, key, value)}


def _one(order: Order) -> Backend:
    return backend_of(order["target"])


def create(order: Order, _tell: object) -> Order:
    """Make the schema or buckets, once it answers."""
    backend = _one(order)
    _until_ready(backend.create, order["deadline_s"])
    return {}


def ready(order: Order, _tell: object) -> Order:
    """Prove by a real write that it answers; tell its identity and its size."""
    backend = _one(order)
    store = _until_ready(lambda: backend.open(order["namespace"]), order["deadline_s"])
    _until_ready(lambda: store.put("ready", b"ready"), order["deadline_s"])
    store.close()
    return {"identity": backend.identity()}


def inspect(order: Order, _tell: object) -> Order:
    """The settings in force, and the promise they add up to."""
    return _settings(_one(order), order["deadline_s"])


def _settings(backend: Backend, deadline_s: float) -> Order:
    facts = list(_until_ready(lambda: list(backend.inspect()), deadline_s))
    promise = backend.promise(facts)
    return {"facts": [[fact.id, fact.value, fact.origin] for fact in facts], "promise": promise.as_json()}


def size(order: Order, _tell: object) -> Order:
    """All bytes at rest, logs included."""
    return {"size_bytes": _one(order).size_bytes()}


def drop(order: Order, _tell: object) -> Order:
    """Remove all of the given namespaces."""
    backend = _one(order)
    for namespace in order["namespaces"]:
        backend.drop(namespace)
    return {}


def get(order: Order, _tell: object) -> Order:
    """One value, for the conformance suite's other process."""
    store = _until_ready(lambda: _one(order).open(order["namespace"]), order["deadline_s"])
    value = store.get(order["key"])
    store.close()
    return {"value": None if value is None else value.hex()}


def put(order: Order, _tell: object) -> Order:
    """One put, for the conformance suite's other process."""
    store = _until_ready(lambda: _one(order).open(order["namespace"]), order["deadline_s"])
    store.put(order["key"], bytes.fromhex(order["value"]))
    store.close()
    return {}


def damage(order: Order, _tell: object) -> Order:
    """Flip a byte in the middle of the first key's value and delete the second key: what a detector must see."""
    flipped, gone = order["keys"]
    store = _until_ready(lambda: _one(order).open(order["target"]["namespace"]), order["deadline_s"])
    value = bytearray(store.get(flipped) or b"")
    value[len(value) // 2] ^= 1
    store.put(flipped, bytes(value))
    store.delete(gone)
    store.close()
    return {}


def steps(order: Order, tell: Callable[[Mapping[str, Any]], None]) -> None:
    """Steps, each timed; the controller is waited for before the first and after the last."""
    _, stores = _stores(order)
    meter.take_steps(stores, order, tell, _wait_for_a_line)


def reloads(order: Order, _tell: object) -> Order:
    """Gets, each timed, in a process that never wrote."""
    _, stores = _stores(order)
    return meter.take_reloads(stores, order)


def share(order: Order, _tell: object) -> Order:
    """What namespaces take of the bytes at rest."""
    _, stores = _stores(order)
    size_bytes = sum(store.size_bytes() for store in stores.values())
    for store in stores.values():
        store.close()
    return {"size_bytes": size_bytes}


def compact(order: Order, _tell: object) -> Order:
    """Rewrite what holds the values, where the backend can."""
    backend = _one(order)
    return {"how": (backend.compact() or None) if isinstance(backend, Compactable) else None}


SIZES_TOLD = 4096


def sizes(order: Order, tell: Callable[[Mapping[str, Any]], None]) -> Order:
    """The sizes of somebody's values, read and never written; told some thousand at a time."""
    backend = _one(order)
    if not isinstance(backend, Sized):
        raise TypeError(f"the sizes in {order['target']['backend']} cannot be listed")
    some: list[int] = []
    for size_bytes in backend.sizes_bytes(order["within"]):
        some.append(size_bytes)
        if len(some) == SIZES_TOLD:
            tell({"e": "sizes", "sizes": some})
            some = []
    return {"sizes": some}


ORDERS: Mapping[str, Callable[[Order, Callable[[Mapping[str, Any]], None]], Order | None]] = {
    f.__name__: f
    for f in (
        *(write, read, create, ready, inspect, size, drop, get, put, damage),
        *(steps, reloads, share, compact, sizes),
    )
}


def _why(error: BaseException) -> str:
    """One line: the kind of error and its first words, cut only once no secret is in them any more."""
    text = " ".join(redact.redact(str(error)).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


if __name__ == "__main__":
    lasting() if sys.argv[1:] == ["--lasting"] else main()
