"""Stores that lie about a power cut, in one way only each, and honest twins beside them.

A plain module, loaded by the driver as ``power_liars:Name`` with this folder on the import path. All of them promise
everything up to the drive (or a window), and write one file per key; only what they leave out of the right way differs.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import liars

from durabench_backends.contract import Domain, Promise

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = (Domain.NOTHING, Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE)
SAFE = Promise(dict.fromkeys(EVERYTHING, 0.0), Domain.DRIVE, Domain.DRIVE, "nothing is lost; atomic and ordered")
NOT_ATOMIC = Promise(dict.fromkeys(EVERYTHING, 0.0), None, Domain.DRIVE, "nothing is lost; puts are not atomic")
WINDOW_S = 1.0
WINDOW = Promise(
    {domain: WINDOW_S if domain >= Domain.SERVER else 0.0 for domain in EVERYTHING},
    Domain.DRIVE,
    None,
    "at most the last second is lost",
)
NONE = Promise({Domain.NOTHING: 0.0, Domain.CLIENT: 0.0}, None, None, "nothing is promised when the power goes")


class Right(liars.Folder):
    """The right way: the file flushed before its rename, and its directory after every change."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for folder in (path, path.parent, path.parent.parent):
            flush(folder)

    def put(self, key: str, value: bytes) -> None:
        self.write(key, value)
        flush(self.path)

    def write(self, key: str, value: bytes) -> None:
        temporary = self.path / "tmp"
        temporary.write_bytes(value)
        flush(temporary)
        temporary.replace(self.file(key))

    def delete(self, key: str) -> None:
        super().delete(key)
        flush(self.path)


def flush(path: Path) -> None:
    """Flush one file or folder, whatever a user of it does."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class _NoFlush(Right):
    """No flush at all."""

    def put(self, key: str, value: bytes) -> None:
        liars.Folder.put(self, key, value)


class _FirstIsFlushed(Right):
    """The first value of a key is flushed, what overwrites it is not."""

    def put(self, key: str, value: bytes) -> None:
        if self.file(key).exists():
            with self.file(key).open("r+b") as file:  # in place: a rename over an old name is flushed by ext4 itself
                file.write(value)
        else:
            super().put(key, value)


class _NameNotFlushed(Right):
    """The content is flushed, its name is not."""

    def put(self, key: str, value: bytes) -> None:
        self.write(key, value)


class _DeleteNotFlushed(Right):
    """Puts are right, deletes stay in memory."""

    def delete(self, key: str) -> None:
        liars.Folder.delete(self, key)


class _SecondNotFlushed(Right):
    """Every second key goes into a folder that is never flushed; what is put later survives it."""

    def put(self, key: str, value: bytes) -> None:
        if key.endswith(("1", "3", "5", "7", "9")):
            lost = self.path.parent / f"{self.path.name}-lost"
            lost.mkdir(exist_ok=True)
            (lost / self.file(key).name).write_bytes(value)
        else:
            super().put(key, value)

    def get(self, key: str) -> bytes | None:
        lost = self.path.parent / f"{self.path.name}-lost" / self.file(key).name
        return lost.read_bytes() if lost.exists() else super().get(key)

    def keys(self) -> list[str]:
        lost = self.path.parent / f"{self.path.name}-lost"
        more = [liars.unquote(file.name.removeprefix("k-")) for file in lost.iterdir()] if lost.exists() else []
        return [*super().keys(), *more]


class _InPlace(Right):
    """Overwrites in place, and flushes at the end: a cut in between leaves a part."""

    def put(self, key: str, value: bytes) -> None:
        with self.file(key).open("r+b" if self.file(key).exists() else "wb", buffering=0) as file:
            for at in range(0, len(value), 512):
                file.write(value[at : at + 512])
                if at == len(value) // 1024 * 512:
                    os.fdatasync(file.fileno())
            os.fsync(file.fileno())
        flush(self.path)


class _Flips(Right):
    """Changes one bit on the way, of what is put third."""

    def put(self, key: str, value: bytes) -> None:
        third = len(self.keys()) == 2
        super().put(key, value[:-1] + bytes([value[-1] ^ 1]) if third else value)


class _Invents(Right):
    """Shows a key that nobody ever put."""

    def put(self, key: str, value: bytes) -> None:
        super().put("ghost", value)
        super().put(key, value)


class _NeedsAnOrderlyEnd(Right):
    """Refuses to open where it was not closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        mark = path / "open"
        if mark.exists():
            raise OSError("the store was not closed, not starting")
        self.mark = mark

    def put(self, key: str, value: bytes) -> None:
        self.mark.touch()
        super().put(key, value)

    def close(self) -> None:
        self.mark.unlink(missing_ok=True)
        flush(self.path)


class _FlushesLate(Right):
    """Flushes when the last flush is older than ``after_s``: what is acknowledged since then is in memory only."""

    after_s = 1000.0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.flushed = time.monotonic()
        self.waiting: list[Path] = []

    def put(self, key: str, value: bytes) -> None:
        liars.Folder.put(self, key, value)
        self.waiting.append(self.file(key))
        if time.monotonic() - self.flushed > self.after_s:
            for path in (*self.waiting, self.path):
                flush(path)
            self.waiting, self.flushed = [], time.monotonic()


class _FlushesInTime(_FlushesLate):
    """Well inside the window that is promised."""

    after_s = WINDOW_S / 4


def _made(kind: type[liars.Folder], promise: Promise = SAFE) -> type:
    return liars._backend(promise, lambda _, folder: kind(folder.path))


NeverFlushes = _made(_NoFlush)
KeepsTheOld = _made(_FirstIsFlushed)
ForgetsTheName = _made(_NameNotFlushed)
Resurrects = _made(_DeleteNotFlushed)
LeavesHoles = _made(_SecondNotFlushed)
Tears = _made(_InPlace)
Corrupts = _made(_Flips)
Invents = _made(_Invents)
NeverUp = _made(_NeedsAnOrderlyEnd)
LosesMore = _made(_FlushesLate, WINDOW)

Honest = _made(Right)
HonestNotAtomic = _made(_InPlace, NOT_ATOMIC)
HonestWindow = _made(_FlushesInTime, WINDOW)
HonestAboutNothing = _made(_NoFlush, NONE)
