"""Moto's server, which tells in every answer when it was started: ``python -m … PORT``."""

from __future__ import annotations

import importlib
import os
import sys
import time
from importlib.metadata import version
from typing import Any


def main() -> None:
    """Serve on 127.0.0.1 until killed. The mark stands in the Server header."""
    from moto import server

    mark = f"moto/{version('moto')} durabench/{os.getpid()}-{time.time_ns()}"
    handler: Any = importlib.import_module("moto.moto_server.werkzeug_app").MotoRequestHandler
    handler.version_string = lambda _self: mark
    server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])


if __name__ == "__main__":
    main()
