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
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench_backends import mounts

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB = 1 << 30
_GIT_S = 20.0

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
    """8 hex digits of what stays the same as long as machine and disk under test do.

    The file system belongs to it, so that ext4 and xfs of one machine are never added up in one cell. The kernel does
    not, nor does what a reboot may change by a little: memory is rounded to GiB, the device's name is left out.
    """
    device = facts["device"]
    stable = [
        facts["architecture"],
        facts["cpu_model"],
        facts["cores"],
        round(facts["memory_bytes"] / _GIB),
        facts["virtualisation"],
        facts["filesystem"],
        *(device[name] for name in ("model", "rotational", "write_cache", "fua")),
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
    with tempfile.TemporaryDirectory(prefix="durabench-") as scratch:
        log = Path(scratch) / "git"
        try:
            process.run((git, *arguments), deadline_s=_GIT_S, env=env, cwd=checkout, log=log)
        except process.HarnessError:
            return None
        return log.read_text(errors="replace").strip()


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
        "rotational": disk.rotational,
        "write_cache": disk.write_cache,
        "fua": disk.fua,
    }
