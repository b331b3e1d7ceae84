"""The loop disk: this host's own kernel on a power disk, for what is too heavy for an emulated guest. Needs root.

The power disk is served to `qemu-storage-daemon`, which shows it as a file (FUSE); a loop device on that file carries
the file system, inside a mount and process namespace of its own. The kernel's flushes arrive at the power disk as
flushes, and acknowledgements are marked in the very same log: the recording is like a guest's.

What it cannot do is lose this host's memory. That is of no account: the recording says what the disk held, and crash
images are rebuilt from it alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING

from durabench_vm.assets import need_program
from durabench_vm.channel import GuestLost
from durabench_vm.check import HostPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from durabench_vm.channel import Completed, GuestProcess
    from durabench_vm.filesystem import Filesystem
    from durabench_vm.powerdisk import PowerDisk
    from durabench_vm.rundir import RunFolder

PROGRAM = "qemu-storage-daemon"
READY_S = 30.0
POLL_S = 0.01


class LoopDisk:
    """A place like a guest (mount, start, run, send, address, cut, kill, facts) whose kernel is this host's.

    `disk` is the power disk: mark acknowledgements there. PermissionError where this host cannot do it.
    """

    def __init__(self, disk: PowerDisk, folder: RunFolder) -> None:
        self.disk = disk
        stem = folder.path / f"loopdisk-{os.getpid()}-{time.monotonic_ns()}"
        self._files = [stem.with_suffix(suffix) for suffix in (".nbd", ".file", ".pid")]
        server, shown, pid = self._files
        disk.listen(server)
        shown.touch()
        self._place = HostPlace(folder)
        self.channel, self.root = self._place.channel, self._place.root
        self._shown = str(shown)
        try:
            self._daemon = self._place.start(_arguments(server, shown, pid), cwd=str(folder.path))
            self._wait_for(pid)
        except BaseException:
            self.kill()
            raise

    def _wait_for(self, pid: Path) -> None:
        end = time.monotonic() + READY_S
        while not pid.exists():  # written when everything is shown
            gone = not pid.parent.exists()  # the campaign was stopped
            if gone or self._daemon.poll() is not None or time.monotonic() > end:
                message = f"{PROGRAM} does not show the disk: {' '.join(self._daemon.stderr_tail)}"
                raise GuestLost(message)
            time.sleep(POLL_S)

    @staticmethod
    def lack() -> str | None:
        """Why this host cannot do it, in one line with the mend, or None."""
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "no usable /dev/fuse here: `modprobe fuse`, or use lane guest"
        return HostPlace.lack()

    def mount(self, filesystem: Filesystem, *, user: str | None = None, deadline_s: float = 60.0) -> None:
        """Mount the disk at `root`. AgentError: it will not mount."""
        self._place.mount(self._shown, filesystem, user=user, deadline_s=deadline_s)

    def umount(self, deadline_s: float = 5.0) -> None:
        """Unmount in peace. AgentError: busy."""
        self._place.umount(deadline_s)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        files: Mapping[str, bytes] | None = None,
        user: str | None = None,
        *,
        cwd: str = "/",
        on_line: Callable[[str], None] | None = None,
    ) -> GuestProcess:
        """As Guest.start."""
        return self._place.start(argv, env, stdin, files, user, cwd=cwd, on_line=on_line)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        user: str | None = None,
        *,
        cwd: str = "/",
        deadline_s: float = 60.0,
    ) -> Completed:
        """As Guest.run."""
        return self._place.run(argv, env, stdin, user, cwd=cwd, deadline_s=deadline_s)

    def send(self, files: Mapping[str, bytes], *, user: str | None = None) -> None:
        """As Guest.send."""
        self._place.send(files, user=user)

    def address(self, port: int) -> tuple[str, int]:
        """The same port: its network is this host's."""
        return self._place.address(port)

    def cut(self) -> int:
        """Cut the disk's power, then end all that ran on it. Gives the position at which it happened."""
        position = self.disk.cut()
        self.kill()
        return position

    def kill(self) -> None:
        """End all that runs and is mounted here. The disk's image stays as it is. May be called twice."""
        self._place.close()
        for path in self._files:
            with contextlib.suppress(OSError):
                path.unlink()

    def facts(self) -> Mapping[str, object]:
        """What every result of this place carries."""
        return {
            **self._place.facts(),
            "disk_bytes": self.disk.size_bytes,
            "unit_bytes": self.disk.unit_bytes,
            "flush_delay_s": self.disk.flush_delay_s,
        }

    def __enter__(self) -> Self:
        """Be ended at the end of a `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""
        self.kill()


def _arguments(server: Path, shown: Path, pid: Path) -> list[str]:
    node = {"driver": "nbd", "node-name": "disk", "server": {"type": "unix", "path": server.name}}
    export = {"type": "fuse", "id": "shown", "node-name": "disk", "mountpoint": str(shown), "writable": True}
    return [
        need_program(PROGRAM), "--blockdev", json.dumps(node), "--export", json.dumps(export), "--pidfile", str(pid),
    ]  # fmt: skip
