"""Adds the trials of a run up to cells: what was lost, how sure that is, what a put costs and how much it takes.

Pure: rows in, cells out. A cell is keyed by backend, setting, tier, namespace, workload, fault, lane, host and URL.
Counts are sums that skip nulls and are null only where every row is. The unit of a loss rate is the trial; on recorded
faults it is the gap between two acknowledgements, losing if any of its crash states loses.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from durabench.checker import WORST_FIRST
from durabench.fault import FAULTS
from durabench.row import Field, Row, label
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
    gaps: int | None = None
    gaps_with_loss: int | None = None
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
    "struck_inside": Field("integer", "trials", "of them struck inside a put"),
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
    "recordings": Field("integer", "", "of the power disk, on recorded faults"),
    "gaps": Field("integer", "gaps", "stretches between two acknowledgements, on recorded faults"),
    "gaps_with_loss": Field("integer", "gaps", "of them with a losing crash state"),
    "loss_rate_low": Field("number", "", "exact two-sided 95 % interval, by trial or by gap"),
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
    "verdict": Field("string", "", "the worst of its trials; `unknown` only where none was judged", required=True),
    "why": Field("string", "", "what decided"),
    "expected": Field("string", "", "why a `broken` one is a known finding"),
    "by_name": Field("boolean", "", "a person asked for it by name", required=True),
    "replay": Field("string", "", "the command that runs the deciding trial again, where it is broken"),
}

_SUMS = (
    *("acked", "in_doubt", "lost", "torn", "corrupt", "damaged_acked", "stale", "phantom", "resurrected", "hole"),
    *("versions_lost", "dangling", "orphan", "unavailable", "size_bytes", "payload_bytes"),
)
_NEEDED = ("trial", "gap", "loss_window_s", "recovery_s", "samples_at", "samples_n")
_COUNTED = (*_SUMS, *_NEEDED)
_SHARED = ("run", "verdict", "struck", "recording")
_WORDS = ("destroyed", "why", "replay")


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
    told: set[tuple[Key, str, bool]] = set()
    for row in rows:
        if row.get("control") is not None:
            continue
        key = _key(row)
        words = (key, row["verdict"], row.get("replay") is not None)
        grouped.setdefault(key, []).append(_slim(row, first=words not in told))
        told.add(words)
    found = [
        _counted(key, members, latencies, floor_of) if members else _without_trials(key, known[key])
        for key, members in grouped.items()
    ]
    found = [replace(cell, by_name=bool(known.get(cell.key, {}).get("by_name"))) for cell in found]
    found = [_with_doubt(cell, found) for cell in found]
    return _ordered([_with_expectation(cell, expectations) for cell in found])


def _slim(row: Row, *, first: bool) -> Row:
    """What of a row is needed to count it: a run may have 100,000. Words from the first of a verdict only."""
    # Counts are mostly 0, and small integers and interned words are shared: what is left of a row is its dictionary.
    slim = {name: value for name in _COUNTED if (value := row.get(name)) is not None}
    for name in _SHARED:
        if (word := row.get(name)) is not None:
            slim[name] = sys.intern(word)
    return slim | {name: row.get(name) for name in _WORDS} if first else slim


def loses(row: Mapping[str, Any]) -> bool:
    """Whether something acknowledged is gone in this trial: lost, stale, or torn or corrupt."""
    return any((row.get(name) or 0) > 0 for name in ("lost", "stale", "damaged_acked"))


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
    counted = [row for row in judged if row.get("lost") is not None and not row.get("unavailable")]
    sums: dict[str, Any] = {name: _sum(row.get(name) for row in rows) for name in _SUMS}
    cell = Cell(
        *key,
        **sums,
        destroyed=rows[0].get("destroyed"),
        trials=len({(row.get("run"), row["trial"]) for row in rows}),
        trials_unknown=len(rows) - len(judged),
        struck_inside=_sum(None if row.get("struck") is None else row["struck"] == "inside" for row in rows),
        trials_counted=len(counted),
        trials_with_loss=sum(map(loses, counted)) if counted else None,
        loss_window_p50_s=_median(row.get("loss_window_s") for row in judged),
        loss_window_max_s=_rounded(max(_known(row.get("loss_window_s") for row in judged), default=None)),
        recovery_p50_s=_median(row.get("recovery_s") for row in rows),
        bytes_per_payload_byte=_ratio(rows),
        verdict=verdict,
        why=deciding.get("why") or None,
        replay=deciding.get("replay") if verdict == "broken" else None,
    )
    cell = _with_bound(cell, counted)
    return _with_latency(cell, rows, latencies, floor_of) if _peaceful(cell) else cell


def _peaceful(cell: Cell) -> bool:
    """Whether its latencies are the device's: no fault, and no emulated guest in between."""
    return cell.destroyed == "nothing" and cell.lane == "here"


def _with_bound(cell: Cell, counted: Sequence[Row]) -> Cell:
    recorded = [row for row in counted if row.get("recording") is not None and row.get("gap") is not None]
    losing, of = cell.trials_with_loss or 0, len(counted)
    if recorded:
        every = {(row.get("run"), row["recording"], row["gap"]) for row in recorded}
        bad = {(row.get("run"), row["recording"], row["gap"]) for row in recorded if loses(row)}
        recordings = len({(run, recording) for run, recording, _ in every})
        losing, of = len(bad), len(every)
        cell = replace(cell, recordings=recordings, gaps=of, gaps_with_loss=losing)
    if not of:
        return cell
    low, high = loss_rate(losing, of)
    return replace(cell, loss_rate_low=round(low, 6), loss_rate_high=round(high, 6))


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


def _with_doubt(cell: Cell, found: Sequence[Cell]) -> Cell:
    """Where puts are slow enough to be struck inside and most were not, ``kept`` was not put to the test."""
    if cell.fault != "kill-client" or cell.verdict not in ("kept", "within") or cell.struck_inside is None:
        return cell
    same = (cell.label, cell.workload, cell.lane, cell.host)
    usual = _known(other.put_p50_ms for other in found if (other.label, other.workload, other.lane, other.host) == same)
    if 2 * cell.struck_inside >= cell.trials or min(usual, default=0.0) < SLOW_PUT_MS:
        return cell
    why = f"only {cell.struck_inside} of {cell.trials} strikes fell inside a put, which usually takes {min(usual):g} ms"
    return replace(cell, verdict="unknown", why=why)


def _with_expectation(cell: Cell, expectations: Sequence[Expectation]) -> Cell:
    if cell.verdict != "broken":
        return cell
    names = (cell.label, f"{cell.backend}:{cell.setting}")
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
