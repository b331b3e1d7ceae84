"""The JSON document of one or more runs, from which every other format is made, and the exit status it stands for."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING, Any

from durabench.fault import FAULTS
from durabench.report.cells import cells
from durabench.report.pick import hosts_of, pick_of_hosts
from durabench.results import SCHEMA_VERSION, Differs, Tally, distinct
from durabench.row import loses
from durabench.statistics import quantile
from durabench_backends.contract import Domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from durabench.report.expectations import Expectation
    from durabench.results import Folder
    from durabench.row import Row

HELD, BROKEN, COULD_NOT_TELL = 0, 1, 3
LATE = [fault.name for fault in FAULTS.values() if fault.late_flushes]
"""Kills on a machine: repeated from their plan, as those on this host are; no recording is needed."""
_MS = 1e6


@dataclass
class _Missing:
    """Found while a folder is read: how many trials have no history, and which losing recordings are not there."""

    histories: int = 0
    recordings: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Run:
    """One folder, read."""

    name: str
    folder: Folder
    json: Mapping[str, Any]
    done: Mapping[str, Any] | None
    tally: Tally
    floors: Sequence[Row]
    missing: _Missing = field(default_factory=_Missing)

    def rows(self) -> Iterator[Row]:
        """The rows, each with the run's name, and with the command that repeats its trial here, where that can be."""
        replay = f"durabench replay {shlex.quote(str(self.folder.path))}"
        kept: dict[str, bool] = {}
        histories = self.folder.histories()
        for rows in self.folder.each_trial(self.tally):
            self.missing.histories += self.folder.history_name(rows[0]) not in histories
            for row in rows:
                recording: str | None = row.get("recording")
                if recording is not None and recording not in kept:
                    kept[recording] = self.folder.has_recording(recording)
                again = recording is None or kept[recording] or row["fault"] in LATE
                if recording is not None and not again and loses(row) and row["destroyed"] != Domain.FLUSHED.label:
                    self.missing.recordings.add(recording)
                row["run"] = self.name
                row["replay"] = f"{replay} {row['trial']}" if again else None
                yield row

    @property
    def host(self) -> str:
        return str(self.json.get("machine", {}).get("id"))


def document(
    folders: Sequence[Folder],
    *,
    expected: Sequence[Expectation] = (),
    not_run: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """``{"schema_version", "machine", "floor", "pick", "cells", "runs"}`` of one or more folders, merged by host.

    ``not_run`` is for a run that has just ended and whose done.json, which holds the exit status, is not written yet:
    its cells without trials, as in run.json, with ``why``. Where the folders are of several hosts, ``machine`` and
    ``floor`` are the first one's, and ``machines`` has them all. A run that is given twice, also as a copy, is counted
    once. Differs where runs of two methodologies would be added up.
    """
    runs = [_read(number, folder) for number, folder in enumerate(distinct(folders))]
    _refuse_methodologies(runs)
    by_name = {run.name: run for run in runs}
    floors = _floors(runs)

    def latencies(row: Row) -> Sequence[int]:
        return by_name[row["run"]].folder.samples(row.get("samples_at"), row.get("samples_n"))

    found = cells(
        (row for run in runs for row in run.rows()),
        [entry for run in runs for entry in _planned(run, not_run)],
        latencies=latencies,
        floor_of=lambda host, size: _nearest(floors, host, size),
        expectations=expected,
    )
    made: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "machine": dict(runs[0].json.get("machine", {})),
        "floor": _floor_of_host(floors, runs[0].host),
        "pick": pick_of_hosts(found, {host: _moved_ms(floors, host) for host in hosts_of(found)}).as_json(),
        "cells": [cell.as_json() for cell in found],
        "runs": [_told(run, ended=run.done is not None or not_run is not None) for run in runs],
    }
    hosts = {run.host: dict(run.json.get("machine", {})) for run in runs}
    return {**made, "machines": hosts} if len(hosts) > 1 else made


def exit_status(document: Mapping[str, Any], *, doubts: Sequence[str] = ()) -> int:
    """0 every promise held, 1 one is broken and not expected, 3 could not tell; 1 before 3 before 0.

    ``doubts`` are what stands against trusting the run as a whole, such as a control that failed. *not rated*, what
    cannot happen, no-promise and within do not count; *not run* does where it was asked for by name.
    """
    found = document["cells"]
    if any(cell["verdict"] == "broken" and cell["expected"] is None for cell in found):
        return BROKEN
    untold = any(cell["verdict"] == "unknown" or (cell["verdict"] == "not run" and cell["by_name"]) for cell in found)
    return COULD_NOT_TELL if untold or doubts else HELD


def _read(number: int, folder: Folder) -> _Run:
    name = f"{number + 1} {folder.path.name}"  # two folders may have the same name
    return _Run(name, folder, folder.run, folder.done, Tally(), folder.floors())


def _refuse_methodologies(runs: Sequence[_Run]) -> None:
    numbers = {run.folder.methodology: run.folder.path for run in runs}
    if len(numbers) > 1:
        which = ", ".join(f"{path} is of methodology {number}" for number, path in sorted(numbers.items()))
        message = f"{which}: they are not added up (results/README.md says what changed); report them one by one"
        raise Differs(message)


def _planned(run: _Run, not_run: Sequence[Mapping[str, Any]] | None) -> Iterable[dict[str, Any]]:
    """Every cell that a run was about, with why it has no trials where it has none."""
    done = run.done or {}
    usual = done.get("stopped") or ("not finished" if run.done is None and not_run is None else "no trial of it ended")
    for entry in run.json.get("cells", ()):
        yield {**entry, "why": entry.get("why") or (usual if entry.get("verdict") in (None, "not run") else None)}
    yield from (dict(entry) for entry in (*done.get("not_run", ()), *(not_run or ())))


def _told(run: _Run, *, ended: bool) -> dict[str, Any]:
    """What a reader should know about a run beside its cells."""
    return {
        "name": run.folder.path.name,
        **{name: run.json.get(name) for name in ("profile", "seed", "created", "commit", "command")},
        "host": run.host,
        "trials": run.tally.trials,
        "finished": ended,
        "doubts": list((run.done or {}).get("doubts", ())),
        "dropped": run.tally.dropped,
        "repeated": run.tally.repeated,
        "without_history": run.missing.histories,
        "recordings_not_kept": len(run.missing.recordings),
    }


# --- floors


def _floors(runs: Sequence[_Run]) -> list[dict[str, Any]]:
    """Per host and size: every measurement of the flush put together, and between which medians it moved."""
    grouped: dict[tuple[str, int], list[tuple[_Run, Row]]] = {}
    for run in runs:
        for row in run.floors:
            if row.get("p50_ns") is not None:
                grouped.setdefault((row["host"], row["size_bytes"]), []).append((run, row))
    return [_floor(host, size, members) for (host, size), members in sorted(grouped.items())]


def _floor(host: str, size_bytes: int, members: Sequence[tuple[_Run, Row]]) -> dict[str, Any]:
    medians = [row["p50_ns"] / _MS for _, row in members]
    samples = [
        latency for run, row in members for latency in run.folder.samples(row.get("samples_at"), row.get("samples_n"))
    ]
    p99 = quantile(samples, 0.99)
    return {
        "host": host,
        "size_bytes": size_bytes,
        "p50_ms": _six(statistics.median(medians)),
        "p99_ms": None if p99 is None else _six(p99 / _MS),
        "lowest_p50_ms": _six(min(medians)),
        "highest_p50_ms": _six(max(medians)),
        "measurements": len(medians),
        "flushes": sum(row["n"] for _, row in members),
    }


def _floor_of_host(floors: Sequence[Mapping[str, Any]], host: str) -> dict[str, Any] | None:
    """The floor of the smallest size, with all sizes in ``sizes``; None where none was measured."""
    mine = [dict(floor) for floor in floors if floor["host"] == host]
    return {**mine[0], "sizes": mine} if mine else None


def _nearest(floors: Sequence[Mapping[str, Any]], host: str, size_bytes: float | None) -> float | None:
    """Median flush of the measured size that is nearest to a put's, by ratio; of the smallest where that is unknown."""
    mine = [floor for floor in floors if floor["host"] == host]
    if not mine:
        return None
    if not size_bytes:
        return float(mine[0]["p50_ms"])
    wanted = size_bytes
    return float(min(mine, key=lambda floor: abs(log(floor["size_bytes"] / wanted)))["p50_ms"])


def _moved_ms(floors: Sequence[Mapping[str, Any]], host: str) -> float | None:
    floor = _floor_of_host(floors, host)
    return None if floor is None else float(floor["highest_p50_ms"] - floor["lowest_p50_ms"])


def _six(value: float) -> float:
    return float(f"{value:.6g}")
