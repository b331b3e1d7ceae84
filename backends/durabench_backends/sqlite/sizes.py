"""The sizes of somebody's values in a database file, read without changing it or anything beside it."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends.sqlite.look import why_no_database

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WAITING = ("-wal", "-journal")
"""What a program that opens the file would write into it."""


def sizes_bytes(path: Path, within: str) -> Iterable[int]:
    """Bytes of all BLOB and TEXT columns of each row together; of the table ``within``, or of all. ValueError where
    there is no such table, or no database.
    """
    why = why_no_database(path)
    if why is not None:
        raise ValueError(why)
    with _untouched(path) as connection:
        every = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = [name for name in every if not name.startswith("sqlite_")]
        if within and within not in tables:
            message = f"{path} has no table {within!r}; it has {', '.join(sorted(tables)) or 'none'}"
            raise ValueError(message)
        for table in [within] if within else tables:
            yield from _rows(connection, table)


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[int]:
    quoted = table.replace('"', '""')
    columns = [row[1].replace('"', '""') for row in connection.execute(f'PRAGMA table_xinfo("{quoted}")')]
    lengths = " + ".join(
        f"CASE WHEN typeof(\"{name}\") IN ('blob', 'text') THEN length(CAST(\"{name}\" AS BLOB)) ELSE 0 END"
        for name in columns
    )
    for (size,) in connection.execute(f'SELECT {lengths} FROM "{quoted}"'):  # noqa: S608 - names of that database, quoted
        yield int(size)


@contextmanager
def _untouched(path: Path) -> Iterator[sqlite3.Connection]:
    """The file itself where nothing waits beside it to be recovered, else a copy: to open it would write.

    ``immutable=1`` makes no -shm file and takes no lock, but it is blind to a log; without one there is none to see.
    """
    waiting = [Path(f"{path}{suffix}") for suffix in WAITING]
    if not any(one.exists() and one.stat().st_size for one in waiting):
        with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
            yield connection
        return
    with tempfile.TemporaryDirectory(prefix="durabench-") as folder:
        copy = Path(folder) / path.name
        for one in (path, *waiting):
            if one.exists():
                shutil.copyfile(one, copy.with_name(one.name))
        with closing(sqlite3.connect(copy)) as connection:
            yield connection
