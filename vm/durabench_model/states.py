"""The words of the model: profiles, classes, states, and the trees that they mean."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

NEEDS_COMMIT = "another commit"
"""What a state needs that only somebody else's flush, at that very moment, gives."""


class Profile(StrEnum):
    """Whose rules."""

    POSIX = "posix"
    EXT4 = "ext4-ordered"


class Class(StrEnum):
    """How the choice among what may be missing is made; the seed picks where there is one."""

    NONE = "none"  # the least that must be there
    ALL = "all"  # everything: what the death of a process leaves
    NAMES = "names"  # all names and sizes, no bytes
    PREFIX = "prefix"  # everything up to a moment, nothing after
    SUFFIX = "suffix"  # nothing before a moment, everything after
    HOLE = "hole"  # everything but one change
    ONLY = "only"  # nothing but one change
    SUBSET = "subset"  # any changes, whole
    TORN_HEAD = "torn head"  # of one write the first units, of what was before it everything
    TORN_TAIL = "torn tail"  # … the last units
    TORN_MIDDLE = "torn middle"  # … all but some in the middle
    TORN_ANY = "torn any"  # … any units
    MASK = "mask"  # exactly those changes whose bit is set in the seed, the oldest being bit 0


TORN = (Class.TORN_HEAD, Class.TORN_TAIL, Class.TORN_MIDDLE, Class.TORN_ANY)
AT_RANDOM = frozenset({Class.SUBSET, *TORN})
"""Where more than one change is drawn."""
DRAWN = tuple(each for each in Class if each is not Class.MASK)


class State(NamedTuple):
    """One crash state, by name: it is rebuilt from these and the profile alone. `unit`: bytes that do not tear."""

    position: int
    kind: Class
    seed: int = 0
    unit: int = 512


class Item(NamedTuple):
    """A file, folder or link of a state. `token` is equal only where the content is."""

    mode: int
    node: int
    token: object = None
    data: bytes | bytearray | None = None
    source: Path | None = None  # a file of the base that nobody wrote to
    target: str | None = None  # of a link
    owner: tuple[int, int] | None = None  # where it was changed
    attributes: tuple[tuple[str, bytes | None], ...] = ()  # extended ones that were changed; None: removed

    def content(self) -> bytes:
        """A file's bytes."""
        if self.data is not None:
            return bytes(self.data)
        return b"" if self.source is None else self.source.read_bytes()


class Tree(NamedTuple):
    """What is below the folder in a state, by path."""

    items: dict[str, Item]
    needs: str = ""
    """What it takes for the state to come about; empty: the program's own calls, and time."""

    def digest(self) -> bytes:
        """Equal where the trees are, byte for byte."""
        total = hashlib.blake2b(digest_size=16)
        for path, item in sorted(self.items.items()):
            total.update(repr((path, item.mode, item.target, item.owner, item.attributes)).encode())
            total.update(hashlib.blake2b(item.content(), digest_size=16).digest())
        return total.digest()


@dataclass
class Node:
    """A file or folder as it certainly is on the medium, and what happened to it since."""

    mode: int
    target: str | None = None
    source: Path | None = None  # its content, not loaded yet
    data: bytearray = field(default_factory=bytearray)
    entries: dict[str, int] = field(default_factory=dict)  # of a folder
    owner: tuple[int, int] | None = None
    attributes: dict[str, bytes | None] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)  # changes of bytes that may be missing
    version: int = 0
    born: int = -1
    changed: int = -1  # its last change that only a full fsync covers: a name, a mode
    holes: set[int] = field(default_factory=set)  # blocks below the end without storage of their own
    markers: list[int] = field(default_factory=list)  # ext4: up to here the bytes go before the next commit
    emptied: bool = False
    live_size: int = 0
    failed: bool = False  # a flush failed: what it should have covered may never be there
    doomed: set[int] = field(default_factory=set)
    must: set[int] = field(default_factory=set)  # changes after a failed flush that a later one covers

    @property
    def size(self) -> int:
        """How long the file certainly is."""
        return self.source.stat().st_size if self.source is not None else len(self.data)

    def load(self) -> None:
        """Read the content from the base."""
        if self.source is not None:
            self.data, self.source = bytearray(self.source.read_bytes()), None
