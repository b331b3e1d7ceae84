"""The programs of a Swift of one disk: make its rings, or be its four servers.

``python -m … rings PORT PORT PORT`` makes the rings of accounts, containers and objects in the working directory;
``python -m … serve FOLDER`` runs the servers whose configurations are in FOLDER. Swift's own commands would do the same
in ten starts of an interpreter, each of which imports for half a second; here the four servers are forked from one.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
from array import array
from pathlib import Path
from typing import Any

KINDS = ("account", "container", "object")
MODULES = {"proxy": "proxy", "account": "account", "container": "container", "object": "obj"}
DEVICES, DEVICE = "devices", "disk"
PR_SET_PDEATHSIG = 1


def rings(ports: list[str]) -> None:
    """One replica on one device, two partitions: what swift-ring-builder makes of part_power 1."""
    from swift.common.ring.ring import RingData

    Path(DEVICES, DEVICE).mkdir(parents=True)
    for kind, port in zip(KINDS, map(int, ports), strict=True):
        place = {"id": 0, "region": 1, "zone": 1, "device": DEVICE, "weight": 1.0, "meta": ""}
        address = {"ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port}
        RingData([array("H", [0, 0])], [{**place, **address}], 31).save(f"{kind}.ring.gz")


def serve(folder: str) -> None:
    """Be the proxy until killed, parent of the three others. ``GET /info`` tells its start under ``durabench``."""
    from swift.common import wsgi
    from swift.common.registry import register_swift_info

    # Swift insists on becoming a user of a given name; it runs as whoever it was started as.
    wsgi.drop_privileges = lambda _user: None
    wsgi.utils.monkey_patch()  # as every server does when it starts, once before the forks: half a second each
    modules = {kind: importlib.import_module(f"swift.{name}.server") for kind, name in MODULES.items()}
    children = [_fork(kind, modules[kind], folder) for kind in KINDS]

    def watch(_number: int, _frame: object) -> None:
        # Without one of its servers it is no Swift. (The signal comes for helpers too, which Swift itself waits for.)
        if any(os.waitpid(child, os.WNOHANG)[0] for child in children):
            os._exit(1)

    signal.signal(signal.SIGCHLD, watch)
    register_swift_info("durabench", start=f"{os.getpid()}-{time.time_ns()}")
    _become("proxy", modules["proxy"], folder)


def _fork(kind: str, module: Any, folder: str) -> int:
    """A server of its own process, which dies with its parent, however that goes; its pid."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            _become(kind, module, folder)
        os._exit(1)
    return child


def _become(kind: str, module: Any, folder: str) -> None:
    sys.argv = [f"swift-{kind}-server", f"{folder}/{kind}-server.conf", "--verbose"]  # it logs to the console
    module.main()


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "rings":
        rings(words)
    else:
        serve(*words)
