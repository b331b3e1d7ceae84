"""One namespace as one open directory: a key is a file in it, and a put is one of the four ways to write it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from base64 import b85decode, b85encode
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from durabench_backends.contract import check_key
from durabench_backends.embedded import BLOCK_BYTES
from durabench_backends.files.promises import FSYNC_DIR, FSYNC_FILE, IN_PLACE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME_MAX_BYTES = 255  # NAME_MAX of ext4, xfs, btrfs (limits.h)
LONG_PREFIX = "%%"  # no percent-encoded name begins so
TEMPORARY_PREFIX = ".tmp-"  # no key's file name begins with a dot
TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"[0-9a-f]{16}(-[0-9a-f]{8})?")
SWEEP_S = 1.0
"""Longest that a first put waits for another writer that is sweeping."""

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


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
        self._temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
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
        if not self._swept:
            self._sweep()
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
        """Remove what killed writers left, once, before the first put; adds no sync of its own.

        Every writer shares a lock on the directory as long as it lives; who has it alone knows that the others are
        dead. A process id would not tell: in another namespace of processes it is somebody else's.
        """
        self._swept = True
        with contextlib.suppress(OSError):  # others write here, or no lock is to be had on this file system
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in filter(TEMPORARY.fullmatch, self._names()):
                known = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
                if stat.S_ISREG(known.st_mode) and known.st_uid == os.geteuid():
                    os.unlink(name, dir_fd=self._directory)
        end = time.monotonic() + SWEEP_S
        while time.monotonic() < end:
            try:
                fcntl.flock(self._directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # another one has it alone, and sweeps
                time.sleep(SWEEP_S / 100)
            except OSError:
                return
            else:
                return
