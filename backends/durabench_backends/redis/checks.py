"""What the facts of a server mean for a goal: one check per id, pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from durabench_backends.contract import Check, Domain
from durabench_backends.mounts import LAYERS, REMOTE
from durabench_backends.redis import promises
from durabench_backends.redis.facts import NO_FILE, ORDER_UNTOLD
from durabench_backends.redis.promises import (
    AS_RUNNING,
    AS_STARTED,
    CHANGED,
    EVERYSEC_S,
    SHIPPED,
    STARTING,
    UNCOUNTED,
    WAITAOF,
    fact_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from durabench_backends.contract import Fact, Goal, Status
    from durabench_backends.redis.promises import Engine


@dataclass(frozen=True)
class Looked:
    """Facts by short name, and the goal they are held against."""

    engine: Engine
    facts: Mapping[str, Fact]
    values: Mapping[str, str]
    goal: Goal

    @property
    def server(self) -> bool:
        """Whether the goal is to survive the server's death."""
        return self.goal.survive >= Domain.SERVER

    @property
    def machine(self) -> bool:
        """Whether the goal is to survive the machine's."""
        return self.goal.survive >= Domain.MACHINE

    @property
    def cli(self) -> str:
        return f"{self.engine.name}-cli"

    def read(self, name: str) -> bool:
        """Whether a fact has a value."""
        return bool(self.values.get(name))

    def check(
        self,
        name: str,
        status: Status,
        *,
        loses: str | None = None,
        fix: str | None = None,
        evidence: str | None = None,
    ) -> Check:
        """A check on a fact that was read."""
        fact = self.facts.get(name)
        value, origin = (fact.value, fact.origin) if fact else (None, None)
        return Check(fact_id(name), status, value or None, origin or None, loses, fix, evidence)

    def not_read(self, name: str, *, depends: bool, loses: str | None = None) -> Check:
        """The same of one that was not: ``unknown`` where the goal depends on it."""
        fact = self.facts.get(name)
        why, _, line = (fact.unread if fact else "").partition("; ")
        status: Status = "unknown" if depends else "skip"
        return Check(fact_id(name), status, None, None, loses, line or None, why or "not read")

    def missing(self, name: str) -> bool:
        """Whether nobody even asked, so that the promise takes the worst for granted."""
        return name not in self.facts

    def set_to(self, name: str, value: str) -> str:
        """The line that sets a parameter, now and for the next start."""
        kept = self.facts.get("config_rewrite")
        line = f"{self.cli} CONFIG SET {name} {value}"
        if kept is not None and kept.origin == NO_FILE:
            return f"{line}  # and start the server with --{name} {value}: it has no configuration file"
        return f"{line} && {self.cli} CONFIG REWRITE"


def checks(engine: Engine, facts: Sequence[Fact], goal: Goal) -> Iterator[Check]:
    """One check per id, none of those that need a probe."""
    by_name = {fact.id.removeprefix(f"{promises.PREFIX}."): fact for fact in facts}
    look = Looked(engine, by_name, promises.values_of(facts), goal)
    yield _appendonly(look)
    yield _appendfsync(look)
    yield _on_rewrite(look)
    yield _config_rewrite(look)
    yield _eviction(look)
    yield _expiry(look)
    yield _last_write(look)
    yield _status(look, "last_bgrewrite_status", "the log grows without an end until the disk is full")
    yield _status(look, "rdb_last_bgsave_status", "the dump is getting old, and writes are refused meanwhile")
    yield _replicas(look)
    yield _role(look)
    yield _loading(look)
    yield _directory(look)
    yield _version(look)


def _appendonly(look: Looked) -> Check:
    name = "appendonly"
    loses = "everything since the last dump (by the shipped save points up to an hour) when the server dies"
    if not look.read(name):
        return look.not_read(name, depends=look.server, loses=loses)
    if look.values[name] == "yes":
        return look.check(name, "ok")
    if look.values[name] == STARTING:
        loses = "everything, when the server dies before its first log is written: the next start finds none"
        fix = f"{look.cli} INFO persistence  # wait for aof_rewrite_in_progress:0, and ask again"
        return look.check(name, "fail" if look.server else "warn", loses=loses, fix=fix)
    evidence = f"save points: {look.values.get('save') or 'none'}"
    if not look.server:
        return look.check(name, "ok", evidence=evidence)
    return look.check(name, "fail", loses=loses, fix=look.set_to(name, "yes"), evidence=evidence)


def _without_log(look: Looked) -> str | None:
    """Why a parameter of the log decides nothing; None where it does."""
    if look.values.get("appendonly") == "no":
        return "without effect while appendonly is no"
    if look.values.get(WAITAOF) == "yes":
        return "the writer sends WAITAOF after each put"
    return None


def _appendfsync(look: Looked) -> Check:
    name = "appendfsync"
    idle = _without_log(look)
    fix = look.set_to(name, "always")
    lasting = look.goal.max_loss_s >= EVERYSEC_S
    if not look.read(name):
        depends = idle is None and (look.machine or (look.server and not lasting))
        return look.not_read(name, depends=depends, loses="two seconds under everysec, about thirty under no")
    if idle is not None:
        return look.check(name, "ok", evidence=idle)
    policy = look.values[name]
    if policy == "always" or not look.server:
        return look.check(name, "ok")
    if policy == "everysec":
        loses = "the last second, two where a flush is slow, with the machine; where it is slow, with the server too"
        return look.check(name, "ok" if lasting else "fail", loses=loses, fix=None if lasting else fix)
    loses = "all since the kernel last wrote the log, about thirty seconds, with the machine"
    failed = look.machine or not (policy == "no" or lasting)  # another word: no better than everysec
    return look.check(name, "fail" if failed else "ok", loses=loses, fix=fix if failed else None)


def _on_rewrite(look: Looked) -> Check:
    name = "no_appendfsync_on_rewrite"
    idle = _without_log(look)
    loses = "while the log is rewritten nothing is flushed: all acknowledged since then goes with the machine"
    if not look.read(name):
        return look.not_read(name, depends=idle is None and look.machine, loses=loses)
    if look.values[name] == "no":
        return look.check(name, "ok")
    if idle is None and look.values.get("appendfsync") not in ("always", "everysec", "", None):
        idle = "appendfsync flushes nothing anyway"
    if idle is not None or not look.machine:
        return look.check(name, "ok", evidence=idle)
    return look.check(name, "fail", loses=loses, fix=look.set_to("no-appendfsync-on-rewrite", "no"))


def _config_rewrite(look: Looked) -> Check:
    name = "config_rewrite"
    met = look.goal.is_met_by(promises.after_restart(look.engine, look.values))
    loses = "what was set at run time is undone by a restart; where appendonly was, the log is then not even loaded"
    if not look.read(name):
        found = look.not_read(name, depends=look.missing(name) and not met, loses=loses)
        return replace(found, status="warn") if ORDER_UNTOLD in (found.evidence or "") else found
    told, rewrite = look.values[name], f"{look.cli} CONFIG REWRITE"
    if told == AS_RUNNING:
        return look.check(name, "ok")
    if told == AS_STARTED:
        return _as_started(look)
    if told in (CHANGED, UNCOUNTED):
        fix = f"{rewrite}  # or verify where the server runs, as a user who may read its configuration file"
        if look.facts[name].origin.endswith(NO_FILE) and _options(look):
            fix = f"restart it with {_options(look)}, or with these lines in a configuration file: it has none"
        evidence = "whether a restart undoes what runs, cannot be told from here"
        return look.check(name, "warn" if met else "unknown", loses=loses, fix=fix, evidence=evidence)
    runs = ", ".join(f"{each.replace('_', '-')} {look.values.get(each, '?')}" for each in promises.differences(told))
    evidence = f"runs: {runs}; after a restart: {told}"
    if promises.differences(told).get("appendonly") == "yes":
        loses = "everything, at the next start: it loads the log, which is not there yet, and not the dump"
        rewrite = look.set_to("appendonly", "yes")
    return look.check(name, "warn" if met else "fail", loses=loses, fix=rewrite, evidence=evidence)


def _options(look: Looked) -> str:
    """The options that give what runs where the shipped settings do not."""
    running = {name: look.values.get(name.replace("-", "_"), "") for name in SHIPPED if name != "save"}
    return " ".join(f"--{name} {value}" for name, value in running.items() if value not in ("", SHIPPED[name]))


def _as_started(look: Looked) -> Check:
    """Nobody changed it: told is what a start by hand would give where that is not the same."""
    name = "config_rewrite"
    if look.facts[name].origin != NO_FILE:
        return look.check(name, "ok")
    shipped = {parameter: value for parameter, value in SHIPPED.items() if parameter != "save"}
    other = [f"{each} {value}" for each, value in shipped.items() if look.values.get(each.replace("-", "_")) != value]
    if not other:
        return look.check(name, "ok", evidence="no configuration file, and the shipped settings run")
    return look.check(
        name,
        "warn",
        loses="a start by hand, without the options that it was started with, has the shipped settings",
        fix="give it a configuration file, or keep its options in the unit or compose file",
        evidence=f"no configuration file; a start by hand gives {', '.join(other)}",
    )


def _eviction(look: Looked) -> Check:
    name = "maxmemory_policy"
    loses = "acknowledged checkpoints, without any crash, when maxmemory is reached"
    policy, limit = look.values.get(name, ""), look.values.get("maxmemory", "")
    if limit == "0":
        return look.check(name, "ok", evidence="maxmemory 0: no limit, nothing is evicted")
    evidence = f"maxmemory {limit or 'not read'}"
    if policy.startswith("noeviction"):
        return look.check(name, "ok", evidence=f"{evidence}: when it is reached, writes are refused")
    if policy.startswith("volatile-"):
        some = not look.values.get("expiry", "0").startswith("0")
        return look.check(name, "warn" if some else "ok", evidence=f"{evidence}: keys with an expiry are evicted")
    if not policy or not limit:
        which = name if not policy else "maxmemory"
        unread = look.not_read(which, depends=True, loses=loses)
        return Check(fact_id(name), unread.status, policy or None, None, loses, unread.fix, unread.evidence)
    return look.check(name, "fail", loses=loses, fix=look.set_to("maxmemory-policy", "noeviction"), evidence=evidence)


def _expiry(look: Looked) -> Check:
    name = "expiry"
    if not look.read(name):
        return look.not_read(name, depends=False)
    if look.values[name].startswith("0 "):
        return look.check(name, "ok")
    loses = "keys with an expiry are deleted without any crash; whether they are checkpoints, their writer knows"
    return look.check(name, "warn", loses=loses, fix="write checkpoints without EX, PX or EXPIRE")


def _last_write(look: Looked) -> Check:
    name = "last_write_status"
    logged = look.values.get("appendonly") == "yes"
    depends = look.server and logged
    loses = "what was acknowledged since the last good write to the log, when the server dies"
    if not look.read(name):
        return look.not_read(name, depends=look.missing(name) and depends, loses=loses)
    if look.values[name] == "ok":
        return look.check(name, "ok")
    fix = f"df -h $({look.cli} CONFIG GET dir | tail -1)  # make room; the server tries again by itself"
    return look.check(name, "fail" if depends else "warn", loses=loses, fix=fix)


def _status(look: Looked, name: str, loses: str) -> Check:
    if not look.read(name):
        return look.not_read(name, depends=False)
    if look.values[name] == "ok":
        return look.check(name, "ok")
    again = "BGREWRITEAOF" if name == "last_bgrewrite_status" else "BGSAVE"
    return look.check(name, "warn", loses=loses, fix=f"{look.cli} {again}  # after a look into the server's log")


def _replicas(look: Looked) -> Check:
    name = "replicas"
    if not look.read(name):
        return look.not_read(name, depends=False)
    clustered = look.values.get("cluster") == "1"
    if look.values[name] == "0" and not clustered:
        return look.check(name, "ok", evidence="none: there is nothing to wait for by WAIT")
    loses = (
        "where a replica is promoted, what it had not received; WAIT counts replicas that received, not that flushed"
    )
    return look.check(name, "warn", loses=loses, fix="WAITAOF 1 1 after a put asks one replica for a flush too")


def _role(look: Looked) -> Check:
    name = "role"
    loses = "a replica refuses writes, or drops its own at the next synchronisation"
    if not look.read(name):
        return look.not_read(name, depends=look.missing(name), loses=loses)
    if look.values[name] == "master":
        return look.check(name, "ok")
    return look.check(name, "fail", loses=loses, fix=f"{look.cli} INFO replication  # names the master; verify that")


def _loading(look: Looked) -> Check:
    name = "loading"
    if not look.read(name):
        return look.not_read(name, depends=False)
    return look.check(name, "ok" if look.values[name] == "0" else "warn")


def _directory(look: Looked) -> Check:
    """The folder's check: its value is the folder, what decides is the file system below it."""
    filesystem, options = look.values.get("filesystem"), look.values.get("mount_options", "").split(",")
    place = look.facts.get("directory")
    folder = place.value if place else ""
    origin = (look.facts["filesystem"].origin if filesystem else place.origin if place else "") or None
    if not filesystem:
        unread = look.not_read("filesystem", depends=filesystem is None and look.machine)
        return Check(fact_id("directory"), unread.status, folder or None, origin, None, unread.fix, unread.evidence)
    kept = promises.on_disk(look.values)
    fix = f"# put dir of {look.engine.name}.conf on a disk (in a container on a volume), then restart"
    value = f"{folder} ({filesystem})"
    if not kept.get(look.goal.survive, False):
        loses = f"{filesystem} with options {','.join(options)}: a flush reaches no drive; all goes with the machine"
        return Check(fact_id("directory"), "fail", value, origin, loses, fix)
    if filesystem in LAYERS:
        loses = "everything, with the container: its own layer is removed with it"
        return Check(fact_id("directory"), "warn", value, origin, loses, fix)
    if filesystem in REMOTE or filesystem.startswith("fuse"):
        loses = "a flush is what the other side makes of it"
        return Check(fact_id("directory"), "warn", value, origin, loses)
    return Check(fact_id("directory"), "ok", value, origin)


def _version(look: Looked) -> Check:
    name = "server_version"
    if not look.read(name):
        return look.not_read(name, depends=False)
    if look.values.get(WAITAOF) == "yes" and "valkey" in look.facts[name].origin:
        loses = "two seconds with the machine, if its WAITAOF answers before a flush, as Valkey 8.1.8 and 9.1.2 did"
        fix = look.set_to("appendfsync", "always")
        return look.check(name, "warn", loses=loses, fix=fix, evidence="--probe shows what this one does")
    return look.check(name, "ok")
