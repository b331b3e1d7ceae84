"""Timed steps and timed reloads, inside a driver: what `plan` measures a backend with.

A *step* is what a program must have stored before it goes on: one put or several, each on its own or all in one commit.
Values are made before the clock starts and told by their SHA-256, so that whoever reads them back can be checked by
somebody else. The controller reads counters of the kernel between ``ready`` and ``written``, and between steps where it
asked for that; the driver waits for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from random import Random
from typing import TYPE_CHECKING, Any

from durabench_backends.contract import Refused, Transactional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench_backends.contract import Store

TILE_BYTES = 4 << 20
"""Noise repeats after so much: beyond the window of every codec that a store or file system uses."""
TILE_RECORDS = 4096
"""Records repeat after so many, some 250 KiB, for the same reason."""
KEPT_BYTES = 1 << 16
"""A part as large as this is kept for the next step, where it may be the same: making it takes longer than a put."""


def value_part(seed: int, name: str, size: int, *, compressible: bool) -> bytes:
    """``size`` bytes that follow from seed and name: noise, or records of JSON, which shrink to about a third."""
    rng = Random(f"{seed}/{name}")
    if compressible:
        number = min(TILE_RECORDS, size // 32 + 1)
        records = [{"step": rng.randrange(10_000), "loss": rng.random(), "done": True} for _ in range(number)]
        tile = json.dumps(records).encode()
    else:
        tile = rng.randbytes(min(TILE_BYTES, size))
    times, rest = divmod(size, len(tile)) if tile else (0, 0)
    return b"".join([*[tile] * times, tile[:rest]])  # at once: a copy of the largest takes as long as its put


class _Values:
    """Makes the values of steps, each of one or two named parts."""

    def __init__(self, seed: int, *, compressible: bool) -> None:
        self._seed = seed
        self._compressible = compressible
        self._kept: dict[tuple[str, int], bytes] = {}

    def make(self, parts: Sequence[tuple[str, int]]) -> bytes:
        made = [self._part(name, size) for name, size in parts]
        return made[0] if len(made) == 1 else b"".join(made)

    def _part(self, name: str, size: int) -> bytes:
        found = self._kept.get((name, size))
        if found is None:
            if size >= KEPT_BYTES:
                self._kept.clear()  # before the next is made: two of the largest would be too many
            found = value_part(self._seed, name, size, compressible=self._compressible)
            if size >= KEPT_BYTES:
                self._kept[name, size] = found
        return found


def take_steps(
    stores: Mapping[str, Store],
    order: Mapping[str, Any],
    tell: Callable[[Mapping[str, Any]], None],
    await_line: Callable[[], None],
) -> None:
    """Carry out ``steps``, lists of puts (namespace, key, parts), until they are done, ``limit_s`` is over (but never
    fewer than ``at_least``), or one is refused. Tells ready, step (with ``each``), written; closes in order.
    """
    values = _Values(order["seed"], compressible=order["compressible"])
    if order["warm_up"]:
        for store in stores.values():
            store.put("warm-up", b"warm-up")
    tell({"e": "ready", "transactional": all(isinstance(store, Transactional) for store in stores.values())})
    await_line()
    latencies_ns: list[int] = []
    digests: list[list[str]] = []
    refused: str | None = None
    began = time.monotonic()
    for index, step in enumerate(order["steps"]):
        made = [(namespace, key, values.make(parts)) for namespace, key, parts in step]
        try:
            latencies_ns.append(_timed(stores, order, made))
        except Exception as error:
            kind = "refused" if isinstance(error, Refused) else "failed"
            refused = f"{kind}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            break
        digests.append([hashlib.sha256(value).hexdigest() for _, _, value in made])
        del made
        if order["each"]:
            tell({"e": "step", "i": index})
            await_line()
        if index + 1 >= order["at_least"] and time.monotonic() - began >= order["limit_s"]:
            break
    tell({"e": "written", "latencies_ns": latencies_ns, "digests": digests, "refused": refused})
    await_line()
    for store in stores.values():
        store.close()


def _timed(stores: Mapping[str, Store], order: Mapping[str, Any], made: Sequence[tuple[str, str, bytes]]) -> int:
    """Put what a step puts; how long it took in ns."""
    start_ns = time.perf_counter_ns()
    if order["together"]:
        store = stores[made[0][0]]
        if not isinstance(store, Transactional):
            raise TypeError("this store has no put_many")
        names = order["targets"]
        store.put_many({(names[namespace]["namespace"], key): value for namespace, key, value in made})
    else:
        for namespace, key, value in made:
            stores[namespace].put(key, value)
    return time.perf_counter_ns() - start_ns


def take_reloads(stores: Mapping[str, Store], order: Mapping[str, Any]) -> dict[str, Any]:
    """Get every (namespace, key) of ``gets`` once: latencies in ns, and the SHA-256 of each value, None where it is not
    there.
    """
    latencies_ns, digests = [], []
    for namespace, key in order["gets"]:
        start_ns = time.perf_counter_ns()
        value = stores[namespace].get(key)
        latencies_ns.append(time.perf_counter_ns() - start_ns)
        digests.append(None if value is None else hashlib.sha256(value).hexdigest())
        del value
    for store in stores.values():
        store.close()
    return {"latencies_ns": latencies_ns, "digests": digests, "pid": os.getpid()}
