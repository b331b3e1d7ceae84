"""SQLite through Python's own ``sqlite3``: the adapter, its promises, and what a live file means for a goal."""

from durabench_backends.sqlite.adapter import Sqlite
from durabench_backends.sqlite.look import has_wal_reset_bug
from durabench_backends.sqlite.promises import (
    DELETE_FULL,
    EXTRA,
    NO_JOURNAL,
    OFF,
    ROLLBACK_FULL,
    ROLLBACK_NORMAL,
    SYNCHRONOUS,
    WAL_FULL,
    WAL_NORMAL,
)
from durabench_backends.sqlite.store import SqliteStore

__all__ = [
    "DELETE_FULL",
    "EXTRA",
    "NO_JOURNAL",
    "OFF",
    "ROLLBACK_FULL",
    "ROLLBACK_NORMAL",
    "SYNCHRONOUS",
    "WAL_FULL",
    "WAL_NORMAL",
    "Sqlite",
    "SqliteStore",
    "has_wal_reset_bug",
]
