"""Checkpoints as files of a directory, written in four ways, from a bare overwrite to what survives a power cut.

One namespace is one directory, one key one file in it, flat: the only directory that ever needs an fsync after a put is
the one that is open anyway.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from durabench_backends import place
from durabench_backends.contract import Command, Fact, NotReady, Promise, Setting, Store
from durabench_backends.embedded import allocated_bytes, mount_facts, on_mount, one_of, process_identity
from durabench_backends.files import checks as judged
from durabench_backends.files import watch
from durabench_backends.files.promises import FSYNC_DIR, IN_PLACE, PROMISES, UNKNOWN, WATCHED, unsaid
from durabench_backends.files.store import FilesStore, file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from durabench_backends.contract import Call, Check, Goal


class Files:
    """A directory of directories, ours below ``root`` or somebody's at ``file:///dir?write=WAY``."""

    pages: ClassVar[Mapping[str, str]] = judged.PAGES
    probes: ClassVar[Sequence[str]] = place.probes("files")
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
        parts = urlsplit(url) if url.lower().startswith(("file:///", "file://localhost/")) else None
        if parts is None:  # nothing of it is looked at, or shown
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

    def sizes_bytes(self, within: str) -> Iterable[int]:
        """Of every file below the directory, or below the folder ``within`` of it; links are not followed."""
        top = self._directory / within
        if not top.is_dir() or not top.resolve().is_relative_to(self._directory.resolve()):
            message = f"{top} is no directory of that URL"
            raise ValueError(message)
        for folder, _, names in os.walk(top):
            for name in names:
                found = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - many names
                if stat.S_ISREG(found.st_mode):
                    yield found.st_size

    def identity(self) -> str:
        return process_identity()

    def inspect(self) -> Iterable[Fact]:
        directory = self._parent or self._directory
        if not directory.is_dir():
            message = f"{directory} is a file, not a directory" if directory.exists() else f"{directory} does not exist"
            raise NotReady(message)
        unread = "" if self._write else unsaid(directory.absolute().as_uri())
        origin = self._origin if self._write else ""
        return [Fact("files.write", self._write or "", origin, unread), *mount_facts("files", directory)]

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        values = {fact.id: fact.value for fact in facts if fact.value}  # what could not be read is as if not there
        return on_mount(WATCHED.get(values.get("files.write", ""), UNKNOWN), "files", values)

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        return judged.checks(facts, goal)

    def probe(self, goal: Goal) -> Iterable[Check]:
        return place.probe("files", self._parent or self._directory, goal)

    def writer_pids(self) -> Sequence[int]:
        return ()

    def watched(self, calls: Sequence[Call]) -> Iterable[Fact]:
        return [watch.written(calls, self._parent or self._directory)]
