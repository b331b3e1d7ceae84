"""One namespace as a table of the database: every statement is one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends.contract import check_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")


def table_name(namespace: str) -> str:
    """The namespace's table, quoted for SQL. Injective, although SQLite compares table names without case."""
    check_key(namespace)
    letters = (chr(byte) if chr(byte) in _PLAIN else f"%{byte:02x}" for byte in namespace.encode())
    return '"durabench_' + "".join(letters) + '"'


def _create_table(table: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {table} (key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL)"


def _upsert(table: str) -> str:
    return f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"  # noqa: S608


class SqliteStore:
    """One namespace of `Sqlite`: a table and a connection. Autocommit: every statement is one transaction."""

    def __init__(self, connection: sqlite3.Connection, namespace: str) -> None:
        self._connection = connection
        self._table = table_name(namespace)
        self._put = _upsert(self._table)
        connection.execute(_create_table(self._table))

    def put(self, key: str, value: bytes) -> None:
        check_key(key)
        self._connection.execute(self._put, (key, value))

    def put_many(self, values: Mapping[tuple[str, str], bytes]) -> None:
        for _, key in values:
            check_key(key)
        # A context manager that commits, or rolls back and raises.
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            for (namespace, key), value in values.items():
                table = table_name(namespace)
                if table != self._table:
                    self._connection.execute(_create_table(table))
                self._connection.execute(_upsert(table), (key, value))

    def put_if_absent(self, key: str, value: bytes) -> bool:
        check_key(key)
        statement = f"INSERT INTO {self._table} VALUES (?, ?) ON CONFLICT (key) DO NOTHING"  # noqa: S608 - our own quoted name
        return self._connection.execute(statement, (key, value)).rowcount == 1

    def get(self, key: str) -> bytes | None:
        check_key(key)
        statement = f"SELECT value FROM {self._table} WHERE key = ?"  # noqa: S608 - our own quoted name
        row = self._connection.execute(statement, (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def delete(self, key: str) -> None:
        check_key(key)
        self._connection.execute(f"DELETE FROM {self._table} WHERE key = ?", (key,))  # noqa: S608 - our own quoted name

    def keys(self) -> Iterable[str]:
        return [str(row[0]) for row in self._connection.execute(f"SELECT key FROM {self._table}")]  # noqa: S608 - as above

    def size_bytes(self) -> int:
        """Whole pages of the table and its index; without compile option DBSTAT_VTAB, the bytes of keys and values."""
        (counts,) = self._connection.execute("SELECT sqlite_compileoption_used('ENABLE_DBSTAT_VTAB')").fetchone()
        if counts:
            statement = (
                "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE aggregate = TRUE AND name IN "
                "(SELECT name FROM sqlite_master WHERE tbl_name = ?)"
            )
            row = self._connection.execute(statement, (self._table.strip('"'),)).fetchone()
        else:
            statement = f"SELECT coalesce(sum(length(CAST(key AS BLOB)) + length(value)), 0) FROM {self._table}"  # noqa: S608
            row = self._connection.execute(statement).fetchone()
        return int(row[0])

    def close(self) -> None:
        self._connection.close()
