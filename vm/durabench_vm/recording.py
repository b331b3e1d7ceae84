"""What a disk was told, in one order: every write, flush, discard and acknowledgement mark, with the controller's time.

A recording and the base image it started from suffice to rebuild every content the disk may legally have held when the
power went. A *position* p, 0…len(entries), is the moment after the first p entries and before entry p.

On disk: the magic, a JSON header with its length, then records of a fixed head and a payload. A torn last record (the
controller died while it wrote) is dropped. `save` compresses; `load` reads both forms.
"""

from __future__ import annotations

import bisect
import gzip
import json
import mmap
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any

from durabench_vm.image import data_extents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAGIC = b"DURABENCH-RECORDING-1\n"
HEAD = struct.Struct("<BBxxIqqQ")  # kind, flags, payload bytes, time_ns, offset or covers, extent
LENGTH = struct.Struct("<I")
FUA = 1
CHUNK_BYTES = 1 << 20
LOG_BYTES = 4 << 30
"""The longest log that is unpacked: a run of some dozen puts is a hundredth of it."""
ENTRIES = 4_000_000
HEADER_BYTES = 1 << 16
DISK_BYTES = 1 << 40
UNITS = tuple(512 << shift for shift in range(8))


class Kind(IntEnum):
    """What one entry of the log is."""

    WRITE = 1
    FLUSH = 2
    ZERO = 3  # write-zeroes: like a write
    TRIM = 4  # discard: the range may read as zeroes afterwards
    MARK = 5  # an acknowledgement, held by the controller
    BASE = 6  # content before the first entry; only in saved recordings, never in `entries`


class RecordingError(Exception):
    """The file is not a recording, or of a form this version does not know."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log. `offset` and `length` in bytes; `time_ns` is the controller's monotonic clock.

    `covers` (flush only): the flush made durable the writes among the first `covers` entries, those completed before
    it was *received*; it was *answered* where it stands in the log. `fua`: durable by itself, once in the log.
    """

    kind: Kind
    time_ns: int
    offset: int = 0
    length: int = 0
    fua: bool = False
    covers: int = 0
    mark: Any = None
    at: int = 0  # where the payload lies in the log file

    @property
    def changes(self) -> bool:
        """Whether the entry changes the disk's content."""
        return self.kind in {Kind.WRITE, Kind.ZERO, Kind.TRIM}


@dataclass(frozen=True, slots=True)
class Gap:
    """The stretch between two acknowledgements: at positions first…last, both included, the same marks are promised."""

    number: int  # how many marks were promised in it
    first: int
    last: int


class Recording:
    """The log of one run on the power disk, read-only. Cheap to load: payloads stay in the file."""

    def __init__(self, file: IO[bytes], source: Path) -> None:
        self.source = source
        self._file = file
        size = os.fstat(file.fileno()).st_size
        if size < len(MAGIC):
            message = f"{source}: not a recording"
            raise RecordingError(message)
        self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self.header, start = _header(self._map, source)
        self.size_bytes: int = self.header["size_bytes"]
        self.unit_bytes: int = self.header["unit_bytes"]
        self._base: list[Entry] = []
        entries: list[Entry] = []
        try:
            for entry in _entries(self._map, start):
                _refuse_impossible(entry, self.size_bytes, len(entries))
                (self._base if entry.kind is Kind.BASE else entries).append(entry)
        except (ValueError, RecursionError) as error:
            message = f"{source}: entry {len(entries)} is not what a power disk logs: {error}"
            raise RecordingError(message) from None
        self.entries = tuple(entries)
        self._marks = [i for i, e in enumerate(entries) if e.kind is Kind.MARK]
        self._flushes = [i for i, e in enumerate(entries) if e.kind is Kind.FLUSH]
        self._covers: list[int] = []
        covers = 0
        for i in self._flushes:  # delayed flushes may be answered out of order: a later answer never makes less durable
            covers = max(covers, entries[i].covers)
            self._covers.append(covers)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Open a log as the disk streamed it, or one made by `save`. RecordingError where it is neither: whoever made
        the file, nothing of it is read beyond what it can be.
        """
        file: IO[bytes] = path.open("rb")
        try:
            if file.read(2) == b"\x1f\x8b":
                file = _unpacked(file, path)
            return cls(file, path)
        except BaseException:
            file.close()
            raise

    def save(self, path: Path, base: Path | None = None) -> None:
        """Write a compressed copy; with `base`, the base image goes into it too, and `write_base` gives it back."""
        temporary = path.with_name(path.name + ".part")
        with temporary.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=3, fileobj=raw, mtime=0) as out:
            _write_header(out, self.header)
            if base is not None:
                for offset, data in _base_chunks(base):
                    out.write(HEAD.pack(Kind.BASE, 0, len(data), 0, offset, len(data)) + data)
            else:
                for entry in self._base:
                    out.write(_packed(entry, self.data(entry)))
            for entry in self.entries:
                out.write(_packed(entry, self.data(entry)))
        temporary.replace(path)

    def write_base(self, path: Path) -> None:
        """Rebuild the embedded base image at `path`. RecordingError where none was embedded."""
        if not self._base:
            message = f"{self.source}: holds no base image; pass the one the run started from"
            raise RecordingError(message)
        with path.open("wb") as out:
            out.truncate(self.size_bytes)
            for entry in self._base:
                os.pwrite(out.fileno(), self.data(entry), entry.offset)

    @property
    def has_base(self) -> bool:
        """Whether `write_base` can be used."""
        return bool(self._base)

    def data(self, entry: Entry) -> memoryview:
        """The bytes of a write (empty for the other kinds)."""
        if entry.kind not in {Kind.WRITE, Kind.BASE}:
            return memoryview(b"")
        return memoryview(self._map)[entry.at : entry.at + entry.length]

    def __len__(self) -> int:
        return len(self.entries)

    def acknowledged(self, position: int) -> tuple[Any, ...]:
        """The marks promised at `position`, oldest first."""
        return tuple(self.entries[i].mark for i in self._marks[: bisect.bisect_left(self._marks, position)])

    def gap(self, position: int) -> int:
        """The number of the gap `position` lies in: how many marks had been promised."""
        return bisect.bisect_left(self._marks, position)

    def gaps(self, first: int = 0, last: int | None = None) -> tuple[Gap, ...]:
        """All gaps between positions `first` and `last` (default: everything), cut to them."""
        last = len(self.entries) if last is None else last
        begins = [0, *(i + 1 for i in self._marks)]
        ends = [*self._marks, len(self.entries)]
        return tuple(
            Gap(number, max(begin, first), min(end, last))
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if max(begin, first) <= min(end, last)
        )

    def durable(self, position: int, lie_from: int | None = None) -> int:
        """How many first entries are covered by flushes answered before `position`.

        With `lie_from`, flushes answered at or after that position were lies and cover nothing.
        """
        end = position if lie_from is None else min(position, lie_from)
        done = bisect.bisect_left(self._flushes, end)
        return self._covers[done - 1] if done else 0

    def unflushed(self, position: int, lie_from: int | None = None) -> tuple[int, ...]:
        """Indices of the entries the drive may still lose at `position`, in log order."""
        return tuple(i for i in range(self.durable(position, lie_from), position) if self.needs_flush(i, lie_from))

    def needs_flush(self, index: int, lie_from: int | None = None) -> bool:
        """Whether an entry is a write that only a flush makes durable: one that was not FUA, or whose FUA was a lie."""
        entry = self.entries[index]
        return entry.changes and not (entry.fua and (lie_from is None or index < lie_from))

    def close(self) -> None:
        """Let go of the file. Views handed out by `data` must not be used any more."""
        try:
            self._map.close()
        except BufferError:  # a view is still alive somewhere: the mapping goes with it
            return
        finally:
            self._file.close()


class LogWriter:
    """Appends entries to a log file, with bounded memory. Not locked: the disk's own lock orders the callers."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = path.open("wb", buffering=CHUNK_BYTES)
        _write_header(self._file, header)
        self.position = 0

    def append(self, entry: Entry, payload: bytes | memoryview = b"") -> int:
        """Add one entry and give the position after it."""
        self._file.write(_packed(entry, payload))
        self.position += 1
        return self.position

    def flush(self) -> None:
        """Hand what is buffered to the kernel, so that readers of the file see it."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


def _packed(entry: Entry, payload: bytes | memoryview) -> bytes:
    if entry.kind is Kind.MARK:
        payload = json.dumps(entry.mark).encode()
    where = entry.covers if entry.kind is Kind.FLUSH else entry.offset
    flags = FUA if entry.fua else 0
    head = HEAD.pack(entry.kind, flags, len(payload), entry.time_ns, where, entry.length)
    return b"".join((head, payload))


def _write_header(file: IO[bytes] | gzip.GzipFile, header: Mapping[str, Any]) -> None:
    packed = json.dumps(dict(header)).encode()
    file.write(MAGIC + LENGTH.pack(len(packed)) + packed)


def _unpacked(packed: IO[bytes], source: Path) -> IO[bytes]:
    """What a compressed log holds, in a file without a name; closes ``packed``."""
    plain = tempfile.TemporaryFile(prefix="durabench-recording-")  # noqa: SIM115  the Recording owns it
    packed.seek(0)
    try:
        with packed, gzip.GzipFile(fileobj=packed, mode="rb") as content:
            while plain.tell() <= LOG_BYTES and (chunk := content.read(CHUNK_BYTES)):
                plain.write(chunk)
        plain.flush()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        plain.close()
        message = f"{source}: damaged: {error}"
        raise RecordingError(message) from None
    if plain.tell() > LOG_BYTES:
        plain.close()
        message = f"{source}: unpacks to more than {LOG_BYTES >> 30} GiB, which no power disk logs"
        raise RecordingError(message)
    return plain


def _header(view: mmap.mmap, source: Path) -> tuple[dict[str, Any], int]:
    if view[: len(MAGIC)] != MAGIC:
        message = f"{source}: not a recording, or of a newer form"
        raise RecordingError(message)
    start = len(MAGIC) + LENGTH.size
    try:
        (length,) = LENGTH.unpack_from(view, len(MAGIC))
        header = json.loads(view[start : start + min(length, HEADER_BYTES)])
        size, unit = header["size_bytes"], header["unit_bytes"]
        possible = type(size) is int and 0 < size <= DISK_BYTES and type(unit) is int and unit in UNITS
    except (struct.error, ValueError, LookupError, TypeError, RecursionError):
        possible = False
    if not possible:
        message = f"{source}: its heading is not what a power disk writes"
        raise RecordingError(message)
    return header, start + length


def _entries(view: mmap.mmap, at: int) -> Iterator[Entry]:
    while at + HEAD.size <= len(view):
        number, flags, payload, time_ns, where, extent = HEAD.unpack_from(view, at)
        at += HEAD.size
        if at + payload > len(view):
            return
        kind = Kind(number)
        fua = bool(flags & FUA)
        if kind is Kind.MARK:
            yield Entry(kind, time_ns, mark=json.loads(view[at : at + payload]))
        elif kind is Kind.FLUSH:
            yield Entry(kind, time_ns, covers=where)
        else:
            if kind in {Kind.WRITE, Kind.BASE} and payload != extent:
                message = f"{payload} bytes of a write of {extent}"
                raise ValueError(message)
            yield Entry(kind, time_ns, offset=where, length=extent, fua=fua, at=at)
        at += payload


def _refuse_impossible(entry: Entry, size_bytes: int, number: int) -> None:
    """ValueError for an entry that no disk of that size logs as its ``number``-th."""
    if number >= ENTRIES:
        message = f"more than {ENTRIES} of them"
        raise ValueError(message)
    if not 0 <= entry.covers <= number:
        message = f"a flush of {entry.covers} writes, after {number}"
        raise ValueError(message)
    if not (entry.offset >= 0 and entry.offset + entry.length <= size_bytes):
        message = f"{entry.length} bytes at {entry.offset} of a disk of {size_bytes}"
        raise ValueError(message)


def _base_chunks(base: Path) -> Iterator[tuple[int, bytes]]:
    with base.open("rb") as file:
        for begin, end in data_extents(file.fileno()):
            for offset in range(begin, end, CHUNK_BYTES):
                data = os.pread(file.fileno(), min(CHUNK_BYTES, end - offset), offset)
                if data.strip(b"\0"):
                    yield offset, data
