"""What a live database means for a goal, from its facts alone: what commits flush, what lies beside and below."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from durabench_backends import place
from durabench_backends.contract import Check
from durabench_backends.mounts import REMOTE
from durabench_backends.sqlite.promises import ROLLBACK_MODES, WAL_HEADER, promised

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from durabench_backends.contract import Fact, Goal

PAGES = {
    "sqlite.journal_mode": (
        "How a commit is made all or nothing. WAL is stored in the file, read here from its header (byte 18) without "
        "opening it. In any other file a connection gets DELETE, SQLite's own, unless it sets truncate, persist, "
        "memory or off: then say so in the URL, or let it be watched. memory and off: a program that dies inside "
        "a transaction leaves a corrupt database. Mend it: PRAGMA journal_mode=WAL, once. Source: "
        "sqlite.org/pragma.html, journal_mode; fileformat2.html, the database header."
    ),
    "sqlite.synchronous": (
        "When a commit is flushed: each connection's own, never stored in the file. FULL under WAL and EXTRA under "
        "DELETE lose nothing. NORMAL under WAL loses the commits since the last WAL checkpoint when the machine "
        "dies; FULL under DELETE may lose the last one, whose journal comes back, as its unlink was not flushed; OFF "
        "flushes nothing. Mend it: PRAGMA synchronous=FULL (WAL) or EXTRA (DELETE), on every connection. Source: "
        "sqlite.org/pragma.html, synchronous."
    ),
    "sqlite.version": (
        "The SQLite library linked into this Python; your program may have another (SELECT sqlite_version()). The "
        "WAL-reset bug, 3.7.0 to 3.51.2, may lose commits under WAL when two connections write and checkpoint at the "
        "same moment. Fixed in 3.51.3, and in 3.50.7 and 3.44.6 of their branches. Mend it: upgrade the library. "
        "Source: sqlite.org/wal.html, The WAL-Reset Bug."
    ),
    "sqlite.sidecars": (
        "The files beside the database: -wal (commits that are not in the main file yet), -shm (its index), -journal "
        "(how to undo a transaction under way). They belong to it: copied, moved or removed apart from it, commits "
        "are lost or the database is damaged. Mend it: copy with sqlite3 DB '.backup FILE' or VACUUM INTO. Source: "
        "sqlite.org/howtocorrupt.html, sections 1.2 to 1.4."
    ),
    "sqlite.hot_journal": (
        "A -journal that nobody is writing: its program died inside a transaction, and the next program that opens "
        "the database for writing undoes it. Until then the main file alone is not whole. Nothing acknowledged is "
        "lost, unless the journal is removed or the file copied without it. Mend it: let your program, or sqlite3 DB "
        "'PRAGMA schema_version', open it. Source: sqlite.org/lockingv3.html, Hot journals."
    ),
    "sqlite.unrecovered_wal": (
        "A -wal with frames, while no program has the database open: the last one died, or the files were copied. "
        "Its commits are acknowledged and not in the main file; who copies that alone, or removes the -wal, loses "
        "them. Mend it: sqlite3 DB 'PRAGMA wal_checkpoint(TRUNCATE)'. Source: sqlite.org/wal.html, The WAL File."
    ),
    **place.pages("sqlite", "the database"),
}
LOSES = {
    "off": "whatever the kernel had not written back, and possibly the database: nothing is flushed",
    ("delete", "full"): "the last commit, when the power goes right after it: its journal comes back and undoes it",
    ("wal", "normal"): "every commit since the last WAL checkpoint",
    "normal": "the last commits, and on older file systems the database",
}


def checks(facts: Iterable[Fact], goal: Goal) -> list[Check]:
    """One check per id that needs no probe."""
    by_id = {fact.id: fact for fact in facts}
    journal = _value(by_id, "sqlite.journal_mode")
    places = place.checks("sqlite", by_id, goal, flushes=True)
    return [
        _journal_mode(by_id, goal),
        _synchronous(by_id, goal),
        _version(by_id, journal),
        _sidecars(by_id, journal),
        _waiting(by_id, "sqlite.hot_journal"),
        _waiting(by_id, "sqlite.unrecovered_wal"),
        *(_shared(check) if journal == "wal" else check for check in places),
    ]


def _value(facts: Mapping[str, Fact], identifier: str) -> str:
    fact = facts.get(identifier)
    return "" if fact is None or fact.unread else fact.value


def _unread(identifier: str, fact: Fact | None, loses: str, *, depends: bool) -> Check:
    why, _, fix = (fact.unread if fact else "it was not read").partition(": ")
    return Check(identifier, "unknown" if depends else "skip", loses=loses, fix=fix or None, evidence=why)


def _journal_mode(facts: Mapping[str, Fact], goal: Goal) -> Check:
    identifier = "sqlite.journal_mode"
    fact, journal = facts.get(identifier), _value(facts, identifier)
    met = goal.is_met_by(promised(journal, _value(facts, "sqlite.synchronous")))
    loses = "the database: a program that dies inside a transaction leaves it corrupt"
    if fact is None or not journal:
        loses = f"possibly {loses}; the journal may be in memory, or off"
        return _unread(identifier, fact, loses, depends=not met)
    if met or journal in {*ROLLBACK_MODES, "wal"}:
        return Check(identifier, "ok", journal, fact.origin)
    if journal == "rollback":
        loses = "what WAL with synchronous=full would keep: this file is not in WAL mode"
    return Check(identifier, "fail", journal, fact.origin, loses, "PRAGMA journal_mode=WAL")


def _synchronous(facts: Mapping[str, Fact], goal: Goal) -> Check:
    identifier = "sqlite.synchronous"
    fact, synchronous = facts.get(identifier), _value(facts, identifier)
    journal = _value(facts, "sqlite.journal_mode")
    met = goal.is_met_by(promised(journal, synchronous))
    if fact is None or not synchronous:
        return _unread(identifier, fact, f"possibly {LOSES['off']}", depends=not met)
    # Under an unknown or unfit journal it is to blame only where no other journal would mend it.
    candidates = [journal] if journal in {*ROLLBACK_MODES, "wal"} else [*ROLLBACK_MODES, "wal"]
    if any(goal.is_met_by(promised(each, synchronous)) for each in candidates):
        return Check(identifier, "ok", synchronous, fact.origin)
    loses = LOSES.get((journal, synchronous)) or LOSES.get(synchronous)
    fix = "PRAGMA synchronous=EXTRA on every connection, or PRAGMA journal_mode=WAL with synchronous=FULL"
    return Check(identifier, "fail", synchronous, fact.origin, loses, _fix(journal) or fix)


def _fix(journal: str) -> str | None:
    return "PRAGMA synchronous=FULL on every connection" if journal in {"wal", "truncate", "persist"} else None


def _version(facts: Mapping[str, Fact], journal: str) -> Check:
    identifier = "sqlite.version"
    fact = facts.get(identifier)
    if fact is None:
        return _unread(identifier, fact, "", depends=False)
    if _value(facts, "sqlite.wal_reset_bug") != "present":
        return Check(identifier, "ok", fact.value, fact.origin)
    if journal and journal != "wal":
        return Check(
            identifier, "ok", fact.value, fact.origin, evidence="has the WAL-reset bug; this is no WAL database"
        )
    return Check(
        identifier,
        "warn",
        fact.value,
        fact.origin,
        "commits, when two connections write and checkpoint a WAL database at the same moment (the WAL-reset bug)",
        "link SQLite 3.51.3 or newer, or 3.50.7 or 3.44.6 of their branches",
    )


def _sidecars(facts: Mapping[str, Fact], journal: str) -> Check:
    identifier = "sqlite.sidecars"
    fact = facts.get(identifier)
    if fact is None or fact.unread:
        return _unread(identifier, fact, "", depends=False)
    mode = facts.get("sqlite.journal_mode")
    stored = "wal" if mode and mode.origin.endswith(WAL_HEADER) else journal
    if "-wal (" in fact.value and stored and stored != "wal":
        loses = "possibly commits: a -wal lies beside a database that is not in WAL mode, so nobody reads it"
        fix = "find out which database it belongs to before removing it"
        return Check(identifier, "warn", fact.value, fact.origin, loses, fix)
    return Check(identifier, "ok", fact.value, fact.origin)


def _waiting(facts: Mapping[str, Fact], identifier: str) -> Check:
    fact = facts.get(identifier)
    if fact is None or fact.unread:
        return _unread(identifier, fact, "", depends=False)
    if fact.value != "yes":
        return Check(identifier, "ok", fact.value, fact.origin)
    hot = identifier.endswith("hot_journal")
    loses = "the undo of a transaction, and so the database" if hot else "commits that are not in the main file yet"
    # The origin is the sidecar's path.
    database = fact.origin.removesuffix("-journal").removesuffix("-wal")
    fix = f"sqlite3 '{database}' '{'PRAGMA schema_version' if hot else 'PRAGMA wal_checkpoint(TRUNCATE)'}'"
    return Check(identifier, "warn", fact.value, fact.origin, f"{loses}, if that file is removed or left behind", fix)


def _shared(check: Check) -> Check:
    """WAL does not work between hosts (wal.html: "must be on the same host computer")."""
    if check.id != "sqlite.filesystem" or check.value not in REMOTE:
        return check
    return replace(check, loses=f"{check.loses}; and WAL does not work where programs of several hosts share it")
