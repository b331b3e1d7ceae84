"""What the place of an embedded store means for a goal: its file system, mount options and drive, read and probed.

Shared by the adapters without a server; the ids begin with the adapter's own prefix.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_backends.contract import Check, Domain
from durabench_backends.embedded import WITHOUT_BARRIERS, WITHOUT_SYNC
from durabench_backends.mounts import LAYERS, MEMORY, REMOTE, disk_of, mount_of, mounted_in, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from durabench_backends.contract import Fact, Goal

WITHOUT_JOURNAL = frozenset({"vfat", "msdos", "exfat", "ext2", "ntfs", "ntfs3"})
"""File systems whose own structure a power cut may damage, whatever a program flushed."""
PROBE_PREFIX = ".durabench-probe-"
"""Begins the name of the folder of a probe, which holds a lock as long as the probing process lives."""
PROBE_LOCK = "lock"
FLUSHES = 20
FLUSH_BYTES = 4096
NO_DRIVE_NS = 1_500
"""No drive answers a flush sooner; a call that flushes nothing does (memory 0.7 µs; with power-loss protection 1.6
µs).
"""
PROTECTED_NS = 50_000
"""What only a drive with power-loss protection reaches, or one that does not do what it says."""
ONE_FLUSH_COUNT = 15
"""Position of the completed flush requests in /sys/block/*/stat (iostats.rst, field 16; since Linux 5.5)."""


def pages(prefix: str, what: str) -> dict[str, str]:
    """The pages of the checks below; ``what`` says in a word what is stored."""
    return {
        f"{prefix}.filesystem": (
            f"The file system that holds {what}, from /proc/self/mountinfo. One in memory (tmpfs, ramfs) loses "
            "everything with the machine. The upper layer of an overlay goes when its container is removed. On a "
            "network or host share (nfs, cifs, 9p, virtiofs), and under FUSE, a flush means what the other side "
            "makes of it. One without a journal (vfat, ext2) may itself be damaged by a power cut. Mend it: keep "
            "the data on a local ext4, xfs or btrfs, in a container on a volume. Source: kernel.org, "
            "filesystems/tmpfs.rst and overlayfs.rst; nfs(5)."
        ),
        f"{prefix}.mount_options": (
            "Mount options that change what a flush does. nobarrier, barrier=0 (and fsync_mode=nobarrier, "
            "nostrictsync): flushes stop before the drive, a power cut loses what its cache held. volatile "
            "(overlay): no flush is done at all. noauto_da_alloc and data=writeback (ext4): a file replaced without "
            "fsync may be empty or hold old blocks after a crash. soft (nfs): a write that timed out is dropped. "
            "Mend it: mount -o remount,barrier=1 and the like, and the same in /etc/fstab. Source: ext4.rst, "
            "btrfs(5), overlayfs.rst (Volatile mount), nfs(5) (soft), mount.cifs(8)."
        ),
        f"{prefix}.write_cache": (
            "Whether the kernel sends flushes to the disk below. 'write back': it does. 'write through': it does "
            "not, because the disk said that it has no volatile cache. Right for a drive with power-loss protection; "
            "a virtual disk whose host caches in memory, and does not offer flushes, loses that cache with the host. "
            "Mend it: at the hypervisor, Firecracker cache_type Writeback, QEMU cache=writeback or none, never "
            "unsafe. Source: kernel.org, block/writeback_cache_control.rst; ABI sysfs-block, queue/write_cache."
        ),
        f"{prefix}.directory_fsync": (
            "Probe. Whether fsync of a directory works here: without it a new name may be gone after a crash, "
            "although the file's bytes were flushed. Some network and FUSE file systems refuse it. Mend it: another "
            'file system. Source: fsync(2): "an explicit fsync() on a file descriptor for the directory is also '
            'needed".'
        ),
        f"{prefix}.flush_latency": (
            "Probe. How long fdatasync takes after a write of 4 KiB, and whether the disk counted the flush. Below "
            f"{NO_DRIVE_NS / 1000:g} µs no drive was asked. Below {PROTECTED_NS / 1000:g} µs only one with "
            "power-loss protection can be that fast, or one that lies (QEMU cache=unsafe). A flush that the disk "
            "never counted did not reach it (libeatmydata, nobarrier). Mend it: find who swallows the flush, and "
            "prove the drive by pulling the plug (diskchecker.pl). Source: PostgreSQL documentation, 28.1 "
            "Reliability; kernel.org, admin-guide/iostats.rst."
        ),
    }


def probes(prefix: str) -> tuple[str, ...]:
    """Ids of what only `probe` can tell."""
    return (f"{prefix}.directory_fsync", f"{prefix}.flush_latency")


def checks(prefix: str, facts: Mapping[str, Fact], goal: Goal, *, flushes: bool) -> list[Check]:
    """File system, mount options and write cache for a goal; pure. ``flushes``: the writer flushes what it replaces."""
    return [
        _filesystem(prefix, facts, goal),
        _mount_options(prefix, facts, goal, flushes=flushes),
        _write_cache(prefix, facts),
    ]


def _filesystem(prefix: str, facts: Mapping[str, Fact], goal: Goal) -> Check:
    identifier = f"{prefix}.filesystem"
    fact = facts.get(identifier)
    depends = goal.survive >= Domain.MACHINE
    name = (fact.value if fact and not fact.unread else "") or "unknown"
    origin = fact.origin if fact else None
    move = "keep it on a local ext4, xfs or btrfs (in a container: on a volume)"
    if name == "unknown":
        why = (fact.unread if fact else "") or "/proc/self/mountinfo names no mount for it"
        return Check(identifier, "unknown" if depends else "skip", evidence=why, fix="mount /proc where this runs")
    if name in MEMORY:
        loses = "everything, with the machine: it is memory"
        return Check(identifier, "fail" if depends else "warn", name, origin, loses, move)
    warnings = {
        **dict.fromkeys(LAYERS, "everything, with the container whose upper layer it is"),
        **dict.fromkeys(
            REMOTE, "what the other side acknowledges before it is stored; its flush is not this machine's"
        ),
        **dict.fromkeys(WITHOUT_JOURNAL, "possibly the file system itself, when the power goes: it has no journal"),
    }
    if name in warnings or name.startswith("fuse"):
        loses = warnings.get(name, "what the process behind it acknowledges before it is stored")
        return Check(identifier, "warn", name, origin, loses, move)
    return Check(identifier, "ok", name, origin)


def _mount_options(prefix: str, facts: Mapping[str, Fact], goal: Goal, *, flushes: bool) -> Check:
    identifier = f"{prefix}.mount_options"
    fact = facts.get(identifier)
    if fact is None or fact.unread:
        return Check(
            identifier, "skip", evidence=(fact and fact.unread) or "not read", fix="mount /proc where this runs"
        )
    options = set(fact.value.split(","))
    if found := options & WITHOUT_SYNC:
        status, loses = (
            "fail" if goal.survive >= Domain.MACHINE else "warn",
            "everything since the mount: nothing is flushed",
        )
        fix = "mount the overlay without volatile"
    elif found := options & WITHOUT_BARRIERS:
        status, loses = (
            "fail" if goal.survive >= Domain.DRIVE else "warn",
            "what the drive's cache held, when the power goes",
        )
        fix = f"mount -o remount,{'barrier=1' if 'barrier=0' in found else 'barrier'} (and the same in /etc/fstab)"
    elif found := options & ({"soft", "softerr"} | (set() if flushes else {"noauto_da_alloc", "data=writeback"})):
        soft = bool(found & {"soft", "softerr"})
        status = "warn"
        loses = "writes that time out" if soft else "the content of a replaced file: empty or old blocks after a crash"
        fix = "mount -o hard" if soft else "mount -o remount,auto_da_alloc,data=ordered, or write with fsync"
    elif "ro" in options:
        found, status, loses, fix = {"ro"}, "warn", "everything new: nothing can be written", "mount -o remount,rw"
    else:
        return Check(identifier, "ok", fact.value, fact.origin)
    return Check(identifier, status, ",".join(sorted(found)), fact.origin, loses, fix)  # type: ignore[arg-type]


def _write_cache(prefix: str, facts: Mapping[str, Fact]) -> Check:
    identifier = f"{prefix}.write_cache"
    fact = facts.get(identifier)
    if fact is None or fact.unread:
        return Check(identifier, "skip", evidence=(fact and fact.unread) or "not read")
    if fact.value.startswith("write through") and "virtual" in fact.value:
        loses = "what the host's cache held, when the host loses power: no flush is sent to this disk"
        fix = 'let the hypervisor offer flushes (Firecracker "cache_type": "Writeback", QEMU cache=writeback or none)'
        return Check(identifier, "warn", fact.value, fact.origin, loses, fix)
    return Check(identifier, "ok", fact.value, fact.origin)


def probe(prefix: str, parent: Path, goal: Goal) -> Iterator[Check]:
    """The checks of `probes`, in a folder of its own in ``parent``, removed again with those that dead ones left."""
    try:
        with _folder(parent) as folder:
            yield _directory_fsync(prefix, folder, goal)
            yield _flush_latency(prefix, folder, goal)
    except OSError as error:
        why = f"cannot write in {parent}: {error.strerror}"
        for identifier in probes(prefix):
            yield Check(identifier, "unknown", evidence=why, fix=f"run it as the user who writes in {parent}")


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PROBE_PREFIX, dir=parent))
    lock = os.open(folder / PROBE_LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder)


def sweep(parent: Path) -> None:
    """Remove the folders of probes that were killed: ours by name, owner and a lock that nobody holds any more. A
    process id would not tell: in another namespace of processes it is somebody else's.
    """
    for folder in parent.glob(f"{PROBE_PREFIX}*"):
        known, as_made = folder.lstat(), len(folder.name) == len(PROBE_PREFIX) + 8  # by mkdtemp
        if not as_made or not stat.S_ISDIR(known.st_mode) or known.st_uid != os.geteuid() or mounted_in(folder):
            continue
        with suppress(OSError):
            lock = os.open(folder / PROBE_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _directory_fsync(prefix: str, folder: Path, goal: Goal) -> Check:
    identifier = f"{prefix}.directory_fsync"
    (folder / "name").touch()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        depends = goal.survive >= Domain.MACHINE and goal.max_loss_s == 0
        return Check(
            identifier,
            "fail" if depends else "warn",
            f"refused: {errno.errorcode.get(error.errno or 0, 'an error')}",
            str(folder.parent),
            loses="new names, when the machine dies: their directory cannot be flushed",
            fix="keep it on a local ext4, xfs or btrfs",
        )
    finally:
        os.close(descriptor)
    return Check(identifier, "ok", "supported", str(folder.parent), evidence="wrote one empty file, and removed it")


def _flush_latency(prefix: str, folder: Path, goal: Goal) -> Check:
    identifier = f"{prefix}.flush_latency"
    latencies, counted = measure(folder)
    median_ns = sorted(latencies)[len(latencies) // 2]
    value = f"{median_ns / 1e6:.3g} ms" if median_ns >= 100_000 else f"{median_ns / 1e3:.3g} µs"
    flushed = "" if counted is None else f"; the disk counted {counted} flushes meanwhile"
    evidence = f"median of {FLUSHES} × (write {FLUSH_BYTES} bytes, fdatasync){flushed}; written, and removed"
    disk = disk_of(mount_of(folder))
    sent = disk.write_cache == "write back"
    if median_ns < NO_DRIVE_NS or (counted == 0 and sent):
        limit = Domain.MACHINE if median_ns < NO_DRIVE_NS else Domain.DRIVE
        return Check(
            identifier,
            "fail" if goal.survive >= limit else "warn",
            value,
            str(folder.parent),
            loses="everything that was only said to be flushed: the flush does not reach the drive",
            fix="look at `durabench doctor`: LD_PRELOAD (libeatmydata), mount options, a file system in memory",
            evidence=evidence,
        )
    if median_ns < PROTECTED_NS:
        return Check(
            identifier,
            "warn",
            value,
            str(folder.parent),
            loses="what the drive's cache held, unless it has power-loss protection: nothing else is that fast",
            fix="name the drive's power-loss protection, or prove it by pulling the plug (diskchecker.pl)",
            evidence=evidence,
        )
    return Check(identifier, "ok", value, str(folder.parent), evidence=evidence)


def measure(folder: Path) -> tuple[list[int], int | None]:
    """(ns of each fdatasync after a small write, flushes that the disk counted meanwhile). The second is an upper
    bound, others flush too; None where the disk does not count (a logical volume, no disk at all, an old kernel).
    """
    stat = Path("/sys/block") / (disk_of(mount_of(folder)).whole or "-") / "stat"
    before = _flush_count(stat)
    latencies = []
    descriptor = os.open(folder / "flush", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(FLUSHES):
            os.write(descriptor, b"\xa5" * FLUSH_BYTES)
            began_ns = time.perf_counter_ns()
            os.fdatasync(descriptor)
            latencies.append(time.perf_counter_ns() - began_ns)
    finally:
        os.close(descriptor)
        (folder / "flush").unlink()
    # One that never counted any since boot is a layer above the disk that counts.
    return latencies, _flush_count(stat) - before if before else None


def _flush_count(stat: Path) -> int:
    fields = read(stat).split()
    return int(fields[ONE_FLUSH_COUNT]) if len(fields) > ONE_FLUSH_COUNT else 0
