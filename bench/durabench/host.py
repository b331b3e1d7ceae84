"""What a result must say about where it was measured: machine, disk under test, file system, commit.

Read from /proc, /sys and the mount table, without rights and without writing. No host name, no serial number, no
machine-id: a result is shared.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench_backends import mounts

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB = 1 << 30
_GIT_S = 20.0

_LIKENESS = ("model", "driver", "bus", "size_bytes", "block_bytes", "rotational", "write_cache", "fua", "scheduler")
"""Of a disk, what its numbers depend on. Never its serial number."""
_MATTERS = re.compile(
    r"((no)?(barrier|delalloc|auto_da_alloc|discard|datacow|datasum|ssd|flushoncommit|treelog|journal|wsync|dax)"
    r"|(no|rel|strict|lazy)a?time|sync|dirsync|volatile|nostrictsync)(=|$)"
    r"|(data|commit|compress|compress-force|allocsize|stripe|swidth|sunit|logbufs|logbsize|fsync_mode)="
    r"|journal_(checksum|async_commit)"
)
"""Mount options (their beginnings) that change when and how a file system writes; names of files and people do not."""

_VENDORS = (
    *("KVM", "QEMU", "Firecracker", "VMware", "VirtualBox", "Xen"),
    *("Amazon EC2", "Google", "Microsoft", "Parallels", "bhyve"),
)


def machine_facts(directory: Path) -> dict[str, Any]:
    """Machine, and the disk under ``directory`` (which need not exist yet); ``id`` is the host of the rows.

    ``latency`` is None where latencies of this disk mean something, else why they do not.
    """
    import psutil  # only `run` needs it

    mount = mounts.mount_of(directory)
    facts: dict[str, Any] = {
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu_model": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "virtualisation": _virtualisation(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "device": _device(mount),
        "filesystem": mount.filesystem,
        "mount_options": mount.options,
        "latency": why_no_latency(directory),
    }
    return {"id": machine8(facts), **facts}


def machine8(facts: Mapping[str, Any]) -> str:
    """8 hex digits of what makes numbers of one place unlike another's, and stays the same as long as that does.

    The kernel, the file system and those of its mount options that change how it writes belong to it, and of the disk
    what it is and where it hangs: two virtual disks often tell nothing else apart. What a reboot may change does not:
    memory is rounded to GiB, the device's name is left out.
    """
    device = facts["device"]
    stable = [
        facts["architecture"],
        facts["cpu_model"],
        facts["cores"],
        round(facts["memory_bytes"] / _GIB),
        facts["virtualisation"],
        facts["kernel"],
        facts["filesystem"],
        sorted(option for option in set(facts["mount_options"].split(",")) if _MATTERS.match(option)),
        *(device.get(name) for name in _LIKENESS),
    ]
    return hashlib.sha256(json.dumps(stable).encode()).hexdigest()[:8]


def why_no_latency(directory: Path) -> str | None:
    """Why latencies measured in ``directory`` say nothing about a local disk; None where they do."""
    filesystem = mounts.mount_of(directory).filesystem
    if filesystem in mounts.MEMORY:
        return f"{filesystem} is memory, not a disk"
    if filesystem in mounts.LAYERS:
        return f"{filesystem} is layers of other file systems, not a disk"
    if filesystem in mounts.REMOTE:
        return f"{filesystem} is a network or host share, not a local disk"
    if filesystem.startswith("fuse"):
        return f"{filesystem} runs in a process of its own, not on a disk"
    return None


def commit_facts() -> dict[str, Any] | None:
    """Commit of the checkout that this code is run from, and whether it was changed since; None outside of one.

    What lies in results/ is no change: one reference run would else make the next one's checkout dirty.
    """
    checkout = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    head = _git(git, checkout, "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _git(git, checkout, "status", "--porcelain", "--", ".", ":(exclude)results")
    return {"commit": head, "dirty": None if changes is None else changes != ""}


def _git(git: str, checkout: Path, *arguments: str) -> str | None:
    """What git prints; None when it refuses (another owner's checkout, none at all)."""
    from durabench import process  # Linux only, while reports are read everywhere

    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env = {**kept, "LANG": "C.UTF-8", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return process.output((git, *arguments), deadline_s=_GIT_S, env=env, cwd=checkout).strip()
    except process.HarnessError:
        return None


def _cpu_model() -> str:
    for line in mounts.read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model", "Processor"):
            return value.strip()
    return platform.processor() or platform.machine()


def _virtualisation() -> str:
    """Who runs this machine, as far as it lets on; "none" for bare metal, with "container" added inside of one."""
    dmi = " ".join(
        mounts.read(Path("/sys/class/dmi/id") / name) for name in ("sys_vendor", "product_name", "board_vendor")
    )
    named = next((vendor for vendor in _VENDORS if vendor.lower() in dmi.lower()), "")
    named = named or mounts.read(Path("/sys/hypervisor/type"))
    if not named and re.search(r"^flags\s*:.*\bhypervisor\b", mounts.read(Path("/proc/cpuinfo")), re.MULTILINE):
        named = "a hypervisor"
    contained = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    return f"{named or 'none'}{', container' if contained else ''}"


def _device(mount: mounts.Mount) -> dict[str, Any]:
    disk = mounts.disk_of(mount)
    return {
        "name": disk.name,
        "model": disk.model,
        **_hardware(disk.whole),
        "rotational": disk.rotational,
        "write_cache": disk.write_cache,
        "fua": disk.fua,
    }


def _hardware(whole: str | None) -> dict[str, Any]:
    """How a disk is driven, where it hangs, how large it is; null where the kernel does not tell."""
    node = Path("/sys/block") / (whole or "-")
    size, block = (mounts.read(node / name) for name in ("size", "queue/physical_block_size"))
    scheduler = re.search(r"\[(.+?)]", mounts.read(node / "queue" / "scheduler"))
    driver = node / "device" / "driver"
    # pci0000:00/0000:00:02.0/virtio1/block/vda: of the way to it, what is numbered by the machine and not by the order
    # in which drivers came up (virtio1, ata3, host0).
    way = node.resolve().parts if node.exists() else ()
    bus = [part for part in way if re.match(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.|virtio-mmio|vbd-", part)]
    return {
        "driver": driver.resolve().name if driver.exists() else None,
        "bus": "/".join(bus) or None,
        "size_bytes": int(size) * 512 if size else None,
        "block_bytes": int(block) if block else None,
        "scheduler": scheduler[1] if scheduler else None,
    }
