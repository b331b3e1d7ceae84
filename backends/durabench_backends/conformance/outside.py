"""Whether anything of a store stands where it must not: outside its root."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_BYTES = 64 * 1024 * 1024
"""No larger file is read: the marker is in a value of 100 kB."""


def find_outside(root: Path, marker: bytes, since: float) -> Path | None:
    """A file, changed after ``since`` (seconds since the epoch), that holds ``marker`` and is not below ``root``.

    Looked for where programs write when nobody says where: beside the root, in the working, home and temporary
    directories and in shared memory, each with its folders one level down.
    """
    places = {root.resolve().parent, Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path("/dev/shm")}  # noqa: S108
    for place in sorted(places):
        for path in _recent_files(place, since - 2.0, levels=1, root=root.resolve()):
            try:
                if marker in path.read_bytes():
                    return path
            except OSError:  # somebody else's, or gone again
                continue
    return None


def _recent_files(folder: Path, since: float, levels: int, root: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        if path.resolve() == root or root.is_relative_to(path.resolve()):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if entry.is_file(follow_symlinks=False) and status.st_mtime >= since and status.st_size <= LARGEST_BYTES:
            yield path
        elif levels and entry.is_dir(follow_symlinks=False):
            yield from _recent_files(path, since, levels - 1, root)
