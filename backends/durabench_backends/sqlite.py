"""SQLite through Python's own ``sqlite3``: one database file, a table per namespace, an autocommitted put.

One file and not one per namespace, because only within a file is a transaction one commit (wal.html: with WAL, changes
"against multiple ATTACHed databases are atomic for each individual database, but are not atomic across all databases").
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from durabench_backends.contract import Command, Domain, Fact, NotReady, Promise, Setting, Store, check_key
from durabench_backends.embedded import allocated_bytes, mount_facts, on_mount, one_of, process_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

BUSY_TIMEOUT_S = 30.0
"""How long SQLite itself waits for another writer's lock before it gives up with SQLITE_BUSY."""

ROLLBACK_MODES = ("delete", "truncate", "persist")
JOURNAL_MODES = (*ROLLBACK_MODES, "memory", "wal", "off")
SYNCHRONOUS = ("off", "normal", "full", "extra")  # the position is the number that the pragma reads back

WAL_RESET_FIXES = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
"""First versions of their branches without the lost-commit race of wal.html, *The WAL-Reset Bug* (since 3.7.0)."""

_DIED = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0, Domain.SERVER: 0.0}
_DURABLE = _DIED | {Domain.MACHINE: 0.0, Domain.DRIVE: 0.0}
_PRAGMA = "sqlite.org/pragma.html#pragma_synchronous"

EXTRA = Promise(
    _DURABLE,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, EXTRA: "like FULL with the addition that the directory containing a rollback journal is synced after '
    'that journal is unlinked to commit a transaction in DELETE mode"',
)
DELETE_FULL = Promise(
    _DIED,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, FULL: "an operating system crash or power failure will not corrupt the database"; EXTRA: "provides '
    'additional durability if the commit is followed closely by a power loss"',
)
ROLLBACK_FULL = Promise(
    _DURABLE,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, FULL: "all content is safely written to the disk surface prior to continuing"; what EXTRA adds is for '
    "DELETE mode only",
)
WAL_FULL = Promise(
    _DURABLE,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}: "With synchronous=FULL in WAL mode, an additional sync operation of the WAL file happens after each '
    "transaction commit. The extra WAL sync following each transaction helps ensure that transactions are durable "
    'across a power loss"',
)
WAL_NORMAL = Promise(
    _DIED,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, NORMAL: "WAL mode is always consistent with synchronous=NORMAL, but WAL mode does lose durability"; '
    '"Transactions are durable across application crashes regardless of the synchronous setting or journal mode"',
)
ROLLBACK_NORMAL = Promise(
    _DIED,
    Domain.SERVER,
    Domain.SERVER,
    f'{_PRAGMA}, NORMAL: "There is a very small (though non-zero) chance that a power failure at just the wrong time '
    'could corrupt the database in journal_mode=DELETE on an older filesystem"',
)
OFF = Promise(
    _DIED,
    Domain.SERVER,
    Domain.SERVER,
    f'{_PRAGMA}, OFF: "If the application running SQLite crashes, the data will be safe, but the database might become '
    'corrupted if the operating system crashes or the computer loses power"',
)
NO_JOURNAL = Promise(
    {Domain.NOTHING: 0.0},
    None,
    None,
    'sqlite.org/pragma.html#pragma_journal_mode, MEMORY and OFF: "If the application crashes in the middle of a '
    'transaction … the database file will very likely go corrupt"; an unknown mode may be one of them',
)

PROMISES: dict[tuple[str, str], Promise] = {
    ("delete", "normal"): ROLLBACK_NORMAL,
    ("delete", "full"): DELETE_FULL,
    ("delete", "extra"): EXTRA,
    ("truncate", "normal"): ROLLBACK_NORMAL,
    ("truncate", "full"): ROLLBACK_FULL,
    ("truncate", "extra"): EXTRA,
    ("persist", "normal"): ROLLBACK_NORMAL,
    ("persist", "full"): ROLLBACK_FULL,
    ("persist", "extra"): EXTRA,
    ("wal", "normal"): WAL_NORMAL,
    ("wal", "full"): WAL_FULL,
    ("wal", "extra"): WAL_FULL,
}
"""By (journal_mode, synchronous). With a journal and any other synchronous it is that of OFF, else NO_JOURNAL."""


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


class Sqlite:
    """A database file, ours below ``root`` or somebody's at ``sqlite:////abs.db?journal_mode=wal&synchronous=full``."""

    settings: ClassVar[Sequence[Setting]] = tuple(
        Setting(name, {"journal_mode": journal, "synchronous": synchronous}, promise)
        for name, journal, synchronous, promise in (
            ("delete-full", "delete", "full", DELETE_FULL),
            ("delete-extra", "delete", "extra", EXTRA),
            ("wal-full", "wal", "full", WAL_FULL),
            ("wal-normal", "wal", "normal", WAL_NORMAL),
            ("off", "delete", "off", OFF),
        )
    )

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        del port
        self.setting = setting
        self._path = root / "checkpoints.db"
        self._journal_mode = setting.options.get("journal_mode")
        self._synchronous = setting.options.get("synchronous")
        self._ours = True
        self._origin = "setting, by each connection when it opens"

    @classmethod
    def from_url(cls, url: str) -> Sqlite:
        parts = urlsplit(url)
        if parts.scheme != "sqlite" or parts.netloc or not parts.path.startswith("//"):
            raise ValueError("a SQLite URL has four slashes and an absolute path: sqlite:////abs.db?journal_mode=wal")
        known = {"journal_mode": JOURNAL_MODES, "synchronous": SYNCHRONOUS}
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            one_of(tuple(known), name, "parameter")
            word = SYNCHRONOUS[int(value)] if name == "synchronous" and value in {"0", "1", "2", "3"} else value.lower()
            options[name] = one_of(known[name], word, name)
        backend = cls(Setting("live", options, NO_JOURNAL), Path("/"), lambda _: 0)
        backend._path, backend._ours, backend._origin = Path(unquote(parts.path[1:])), False, "URL"
        return backend

    def commands(self) -> Sequence[Command]:
        return ()

    def create(self) -> None:
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        self._connect().close()

    def open(self, namespace: str) -> Store:
        connection = self._connect()
        try:
            return SqliteStore(connection, namespace)
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        """As a program of that setting connects; recovery after a crash is SQLite's own, at the first statement."""
        # isolation_level=None is autocommit: without it Python holds a transaction open that no put would commit.
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._apply(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _apply(self, connection: sqlite3.Connection) -> None:
        if self._synchronous is not None:  # first, so that a switch to WAL is already written under it
            _set_synchronous(connection, self._synchronous)
        if self._journal_mode is None:
            return
        if not self._ours:
            self._refuse_to_switch(connection)
        (mode,) = connection.execute(f"PRAGMA journal_mode = {self._journal_mode}").fetchone()
        if mode != self._journal_mode:
            message = f"{self._path}: SQLite stays in journal mode {mode}, {self._journal_mode} was asked for"
            raise RuntimeError(message)

    def _refuse_to_switch(self, connection: sqlite3.Connection) -> None:
        """ValueError where the URL would change a property of somebody's file, which WAL is for all who use it."""
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if pages and (mode == "wal") != (self._journal_mode == "wal"):
            stored = "WAL" if mode == "wal" else "a rollback journal"
            message = f"{self._path} has {stored}, the URL says journal_mode={self._journal_mode}"
            raise ValueError(message)

    def drop(self, namespace: str) -> None:
        if not self._path.exists():
            return
        connection = self._connect()
        try:
            connection.execute(f"DROP TABLE IF EXISTS {table_name(namespace)}")
        finally:
            connection.close()

    def size_bytes(self) -> int:
        return allocated_bytes(Path(f"{self._path}{suffix}") for suffix in ("", "-wal", "-shm", "-journal"))

    def identity(self) -> str:
        return process_identity()

    def inspect(self) -> Iterable[Fact]:
        if not self._path.is_file():
            message = f"{self._path} does not exist"
            raise NotReady(message)
        stored = "wal" if _in_wal_mode(self._path) else "rollback"
        library = "the SQLite linked into this Python; another program may have another"
        return [
            Fact("sqlite.journal_mode", *self._journal_mode_in_force(stored)),
            Fact("sqlite.synchronous", *self._synchronous_in_force()),
            *mount_facts("sqlite", self._path),
            Fact("sqlite.version", sqlite3.sqlite_version, library),
            Fact(
                "sqlite.wal_reset_bug",
                "present" if has_wal_reset_bug(sqlite3.sqlite_version_info) else "fixed",
                library,
            ),
            Fact("sqlite.compile_options", _compile_options(), library),
        ]

    def _journal_mode_in_force(self, stored: str) -> tuple[str, str]:
        """(value, origin). Only WAL is stored in the file; which rollback journal is used, each connection decides."""
        if stored == "wal":
            return "wal", "database header"
        if self._journal_mode in {None, "wal"}:
            return "unknown", "database header: not WAL; which rollback journal is up to each connection"
        return str(self._journal_mode), self._origin

    def _synchronous_in_force(self) -> tuple[str, str]:
        """(value, origin). Each connection's own, never stored in the file; read back from one that touches no file."""
        if self._synchronous is None:
            return "unknown", "not in the URL; each connection's own"
        connection = sqlite3.connect(":memory:")
        try:
            return _set_synchronous(connection, self._synchronous), self._origin
        finally:
            connection.close()

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        values = {fact.id: fact.value for fact in facts}
        journal, synchronous = values.get("sqlite.journal_mode", ""), values.get("sqlite.synchronous", "")
        journaled = journal in {*ROLLBACK_MODES, "wal"}
        promise = PROMISES.get((journal, synchronous), OFF if journaled else NO_JOURNAL)
        return on_mount(promise, "sqlite", values)


def _set_synchronous(connection: sqlite3.Connection, word: str) -> str:
    """Set it and return what the library made of it: a pragma that it does not understand is silently ignored."""
    connection.execute(f"PRAGMA synchronous = {word}")
    (number,) = connection.execute("PRAGMA synchronous").fetchone()
    if SYNCHRONOUS[number] != word:
        message = f"SQLite {sqlite3.sqlite_version} takes synchronous={word} for {SYNCHRONOUS[number]}"
        raise RuntimeError(message)
    return word


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether that version of SQLite has the WAL-reset bug."""
    fixed_on_branch = any(version[:2] == fix[:2] and version >= fix for fix in WAL_RESET_FIXES)
    return version >= (3, 7, 0) and version < WAL_RESET_FIXES[-1] and not fixed_on_branch


def _in_wal_mode(path: Path) -> bool:
    """Whether the file's header says WAL (fileformat2.html, *The Database Header*, offset 18: 2 is WAL).

    A connection with ``mode=ro`` would not do: it makes ``-wal`` and ``-shm`` files beside a WAL database, fails on a
    hot journal, and with ``immutable=1`` it answers ``delete`` for any file. But a process that has the database open
    must not open and close the file by itself: closing any descriptor drops all POSIX locks of the process on the file
    (howtocorrupt.html, section 2.2). There, SQLite is asked; its files exist already.
    """
    if _is_open_here(path):
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            return bool(connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal")
        finally:
            connection.close()
    with path.open("rb") as file:
        header = file.read(20)
    return len(header) == 20 and header[18] == 2


def _is_open_here(path: Path) -> bool:
    wanted = path.stat()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found = descriptor.stat()
        except FileNotFoundError:  # the listing's own descriptor
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


def _compile_options() -> str:
    connection = sqlite3.connect(":memory:")
    try:
        return " ".join(row[0] for row in connection.execute("PRAGMA compile_options"))
    finally:
        connection.close()
