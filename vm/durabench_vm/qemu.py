"""QEMU as a child that cannot outlive us: launch over inherited sockets, QMP, and whether KVM really works here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench_vm.assets import need_program
from durabench_vm.channel import GuestLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_vm.rundir import RunFolder

PROGRAM = "qemu-system-x86_64"
QMP_S = 60.0
REAP_S = 10.0
CONSOLE_BYTES = 3000
ACCELERATORS = {"kvm": ("kvm", "host"), "tcg": ("tcg,thread=multi", "max")}  # -accel, -cpu


class QMPError(Exception):
    """QEMU refused a command."""


class QMP:
    """A blocking QMP client over a socket; every wait has a deadline."""

    def __init__(self, connection: socket.socket, deadline_s: float = QMP_S) -> None:
        self._socket = connection
        self._rest = b""
        self._lock = threading.Lock()
        self._read(time.monotonic() + deadline_s)  # the greeting
        self.command("qmp_capabilities")

    def command(self, name: str, *, deadline_s: float = QMP_S, fd: int | None = None, **arguments: object) -> Any:
        """Execute; gives the return value. `fd` travels with the command."""
        request = json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n"
        with self._lock:
            end = time.monotonic() + deadline_s
            try:
                self._socket.settimeout(deadline_s)
                if fd is None:
                    self._socket.sendall(request)
                else:
                    socket.send_fds(self._socket, [request], [fd])
                while True:
                    reply = self._read(end)
                    if "error" in reply:
                        message = f"{name}: {reply['error']['desc']}"
                        raise QMPError(message)
                    if "return" in reply:
                        return reply["return"]
            except OSError as error:
                message = f"QEMU does not answer {name!r} ({error})"
                raise GuestLost(message) from None

    def monitor(self, line: str) -> str:
        """Say a line to the human monitor, for the few things QMP has no command for; gives what it printed."""
        arguments: dict[str, Any] = {"command-line": line}
        printed: str = self.command("human-monitor-command", **arguments)
        return printed

    def _read(self, end: float) -> dict[str, Any]:
        while b"\n" not in self._rest:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            data = self._socket.recv(1 << 16)
            if not data:
                message = "connection closed"
                raise OSError(message)
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        message_: dict[str, Any] = json.loads(line)
        return message_


class Qemu:
    """One running QEMU. It dies with this process, is recorded in the run folder, and is reaped by `kill`."""

    def __init__(
        self, arguments: Sequence[str], folder: RunFolder, name: str, inherit: Sequence[socket.socket]
    ) -> None:
        self._folder = folder
        self.console = folder.path / f"{name}.console"
        self._errors = folder.path / f"{name}.errors"
        ours, theirs = socket.socketpair()
        command = [
            need_program("setpriv"), "--pdeathsig", "KILL", need_program(PROGRAM),
            "-nodefaults", "-no-user-config", "-display", "none",
            "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
            "-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "chardev=qmp,mode=control",
            *arguments,
        ]  # fmt: skip
        self._started = threading.Event()
        self._error: OSError | None = None
        self.process: subprocess.Popen[bytes] | None = None
        descriptors = [theirs.fileno(), *(entry.fileno() for entry in inherit)]
        # The kernel's "die with your parent" means the thread that started it: this one lives as long as QEMU does.
        threading.Thread(target=self._live, args=(command, descriptors), daemon=True, name="qemu").start()
        self._started.wait()
        theirs.close()
        for entry in inherit:
            entry.close()
        if self._error is not None:
            ours.close()
            raise self._error
        try:
            self.qmp = QMP(ours)
        except (OSError, GuestLost, ValueError) as error:
            self.kill()
            message = f"QEMU did not start ({error}): {self.last_words()}"
            raise GuestLost(message) from None
        self._ours = ours

    def _live(self, command: list[str], descriptors: list[int]) -> None:
        try:
            with self._errors.open("wb") as errors:
                self.process = subprocess.Popen(
                    command, pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                    start_new_session=True,  # Ctrl-C is for the one who asked, who ends this one in order
                )  # fmt: skip
            self._folder.record(self.process.pid)
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        self.process.wait()
        self._folder.forget(self.process.pid)

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        assert self.process is not None
        return self.process.pid

    def rss_bytes(self) -> int:
        """Resident memory."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0

    def last_words(self) -> str:
        """The end of what QEMU and the guest's kernel said."""
        words = []
        for path in (self._errors, self.console):
            with contextlib.suppress(OSError):
                words.append(path.read_text(errors="replace")[-CONSOLE_BYTES:].strip())
        return "\n".join(word for word in words if word)

    def kill(self) -> None:
        """SIGKILL and reap. May be called twice."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
        end = time.monotonic() + REAP_S
        while self.process.poll() is None:
            if time.monotonic() > end:
                message = f"QEMU (process {self.pid}) does not die"
                raise GuestLost(message)
            time.sleep(0.001)


def version() -> str:
    """QEMU's version. MissingAsset where there is none."""
    done = subprocess.run(
        [need_program(PROGRAM), "--version"], capture_output=True, text=True, check=False, timeout=QMP_S
    )
    return (done.stdout.splitlines() or ["unknown"])[0].removeprefix("QEMU emulator version ")


def kvm_may_work() -> bool:
    """Whether KVM is worth trying. Says nothing about its working: only a boot does."""
    return os.access("/dev/kvm", os.R_OK | os.W_OK)
