"""The sizes of somebody's rows, in a transaction that may not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durabench_backends.postgres.session import Session

BATCH = 10_000
COLUMNS = (
    "SELECT quote_ident(a.attname), t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
    " WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped"
    " AND (t.typname IN ('bytea', 'json', 'jsonb') OR t.typcategory = 'S') ORDER BY a.attnum"
)
FOUND = "SELECT to_regclass($1)::text"


def sizes_bytes(session: Session, table: str) -> Iterator[int]:
    """Bytes of all bytea, text and JSON columns of each row together, as a client gets them. ValueError without a table
    of that name.
    """
    if not table:
        raise ValueError("which table? Write it behind a #: postgresql://host/database#checkpoints")
    session.run("BEGIN READ ONLY")
    found = session.rows(FOUND, table.encode())[0][0]
    if found is None:
        message = f"there is no table {table!r}, or this role may not see it"
        raise ValueError(message)
    columns = [_length(name or "", kind or "") for name, kind in session.rows(COLUMNS, found.encode())]
    if not columns:
        message = f"table {found} has no column of bytes, text or JSON"
        raise ValueError(message)
    total = " + ".join(columns)
    session.run(f"DECLARE sizes NO SCROLL CURSOR FOR SELECT {total} FROM {found}")  # noqa: S608 - names quoted by the server
    while rows := session.rows(f"FETCH {BATCH} FROM sizes"):
        yield from (int(row[0] or 0) for row in rows)
    session.run("ROLLBACK")


def _length(column: str, kind: str) -> str:
    """How many bytes a client gets of a column, as an expression."""
    return f"coalesce(octet_length({column}{'' if kind == 'bytea' else '::text'}), 0)"
