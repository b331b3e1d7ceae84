"""What embedded stores share: who is asking, what file system lies below a path, and what is allocated there."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends.contract import Domain, Fact, Promise
from durabench_backends.mounts import MEMORY, Mount, disk_of, is_virtual, mount_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

WITHOUT_BARRIERS = frozenset({"nobarrier", "barrier=0", "barrier=none", "fsync_mode=nobarrier", "nostrictsync"})
"""Mount options under which a flush does not reach the drive (ext4.rst, f2fs.rst and btrfs(5), *barrier*;
mount.cifs(8), *nostrictsync*: no flush is sent to the server).
"""
WITHOUT_SYNC = frozenset({"volatile"})
"""Of overlayfs: "all forms of sync calls to the upper filesystem are omitted" (overlayfs.rst, *Volatile mount*)."""

BLOCK_BYTES = 512  # st_blocks counts these whatever the file system's own block size


def process_identity() -> str:
    """The asking process: pid, start time, boot. No other process ever has the same three."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{os.getpid()}:{start_time('self')}:{boot}"


def start_time(pid: int | str) -> str | None:
    """When a process began, in clock ticks since boot (proc(5), ``/proc/pid/stat`` field 22); None if it is gone."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    return line.rpartition(")")[2].split()[19]


def mount_facts(backend: str, path: Path, process: int | str = "self") -> list[Fact]:
    """``<backend>.filesystem``, ``<backend>.mount_options`` and ``<backend>.write_cache`` of an existing path; of
    another ``process``, as that one sees it (`mount_of`).
    """
    mount = mount_of(path.resolve(strict=True) if process == "self" else path, process)
    origin = f"/proc/{process}/mountinfo for {path}"
    return [
        Fact(f"{backend}.filesystem", mount.filesystem, origin),
        Fact(f"{backend}.mount_options", mount.options, origin),
        _write_cache(backend, mount),
    ]


def _write_cache(backend: str, mount: Mount) -> Fact:
    disk = disk_of(mount)
    if disk.write_cache is None:
        return Fact(f"{backend}.write_cache", "", "", f"the kernel names no disk below {mount.filesystem} here")
    virtual = ", virtual disk" if is_virtual(disk) else ""
    return Fact(f"{backend}.write_cache", f"{disk.write_cache}{virtual}", f"/sys/block/{disk.whole}/queue/write_cache")


def on_mount(promise: Promise, backend: str, facts: Mapping[str, str]) -> Promise:
    """``promise`` as far as the mount in ``facts`` can keep it; an unknown file system keeps no more than memory."""
    filesystem = facts.get(f"{backend}.filesystem", "unknown")
    options = set(facts.get(f"{backend}.mount_options", "").split(","))
    if filesystem in MEMORY | {"unknown"} or options & WITHOUT_SYNC:
        return _up_to(promise, Domain.SERVER, f"{filesystem} keeps nothing without the machine")
    if options & WITHOUT_BARRIERS:
        return _up_to(promise, Domain.MACHINE, "mounted without barriers")
    return promise


def kept_here(promise: Promise, facts: Iterable[Fact]) -> Promise:
    """``promise`` as far as the mounts among ``facts`` can keep it; as it is where no fact names a file system.

    A setting's own promise is for a disk. Before it is compared with what `Backend.promise` makes of the facts, the
    place must be taken off it: on a disk of memory a setting is in force, and keeps nothing without the machine.
    """
    values = {fact.id: fact.value for fact in facts}
    for name in values:
        if name.endswith(".filesystem"):
            promise = on_mount(promise, name.removesuffix(".filesystem"), values)
    return promise


def _up_to(promise: Promise, last: Domain, why: str) -> Promise:
    return Promise(
        may_lose_s={domain: seconds for domain, seconds in promise.may_lose_s.items() if domain <= last},
        atomic=None if promise.atomic is None else min(promise.atomic, last),
        ordered=None if promise.ordered is None else min(promise.ordered, last),
        source=f"{promise.source}; {why}",
    )


def allocated_bytes(paths: Iterable[Path]) -> int:
    """Bytes allocated for files, and for folders with all that is in them. What vanishes meanwhile counts nothing."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_blocks * BLOCK_BYTES
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * BLOCK_BYTES  # noqa: PTH118 - many names
    return total


def one_of(words: Collection[str], word: str, what: str) -> str:
    """``word`` if it is one of ``words``, else a ValueError that lists them; it shows no more than a word of the other,
    which may be a piece of a secret.
    """
    if word not in words:
        shown = repr(word) if re.fullmatch(r"[\w-]{0,32}", word) else "…"
        message = f"{what}={shown}: known are {', '.join(words)}"
        raise ValueError(message)
    return word
