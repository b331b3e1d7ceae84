"""The log of a recorder: one entry for each thing that happened to the files below a folder, in its order.

Files and folders are *nodes*, numbered as they are first met, so that a name and what it names are two things. A
*position* p, 0…len(entries), is the moment after the first p entries and before entry p, as in a recording of vm/.

On disk: the magic, a JSON header with its length, then records of a fixed head and a payload. A torn last record (the
recorder died while it wrote) is dropped.
"""

from __future__ import annotations

import bisect
import json
import mmap
import os
import struct
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b"DURABENCH-FILES-2\n"
HEAD = struct.Struct("<BBxxIIqqqq")  # kind, flags, thread, payload bytes, time_ns, a, b, c
LENGTH = struct.Struct("<I")
DATA_ONLY, FAILED = 1, 2
"""Flags of a flush: fdatasync; it gave an error, after which what it should have made durable may never be."""
DOUBT = 1
"""Flag of a note: something below the folder was not seen, so that a state may be wrong."""
REMOVED = 1
"""Flag of an extended attribute."""
EXCHANGE = 2
"""Flag of a rename: both names are there before and after it."""


class Kind(IntEnum):
    """What an entry is; a, b, c and the payload mean what stands here."""

    BASE = 1  # a: the folder itself; payload: what was there, [[folder, name, node, mode, link target]…]
    WRITE = 2  # a: node, b: offset; payload: the bytes
    SIZE = 3  # a: node, b: new size
    ALLOCATE = 4  # a: node, b: offset, c: length; flags: the mode of fallocate(2)
    FLUSH = 5  # a: node, b: covers what stands before this entry, 0: all; flags: DATA_ONLY, FAILED
    FLUSH_ALL = 6
    CREATE = 7  # a: folder, or -1 for a file without a name, b: node, c: mode; payload: name [NUL target of a link]
    LINK = 8  # a: folder, b: node; payload: name
    UNLINK = 9  # a: folder, b: node; payload: name
    RENAME = 10  # a: old folder, b: node, c: new folder; payload: old name NUL new name; flags: EXCHANGE
    CLOSE = 11  # a: node
    MARK = 12  # payload: JSON, an acknowledgement
    NOTE = 13  # a: node or -1; payload: what could not be seen; flags: DOUBT
    MODE = 14  # a: node, b: new mode
    OWNER = 15  # a: node, b: user, c: group
    ATTRIBUTE = 16  # a: node; payload: name NUL value; flags: REMOVED
    WHERE = 17  # payload: FILE:LINE of the thread's calls that follow
    EXIT = 18  # a: exit status of the program, negative for a signal; payload: why it was ended, if it was


NAMES = frozenset({Kind.CREATE, Kind.LINK, Kind.UNLINK, Kind.RENAME})
ATTRIBUTES = frozenset({Kind.MODE, Kind.OWNER, Kind.ATTRIBUTE})
BYTES = frozenset({Kind.WRITE, Kind.SIZE, Kind.ALLOCATE})
FLUSHES = frozenset({Kind.FLUSH, Kind.FLUSH_ALL})


class LogError(ValueError):
    """The file is not a log, or of a form that this version does not know."""


class LogFailed(Exception):
    """The log cannot be written: what comes would be lost. No OSError, since that would be a program's."""


class Entry(NamedTuple):
    """One entry. `time_ns` is the monotonic clock; `at` and `length` say where in the log the payload is."""

    kind: Kind
    flags: int
    thread: int
    time_ns: int
    a: int
    b: int
    c: int
    at: int
    length: int


class Gap(NamedTuple):
    """The stretch between two marks: at positions first…last, both included, the same marks are promised."""

    number: int
    first: int
    last: int


class LogWriter:
    """Appends; memory does not grow with it. `thread` is whose call the next entries are. Raises LogFailed."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self._file = path.open("wb", buffering=1 << 20)
        packed = json.dumps(dict(header)).encode()
        self._file.write(MAGIC + LENGTH.pack(len(packed)) + packed)
        self.position = 0
        self.size_bytes = 0
        self.thread = 0

    def append(self, kind: Kind, a: int = 0, b: int = 0, c: int = 0, *, flags: int = 0, payload: bytes = b"") -> None:
        """Add one entry."""
        head = HEAD.pack(kind, flags, self.thread & 0xFFFFFFFF, len(payload), time.monotonic_ns(), a, b, c)
        try:
            self._file.write(head)
            if payload:
                self._file.write(payload)
        except OSError as error:
            raise self._failed(error) from None
        self.position += 1
        self.size_bytes += len(head) + len(payload)

    def note(self, node: int, text: str, *, doubt: bool = False) -> None:
        """Say what could not be seen."""
        self.append(Kind.NOTE, node, flags=DOUBT if doubt else 0, payload=text.encode())

    def close(self) -> None:
        """Flush and close."""
        try:
            self._file.close()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> LogFailed:
        return LogFailed(f"the log {self.path} cannot be written: {error.strerror}; set TMPDIR to where there is room")


class Log:
    """A log, read-only. Cheap to load: payloads stay in the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        size = os.fstat(self._file.fileno()).st_size
        if size < len(MAGIC) + LENGTH.size:
            raise LogError(f"{path}: not a log")
        self._map = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        if self._map[: len(MAGIC)] != MAGIC:
            raise LogError(f"{path}: not a log, or of another form")
        start = len(MAGIC) + LENGTH.size
        (length,) = LENGTH.unpack_from(self._map, len(MAGIC))
        try:
            self.header: dict[str, Any] = json.loads(self._map[start : start + length])
        except ValueError:
            raise LogError(f"{path}: torn in its head") from None
        self.entries = self._read(start + length)
        if not self.entries or self.entries[0].kind is not Kind.BASE:
            raise LogError(f"{path}: torn before its first entry")
        self._marks = [index for index, entry in enumerate(self.entries) if entry.kind is Kind.MARK]

    @classmethod
    def load(cls, path: Path) -> Log:
        """Open a log. LogError where it is none."""
        return cls(path)

    def _read(self, at: int) -> tuple[Entry, ...]:
        found = []
        while at + HEAD.size <= len(self._map):
            number, flags, thread, size, when, a, b, c = HEAD.unpack_from(self._map, at)
            at += HEAD.size
            if at + size > len(self._map):
                break
            try:
                kind = Kind(number)
            except ValueError:
                break  # a hole of zeroes: the log's own file was torn
            found.append(Entry(kind, flags, thread, when, a, b, c, at, size))
            at += size
        return tuple(found)

    def data(self, entry: Entry) -> bytes:
        """The payload of an entry."""
        return self._map[entry.at : entry.at + entry.length]

    def names(self, entry: Entry) -> list[str]:
        """The names, or name and target, of an entry that has some."""
        return os.fsdecode(self.data(entry)).split("\0")

    def mark(self, entry: Entry) -> Any:
        """What a mark says; text where it is no JSON."""
        try:
            return json.loads(self.data(entry))
        except ValueError:
            return self.data(entry).decode(errors="replace")

    def acknowledged(self, position: int) -> tuple[Any, ...]:
        """The marks promised at `position`, oldest first."""
        return tuple(self.mark(self.entries[i]) for i in self._marks[: self.gap(position)])

    def gap(self, position: int) -> int:
        """The number of the gap that `position` lies in: how many marks had been promised."""
        return bisect.bisect_left(self._marks, position)

    def gaps(self, first: int = 1, last: int | None = None) -> tuple[Gap, ...]:
        """All gaps between positions `first` and `last` (default: everything after the base), cut to them."""
        last = len(self.entries) if last is None else last
        begins = [1, *(i + 1 for i in self._marks)]
        ends = [*self._marks, len(self.entries)]
        return tuple(
            Gap(number, max(begin, first), min(end, last))
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if max(begin, first) <= min(end, last)
        )

    def notes(self) -> dict[str, bool]:
        """What could not be seen, each once, in order; True where it is a doubt."""
        found: dict[str, bool] = {}
        for entry in self.entries:
            if entry.kind is Kind.NOTE:
                text = self.data(entry).decode(errors="replace")
                found[text] = found.get(text, False) or bool(entry.flags & DOUBT)
        return found

    @property
    def exit(self) -> tuple[int, str] | None:
        """How the program ended: its status, negative for a signal, and why it was ended, if it was. None: torn."""
        last = next((entry for entry in reversed(self.entries) if entry.kind is Kind.EXIT), None)
        return None if last is None else (last.a, self.data(last).decode(errors="replace"))

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        self._file.close()
