"""SQLite through Python's own ``sqlite3``: one database file, a table per namespace, an autocommitted put.

One file and not one per namespace, because only within a file is a transaction one commit (wal.html: with WAL, changes
"against multiple ATTACHed databases are atomic for each individual database, but are not atomic across all databases").
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from durabench_backends import place
from durabench_backends.contract import Command, Fact, Limit, NotReady, Promise, Setting, Store
from durabench_backends.embedded import allocated_bytes, mount_facts, on_mount, one_of, process_identity
from durabench_backends.sqlite import checks as judged
from durabench_backends.sqlite import look, sizes, watch
from durabench_backends.sqlite.promises import (
    DELETE_FULL,
    EXTRA,
    JOURNAL_MODES,
    NO_JOURNAL,
    OFF,
    SYNCHRONOUS,
    WAL_FULL,
    WAL_HEADER,
    WAL_NORMAL,
    promised,
)
from durabench_backends.sqlite.store import SqliteStore, table_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from durabench_backends.contract import Call, Check, Goal


class Sqlite:
    """A database file, ours below ``root`` or somebody's at ``sqlite:////abs.db?journal_mode=wal&synchronous=full``."""

    pages: ClassVar[Mapping[str, str]] = judged.PAGES
    probes: ClassVar[Sequence[str]] = place.probes("sqlite")
    limit: ClassVar[Limit] = Limit(
        1_000_000_000, 'sqlite.org/limits.html, SQLITE_MAX_LENGTH: "The default value of this macro is 1 billion"'
    )
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
        parts = (
            urlsplit(url) if url.lower().startswith("sqlite:////") else None
        )  # else nothing of it is looked at, or shown
        if parts is None:
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
        connection = sqlite3.connect(self._path, timeout=look.BUSY_TIMEOUT_S, isolation_level=None)
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

    def compact(self) -> str:
        """VACUUM: the database is written anew, without its free pages; closing then empties the log."""
        connection = self._connect()
        try:
            connection.execute("VACUUM")
        finally:
            connection.close()
        return "VACUUM"

    def sizes_bytes(self, within: str) -> Iterable[int]:
        """Of the rows of the table ``within``, or of all tables."""
        return sizes.sizes_bytes(self._path, within)

    def identity(self) -> str:
        return process_identity()

    def inspect(self) -> Iterable[Fact]:
        if why := look.why_no_database(self._path):
            raise NotReady(why)
        library = "the SQLite linked into this Python; another program may have another"
        bug = "present" if look.has_wal_reset_bug(sqlite3.sqlite_version_info) else "fixed"
        return [
            self._journal_mode_in_force(),
            self._synchronous_in_force(),
            *mount_facts("sqlite", self._path),
            *look.facts(self._path),
            Fact("sqlite.version", sqlite3.sqlite_version, library),
            Fact("sqlite.wal_reset_bug", bug, library),
            Fact("sqlite.compile_options", look.compile_options(), library),
        ]

    def _journal_mode_in_force(self) -> Fact:
        """Only WAL is stored in the file. In any other a connection that sets no journal mode gets SQLite's own,
        DELETE; one that sets another must be named by the URL, which then decides.
        """
        identifier = "sqlite.journal_mode"
        if look.in_wal_mode(self._path):
            if self._journal_mode in {None, "wal"}:
                return Fact(identifier, "wal", "database header")
            # A program that sets another mode takes the file out of WAL, and gets what it asked for.
            return Fact(identifier, self._journal_mode, f"{self._origin}, although the {WAL_HEADER}")
        empty = not self._path.stat().st_size
        if self._journal_mode is None:
            return Fact(identifier, "delete", "database header: not WAL; SQLite's own where the program sets none")
        if self._journal_mode == "wal" and not empty:
            return Fact(identifier, "rollback", f"database header: not WAL, although the {self._origin} says so")
        return Fact(identifier, self._journal_mode, self._origin)

    def _synchronous_in_force(self) -> Fact:
        """Each connection's own, never stored in the file; read back from one that touches no file."""
        if self._synchronous is None:
            return Fact("sqlite.synchronous", "", "", self._unsaid("how your program opens it", "synchronous"))
        connection = sqlite3.connect(":memory:")
        try:
            return Fact("sqlite.synchronous", _set_synchronous(connection, self._synchronous), self._origin)
        finally:
            connection.close()

    def _unsaid(self, what: str, parameter: str) -> str:
        """Why a fact that only the program knows is not known, and the line that mends it."""
        journal = self._journal_mode or ("wal" if look.in_wal_mode(self._path) else "delete")
        url = f"sqlite:///{quote(str(self._path.absolute()))}"
        query = f"journal_mode={journal}&synchronous={self._synchronous or 'full'}"
        return (
            f"the URL does not say {what}, and the file does not hold it: durabench verify '{url}?{query}'  "
            f"# {parameter} as your program sets it; or let us watch it: durabench verify '{url}' -- YOUR PROGRAM"
        )

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        values = {fact.id: fact.value for fact in facts if fact.value}  # what could not be read is as if not there
        promise = promised(values.get("sqlite.journal_mode", ""), values.get("sqlite.synchronous", ""))
        return on_mount(promise, "sqlite", values)

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        return judged.checks(facts, goal)

    def probe(self, goal: Goal) -> Iterable[Check]:
        return place.probe("sqlite", self._path.parent, goal)

    def writer_pids(self) -> Sequence[int]:
        return ()

    def watched(self, calls: Sequence[Call]) -> Iterable[Fact]:
        return watch.written(calls, self._path)


def _set_synchronous(connection: sqlite3.Connection, word: str) -> str:
    """Set it and return what the library made of it: a pragma that it does not understand is silently ignored."""
    connection.execute(f"PRAGMA synchronous = {word}")
    (number,) = connection.execute("PRAGMA synchronous").fetchone()
    if SYNCHRONOUS[number] != word:
        message = f"SQLite {sqlite3.sqlite_version} takes synchronous={word} for {SYNCHRONOUS[number]}"
        raise RuntimeError(message)
    return word
