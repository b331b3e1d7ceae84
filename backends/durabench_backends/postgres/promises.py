"""What PostgreSQL's documentation promises for the settings in force.

Quotations are from the PostgreSQL 18 documentation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from durabench_backends.contract import Domain, Fact, Promise, Setting
from durabench_backends.embedded import on_mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYNCHRONOUS = ("on", "local", "remote_write", "remote_apply")
"""Values of synchronous_commit that wait for the local flush; they differ only in what they ask of standbys.

19.5.1: "If synchronous_standby_names is empty, the only meaningful settings are on and off; remote_apply,
remote_write and local all provide the same local synchronization level as on."
"""

NONE = "none"
"""No such table, setting or standby."""
UNLOGGED = "unlogged"
"""The one setting that is not the server's but the table's."""

SOURCE = "PostgreSQL 18 documentation, "
SOURCE_ON = (
    SOURCE + '28.4 Asynchronous Commit: "The client is therefore guaranteed that a transaction reported to be '
    'committed will be preserved, even in the event of a server crash immediately after."'
)
SOURCE_OFF = (
    SOURCE + '19.5.1 synchronous_commit: "The maximum delay is three times wal_writer_delay."; '
    '28.4 Asynchronous Commit: "the transactions are replayed in commit order"'
)
SOURCE_FSYNC_OFF = (
    SOURCE + '19.5.1 fsync: off "can result in unrecoverable data corruption in the event of a power failure or system '
    'crash"; full_page_writes has similar risks'
)
SOURCE_UNLOGGED = (
    SOURCE + 'CREATE TABLE, UNLOGGED: "an unlogged table is automatically truncated after a crash or unclean shutdown"'
)
SOURCE_STANDBY = SOURCE + '26.4 Hot Standby: "a read-only session" takes no writes, so there is nothing to promise'
SOURCE_OTHER = "none: what speaks PostgreSQL's protocol without being PostgreSQL has promises of its own vendor's"
SOURCE_WRITE_CACHE = (
    SOURCE + "28.1 Reliability: on macOS and on Windows some values of wal_sync_method leave the drive's write cache on"
)


def promise(facts: Iterable[Fact]) -> Promise:
    """What is promised by the facts; what is missing or could not be read counts as the weakest it could be.

    The one exception is a file system that only the server's own machine could name: a login from elsewhere never can.
    """
    given = {fact.id: fact for fact in facts}
    known = {name.removeprefix("postgres."): fact.value for name, fact in given.items() if not fact.unread}
    if not is_postgresql(known.get("platform")):
        return Promise({Domain.NOTHING: 0.0}, None, None, SOURCE_OTHER)
    if known.get("in_recovery") != "off":
        return Promise({Domain.NOTHING: 0.0}, None, None, SOURCE_STANDBY)
    may_lose_s = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0}
    if known.get("unlogged_tables") != NONE:
        return Promise(may_lose_s, Domain.SERVER, None, SOURCE_UNLOGGED)
    synchronous = known.get("synchronous_commit") in SYNCHRONOUS
    window_s = 0.0 if synchronous else risk_window_s(known.get("wal_writer_delay"))
    reach, source = _reach(known, SOURCE_ON if synchronous else SOURCE_OFF)
    if window_s is not None:
        may_lose_s |= {domain: window_s for domain in Domain if Domain.SERVER <= domain <= reach}
    found = Promise(may_lose_s, reach, reach, source)
    mount, options = given.get("postgres.filesystem"), given.get("postgres.mount_options")
    if mount is not None and mount.unread:
        return found
    both = options is not None and not options.unread  # a mount is judged by both or not at all
    return on_mount(found, "postgres", {name: fact.value for name, fact in given.items() if fact.value and both})


def _reach(known: Mapping[str, str], source: str) -> tuple[Domain, str]:
    """The last domain that the log's flushes reach, and the source that says so."""
    if known.get("fsync") != "on" or known.get("full_page_writes") != "on":
        return Domain.SERVER, SOURCE_FSYNC_OFF
    if not flushes_drive(known.get("wal_sync_method"), known.get("platform")):
        return Domain.MACHINE, SOURCE_WRITE_CACHE
    return Domain.DRIVE, source


def is_postgresql(platform: str | None) -> bool:
    """Whether ``version()`` is PostgreSQL's, and not of something else that speaks its protocol or is made from it."""
    told = platform or ""
    return told.startswith("PostgreSQL") and not re.search(r"-YB-|Redshift|Greenplum|CockroachDB", told)


def flushes_drive(wal_sync_method: str | None, platform: str | None) -> bool:
    """Whether the method reaches through a drive's write cache on that platform.

    28.1: "On macOS, write caching can be prevented by setting wal_sync_method to fsync_writethrough"; "On Windows, if
    wal_sync_method is open_datasync (the default), write caching can be disabled by unchecking" an option of the drive.
    """
    if not wal_sync_method or not platform:
        return False
    if re.search(r"darwin|macos|apple", platform, re.IGNORECASE):
        return wal_sync_method == "fsync_writethrough"
    if re.search(r"mingw|windows|msvc|visual c", platform, re.IGNORECASE):
        return wal_sync_method != "open_datasync"
    return True


def risk_window_s(wal_writer_delay: str | None) -> float | None:
    """Three times the delay; None when it is not known."""
    found = re.fullmatch(r"(\d+)(us|ms|s|min)?", wal_writer_delay or "")
    if found is None:
        return None
    unit_s = {"us": 1e-6, "ms": 1e-3, None: 1e-3, "s": 1.0, "min": 60.0}[found[2]]
    return round(3 * int(found[1]) * unit_s, 6)


def _setting(name: str, options: Mapping[str, str], unlogged_tables: str = NONE) -> Setting:
    """A setting with the promise that its own facts add up to; what it leaves alone is as shipped, on a disk."""
    shipped = {
        "synchronous_commit": "on",
        "fsync": "on",
        "full_page_writes": "on",
        "wal_writer_delay": "200ms",
        "wal_sync_method": "fdatasync",
        "platform": "PostgreSQL on linux",
        "in_recovery": "off",
    }
    values = {**shipped, **options, "unlogged_tables": unlogged_tables}
    facts = [Fact(f"postgres.{option}", value, name) for option, value in values.items()]
    disk = Fact("postgres.filesystem", "", "", unread="a setting is for whatever disk it is put on")
    return Setting(name, options, promise([*facts, disk]))


SETTINGS = (
    _setting("on", {}),
    _setting("off", {"synchronous_commit": "off"}),
    _setting("fsync-off", {"fsync": "off"}),
    _setting(UNLOGGED, {}, "those of this setting"),
)
"""The first is the software's own default."""
