"""Proof by behaviour that a commit is flushed before it is acknowledged, in a table of the probe's own.

The flushed position of the log, read right after COMMIT, is compared with the position before it. One commit that is
behind proves that commits do not wait. Never behind proves nothing on a busy server, whose other commits flush this
one along; so the opposite setting takes turns with the login's own, as the control that must be seen behind.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from durabench_backends.contract import Check, Domain, Refused
from durabench_backends.postgres.facts import ROLE, Reader, pooling
from durabench_backends.postgres.pages import COMMIT_LATENCY, PROBES, WAL_FLUSH
from durabench_backends.postgres.promises import NONE, SYNCHRONOUS, risk_window_s
from durabench_backends.postgres.session import went_away

if TYPE_CHECKING:
    from collections.abc import Callable

    from durabench_backends.contract import Goal, Status
    from durabench_backends.postgres.session import Session

STATEMENT_TIMEOUT_S = 4.0
"""A commit that takes longer waits for something that is not there."""
MEASURE_S = 3.0
PAIRS_ENOUGH, PAIRS_AT_MOST = 100, 1000
RECORD_BYTES = 2048
"""As much as a checkpoint's metadata."""
BEHIND_ENOUGH = 7
"""So many controls behind of n: had the login's own commits been like them, none behind in n has a chance of e⁻⁷."""

PREFIX = "durabench_probe_"
MARK = "made by durabench verify --probe, which removes it"
LOCK = "1685418593, pg_catalog.hashtext('{name}')"
"""An advisory lock that a living probe holds, so that its table is told from one that was left behind."""

FORSAKEN = """
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relname ~ $1 AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
AND pg_catalog.obj_description(c.oid, 'pg_class') = $2"""
"""Tables that a probe made, by name, owner and comment."""

PLACE = """
SELECT pg_catalog.quote_ident(s) FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) s
WHERE pg_catalog.has_schema_privilege(s, 'CREATE') LIMIT 1"""
"""The first schema on this login's path in which it may make a table."""

LOCALLY = "BEGIN READ WRITE; SET LOCAL synchronous_commit = local; SET LOCAL lock_timeout = '2s'; {}; COMMIT"
"""Durable here, and without waiting for a standby that may not be there."""
RECORD = "INSERT INTO {table} VALUES (pg_catalog.repeat('x', {size}))"
MESSAGE = "SELECT pg_catalog.pg_logical_emit_message(true, 'durabench', pg_catalog.repeat('x', {size}))"
ROUND = (
    "BEGIN READ WRITE; {setting}{write}; SELECT pg_catalog.pg_current_wal_insert_lsn(); COMMIT;"
    " SELECT pg_catalog.pg_current_wal_flush_lsn()"
)
"""In one message, so that nothing passes between COMMIT and the look at what is flushed.

The position before COMMIT is not behind the commit's own record, whoever else writes: a commit that was waited for
flushes past it.
"""


class Arm:
    """Commits under one value of synchronous_commit: how many were behind, and how long each took."""

    def __init__(self, value: str, statement: str) -> None:
        self.value = value
        self.waits = value in SYNCHRONOUS
        self._statement = statement
        self.behind = 0
        self.latency_ns: list[int] = []
        self.at = 0

    def commit(self, session: Session) -> None:
        """One commit, and whether it was flushed when COMMIT had returned."""
        began = time.perf_counter_ns()
        rows = [result[0][0] for result in session.script(self._statement) if result]
        self.latency_ns.append(time.perf_counter_ns() - began)
        self.at, flushed = _position(rows[-2]), _position(rows[-1])
        self.behind += flushed < self.at

    def __str__(self) -> str:
        return f"{self.behind} of {len(self.latency_ns)} behind with {self.value}"


class Seen(NamedTuple):
    """What the probe saw: the login's own commits, the control's, and what it wrote."""

    own: Arm
    control: Arm
    flushes: bool
    window_s: float | None
    wrote: str
    fix: str


def probe(connect: Callable[[], Session], goal: Goal) -> list[Check]:
    """Both checks. A commit that does not return is told as such; what the login may not do is named with its GRANT."""
    with connect() as session:
        role = session.rows(ROLE)[0][0] or ""
        if session.rows("SELECT pg_catalog.pg_is_in_recovery()")[0][0] == "t":
            return _both("skip", "a standby takes no writes", "probe the primary")
        pooler = pooling(Reader(session, connect, role))[1].value
        removed = _remove_forsaken(session)
        table = _make_table(session, lock=pooler in (NONE, "session"))
        try:
            seen = _measure(session, table, removed, f"ALTER ROLE {role} SET synchronous_commit = on;")
        except Refused as error:
            return _both(
                "unknown", f"the login may write nothing: {error}", f"GRANT CREATE ON SCHEMA public TO {role};"
            )
        except TimeoutError:
            return _both(
                "unknown",
                f"COMMIT did not return within {STATEMENT_TIMEOUT_S:g} s: it waits, as for a standby that is not there",
                "see postgres.synchronous_standby_names",
            )
        finally:
            if table is not None:
                _drop(session, connect, table)
    return [_wal_flush(seen, goal), _commit_latency(seen)]


def _both(status: Status, evidence: str, fix: str) -> list[Check]:
    return [Check(name, status, fix=fix, evidence=evidence) for name in PROBES]


def _remove_forsaken(session: Session) -> int:
    """Drop the tables that killed probes left, and say how many; those of living ones stay."""
    removed = 0
    for table, name in session.rows(FORSAKEN, f"^{PREFIX}[0-9a-f]{{16}}$".encode(), MARK.encode()):
        unless_alive = f"SET LOCAL lock_timeout = '100ms'; SELECT pg_catalog.pg_advisory_xact_lock({LOCK})"
        drop = f"{unless_alive.format(name=name)}; DROP TABLE IF EXISTS {table}"
        try:
            session.run(LOCALLY.format(drop))
            removed += 1
        except Refused:
            session.run("ROLLBACK")
    return removed


def _drop(session: Session, connect: Callable[[], Session], table: str) -> None:
    """Remove the probe's table, over a new connection where the first is of no more use."""
    drop = f"ROLLBACK; {LOCALLY.format(f'DROP TABLE IF EXISTS {table}')}"
    try:
        session.run(drop)
    except Exception as error:
        if not went_away(error):
            raise
        with connect() as cleaner:
            cleaner.run(drop)


def _make_table(session: Session, *, lock: bool) -> str | None:
    """The probe's table, where the login may make one. A lock of the session's means nothing behind a pooler."""
    schema = session.rows(PLACE)
    if not schema:
        return None
    name = PREFIX + secrets.token_hex(8)
    table = f"{schema[0][0]}.{name}"
    if lock:
        session.rows(f"SELECT pg_catalog.pg_try_advisory_lock({LOCK.format(name=name)})")
    make = f"CREATE TABLE {table} (record text NOT NULL); COMMENT ON TABLE {table} IS '{MARK}'"
    try:
        session.run(LOCALLY.format(make))
    except Refused:
        session.run("ROLLBACK")
        return None
    return table


def _measure(session: Session, table: str | None, removed: int, fix: str) -> Seen:
    """The login's own commits and the control's, taking turns until the asynchronous ones were behind often enough."""
    value, fsync, delay = session.rows(
        "SELECT pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('fsync'),"
        " pg_catalog.current_setting('wal_writer_delay')"
    )[0]
    write = (MESSAGE if table is None else RECORD).format(table=table, size=RECORD_BYTES)
    own = Arm(value or "", ROUND.format(setting="", write=write))
    opposite = "off" if own.waits else "local"
    setting = f"SET LOCAL synchronous_commit = {opposite}; "
    control = Arm(opposite, ROUND.format(setting=setting, write=write))
    hasty = control if own.waits else own
    end, first = time.monotonic() + MEASURE_S, 0
    for pair in range(PAIRS_AT_MOST):
        if (pair >= PAIRS_ENOUGH and hasty.behind >= BEHIND_ENOUGH) or (pair and time.monotonic() > end):
            break
        own.commit(session)
        first = first or own.at
        control.commit(session)
    count = len(own.latency_ns) + len(control.latency_ns)
    where = f"into table {table}, removed again" if table else "as messages into the log only: it may make no table"
    wrote = f"wrote {count} records of {RECORD_BYTES} bytes ({count * RECORD_BYTES} bytes) {where}"
    wrote += f"; the log grew by {control.at - first} bytes, those of others included"
    if removed:
        wrote += f"; removed {removed} table{'s' * (removed > 1)} that an earlier probe left"
    return Seen(own, control, fsync == "on", risk_window_s(delay), wrote, fix)


def _wal_flush(seen: Seen, goal: Goal) -> Check:
    """What being behind, or never being it, says of the login's commits."""
    own, control = seen.own, seen.control
    counts = f"right after COMMIT {own}, {control}; {seen.wrote}"
    hasty = control if own.waits else own
    if own.waits and own.behind:
        loses = "commits that were acknowledged and not flushed, when the server dies"
        status: Status = "fail" if goal.survive >= Domain.SERVER else "warn"
        return Check(WAL_FLUSH, status, "acknowledged before the flush", "probe", loses, seen.fix, counts)
    if not hasty.behind or (own.waits and hasty.behind < BEHIND_ENOUGH):
        why = f"others' commits flush these along, so that waiting does not show: {counts}"
        return Check(WAL_FLUSH, "skip", "could not be told", "probe", fix="probe when the server is idle", evidence=why)
    if own.waits and not seen.flushes:
        why = f"fsync is off, so that what the server calls flushed is not: {counts}"
        return Check(WAL_FLUSH, "skip", "could not be told", "probe", fix="see postgres.fsync", evidence=why)
    if own.waits:
        return Check(WAL_FLUSH, "ok", "flushed before the answer", "probe", evidence=counts)
    loses = f"commits acknowledged in the last {seen.window_s or 0:g} s, when the server dies"
    fits = seen.window_s is not None and seen.window_s <= goal.max_loss_s
    status = "ok" if fits or goal.survive < Domain.SERVER else "fail"
    return Check(WAL_FLUSH, status, "acknowledged before the flush", "probe", loses, seen.fix, counts)


def _commit_latency(seen: Seen) -> Check:
    with_flush, without = (seen.own, seen.control) if seen.own.waits else (seen.control, seen.own)
    value = f"{_p50_ms(with_flush):.2f} ms with its flush, {_p50_ms(without):.2f} ms without (p50)"
    evidence = f"{len(seen.own.latency_ns)} pairs, the way to the server and back included; {seen.wrote}"
    return Check(COMMIT_LATENCY, "ok", value, "probe", evidence=evidence)


def _p50_ms(arm: Arm) -> float:
    return statistics.median(arm.latency_ns) / 1e6


def _position(lsn: str | None) -> int:
    """A position in the log as a number of bytes."""
    high, _, low = (lsn or "").partition("/")
    return (int(high, 16) << 32) + int(low, 16)
