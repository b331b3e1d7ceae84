"""What happened in one trial, as the controller outside the blast radius saw it.

A history is a sequence of JSON events in the controller's order (one line each in ``histories/*.jsonl.gz``), and the
frozen facts that the checker reads. It holds everything a verdict needs: what was attempted and acknowledged, when the
strike began, and what a process that never wrote found afterwards. Times are the controller's monotonic clock, in ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from durabench_backends.contract import DATA, METADATA, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Event = dict[str, Any]
"""One line. ``e`` is its kind: trial, ready, armed, found, ok, fail, info, closed; strike, struck; up, down, sampled,
listing, reading, doubt.
"""

Outcome = Literal["ok", "fail", "info"]
"""Acknowledged; certainly did not happen; nobody knows (also: never answered)."""

Struck = Literal["inside", "before", "after"]
"""Where the strike fell: inside a put, before the victim put was answered to, or after it, between puts."""


@dataclass(frozen=True)
class Attempt:
    """An operation that was begun, and how it ended. ``acknowledged_ns`` is when the controller received the ok."""

    op: Op
    writer: int
    outcome: Outcome
    invoked_ns: int
    acknowledged_ns: int | None = None
    latency_ns: int | None = None


@dataclass(frozen=True)
class Value:
    """Bytes that were found: their length, SHA-256, and the runs of blocks of `payload.read`."""

    length: int
    sha256: str
    blocks: Sequence[tuple[int, int]]
    version: str | None = None


@dataclass(frozen=True)
class Reading:
    """What a key read after the fault.

    ``value`` None: certainly absent. ``error``: it is listed or was attempted, but cannot be read (counts as corrupt).
    ``versions``: every version there is, newest first, where the setting keeps them; None elsewhere.
    """

    namespace: str
    key: str
    value: Value | None
    error: str | None = None
    versions: Sequence[Value] | None = None


@dataclass(frozen=True)
class Found:
    """What a writer's own get read while everything lived. ``sequence`` is the get's; ``read_ns`` when it was told."""

    reading: Reading
    writer: int
    sequence: int
    read_ns: int


@dataclass(frozen=True)
class Doubt:
    """Why a trial cannot be trusted.

    Where it ``voids`` the trial, nothing that was found says anything of the setting: it was not in force, a control
    failed, somebody else answered. Any other doubt leaves open what was not seen, and what was seen stands.
    """

    why: str
    voids: bool = True


@dataclass(frozen=True)
class History:
    """One trial's facts. ``down``: why a namespace's store did not come up or answer by the deadline; ``found``
    is what gets read before the strike.
    """

    seed: int
    attempts: Sequence[Attempt]
    strike_ns: int | None
    struck: Struck | None
    readings: Sequence[Reading]
    listed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    down: Mapping[str, str] = field(default_factory=dict)
    recovery_ns: int | None = None
    doubts: Sequence[Doubt] = ()
    found: Sequence[Found] = ()

    def of(self, namespace: str) -> list[Attempt]:
        """The attempts on one namespace, in the controller's order."""
        return [attempt for attempt in self.attempts if attempt.op.namespace == namespace]

    def acknowledged(self, namespace: str) -> list[Attempt]:
        """The acknowledged puts and deletes on one namespace, in the order of their acknowledgements."""
        kept = [a for a in self.of(namespace) if a.outcome == "ok" and a.op.verb != "get"]
        return sorted(kept, key=lambda attempt: attempt.acknowledged_ns or 0)


def from_events(events: Iterable[Event]) -> History:  # noqa: C901 - one branch per kind of event
    """The facts in a recorded sequence of events. KeyError or ValueError if it is not one."""
    seed = 0
    begun: dict[tuple[int, int], Event] = {}
    answers: dict[tuple[int, int], Event] = {}
    strike_ns: int | None = None
    struck: Struck | None = None
    down: dict[str, str] = {}
    recovery_ns: int | None = None
    readings: list[Reading] = []
    listed: dict[str, frozenset[str]] = {}
    doubts: list[Doubt] = []
    found: list[Found] = []
    for event in events:
        kind = event["e"]
        if kind == "armed":
            begun[event["w"], event["i"]] = event
        elif kind in ("ok", "fail", "info"):
            answers[event["w"], event["i"]] = event
        elif kind == "trial":
            seed = event["seed"]
        elif kind == "strike":
            strike_ns = event["t"]
        elif kind == "struck":
            struck = event["where"]
        elif kind == "up":
            recovery_ns = event["recovery_ns"]
        elif kind == "down":
            # Older histories knew one store only: it was down under both namespaces.
            down.update(dict.fromkeys(event.get("ns", (METADATA, DATA)), event["why"]))
        elif kind == "listing":
            listed[event["ns"]] = frozenset(event["keys"])
        elif kind == "reading":
            readings.append(_reading(event))
        elif kind == "doubt":
            doubts.append(Doubt(event["why"], event.get("voids", True)))
        elif kind == "found":
            found.append(_found(event, begun[event["w"], event["i"]]))
    attempts = [_attempt(armed, answers.get(index)) for index, armed in begun.items()]
    return History(seed, attempts, strike_ns, struck, readings, listed, down, recovery_ns, tuple(doubts), found)


def _attempt(armed: Event, answer: Event | None) -> Attempt:
    refers = tuple((key, sequence) for key, sequence in armed.get("refers", ()))
    op = Op(armed["verb"], armed["ns"], armed["key"], armed["seq"], armed["size"], refers)
    if answer is None or answer["e"] == "info":
        return Attempt(op, armed["w"], "info", armed["t"])
    if answer["e"] == "fail":
        return Attempt(op, armed["w"], "fail", armed["t"])
    return Attempt(op, armed["w"], "ok", armed["t"], answer["t"], answer["latency_ns"])


def _found(event: Event, armed: Event) -> Found:
    return Found(_reading({**event, "ns": armed["ns"], "key": armed["key"]}), armed["w"], armed["seq"], event["t"])


def _reading(event: Event) -> Reading:
    value = event.get("value")
    versions = event.get("versions")
    return Reading(
        event["ns"],
        event["key"],
        None if value is None else _value(value),
        event.get("error"),
        None if versions is None else [_value(version) for version in versions],
    )


def _value(found: Event) -> Value:
    blocks = tuple((who, count) for who, count in found["blocks"])
    return Value(found["length"], found["sha256"], blocks, found.get("version"))
