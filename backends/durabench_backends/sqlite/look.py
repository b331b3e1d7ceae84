"""What a database file tells without being opened by SQLite: journal mode, sidecars, what waits for recovery."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends.contract import Fact
from durabench_backends.sqlite.promises import WAL_RESET_FIXES

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY_TIMEOUT_S = 30.0
"""How long SQLite itself waits for another writer's lock before it gives up with SQLITE_BUSY."""
MAGIC = b"SQLite format 3\0"
SIDECARS = ("-wal", "-shm", "-journal")
WAL_HEADER_BYTES = 32
RESERVED_BYTE = 0x40000001
"""A writer holds a lock on it from before its journal exists until after it is gone (fileformat2.html, *lock-byte
page*; os.h).
"""
SHARED_BYTES = (0x40000002, 510)
"""Every connection to a WAL database holds a lock on some of them as long as it is open (src/pager.c)."""
DEADMAN_BYTE = 128
"""Of the -shm file: every connection to a WAL database holds a lock on it (walformat.html, *WAL locks*)."""
JOURNAL_HEADER_BYTES = 28


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether that version of SQLite has the WAL-reset bug."""
    fixed_on_branch = any(version[:2] == fix[:2] and version >= fix for fix in WAL_RESET_FIXES)
    return version >= (3, 7, 0) and version < WAL_RESET_FIXES[-1] and not fixed_on_branch


def in_wal_mode(path: Path) -> bool:
    """Whether the file's header says WAL (fileformat2.html, *The Database Header*, offset 18: 2 is WAL).

    A connection with ``mode=ro`` would not do: it makes ``-wal`` and ``-shm`` files beside a WAL database, fails on a
    hot journal, and with ``immutable=1`` it answers ``delete`` for any file. But a process that has the database open
    must not open and close the file by itself: closing any descriptor drops all POSIX locks of the process on the file
    (howtocorrupt.html, section 2.2). There, SQLite is asked; its files exist already.
    """
    if is_open_here(path):
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            return bool(connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal")
        finally:
            connection.close()
    with path.open("rb") as file:
        header = file.read(20)
    return len(header) == 20 and header[18] == 2


def is_open_here(path: Path) -> bool:
    wanted = path.stat()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found = descriptor.stat()
        except FileNotFoundError:  # the listing's own descriptor
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


def compile_options() -> str:
    connection = sqlite3.connect(":memory:")
    try:
        return " ".join(row[0] for row in connection.execute("PRAGMA compile_options"))
    finally:
        connection.close()


def why_no_database(path: Path) -> str | None:
    """Why ``path`` cannot be looked at as a database; None where it can (an empty file is a new one)."""
    if path.is_dir():
        return f"{path} is a directory, not a database"
    if not path.is_file():
        return f"{path} does not exist"
    if is_open_here(path):
        return None
    with path.open("rb") as file:
        begins = file.read(len(MAGIC))
    return None if begins in {b"", MAGIC} else f"{path} is not a SQLite database (or an encrypted one)"


def facts(path: Path) -> list[Fact]:
    """``sqlite.sidecars``, ``sqlite.hot_journal``, ``sqlite.unrecovered_wal``: without a lock and without a write."""
    sidecars = {name: size for name in SIDECARS if (size := _size_bytes(Path(f"{path}{name}"))) is not None}
    listed = ", ".join(f"{path.name}{name} ({size} bytes)" for name, size in sidecars.items())
    origin = f"beside {path}"
    return [
        Fact("sqlite.sidecars", listed or "none", origin),
        _waiting("sqlite.hot_journal", path, "-journal", _has_hot_journal),
        _waiting("sqlite.unrecovered_wal", path, "-wal", _has_unrecovered_wal),
    ]


def _size_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _waiting(identifier: str, path: Path, suffix: str, look: Callable[[Path], bool]) -> Fact:
    """Whether something beside the database waits to be recovered by the next program that opens it."""
    if is_open_here(path):
        # To open and close it once more would drop this process's own locks (see `in_wal_mode`).
        return Fact(identifier, "", "", "this process has the database open")
    try:
        return Fact(identifier, "yes" if look(path) else "no", f"{path}{suffix}")
    except PermissionError as error:
        return Fact(identifier, "", "", f"{error.filename} is not readable for this user: chmod a+r {error.filename}")
    except FileNotFoundError:
        return Fact(identifier, "no", f"{path}{suffix}")  # it went while we looked: somebody is at work


def _has_hot_journal(path: Path) -> bool:
    """lockingv3.html, *Hot journals*: there, not zeroed, and nobody holds a RESERVED lock on the database.

    A live writer may end one transaction and begin the next between two looks. So the journal must be there, with the
    same header, before and after the lock is asked for: each transaction draws a number of its own for it
    (fileformat2.html, *The Rollback Journal*, offset 12).
    """
    if not path.stat().st_size:
        return False
    with Path(f"{path}-journal").open("rb") as journal:
        before = _header(journal.fileno())
        return before != b"" and not _is_locked(path, RESERVED_BYTE) and _header(journal.fileno()) == before


def _header(journal: int) -> bytes:
    """The header of an open journal; empty where that is unlinked, truncated or zeroed: its transaction is done."""
    found = os.pread(journal, JOURNAL_HEADER_BYTES, 0)
    return found if os.fstat(journal).st_nlink and found[:1] != b"\0" else b""


def _has_unrecovered_wal(path: Path) -> bool:
    """Frames in the WAL, and no connection to the database: who wrote them died, or its files were copied.

    A connection holds a lock on the database from before it has a WAL until after it has removed it; the -shm file goes
    first. The same WAL is there before and after the lock is asked for, so it is not one that just came or went.
    """
    shm = Path(f"{path}-shm")
    with Path(f"{path}-wal").open("rb") as wal:
        if os.fstat(wal.fileno()).st_size <= WAL_HEADER_BYTES or _is_locked(path, *SHARED_BYTES):
            return False
        with contextlib.suppress(FileNotFoundError):
            if is_open_here(shm) or _is_locked(shm, DEADMAN_BYTE):
                return False
        return os.fstat(wal.fileno()).st_nlink > 0


def _is_locked(path: Path, byte: int, size: int = 1) -> bool:
    """Whether another process holds a lock on one of those bytes; asks only (fcntl(2), F_GETLK), and takes none."""
    with path.open("rb") as file:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, size, 0)
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return bool(answer[0] != fcntl.F_UNLCK)
