"""Reads a server's settings in force, who set them, and its state: CONFIG GET and INFO, and never a write.

What a login may not read is told as unread, with the line that grants it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench_backends.contract import Fact
from durabench_backends.mounts import mount_of
from durabench_backends.redis import local, wire
from durabench_backends.redis.promises import (
    AS_RUNNING,
    AS_STARTED,
    CHANGED,
    SHIPPED,
    STARTING,
    UNCOUNTED,
    WAITAOF,
    fact_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from durabench_backends.redis.local import Written
    from durabench_backends.redis.wire import Connection

STATES = {
    "aof_last_write_status": "last_write_status",
    "aof_last_bgrewrite_status": "last_bgrewrite_status",
    "rdb_last_bgsave_status": "rdb_last_bgsave_status",
    "role": "role",
    "loading": "loading",
}
"""What INFO calls it, and what its fact is called."""
NO_FILE = "no configuration file"
ORDER_UNTOLD = "and which came last is not told from here"
SUBCOMMANDS_COUNTED = 7
"""Version from which on INFO commandstats tells CONFIG SET from CONFIG GET."""


class Server:
    """What one look at a server found, before it is told as facts."""

    def __init__(self, connection: Connection, at: Mapping[str, Any], options: Mapping[str, str] | None) -> None:
        """``options`` are those of a server of ours, which is started again with the same."""
        self.options = options
        self.user = str(at.get("username") or "default")
        self.database = int(at.get("db") or 0)
        names = [*SHIPPED, "dir"]
        asked = [[b"INFO"], [b"INFO", b"commandstats"], *([b"CONFIG", b"GET", name.encode()] for name in names)]
        about, statistics, *replies = wire.calls(connection, asked)
        self.info_refused = _refusal(about)
        self.info = {} if self.info_refused else wire.parsed(about)
        self.statistics = {} if _refusal(statistics) else wire.parsed(statistics)
        self.config_refused = _refusal(replies[0])
        self.config = dict(filter(None, (_config(name, reply) for name, reply in zip(names, replies, strict=True))))
        self.pid = local.server_pid(at, self.info) if options is None else None

    def count(self, command: str) -> int | None:
        """How often CONFIG SET, REWRITE… was called since the start; None where the server does not tell."""
        version = self.info.get("valkey_version") or self.info.get("redis_version", "0")
        if not self.statistics or int(version.partition(".")[0]) < SUBCOMMANDS_COUNTED:
            return None  # every CONFIG is counted as one
        if self.count_was_reset:
            return None
        told = self.statistics.get(f"cmdstat_config|{command}", "calls=0")
        return int(told.partition("calls=")[2].partition(",")[0])

    @property
    def count_was_reset(self) -> bool:
        """Whether CONFIG RESETSTAT, which is then the first to be counted again, removed the counts."""
        return "cmdstat_config|resetstat" in self.statistics

    def writes_first_log(self) -> bool:
        """Whether the log was switched on in the running server and a child still writes its first part."""
        busy = "1" in (self.info.get("aof_rewrite_in_progress"), self.info.get("aof_rewrite_scheduled"))
        started_so = self.count("set") == 0  # a log that was on from the start has a first part, empty
        on = self.info.get("aof_enabled") == "1"
        return on and busy and self.info.get("aof_base_size") == "0" and not started_so

    @property
    def file(self) -> str:
        """The configuration file, as the server tells it; empty for none."""
        return self.info.get("config_file", "")

    def unread_config(self) -> str:
        """Why CONFIG GET gave nothing, and what would."""
        if "unknown" in self.config_refused.lower():
            return "CONFIG is renamed or removed here, as managed services do; read it in the service's console"
        return f"this login may not read the configuration; ACL SETUSER {self.user} +config|get"

    def unread_info(self) -> str:
        """The same of INFO."""
        return f"this login may not ask for INFO; ACL SETUSER {self.user} +info"


def read(connection: Connection, at: Mapping[str, Any], options: Mapping[str, str] | None) -> list[Fact]:
    """Every fact of a server; ``options`` are those of one of ours, which runs where we do."""
    server = Server(connection, at, options)
    written, why = _written(server)
    return [
        *_settings(server, written),
        _config_rewrite(server, written, why),
        *_states(server),
        *_folder(server),
        *_version(server),
    ]


def _refusal(reply: object) -> str:
    return str(reply) or "refused" if isinstance(reply, Exception) else ""


def _config(name: str, reply: Any) -> tuple[str, str] | None:
    """A parameter as it was told; None where it was not."""
    if isinstance(reply, Exception):
        return None
    pairs = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    value = pairs.get(name.encode())
    return None if value is None else (name, value.decode("utf-8", "replace"))


def _settings(server: Server, written: Mapping[str, Written] | None) -> Iterator[Fact]:
    """What decides a promise, from CONFIG GET, or from what INFO tells of it."""
    for name in SHIPPED:
        told = name.replace("-", "_")
        if name == "appendonly" and server.writes_first_log():
            yield Fact(fact_id(name), STARTING, "INFO aof_rewrite_in_progress, aof_base_size")
        elif name in server.config:
            yield Fact(fact_id(name), server.config[name], _origin(server, name, written))
        elif name == "appendonly" and "aof_enabled" in server.info:
            yield Fact(fact_id(name), "yes" if server.info["aof_enabled"] == "1" else "no", "INFO aof_enabled")
        elif told in server.info:
            yield Fact(fact_id(name), server.info[told], f"INFO {told}")
        else:
            yield Fact(fact_id(name), "", "", server.unread_config())


def _origin(server: Server, name: str, written: Mapping[str, Written] | None) -> str:
    """Who set a value that CONFIG GET told."""
    if server.options is not None and name in server.options:
        return "command line"
    if written is None or name == "save":
        return f"CONFIG GET; {server.file or NO_FILE}"
    found = written.get(name)
    if found is None:
        same = server.config[name] == SHIPPED[name]
        return "default" if same else f"CONFIG SET or command line; not in {server.file}"
    same = server.config[name] == found.value
    return found.where if same else f"CONFIG SET or command line; {found.where} says {found.value}"


def _written(server: Server) -> tuple[Mapping[str, Written] | None, str]:
    """The written configuration, or why it could not be read."""
    if server.pid is None:
        return None, "the server is not on this machine, or not to be told from others; ask again where it runs"
    if not server.file:
        return None, NO_FILE
    try:
        return local.written(server.pid, server.file), ""
    except (OSError, ValueError) as error:
        return None, f"{server.file}: {type(error).__name__}; ask again as a user who may read it"


def _config_rewrite(server: Server, written: Mapping[str, Written] | None, why: str) -> Fact:
    """What a restart would make of the running configuration."""
    name = fact_id("config_rewrite")
    if server.options is not None:
        return Fact(name, AS_RUNNING, "command line")
    if not server.config:
        return Fact(name, "", "", server.unread_config())
    changes = server.count("set")
    if written is not None and server.pid is not None:
        return _compared(server, server.pid, written, changes)
    return _counted(server, why, changes)


def _counted(server: Server, why: str, changes: int | None) -> Fact:
    """The same where no written configuration could be read: what the counts of CONFIG SET and REWRITE tell."""
    name, rewrites = fact_id("config_rewrite"), server.count("rewrite")
    told = f"CONFIG SET was called {changes} times since the start, CONFIG REWRITE {rewrites or 'never'}"
    if changes and not rewrites:
        return Fact(name, CHANGED, f"{told}; {server.file or NO_FILE}")
    if changes and server.file:
        return Fact(name, "", "", f"{told} times, {ORDER_UNTOLD}; {why.partition('; ')[2]}")
    if not server.info or (server.file and changes != 0):
        return Fact(name, "", "", why)
    if server.count_was_reset:
        return Fact(name, UNCOUNTED, f"CONFIG RESETSTAT removed the count of CONFIG SET; {NO_FILE}")
    never = f"CONFIG SET was never called since the start; {server.file} was not read"
    return Fact(name, AS_STARTED, never if server.file else NO_FILE)


def _compared(server: Server, pid: int, written: Mapping[str, Written], changes: int | None) -> Fact:
    """The running configuration beside the written one."""
    name = fact_id("config_rewrite")
    differ = {}
    for parameter in SHIPPED:
        if parameter == "save" or parameter not in server.config:
            continue
        found = written[parameter].value if parameter in written else SHIPPED[parameter]
        if found != server.config[parameter]:
            differ[parameter] = found
    if not differ:
        return Fact(name, AS_RUNNING, server.file)
    if changes == 0 and not local.was_edited(pid, server.file, server.info):
        return Fact(name, AS_STARTED, f"command line; {server.file} says {_listed(differ)}")
    where = ", ".join(written[each].where if each in written else f"not in {server.file}" for each in differ)
    return Fact(name, _listed(differ), where)


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _states(server: Server) -> Iterator[Fact]:
    """What INFO tells of writing, replication and keys that expire."""
    for told, name in STATES.items():
        yield _of_info(server, name, server.info.get(told), f"INFO {told}")
    yield _of_info(server, "replicas", server.info.get("connected_slaves"), "INFO connected_slaves")
    yield _of_info(server, "cluster", server.info.get("cluster_enabled"), "INFO cluster_enabled")
    keys = dict(each.split("=", 1) for each in server.info.get(f"db{server.database}", "keys=0,expires=0").split(","))
    expiring = f"{keys.get('expires', '0')} of {keys.get('keys', '0')}" if server.info else None
    yield _of_info(server, "expiry", expiring, f"INFO keyspace, db{server.database}")


def _of_info(server: Server, name: str, value: str | None, origin: str) -> Fact:
    if value is None:
        return Fact(
            fact_id(name), "", "", server.unread_info() if not server.info else "this server's INFO has no such field"
        )
    return Fact(fact_id(name), value, origin)


def _folder(server: Server) -> Iterator[Fact]:
    """Where it writes, and what file system that is on."""
    folder = server.config.get("dir")
    if folder is None:
        yield Fact(fact_id("directory"), "", "", server.unread_config())
    else:
        yield Fact(fact_id("directory"), folder, "CONFIG GET dir")
    process = server.pid if server.options is None else "self"
    if process is None or folder is None:
        why = "the server is not on this machine, or not to be told from others; ask again where it runs"
        yield Fact(fact_id("filesystem"), "", "", server.unread_config() if folder is None else why)
        return
    mount, origin = mount_of(Path(folder), process), f"/proc/{process}/mountinfo for {folder}"
    yield Fact(fact_id("filesystem"), mount.filesystem, origin)
    yield Fact(fact_id("mount_options"), mount.options, origin)


def _version(server: Server) -> Iterator[Fact]:
    for name in ("valkey_version", "redis_version"):
        if name in server.info:
            yield Fact(fact_id("server_version"), server.info[name], f"INFO {name}")
            return
    yield Fact(fact_id("server_version"), "", "", server.unread_info())


def client(*, confirmed: bool) -> Fact:
    """What the writing client adds to a server's settings."""
    return Fact(fact_id(WAITAOF), "yes" if confirmed else "no", "client")
