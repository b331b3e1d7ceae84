"""What puts cost beside their time: bytes written by the processes that write, and by the device below them.

The writers' own column is ``wchar`` of ``/proc/PID/io``, over the driver and the whole tree of the daemons: what they
handed to write(2) and its kin, logs and preallocation and answers on pipes included, what was sent on sockets and
written through a mapping not. (``write_bytes`` there counts whole folios since ext4 has large ones: 8 KiB into a log
file are then a mebibyte.) The device's column is the sectors that its block device wrote
(``/sys/class/block/…/stat``), between two moments at which nothing was owed to the file system: file system journal
and all, and what anybody else wrote there meanwhile.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends import mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SECTOR_BYTES = 512
SECTORS_WRITTEN = 6
"""Place in ``stat`` of a block device (Documentation/block/stat.rst)."""
COLD_HOW = (
    "the writer has closed its store; every file of the store was synced and dropped from the page cache with "
    "posix_fadvise(DONTNEED), and was seen to be gone (mincore); then a fresh process read one value. "
    "Directory entries and inodes stay cached"
)
COLD_SERVER = "a server keeps values in memory of its own, which nobody can drop from outside"
COLD_KEPT = "the page cache could not be dropped here"


def written_bytes(pids: Iterable[int]) -> dict[int, int] | None:
    """``wchar`` of each process that still lives; None where the kernel does not tell."""
    found = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/io").read_text("ascii").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            return None
        found[pid] = int(dict(line.split(": ") for line in lines)["wchar"])
    return found or None


def written_since(before: Mapping[int, int] | None, after: Mapping[int, int] | None) -> int | None:
    """What was written between two looks. A process that began meanwhile counts whole, one that ended not at all."""
    if before is None or after is None:
        return None
    return sum(count - before.get(pid, 0) for pid, count in after.items())


class Device:
    """The block device below a directory, as far as the kernel tells of one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        name = mounts.disk_of(mounts.mount_of(directory)).name
        self._stat = Path("/sys/class/block") / (name or "none") / "stat"

    def written_bytes(self, *, settled: bool = True) -> int | None:
        """All it ever wrote; None where there is no such device. ``settled``: once nothing is owed to it any more."""
        if settled:
            self.settle()
        try:
            return int(self._stat.read_text("ascii").split()[SECTORS_WRITTEN]) * SECTOR_BYTES
        except (OSError, IndexError, ValueError):
            return None

    def settle(self) -> None:
        """Write out all that the file system still owes. Never before a fault: nothing is killed here."""
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            ctypes.CDLL(None).syncfs(descriptor)
        finally:
            os.close(descriptor)


def drop_from_cache(directory: Path) -> bool:
    """Drop every file below ``directory`` from the page cache; whether all of them were seen to be gone."""
    gone = True
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                gone = _drop(path) and gone
    return gone


def _drop(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOATIME if os.geteuid() == 0 else os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        os.fsync(descriptor)  # a dirty page is not dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return not size or not _any_cached(descriptor, size)
    finally:
        os.close(descriptor)


def _any_cached(descriptor: int, size: int) -> bool:
    """Whether a page of a file is in the page cache: asked of mincore(2), since a read that must not wait may well
    begin to read ahead.
    """
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as view:
        first = ctypes.c_char.from_buffer(view)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages)
        del first  # the view cannot be closed while something points into it
    return bool(failed) or any(page & 1 for page in pages)
