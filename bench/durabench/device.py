"""One campaign per device: two at once would measure each other, and call it the disk.

A campaign holds a socket with the device's name in the kernel's own table (unix(7), *abstract*): no file is left
behind, and it is gone with the process, whatever ended that. Containers with a network of their own do not see each
other's.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from durabench_backends import mounts

if TYPE_CHECKING:
    from pathlib import Path

SHARE = "DURABENCH_SHARED_DEVICE"
"""Set to 1 in the environment: several campaigns may work on one device. It is said, and recorded in `run.json`."""


class Busy(RuntimeError):
    """Another campaign works on the device (exit 3); the message names it and the ways out."""


class Hold:
    """The right to a device, from the constructor on until it is closed or the process ends. Busy if another has it."""

    def __init__(self, directory: Path) -> None:
        name = name_of(directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(_address(name))
            self._socket.listen(1024)  # `holder` connects, and nobody accepts
        except OSError:
            self._socket.close()
            pid = holder(directory)
            message = (
                f"another campaign ({'process ' + str(pid) if pid else 'elsewhere on this machine'}) works on {name}: "
                f"wait for it, choose another disk with --dir, or set {SHARE}=1 where no latency matters"
            )
            raise Busy(message) from None

    def close(self) -> None:
        """Give the device back; idempotent."""
        self._socket.close()


def shared() -> bool:
    """Whether a person allowed several campaigns on one device."""
    return os.environ.get(SHARE, "") not in {"", "0"}


def name_of(directory: Path) -> str:
    """The device below a directory: the whole disk where there is one, else the mount's own number."""
    mount = mounts.mount_of(directory)
    return mounts.disk_of(mount).whole or f"{mount.filesystem} {mount.device}"


def holder(directory: Path) -> int | None:
    """The process whose campaign works on the device below ``directory``; None where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as asked:
        try:
            asked.connect(_address(name_of(directory)))
        except OSError:
            return None
        pid, _, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid) or None


def _address(name: str) -> str:
    return f"\0durabench-device-{name}"
