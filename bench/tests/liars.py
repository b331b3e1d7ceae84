"""Stores built to be caught: each breaks its promise in one way only; the honest ones beside them are never convicted.

A plain module, loaded by the driver as ``liars:Name`` with this folder on the import path. All of them keep one file
per key and lie about their own process only, so a SIGKILL of the writer is all they need.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, cast
from urllib.parse import quote, unquote

from durabench_backends.contract import DATA, METADATA, Domain, Fact, Op, Promise, Setting, Store, check_key
from durabench_backends.embedded import process_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from random import Random

NOTHING_LOST = dict.fromkeys((Domain.NOTHING, Domain.CLIENT, Domain.SERVER), 0.0)
SAFE = Promise(NOTHING_LOST, Domain.SERVER, Domain.SERVER, "nothing is lost when processes die; atomic and ordered")
NOT_ATOMIC = Promise(NOTHING_LOST, None, Domain.SERVER, "nothing is lost when processes die; puts are not atomic")
WINDOW_S = 0.3
WINDOW = Promise(
    {Domain.NOTHING: 0.0, Domain.CLIENT: WINDOW_S, Domain.SERVER: WINDOW_S},
    Domain.SERVER,
    Domain.SERVER,
    "at most the last 0.3 s are lost when processes die",
)
NO_PROMISE = Promise({Domain.NOTHING: 0.0}, None, None, "nothing is promised when processes die")

MANY = 1_000_000
HALF_S = 0.002
"""Between the two halves of a put that is not atomic, so that a strike inside it is likely to fall between them."""


class Folder:
    """One file per key, each written under another name and renamed: what every store here is made of, and honest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)

    def file(self, key: str) -> Path:
        check_key(key)
        return self.path / f"k-{quote(key, safe='')}"

    def put(self, key: str, value: bytes) -> None:
        temporary = self.path / f"tmp-{os.getpid()}"
        temporary.write_bytes(value)
        temporary.replace(self.file(key))

    def get(self, key: str) -> bytes | None:
        try:
            return self.file(key).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        self.file(key).unlink(missing_ok=True)

    def keys(self) -> list[str]:
        return [unquote(file.name.removeprefix("k-")) for file in self.path.iterdir() if file.name.startswith("k-")]

    def size_bytes(self) -> int:
        return sum(file.stat().st_blocks * 512 for file in self.path.iterdir())

    def close(self) -> None:
        pass


def store(folder: Folder, **lies: Callable[..., object]) -> Store:
    """What ``folder`` does, except for the methods that are given."""
    names = ("put", "get", "delete", "keys", "size_bytes", "close")
    return cast("Store", SimpleNamespace(**{name: lies.get(name, getattr(folder, name)) for name in names}))


def in_memory(folder: Folder, behind: int) -> Store:
    """Acknowledges before it writes: up to ``behind`` operations stay in the process, until `close`."""
    pending: list[tuple[str, bytes | None]] = []

    def write(left: int) -> None:
        while len(pending) > left:
            key, value = pending.pop(0)
            folder.delete(key) if value is None else folder.put(key, value)

    def put(key: str, value: bytes) -> None:
        pending.append((key, value))
        write(behind)

    def delete(key: str) -> None:
        pending.append((key, None))
        write(behind)

    def get(key: str) -> bytes | None:
        return dict(pending).get(key, folder.get(key))

    def keys() -> list[str]:
        return [key for key in {*folder.keys(), *dict(pending)} if get(key) is not None]

    return store(folder, put=put, delete=delete, get=get, keys=keys, close=lambda: write(0))


def briefly_in_memory(folder: Folder, hold_s: float) -> Store:
    """Keeps the last put in the process, but only while puts follow each other faster than ``hold_s``."""
    behind = in_memory(folder, 1)
    last = [time.monotonic()]

    def put(key: str, value: bytes) -> None:
        behind.put(key, value)
        now = time.monotonic()
        if now - last[0] > hold_s:
            behind.close()
        last[0] = now

    return store(folder, put=put, get=behind.get, delete=behind.delete, keys=behind.keys, close=behind.close)


def in_halves(folder: Folder) -> Store:
    """Writes one half, then the other, over what was there."""

    def put(key: str, value: bytes) -> None:
        with folder.file(key).open("wb", buffering=0) as file:
            file.write(value[: len(value) // 2])
            time.sleep(HALF_S)
            file.write(value[len(value) // 2 :])

    return store(folder, put=put)


def deletes_in_memory(folder: Folder) -> Store:
    """Remembers deletes in the process only: whoever opens it next sees everything again."""
    deleted: set[str] = set()

    def put(key: str, value: bytes) -> None:
        folder.put(key, value)
        deleted.discard(key)

    def get(key: str) -> bytes | None:
        return None if key in deleted else folder.get(key)

    def keys() -> list[str]:
        return [key for key in folder.keys() if key not in deleted]  # noqa: SIM118 - a folder is no dict

    def close() -> None:
        for key in deleted:
            folder.delete(key)

    return store(folder, put=put, get=get, delete=deleted.add, keys=keys, close=close)


def two_behind(folder: Folder) -> Store:
    """Overwrites a key two puts late: whoever opens it next reads an older value than the last acknowledged one."""
    newest: dict[str, list[bytes]] = {}

    def put(key: str, value: bytes) -> None:
        newest[key] = [*newest.get(key, ()), value][-3:]
        folder.put(key, newest[key][0])

    def get(key: str) -> bytes | None:
        return newest[key][-1] if key in newest else folder.get(key)

    def close() -> None:
        for key, values in newest.items():
            folder.put(key, values[-1])

    return store(folder, put=put, get=get, close=close)


def second_forgotten(folder: Folder) -> Store:
    """Drops the second put, in the middle, and keeps what comes before and after it."""
    puts = count(1)

    def put(key: str, value: bytes) -> None:
        if next(puts) != 2:
            folder.put(key, value)

    return store(folder, put=put)


def bit_flipped(folder: Folder) -> Store:
    """Changes one bit of the first value."""

    def put(key: str, value: bytes) -> None:
        first = not folder.keys()
        folder.put(key, value[:-1] + bytes([value[-1] ^ 1]) if first else value)

    return store(folder, put=put)


def haunted(folder: Folder) -> Store:
    """Shows a key that nobody ever put."""

    def put(key: str, value: bytes) -> None:
        folder.put("ghost", value)
        folder.put(key, value)

    return store(folder, put=put)


def opened_once(folder: Folder) -> Store:
    """Can be opened by the process that wrote only: for everybody else it never comes up."""
    writer = folder.path / "written-by"
    if writer.exists() and writer.read_text() != str(os.getpid()):
        raise OSError("the log is damaged, not starting")

    def put(key: str, value: bytes) -> None:
        writer.write_text(str(os.getpid()))
        folder.put(key, value)

    return store(folder, put=put, close=lambda: writer.unlink(missing_ok=True))


def _backend(
    promised: Promise, made: Callable[[str, Folder], Store], identity: Callable[[], str] = process_identity
) -> type:
    """A backend that keeps ``made(namespace, folder)`` under one setting, ``only``, and promises ``promised``."""

    class Made:
        settings: ClassVar[Sequence[Setting]] = (Setting("only", {}, promised),)

        def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
            del setting, port
            self.root = root / "namespaces"

        @classmethod
        def from_url(cls, url: str) -> Made:
            raise ValueError(f"{url}: a liar has no URL")

        def commands(self) -> Sequence[object]:
            return ()

        def create(self) -> None:
            self.root.mkdir(parents=True)

        def open(self, namespace: str) -> Store:
            return made(namespace, Folder(self.root / namespace))

        def drop(self, namespace: str) -> None:
            shutil.rmtree(self.root / namespace, ignore_errors=True)

        def size_bytes(self) -> int:
            return sum(file.stat().st_blocks * 512 for file in self.root.rglob("*"))

        def identity(self) -> str:
            return identity()

        def inspect(self) -> Sequence[Fact]:
            return ()

        @staticmethod
        def promise(facts: object) -> Promise:
            del facts
            return promised

    return Made


def _data_in_memory(namespace: str, folder: Folder) -> Store:
    """The harness names the namespaces of a trial; those of data end in ``d``."""
    return in_memory(folder, MANY) if namespace.endswith("d") else store(folder)


AcknowledgesEarly = _backend(SAFE, lambda _, folder: in_memory(folder, 2))
Tears = _backend(SAFE, lambda _, folder: in_halves(folder))
Resurrects = _backend(SAFE, lambda _, folder: deletes_in_memory(folder))
Stale = _backend(SAFE, lambda _, folder: two_behind(folder))
DropsOne = _backend(SAFE, lambda _, folder: second_forgotten(folder))
LosesData = _backend(SAFE, _data_in_memory)
LosesMore = _backend(WINDOW, lambda _, folder: in_memory(folder, MANY))
Corrupts = _backend(SAFE, lambda _, folder: bit_flipped(folder))
Invents = _backend(SAFE, lambda _, folder: haunted(folder))
NeverUp = _backend(SAFE, lambda _, folder: opened_once(folder))
SameIdentity = _backend(SAFE, lambda _, folder: store(folder), lambda: "always the same")

Honest = _backend(SAFE, lambda _, folder: store(folder))
HonestNotAtomic = _backend(NOT_ATOMIC, lambda _, folder: in_halves(folder))
HonestWindow = _backend(WINDOW, lambda _, folder: briefly_in_memory(folder, WINDOW_S / 6))
HonestAboutNothing = _backend(NO_PROMISE, lambda _, folder: in_memory(folder, MANY))


class Pairs:
    """A small agent: data and the metadata that refers to it at every step, under new keys or over one, never large."""

    name: ClassVar[str] = "pairs"
    needs: ClassVar[type] = Store

    def __init__(self, writer: int, writers: int, *, overwrite: bool = False) -> None:
        self.writer, self.writers, self.overwrite = writer, writers, overwrite

    def plan(self, rng: Random) -> Iterator[Op]:
        del rng
        sequences = count(self.writers + self.writer, self.writers)
        for step in count():
            key = f"w{self.writer}" if self.overwrite else f"w{self.writer}-{step:06d}"
            data = Op("put", DATA, key, next(sequences), 700)
            yield data
            yield Op("put", METADATA, key, next(sequences), 700, ((data.key, data.sequence),))

    def step(self, store: Store, op: Op, value: bytes) -> None:
        store.put(op.key, value)


Overwrites = partial(Pairs, overwrite=True)
