"""What the facts of a live PostgreSQL mean for a goal: one check per id, from facts alone.

A check fails where, and only where, it keeps the promise from meeting the goal.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from durabench_backends import place
from durabench_backends.contract import Check, Domain
from durabench_backends.postgres.facts import FILE, quoted
from durabench_backends.postgres.local import MOUNT_FACTS
from durabench_backends.postgres.promises import NONE, SYNCHRONOUS, flushes_drive, is_postgresql, risk_window_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from durabench_backends.contract import Fact, Goal, Status

QUALIFIED = re.compile(r"""(?:"(?:[^"]|"")*"|[^\s,".]+)\.(?:"(?:[^"]|"")*"|[^\s,".]+)""")
"""A table's name with its schema, as SQL writes it."""
RELOAD = "SELECT pg_reload_conf();"
IMPORTANT = "without it the goal cannot be judged"


class View(NamedTuple):
    """The facts by name, and the goal that they are held against."""

    facts: Mapping[str, Fact]
    goal: Goal

    def value(self, name: str) -> str | None:
        """The value of ``postgres.<name>``; None where it is missing or could not be read."""
        fact = self.facts.get(name)
        return None if fact is None or fact.unread else fact.value

    def made(
        self, name: str, status: Status, loses: str | None = None, fix: str | None = None, evidence: str | None = None
    ) -> Check:
        """A check of ``name`` with the fact's value and origin."""
        fact = self.facts[name]
        if fact.origin == FILE:
            file = f"file and line show after GRANT pg_read_all_settings TO {self.role};"
            evidence = f"{evidence}; {file}" if evidence else file
        return Check(f"postgres.{name}", status, fact.value, fact.origin or None, loses, fix, evidence)

    def blind(self, name: str, depends: Domain | None) -> Check:
        """A check whose fact could not be read: unknown if the goal's domain ``depends`` on it, else skip."""
        fact = self.facts.get(name)
        told = fact.unread if fact is not None and fact.unread else "the server does not say"
        why, grants, rest = told.partition(" GRANT ")
        status: Status = "unknown" if depends is not None and self.goal.survive >= depends else "skip"
        return Check(
            f"postgres.{name}",
            status,
            loses=IMPORTANT if status == "unknown" else None,
            fix=f"GRANT {rest.rstrip(';')};" if grants else None,
            evidence=why.rstrip(":"),
        )

    @property
    def role(self) -> str:
        """The login, as it is written in SQL."""
        return quoted(self.value("session_user") or "this_login")

    @property
    def synchronous(self) -> bool:
        """Whether a commit waits for its flush."""
        return self.value("synchronous_commit") in SYNCHRONOUS

    @property
    def window_s(self) -> float | None:
        """How long an asynchronous commit may stay unflushed; None where it is not known."""
        return risk_window_s(self.value("wal_writer_delay"))

    @property
    def window_fits(self) -> bool:
        """Whether the goal lets an asynchronous commit be lost."""
        return self.window_s is not None and self.window_s <= self.goal.max_loss_s


def checks(facts: Iterable[Fact], goal: Goal) -> list[Check]:
    """Every check that facts alone can make."""
    view = View({fact.id.removeprefix("postgres."): fact for fact in facts}, goal)
    return [
        _server_version(view),
        _in_recovery(view),
        _synchronous_commit(view),
        _flag(view, "fsync", "the whole database may be beyond repair after the machine dies, and"),
        _flag(view, "full_page_writes", "a page torn by a power failure is not repaired by recovery, and"),
        _unlogged_tables(view),
        _wal_sync_method(view),
        *_place(view),
        _wal_writer_delay(view),
        _pooler(view),
        _db_role_setting(view),
        _file_settings(view),
        _pending_restart(view),
        _synchronous_standby_names(view),
        _replication(view),
        _data_checksums(view),
        _data_sync_retry(view),
        _said(view, "wal_level", {"minimal": "no standby and no archive can be fed; commits are as durable"}),
        _said(view, "commit_delay", {"0us": "a flush is not held back for other commits"}),
    ]


def _server_version(view: View) -> Check:
    name, platform = "server_version", view.value("platform")
    version = view.value(name)
    if platform is None:
        return replace(view.blind("platform", Domain.CLIENT), id=f"postgres.{name}")
    if not is_postgresql(platform):
        return Check(
            f"postgres.{name}",
            "unknown",
            version,
            "version()",
            "what its own vendor says: it speaks PostgreSQL's protocol, and its settings may mean nothing",
            "ask its vendor's documentation, or find out: durabench run --backend URL",
            platform,
        )
    return Check(f"postgres.{name}", "ok", version, "version()", evidence=platform)


def _in_recovery(view: View) -> Check:
    value = view.value("in_recovery")
    if value is None:
        return view.blind("in_recovery", Domain.CLIENT)
    if value == "off":
        return view.made("in_recovery", "ok")
    return view.made(
        "in_recovery",
        "unknown",
        "a standby takes no writes: what an acknowledged one is worth, the primary's settings say",
        "verify the primary instead: add target_session_attrs=primary to a URL that names both hosts",
    )


def _synchronous_commit(view: View) -> Check:
    name = "synchronous_commit"
    value = view.value(name)
    if value is None:
        return view.blind(name, None if view.window_fits else Domain.SERVER)  # the worst it can be is off
    if view.synchronous:
        return view.made(name, "ok", evidence=_meaning_with_standbys(view, value))
    window = "3 × wal_writer_delay" if view.window_s is None else f"{view.window_s:g} s (3 × wal_writer_delay)"
    loses = f"commits acknowledged in the last {window}, when the server or anything below it dies"
    if view.goal.survive < Domain.SERVER or view.window_fits:
        return view.made(name, "ok", evidence=f"the goal allows for it: it may lose {loses}")
    return view.made(name, "fail", loses, _set(view, name, "on"), "COMMIT returns before the log is flushed")


def _meaning_with_standbys(view: View, value: str) -> str:
    if not view.value("synchronous_standby_names"):
        same = "" if value == "on" else f"; {value} means on while synchronous_standby_names is empty"
        return f"COMMIT returns after the local flush, and waits for no standby{same}"
    waits = {
        "on": "and the synchronous standbys have flushed it",
        "remote_apply": "and the synchronous standbys have applied it",
        "remote_write": "and the synchronous standbys have written it, not flushed",
        "local": "whatever the synchronous standbys have",
    }
    return f"COMMIT returns after the local flush, {waits[value]}"


def _flag(view: View, name: str, ruin: str) -> Check:
    """A setting that must be on for anything to be promised once the machine dies."""
    value = view.value(name)
    if value is None:
        return view.blind(name, Domain.MACHINE)
    if value == "on":
        return view.made(name, "ok")
    loses = f"{ruin} acknowledged commits are gone with it; a server that is merely killed loses nothing"
    broken = view.goal.survive >= Domain.MACHINE
    return view.made(name, "fail" if broken else "warn", loses, _set(view, name, "on"))


def _unlogged_tables(view: View) -> Check:
    name, others = "unlogged_tables", view.value("unlogged_tables_of_others")
    value = view.value(name)
    if value is None:
        return view.blind(name, Domain.SERVER)
    loses = "every row of these tables, when the server is not stopped in an orderly way; temporary tables do not count"
    if value != NONE:
        broken = view.goal.survive >= Domain.SERVER
        fix = " ".join(f"ALTER TABLE {table} SET LOGGED;" for table in QUALIFIED.findall(value))
        return view.made(name, "fail" if broken else "warn", loses, fix, "this login may write to them")
    if others and others != NONE:
        return view.made(name, "warn", loses, evidence=f"this login may not write to {others}, which are unlogged")
    return view.made(name, "ok")


def _wal_sync_method(view: View) -> Check:
    name = "wal_sync_method"
    method, platform = view.value(name), view.value("platform")
    if method is None or platform is None:
        return view.blind(name, Domain.DRIVE)
    if flushes_drive(method, platform):
        unused = "not used while fsync is off" if view.value("fsync") == "off" else None
        return view.made(name, "ok", evidence=unused)
    safe = "fsync_writethrough" if method != "open_datasync" or "darwin" in platform else "fsync"
    return view.made(
        name,
        "fail" if view.goal.survive >= Domain.DRIVE else "warn",
        "commits that are still in the drive's own cache when the power fails",
        f"ALTER SYSTEM SET wal_sync_method = {safe}; {RELOAD}",
        f"on this platform {method} leaves the drive's write cache on",
    )


def _place(view: View) -> list[Check]:
    """What lies below the data directory, as for a store without a server; from elsewhere it cannot be seen."""
    mount = view.facts.get("filesystem")
    if mount is not None and mount.unread:
        return [view.blind(name, None) for name in MOUNT_FACTS]
    facts = {fact.id: fact for fact in view.facts.values()}
    if view.value("mount_options") is None:
        facts.pop("postgres.filesystem", None)  # a mount is judged by both or not at all
    return place.checks("postgres", facts, view.goal, flushes=True)


def _wal_writer_delay(view: View) -> Check:
    name = "wal_writer_delay"
    if view.value(name) is None:
        return view.blind(name, None)
    if view.synchronous:
        return view.made(name, "ok", evidence="commits do not wait for the WAL writer: synchronous_commit is not off")
    if view.window_s is None:
        return view.made(name, "skip", evidence="this is no duration that PostgreSQL writes")
    window = f"an asynchronous commit may be lost for {view.window_s:g} s"
    if view.goal.survive < Domain.SERVER or view.window_fits or not view.goal.max_loss_s:
        return view.made(name, "ok", evidence=window)
    delay_ms = int(view.goal.max_loss_s * 1000 / 3)
    fix = f"ALTER SYSTEM SET wal_writer_delay = '{delay_ms}ms'; {RELOAD}" if delay_ms else None
    loses = f"{view.goal.max_loss_s:g} s are allowed, three times this delay is {view.window_s:g} s"
    return view.made(name, "fail", loses, fix, window)


def _pooler(view: View) -> Check:
    name = "pooler"
    value = view.value(name)
    if value is None:
        return view.blind(name, None)
    if value in (NONE, "session"):
        return view.made(name, "ok")
    return view.made(
        name,
        "warn",
        "a SET synchronous_commit goes to whatever server process serves that statement: it does not stick to this "
        "client's commits, and may reach those of others",
        f"ALTER ROLE {view.role} SET synchronous_commit = on; and in a program BEGIN; SET LOCAL …",
        f"pooled by the {value}: {view.facts[name].origin}",
    )


def _db_role_setting(view: View) -> Check:
    name = "db_role_setting"
    value = view.value(name)
    if value is None:
        return view.blind(name, None)
    weak = [level for level in value.partition(" and ")[0].split(", ") if level.endswith(": off")]
    if not weak or not view.synchronous:
        return view.made(name, "ok")
    loses = "commits of other logins, which get synchronous_commit = off; this login's are not among them"
    first = weak[0].removesuffix(": off")
    role, _, database = first.removeprefix("role ").partition(" in database ")
    if first.startswith("role "):
        fix = f"ALTER ROLE {quoted(role)}" + (f" IN DATABASE {quoted(database)}" if database else "")
    elif first.startswith("database "):
        fix = f"ALTER DATABASE {quoted(first.removeprefix('database '))}"
    else:
        fix = "ALTER ROLE ALL"
    return view.made(name, "warn", loses, f"{fix} RESET synchronous_commit;")


def _file_settings(view: View) -> Check:
    name = "file_settings"
    value = view.value(name)
    if value is None:
        return view.blind(name, None)
    if value == NONE:
        return view.made(name, "ok", evidence="the configuration files say what is in force")
    loses = "the next reload or restart brings these lines into force, and what is in force now ends"
    return view.made(name, "warn", loses, f"correct the file, or bring it into force: {RELOAD}")


def _pending_restart(view: View) -> Check:
    name = "pending_restart"
    value = view.value(name)
    if value is None:
        return view.blind(name, None)
    if value == NONE:
        return view.made(name, "ok")
    return view.made(
        name, "warn", "the configuration says otherwise: the next restart changes them", "restart the server"
    )


def _synchronous_standby_names(view: View) -> Check:
    name = "synchronous_standby_names"
    value, connected = view.value(name), view.value("replication")
    if value is None:
        return view.blind(name, None)
    if not value:
        return view.made(name, "ok", evidence="no commit waits for a standby")
    if view.value("synchronous_commit") in ("off", "local"):
        return view.made(name, "ok", evidence="this login's commits do not wait for the standbys it names")
    if connected is not None and " sync " not in connected and " quorum " not in connected:
        return view.made(
            name,
            "warn",
            "nothing is lost, but no such standby is connected: COMMIT does not return",
            f"connect the standby, or ALTER SYSTEM RESET synchronous_standby_names; {RELOAD}",
            f"connected: {connected}",
        )
    return view.made(name, "ok")


def _replication(view: View) -> Check:
    if view.value("replication") is None:
        return view.blind("replication", None)
    return view.made("replication", "ok", evidence="what a failover loses is no part of the goal")


def _data_checksums(view: View) -> Check:
    name = "data_checksums"
    value = view.value(name)
    if value is None:
        return view.blind(name, None)
    if value == "on":
        return view.made(name, "ok")
    loses = "nothing by itself; a page that the drive damages is read as if it were good"
    return view.made(name, "warn", loses, "pg_checksums --enable -D DATA_DIRECTORY, with the server stopped")


def _data_sync_retry(view: View) -> Check:
    name = "data_sync_retry"
    value = view.value(name)
    if value == "off":
        return view.made(name, "ok", evidence="after a failed fsync the server stops and recovers from its log")
    loses = "pages that the kernel dropped after a failed fsync: a second fsync reports success, and the data is gone"
    if value is None:
        blind = view.blind(name, None)
        return Check(blind.id, "warn", None, None, loses, "upgrade PostgreSQL: 11.2 and later know it", blind.evidence)
    return view.made(name, "warn", loses, "ALTER SYSTEM RESET data_sync_retry; and restart the server")


def _said(view: View, name: str, meanings: Mapping[str, str]) -> Check:
    """A setting that changes no promise, with what its value means."""
    value = view.value(name)
    if value is None:
        return view.blind(name, None)
    return view.made(name, "ok", evidence=meanings.get(value))


def _set(view: View, name: str, value: str) -> str:
    """The line that sets a parameter where it was set, so that nothing above undoes it."""
    origin = view.facts[name].origin
    level, _, rest = origin.partition(" ")
    if level == "role":
        role, _, database = rest.partition(" in database ")
        where = f" IN DATABASE {quoted(database)}" if database else ""
        return f"ALTER ROLE {quoted(role)}{where} SET {name} = {value};"
    if f"{name} = {value} (" in (view.value("file_settings") or ""):
        return f"{RELOAD} the file says so already"
    own = f"ALTER ROLE {view.role} SET {name} = {value};"
    above_files = own if name == "synchronous_commit" else f"start the server without {name} = off on its {origin}"
    return {
        "database": f"ALTER DATABASE {quoted(rest)} SET {name} = {value};",
        "client,": f"take {name} out of the URL's options= and out of PGOPTIONS",
        "session:": f"{own} and use SET LOCAL in programs behind a pooler",
        "ALTER": f"ALTER ROLE ALL SET {name} = {value};",
        "command": above_files,
        "environment": above_files,
    }.get(level, f"ALTER SYSTEM SET {name} = {value}; {RELOAD}")
