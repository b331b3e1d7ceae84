"""The guest's first files: a cpio archive with busybox, kernel modules and the script that mounts the root image."""

from __future__ import annotations

import io
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_vm.assets import Assets

CORE_MODULES = (
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "virtio_net",
    "overlay",
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
)
MODULE_FOLDER = "/run/durabench/modules"
AGENT_PATH = "/run/durabench/agent.py"
PORT = "durabench"

# The root image is read-only under a layer in memory: a guest leaves nothing in it. The agent is found by its port's
# name in /sys, since there is no udev to make links.
INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t devtmpfs dev /dev; $B mount -t proc proc /proc; $B mount -t sysfs sys /sys
for m in $($B cat /m/core); do $B insmod /m/$m.ko || echo "insmod $m failed"; done
$B mkdir -p /l /o /n
$B mount -t ext4 -o ro,noload /dev/vda /l || echo "the root image does not mount"
$B mount -t tmpfs -o size=70% o /o; $B mkdir /o/u /o/w
$B mount -t overlay -o lowerdir=/l,upperdir=/o/u,workdir=/o/w ov /n || echo "no overlay"
for d in dev proc sys; do $B mount -o move /$d /n/$d; done
$B mount -t tmpfs r /n/run; $B mkdir -p /n/dev/shm /n/dev/pts; $B mount -t tmpfs shm /n/dev/shm
$B mount -t devpts pts /n/dev/pts
$B mkdir -p /n/run/durabench; $B cp -r /m /n/run/durabench/modules; $B cp /agent.py /n/run/durabench/agent.py
$B ifconfig lo 127.0.0.1 up; $B ifconfig eth0 10.0.2.15 up 2>/dev/null
P=; for p in /n/sys/class/virtio-ports/*; do [ "$($B cat $p/name)" = durabench ] && P=/dev/${p##*/}; done
[ -n "$P" ] || echo "no control port"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
exec $B switch_root /n @PYTHON@ -S -E /run/durabench/agent.py $P </dev/console >/dev/console 2>&1
"""


class _Cpio:
    """Writes the "newc" format."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._inode = 0
        self._made: set[str] = set()

    def entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        path = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        self._out.write(b"070701" + b"".join(b"%08X" % value for value in fields) + path)
        self._pad()
        self._out.write(data)
        self._pad()

    def _pad(self) -> None:
        self._out.write(bytes(-self._out.tell() % 4))

    def folder(self, name: str) -> None:
        if name and name not in self._made:
            self.folder(name.rpartition("/")[0])
            self._made.add(name)
            self.entry(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int = 0o755) -> None:
        self.folder(name.rpartition("/")[0])
        self.entry(name, stat.S_IFREG | mode, data)

    def done(self) -> bytes:
        self.entry("TRAILER!!!", 0)
        return self._out.getvalue()


def build(assets: Assets, agent: bytes, python: str, extra_modules: Sequence[str]) -> bytes:
    """The archive. `python` is the interpreter's path in the root image; `extra_modules` are only carried along."""
    archive = _Cpio()
    for name in ("bin", "dev", "proc", "sys", "m"):
        archive.folder(name)
    archive.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.entry("dev/null", stat.S_IFCHR | 0o666, device=(1, 3))
    archive.file("bin/busybox", assets.busybox.read_bytes())
    core = assets.module_files(CORE_MODULES)
    extra = assets.module_files((*CORE_MODULES, *extra_modules))
    for name, data in extra:
        archive.file(f"m/{name}.ko", data, 0o644)
    archive.file("m/core", "\n".join(name for name, _ in core).encode() + b"\n", 0o644)
    archive.file("init", INIT.replace("@PYTHON@", python).encode())
    archive.file("agent.py", agent, 0o644)
    return archive.done()
