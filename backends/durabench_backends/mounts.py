"""What lies below a path: the mount, and the disk below that, as the kernel tells it to anybody.

Read from /proc and /sys, without rights and without writing. The harness names the disk under test by it, and embedded
stores promise no more than their mount can keep.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MEMORY = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs", "proc", "sysfs"})
"""File systems that live in memory: nothing on them outlives the machine."""
LAYERS = frozenset({"overlay", "aufs"})
"""File systems made of layers of others; of a container, the uppermost goes with it."""
REMOTE = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs"),
        *("lustre", "afs", "beegfs", "gpfs", "ocfs2", "gfs2"),
    )
)
"""File systems whose flush is answered by another machine, or by the host of this one."""


@dataclass(frozen=True)
class Mount:
    """The mount that holds a path, as /proc/self/mountinfo has it; ``device`` is major:minor, ``options`` include the
    superblock's.
    """

    device: str
    point: str
    filesystem: str
    source: str
    options: str


@dataclass(frozen=True)
class Disk:
    """The disk below a mount; what the kernel does not tell (or what is no disk) is None.

    ``name`` is that of the partition where there is one, ``whole`` the disk's own. ``write_cache`` is ``write back``
    where the kernel sends flushes to it, ``write through`` where it sends none.
    """

    name: str | None = None
    whole: str | None = None
    model: str | None = None
    rotational: bool | None = None
    write_cache: str | None = None
    fua: bool | None = None


def mount_of(path: Path, process: int | str = "self") -> Mount:
    """The mount that holds ``path``, or would hold it (proc(5), ``/proc/pid/mountinfo``); of another ``process``, the
    one that it sees there, where ``path`` must hold no links.
    """
    place = Path(os.path.realpath(path)) if process == "self" else path
    found = Mount("0:0", "/", "unknown", "unknown", "")
    for line in Path(f"/proc/{process}/mountinfo").read_text("utf-8", errors="surrogateescape").splitlines():
        front, _, back = line.partition(" - ")
        _, _, device, _, point, options, *_ = front.split(" ")
        filesystem, source, super_options = [*back.split(" "), "", ""][:3]
        point = _unescaped(point)
        # The longest mount point wins; of two on the same place the later one, which hides the earlier.
        if place.is_relative_to(point) and len(point) >= len(found.point):
            merged = ",".join(dict.fromkeys(filter(None, [*options.split(","), *super_options.split(",")])))
            found = Mount(device, point, filesystem, _unescaped(source), merged)
    return found


def mounted_in(folder: Path) -> bool:
    """Whether something is mounted below a folder: whoever removes that folder removes what is somebody else's."""
    inside = os.path.realpath(folder) + "/"
    lines = Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape").splitlines()
    return any(_unescaped(line.split(" ")[4]).startswith(inside) for line in lines)


def disk_of(mount: Mount) -> Disk:
    """The disk below a mount."""
    node = Path("/sys/dev/block") / mount.device
    if not node.exists():  # btrfs and overlays have a device number of their own
        node = Path("/sys/class/block") / Path(os.path.realpath(mount.source)).name
    if not node.exists():
        return Disk()
    node = node.resolve()
    disk = node.parent if (node / "partition").exists() else node
    model = read(disk / "device" / "model") or read(disk / "dm" / "uuid").partition("-")[0]
    rotational, fua = (read(disk / "queue" / name) for name in ("rotational", "fua"))
    return Disk(
        name=node.name,
        whole=disk.name,
        model=model or None,
        rotational=rotational == "1" if rotational else None,
        write_cache=read(disk / "queue" / "write_cache") or None,
        fua=fua == "1" if fua else None,
    )


def is_virtual(disk: Disk) -> bool:
    """Whether the disk is one that a hypervisor makes (virtio, Xen), as its name tells."""
    return bool(re.match(r"(?:vd|xvd)[a-z]+$", disk.whole or "")) or (disk.model or "").upper().startswith(
        ("QEMU", "VBOX", "VMWARE", "VIRTUAL", "MSFT")
    )


def read(path: Path) -> str:
    """What a file of /proc or /sys says, stripped; empty where it cannot be read."""
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)
