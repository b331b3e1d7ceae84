"""Where a server's program and a client's library are: an explicit path, else its wheel, else the usual places.

Programs are found by the package that brings them, never by what a virtual environment happens to put first on PATH.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class MissingExtra(ImportError):
    """A backend's client library or server is not installed; the message is the line that installs it."""


class MissingProgram(LookupError):  # noqa: N818 - what is missing, not what went wrong
    """A server's program is nowhere; the message ends with the line that installs it."""


def program(name: str, variable: str, wheel: tuple[str, str], places: Sequence[str], install: str) -> Path:
    """The path of ``name``.

    Looked for in the environment variable ``variable`` (the program or its folder; wrong is an error, not a fallback),
    in ``wheel`` (importable package, glob relative to its folder; the package is not imported), in ``places`` (globs of
    folders, newest first), and on PATH. ``install`` is the line for the message of MissingProgram.
    """
    explicit = os.environ.get(variable)
    if explicit:
        for path in (Path(explicit), Path(explicit) / name):
            if path.is_file() and os.access(path, os.X_OK):
                return path
        message = f"{variable}={explicit} is neither {name} nor a folder with it"
        raise MissingProgram(message)
    package, pattern = wheel
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        for path in sorted(folder.glob(pattern)):
            if path.is_file():
                return path
    for place in places:
        for folder_name in sorted(glob(place), key=_by_number, reverse=True):
            path = Path(folder_name) / name
            if path.is_file() and os.access(path, os.X_OK):
                return path
    found = shutil.which(name)
    if found:
        return Path(found)
    message = f"{name} not found; install it with: {install}"
    raise MissingProgram(message)


def _by_number(path: str) -> list[tuple[int, str]]:
    """A sort key in which 18 comes after 9.6."""
    return [(int(digits or 0), other) for digits, other in re.findall(r"(\d+)|(\D+)", path)]


def library(module: str, backend: str, extra: str) -> None:
    """MissingExtra, with the line that installs it, unless ``module`` can be imported."""
    if importlib.util.find_spec(module) is None:
        message = f"{backend} needs {module}: pip install 'durabench[{extra}]'"
        raise MissingExtra(message, name=module)
