"""Adds the trials of a run up to cells: what was lost, how sure that is, what a put costs and how much it takes.

Pure: rows in, cells out. A cell is keyed by backend, setting, tier, namespace, workload, fault, lane, host and URL.
Counts are sums that skip nulls and are null only where every row is. The unit of a loss rate is the trial; on recorded
faults it is the telling gap, losing if any of its crash states loses. Gaps of one recording may share their fate:
beside the bound by gap stands the one by recording.

Trials that could not be judged are counted, and said beside the verdict. What was seen in them is no judgement, but
nothing is called kept or within against it: such a cell is unknown.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from durabench.checker import WINDOW_NOT_EXERCISED, WORST_FIRST
from durabench.fault import FAULTS
from durabench.row import Field, Row, label, loses, names_of
from durabench.statistics import loss_rate, quantile, quantile_by_trial
from durabench_backends.contract import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from durabench.report.expectations import Expectation

NOT_POSSIBLE = "–"
NOT_JUDGED = ("not rated", "not run", NOT_POSSIBLE)
KEY = ("backend", "setting", "tier", "namespace", "workload", "fault", "lane", "host")
"""What every cell has; `url` beside it tells somebody's backends apart."""
SLOW_PUT_MS = 1.0
"""From here on a signal arrives within a put: fewer than half of the strikes inside one is then a doubt."""
UNTOLD = "no crash state could have shown a loss: all were of moments after a later flush"
_RESAMPLES = 200
_MS = 1e6

Key = tuple[str, str, str, str, str, str, str, str, str | None]
"""The values of `KEY`, and the URL."""
Latencies = Callable[[Row], Sequence[int]]
"""The latencies in ns of a row, of which ``run``, ``samples_at`` and ``samples_n`` are given."""
FloorOf = Callable[[str, "float | None"], "float | None"]
"""(host, usual size of a put in bytes) → median flush in ms of what is nearest to that size."""


@dataclass(frozen=True)
class Cell:
    """What the trials with one key add up to; `CELL` says what each field is."""

    backend: str
    setting: str
    tier: str
    namespace: str
    workload: str
    fault: str
    lane: str
    host: str
    url: str | None = None
    destroyed: str | None = None
    trials: int = 0
    trials_unknown: int = 0
    struck_inside: int | None = None
    acked: int | None = None
    in_doubt: int | None = None
    lost: int | None = None
    torn: int | None = None
    corrupt: int | None = None
    damaged_acked: int | None = None
    stale: int | None = None
    phantom: int | None = None
    resurrected: int | None = None
    hole: int | None = None
    versions_lost: int | None = None
    dangling: int | None = None
    orphan: int | None = None
    unavailable: int | None = None
    trials_with_loss: int | None = None
    trials_counted: int = 0
    recordings: int | None = None
    recordings_with_loss: int | None = None
    recording_rate_low: float | None = None
    recording_rate_high: float | None = None
    gaps: int | None = None
    gaps_with_loss: int | None = None
    gaps_untold: int | None = None
    contents: int | None = None
    contents_of: int | None = None
    contents_bits: int | None = None
    loss_rate_unit: str | None = None
    loss_rate_low: float | None = None
    loss_rate_high: float | None = None
    loss_window_p50_s: float | None = None
    loss_window_max_s: float | None = None
    recovery_p50_s: float | None = None
    put_p50_ms: float | None = None
    put_p50_low_ms: float | None = None
    put_p50_high_ms: float | None = None
    put_p99_ms: float | None = None
    floor_p50_ms: float | None = None
    size_bytes: int | None = None
    payload_bytes: int | None = None
    bytes_per_payload_byte: float | None = None
    verdict: str = "not run"
    why: str | None = None
    unknown_why: str | None = None
    expected: str | None = None
    by_name: bool = False
    replay: str | None = None

    @property
    def key(self) -> Key:
        """What tells it from other cells."""
        return _key(asdict(self))

    @property
    def label(self) -> str:
        """``backend:setting``, with its URL where it is somebody's."""
        return label({"backend": self.backend, "setting": self.setting, "url": self.url})

    @property
    def judged(self) -> bool:
        """Whether any trial of it was judged."""
        return self.verdict not in NOT_JUDGED

    def as_json(self) -> dict[str, Any]:
        """Every field, in order."""
        return asdict(self)


CELL: Mapping[str, Field] = {
    "backend": Field("string", "", "as in the rows", required=True),
    "setting": Field("string", "", "as in the rows", required=True),
    "tier": Field("string", "", "as in the rows", required=True),
    "namespace": Field("string", "", "as in the rows", required=True),
    "workload": Field("string", "", "as in the rows", required=True),
    "fault": Field("string", "", "as in the rows", required=True),
    "lane": Field("string", "", "as in the rows", required=True),
    "host": Field("string", "", "as in the rows", required=True),
    "url": Field("string", "", "as in the rows"),
    "destroyed": Field("string", "", "the domain that the fault destroys"),
    "trials": Field("integer", "trials", "how many there were", required=True),
    "trials_unknown": Field("integer", "trials", "of them not judged, for a doubt", required=True),
    "struck_inside": Field("integer", "trials", "of those judged struck inside a put"),
    "acked": Field("integer", "puts", "sum over the trials, as are the counts that follow"),
    "in_doubt": Field("integer", "puts", "attempted, never acknowledged"),
    "lost": Field("integer", "keys", "acknowledged, then absent"),
    "torn": Field("integer", "keys", "present, but only partly what was put"),
    "corrupt": Field("integer", "keys", "present, but not what was put"),
    "damaged_acked": Field("integer", "keys", "how many of the torn and corrupt had been acknowledged"),
    "stale": Field("integer", "keys", "reads older than its last acknowledged value"),
    "phantom": Field("integer", "keys", "present, never attempted"),
    "resurrected": Field("integer", "keys", "deleted, acknowledged, and there again"),
    "hole": Field("integer", "keys", "lost, while a younger one survives"),
    "versions_lost": Field("integer", "versions", "older versions that vanished where nobody promises them"),
    "dangling": Field("integer", "records", "metadata whose data is lost, torn or old"),
    "orphan": Field("integer", "values", "data without metadata"),
    "unavailable": Field("integer", "trials", "did not come up again by the deadline; apart from the loss rate"),
    "trials_with_loss": Field("integer", "trials", "something acknowledged was lost, stale or damaged"),
    "trials_counted": Field("integer", "trials", "of how many: judged, and come up again", required=True),
    "recordings": Field("integer", "recordings", "of the power disk with a telling gap, on recorded faults"),
    "recordings_with_loss": Field("integer", "recordings", "of them with a losing crash state"),
    "recording_rate_low": Field("number", "", "exact two-sided 95 % interval of the share of recordings that lose"),
    "recording_rate_high": Field("number", "", "its upper end; holds where gaps of one recording share their fate"),
    "gaps": Field("integer", "gaps", "telling stretches between two acknowledged changes, on recorded faults"),
    "gaps_with_loss": Field("integer", "gaps", "of them with a losing crash state"),
    "gaps_untold": Field("integer", "gaps", "others that were looked at, in which no loss could have shown"),
    "contents": Field("integer", "contents", "how many different disk contents were looked at, on recorded faults"),
    "contents_of": Field("integer", "contents", "how many there are in those gaps; null where they were not counted"),
    "contents_bits": Field("integer", "", "where not: at least 2 to this power in one of the gaps"),
    "loss_rate_unit": Field("string", "", "of what the loss rate is a share: trial, or gap on recorded faults"),
    "loss_rate_low": Field("number", "", "exact two-sided 95 % interval, as if trials or gaps were independent"),
    "loss_rate_high": Field("number", "", "its upper end"),
    "loss_window_p50_s": Field("number", "s", "median over the losing trials"),
    "loss_window_max_s": Field("number", "s", "the longest"),
    "recovery_p50_s": Field("number", "s", "median from the restart until it answered"),
    "put_p50_ms": Field("number", "ms", "median put, from `none` cells in lane `here` only"),
    "put_p50_low_ms": Field("number", "ms", "its 95 % interval, by drawing whole trials again"),
    "put_p50_high_ms": Field("number", "ms", "the upper end"),
    "put_p99_ms": Field("number", "ms", "99th percentile, from 368 puts on"),
    "floor_p50_ms": Field("number", "ms", "median flush of this device in the same run, of the nearest size"),
    "size_bytes": Field("integer", "bytes", "at rest, less what an empty store takes"),
    "payload_bytes": Field("integer", "bytes", "payload that was acknowledged"),
    "bytes_per_payload_byte": Field("number", "", "the quotient, over trials that have both"),
    "verdict": Field(
        "string",
        "",
        "the worst of its trials; `unknown` where none was judged, where those not judged speak against it, or where "
        "too few strikes fell inside a put",
        required=True,
    ),
    "why": Field("string", "", "what decided"),
    "unknown_why": Field("string", "", "why the first of its trials that could not be judged was not"),
    "expected": Field("string", "", "why a `broken` one is a known finding"),
    "by_name": Field("boolean", "", "a person asked for it by name", required=True),
    "replay": Field("string", "", "the command that runs the deciding trial again, where it is broken"),
}

_SUMS = (
    *("acked", "in_doubt", "lost", "torn", "corrupt", "damaged_acked", "stale", "phantom", "resurrected", "hole"),
    *("versions_lost", "dangling", "orphan", "unavailable", "size_bytes", "payload_bytes"),
)
_NEEDED = (
    *("trial", "gap", "telling", "contents_of", "contents_bits", "loss_window_s", "recovery_s"),
    *("samples_at", "samples_n", "usual_put_ns"),
)
_COUNTED = (*_SUMS, *_NEEDED)
_SHARED = ("run", "verdict", "struck", "recording", "content")
_WORDS = ("destroyed", "why", "replay")
_GONE = ("lost", "stale", "resurrected", "damaged_acked", "phantom", "unavailable")
"""What speaks against any promise, also in a trial that could not be judged."""
_DAMAGED = ("torn", "corrupt")
"""What speaks against some."""


def cells(
    rows: Iterable[Row],
    planned: Sequence[Mapping[str, Any]] = (),
    *,
    latencies: Latencies = lambda _: (),
    floor_of: FloorOf = lambda _host, _size: None,
    expectations: Sequence[Expectation] = (),
) -> list[Cell]:
    """The cells of rows, and of what was planned and has none, in the order of ``planned``.

    ``rows`` of several runs carry the run's name in ``run``, so that their trials and recordings stay apart; rows of
    controls are left out. ``planned``: mappings with the members of `KEY` and perhaps ``verdict``, ``why``,
    ``by_name``.
    """
    grouped: dict[Key, list[Row]] = {}
    known: dict[Key, Mapping[str, Any]] = {}
    for entry in planned:
        # Of several runs, the one that can say more about a cell without trials.
        key = _key(entry)
        known[key] = {**known.get(key, {}), **{name: value for name, value in entry.items() if value is not None}}
        grouped.setdefault(key, [])
    told: set[tuple[Key, str, bool, bool]] = set()
    for row in rows:
        if row.get("control") is not None:
            continue
        key = _key(row)
        words = (key, row["verdict"], row.get("replay") is not None, _any(row, (*_GONE, *_DAMAGED)))
        grouped.setdefault(key, []).append(_slim(row, first=words not in told))
        told.add(words)
    found = [
        _counted(key, members, latencies, floor_of) if members else _without_trials(key, known[key])
        for key, members in grouped.items()
    ]
    found = [replace(cell, by_name=bool(known.get(cell.key, {}).get("by_name"))) for cell in found]
    usual = {key: _median(row.get("usual_put_ns") for row in members) for key, members in grouped.items()}
    found = [_with_doubt(cell, found, usual) for cell in found]
    return _ordered([_with_expectation(cell, expectations) for cell in found])


def _slim(row: Row, *, first: bool) -> Row:
    """What of a row is needed to count it: a run may have 100,000. Words from the first of a verdict only."""
    # Counts are mostly 0, and small integers and interned words are shared: what is left of a row is its dictionary.
    slim = {name: value for name in _COUNTED if (value := row.get(name)) is not None}
    for name in _SHARED:
        if (word := row.get(name)) is not None:
            slim[name] = sys.intern(word)
    if row["verdict"] == "unknown" and WINDOW_NOT_EXERCISED in (row.get("why") or ""):
        slim["not_exercised"] = True
    return slim | {name: row.get(name) for name in _WORDS} if first else slim


def counts_for_rate(row: Mapping[str, Any]) -> bool:
    """Whether a trial enters the loss rate: it was judged, and the backend came up again."""
    return row["verdict"] != "unknown" and row.get("lost") is not None and not row.get("unavailable")


def _any(row: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any((row.get(name) or 0) > 0 for name in names)


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of a cell: the worst that was judged, ``unknown`` only where none was."""
    seen = set(verdicts)
    judged = [verdict for verdict in WORST_FIRST if verdict in seen and verdict != "unknown"]
    return judged[0] if judged else "unknown"


def _key(row: Mapping[str, Any]) -> Key:
    backend, setting, tier, namespace, workload, fault, lane, host = (str(row[name]) for name in KEY)
    url = row.get("url")  # schemas 1 and 2 have none
    return backend, setting, tier, namespace, workload, fault, lane, host, None if url is None else str(url)


def _without_trials(key: Key, entry: Mapping[str, Any]) -> Cell:
    fault = FAULTS.get(entry["fault"])
    return Cell(
        *key,
        destroyed=entry.get("destroyed") or (fault.destroys.label if fault else None),
        verdict=entry.get("verdict") or "not run",
        why=entry.get("why"),
    )


def _counted(key: Key, rows: Sequence[Row], latencies: Latencies, floor_of: FloorOf) -> Cell:
    """A cell with at least one trial."""
    verdict = worst(row["verdict"] for row in rows)
    decided = [row for row in rows if row["verdict"] == verdict]
    deciding = next((row for row in decided if row.get("replay")), decided[0])
    judged = [row for row in rows if row["verdict"] != "unknown"]
    doubted = [row for row in rows if row["verdict"] == "unknown"]
    counted = [row for row in judged if counts_for_rate(row)]
    sums: dict[str, Any] = {name: _sum(row.get(name) for row in rows) for name in _SUMS}
    cell = Cell(
        *key,
        **sums,
        destroyed=rows[0].get("destroyed"),
        trials=len({(row.get("run"), row["trial"]) for row in rows}),
        trials_unknown=len(doubted),
        struck_inside=_sum(None if row.get("struck") is None else row["struck"] == "inside" for row in judged),
        trials_counted=len(counted),
        trials_with_loss=sum(map(loses, counted)) if counted else None,
        loss_window_p50_s=_median(row.get("loss_window_s") for row in judged),
        loss_window_max_s=_rounded(max(_known(row.get("loss_window_s") for row in judged), default=None)),
        recovery_p50_s=_median(row.get("recovery_s") for row in rows),
        bytes_per_payload_byte=_ratio(rows),
        verdict=verdict,
        why=deciding.get("why") or None,
        unknown_why=next((row["why"] for row in doubted if row.get("why")), None),
        replay=deciding.get("replay") if verdict == "broken" else None,
    )
    cell = _with_contents(_with_unjudged(_with_bound(cell, counted), judged, doubted), judged)
    return _with_latency(cell, rows, latencies, floor_of) if _peaceful(cell) else cell


def _peaceful(cell: Cell) -> bool:
    """Whether its latencies are the device's: no fault, and no emulated guest in between."""
    return cell.destroyed == "nothing" and cell.lane == "here"


Place = tuple[str | None, str]
"""A recording: of which run, and its name in it."""


def by_recording(rows: Iterable[Row]) -> dict[Place, tuple[set[int], set[int]]]:
    """Of every recording that can tell: its telling gaps, and which of them lost.

    A gap tells if one of its states does. A loss where none could have shown says that what came later did not make
    durable what was acknowledged earlier, as is supposed: then all gaps tell. Rows of methodology 1 do not know.
    """
    members = [row for row in rows if row.get("recording") is not None and row.get("gap") is not None]
    if not any(row.get("telling") is False and loses(row) for row in members):
        members = [row for row in members if row.get("telling") is not False]
    found: dict[Place, tuple[set[int], set[int]]] = {}
    for row in members:
        gaps, losing = found.setdefault((row.get("run"), row["recording"]), (set(), set()))
        gaps.add(row["gap"])
        if loses(row):
            losing.add(row["gap"])
    return found


def _with_unjudged(cell: Cell, judged: Sequence[Row], doubted: Sequence[Row]) -> Cell:
    """What was seen in trials that could not be judged stands against ``kept`` and ``within``."""
    if cell.verdict not in ("kept", "within"):
        return cell
    # Where no acknowledgement was older than the window, all that is gone is inside it.
    inside = [row for row in doubted if row.get("not_exercised") and loses(row)]
    if inside and cell.verdict == "kept":
        first = next((row for row in inside if row.get("why")), inside[0])
        cell = replace(cell, verdict="within", why=first.get("why"))
    # A judged trial that was held in spite of a torn put in doubt shows that no put need be all or nothing.
    names = _GONE if any(_any(row, _DAMAGED) for row in judged) else (*_GONE, *_DAMAGED)
    against = [row for row in doubted if not row.get("not_exercised") and _any(row, names)]
    if not against:
        return cell
    seen = ", ".join(f"{count:,} {name}" for name in names if (count := _sum(row.get(name) for row in against)))
    why = next((row["why"] for row in against if row.get("why")), "no reason recorded")
    of = f"{len(against)} of {cell.trials_unknown} trials that could not be judged"
    return replace(cell, verdict="unknown", why=f"{cell.verdict} where judged, but seen in {of}: {seen} ({why})")


def _with_bound(cell: Cell, counted: Sequence[Row]) -> Cell:
    recorded = [row for row in counted if row.get("recording") is not None and row.get("gap") is not None]
    losing, of = cell.trials_with_loss or 0, len(counted)
    if recorded:
        told = by_recording(recorded)
        losing, of = (sum(len(each[at]) for each in told.values()) for at in (1, 0))
        every = {(row.get("run"), row["recording"], row["gap"]) for row in recorded}
        cell = replace(cell, gaps=of, gaps_with_loss=losing, gaps_untold=len(every) - of)
        cell = _by_recording(cell, told)
    if not of:
        return cell
    low, high = loss_rate(losing, of)
    unit = "gap" if recorded else "trial"
    return replace(cell, loss_rate_unit=unit, loss_rate_low=round(low, 6), loss_rate_high=round(high, 6))


def _by_recording(cell: Cell, told: Mapping[Place, tuple[set[int], set[int]]]) -> Cell:
    losing = sum(bool(lost) for _, lost in told.values())
    cell = replace(cell, recordings=len(told), recordings_with_loss=losing)
    if not told:
        return cell
    low, high = loss_rate(losing, len(told))
    return replace(cell, recording_rate_low=round(low, 6), recording_rate_high=round(high, 6))


def _with_contents(cell: Cell, judged: Sequence[Row]) -> Cell:
    """How many different contents were seen, of how many: the sum over recordings, where each was counted."""
    recorded = [row for row in judged if row.get("content") is not None]
    if not recorded:
        return cell
    seen = len({(row.get("run"), row["content"]) for row in recorded})
    of = {(row.get("run"), row["recording"]): row.get("contents_of") for row in recorded}
    bits = max(_known(row.get("contents_bits") for row in recorded), default=None)
    counted = [number for number in of.values() if number is not None]
    return replace(
        cell,
        contents=seen,
        contents_of=sum(counted) if len(counted) == len(of) else None,
        contents_bits=bits if len(counted) < len(of) else None,
    )


def _with_latency(cell: Cell, rows: Sequence[Row], latencies: Latencies, floor_of: FloorOf) -> Cell:
    size = cell.payload_bytes / cell.acked if cell.payload_bytes and cell.acked else None
    cell = replace(cell, floor_p50_ms=_rounded(floor_of(cell.host, size)))
    groups = [taken for row in rows if (taken := latencies(row))]
    if not groups:
        return cell
    median = quantile_by_trial(groups, 0.5, seed=0, resamples=_RESAMPLES)
    p99 = quantile([latency for group in groups for latency in group], 0.99)
    return replace(
        cell,
        put_p50_ms=None if median is None else _milliseconds(median.value),
        put_p50_low_ms=None if median is None else _milliseconds(median.low),
        put_p50_high_ms=None if median is None else _milliseconds(median.high),
        put_p99_ms=_milliseconds(p99),
    )


def _with_doubt(cell: Cell, found: Sequence[Cell], usual_ns: Mapping[Key, float | None]) -> Cell:
    """Where puts are slow enough to be struck inside and most were not, or no crash state could have shown a loss,
    ``kept`` was not put to the test.

    How long a put usually takes is said by trials in peace; where there are none, by those that were struck themselves
    (``usual_ns``). Where neither says, as in results from before that was recorded, nobody knows what the strikes were
    worth.
    """
    if cell.gaps == 0 and cell.verdict in ("kept", "within"):
        return replace(cell, verdict="unknown", why=UNTOLD)
    judged = cell.trials - cell.trials_unknown
    if cell.fault != "kill-client" or cell.verdict not in ("kept", "within") or cell.struck_inside is None:
        return cell
    if 2 * cell.struck_inside >= judged:
        return cell
    said = f"only {cell.struck_inside} of {judged} strikes fell inside a put, "
    same = [other for other in found if _group(other) == _group(cell)]
    own = (usual_ns.get(other.key) for other in same if other.fault == cell.fault)
    usual_ms = _known(other.put_p50_ms for other in same) or [value / _MS for value in _known(own)]
    if not usual_ms:
        return replace(cell, verdict="unknown", why=f"{said}and how long one usually takes was not recorded")
    if min(usual_ms) < SLOW_PUT_MS:
        return cell
    return replace(cell, verdict="unknown", why=f"{said}which usually takes {min(usual_ms):.3g} ms")


def _group(cell: Cell) -> tuple[str, ...]:
    return cell.label, cell.workload, cell.lane, cell.host


def _with_expectation(cell: Cell, expectations: Sequence[Expectation]) -> Cell:
    if cell.verdict != "broken":
        return cell
    names = names_of(asdict(cell))
    reasons = [known.reason for known in expectations if known.setting in names and known.fault == cell.fault]
    return replace(cell, expected=reasons[0]) if reasons else cell


def _ordered(found: Sequence[Cell]) -> list[Cell]:
    """Hosts, workloads, backends and settings in the order in which they first appear, faults by what they destroy."""
    place: dict[tuple[str, ...], int] = {}
    for cell in found:
        for group in ((cell.host,), (cell.host, cell.workload), (cell.backend,), (cell.backend, cell.label)):
            place.setdefault(group, len(place))
    faults = {name: number for number, name in enumerate(FAULTS)}
    return sorted(
        found,
        key=lambda cell: (
            place[cell.host,],
            place[cell.host, cell.workload],
            place[cell.backend,],
            place[cell.backend, cell.label],
            cell.namespace != METADATA,
            faults.get(cell.fault, len(faults)),
            cell.fault,
            cell.lane,
        ),
    )


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = _known(values)
    return int(sum(known)) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return _rounded(statistics.median(known)) if known else None


def _ratio(rows: Sequence[Row]) -> float | None:
    both = [row for row in rows if row.get("size_bytes") is not None and row.get("payload_bytes")]
    if not both:
        return None
    return _rounded(sum(row["size_bytes"] for row in both) / sum(row["payload_bytes"] for row in both))


def _milliseconds(latency_ns: float | None) -> float | None:
    return None if latency_ns is None else _rounded(latency_ns / _MS)


def _rounded(value: float | None) -> float | None:
    """Six significant digits: no file differs for the last bit of a sum."""
    return None if value is None else float(f"{value:.6g}")


FIELDS = tuple(field.name for field in fields(Cell))
"""Columns of the CSV."""
