"""A namespace's table: an upsert per put, one prepared statement per operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from durabench_backends.contract import Refused, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from durabench_backends.postgres.session import Session

SCHEMA = "durabench"
"""Where tables live on a server of ours; on somebody's they carry the name as a prefix, in that role's own schema."""

IDENTIFIER_MAX_BYTES = 63
UNDEFINED_TABLE = "42P01"

MAKE = 'CREATE {persistence} TABLE IF NOT EXISTS {table} (key text COLLATE "C" PRIMARY KEY, value bytea NOT NULL)'
PUT = "INSERT INTO {table} VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
PUT_IF_ABSENT = "INSERT INTO {table} VALUES ($1, $2) ON CONFLICT (key) DO NOTHING"
GET = "SELECT value FROM {table} WHERE key = $1"
DELETE = "DELETE FROM {table} WHERE key = $1"
KEYS = "SELECT key FROM {table}"


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
        """A prepared statement over a namespace's table."""
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
    session.run(durably(f"SELECT pg_advisory_xact_lock(hashtext('{SCHEMA}')); {make}"))


def durably(statement: str) -> str:
    """A transaction that waits for its flush whatever the setting: a lost schema would look like a broken server."""
    return f"BEGIN; SET LOCAL synchronous_commit = on; {statement}; COMMIT"
