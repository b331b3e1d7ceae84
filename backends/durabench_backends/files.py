"""Checkpoints as files of a directory, written in four ways, from a bare overwrite to what survives a power cut.

One namespace is one directory, one key one file in it, flat: the only directory that ever needs an fsync after a put is
the one that is open anyway.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from base64 import b85decode, b85encode
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from durabench_backends.contract import Command, Domain, Fact, NotReady, Promise, Setting, Store, check_key
from durabench_backends.embedded import (
    BLOCK_BYTES,
    allocated_bytes,
    mount_facts,
    on_mount,
    one_of,
    process_identity,
    start_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

IN_PLACE: Final = "in-place"
RENAME: Final = "rename"
FSYNC_FILE: Final = "fsync-file"
FSYNC_DIR: Final = "fsync-dir"

NAME_MAX_BYTES = 255  # NAME_MAX of ext4, xfs, btrfs (limits.h)
LONG_PREFIX = "%%"  # no percent-encoded name begins so
TEMPORARY_PREFIX = ".tmp-"  # no key's file name begins with a dot

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_PROCESSES_DIE = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0, Domain.SERVER: 0.0}
_WRITTEN = (
    'POSIX.1-2017, write(): after it "has successfully returned, any successful read() … shall return the data '
    'specified by the write()"'
)

PROMISES: dict[str, Promise] = {
    IN_PLACE: Promise(
        _PROCESSES_DIE,
        atomic=None,
        ordered=None,
        source=f'{_WRITTEN}; write(2), NOTES: it "does not make any guarantee that data has been committed to disk"',
    ),
    RENAME: Promise(
        _PROCESSES_DIE,
        atomic=Domain.SERVER,
        ordered=None,
        source=f'{_WRITTEN}; rename(2), DESCRIPTION: "it will be atomically replaced"; nothing of either reaches the '
        "disk without fsync(2)",
    ),
    FSYNC_FILE: Promise(
        _PROCESSES_DIE,
        atomic=Domain.DRIVE,
        ordered=None,
        source='fsync(2), DESCRIPTION: "does not necessarily ensure that the entry in the directory containing the '
        'file has also reached disk"',
    ),
    FSYNC_DIR: Promise(
        _PROCESSES_DIE | {Domain.MACHINE: 0.0, Domain.DRIVE: 0.0},
        atomic=Domain.DRIVE,
        ordered=Domain.DRIVE,
        source='fsync(2), DESCRIPTION: "This includes writing through or flushing a disk cache if present"; for the '
        'directory entry "an explicit fsync() on a file descriptor for the directory is also needed"',
    ),
}
UNKNOWN = Promise(
    {Domain.NOTHING: 0.0},
    atomic=None,
    ordered=None,
    source="how the files are written is not known: bytes may even stay in the program's own buffer",
)


def file_name(key: str) -> str:
    """The file name of a key: percent-encoded, or base-85 behind ``%%`` where that were too long. `key_of` inverts it.

    Both alphabets are ASCII without slash, and no name begins with a dot, so that no key is ``.``, ``..``, hidden, or
    changed by a file system that normalises Unicode. 200 bytes are at most 250 characters of base 85: always short
    enough, without a second directory whose entry would need an fsync too.
    """
    check_key(key)
    name = quote(key, safe="")
    if len(name) > NAME_MAX_BYTES:
        return LONG_PREFIX + b85encode(key.encode()).decode("ascii")
    return "%2E" + name[1:] if name[0] == "." else name


def key_of(name: str) -> str:
    """The key of a file name; ValueError if no key has that name."""
    if name.startswith(LONG_PREFIX):
        key = b85decode(name.removeprefix(LONG_PREFIX)).decode()
    else:
        key = unquote(name, errors="strict")
    if file_name(key) != name:
        message = f"{name!r} is not the file of any key"
        raise ValueError(message)
    return key


class FilesStore:
    """One namespace of `Files`: an open directory and a way to write into it."""

    def __init__(self, directory: Path, write: str) -> None:
        # Everything goes through this one descriptor: paths are short, and a renamed parent does no harm.
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._in_place = write == IN_PLACE
        self._fsync_file = write in {FSYNC_FILE, FSYNC_DIR}
        self._fsync_directory = write == FSYNC_DIR
        # The writer's pid and start time, so that others can tell a leftover from a put that is under way.
        self._temporary = f"{TEMPORARY_PREFIX}{os.getpid()}-{start_time('self')}-{secrets.token_hex(4)}"
        self._swept = self._in_place
        self._closed = False

    def put(self, key: str, value: bytes) -> None:
        name = file_name(key)
        if self._in_place:
            self._write(name, value, _WRITE)
            return
        if not self._swept:
            self._sweep()
        self._write(self._temporary, value, _WRITE)
        os.rename(self._temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        if self._fsync_directory:
            os.fsync(self._directory)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        name = file_name(key)
        if self._in_place:
            try:
                self._write(name, value, _WRITE | os.O_EXCL)
            except FileExistsError:
                return False
            return True
        # A name of its own: used again while it is still a link to the key's file, O_TRUNC would empty that file.
        temporary = f"{self._temporary}-{secrets.token_hex(4)}"
        try:
            self._write(temporary, value, _WRITE | os.O_EXCL)
            os.link(temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._directory)
        if self._fsync_directory:
            os.fsync(self._directory)
        return True

    def get(self, key: str) -> bytes | None:
        name = file_name(key)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            return file.read()

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file_name(key), dir_fd=self._directory)
        if self._fsync_directory:
            # Also where nothing was there: an earlier delete may have died before its own fsync.
            os.fsync(self._directory)

    def keys(self) -> Iterable[str]:
        return [key_of(name) for name in self._names() if not name.startswith(".")]

    def size_bytes(self) -> int:
        total = os.fstat(self._directory).st_blocks
        for name in self._names():
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_blocks
        return total * BLOCK_BYTES

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._directory)

    def _names(self) -> list[str]:
        return os.listdir(self._directory)  # noqa: PTH208 - of a descriptor, not a path

    def _write(self, name: str, value: bytes, flags: int) -> None:
        descriptor = os.open(name, flags, 0o666, dir_fd=self._directory)
        try:
            written = os.write(descriptor, value)
            while written < len(value):  # Linux writes at most 2 GiB at once, less where the disk is filling up
                written += os.write(descriptor, memoryview(value)[written:])
            if self._fsync_file:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed writers left, once, before the first put; adds no sync of its own."""
        for name in self._names():
            if not name.startswith(TEMPORARY_PREFIX):
                continue
            pid, began = name.removeprefix(TEMPORARY_PREFIX).split("-")[:2]
            if start_time(pid) != began:
                with contextlib.suppress(FileNotFoundError):  # another writer swept it first
                    os.unlink(name, dir_fd=self._directory)
        self._swept = True


class Files:
    """A directory of directories, ours below ``root`` or somebody's at ``file:///dir?write=WAY``."""

    settings: ClassVar[Sequence[Setting]] = tuple(
        Setting(write, {"write": write}, promise) for write, promise in PROMISES.items()
    )

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        del port
        self.setting = setting
        self._write = setting.options.get("write")
        self._parent: Path | None = root
        self._directory = root / "files"
        self._origin = "setting"

    @classmethod
    def from_url(cls, url: str) -> Files:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise ValueError("a file URL has an absolute path: file:///dir?write=fsync-dir")
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            one_of(("write",), name, "parameter")
            options[name] = one_of(tuple(PROMISES), value, name)
        backend = cls(Setting("live", options, UNKNOWN), Path(unquote(parts.path)), lambda _: 0)
        # Somebody's directory: namespaces go straight into it, and it is never made for them.
        backend._parent, backend._directory, backend._origin = None, Path(unquote(parts.path)), "URL"
        return backend

    def commands(self) -> Sequence[Command]:
        return ()

    def create(self) -> None:
        self._directory.mkdir()
        self._keep(self._directory.parent)

    def open(self, namespace: str) -> Store:
        if self._parent is not None:
            # A crash may have taken the directory itself; whoever opens then sees an empty store, as any program would.
            self._directory.mkdir(exist_ok=True)
            self._keep(self._parent)
        elif not self._directory.is_dir():
            message = f"{self._directory} is not a directory; make it first"
            raise FileNotFoundError(message)
        path = self._directory / file_name(namespace)
        path.mkdir(exist_ok=True)
        self._keep(self._directory)
        return FilesStore(path, self._write or IN_PLACE)

    def _keep(self, directory: Path) -> None:
        """Make the entries of ``directory`` durable, in the one setting that syncs directories.

        Also where the entry is there already: who made it may have died before its fsync.
        """
        if self._write != FSYNC_DIR:
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def drop(self, namespace: str) -> None:
        path = self._directory / file_name(namespace)
        if path.exists():
            shutil.rmtree(path)

    def size_bytes(self) -> int:
        return allocated_bytes([self._directory])

    def identity(self) -> str:
        return process_identity()

    def inspect(self) -> Iterable[Fact]:
        directory = self._parent or self._directory
        if not directory.exists():
            message = f"{directory} does not exist"
            raise NotReady(message)
        origin = self._origin if self._write else "not in the URL"
        return [Fact("files.write", self._write or "unknown", origin), *mount_facts("files", directory)]

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        values = {fact.id: fact.value for fact in facts}
        return on_mount(PROMISES.get(values.get("files.write", ""), UNKNOWN), "files", values)
