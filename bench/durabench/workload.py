"""What a writer does until it dies: the workloads, each an endless seeded plan of operations.

Data is put first; the metadata record that refers to it commits it. The victim is one of the puts 2…40.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, ClassVar, cast

from durabench_backends.contract import DATA, METADATA, Op, Store, Workload
from durabench_backends.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

METADATA_BYTES = 2048
DATA_BYTES = 1 << 20
DATA_EVERY_STEPS = 5
GENERATIONS = 3
SHARDS = 4
SHARD_BYTES = 64 << 10


class _Ops:
    """Makes one writer's operations, so that no two of a trial share a sequence or, between writers, a key."""

    def __init__(self, writer: int, writers: int) -> None:
        self._sequences = count(writer + writers, writers)
        self._prefix = f"w{writer}-" if writers > 1 else ""

    def put(self, namespace: str, key: str, size: int, *committed: Op) -> Op:
        refers = tuple((op.key, op.sequence) for op in committed)
        return Op("put", namespace, self._prefix + key, next(self._sequences), size, refers)

    def delete(self, namespace: str, key: str) -> Op:
        return Op("delete", namespace, self._prefix + key, next(self._sequences), 0)

    def get(self, namespace: str, key: str) -> Op:
        return Op("get", namespace, self._prefix + key, next(self._sequences), 0)


def _agent(ops: _Ops, rng: Random) -> Iterator[Op]:
    """Metadata at every step under a new key; data changed, under a new key, in one step of five."""
    changes_at = rng.randrange(DATA_EVERY_STEPS)
    data: Op | None = None
    for step in count():
        if data is None or step % DATA_EVERY_STEPS == changes_at:
            data = ops.put(DATA, f"data-{step:06d}", DATA_BYTES)
            yield data
        yield ops.put(METADATA, f"step-{step:06d}", METADATA_BYTES, data)


def _append(ops: _Ops, _rng: Random) -> Iterator[Op]:
    """Metadata only, a new key per step."""
    for step in count():
        yield ops.put(METADATA, f"step-{step:06d}", METADATA_BYTES)


def _overwrite(ops: _Ops, rng: Random) -> Iterator[Op]:
    """The newest checkpoint under one key, metadata and data each."""
    changes_at = rng.randrange(DATA_EVERY_STEPS)
    data: Op | None = None
    for step in count():
        if data is None or step % DATA_EVERY_STEPS == changes_at:
            data = ops.put(DATA, "data", DATA_BYTES)
            yield data
        yield ops.put(METADATA, "checkpoint", METADATA_BYTES, data)


def _rotate(ops: _Ops, _rng: Random) -> Iterator[Op]:
    """Three generations; the oldest is deleted only after two newer ones were read back."""
    for step in count():
        yield ops.put(METADATA, f"generation-{step:06d}", METADATA_BYTES)
        if step >= GENERATIONS:
            yield ops.get(METADATA, f"generation-{step:06d}")
            yield ops.get(METADATA, f"generation-{step - 1:06d}")
            yield ops.delete(METADATA, f"generation-{step - GENERATIONS:06d}")


def _sharded(ops: _Ops, _rng: Random) -> Iterator[Op]:
    """Each step puts its shards of data, then the marker that says they are complete."""
    for step in count():
        shards = []
        for shard in range(SHARDS):
            shards.append(ops.put(DATA, f"step-{step:06d}-shard-{shard}", SHARD_BYTES))
            yield shards[-1]
        yield ops.put(METADATA, f"step-{step:06d}-complete", METADATA_BYTES, *shards)


def _whole(ops: _Ops, _rng: Random) -> Iterator[Op]:
    """What agent puts, not split: metadata and data in one value, at every step, a new key each."""
    for step in count():
        yield ops.put(METADATA, f"step-{step:06d}", METADATA_BYTES + DATA_BYTES)


@dataclass
class Planned:
    """A workload of plain puts, gets and deletes, given by its plan."""

    plan_of: Callable[[_Ops, Random], Iterator[Op]]
    writer: int
    writers: int
    needs: ClassVar[type] = Store
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.plan_of.__name__.lstrip("_")

    def plan(self, rng: Random) -> Iterator[Op]:
        """The endless, seeded sequence of operations."""
        return self.plan_of(_Ops(self.writer, self.writers), rng)

    def step(self, store: Store, op: Op, value: bytes) -> None:
        """Carry out one operation. What a get reads the driver tells, and the checker judges."""
        if op.verb == "put":
            store.put(op.key, value)
        elif op.verb == "delete":
            store.delete(op.key)
        else:
            store.get(op.key)


PLANS = (_agent, _append, _overwrite, _rotate, _sharded, _whole)
WORKLOADS: dict[str, Callable[[int, int], Workload]] = {
    plan.__name__.lstrip("_"): cast("Callable[[int, int], Workload]", partial(Planned, plan)) for plan in PLANS
}
METADATA_ONLY = ("append", "rotate", "whole")
"""Workloads that put no data: their trials have no data row."""


def describe(name: str) -> str:
    """One line about a workload, from its plan."""
    return next((plan.__doc__ or "" for plan in PLANS if plan.__name__ == f"_{name}"), "")


class UnknownWorkload(LookupError):
    """No workload of that name; the message offers the nearest."""


def load(name: str) -> Callable[[int, int], Workload]:
    """What makes a workload from (writer, writers), by name or ``package.module:Class``. UnknownWorkload otherwise."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        message = f"unknown workload {name!r}; {nearest(name, list(WORKLOADS))}"
        raise UnknownWorkload(message)
    try:
        return cast("Callable[[int, int], Workload]", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        message = f"workload {name!r} cannot be loaded: {error}"
        raise UnknownWorkload(message) from error
