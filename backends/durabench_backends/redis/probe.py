"""Asks a server by writing: does the log grow, what does a flush take, does WAITAOF wait for one.

In a namespace of its own, always the same one, so that what a killed probe left is removed by the next.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from durabench_backends.contract import Check, Domain
from durabench_backends.redis import promises, wire
from durabench_backends.redis.promises import WAITAOF, fact_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from durabench_backends.contract import Fact, Goal, Status
    from durabench_backends.redis.promises import Engine
    from durabench_backends.redis.wire import Connection

NAMESPACE = "durabench-probe"
VALUE_BYTES = 512
PAIRS = 60
PAIRS_S = 2.5
"""Longest time for PING and SET in turn."""
ANSWERS = 6
ANSWERS_S = 2.5
"""Longest time for SET and WAITAOF in turn; a flush a second makes three of them."""
WAITAOF_MS = 4000


@dataclass
class Probed:
    """A connection under test, and how much was written through it."""

    connection: Connection
    values: Mapping[str, str]
    goal: Goal
    written: int = 0
    sets: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1 << 30)))

    def set(self) -> None:
        """One SET of a new key in the probe's namespace."""
        key = wire.prefix(NAMESPACE) + b"%d" % next(self._numbers)
        wire.call(self.connection, b"SET", key, b"x" * VALUE_BYTES)
        self.written += len(key) + VALUE_BYTES
        self.sets += 1

    def told(self) -> dict[str, int]:
        """What INFO says of the log, in numbers."""
        info = wire.info(self.connection)
        names = ("aof_current_size", "aof_base_size", "aof_buffer_length", "aof_delayed_fsync", "aof_rewrites")
        return {name: int(info[name]) for name in names if info.get(name, "").isdigit()}

    @property
    def logged(self) -> bool:
        return self.values.get("appendonly") == "yes"


def clean(connection: Connection) -> int:
    """Remove the probe's namespace; how many keys there were."""
    removed = 0
    for keys in wire.scan(connection, wire.prefix(NAMESPACE)):
        removed += int(wire.call(connection, b"DEL", *keys))
    return removed


def probe(engine: Engine, connection: Connection, facts: Sequence[Fact], goal: Goal) -> list[Check]:
    """The checks of `pages.PROBES`. The namespace is gone afterwards; what was written stays in the log until the
    server rewrites it, and each check says how much that is.
    """
    import redis

    probed = Probed(connection, promises.values_of(facts), goal)
    try:
        left = clean(connection)
        try:
            found = [*_latency(probed), _waitaof(engine, probed)]
        finally:
            with suppress(redis.ConnectionError):
                clean(connection)
    except redis.ResponseError as error:
        return _refused(probed, error)
    wrote = f"wrote {probed.written} bytes in {probed.sets} keys, removed again"
    wrote += f"; removed {left} keys that an earlier probe had left" if left else ""
    return [Check(**{**vars(each), "evidence": f"{each.evidence}; {wrote}"}) for each in found]


def _refused(probed: Probed, error: Exception) -> list[Check]:
    """A login that may not write, or a server that takes nothing: what only writing could show is not known."""
    said = str(error)
    denied = "permission" in said.lower() or "NOPERM" in said
    fix = f"ACL SETUSER USER ~{wire.PREFIX}:* +set +del +scan +ping +info +waitaof" if denied else None
    depends = probed.values.get(WAITAOF) == "yes" and probed.goal.survive >= Domain.MACHINE
    evidence = f"the probe could not write: {said}"

    def status(name: str) -> Status:
        return "unknown" if name == WAITAOF and depends else "skip"

    return [
        Check(fact_id(name), status(name), fix=fix, evidence=evidence)
        for name in ("aof_growth", "flush_latency", WAITAOF)
    ]


def _latency(probed: Probed) -> Iterator[Check]:
    """PING and SET in turn; and whether the log has grown by the time the last reply is there."""
    before, written = probed.told(), probed.written
    end = time.monotonic() + PAIRS_S
    pings: list[int] = []
    sets: list[int] = []
    while len(sets) < PAIRS and time.monotonic() < end:
        began = time.perf_counter_ns()
        wire.call(probed.connection, b"PING")
        pinged = time.perf_counter_ns()
        probed.set()
        pings.append(pinged - began)
        sets.append(time.perf_counter_ns() - pinged)
    yield _growth(probed, before, probed.told(), probed.written - written)
    yield _flush(probed, statistics.median(pings) / 1e6, statistics.median(sets) / 1e6)


def _growth(probed: Probed, before: Mapping[str, int], after: Mapping[str, int], written: int) -> Check:
    name = fact_id("aof_growth")
    size = "aof_current_size"
    if not probed.logged:
        return Check(name, "skip", evidence="there is no log: appendonly is not yes")
    rewritten = any(before.get(each) != after.get(each) for each in ("aof_base_size", "aof_rewrites"))
    if size not in before or size not in after or rewritten:
        return Check(name, "skip", evidence="the log was rewritten meanwhile, or INFO does not tell its size")
    grown = after[size] - before[size]
    value = f"{grown} bytes for {written} bytes put"
    if grown >= written:
        return Check(name, "ok", value, "INFO aof_current_size", evidence="written when the replies were there")
    waiting = after.get("aof_buffer_length", 0)
    evidence = f"{waiting} bytes wait in memory, {after.get('aof_delayed_fsync', 0)} flushes were late so far"
    loses = "what was acknowledged and is not in the log, when the server dies"
    status: Status = "warn"
    if probed.values.get("appendfsync") == "always" and probed.goal.survive >= Domain.SERVER:
        status = "fail"
    return Check(name, status, value, "INFO aof_current_size", loses, "redis-cli INFO persistence", evidence)


def _flush(probed: Probed, ping_ms: float, set_ms: float) -> Check:
    name = fact_id("flush_latency")
    value = f"SET {set_ms:.3f} ms, PING {ping_ms:.3f} ms (p50)"
    always = probed.logged and probed.values.get("appendfsync") == "always"
    if not always:
        return Check(name, "ok", value, "measured here", evidence="no flush is waited for under this policy")
    if set_ms > ping_ms:
        return Check(name, "ok", value, "measured here", evidence=f"a flush takes {set_ms - ping_ms:.3f} ms")
    loses = "all that the drive, or what stands for it, acknowledged and did not do"
    return Check(name, "warn", value, "measured here", loses, "durabench doctor", "nothing waited for a flush")


def _waitaof(engine: Engine, probed: Probed) -> Check:
    """More answers than there can have been flushes: some did not wait for theirs."""
    import redis

    name, policy = fact_id(WAITAOF), probed.values.get("appendfsync")
    if not probed.logged or policy != "everysec":
        why = "under always a reply comes after the flush anyway" if policy == "always" and probed.logged else ""
        return Check(name, "skip", evidence=why or "there is no log that is flushed")
    answers, began, elapsed_s = 0, time.monotonic(), 0.0
    try:
        while answers < ANSWERS and elapsed_s < ANSWERS_S:
            probed.set()
            reply: Any = wire.call(probed.connection, b"WAITAOF", b"1", b"0", str(WAITAOF_MS).encode())
            if int(reply[0]) < 1:
                return Check(name, "warn", f"no flush within {WAITAOF_MS} ms", "measured here", evidence="it says so")
            answers, elapsed_s = answers + 1, time.monotonic() - began
    except redis.ResponseError as error:
        return Check(name, "skip", evidence=f"WAITAOF: {error}")
    flushes = int(elapsed_s) + 2
    value = f"{answers} answers in {elapsed_s:.3g} s"
    if answers <= flushes:
        return Check(name, "ok", value, "measured here", evidence=f"at most {flushes} flushes in that time")
    relied = (
        probed.values.get(WAITAOF) == "yes"
        and probed.goal.survive >= Domain.MACHINE
        and probed.goal.max_loss_s < promises.EVERYSEC_S
    )
    loses = "up to two seconds of what WAITAOF said was flushed, with the machine"
    fix = f"{engine.name}-cli CONFIG SET appendfsync always && {engine.name}-cli CONFIG REWRITE"
    evidence = f"at most {flushes} flushes in that time: some answers came before theirs"
    return Check(name, "fail" if relied else "warn", value, "measured here", loses, fix, evidence)
