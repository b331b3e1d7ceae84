"""Whether a server runs on this very machine, which of its processes is the main one, and on which file system it is.

A loopback address proves nothing: a tunnel or a container answers there too. The server's word for its process and for
two start times must fit what this machine's /proc says.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends.contract import Domain, Fact, Promise, Refused
from durabench_backends.embedded import mount_facts, on_mount, start_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_backends.postgres.session import Session

CLOCKS_S = 2.0
"""How far two clocks' words for one moment may lie apart: /proc counts ticks, a server microseconds."""
LATE_S = 60.0
"""A main process notes its start once it listens; with much shared memory that takes a while."""

MOUNT_FACTS = ("filesystem", "mount_options", "write_cache")
ELSEWHERE = "the server does not run on this machine, or not where this login can see its processes"
DATA = "this login may not ask for the data directory: GRANT pg_read_all_settings TO {role}"

WHO = (
    "SELECT pg_catalog.pg_backend_pid(), extract(epoch FROM pg_catalog.pg_postmaster_start_time()),"
    " extract(epoch FROM backend_start) FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()"
)


def postmaster(session: Session) -> int | None:
    """The main process of the server of ``session``; None unless it is certain that it runs on this machine."""
    if not session.from_here:
        return None
    try:
        rows = session.rows(WHO)
    except Refused:
        return None
    if not rows or None in rows[0]:
        return None
    backend, main_s, backend_s = int(rows[0][0] or 0), float(rows[0][1] or 0), float(rows[0][2] or 0)
    main = _parent(backend)
    if main is None:
        return None
    began = [_began_s(backend), _began_s(main)]
    if began[0] is None or began[1] is None:
        return None
    same = abs(began[0] - backend_s) <= CLOCKS_S and -CLOCKS_S <= main_s - began[1] <= LATE_S
    return main if same else None


def _began_s(pid: int) -> float | None:
    """When a process of this machine began, in seconds since 1970; None if it is gone."""
    ticks = start_time(pid)
    if ticks is None:
        return None
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s + int(ticks) / os.sysconf("SC_CLK_TCK")


def _parent(pid: int) -> int | None:
    """The parent of a process that is a PostgreSQL's by its name; None for any other and for none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = line.partition("(")[2].rpartition(")")
    return int(rest.split()[1]) if name.startswith(("postgres", "postmaster", "edb-postgres")) else None


def mounts(session: Session, main: int | None, role: str) -> Sequence[Fact]:
    """File system, mount options and write cache below the data directory, or below its log or a tablespace where that
    is weaker.
    """
    if main is None:
        return _unread(ELSEWHERE)
    folder = _data_directory(session, main)
    if folder is None:
        return _unread(DATA.format(role=role))
    try:
        places = dict.fromkeys((folder, _log(folder), *_tablespaces(session)))
        found = [mount_facts("postgres", path, main) for path in places]
    except OSError as error:
        return _unread(f"{folder} cannot be looked at from here: {error.strerror}")
    return min(found, key=_reach)


def _reach(facts: Sequence[Fact]) -> Domain:
    """The last domain in which a mount keeps what was flushed to it."""
    ideal = Promise({Domain.DRIVE: 0.0}, Domain.DRIVE, None, "")
    return on_mount(ideal, "postgres", {fact.id: fact.value for fact in facts}).atomic or Domain.NOTHING


def _log(folder: Path) -> Path:
    """Where the write-ahead log is; the data directory itself where it may not be entered."""
    try:
        return folder / (folder / "pg_wal").readlink()
    except OSError:
        return folder


def _tablespaces(session: Session) -> list[Path]:
    """Where the other tablespaces are; 22.6: one on a RAM disk "risks the reliability of the entire cluster"."""
    try:
        rows = session.rows("SELECT pg_catalog.pg_tablespace_location(oid) FROM pg_catalog.pg_tablespace ORDER BY oid")
    except Refused:
        return []
    return [Path(row[0]) for row in rows if row[0] and row[0].startswith("/")]


def _data_directory(session: Session, main: int) -> Path | None:
    """Where the main process stands, which is its data directory; else where the server says that this is."""
    try:
        return Path(f"/proc/{main}/cwd").readlink()
    except OSError:
        pass  # another user's process
    try:
        told = session.rows("SELECT pg_catalog.current_setting('data_directory')")[0][0]
    except Refused:
        return None  # a right that superusers and pg_read_all_settings have
    return Path(os.path.realpath(told or "/"))


def _unread(why: str) -> Sequence[Fact]:
    return [Fact(f"postgres.{name}", "", "", why) for name in MOUNT_FACTS]
