"""What the form of the page decides by: for every setting what it promises and what was seen, per domain destroyed.

Facts only; the page's script holds them against what a person needs, and says *cannot tell* where nothing was judged.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from durabench.report.cells import NOT_POSSIBLE
from durabench.report.layout import size_text
from durabench.row import label as label_of
from durabench_backends.contract import RATED_DOMAINS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durabench.report.charts import Material
    from durabench.report.layout import Json

_WORST = ("broken", "no-promise", "unknown", "not rated", "not run", "within", "kept", NOT_POSSIBLE)
"""Of the cells of one domain the first of these speaks for all."""


def domains(material: Material) -> list[dict[str, str]]:
    """The domains that a setting can be asked to survive, with the faults that destroy each in these results."""
    found = []
    for domain in RATED_DOMAINS:
        faults = {cell["fault"]: None for cell in material.cells if cell["destroyed"] == domain.label}
        if faults:
            found.append({"name": domain.label, "faults": ", ".join(faults)})
    return found


def settings(material: Material) -> list[dict[str, Any]]:
    """Every setting of every host: promise (None: not recorded) and outcome per domain, latency per size."""
    grouped: dict[tuple[str, str], list[Json]] = {}
    for cell in material.cells:
        grouped.setdefault((cell["host"], label_of(cell)), []).append(cell)
    planned, usual = _planned(material), _usual_sizes(material)
    return [
        {
            "label": material.place(members[0]),
            "promise": material.promises.get(label),
            "seen": {domain.label: _seen(members, domain.label) for domain in RATED_DOMAINS},
            "puts": {**_puts(members, usual), **planned.get(label, {})},
        }
        for (_, label), members in grouped.items()
    ]


def sizes(found: Sequence[Json]) -> list[str]:
    """The sizes at which puts were timed, in the order of a list to choose from."""
    return list(dict.fromkeys(name for setting in found for name in setting["puts"]))


def _seen(cells: Iterable[Json], domain: str) -> dict[str, Any]:
    """The worst of the cells of one domain, the longest loss window, and how often a loss is still possible. A part
    (metadata or data) without a cell there was not run there.
    """
    cells = list(cells)
    mine = [cell for cell in cells if cell["destroyed"] == domain]
    lacking = {cell["namespace"] for cell in cells} - {cell["namespace"] for cell in mine}
    absent = [{"verdict": "not run", "fault": None, "why": f"not tried for its {part}"} for part in sorted(lacking)]
    worst = min([*mine, *absent] if mine else [], key=lambda cell: _rank(cell["verdict"]), default=None)
    highs = [cell["loss_rate_high"] for cell in mine if cell["loss_rate_high"] is not None]
    windows = [cell["loss_window_max_s"] for cell in mine if cell["loss_window_max_s"] is not None]
    return {
        "verdict": None if worst is None else worst["verdict"],
        "fault": None if worst is None else worst["fault"],
        "why": None if worst is None else worst["why"],
        "window_s": max(windows, default=0),
        "high": max(highs, default=None),
    }


def _rank(verdict: str) -> int:
    return _WORST.index(verdict) if verdict in _WORST else 0


def _puts(members: Sequence[Json], usual: Mapping[tuple[str, str], str]) -> dict[str, list[float | None]]:
    """``part, usual size`` → median and p99 in ms."""
    found: dict[str, list[float | None]] = {}
    several = len({workload for workload, _ in usual}) > 1
    for cell in members:
        if cell["put_p50_ms"] is not None:
            workload = f" ({cell['workload']})" if several else ""
            size = usual[cell["workload"], cell["namespace"]]
            found[f"{cell['namespace']}, {size}{workload}"] = [cell["put_p50_ms"], cell["put_p99_ms"]]
    return found


def _usual_sizes(material: Material) -> dict[tuple[str, str], str]:
    """(workload, part) → the usual size of its puts; deletes are acknowledged too, so that one setting's mean may be
    off.
    """
    means: dict[tuple[str, str], list[float]] = {}
    for cell in material.cells:
        of = means.setdefault((cell["workload"], cell["namespace"]), [])
        if cell["payload_bytes"] and cell["acked"]:
            of.append(cell["payload_bytes"] / cell["acked"])
    return {key: size_text(round(statistics.median(of))) if of else "size unknown" for key, of in means.items()}


def _planned(material: Material) -> dict[str, dict[str, list[float | None]]]:
    """Of plans: label → ``planned size`` → median and p99 in ms."""
    found: dict[str, dict[str, list[float | None]]] = {}
    points = [point for plan in material.plans for point in plan.get("sweep") or ()]
    for point in sorted(points, key=lambda point: int(point["size_bytes"])):
        if point["payload"] == "incompressible" and point["put_p50_ns"] is not None:
            p99 = None if point["put_p99_ns"] is None else point["put_p99_ns"] / 1e6
            name = f"any part, {size_text(point['size_bytes'])} (plan)"
            found.setdefault(point["label"], {})[name] = [point["put_p50_ns"] / 1e6, p99]
    return found
