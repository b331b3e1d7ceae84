"""SeaweedFS under a parent that stops it in time and sweeps up behind it.

``python -m … WEED PORT,PORT,… ARGUMENT…`` runs ``WEED ARGUMENT…`` until it ends or SIGTERM comes. Stopping in order,
SeaweedFS waits 15 s for its own subscribers, or for ever in single-master mode; and it leaves sockets in /tmp, at paths
that no option moves, one for each port of gRPC.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

STOP_S = 2.0
"""How long an orderly stop may take; what is acknowledged is in the page cache by then."""
PR_SET_PDEATHSIG = 1


class Stop(Exception):
    """SIGTERM came."""


def main() -> None:
    """Run it; the exit status is SeaweedFS's own, 0 where it was asked to stop."""
    weed, ports, *arguments = sys.argv[1:]
    signal.signal(signal.SIGTERM, stop)
    server = subprocess.Popen([weed, *arguments], preexec_fn=die_with_parent)  # noqa: PLW1509 - there are no threads
    try:
        sys.exit(server.wait())
    except Stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.terminate()
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        sweep(ports.split(","))


def stop(_number: int, _frame: object) -> NoReturn:
    """Leave the wait for SeaweedFS: within a handler it could not be waited for again."""
    raise Stop


def die_with_parent() -> None:
    """In the child, before it becomes SeaweedFS: SIGKILL when the parent is gone, however it went."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(1)


def sweep(ports: Iterable[str]) -> None:
    """Remove the sockets that it leaves."""
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):  # noqa: S108 - where SeaweedFS puts them
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
