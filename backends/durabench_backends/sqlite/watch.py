"""From the system calls of a program to journal mode and synchronous: what each of its commits flushed.

A rollback commit ends when its journal is unlinked, truncated or zeroed; a WAL commit when the writer gives back its
lock in the -shm file (lockingv3.html; walformat.html, *WAL locks*; src/pager.c, `syncJournal`: one flush of the
journal under NORMAL, two from FULL on; src/wal.c, `walWriteFrames`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from durabench_backends.contract import Fact
from durabench_backends.sqlite.promises import SYNCHRONOUS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from durabench_backends.contract import Call

WRITE_LOCK_BYTE = 120
ZEROED_HEADER_BYTES = 28
"""What a commit in mode PERSIST writes to the beginning of its journal."""


def written(calls: Sequence[Call], path: Path) -> list[Fact]:
    """``sqlite.journal_mode`` and ``sqlite.synchronous`` of the database at ``path``, as the calls show them."""
    hidden = sorted({call.path for call in calls if call.kind == "hidden"})
    if hidden:
        return _unread(f"the program uses {', '.join(hidden)}, which a tracer cannot follow: say it in the URL")
    watch = _Watch(str(path.resolve()))
    for call in calls:
        watch.see(call)
    if watch.wal_written and not watch.commits:
        return _unread("it writes the WAL without a lock (locking_mode=exclusive): say it in the URL")
    if not watch.commits:
        return _unread(f"the program committed nothing to {path}: let it write there while it is watched")
    mode = watch.commits[-1].mode
    found = [commit.synchronous for commit in watch.commits if commit.mode == mode]
    if mode == "wal" and watch.wal_flushed:
        found = ["normal" if each == "off" else each for each in found]
    counts = Counter(found)
    told = ", ".join(f"{counts[word]} {word}" for word in SYNCHRONOUS if counts[word])
    unclear = "; normal would look the same until a WAL checkpoint" if mode == "wal" and counts["off"] else ""
    origin = f"as watched: commits in mode {mode}: {told}{unclear}"
    if mode == "memory":
        origin = "as watched: written without a journal on the disk (memory, or off)"
    return [
        Fact("sqlite.journal_mode", mode, origin),
        Fact("sqlite.synchronous", min(found, key=SYNCHRONOUS.index), origin),
    ]


def _unread(why: str) -> list[Fact]:
    return [Fact(f"sqlite.{name}", "", "", why) for name in ("journal_mode", "synchronous")]


@dataclass
class _Commit:
    mode: str
    synchronous: str


@dataclass
class _Watch:
    """One transaction at a time: the database's own locks see to that."""

    database: str
    commits: list[_Commit] = field(default_factory=list)
    journal_flushes: int = 0
    database_written: bool = False
    database_flushed: bool = False
    journaled: bool = False
    wal_opened: bool = False
    wal_written: bool = False
    wal_flushed: bool = False
    writer: int | None = None
    """Who holds the WAL's write lock."""
    frames: bool = False
    frames_flushed: bool = False

    def see(self, call: Call) -> None:
        name = call.path.removeprefix(self.database) if call.path.startswith(self.database) else None
        if call.kind == "flush" and (call.path == "" or name is None):
            if call.path in {"", self.database.rpartition("/")[0] or "/"}:
                self._directory_flushed()
            if call.path == "":
                name = ""
        if name == "-journal":
            self._journal(call)
        elif name == "-wal":
            self._wal(call)
        elif name == "-shm":
            self._lock(call)
        elif name == "":
            self._database(call)

    def _journal(self, call: Call) -> None:
        if call.kind == "write":
            if self.database_written and call.offset == 0 and call.size == ZEROED_HEADER_BYTES:
                self._committed("persist")
            else:
                self.journaled = True
        elif call.kind == "flush":
            if self.journaled and not self.database_written:
                self.journal_flushes += 1
        elif call.kind == "truncate" and call.size == 0:
            self._committed("truncate")
        elif call.kind == "unlink":
            self._committed("delete")

    def _database(self, call: Call) -> None:
        if call.kind == "write":
            if not self.journaled and not self.wal_opened:
                self._note("memory", "off")
            self.database_written = self.journaled
        elif call.kind == "flush":
            self.database_flushed = self.database_written

    def _committed(self, mode: str) -> None:
        """Undone transactions write nothing to the database that matters here, or are counted as what they flushed."""
        if self.journaled and self.database_written:
            if not self.journal_flushes or not self.database_flushed:
                synchronous = "off"
            else:
                synchronous = "normal" if self.journal_flushes == 1 else "full"
            self._note(mode, synchronous)
        self.journaled = self.database_written = self.database_flushed = False
        self.journal_flushes = 0

    def _directory_flushed(self) -> None:
        """After the unlink of a journal, before the next one: that is what EXTRA adds."""
        last = self.commits[-1] if self.commits else None
        if last and not self.journaled and (last.mode, last.synchronous) == ("delete", "full"):
            last.synchronous = "extra"

    def _wal(self, call: Call) -> None:
        if call.kind == "open":
            self.wal_opened = True
        elif call.kind == "write":
            self.wal_opened = self.wal_written = True
            if self.writer == call.pid:
                self.frames, self.frames_flushed = True, False
        elif call.kind == "flush":
            self.wal_flushed = True
            if self.writer == call.pid:
                self.frames_flushed = True

    def _lock(self, call: Call) -> None:
        if call.offset is None or not call.offset <= WRITE_LOCK_BYTE < call.offset + call.size:
            return
        if call.kind == "lock":
            self.writer, self.frames, self.frames_flushed = call.pid, False, False
        elif call.kind == "unlock" and self.writer == call.pid:
            if self.frames:
                self._note("wal", "full" if self.frames_flushed else "off")
            self.writer = None

    def _note(self, mode: str, synchronous: str) -> None:
        self.commits.append(_Commit(mode, synchronous))
