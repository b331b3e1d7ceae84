"""The command ``doctor``: what in this machine will spoil numbers or hide losses, with the line that mends it.

Reads /proc and /sys, and times twenty small flushes in the directory under test; changes nothing else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from durabench import device, guest, inventory, tracing
from durabench.run import OLDEST_LINUX, Unsupported, require_linux
from durabench_backends import mounts, place, registry
from durabench_backends.embedded import WITHOUT_BARRIERS, WITHOUT_SYNC
from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

State = Literal["ok", "spoils", "hides", "missing"]
SIGNS: dict[State, str] = {"ok": "✓", "spoils": "!", "hides": "✕", "missing": "✕"}
SWALLOW = ("eatmydata", "nosync", "libfakesync")
"""Libraries that answer a flush without doing it."""
STEADY_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen", "pvclock"})
"""Read without a system call or close to it; others cost a microsecond and more each time."""
SCRATCH = ".durabench-doctor-"
PROCESSORS = Path("/sys/devices/system/cpu")
BUSY_CORES = 0.5
"""More of each processor that others use than this, and latencies are theirs too."""
BUSY_IO_PERCENT = 10.0
STEAL_PERCENT = 2.0
ROOM_BYTES = 4 << 30
MEMORY_BYTES = 1 << 30
UNSTEADY = 8
"""A slowest flush so many times the usual one: the floor moves, and rankings with it."""


@dataclass(frozen=True)
class Finding:
    """One look. ``spoils``: numbers will be worse or less steady; ``hides``: a loss may go unseen; ``missing``: some
    trials cannot run. ``fix`` is the line that mends it.
    """

    what: str
    state: State
    said: str
    fix: str = ""


def show(console: Console, directory: Path) -> int:
    """Print every finding for a campaign in ``directory``; 0 unless something hides losses or is missing, then 3."""
    findings = list(look(directory))
    for one in findings:
        mend = f"; {one.fix}" if one.fix else ""
        console.print(f"{SIGNS[one.state]} {one.what}: {one.said}{mend}", markup=False)
    counts = [f"{sum(one.state == state for one in findings)} {words}" for state, words in _COUNTED.items()]
    console.print(f"\n{', '.join(counts)}", markup=False)
    return 3 if any(one.state in ("hides", "missing") for one in findings) else 0


_COUNTED: dict[State, str] = {"hides": "hide losses", "missing": "missing", "spoils": "spoil numbers", "ok": "in order"}


def look(directory: Path) -> Iterator[Finding]:
    """Every finding, what is missing first. ``directory`` need not exist; nothing is left in it."""
    system = f"{platform.system()} {platform.release()}"
    try:
        require_linux()
    except Unsupported:
        oldest = ".".join(map(str, OLDEST_LINUX))
        yield Finding("system", "missing", system, f"trials need Linux {oldest} or newer")
        return
    yield Finding("system", "ok", system)
    for check in (_programs, _backends, _virtual_machine, _tracing, _inotify):
        yield from check()
    for check_processor in (_governor, _load, _steal, _quota, _clock, _memory, _laptop_mode, _preload):
        yield from check_processor()
    for check_disk in (_campaign, _filesystem, _mount_options, _write_cache, _room, _flush):
        yield from check_disk(directory)


def _programs() -> Iterator[Finding]:
    for tool, install in inventory.TOOLS.items():
        here = shutil.which(tool) is not None
        yield Finding(tool, "ok" if here else "missing", "here" if here else "not found", "" if here else install)


def _backends() -> Iterator[Finding]:
    for name in registry.names():
        lacks = inventory.lacks(name)
        yield Finding(f"backend {name}", "missing" if lacks else "ok", "; ".join(lacks) or "here")


def _virtual_machine() -> Iterator[Finding]:
    why = guest.why_not()
    if why is not None:
        yield Finding("machine to reset", "missing", "power cuts and resets cannot be tried", why)
        return
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        yield Finding("machine to reset", "ok", "QEMU is here, /dev/kvm may be used")
    else:
        fix = "sudo usermod -aG kvm $USER" if Path("/dev/kvm").exists() else "enable (nested) virtualisation"
        yield Finding("machine to reset", "spoils", "without /dev/kvm it is emulated: ten times slower", fix)


def _tracing() -> Iterator[Finding]:
    try:
        tracing.require()
    except tracing.NotAllowed as error:
        yield Finding("tracing", "spoils", f"{error.why}; verify cannot count flushes", error.fix)
        return
    scope = mounts.read(Path("/proc/sys/kernel/yama/ptrace_scope")) or "0"
    if scope != "0" and os.geteuid() != 0:
        fix = "sudo sysctl kernel.yama.ptrace_scope=0, or verify as root"
        yield Finding("tracing", "spoils", f"ptrace_scope is {scope}: a running server cannot be traced", fix)
    else:
        yield Finding("tracing", "ok", "strace is here and may trace")


def _inotify() -> Iterator[Finding]:
    descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        why = os.strerror(ctypes.get_errno())
        yield Finding("inotify", "spoils", f"refused ({why})", "sudo sysctl fs.inotify.max_user_instances=512")
        return
    os.close(descriptor)
    yield Finding("inotify", "ok", "can be used")


def _governor() -> Iterator[Finding]:
    found = sorted(
        {governor for path in PROCESSORS.glob("cpu[0-9]*/cpufreq/scaling_governor") if (governor := mounts.read(path))}
    )
    if set(found) - {"performance"}:
        fix = "sudo cpupower frequency-set -g performance"
        yield Finding("frequency scaling", "spoils", f"governor {', '.join(found)}: clocks follow the load", fix)
    else:
        yield Finding("frequency scaling", "ok", found[0] if found else "not this system's to choose")


def _load() -> Iterator[Finding]:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    stalled = re.search(r"some avg10=([\d.]+)", mounts.read(Path("/proc/pressure/io")))
    io_percent = float(stalled[1]) if stalled else 0.0
    said = f"load {load:.1f} on {cores} processors, tasks waited for disks in {io_percent:.0f} % of the last 10 s"
    busy = load > BUSY_CORES * cores or io_percent > BUSY_IO_PERCENT
    yield Finding("load", "spoils" if busy else "ok", said, "stop what else runs here, or wait" if busy else "")


def _steal() -> Iterator[Finding]:
    times = psutil.cpu_times()
    percent = 100 * getattr(times, "steal", 0.0) / (sum(times) or 1)
    said = f"the hypervisor took {percent:.1f} % of the processor time since boot"
    stolen = percent > STEAL_PERCENT
    fix = "a machine with dedicated processors" if stolen else ""
    yield Finding("stolen time", "spoils" if stolen else "ok", said, fix)


def _quota() -> Iterator[Finding]:
    own = mounts.read(Path("/proc/self/cgroup")).rpartition("::")[2].partition("\n")[0].strip("/")
    limit = mounts.read(Path("/sys/fs/cgroup") / own / "cpu.max") or "max"
    if limit.startswith("max"):
        yield Finding("processor quota", "ok", "none")
    else:
        yield Finding(
            "processor quota", "spoils", f"{limit} µs: puts stop in between", "lift cpu.max (docker: no --cpus)"
        )


def _clock() -> Iterator[Finding]:
    source = mounts.read(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")) or "unknown"
    if source in STEADY_CLOCKS:
        yield Finding("clock", "ok", source)
    else:
        fix = "boot with clocksource=tsc where the processor has a steady one"
        yield Finding("clock", "spoils", f"{source}: reading the time takes long itself", fix)


def _memory() -> Iterator[Finding]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    if memory.available < MEMORY_BYTES:
        yield Finding("memory", "spoils", f"{_gib(memory.available)} free: servers will wait for it", "free some")
    elif swap.used > swap.total / 10:
        said = f"{_gib(swap.used)} of swap in use: a put may wait for the disk it measures"
        yield Finding("memory", "spoils", said, "sudo swapoff -a && sudo swapon -a")
    else:
        yield Finding("memory", "ok", f"{_gib(memory.available)} free, {_gib(swap.used)} swapped out")


def _laptop_mode() -> Iterator[Finding]:
    mode = mounts.read(Path("/proc/sys/vm/laptop_mode")) or "0"
    if mode != "0":
        said = f"{mode}: the kernel holds writes back, and more is lost than elsewhere"
        yield Finding("laptop mode", "spoils", said, "sudo sysctl vm.laptop_mode=0")
    else:
        yield Finding("laptop mode", "ok", "off")


def _preload() -> Iterator[Finding]:
    """What is loaded into every program, servers included."""
    everywhere = mounts.read(Path("/etc/ld.so.preload")).split()
    loaded = [*re.split(r"[ :]+", os.environ.get("LD_PRELOAD", "")), *everywhere]
    names = [Path(one).name for one in loaded if one]
    swallowing = [name for name in names if any(word in name for word in SWALLOW)]
    fix = "unset LD_PRELOAD" if not everywhere else "sudo rm /etc/ld.so.preload; unset LD_PRELOAD"
    if swallowing:
        said = f"{', '.join(swallowing)} answers flushes without doing them"
        yield Finding("preloaded libraries", "hides", said, fix)
    elif names:
        yield Finding("preloaded libraries", "spoils", f"{', '.join(names)} is loaded into every program", fix)
    else:
        yield Finding("preloaded libraries", "ok", "none")


def _campaign(directory: Path) -> Iterator[Finding]:
    name, pid = device.name_of(directory), device.holder(directory)
    if pid is None:
        yield Finding("device", "ok", f"{name}: no other campaign works on it")
    else:
        said = f"{name}: the campaign of process {pid} works on it, and run and plan refuse a second one"
        yield Finding("device", "missing", said, "wait for it, or choose another disk with --dir")


def _filesystem(directory: Path) -> Iterator[Finding]:
    filesystem = mounts.mount_of(directory).filesystem
    if filesystem in mounts.MEMORY:
        said = f"{filesystem} is memory: no flush means anything there"
        yield Finding("file system", "hides", said, "choose a disk with --dir")
    elif filesystem in mounts.LAYERS | mounts.REMOTE or filesystem.startswith("fuse"):
        said = f"{filesystem} is not a local disk: its latencies are not printed"
        yield Finding("file system", "spoils", said, "choose a disk with --dir (in a container, a volume)")
    else:
        yield Finding("file system", "ok", f"{filesystem} at {directory}")


def _mount_options(directory: Path) -> Iterator[Finding]:
    options = set(mounts.mount_of(directory).options.split(","))
    if found := options & (WITHOUT_BARRIERS | WITHOUT_SYNC):
        said = f"{', '.join(sorted(found))}: flushes stop before the drive"
        yield Finding("mount options", "hides", said, "mount it without")
    elif found := options & {"sync", "dirsync"}:
        said = (
            f"{', '.join(sorted(found))}: every write is flushed, so that settings without a flush look safe and slow"
        )
        yield Finding("mount options", "hides", said, "mount -o remount,async")
    else:
        yield Finding("mount options", "ok", "none that changes a flush")


def _write_cache(directory: Path) -> Iterator[Finding]:
    disk = mounts.disk_of(mounts.mount_of(directory))
    if disk.write_cache == "write through" and mounts.is_virtual(disk):
        said = f"{disk.whole} is virtual and takes no flushes: what its host caches is lost with the host, unseen here"
        yield Finding("write cache", "hides", said, "let the hypervisor offer flushes (cache writeback or none)")
    elif disk.write_cache is None:
        yield Finding("write cache", "ok", "the kernel names no disk here")
    else:
        virtual = " (virtual: whether its host keeps flushes, only the host knows)" if mounts.is_virtual(disk) else ""
        yield Finding("write cache", "ok", f"{disk.whole}: {disk.write_cache}{virtual}")


def _room(directory: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(_existing(directory)).free
    if free < ROOM_BYTES:
        yield Finding("room", "spoils", f"{_gib(free)} free: a full disk ends a campaign", "free some, or --dir")
    else:
        yield Finding("room", "ok", f"{_gib(free)} free")


def _flush(directory: Path) -> Iterator[Finding]:
    """A few flushes, timed and counted by the disk itself."""
    parent = _existing(directory)
    try:
        with OwnFolder(parent, SCRATCH) as scratch:
            latencies, counted = place.measure(scratch.path)
    except OSError as error:
        yield Finding(
            "flush", "missing", f"{parent} cannot be written to: {error.strerror}", "choose another with --dir"
        )
        return
    latencies.sort()
    median_ns, worst_ns = latencies[len(latencies) // 2], latencies[-2]
    said = f"{median_ns / 1e6:.3g} ms (median of {len(latencies)}), {worst_ns / 1e6:.3g} ms at worst but one"
    sent = mounts.disk_of(mounts.mount_of(parent)).write_cache == "write back"
    if median_ns < place.NO_DRIVE_NS:
        yield Finding("flush", "hides", f"{said}: no drive is that fast", "find what swallows it, or choose a disk")
    elif sent and counted == 0:
        yield Finding("flush", "hides", f"{said}: none of them reached the disk", "find what swallows it")
    elif median_ns < place.PROTECTED_NS:
        why = "only a drive with power-loss protection is that fast, or one that lies"
        yield Finding("flush", "spoils", f"{said}: {why}", "name its protection, or pull the plug (diskchecker.pl)")
    elif worst_ns > UNSTEADY * median_ns:
        yield Finding("flush", "spoils", f"{said}: it moves", "stop what else uses the disk; then run longer")
    else:
        yield Finding("flush", "ok", said)


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there."""
    path = directory.absolute()
    return next(one for one in (path, *path.parents) if one.is_dir())


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
