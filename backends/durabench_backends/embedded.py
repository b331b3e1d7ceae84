"""What embedded stores share: who is asking, what file system lies below a path, and what is allocated there."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends.contract import Domain, Fact, Promise

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

VOLATILE_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "rootfs"})
"""File systems that live in memory: nothing on them outlives the machine."""
WITHOUT_BARRIERS = frozenset({"nobarrier", "barrier=0"})
"""Mount options under which a flush does not reach the drive (ext4.rst and btrfs(5), *barrier*)."""
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


@dataclass(frozen=True)
class Mount:
    """The mount that a path is on: its file system's name and its options, the superblock's included."""

    filesystem: str
    options: str


def mount_of(path: Path) -> Mount:
    """The mount below ``path``, which must exist (proc(5), ``/proc/pid/mountinfo``)."""
    real = path.resolve(strict=True)
    best, found = -1, Mount("unknown", "")
    for line in Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape").splitlines():
        own, _, shared = line.partition(" - ")
        point, options = own.split()[4:6]
        filesystem, *rest = shared.split()
        folder = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point))
        # A later mount on the same folder hides the earlier one, hence >=.
        if real.is_relative_to(folder) and len(folder.parts) >= best:
            best = len(folder.parts)
            options = ",".join([options, *(rest[-1:] if len(rest) > 1 else [])])
            found = Mount(filesystem, ",".join(dict.fromkeys(options.split(","))))
    return found


def mount_facts(backend: str, path: Path) -> list[Fact]:
    """``<backend>.filesystem`` and ``<backend>.mount_options`` of an existing path."""
    mount = mount_of(path)
    origin = f"/proc/self/mountinfo for {path}"
    return [
        Fact(f"{backend}.filesystem", mount.filesystem, origin),
        Fact(f"{backend}.mount_options", mount.options, origin),
    ]


def on_mount(promise: Promise, backend: str, facts: Mapping[str, str]) -> Promise:
    """``promise`` as far as the mount in ``facts`` can keep it; an unknown file system keeps no more than memory."""
    filesystem = facts.get(f"{backend}.filesystem", "unknown")
    options = set(facts.get(f"{backend}.mount_options", "").split(","))
    if filesystem in VOLATILE_FILESYSTEMS | {"unknown"} or options & WITHOUT_SYNC:
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
    """``word`` if it is one of ``words``, else a ValueError that lists them."""
    if word not in words:
        message = f"{what}={word!r}: known are {', '.join(words)}"
        raise ValueError(message)
    return word
