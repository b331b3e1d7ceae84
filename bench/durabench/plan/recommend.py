"""What to keep where: every arrangement of the candidates is charged for the same steps, and the cheapest is named.

An arrangement writes each step whole, in one value; or split, data only where it changed, both in one backend or over
two. A step costs the medians of its puts, read off the measured curves at the step's own sizes. Two arrangements whose
difference is within the device's drift, or within the noise of the puts they do not share, are not ranked by speed.
Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

from durabench.crossing import NONE_RELIABLE
from durabench.plan import trace as traces
from durabench.plan.document import STEPS_TOLD, losses_of
from durabench.plan.sizes import text as size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Json = Mapping[str, Any]
    Steps = Sequence[tuple[int, int, bool]]
    Puts = Mapping[tuple[str, int], float]

OK, NOT_MET, COULD_NOT_TELL = 0, 1, 3
PAYLOAD = "incompressible"
DEFAULT_STEPS = 50
FEWEST_TRIALS = 3


@dataclass(frozen=True)
class Arrangement:
    """Where metadata and data go. ``whole``: both in one value, at every step. ``above_bytes``: data below it stays
    with the metadata; None: all data goes to ``data``.
    """

    metadata: str
    data: str
    whole: bool = False
    above_bytes: int | None = None

    @property
    def labels(self) -> frozenset[str]:
        """The candidates that somebody has to run."""
        return frozenset({self.metadata, self.data})

    @property
    def backends(self) -> int:
        """How many of them."""
        return len(self.labels)

    def puts(self, steps: Steps) -> Counter[tuple[str, int]]:
        """How often which size is put where, over all ``steps``."""
        found: Counter[tuple[str, int]] = Counter()
        for metadata_bytes, data_bytes, changed in steps:
            if self.whole:
                found[self.metadata, metadata_bytes + data_bytes] += 1
                continue
            if metadata_bytes:
                found[self.metadata, metadata_bytes] += 1
            if changed and data_bytes:
                found[self.home(data_bytes), data_bytes] += 1
        return found

    def home(self, data_bytes: int) -> str:
        """Where data of this size goes."""
        return self.metadata if data_bytes < (self.above_bytes or 0) else self.data


@dataclass(frozen=True)
class Recommendation:
    """The answer in one sentence, and what it rests on. ``status`` is the exit status: 0; 1 no candidate meets the
    goal; 3 could not tell. Latencies in ms, sizes in bytes, per step and averaged over the steps of ``basis``.
    """

    answer: str
    status: int
    basis: str | None = None
    arrangement: Arrangement | None = None
    step_ms: float | None = None
    bytes_per_step: float | None = None
    unchanged_bytes: float | None = None
    unchanged_bytes_whole: float | None = None
    runner_up: Arrangement | None = None
    why_runner_up_lost: str | None = None
    tied: tuple[str, ...] = ()
    excluded: tuple[Json, ...] = ()
    cautions: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The member ``recommendation`` of plan.json."""
        found = asdict(self)
        return found | {name: list(found[name]) for name in ("tied", "excluded", "cautions")}


@dataclass(frozen=True)
class _Point:
    size_bytes: int
    p50_ns: float
    half_width_ns: float
    p99_ns: float | None
    max_ns: float | None
    puts: int
    writer_bytes: float | None
    trials: int


@dataclass(frozen=True)
class _Priced:
    """An arrangement, its puts per step, and what a step of it takes and writes."""

    arrangement: Arrangement
    name: str
    puts: Puts
    ns: float
    bytes: float


@dataclass
class _Basis:
    """What every arrangement is charged for. ``steps`` are (metadata, data, changed); ``own``: the user's."""

    said: str
    trace: str | None
    steps: Steps
    own: bool
    curves: Mapping[str, Sequence[_Point]] = field(default_factory=dict)


def recommend(document: Json) -> Recommendation:
    """The recommendation of a plan.json, from its candidates, sweep, crossings, split, sizes and goal."""
    excluded = [_by_promise(one) for one in document["candidates"] if not one["meets_goal"]]
    if not document["ranked"]:
        why = document["not_ranked_why"]
        return Recommendation(f"no recommendation: {why}", COULD_NOT_TELL, excluded=tuple(excluded))
    basis = _basis(document)
    basis.curves = _curves(document)
    if not basis.curves:
        said = "no recommendation: no candidate that meets the goal was measured"
        status = COULD_NOT_TELL if len(excluded) < len(document["candidates"]) else NOT_MET
        return Recommendation(said, status, excluded=(*_unmeasured(document, basis.curves), *excluded))
    excluded = [*_unmeasured(document, basis.curves), *excluded]
    priced = [_price(one, basis, document) for one in _arrangements(basis.curves, document["crossings"], basis)]
    left: list[_Priced] = []
    out: list[tuple[_Priced, Json]] = []
    unsure: dict[str, str] = {}
    for one in sorted(priced, key=lambda each: (each.ns, each.arrangement.backends, each.name)):
        against, doubt = _against(one, basis, document)
        out += [(one, against)] if against else []
        left += [] if against else [one]
        unsure |= {one.name: doubt} if doubt else {}
    by_goal = _by_goal(out, left)
    if not left:
        reasons = "; ".join(f"{one['label']}: {one['excluded_by']} ({one['why']})" for one in by_goal)
        promised = ", ".join(f"{one['label']} ({one['excluded_by']})" for one in excluded)
        said = f"nothing meets the goal: {reasons}" + (f"; and by what they promise {promised}" if promised else "")
        return Recommendation(said, NOT_MET, basis.said, excluded=(*by_goal, *excluded))
    excluded = [*by_goal, *excluded]
    return _chosen(left, excluded, unsure, basis, document)


def _chosen(
    left: Sequence[_Priced], excluded: Sequence[Json], unsure: Mapping[str, str], basis: _Basis, document: Json
) -> Recommendation:
    moved_ns = _moved_ns(document["floor"])
    close = [one for one in left if _no_slower_for_certain(left[0], one, basis.curves, moved_ns)]
    # Speed does not decide among these: fewer systems to run, then fewer bytes written, then what was measured.
    best = min(close, key=lambda one: (one.arrangement.backends, _about(one.bytes), one.ns, one.name))
    others = [one for one in left if one is not best]
    runner_up = min(others, key=lambda one: (one not in close, one.ns, one.name), default=None)
    tied = tuple(one.name for one in close if one is not best)
    whole, unchanged = _unchanged(best.arrangement, basis, document)
    cautions = [*_beyond(best, basis, document), *_seldom(best, basis), *_crossing_caution(best.arrangement, document)]
    cautions += _untried(best.arrangement, document)
    if best.name in unsure:
        cautions.append(unsure[best.name])
    return Recommendation(
        answer=_answer(best, basis, document, (whole, unchanged), tied),
        status=COULD_NOT_TELL if best.name in unsure else OK,
        basis=basis.said,
        arrangement=best.arrangement,
        step_ms=best.ns / 1e6,
        bytes_per_step=best.bytes,
        unchanged_bytes=unchanged,
        unchanged_bytes_whole=whole,
        runner_up=None if runner_up is None else runner_up.arrangement,
        why_runner_up_lost=None if runner_up is None else _why_lost(best, runner_up, basis, tied=runner_up in close),
        tied=tied,
        excluded=tuple(excluded),
        cautions=tuple(cautions),
    )


# --- what is charged ------------------------------------------------------------------------------------------------


def _basis(document: Json) -> _Basis:
    """The user's steps, or their sizes as one put each, or the workload ``agent``."""
    own = document.get("own_sizes")
    if own and own.get("steps"):
        steps = [(metadata, data, bool(changed)) for metadata, data, changed in own["steps"]]
        first = "first " if len(steps) >= STEPS_TOLD else ""
        return _Basis(
            f"your {first}{len(steps):,} steps of {own['source']}",
            own["source"].removeprefix("trace "),
            steps,
            own=True,
        )
    if own:
        # A value of a histogram's bin, from an edge up to 1.26 times that, counts at the middle.
        steps = [(0, round(edge * 1.12), True) for edge, count in own["histogram"] for _ in range(_share(count, own))]
        return _Basis(f"your {own['values']:,} values of {own['source']}", None, steps, own=True)
    agent = traces.agent(DEFAULT_STEPS)
    steps = [(step.metadata_bytes, step.data_bytes, step.changed) for step in agent.steps]
    metadata_bytes, data_bytes, _ = steps[0]
    said = f"with {size_text(metadata_bytes)} of metadata and {size_text(data_bytes)} of data, new in one step of five"
    return _Basis(said, agent.name, steps, own=False)


def _share(count: int, own: Json) -> int:
    """At most about a thousand values stand for all of them, and none is left out."""
    share: float = min(1.0, 1000 / max(1, own["values"]))
    return max(1, round(count * share))


def _arrangements(labels: Mapping[str, Any], crossings: Sequence[Json], basis: _Basis) -> list[Arrangement]:
    found = [Arrangement(one, one) for one in labels]
    values_only = not any(metadata for metadata, _, _ in basis.steps)
    if not values_only:
        found += [Arrangement(one, one, whole=True) for one in labels]
    for metadata, data in permutations(labels, 2):
        known = _crossing(metadata, data, crossings)
        reliable = known is not None and known["reliable"] and known["below"] == metadata
        if reliable or not values_only:
            found.append(Arrangement(metadata, data, above_bytes=known["at_bytes"] if known and reliable else None))
    return found


def _crossing(one: str, other: str, crossings: Sequence[Json]) -> Json | None:
    return next((each for each in crossings if {each["a"], each["b"]} == {one, other}), None)


def _curves(document: Json) -> dict[str, list[_Point]]:
    """Per candidate that meets the goal, its points by size."""
    allowed = {one["label"] for one in document["candidates"] if one["meets_goal"]}
    found: dict[str, list[_Point]] = {}
    for row in document["sweep"]:
        if row["label"] in allowed and row["payload"] == PAYLOAD and row["put_p50_ns"]:
            low, high = row["put_p50_low_ns"], row["put_p50_high_ns"]
            # Without an interval nobody knows the noise: a difference of less than about two is then none.
            half = (high - low) / 2 if low is not None and high is not None else row["put_p50_ns"] / 2
            figures = (row["put_p99_ns"], row["put_max_ns"], row["puts"], row["writer_bytes_per_put"], row["trials"])
            found.setdefault(row["label"], []).append(_Point(row["size_bytes"], row["put_p50_ns"], half, *figures))
    return {label: sorted(points, key=lambda point: point.size_bytes) for label, points in found.items()}


def _read_off(points: Sequence[_Point], size_bytes: int, name: str) -> float | None:
    """A figure of a curve at a size: on a straight line between its neighbours, as a fixed cost and a bandwidth are;
    level before the first, after the last as the last two go on. None where it was not measured.
    """
    known: list[tuple[int, float]] = [
        (point.size_bytes, getattr(point, name)) for point in points if getattr(point, name) is not None
    ]
    if not known or size_bytes <= known[0][0] or len(known) == 1:
        return known[0][1] if known else None
    after = next((at for at, (size, _) in enumerate(known) if size >= size_bytes), len(known) - 1)
    (low, below), (high, above) = known[after - 1], known[after]
    if size_bytes > high:
        return above + max(0.0, above - below) / (high - low) * (size_bytes - high)
    return below + (above - below) * (size_bytes - low) / (high - low)


def _ns(curves: Mapping[str, Sequence[_Point]], label: str, size_bytes: int) -> float:
    return _read_off(curves[label], size_bytes, "p50_ns") or 0.0


def _writer_bytes(curves: Mapping[str, Sequence[_Point]], label: str, size_bytes: int) -> float:
    """What the writers write for a put; the payload where nobody counted."""
    counted = _read_off(curves[label], size_bytes, "writer_bytes")
    return float(size_bytes) if counted is None else counted


def _price(arrangement: Arrangement, basis: _Basis, document: Json) -> _Priced:
    steps = len(basis.steps)
    puts = {put: count / steps for put, count in arrangement.puts(basis.steps).items()}
    return _Priced(
        arrangement,
        _name(arrangement, document),
        puts,
        sum(count * _ns(basis.curves, *put) for put, count in puts.items()),
        sum(count * _writer_bytes(basis.curves, *put) for put, count in puts.items()),
    )


def _moved_ns(floor: Mapping[str, Json]) -> float:
    """By how much the smallest flush moved during the plan."""
    if not floor:
        return 0.0
    smallest = floor[min(floor, key=int)]
    return float((smallest["highest_ns"] or 0) - (smallest["lowest_ns"] or 0))


def _no_slower_for_certain(
    best: _Priced, other: _Priced, curves: Mapping[str, Sequence[_Point]], moved_ns: float
) -> bool:
    """Whether the difference is within the drift or the noise of the puts that the two do not have in common."""
    differ = {put: other.puts.get(put, 0.0) - best.puts.get(put, 0.0) for put in best.puts.keys() | other.puts.keys()}
    drift_ns = moved_ns * sum(map(abs, differ.values())) / 2
    noise_ns = math.sqrt(
        sum(
            (count * (_read_off(curves[label], size, "half_width_ns") or 0)) ** 2
            for (label, size), count in differ.items()
        )
    )
    return other.ns - best.ns <= max(drift_ns, noise_ns)


# --- goals ----------------------------------------------------------------------------------------------------------


def _by_promise(one: Json) -> Json:
    return {"label": one["label"], "excluded_by": one["excluded_by"], "why": one["why"]}


def _unmeasured(document: Json, curves: Mapping[str, Sequence[_Point]]) -> list[Json]:
    """Candidates that meet the goal and have no curve to be charged by."""
    return [
        {
            "label": one["label"],
            "excluded_by": "not measured",
            "why": one.get("stopped_why") or "no put of it was timed",
        }
        for one in document["candidates"]
        if one["meets_goal"] and one["label"] not in curves
    ]


def _against(one: _Priced, basis: _Basis, document: Json) -> tuple[Json | None, str | None]:
    """Which goal excludes an arrangement, and why; or what could not be told about a goal."""
    goal = document["goal"]
    lost = next((each for each in _broken(document) if each[0] in one.arrangement.labels), None)
    if lost is not None:
        label, why = lost
        return {"label": label, "excluded_by": "its promise", "why": why}, None
    for candidate in document["candidates"]:
        largest = max((size for label, size in one.puts if label == candidate["label"]), default=0)
        if candidate.get("stopped_bytes") is not None and largest >= candidate["stopped_bytes"]:
            why = f"it does not take {size_text(largest)}: {candidate['stopped_why']}"
            return {"label": candidate["label"], "excluded_by": "its size limit", "why": why}, None
    most = goal["max_bytes_per_step"]
    if most is not None and one.bytes > most:
        why = f"a step writes {size_text(one.bytes)} on average"
        return {"label": None, "excluded_by": f"--max-bytes-per-step {size_text(most)}", "why": why}, None
    return _against_p99(one, basis, goal["max_p99_ms"]) if goal["max_p99_ms"] is not None else (None, None)


def _broken(document: Json) -> Iterator[tuple[str, str]]:
    """Which candidate was seen to break what it promises, in the trials of this plan: speed does not matter then."""
    for one in losses_of(document):
        for guilty in one["guilty"]:
            yield guilty["label"], f"{guilty['trials']} of {one['trials']} trials of {one['fault']}: {guilty['why']}"


def _against_p99(one: _Priced, basis: _Basis, most_ms: float) -> tuple[Json | None, str | None]:
    """A put whose median is too slow already, or whose p99 is; too few puts for a p99 leave it open."""
    doubt = None
    for label in dict.fromkeys(label for label, _ in one.puts):
        size_bytes = max(size for at, size in one.puts if at == label)
        point = next((each for each in basis.curves[label] if each.size_bytes >= size_bytes), basis.curves[label][-1])
        measured = point.p50_ns if point.p99_ns is None else point.p99_ns
        if measured / 1e6 > most_ms:
            which = "p50" if point.p99_ns is None else "p99"
            why = f"the {which} of a put of {size_text(point.size_bytes)} is {_ms(measured)}"
            return {"label": label, "excluded_by": f"--max-p99 {most_ms:g}ms", "why": why}, None
        if point.p99_ns is None:
            slowest = "" if point.max_ns is None else f"; the slowest of {point.puts} took {_ms(point.max_ns)}"
            doubt = (
                f"--max-p99 {most_ms:g}ms could not be told for {label} at {size_text(point.size_bytes)}: a p99 takes "
                f"368 puts{slowest}"
            )
    return None, doubt


def _by_goal(out: Sequence[tuple[_Priced, Json]], left: Sequence[_Priced]) -> list[Json]:
    """Which goal excludes which backend: once for each reason of its own; for bytes where no arrangement with it is
    left.
    """
    own = {(against["label"], against["excluded_by"]): against for _, against in reversed(out) if against["label"]}
    told = {label for label, _ in own} | {label for one in left for label in one.arrangement.labels}
    found = list(own.values())[::-1]
    rest = [(one, against) for one, against in out if not against["label"]]
    for label in sorted({label for one, _ in rest for label in one.arrangement.labels} - told):
        least, against = min(
            ((one, each) for one, each in rest if label in one.arrangement.labels), key=lambda pair: pair[0].bytes
        )
        why = f"no arrangement with it writes less than {size_text(least.bytes)} a step on average"
        found.append({**against, "label": label, "why": why})
    return found


# --- what is said ---------------------------------------------------------------------------------------------------


def _short(label: str, document: Json) -> str:
    """The backend's name where only one of its settings is compared."""
    backend = label.partition(":")[0]
    same = [one for one in document["candidates"] if one["meets_goal"] and one["label"].partition(":")[0] == backend]
    return backend if len(same) == 1 else label


def _name(one: Arrangement, document: Json) -> str:
    metadata, data = _short(one.metadata, document), _short(one.data, document)
    if one.whole:
        return f"everything in {metadata}, in one value"
    if one.metadata == one.data:
        return f"metadata and data in {metadata}, as two values"
    above = f" above {size_text(one.above_bytes)}" if one.above_bytes else ""
    return f"metadata in {metadata}, data in {data}{above}"


def _answer(
    best: _Priced, basis: _Basis, document: Json, unchanged: tuple[float | None, float | None], tied: Sequence[str]
) -> str:
    name = best.name
    if not any(metadata for metadata, _, _ in basis.steps):
        one = best.arrangement
        above = f"; above {size_text(one.above_bytes)} in {_short(one.data, document)}" if one.above_bytes else ""
        name = f"your values in {_short(one.metadata, document)}{above}"
    whole, parted = unchanged
    at = "at your sizes" if basis.own else basis.said
    saved = (
        f"; {at} a step without new data writes {size_text(parted)} instead of {size_text(whole)}"
        if whole is not None and parted is not None and parted < whole and not best.arrangement.whole
        else f"; {at} a step takes {_ms(best.ns)}"
    )
    others = "one other arrangement" if len(tied) == 1 else f"{len(tied)} other arrangements"
    tie = f" (by speed a tie with {others})" if tied else ""
    return f"{name}{saved}{tie}"


def _why_lost(best: _Priced, other: _Priced, basis: _Basis, *, tied: bool) -> str:
    if tied:
        if other.arrangement.backends > best.arrangement.backends:
            reason = "it takes two systems instead of one"
        elif _about(other.bytes) > _about(best.bytes):
            reason = f"it writes {size_text(other.bytes)} a step instead of {size_text(best.bytes)}"
        else:
            reason = "nothing else tells them apart: the lower median is named"
        how = f"{_ms(other.ns)} a step against {_ms(best.ns)}"
        return f"{other.name}: not told apart by speed ({how}: within the drift or the noise), and {reason}"
    return f"{other.name}: {_ms(other.ns)} a step instead of {_ms(best.ns)}{_dearest(best, other, basis)}"


def _dearest(best: _Priced, other: _Priced, basis: _Basis) -> str:
    """The put of the runner-up that costs it the most."""
    extra = {put: (count - best.puts.get(put, 0.0)) * _ns(basis.curves, *put) for put, count in other.puts.items()}
    (label, size_bytes), lost_ns = max(extra.items(), key=lambda item: item[1])
    if lost_ns <= 0:
        return ""
    return f"; a put of {size_text(size_bytes)} takes {label} {_ms(_ns(basis.curves, label, size_bytes))}"


def _about(size_bytes: float) -> float:
    """Two digits: who writes a per cent less has no advantage."""
    return float(f"{size_bytes:.1e}")


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"


def _unchanged(one: Arrangement, basis: _Basis, document: Json) -> tuple[float | None, float | None]:
    """What a step without new data writes: whole in the metadata's backend, and as arranged. As replayed where it was,
    else read off the curves; None where no step is without new data.
    """
    steps = [(metadata, data) for metadata, data, changed in basis.steps if not changed]
    if not steps:
        return None, None
    metadata_bytes, data_bytes = (sorted(step[part] for step in steps)[len(steps) // 2] for part in (0, 1))
    found = [
        _writer_bytes(basis.curves, one.metadata, metadata_bytes + data_bytes),
        _writer_bytes(basis.curves, one.metadata, metadata_bytes),
    ]
    for entry in document.get("split") or ():
        if (entry["trace"], entry["metadata"], entry["data"]) == (basis.trace, one.metadata, one.data):
            for at, layout in enumerate(("whole", "split")):
                counted = ((entry[layout] or {}).get("unchanged") or {}).get("writer_bytes")
                found[at] = found[at] if counted is None else counted
    return found[0], found[0] if one.whole else found[1]


def _beyond(best: _Priced, basis: _Basis, document: Json) -> list[str]:
    """Sizes that were not measured where they are recommended."""
    found = []
    for label in dict.fromkeys(label for label, _ in best.puts):
        largest = max(size for at, size in best.puts if at == label)
        last = basis.curves[label][-1].size_bytes
        if largest > last:
            found.append(
                f"{_short(label, document)} was measured up to {size_text(last)}; the largest value of the steps, "
                f"{size_text(largest)}, is charged as its curve goes on"
            )
    return found


def _seldom(best: _Priced, basis: _Basis) -> list[str]:
    """Sizes that too few trials were made of to say how far their median may be off."""
    found: dict[str, set[int]] = {}
    for label, size_bytes in best.puts:
        points = basis.curves[label]
        near = min(points, key=lambda point: abs(math.log(point.size_bytes / max(1, size_bytes))))
        if near.trials < FEWEST_TRIALS:
            found.setdefault(label, set()).add(near.size_bytes)
    return [
        f"{label} at {', '.join(map(size_text, sorted(sizes)))} was measured in fewer than {FEWEST_TRIALS} trials"
        for label, sizes in found.items()
    ]


def _untried(one: Arrangement, document: Json) -> list[str]:
    """Faults under which no trial with a backend of the arrangement could be judged."""
    found = []
    for label in sorted(one.labels):
        mine = [each for each in losses_of(document) if label in (each["metadata"], each["data"])]
        for fault in dict.fromkeys(each["fault"] for each in mine):
            some = [each for each in mine if each["fault"] == fault]
            if not any(each["trials"] for each in some):
                why = next((each["unknown_why"] for each in some if each["unknown_why"]), "none was run")
                found.append(f"no trial of {fault} with {label} was judged: {why}")
    return found


def _crossing_caution(one: Arrangement, document: Json) -> list[str]:
    if one.metadata == one.data or one.above_bytes is not None:
        return []
    known = _crossing(one.metadata, one.data, document["crossings"])
    metadata, data = _short(one.metadata, document), _short(one.data, document)
    if known is None or known["below"] is None:
        return [f"{metadata} and {data}: {NONE_RELIABLE}, so no size is named above which data belongs elsewhere"]
    if known["below"] == one.metadata and known.get("largest_bytes") is not None:
        upto = size_text(known["largest_bytes"])
        seldom = f"what is larger was measured too seldom to name the size above which data belongs in {data}"
        return [f"up to {upto} {metadata} is the faster one; {seldom}"]
    return []
