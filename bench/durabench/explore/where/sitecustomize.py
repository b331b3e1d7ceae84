"""Tells a recorder of file calls where in its source a Python program makes them. Loaded by the program, not by us."""

import importlib
import os
import sys
import threading
from types import FrameType

WHERE_FD = 0x3FFFFFFE  # durabench_model.WHERE_FD; this file must not import anything of ours
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = (os.path.dirname(os.__file__) + os.sep, HERE, "<frozen")


def _calls() -> frozenset[str]:
    names = (
        "open write writelines flush close __exit__ truncate ftruncate rename renames replace unlink remove rmdir "
        "mkdir link symlink fsync fdatasync sync pwrite pwritev writev posix_fallocate sendfile copy_file_range "
        "chmod print commit execute executemany executescript backup"
    )
    return frozenset(names.split())


def _install() -> None:
    told, calls = threading.local(), _calls()

    def hook(begun: FrameType, event: str, called: object) -> None:
        if event != "c_call" or getattr(called, "__name__", "") not in calls:
            return
        frame: FrameType | None = begun
        while frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
            frame = frame.f_back
        if frame is None:
            return
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if getattr(told, "where", None) != where:
            told.where = where
            try:
                os.write(WHERE_FD, os.fsencode(where))
            except OSError:  # nobody records
                sys.setprofile(None)

    threading.setprofile(hook)
    sys.setprofile(hook)


def _go_on() -> None:
    """Load what would have been loaded in this file's place."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_go_on()
_install()
