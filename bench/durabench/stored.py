"""What the files of a results folder may hold: one schema, that everything read from one passes once.

The rows' fields stand in `row`, which has the readers of them; here are the documents and the events. What the schema
does not name is let through as JSON and used by nobody. A value of another type, a count below 0, a number that is none
and a name that would lead out of the folder are refused, each in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from durabench import outside
from durabench.outside import Malformed, quoted
from durabench.row import FARTHEST, LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Number = Annotated[float, Meta(ge=-FARTHEST, le=FARTHEST)]
Amount = Annotated[float, Meta(ge=0, le=FARTHEST)]
_Domain = Literal["nothing", "client", "server", "machine", "drive", "flushed", "at-rest"]
Scalar = str | int | float | bool | None
MEND = "give the folder that `durabench run` printed last"


# --- run.json and done.json


class _Commit(Struct):
    commit: str | None = None
    dirty: bool | None = None


class _Device(Struct):
    name: str | None = None
    model: str | None = None
    write_cache: str | None = None
    shared: bool = False


class _Machine(Struct):
    id: str = ""
    system: str | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    cores: Count | None = None
    memory_bytes: Count | None = None
    virtualisation: str | None = None
    python: str | None = None
    device: _Device | None = None
    filesystem: str | None = None
    mount_options: str | None = None
    latency: str | None = None


class _Fact(Struct):
    value: Scalar = None
    origin: str | None = None


class _Target(Struct):
    facts: dict[str, _Fact] | None = None


class _Promise(Struct):
    may_lose_s: (
        dict[Literal["nothing", "client", "server", "machine", "drive", "flushed", "at-rest"], Amount] | None
    ) = None
    atomic: str | None = None
    ordered: str | None = None
    source: str | None = None
    tier: str | None = None
    versions: bool = False


class _Cell(Struct):
    backend: str
    setting: str
    tier: str
    namespace: str
    workload: str
    fault: str
    lane: str
    host: str
    destroyed: str | None = None
    verdict: Literal["not rated", "not run", "–"] | None = None
    why: str | None = None
    by_name: bool = False


class _Planned(Struct):
    trial: Count
    seed: Whole
    shared: Annotated[int, Meta(ge=0)] | UnsetType = msgspec.field(default=UNSET, name="as")


class _Run(Struct):
    """run.json. The members of a planned trial are looked at when it is judged or run again (`trial.TrialPlan`)."""

    schema_version: Annotated[int, Meta(ge=1, le=1 << 31)]
    methodology: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    durabench: str | None = None
    created: str | None = None
    profile: str | None = None
    seed: Whole | None = None
    command: list[str] | None = None
    commit: _Commit | None = None
    machine: _Machine | None = None
    versions: dict[str, dict[str, Scalar]] | None = None
    targets: dict[str, _Target] | None = None
    promises: dict[str, _Promise] | None = None
    driver: Literal["forked", "fresh"] | None = None
    asked: dict[str, Any] | None = None
    directory: str | None = None
    cells: list[_Cell] = []
    plan: list[_Planned] = []
    plan_shared: list[dict[str, Any]] = []


class _Done(Struct):
    schema_version: Annotated[int, Meta(ge=1, le=1 << 31)]
    exit_status: Annotated[int, Meta(ge=0, le=255)]
    time: str | None = None
    counts: dict[str, Count] = {}
    stopped: str | None = None
    doubts: list[str] = []
    not_run: list[_Cell] = []
    recordings_not_kept: dict[str, str] = {}


# --- plan.json


class _Goal(Struct):
    survive: str
    max_loss_s: Amount
    max_p99_ms: Amount | None = None
    max_bytes_per_step: Amount | None = None


class _Candidate(Struct):
    label: str
    meets_goal: bool
    excluded_by: str | None = None
    why: str | None = None
    stopped_bytes: Count | None = None
    stopped_why: str | None = None


class _Flush(Struct):
    p50_ns: Amount
    lowest_ns: Amount | None = None
    highest_ns: Amount | None = None
    moved_ratio: Amount | None = None


class _Swept(Struct):
    label: str
    payload: str
    size_bytes: Annotated[int, Meta(ge=1, le=LARGEST)]
    backend: str | None = None
    setting: str | None = None
    stage: str | None = None
    trials: Count | None = None
    puts: Count | None = None
    put_p50_ns: Amount | None = None
    put_p50_low_ns: Amount | None = None
    put_p50_high_ns: Amount | None = None
    put_p99_ns: Amount | None = None
    put_max_ns: Amount | None = None
    reload_warm_p50_ns: Amount | None = None
    reload_cold_p50_ns: Amount | None = None
    cold_why: str | None = None
    writer_bytes_per_put: Amount | None = None
    device_bytes_per_put: Amount | None = None
    at_rest_per_payload_byte: Number | None = None
    compacted_per_payload_byte: Number | None = None


class _Crossing(Struct):
    a: str
    b: str
    at_bytes: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    reliable: bool | None = None
    affine_bytes: Amount | None = None
    affine_disagrees: bool | None = None
    why: str | None = None
    below: str | None = None
    above: str | None = None
    smallest_bytes: Count | None = None
    largest_bytes: Count | None = None
    payload: str = "incompressible"

    def __post_init__(self) -> None:
        told = (self.at_bytes, self.low, self.high, self.below, self.above)
        if self.reliable and None in told:
            message = f"the crossing of {quoted(self.a)} and {quoted(self.b)} is reliable, and does not say where"
            raise ValueError(message)


class _Steps(Struct):
    steps: Count | None = None
    payload_bytes: Number | None = None
    writer_bytes: Number | None = None
    device_bytes: Number | None = None
    p50_ns: Amount | None = None


class _Struck(Struct):
    fault: str
    trials: Count
    verdict: str | None
    lost: Count | None = None
    dangling: Count | None = None


class _Layout(Struct):
    unchanged: _Steps
    changed: _Steps
    puts: Count | None = None
    writer_bytes: Number | None = None
    device_bytes: Number | None = None
    at_rest_bytes: Number | None = None
    growth: str | None = None
    refused: str | None = None
    faults: list[_Struck] = []


class _Split(Struct):
    trace: str
    metadata: str
    data: str
    steps: Count
    changes: Count
    metadata_bytes: Count
    data_bytes: Count
    whole: _Layout | None = None
    split: _Layout | None = None
    put_many: _Layout | None = None
    ratios: dict[str, Number | None] | None = None


class _Own(Struct):
    source: str
    values: Count
    quantiles: dict[str, Count] = {}


class _Excluded(Struct):
    label: str
    excluded_by: str | None
    why: str | None


class _Recommendation(Struct):
    answer: str
    status: Annotated[int, Meta(ge=0, le=255)] | None = None
    cautions: list[str] = []
    why_runner_up_lost: str | None = None
    tied: list[str] = []
    excluded: list[_Excluded] | None = None


class _Plan(Struct):
    """plan.json. What is absent becomes what it is here, so that every entry has all that is shown of it."""

    schema_version: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    machine: _Machine | None = None
    seed: Whole | None = None
    quick: bool | None = None
    goal: _Goal | None = None
    sizes: list[Annotated[int, Meta(ge=1, le=LARGEST)]] = []
    candidates: list[_Candidate] = []
    floor: dict[Annotated[str, Meta(pattern="^[0-9]{1,18}$")], _Flush] | None = None
    ranked: bool = True
    not_ranked_why: str | None = None
    left_out: list[str] | None = None
    cold_how: str | None = None
    sweep: list[_Swept] = []
    crossings: list[_Crossing] = []
    split: list[_Split] = []
    own_sizes: _Own | None = None
    recommendation: _Recommendation | None = None


DOCUMENTS: dict[str, type[Struct]] = {"run.json": _Run, "done.json": _Done, "plan.json": _Plan}


def document(folder: Path, name: str) -> dict[str, Any]:
    """A document of a results folder, as JSON that has passed. FileNotFoundError, OSError, Malformed."""
    raw = outside.content(folder, name)
    where = outside.shown(str(folder / name))
    try:
        found: dict[str, Any] = outside.json_of(raw)
        passed = msgspec.convert(found, DOCUMENTS[name])
        if isinstance(passed, _Run):
            _refuse_lost(passed)
    except ValueError as error:
        message = f"{where} is not what durabench writes: {outside.wrong(error)}; {MEND}"
        raise Malformed(message) from None
    if isinstance(passed, _Plan):
        found = _filled(found, msgspec.to_builtins(passed))
    return found if outside.plain(raw) else dict(outside.shown(found))


def _filled(found: Any, passed: Any) -> Any:
    """What was read, with what it left out as the schema has it."""
    if isinstance(found, dict) and isinstance(passed, dict):
        return {**passed, **{name: _filled(member, passed.get(name)) for name, member in found.items()}}
    if isinstance(found, list) and isinstance(passed, list) and len(found) == len(passed):
        return [_filled(one, other) for one, other in zip(found, passed, strict=True)]
    return found


def _refuse_lost(run: _Run) -> None:
    for row in run.plan:
        if row.shared is not UNSET and row.shared >= len(run.plan_shared):
            message = f"trial {row.trial} of the plan refers to what is not there"
            raise ValueError(message)


# --- events of a history


class _Value(Struct):
    length: Count
    sha256: str
    blocks: list[tuple[Whole, Count]]
    version: str | None = None


class _Event(Struct):
    """Every member that is read of any event; `_NEEDS` says which a kind must have."""

    e: str
    t: Whole | UnsetType = UNSET
    w: Count | UnsetType = UNSET
    i: Count | UnsetType = UNSET
    verb: Literal["put", "delete", "get"] | UnsetType = UNSET
    ns: str | list[str] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    seq: Count | UnsetType = UNSET
    size: Annotated[int, Meta(ge=0, le=1 << 40)] | UnsetType = UNSET
    refers: list[tuple[str, Count]] | UnsetType = UNSET
    latency_ns: Count | UnsetType = UNSET
    seed: Whole | UnsetType = UNSET
    where: Literal["inside", "before", "after"] | UnsetType = UNSET
    recovery_ns: Count | UnsetType = UNSET
    why: str | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET
    value: _Value | UnsetType | None = UNSET
    error: str | UnsetType | None = UNSET
    versions: list[_Value] | UnsetType | None = UNSET
    ports: dict[str, Annotated[int, Meta(ge=0, le=65535)]] | UnsetType = UNSET
    voids: bool | UnsetType = UNSET


_NEEDS = {
    "trial": ("seed",),
    "armed": ("t", "w", "i", "verb", "ns", "key", "seq", "size"),
    "ok": ("t", "w", "i", "latency_ns"),
    "found": ("t", "w", "i"),
    "fail": ("w", "i"),
    "info": ("w", "i"),
    "strike": ("t",),
    "struck": ("where",),
    "up": ("recovery_ns",),
    "down": ("why",),
    "listing": ("ns", "keys"),
    "reading": ("ns", "key"),
    "doubt": ("why",),
}


def event(line: bytes) -> dict[str, Any]:
    """One line of a history, as JSON that has passed. ValueError says what is wrong."""
    found: dict[str, Any] = outside.json_of(line)
    msgspec.convert(found, _Event)
    return found


def refuse_incomplete(events: Iterable[Mapping[str, Any]]) -> None:
    """ValueError where an event lacks what is read of its kind."""
    begun: set[tuple[int, int]] = set()
    for each in events:
        kind = each["e"]
        lacks = [name for name in _NEEDS.get(kind, ()) if name not in each]
        if lacks:
            message = f"{kind} without {', '.join(lacks)}"
            raise ValueError(message)
        if isinstance(each.get("ns", ""), list) != (kind == "down" and "ns" in each):
            message = f"{kind} with {each['ns']!r:.40} for a namespace"
            raise ValueError(message)
        if kind == "armed":
            begun.add((each["w"], each["i"]))
        if kind == "found" and (each["w"], each["i"]) not in begun:
            message = "found without an armed"
            raise ValueError(message)


def file_name(name: str) -> str:
    """A word that becomes the name of a file. ValueError where it would lead elsewhere."""
    if (
        not name
        or len(name.encode(errors="replace")) > 200
        or name[0] == "."
        or "/" in name
        or name != outside.shown(name)
    ):
        message = f"{quoted(name)} is no name of a file"
        raise ValueError(message)
    return name
