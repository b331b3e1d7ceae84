"""A warmed, single-threaded parent that forks drivers and never opens a store.

Starting an interpreter and importing a client costs a hundred times a small put. The nursery imports once, forks on
request, hands back a pidfd taken before anybody could reap, and reaps when asked. Everything dies with its parent.
Requests are JSON over a sequenced-packet socket, its fd the first argument: ``fork`` (with stdin, stdout, stderr
attached), ``reap``.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys

from durabench import driver, workload
from durabench_backends import registry

PR_SET_PDEATHSIG = 1
REQUEST_BYTES = 4096
FIRST_USE = ("email.parser", "encodings.ascii", "encodings.idna")
"""What the standard library imports when a file is first read, a host first looked up, a version first asked for."""


def main() -> None:
    """Warm up for the workload and the backends named in argv, then serve."""
    control_fd, work, *backends = sys.argv[1:]
    for name in backends:
        for module in getattr(registry.load(name), "imports", ()):
            importlib.import_module(module)
    workload.load(work)
    for module in FIRST_USE:
        importlib.import_module(module)
    libc = ctypes.CDLL(None)
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(control_fd))
    control.send(b"{}")
    while True:
        message, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
        if not message:
            return
        request = json.loads(message)
        if request["do"] == "fork":
            _fork(control, libc, fds)
        else:
            _, status = os.waitpid(request["pid"], 0)
            control.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())


def _fork(control: socket.socket, libc: ctypes.CDLL, fds: list[int]) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        control.close()
        _become_driver(fds)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [pidfd])
    for fd in (*fds, pidfd):
        os.close(fd)


def _become_driver(fds: list[int]) -> None:
    """Serve in the forked child and never return to the nursery's loop."""
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        driver.main()
        os._exit(0)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
