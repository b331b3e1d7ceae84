"""What a backend is: the words, facts and protocols that every adapter, the harness and the checker share.

A store knows keys and bytes, not checkpoints: the harness opens one namespace for metadata and one for data, of one
backend or of two. A backend *describes* its daemons and set-up commands and runs none of them. Promises are data: they
say what the vendor's documentation allows a setting to lose, per domain that a fault destroys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from random import Random

KEY_MAX_BYTES = 200
"""Longest key, in bytes of UTF-8."""


class Domain(IntEnum):
    """What a fault destroys; each includes the ones before it. Nobody promises the last two."""

    NOTHING = 0
    CLIENT = 1
    SERVER = 2
    MACHINE = 3
    DRIVE = 4
    FLUSHED = 5
    AT_REST = 6

    @property
    def label(self) -> str:
        """The word printed in tables and results: ``nothing``, ``client``, …, ``at-rest``."""
        return self.name.lower().replace("_", "-")


RATED_DOMAINS = (Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE)


@dataclass(frozen=True)
class Promise:
    """What the documentation says a setting may lose when a domain is destroyed.

    ``may_lose_s`` maps a domain to 0.0 (nothing) or to the seconds of acknowledgements that may go; a domain left out
    is no promise. ``atomic`` and ``ordered`` name the last domain up to which a put is all or nothing, and up to which
    what is lost is a suffix; None means never. ``source`` is the document and section that says so.
    """

    may_lose_s: Mapping[Domain, float]
    atomic: Domain | None
    ordered: Domain | None
    source: str

    @property
    def tier(self) -> str:
        """T3 nothing lost from client to drive, T2 all bounded (with its seconds), T1 nothing lost when processes die,
        else T0.
        """
        losses = [self.may_lose_s.get(domain) for domain in RATED_DOMAINS]
        bounded = [seconds for seconds in losses if seconds is not None]
        if len(bounded) == len(RATED_DOMAINS):
            worst = max(bounded)
            return "T3" if worst == 0 else f"T2 {worst:g} s"
        return "T1" if losses[0] == 0 and losses[1] == 0 else "T0"

    def is_atomic(self, destroyed: Domain) -> bool:
        """Whether a put is promised all or nothing when ``destroyed`` is."""
        return self.atomic is not None and destroyed <= self.atomic

    def is_ordered(self, destroyed: Domain) -> bool:
        """Whether a loss is promised to be a suffix when ``destroyed`` is."""
        return self.ordered is not None and destroyed <= self.ordered

    def as_json(self) -> dict[str, Any]:
        """The words that results and documents keep it in."""
        return {
            "may_lose_s": {domain.label: seconds for domain, seconds in sorted(self.may_lose_s.items())},
            "atomic": None if self.atomic is None else self.atomic.label,
            "ordered": None if self.ordered is None else self.ordered.label,
            "source": self.source,
            "tier": self.tier,
        }


@dataclass(frozen=True)
class Setting:
    """A named durability configuration: ``options`` are passed to the software verbatim, ``promise`` is its vendor's.

    ``versions`` says that every acknowledged version of a key is kept and promised, not only the newest.
    """

    name: str
    options: Mapping[str, str]
    promise: Promise
    versions: bool = False


@dataclass(frozen=True)
class Fact:
    """One thing read from a running backend: ``id`` such as ``postgres.synchronous_commit``, and who set it.

    ``unread`` is set where it could not be read, and says why, with the line that grants the right; ``value`` and
    ``origin`` are then empty, and no promise rests on the fact.
    """

    id: str
    value: str
    origin: str
    unread: str = ""


@dataclass(frozen=True)
class Goal:
    """What a deployment must do: lose at most the last ``max_loss_s`` seconds when ``survive`` is destroyed."""

    survive: Domain = Domain.DRIVE
    max_loss_s: float = 0.0

    def is_met_by(self, promise: Promise) -> bool:
        """Whether ``promise`` bounds the loss by the goal in the goal's domain and in every smaller one."""
        smaller = (domain for domain in RATED_DOMAINS if domain <= self.survive)
        return all(promise.may_lose_s.get(domain, float("inf")) <= self.max_loss_s for domain in smaller)


Status = Literal["ok", "warn", "fail", "skip", "unknown"]


@dataclass(frozen=True)
class Check:
    """What one look at a deployment says about a goal.

    ``fail``: the goal is not met because of it. ``unknown``: the goal depends on it and it could not be read; ``skip``:
    it only supports the goal and could not be read. ``warn`` is worth knowing and changes nothing. ``loses`` says what
    is lost otherwise, ``fix`` is a line to paste (for ``unknown`` and ``skip`` the one that grants the right),
    ``evidence`` what was seen. None where there is nothing to say.
    """

    id: str
    status: Status
    value: str | None = None
    origin: str | None = None
    loses: str | None = None
    fix: str | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class Command:
    """A program that a backend asks for. ``files`` (name → bytes) are written under the backend's root beforehand.

    Roles: ``setup`` runs to its end, in order, once per fresh root; ``daemon`` must live in the foreground;
    ``configure`` runs to its end once the daemons answer; ``driver`` is the harness's own.
    """

    role: Literal["driver", "setup", "daemon", "configure"]
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)


class NotReady(Exception):
    """The backend cannot be opened yet; ask again until a deadline of your own."""


class Refused(Exception):
    """The operation certainly did not happen (recorded as *fail*). Any other exception leaves it in doubt (*info*)."""


@runtime_checkable
class Store(Protocol):
    """An open connection to one namespace: keys to bytes.

    Keys are 1–200 bytes of UTF-8, case-sensitive, without NUL, else ValueError (see `check_key`).
    """

    def put(self, key: str, value: bytes) -> None:
        """Store ``value`` under ``key``, replacing what was there. Returning is the acknowledgement."""

    def get(self, key: str) -> bytes | None:
        """The bytes last put under ``key``; None only when the key is certainly not there."""

    def delete(self, key: str) -> None:
        """Remove ``key``; absent is no error. Returning is the acknowledgement."""

    def keys(self) -> Iterable[str]:
        """Exactly the keys that are there, in any order."""

    def size_bytes(self) -> int:
        """This namespace's share of the bytes at rest."""

    def close(self) -> None:
        """Release the connection; idempotent. Never flushes on the caller's behalf."""


@runtime_checkable
class Versioned(Protocol):
    """A store that keeps older versions of a key."""

    def versions(self, key: str) -> Iterable[tuple[str, bytes]]:
        """(the server's version id, value) of every version there is, newest first; delete markers are left out."""


@runtime_checkable
class Transactional(Protocol):
    """A store whose backend can commit several puts at once."""

    def put_many(self, values: Mapping[tuple[str, str], bytes]) -> None:
        """Put every (namespace, key) → value of this backend in one commit: all of it or nothing."""


@runtime_checkable
class Conditional(Protocol):
    """A store with a single-writer guard."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Put only where ``key`` is not there; True if this call put it, False if something was there."""


Verb = Literal["put", "delete", "get"]
METADATA, DATA = "metadata", "data"
"""The two namespaces of a checkpoint. Data is put first; the metadata record commits it."""


@dataclass(frozen=True)
class Op:
    """One operation of a workload.

    ``namespace`` is `METADATA` or `DATA`; ``sequence`` is unique within a trial and grows with each writer's
    operations; ``size`` is the payload's, in bytes; ``refers`` are the (key, sequence) of the data puts that a metadata
    record commits.
    """

    verb: Verb
    namespace: str
    key: str
    sequence: int
    size: int
    refers: Sequence[tuple[str, int]] = ()


class Workload(Protocol):
    """What a writer does, step by step; run by the driver, loaded by name or as ``package.module:Class``.

    Constructed with the writer's number and the number of writers; keys of different writers never collide.
    """

    name: ClassVar[str]
    needs: ClassVar[type]
    """Store, Versioned, Transactional, Conditional, or a protocol of its own."""

    def __init__(self, writer: int, writers: int) -> None: ...

    def plan(self, rng: Random) -> Iterator[Op]:
        """The endless, seeded sequence of operations."""

    def step(self, store: Store, op: Op, value: bytes) -> None:
        """Carry out one operation; ``value`` is the payload of a put, made before the clock starts. Returning
        acknowledges it.
        """


@runtime_checkable
class Backend(Protocol):
    """One storage software under one setting, on a directory and ports of ours or at a URL of somebody's.

    Four class attributes may be left out: ``imports``, the modules of its client library, which the harness imports
    before it forks a driver; ``mock``, True for what has no disk and is therefore not rated beyond the client;
    ``heavy``, True for a server that an emulated machine is too slow for; and ``url_form``, the URL of a person's
    client
    with ``{server}`` for host and port.
    """

    settings: ClassVar[Sequence[Setting]]
    """The first is the software's own default."""

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        """Remember where it lives; touches nothing. ``port(name)`` gives the same free port for the same name."""

    @classmethod
    def from_url(cls, url: str) -> Backend:
        """Somebody's running backend; `commands` is then empty. ValueError names what is wrong with the URL."""

    def commands(self) -> Sequence[Command]:
        """Set-up, daemons and configuration, in that order; empty for an embedded store."""

    def create(self) -> None:
        """Once per fresh root, when it answers: schema, buckets. A second call is an error; NotReady while it comes
        up.
        """

    def open(self, namespace: str) -> Store:
        """Connect to a namespace, making it if need be. NotReady while the backend comes up."""

    def drop(self, namespace: str) -> None:
        """Remove all of a namespace, versions and unfinished uploads too; absent is no error."""

    def size_bytes(self) -> int:
        """All bytes at rest (allocated), logs included; reports subtract the value after `create`."""

    def identity(self) -> str:
        """Differs after a restart: the server's own start mark; for embedded stores that of the asking process."""

    def inspect(self) -> Iterable[Fact]:
        """The settings in force, read and never written."""

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to; pure. Facts that are missing never make it stronger."""


@runtime_checkable
class Verifiable(Protocol):
    """A backend that can say of somebody's deployment whether it meets a goal."""

    pages: ClassVar[Mapping[str, str]]
    """Id of every check there is → its page: what it is, what is lost otherwise, how to mend it, and the source."""
    probes: ClassVar[Sequence[str]]
    """Ids of the checks that only `probe` can make."""

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        """What ``facts`` mean for ``goal``; pure. One check per id, none of `probes`. Where `Backend.promise` does not
        meet the goal, at least one check is ``fail`` or ``unknown``; where it does, none is.
        """

    def probe(self, goal: Goal) -> Iterable[Check]:
        """The checks of `probes`, by behaviour: writes in a namespace of its own, which it removes again, and removes
        one that an earlier probe left. Each says in its evidence how much it wrote.
        """

    def writer_pids(self) -> Sequence[int]:
        """Processes on this machine that make the bytes durable on a client's behalf; empty where there are none: an
        embedded store, or a server elsewhere.
        """


@runtime_checkable
class Compactable(Protocol):
    """A backend that can give back the space of what was overwritten or deleted, by a rewrite of its own files."""

    def compact(self) -> str:
        """Rewrite and return when it is done; the name of what was done, such as the statement, empty for nothing."""


@runtime_checkable
class Sized(Protocol):
    """A backend that can say how large somebody's values are."""

    def sizes_bytes(self, within: str) -> Iterable[int]:
        """The size of every value, and nothing else of it; opens and reads without writing anything. ``within`` is a
        part of the store, in its own terms (a table, a prefix of keys), empty for all of it. ValueError where there is
        no such part. A value is a file, an object, a string, or all large columns of a row together.
        """


@dataclass(frozen=True)
class Limit:
    """The largest value that a backend can take, in bytes, and the document that says so. Named by a backend in a
    class attribute ``limit``, where it has one.
    """

    size_bytes: int
    source: str


DELETED = " (deleted)"
"""Ends the path of a file that has no name (yet, or any more)."""
CallKind = Literal["open", "write", "flush", "rename", "unlink", "mkdir", "truncate", "lock", "unlock", "hidden"]


@dataclass(frozen=True)
class Call:
    """One system call of a watched program, as a tracer saw it succeed; calls come in the order in which they ended.

    ``path`` is absolute, and empty for what is no file; ``target`` is the new name of a rename or link. ``flags`` are
    the call's own words (``O_CREAT``, ``O_DSYNC``, ``RWF_DSYNC``). A ``flush`` without a path flushes everything.
    ``size`` and ``offset`` are in bytes (``offset`` None: at the file's own position; of a lock, where it begins).
    ``hidden`` is a way to write and flush that a tracer cannot follow (io_uring, asynchronous I/O); ``path`` then
    names the call.
    """

    kind: CallKind
    pid: int
    path: str
    target: str = ""
    flags: frozenset[str] = frozenset()
    size: int = 0
    offset: int | None = None


@runtime_checkable
class Watchable(Protocol):
    """An embedded backend that can tell from a program's system calls how the program writes to it."""

    def watched(self, calls: Sequence[Call]) -> Iterable[Fact]:
        """The facts that take the place of what `Backend.inspect` could not know: how each put was written, judged by
        the weakest. `Fact.unread` says why where the calls do not tell.
        """


def check_key(key: str) -> None:
    """ValueError unless ``key`` is 1–200 bytes of UTF-8 without NUL. Every adapter calls it before it touches
    anything.
    """
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        message = "a key must be encodable as UTF-8"
        raise ValueError(message) from None
    if not 1 <= length <= KEY_MAX_BYTES:
        message = f"a key must have 1 to {KEY_MAX_BYTES} bytes of UTF-8, this one has {length}"
        raise ValueError(message)
    if "\0" in key:
        message = "a key must not contain NUL"
        raise ValueError(message)
