"""A folder that takes on one state after the other, where the real reader looks at it; only what differs is written."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from durabench_model.states import Item, Tree

Signature = tuple[int, int, int, int]


class Folder:
    """What a reader changed meanwhile is noticed by inode, size and times, and written again."""

    def __init__(self, path: Path, *, owner: tuple[int, int] | None = None) -> None:
        """`path` is made, or emptied if it is there. `owner`: user and group of all that is laid (root only)."""
        self.path, self.owner = path, owner
        self._has: dict[str, tuple[object, Signature]] = {}
        self.written_bytes = 0
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        if owner:
            os.chown(path, *owner)

    def take_on(self, tree: Tree) -> None:
        """Make the folder's content that of a state. OSError where it cannot be written."""
        root, items = str(self.path), tree.items
        there = self._scan(root)
        for path in sorted(there, reverse=True):
            if path in items and stat.S_IFMT(items[path].mode) == stat.S_IFMT(there[path].st_mode) != stat.S_IFLNK:
                continue
            full = f"{root}/{path}"
            if stat.S_ISDIR(there[path].st_mode):
                os.rmdir(full)
            else:
                os.unlink(full)
            self._has.pop(path, None)
            del there[path]
        for path in sorted(items):
            self._lay(f"{root}/{path}", path, items[path], there.get(path))

    def _lay(self, full: str, path: str, item: Item, found: os.stat_result | None) -> None:
        if stat.S_ISDIR(item.mode):
            if found is None:
                os.mkdir(full)
            self._describe(full, item)
        elif item.target is not None:
            os.symlink(item.target, full)
        elif stat.S_ISREG(item.mode):
            token = (item.token, item.mode, item.owner, item.attributes)
            known = self._has.get(path)
            if found is None or known is None or known != (token, _signature(found)):
                self._write(full, item)
                self._describe(full, item)
                self._has[path] = token, _signature(os.lstat(full))

    def _write(self, full: str, item: Item) -> None:
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            if item.data is not None:
                view = memoryview(item.data)
                self.written_bytes += len(view)
                while view:
                    view = view[os.write(fd, view) :]
            elif item.source is not None:
                self.written_bytes += _copy(item.source, fd)
        finally:
            os.close(fd)

    def _describe(self, full: str, item: Item) -> None:
        owner = self.owner or (item.owner if os.geteuid() == 0 else None)
        if owner:
            os.chown(full, *owner)
        if stat.S_IMODE(os.lstat(full).st_mode) != stat.S_IMODE(item.mode):
            os.chmod(full, stat.S_IMODE(item.mode))
        for name, value in item.attributes:
            with suppress(OSError):  # a file system without them, or a name that only the kernel may set
                if value is None:
                    os.removexattr(full, name)
                else:
                    os.setxattr(full, name, value)

    def _scan(self, root: str) -> dict[str, os.stat_result]:
        found: dict[str, os.stat_result] = {}
        queue = [("", root)]
        while queue:
            prefix, folder = queue.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    found[path] = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        queue.append((path + "/", entry.path))
        return found


def _copy(source: Path, fd: int) -> int:
    with source.open("rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            done = os.sendfile(fd, file.fileno(), at, size - at)
            if not done:
                break
            at += done
    return at


def _signature(found: os.stat_result) -> Signature:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def copy_base(root: Path, base: Path) -> None:
    """The copy of a folder from before, that a model begins with; links stay links, sockets and pipes are left out."""
    shutil.copytree(root, base, symlinks=True, ignore=_without_content, dirs_exist_ok=False)


def _without_content(folder: str, names: list[str]) -> list[str]:
    def kept(name: str) -> bool:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)

    return [name for name in names if not kept(name)]


def differences(tree: Tree, folder: Path) -> list[str]:
    """Where a folder is not what a state says, byte for byte; sockets and pipes are not looked at."""
    there = {
        os.path.relpath(os.path.join(where, name), folder)
        for where, folders, files in os.walk(folder)
        for name in folders + files
        if stat.S_IFMT(os.lstat(os.path.join(where, name)).st_mode) in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}
    }
    wanted = {path for path, item in tree.items.items() if not stat.S_ISSOCK(item.mode)}
    found = [f"{path} is not there" for path in sorted(wanted - there)]
    found += [f"{path} is there" for path in sorted(there - wanted)]
    for path in sorted(there & wanted):
        found += _compared(path, folder / path, tree.items[path])
    return found


def _compared(path: str, real: Path, item: Item) -> list[str]:
    now = os.lstat(real)
    if stat.S_IFMT(now.st_mode) != stat.S_IFMT(item.mode):
        return [f"{path} is of another kind"]
    if stat.S_ISREG(now.st_mode) and real.read_bytes() != item.content():
        return [f"{path} has other bytes ({now.st_size} B, not {len(item.content())} B)"]
    if not stat.S_ISLNK(now.st_mode) and stat.S_IMODE(now.st_mode) != stat.S_IMODE(item.mode):
        return [f"{path} has mode {stat.S_IMODE(now.st_mode):o}, not {stat.S_IMODE(item.mode):o}"]
    return []
