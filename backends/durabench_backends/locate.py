"""Where a server's program and a client's library are: an explicit path, else its wheel, else the usual places.

Programs are found by the package that brings them, never by what a virtual environment happens to put first on PATH.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class MissingExtra(ImportError):
    """A backend's client library or server is not installed; the message is the line that installs it."""


class MissingProgram(LookupError):
    """A server's program is nowhere; the message ends with the line that installs it."""


def program(name: str, variable: str, wheel: tuple[str, str], places: Sequence[str], install: str) -> Path:
    """The path of ``name``.

    Looked for in the environment variable ``variable`` (the program or its folder; wrong is an error, not a fallback),
    in ``wheel`` (importable package, glob relative to its folder; the package is not imported), in ``places`` (globs of
    folders, newest first), and on PATH. ``install`` is the line for the message of MissingProgram.
    """
    explicit = os.environ.get(variable)
    if explicit:
        named = [path for path in (Path(explicit), Path(explicit) / name) if _runs(path)]
        if not named:
            message = f"{variable}={explicit} is neither {name} nor a folder with it"
            raise MissingProgram(message)
        return named[0]
    candidates = [*_in_wheel(*wheel), *_in_places(name, places)]
    found = next(filter(_runs, candidates), None) or shutil.which(name)
    if not found:
        message = f"{name} not found; install it with: {install}"
        raise MissingProgram(message)
    return Path(found)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _in_wheel(package: str, pattern: str) -> list[Path]:
    """What matches in an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return [path for folder in folders for path in sorted(Path(folder).glob(pattern))]


def _in_places(name: str, places: Sequence[str]) -> list[Path]:
    """A program in the folders that the globs name, the highest version of each first."""
    folders = [sorted(Path("/").glob(place.lstrip("/")), key=_by_number, reverse=True) for place in places]
    return [folder / name for versions in folders for folder in versions]


def _by_number(path: Path) -> list[tuple[int, str]]:
    """A sort key in which 18 comes after 9.6."""
    return [(int(digits or 0), other) for digits, other in re.findall(r"(\d+)|(\D+)", str(path))]


def library(module: str, backend: str, extra: str) -> None:
    """MissingExtra, with the line that installs it, unless ``module`` can be imported."""
    if importlib.util.find_spec(module) is None:
        message = f"{backend} needs {module}: pip install 'durabench[{extra}]'"
        raise MissingExtra(message, name=module)
