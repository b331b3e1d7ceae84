"""The programs of a Swift of one disk: make its rings, or be one of its four servers.

``python -m … rings PORT PORT PORT`` makes the rings of accounts, containers and objects in the working directory;
``python -m … proxy|account|container|object CONFIGURATION`` serves. Swift's own commands would do; each start of one
costs most of a second, and six of them would be needed for the rings alone.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from array import array
from pathlib import Path

KINDS = ("account", "container", "object")
MODULES = {"proxy": "proxy", "account": "account", "container": "container", "object": "obj"}
DEVICES, DEVICE = "devices", "disk"


def rings(ports: list[str]) -> None:
    """One replica on one device, two partitions: what swift-ring-builder makes of part_power 1."""
    from swift.common.ring.ring import RingData

    Path(DEVICES, DEVICE).mkdir(parents=True)
    for kind, port in zip(KINDS, map(int, ports), strict=True):
        place = {"id": 0, "region": 1, "zone": 1, "device": DEVICE, "weight": 1.0, "meta": ""}
        address = {"ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port}
        RingData([array("H", [0, 0])], [{**place, **address}], 31).save(f"{kind}.ring.gz")


def serve(kind: str, configuration: str) -> None:
    """Be a server until killed. ``GET /info`` of the proxy tells its start under ``durabench``."""
    from swift.common import wsgi
    from swift.common.registry import register_swift_info

    # Swift insists on becoming a user of a given name; it runs as whoever it was started as.
    wsgi.drop_privileges = lambda _user: None
    register_swift_info("durabench", start=f"{os.getpid()}-{time.time_ns()}")
    module = importlib.import_module(f"swift.{MODULES[kind]}.server")
    sys.argv = [f"swift-{kind}-server", configuration, "--verbose"]  # its log to the console, not to the system's
    module.main()


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "rings":
        rings(words)
    else:
        serve(verb, *words)
