"""plan.json: what the rows of a plan add up to. Pure; a plan's folder gives the same document again.

Medians are over all puts of all trials, their intervals by drawing whole trials again. Nothing is ranked where the
device's own flush latency moved too much meanwhile.
"""

from __future__ import annotations

import statistics
from itertools import groupby
from math import log2
from typing import TYPE_CHECKING, Any

from durabench import crossing as crossings
from durabench.plan import loss, split
from durabench.plan.sizes import histogram
from durabench.plan.sweep import INCOMPRESSIBLE
from durabench.row import label as label_of
from durabench.statistics import quantile, quantile_by_trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durabench.crossing import Crossing
    from durabench.plan.sweep import Curves, Samples
    from durabench.plan.trace import Trace
    from durabench.row import Row

FLOOR_MOVED = 4.0
"""A floor that moved by more than this factor while sizes were compared: no ranking."""
RESAMPLES = 400
SQUARE, LINEAR = 1.5, 0.5
"""Bytes at rest grow with N between these exponents, with N² above."""


def floor_of(floors: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Per size of the floor its median, and how far it moved: of four stretches of time, highest median by lowest."""
    found = {}
    for size, members in groupby(sorted(floors, key=lambda row: (row["size_bytes"], row["time"])), _size):
        medians = [row["p50_ns"] for row in members]
        stretches = [medians[len(medians) * part // 4 : len(medians) * (part + 1) // 4] for part in range(4)]
        levels = [statistics.median(stretch) for stretch in stretches if stretch]
        low, high = min(levels), max(levels)
        found[str(size)] = {
            "p50_ns": int(statistics.median(medians)),
            "lowest_ns": int(low),
            "highest_ns": int(high),
            "moved_ratio": high / low if low else None,
        }
    return found


def _size(row: Row) -> int:
    return int(row["size_bytes"])


def not_ranked_why(floor: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why nothing may be ranked: the smallest floor moved too much; None where it did not."""
    if not floor:
        return "no floor was measured"
    smallest = floor[min(floor, key=int)]
    if smallest["moved_ratio"] is None or smallest["moved_ratio"] <= FLOOR_MOVED:
        return None
    low_ms, high_ms = smallest["lowest_ns"] / 1e6, smallest["highest_ns"] / 1e6
    return (
        f"the disk's own flush moved between {low_ms:.3g} and {high_ms:.3g} ms meanwhile, by more than a factor of "
        f"{FLOOR_MOVED:g}: no ranking; plan again when the disk is quieter"
    )


def sweep_table(rows: Sequence[Row], samples: Samples, seed: int, *, timed: bool = True) -> list[dict[str, Any]]:
    """One entry per candidate, payload and size. ``timed``: whether latencies mean anything here."""
    costs = {_key(row): row for row in rows if row["kind"] == "cost"}
    swept = sorted((row for row in rows if row["kind"] == "sweep"), key=_key)
    found = []
    for key, members in groupby(swept, _key):
        trials = list(members)
        found.append({**_entry(key, trials, costs.get(key, {})), **_latencies(trials, samples, seed, timed=timed)})
    return found


def _key(row: Row) -> tuple[str, str, str, str, int]:
    return row["backend"], row["setting"], row.get("url") or "", row["payload"], row["size_bytes"]


def _entry(key: tuple[str, str, str, str, int], trials: Sequence[Row], cost: Row) -> dict[str, Any]:
    backend, setting, url, payload, size = key
    per_put = {
        f"{name}_per_put": _ratio(_sum(trials, name), sum(row["puts"] for row in trials))
        for name in ("writer_bytes", "device_bytes")
    }
    return {
        "label": label_of({"backend": backend, "setting": setting, "url": url}),
        "backend": backend,
        "setting": setting,
        "payload": payload,
        "stage": trials[0]["stage"],
        "size_bytes": size,
        "trials": len(trials),
        "puts": sum(row["puts"] for row in trials),
        **per_put,
        "at_rest_per_payload_byte": _ratio(cost.get("at_rest_bytes"), cost.get("payload_bytes")),
        "compacted_per_payload_byte": _ratio(cost.get("compacted_bytes"), cost.get("payload_bytes")),
        "compacted_how": cost.get("compacted_how"),
    }


def _latencies(trials: Sequence[Row], samples: Samples, seed: int, *, timed: bool) -> dict[str, Any]:
    colds = [row["reload_cold_ns"] for row in trials if row.get("reload_cold_ns") is not None]
    whys = [row["cold_why"] for row in trials if row.get("cold_why")]
    fields = ("put_p50_ns", "put_p50_low_ns", "put_p50_high_ns", "put_p99_ns", "put_max_ns")
    if not timed:
        return dict.fromkeys((*fields, "reload_warm_p50_ns", "reload_cold_p50_ns", "cold_why", "samples"))
    puts = [list(samples(row["samples_at"], row["samples_n"])) for row in trials if row.get("samples_n")]
    warm = [ns for row in trials if row.get("warm_n") for ns in samples(row["warm_at"], row["warm_n"])]
    every = [ns for trial in puts for ns in trial]
    p50 = quantile_by_trial(puts, 0.5, seed, RESAMPLES)
    p99 = quantile(every, 0.99) if every else None
    return {
        "put_p50_ns": None if p50 is None else round(p50.value),
        "put_p50_low_ns": None if p50 is None or p50.low is None else round(p50.low),
        "put_p50_high_ns": None if p50 is None or p50.high is None else round(p50.high),
        "put_p99_ns": None if p99 is None else round(p99),
        "put_max_ns": max(every, default=None),
        "reload_warm_p50_ns": round(statistics.median(warm)) if warm else None,
        "reload_cold_p50_ns": round(statistics.median(colds)) if colds else None,
        "cold_why": None if colds else (whys[0] if whys else None),
        "samples": [[row["samples_at"], row["samples_n"]] for row in trials if row.get("samples_n")],
    }


def _sum(rows: Iterable[Row], name: str) -> int | None:
    """Of those who tell; None where one does not, since it is divided by the puts of all."""
    values = [row.get(name) for row in rows]
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def crossings_of(
    curves: Curves, labels: Sequence[str], seed: int, looked: Iterable[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Every pair of candidates, in the order of ``labels``."""
    there = [label for label in labels if len(curves.get(label, {})) > 1]
    looked = set(looked)
    found = []
    for at, a in enumerate(there):
        for b in there[at + 1 :]:
            one = crossings.crossing(curves[a], curves[b], seed)
            found.append({**_crossing(one, a, b), "fine": (a, b) in looked})
    return found


def _crossing(one: Crossing, a: str, b: str) -> dict[str, Any]:
    side = {"a": a, "b": b, None: None}
    return {
        "a": a,
        "b": b,
        "at_bytes": one.at_bytes,
        "low": one.low,
        "high": one.high,
        "reliable": one.reliable,
        "affine_bytes": one.affine_bytes,
        "affine_disagrees": one.affine_disagrees,
        "why": one.why,
        "below": side[one.below],
        "above": side[one.above],
        "smallest_bytes": one.smallest_bytes,
        "largest_bytes": one.largest_bytes,
        "payload": INCOMPRESSIBLE,
    }


def losses_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What every arrangement lost under each fault; of a plan.json that has it with its layouts only, from there."""
    if "losses" in document:
        return list(document["losses"])
    return [
        {"layout": layout, "metadata": entry["metadata"], "data": entry["data"], **one}
        for entry in document["split"]
        for layout in loss.WORKLOADS
        for one in (entry[layout] or {}).get("faults") or ()
    ]


# --- whole against split ---------------------------------------------------------------------------------------------


def split_table(rows: Sequence[Row], trial_rows: Sequence[Row], traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """One entry per trace and pair of candidates that it was split over."""
    replays = [row for row in rows if row["kind"] == "replay"]
    found = []
    for trace in traces:
        mine = {(_labels(row), row["layout"]): row for row in replays if row["trace"] == trace.name}
        for metadata, data in dict.fromkeys(pair for pair, _ in mine):
            whole = mine.get(((metadata, metadata), split.WHOLE))
            parted = mine.get(((metadata, data), split.SPLIT))
            many = mine.get(((metadata, data), split.PUT_MANY))
            found.append(_split_entry(trace, metadata, data, (whole, parted, many), trial_rows))
    return found


def _labels(row: Row) -> tuple[str, str]:
    return label_of(row), label_of({name: row.get(f"data_{name}") for name in ("backend", "setting", "url")})


def _split_entry(
    trace: Trace,
    metadata: str,
    data: str,
    layouts: tuple[Row | None, Row | None, Row | None],
    trial_rows: Sequence[Row],
) -> dict[str, Any]:
    whole, parted, many = layouts
    return {
        "trace": trace.name,
        "metadata": metadata,
        "data": data,
        "steps": len(trace.steps),
        "changes": trace.changes,
        "metadata_bytes": int(statistics.median(step.metadata_bytes for step in trace.steps)),
        "data_bytes": int(statistics.median(step.data_bytes for step in trace.steps)),
        "bytes_per_step_whole": _per_step(whole),
        "bytes_per_step_split": _per_step(parted),
        "bytes_per_step_put_many": _per_step(many),
        "whole": _layout(whole, loss.summary(trial_rows, metadata, metadata, split.WHOLE)),
        "split": _layout(parted, loss.summary(trial_rows, metadata, data, split.SPLIT)),
        "put_many": _layout(many, []),
        "ratios": {
            f"{when}_{what}": _ratio(
                *(None if row is None else row.get(f"{prefix}{what}_bytes") for row in (whole, parted))
            )
            for when, prefix in (("total", ""), ("unchanged", "unchanged_"))
            for what in ("payload", "writer", "device")
        },
    }


def _per_step(row: Row | None) -> float | None:
    return None if row is None else _ratio(row.get("payload_bytes"), row.get("puts"))


def _layout(row: Row | None, lost: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if row is None:
        return None
    names = (
        "puts",
        "payload_bytes",
        "writer_bytes",
        "device_bytes",
        "at_rest_bytes",
        "share_half_bytes",
        "share_bytes",
    )
    found: dict[str, Any] = {name: row.get(name) for name in names}
    found |= {name: row.get(name) for name in ("compacted_bytes", "compacted_how", "refused")}
    for when in ("unchanged", "changed"):
        found[when] = {
            name: row.get(f"{when}_{name}")
            for name in ("steps", "payload_bytes", "writer_bytes", "device_bytes", "p50_ns")
        }
    exponent = _exponent(row.get("share_half_bytes"), row.get("share_bytes"))
    return {
        **found,
        "step_p50_ns": row.get("put_p50_ns"),
        "samples": [row.get("samples_at"), row.get("samples_n")],
        "growth_exponent": exponent,
        "growth": None if exponent is None or exponent < LINEAR else "N" if exponent < SQUARE else "N^2",
        "faults": list(lost),
    }


def _exponent(half: int | None, full: int | None) -> float | None:
    """With which power of the steps the bytes at rest grow, from half of the steps to all of them."""
    return log2(full / half) if half and full and half > 0 and full > 0 else None


# --- the user's own sizes --------------------------------------------------------------------------------------------

STEPS_TOLD = 10_000


def own_sizes(source: str, sizes: Sequence[int], trace: Trace | None = None) -> dict[str, Any]:
    """A distribution of sizes, and the steps where it is a trace: what the recommendation is then computed from."""
    ordered = sorted(sizes)
    at = {name: ordered[min(len(ordered) - 1, int(q * len(ordered)))] for name, q in _QUANTILES} if ordered else {}
    return {
        "source": source,
        "values": len(ordered),
        "total_bytes": sum(ordered),
        "quantiles": at,
        "histogram": histogram(ordered),
        "steps": None
        if trace is None
        else [[step.metadata_bytes, step.data_bytes, step.changed] for step in trace.steps[:STEPS_TOLD]],
    }


_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
