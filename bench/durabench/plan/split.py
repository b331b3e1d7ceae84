"""Whole against split: a program's steps replayed in each layout, and what each of them costs.

*Whole* puts metadata and data in one value, at every step. *Split* puts data only where it changed, then the metadata
that refers to it; on one backend or over two. *put_many* is split with both in one commit, where the backend offers it.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from durabench.plan.measure import NotOffered, Part, Place, Put, Steps
from durabench.process import HarnessError
from durabench.results import ResultsFull
from durabench.row import label as label_of
from durabench_backends.contract import DATA, METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from durabench.plan.candidates import Candidate
    from durabench.plan.ledger import Ledger
    from durabench.plan.measure import Wrote
    from durabench.plan.trace import Trace
    from durabench.row import Row

COMPACTED_BYTES = 128 << 20
Layout = Literal["whole", "split", "put_many"]
WHOLE: Layout = "whole"
SPLIT: Layout = "split"
PUT_MANY: Layout = "put_many"


@dataclass(frozen=True)
class Replay:
    """A trace in a layout; ``data`` is another candidate than ``metadata`` where the split goes over two."""

    trace: Trace
    layout: Layout
    metadata: Candidate
    data: Candidate

    def __str__(self) -> str:
        over = "" if self.data.target == self.metadata.target else f" + {self.data.label}"
        return f"{self.layout} in {self.metadata.label}{over}"


def replays(trace: Trace, candidates: Sequence[Candidate], fastest: Candidate | None) -> Iterator[Replay]:
    """Every layout on every candidate, and split over two: data in the first one, which is put through the faults so,
    and in the one that is ``fastest`` at the trace's data.
    """
    for one in candidates:
        for layout in (WHOLE, SPLIT, PUT_MANY):
            yield Replay(trace, layout, one, one)
        others = {other.target: other for other in (candidates[0], fastest) if other is not None}
        for other in others.values():
            if other.target != one.target:
                yield Replay(trace, SPLIT, one, other)


def steps_of(trace: Trace, layout: Layout, seed: int) -> Steps:
    """What a writer must do for a trace in a layout. Data that did not change has the same name, and the same bytes."""
    made: list[list[Put]] = []
    version = 0
    for number, step in enumerate(trace.steps):
        version = number if step.changed or number == 0 else version
        metadata: Part = (f"metadata-{number:05d}", step.metadata_bytes)
        data: Part = (f"data-{version:05d}", step.data_bytes)
        key = f"step-{number:05d}"
        if layout == WHOLE:
            made.append([(METADATA, key, [metadata, data])])
        else:
            first = [(DATA, data[0], [data])] if step.changed else []
            made.append([*first, (METADATA, key, [metadata])])
    return Steps(seed, made, together=layout == PUT_MANY, each=True)


BRING_UP_S = 2.0
SLACK = 1.3


def forecast_s(replay: Replay, rows: Sequence[Row]) -> float:
    """How long a replay is going to take, from the puts of the sweep at the sizes next to its own."""
    swept = [row for row in rows if row["kind"] == "sweep" and row.get("put_p50_ns")]
    counts: dict[tuple[str, int], int] = {}
    for step in steps_of(replay.trace, replay.layout, 0).steps:
        for namespace, _, parts in step:
            label = replay.data.label if namespace == DATA else replay.metadata.label
            key = (label, sum(size for _, size in parts))
            counts[key] = counts.get(key, 0) + 1
    return BRING_UP_S + SLACK * sum(times * _put_s(label, size, swept) for (label, size), times in counts.items())


def _put_s(label: str, size: int, swept: Sequence[Row]) -> float:
    """A put of that size, scaled from the measured one next to it."""
    mine = [row for row in swept if label_of(row) == label]
    if not mine:
        return 0.0
    nearest = min(mine, key=lambda row: abs(row["size_bytes"] - size))
    return float(nearest["put_p50_ns"] / 1e9 * max(1.0, size / nearest["size_bytes"]))


def carry_out(replay: Replay, ledger: Ledger) -> None:
    """Replay on a fresh store, alone, and write down what it cost; a failure too. Nothing where it is not offered."""
    began = time.monotonic()
    steps = steps_of(replay.trace, replay.layout, ledger.seed)
    row: dict[str, Any] = {
        "trace": replay.trace.name,
        "layout": replay.layout,
        "payload": "incompressible",
        "data_backend": replay.data.target.backend,
        "data_setting": replay.data.target.setting,
        "data_url": replay.data.target.where,
    }
    try:
        row |= _measured(replay, steps, ledger)
    except NotOffered:
        return
    except (HarnessError, OSError) as error:
        row |= {"puts": 0, "refused": f"failed: {error}"}
    except ResultsFull:
        raise
    except Exception as error:
        row |= {"puts": 0, "refused": f"failed: {ledger.mistaken(str(replay), error)}"}
    ledger.record("replay", replay.metadata, **row, duration_s=time.monotonic() - began)


def _measured(replay: Replay, steps: Steps, ledger: Ledger) -> dict[str, Any]:
    place = Place.set_up(ledger.ground, ledger.device, {METADATA: replay.metadata.target, DATA: replay.data.target})
    try:
        empty = place.size_bytes()
        orders = place.orders("replay")
        sizes: dict[int, int] = {}
        moments = {len(steps.steps) // 2, len(steps.steps)}

        def look(step: int) -> None:
            if step in moments:
                sizes[step] = place.share_bytes(orders)

        wrote = place.write(orders, steps, look)
        full = place.size_bytes() - empty
        last = list(wrote.digests)[-2:]
        if last and wrote.refused is None:
            place.reload(orders, wrote, last)
        # A rewrite of the largest would take longer than all the rest.
        spared = _somebodys(replay) or steps.payload_bytes(len(steps.steps)) > COMPACTED_BYTES
        how, saved = (None, 0) if spared else place.compact(orders)
    finally:
        place.close()
    return {
        **_totals(replay, steps, wrote),
        "at_rest_bytes": full,
        "share_half_bytes": sizes.get(len(steps.steps) // 2),
        "share_bytes": sizes.get(len(steps.steps)),
        "compacted_bytes": None if how is None or saved is None else full - saved,
        "compacted_how": how,
    }


def _somebodys(replay: Replay) -> bool:
    return bool(replay.metadata.target.url or replay.data.target.url)


def _totals(replay: Replay, steps: Steps, wrote: Wrote) -> dict[str, Any]:
    done = len(wrote.latencies_ns)
    found: dict[str, Any] = {
        "puts": done,
        "payload_bytes": steps.payload_bytes(done),
        "samples": wrote.latencies_ns,
        "writer_bytes": wrote.writer_bytes,
        "device_bytes": wrote.device_bytes,
        "refused": wrote.refused,
    }
    for word, changed in (("unchanged", False), ("changed", True)):
        mine = [number for number in range(done) if replay.trace.steps[number].changed == changed]
        found |= {
            f"{word}_steps": len(mine),
            f"{word}_payload_bytes": _median([_payload(steps, number) for number in mine]),
            f"{word}_writer_bytes": _median([wrote.step_writer_bytes[number] for number in mine]),
            f"{word}_device_bytes": _median([wrote.step_device_bytes[number] for number in mine]),
            f"{word}_p50_ns": _median([wrote.latencies_ns[number] for number in mine]),
        }
    return found


def _payload(steps: Steps, number: int) -> int:
    return sum(size for _, _, parts in steps.steps[number] for _, size in parts)


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(statistics.median(known)) if known and len(known) == len(values) else None
