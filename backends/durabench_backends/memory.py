"""The control that loses everything: a dict in the process that asks, promising nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from durabench_backends.contract import Command, Fact, Promise, Setting, Store, check_key
from durabench_backends.embedded import process_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

PROMISE = Promise(
    may_lose_s={},
    atomic=None,
    ordered=None,
    source="durabench, backends/README.md: a dict of the writing process; nothing is stored anywhere",
)


class MemoryStore:
    """One namespace of `Memory`."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values

    def put(self, key: str, value: bytes) -> None:
        check_key(key)
        self._values[key] = value

    def get(self, key: str) -> bytes | None:
        check_key(key)
        return self._values.get(key)

    def delete(self, key: str) -> None:
        check_key(key)
        self._values.pop(key, None)

    def keys(self) -> Iterable[str]:
        return list(self._values)

    def size_bytes(self) -> int:
        """Zero: nothing is at rest."""
        return 0

    def close(self) -> None:
        pass


class Memory:
    """Namespaces of dicts, as old as this object."""

    settings: ClassVar[Sequence[Setting]] = (Setting("dict", {}, PROMISE),)

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        del root, port
        self.setting = setting
        self._namespaces: dict[str, dict[str, bytes]] = {}
        self._created = False

    @classmethod
    def from_url(cls, url: str) -> Memory:
        del url
        raise ValueError("memory has no URL: nobody else can reach it")

    def commands(self) -> Sequence[Command]:
        return ()

    def create(self) -> None:
        if self._created:
            raise FileExistsError("created already")
        self._created = True

    def open(self, namespace: str) -> Store:
        return MemoryStore(self._namespaces.setdefault(namespace, {}))

    def drop(self, namespace: str) -> None:
        # Emptied, not only forgotten: a store that is still open must not bring the values back.
        self._namespaces.pop(namespace, {}).clear()

    def size_bytes(self) -> int:
        """Zero: nothing is at rest."""
        return 0

    def identity(self) -> str:
        return process_identity()

    def inspect(self) -> Iterable[Fact]:
        return (Fact("memory.storage", "dict", "this process"),)

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        del facts
        return PROMISE
