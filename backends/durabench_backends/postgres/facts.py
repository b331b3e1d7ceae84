"""What a writing session really gets, who set it, and what this login may not see.

Everything is read: no table is made, no setting is left behind. What a right is missing for is said, with its GRANT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from durabench_backends.contract import Fact, NotReady, Refused
from durabench_backends.postgres import local
from durabench_backends.postgres.promises import NONE, SYNCHRONOUS, risk_window_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from durabench_backends.postgres.session import Session

SETTINGS_READ = (
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_sync_method",
    "wal_writer_delay",
    "synchronous_standby_names",
    "wal_level",
    "data_checksums",
    "data_sync_retry",
    "commit_delay",
    "server_version",
)

SETTINGS = (
    "SELECT name, setting || coalesce(unit, ''), source, sourcefile, sourceline, session_user,"
    " pg_catalog.current_database(), pending_restart FROM pg_catalog.pg_settings"
    " WHERE name = ANY (pg_catalog.string_to_array($1, ','))"
)
SHOWN = "SELECT n, pg_catalog.current_setting(n, true) FROM pg_catalog.unnest(pg_catalog.string_to_array($1, ',')) n"
"""For a login that may not read pg_settings: what it may always do is SHOW."""

WHERE = "SELECT pg_catalog.version(), pg_catalog.pg_is_in_recovery(), session_user, pg_catalog.current_database()"
ROLE = "SELECT pg_catalog.quote_ident(session_user)"

UNLOGGED_TABLES = """
WITH RECURSIVE written(oid, through) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.relpersistence = 'u' AND c.relkind = 'r'
    UNION SELECT w.oid, i.inhparent FROM written w JOIN pg_catalog.pg_inherits i ON i.inhrelid = w.through)
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.bool_or(EXISTS (
    SELECT FROM pg_catalog.pg_roles r WHERE pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')
    AND pg_catalog.has_schema_privilege(r.oid, t.relnamespace, 'USAGE')
    AND pg_catalog.has_any_column_privilege(r.oid, t.oid, 'INSERT, UPDATE')))
FROM written w JOIN pg_catalog.pg_class t ON t.oid = w.through JOIN pg_catalog.pg_class c ON c.oid = w.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace GROUP BY c.oid, 1 ORDER BY 1"""
"""Every unlogged table of the database, and whether this login may write it, also as a role that it may become, and
also through a table that it is a part of, whose rights are all that is asked for then.
"""

OF_OURS = """
SELECT c.oid::regclass::text, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = $1"""

OTHER_LEVELS = """
SELECT coalesce('role ' || r.rolname, CASE WHEN s.setrole = 0 THEN '' ELSE 'role ' || s.setrole END),
    coalesce('database ' || d.datname, CASE WHEN s.setdatabase = 0 THEN '' ELSE 'database ' || s.setdatabase END),
    pg_catalog.split_part(c, '=', 2)
FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) c
LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
WHERE pg_catalog.split_part(c, '=', 1) = 'synchronous_commit' ORDER BY 1, 2"""

STANDBYS = "SELECT application_name, state, sync_state FROM pg_catalog.pg_stat_replication ORDER BY 1, 3"
FILES = """
SELECT name, setting, sourcefile, sourceline, error FROM pg_catalog.pg_file_settings
WHERE name IS NULL OR name = ANY (pg_catalog.string_to_array($1, ',')) ORDER BY seqno"""
"""What the configuration files say now, which is not what was read from them."""

HIDDEN = "this login may not see it:"

SHOWN_AT_MOST = 5
"""Names in one value; the rest is counted."""


class Reader(NamedTuple):
    """A session that looks, a way to a second one, and who is asking."""

    session: Session
    connect: Callable[[], Session]
    role: str


def of_ours(session: Session, schema: str, unlogged: bool) -> Fact:
    """Unlogged tables of a server of ours; before there are any tables, those that will be made."""
    tables = [(name or "", persistence) for name, persistence in session.rows(OF_OURS, schema.encode())]
    found = [name for name, persistence in tables if persistence == "u"]
    origin = f"{len(tables)} tables in schema {schema}" if tables else "client, at CREATE TABLE"
    value = _listed(found) if tables else "those to be made" if unlogged else NONE
    return Fact("postgres.unlogged_tables", value, origin)


def settings(session: Session) -> list[Fact]:
    """The settings that this session gets, with who set each, and which of them only a restart brings into force."""
    names = ",".join(SETTINGS_READ).encode()
    version, recovery, role, database = session.rows(WHERE)[0]
    found = [
        Fact("postgres.platform", version or "", "version()"),
        Fact("postgres.in_recovery", "on" if recovery == "t" else "off", "pg_is_in_recovery()"),
        Fact("postgres.session_user", role or "", "session_user"),
        Fact("postgres.current_database", database or "", "current_database()"),
    ]
    try:
        rows = session.rows(SETTINGS, names)
    except Refused:
        shown = [(name or "", value) for name, value in session.rows(SHOWN, names)]
        why = f"{HIDDEN} GRANT SELECT ON pg_catalog.pg_settings TO {quoted(role or '')}"
        return [
            *found,
            *(Fact(f"postgres.{name}", value, "unknown") for name, value in shown if value is not None),
            Fact("postgres.pending_restart", "", "", why),
        ]
    found += [Fact(f"postgres.{row[0]}", row[1] or "", origin(*row[2:7])) for row in rows]
    pending = [row[0] or "" for row in rows if row[7] == "t"]
    return [*found, Fact("postgres.pending_restart", _listed(pending), "pg_settings")]


def of_somebody(session: Session, connect: Callable[[], Session]) -> list[Fact]:
    """All that a login at a URL can see of what makes its commits durable."""
    reader = Reader(session, connect, session.rows(ROLE)[0][0] or "")
    found = settings(session)
    samples, pooler = pooling(reader)
    return [
        *_weakest(found, samples),
        pooler,
        *_unlogged_tables(reader),
        _other_levels(reader),
        _standbys(reader),
        _file_settings(reader, found),
        *local.mounts(session, local.postmaster(session), reader.role),
    ]


SAMPLE = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('synchronous_commit')"
ROUNDS = 4


def pooling(reader: Reader) -> tuple[list[str], Fact]:
    """synchronous_commit as seen on several connections, and what stands between them and the server.

    Two connections that are open at once and share one server process are pooled by the transaction. A pooler that
    hands one process to each for as long as it is connected shows by the process that it greets with: its own making.
    """
    name, samples = "postgres.pooler", [_sample(reader.session)]
    behind_pooler = str(reader.session.greeted_as) != samples[0].process
    try:
        with reader.connect() as second:
            for _ in range(ROUNDS if behind_pooler else 1):
                if not _begins(second):
                    return _values(samples), Fact(name, "statement", "the pooler refuses transactions")
                others = _sample(second)
                second.run("COMMIT")
                samples += [others._replace(first=False), _sample(reader.session)]
    except (Refused, NotReady, OSError) as error:
        why = f"a second connection, to compare with, could not be used: {error}"
        return _values(samples), Fact(name, "", "", why)
    first = sorted({sample.process for sample in samples if sample.first})
    shared = sorted({sample.process for sample in samples if not sample.first} & set(first))
    if shared:
        found = Fact(name, "transaction", f"two connections, both open, were served by process {shared[0]}")
    elif len(first) > 1:
        found = Fact(name, "transaction", f"one connection was served by processes {', '.join(first)}")
    elif behind_pooler:
        found = Fact(name, "session", "the process greeted with is not the one that serves")
    else:
        found = Fact(name, NONE, "each connection has a server process of its own")
    return _values(samples), found


class Sample(NamedTuple):
    """One look at a connection: which server process serves it, with what, and whether it is the first of two."""

    process: str
    value: str
    first: bool = True


def _sample(session: Session) -> Sample:
    process, value = session.rows(SAMPLE)[0]
    return Sample(process or "", value or "")


def _values(samples: Sequence[Sample]) -> list[str]:
    return [sample.value for sample in samples]


def _begins(session: Session) -> bool:
    """Begin a transaction; False where a pooler by the statement refuses any."""
    try:
        session.run("BEGIN")
    except Exception as error:
        if "statement pooling" in str(error):
            return False
        raise
    return True


def _weakest(facts: list[Fact], samples: Sequence[str]) -> list[Fact]:
    """``facts`` with the weakest of the values of synchronous_commit that pooled connections had."""
    weak = [value for value in samples if value not in SYNCHRONOUS]
    if not weak:
        return facts
    told = Fact("postgres.synchronous_commit", weak[0], "session: a SET that the pooler carried over to this one")
    return [told if fact.id == told.id and fact.value in SYNCHRONOUS else fact for fact in facts]


def _unlogged_tables(reader: Reader) -> list[Fact]:
    ids = ("postgres.unlogged_tables", "postgres.unlogged_tables_of_others")
    try:
        rows = reader.session.rows(UNLOGGED_TABLES)
    except Refused as error:
        right = (
            "GRANT SELECT ON pg_catalog.pg_class, pg_catalog.pg_namespace, pg_catalog.pg_inherits, pg_catalog.pg_roles"
        )
        return [Fact(name, "", "", f"{error}: {right} TO {reader.role}") for name in ids]
    written = [name or "" for name, may in rows if may == "t"]
    others = [name or "" for name, may in rows if may != "t"]
    return [
        Fact(ids[0], _listed(written), "CREATE TABLE or ALTER TABLE" if written else "pg_class"),
        Fact(ids[1], _listed(others), "pg_class"),
    ]


def _other_levels(reader: Reader) -> Fact:
    """synchronous_commit as other roles and databases get it."""
    name = "postgres.db_role_setting"
    try:
        rows = reader.session.rows(OTHER_LEVELS)
    except Refused:
        return Fact(name, "", "", f"{HIDDEN} GRANT SELECT ON pg_catalog.pg_db_role_setting TO {reader.role}")
    levels = [f"{' in '.join(filter(None, row[:2])) or 'all roles'}: {row[2]}" for row in rows]
    return Fact(name, _listed(levels), "pg_db_role_setting")


def _standbys(reader: Reader) -> Fact:
    """Who is connected for the log, and which of them commits wait for."""
    name, right = "postgres.replication", f"{HIDDEN} GRANT pg_read_all_stats TO {reader.role}"
    try:
        rows = reader.session.rows(STANDBYS)
    except Refused:
        return Fact(name, "", "", f"{right}; GRANT SELECT ON pg_catalog.pg_stat_replication TO {reader.role}")
    if any(row[2] is None for row in rows):
        return Fact(name, "", "", right)
    return Fact(name, _listed([f"{row[0]} {row[2]} ({row[1]})" for row in rows]), "pg_stat_replication")


def _file_settings(reader: Reader, facts: Sequence[Fact]) -> Fact:
    """Settings whose line in a file is not what is in force, though nothing stands above the files."""
    name = "postgres.file_settings"
    try:
        rows = reader.session.rows(FILES, ",".join(SETTINGS_READ).encode())
    except Refused:
        right = f"{HIDDEN} GRANT SELECT ON pg_catalog.pg_file_settings TO {reader.role}; "
        right += f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_show_all_file_settings() TO {reader.role}"
        return Fact(name, "", "", right)
    broken = [f"{file}:{line}: {error}" for setting, _, file, line, error in rows if setting is None and error]
    said = {setting: (value, f"{file}:{line}") for setting, value, file, line, _ in rows if setting is not None}
    differ = []
    for fact in facts:
        setting = fact.id.removeprefix("postgres.")
        if setting not in SETTINGS_READ or not (fact.origin == DEFAULT or _of_a_file(fact)):
            continue
        value, place = said.get(setting, (None, ""))
        if value is not None and _meaning(setting, value) != _meaning(setting, fact.value):
            differ.append(f"{setting} = {value} ({place})")
        elif value is None and _of_a_file(fact):
            differ.append(f"{setting} no longer set ({fact.origin})")
    return Fact(name, _listed([*broken, *differ]), "pg_file_settings")


def _of_a_file(fact: Fact) -> bool:
    return fact.origin == FILE or fact.origin.rpartition(":")[2].isdecimal()


def _meaning(setting: str, value: str) -> str | float | None:
    """What a value means: a boolean has many spellings, a time any unit, and without one the setting's own."""
    word = value.strip().lower().replace(" ", "")
    if setting.endswith("_delay"):
        return risk_window_s(word + NATIVE_UNIT[setting] if word.isdecimal() else word)
    return SPELLINGS.get(word, word)


NATIVE_UNIT = {"wal_writer_delay": "ms", "commit_delay": "us"}
SPELLINGS = {
    **dict.fromkeys(("true", "tru", "tr", "t", "yes", "ye", "y", "1"), "on"),
    **dict.fromkeys(("false", "fals", "fal", "fa", "f", "no", "n", "of", "0"), "off"),
}

DEFAULT = "compiled default"
FILE = "configuration file"


def origin(source: str | None, file: str | None, line: str | None, role: str | None, database: str | None) -> str:
    """Who set a parameter, in a person's words; file and line show only to roles that may read them."""
    if file:
        return f"{file}:{line}"
    return {
        "default": DEFAULT,
        "user": f"role {role}",
        "database": f"database {database}",
        "database user": f"role {role} in database {database}",
        "global": "ALTER ROLE ALL",
        "client": "client, connection options",
        "session": "session: a SET that came before this look, by a pooler or another of its clients",
    }.get(source or "", source or "unknown")


def quoted(name: str) -> str:
    """An identifier as it is written in SQL."""
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def _listed(words: Sequence[str]) -> str:
    """``a, b, c, d, e and 3 more``; `NONE` where there are none."""
    more = f" and {len(words) - SHOWN_AT_MOST} more" if len(words) > SHOWN_AT_MOST else ""
    return ", ".join(words[:SHOWN_AT_MOST]) + more or NONE
