"""What each way to write a file promises, from a bare overwrite to what survives a power cut."""

from __future__ import annotations

from typing import Final

from durabench_backends.contract import Domain, Promise

IN_PLACE: Final = "in-place"
RENAME: Final = "rename"
FSYNC_FILE: Final = "fsync-file"
FSYNC_DIR: Final = "fsync-dir"

_PROCESSES_DIE = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0, Domain.SERVER: 0.0}
_WRITTEN = (
    'POSIX.1-2017, write(): after it "has successfully returned, any successful read() … shall return the data '
    'specified by the write()"'
)

PROMISES: dict[str, Promise] = {
    IN_PLACE: Promise(
        _PROCESSES_DIE,
        atomic=None,
        ordered=None,
        source=f'{_WRITTEN}; write(2), NOTES: it "does not make any guarantee that data has been committed to disk"',
    ),
    RENAME: Promise(
        _PROCESSES_DIE,
        atomic=Domain.SERVER,
        ordered=None,
        source=f'{_WRITTEN}; rename(2), DESCRIPTION: "it will be atomically replaced"; nothing of either reaches the '
        "disk without fsync(2)",
    ),
    FSYNC_FILE: Promise(
        _PROCESSES_DIE,
        atomic=Domain.DRIVE,
        ordered=None,
        source='fsync(2), DESCRIPTION: "does not necessarily ensure that the entry in the directory containing the '
        'file has also reached disk"',
    ),
    FSYNC_DIR: Promise(
        _PROCESSES_DIE | {Domain.MACHINE: 0.0, Domain.DRIVE: 0.0},
        atomic=Domain.DRIVE,
        ordered=Domain.DRIVE,
        source='fsync(2), DESCRIPTION: "This includes writing through or flushing a disk cache if present"; for the '
        'directory entry "an explicit fsync() on a file descriptor for the directory is also needed"',
    ),
}
UNKNOWN = Promise(
    {Domain.NOTHING: 0.0},
    atomic=None,
    ordered=None,
    source="how the files are written is not known: bytes may even stay in the program's own buffer",
)

IN_PLACE_FSYNC: Final = "in-place-fsync"
WATCHED: dict[str, Promise] = {
    IN_PLACE: PROMISES[IN_PLACE],
    RENAME: PROMISES[RENAME],
    FSYNC_FILE: PROMISES[FSYNC_FILE],
    IN_PLACE_FSYNC: Promise(
        _PROCESSES_DIE | {Domain.MACHINE: 0.0, Domain.DRIVE: 0.0},
        atomic=None,
        ordered=None,
        source='fsync(2), DESCRIPTION: "transfers ("flushes") all modified in-core data of … the file … to the disk '
        'device"; nothing there makes an overwrite all or nothing',
    ),
    FSYNC_DIR: PROMISES[FSYNC_DIR],
}
"""What a watched program may be seen to do, weakest first: our own ways, and to overwrite or append and then flush."""


def unsaid(url: str) -> str:
    """Why nothing is known of a directory whose URL names no way to write, and the line that mends it."""
    return (
        f"the URL does not say how your program writes: durabench verify '{url}?write=fsync-dir'  "
        f"# write= as your program does it; or let us watch it: durabench verify '{url}' -- YOUR PROGRAM"
    )
