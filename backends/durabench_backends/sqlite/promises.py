"""What each pair of journal mode and synchronous promises, in the words of sqlite.org."""

from __future__ import annotations

from durabench_backends.contract import Domain, Promise

ROLLBACK_MODES = ("delete", "truncate", "persist")
JOURNAL_MODES = (*ROLLBACK_MODES, "memory", "wal", "off")
WAL_HEADER = "database header says WAL"
"""In the origin of a journal mode that a program sets on a file in WAL mode."""
SYNCHRONOUS = ("off", "normal", "full", "extra")  # the position is the number that the pragma reads back

WAL_RESET_FIXES = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
"""First versions of their branches without the lost-commit race of wal.html, *The WAL-Reset Bug* (since 3.7.0)."""

_DIED = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0, Domain.SERVER: 0.0}
_DURABLE = _DIED | {Domain.MACHINE: 0.0, Domain.DRIVE: 0.0}
_PRAGMA = "sqlite.org/pragma.html#pragma_synchronous"

EXTRA = Promise(
    _DURABLE,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, EXTRA: "like FULL with the addition that the directory containing a rollback journal is synced after '
    'that journal is unlinked to commit a transaction in DELETE mode"',
)
DELETE_FULL = Promise(
    _DIED,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, FULL: "an operating system crash or power failure will not corrupt the database"; EXTRA: "provides '
    'additional durability if the commit is followed closely by a power loss"',
)
ROLLBACK_FULL = Promise(
    _DURABLE,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, FULL: "all content is safely written to the disk surface prior to continuing"; what EXTRA adds is for '
    "DELETE mode only",
)
WAL_FULL = Promise(
    _DURABLE,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}: "With synchronous=FULL in WAL mode, an additional sync operation of the WAL file happens after each '
    "transaction commit. The extra WAL sync following each transaction helps ensure that transactions are durable "
    'across a power loss"',
)
WAL_NORMAL = Promise(
    _DIED,
    Domain.DRIVE,
    Domain.DRIVE,
    f'{_PRAGMA}, NORMAL: "WAL mode is always consistent with synchronous=NORMAL, but WAL mode does lose durability"; '
    '"Transactions are durable across application crashes regardless of the synchronous setting or journal mode"',
)
ROLLBACK_NORMAL = Promise(
    _DIED,
    Domain.SERVER,
    Domain.SERVER,
    f'{_PRAGMA}, NORMAL: "There is a very small (though non-zero) chance that a power failure at just the wrong time '
    'could corrupt the database in journal_mode=DELETE on an older filesystem"',
)
OFF = Promise(
    _DIED,
    Domain.SERVER,
    Domain.SERVER,
    f'{_PRAGMA}, OFF: "If the application running SQLite crashes, the data will be safe, but the database might become '
    'corrupted if the operating system crashes or the computer loses power"',
)
NO_JOURNAL = Promise(
    {Domain.NOTHING: 0.0},
    None,
    None,
    'sqlite.org/pragma.html#pragma_journal_mode, MEMORY and OFF: "If the application crashes in the middle of a '
    'transaction … the database file will very likely go corrupt"; an unknown mode may be one of them',
)

PROMISES: dict[tuple[str, str], Promise] = {
    ("delete", "normal"): ROLLBACK_NORMAL,
    ("delete", "full"): DELETE_FULL,
    ("delete", "extra"): EXTRA,
    ("truncate", "normal"): ROLLBACK_NORMAL,
    ("truncate", "full"): ROLLBACK_FULL,
    ("truncate", "extra"): EXTRA,
    ("persist", "normal"): ROLLBACK_NORMAL,
    ("persist", "full"): ROLLBACK_FULL,
    ("persist", "extra"): EXTRA,
    ("wal", "normal"): WAL_NORMAL,
    ("wal", "full"): WAL_FULL,
    ("wal", "extra"): WAL_FULL,
}
"""By (journal_mode, synchronous). With a journal and any other synchronous it is that of OFF, else NO_JOURNAL."""


def promised(journal: str, synchronous: str) -> Promise:
    """The promise of a pair on a disk; what is unknown is taken for the weakest that it may be."""
    journaled = journal in {*ROLLBACK_MODES, "wal"}
    return PROMISES.get((journal, synchronous), OFF if journaled else NO_JOURNAL)
