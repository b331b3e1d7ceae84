"""What safety costs: the median durable put against how far back a loss reaches.

Left is fast, low is safe. What is nowhere else both faster and safer is the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from durabench.fault import FAULTS
from durabench.report.charts import labels, style
from durabench.report.charts.loss_rate import counts
from durabench.report.layout import number
from durabench.row import setting_label
from durabench.statistics import bound_text, quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from durabench.report.charts.material import Material
    from durabench.report.layout import Json

NAME, TITLE = "trade-off", "What safety costs"
MEASURED = (
    "Across: median put without any fault. Up: 95th percentile of the loss window of the trials (gaps) that lost "
    "something, the longest one seen where they are fewer than 72. Below: settings that lost nothing, with the loss "
    "rate that this still allows. Above: settings that mostly lost all they had, so that no window bounds what they "
    "lose. The slower and the worse part of metadata and data counts. The server of an embedded store is its writer."
)
_WIDTH, _LEFT, _RIGHT, _ROW, _UPPER = 9.4, 0.85, 0.3, 0.19, 4.4


@dataclass(frozen=True)
class Spot:
    """A setting: its put in ms, its loss window in s (0: nothing lost, inf: all of it), and how sure that is."""

    label: str
    backend: str
    put_ms: float
    window_s: float
    sure: str
    on_frontier: bool = False


def chart(material: Material) -> style.Chart:
    """Settings that lost all they had, those that lost something, those that lost nothing: three strips."""
    fault = _hardest(material.cells)
    found = frontier(_spots(material, fault)) if fault else []
    if not found or fault is None:
        return style.nothing(NAME, TITLE, "no setting has both a put latency and a judged fault", MEASURED)
    ordered = sorted(found, key=lambda spot: (-spot.put_ms, spot.label))
    everything, nothing_lost = ([spot for spot in ordered if spot.window_s == end] for end in (inf, 0))
    some = [spot for spot in ordered if 0 < spot.window_s < inf]
    strips = [
        (title, spots, _ROW * len(spots) + 0.15 if spots is not some else min(_UPPER, 1.4 + 0.3 * len(spots)))
        for title, spots in (
            ("all that was acknowledged was lost, in most trials", everything),
            ("some of it was lost: loss window, s", some),
            ("nothing was lost", nothing_lost),
        )
        if spots
    ]
    height = 0.75 + sum(tall + 0.55 for _, _, tall in strips)
    made = style.figure(_WIDTH, height)
    style.heading(made, f"{TITLE}: {fault}")
    looks = style.looks(material.backends)
    limits = (min(spot.put_ms for spot in found) / 1.6, max(spot.put_ms for spot in found) * 1.6)
    at = height - 0.65
    for title, spots, tall in strips:
        at -= tall
        axes = made.add_axes((_LEFT / _WIDTH, at / height, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, tall / height))
        axes.set(xscale="log", xlim=limits, title=title)
        _windows(axes, spots, looks) if spots is some else _rows(axes, spots, looks)
        style.plain_log(axes.xaxis)
        at -= 0.55
    made.text(_LEFT / _WIDTH, 0.1 / height, "median put, ms (frontier: ringed)", size=style.SMALL)
    return style.Chart(NAME, TITLE, _sentence(found, fault), MEASURED, made)


def _windows(axes: Axes, spots: Sequence[Spot], looks: Mapping[str, style.Look]) -> None:
    """What lost something, by how far back."""
    windows = [spot.window_s for spot in spots]
    axes.set(yscale="log", ylim=(min(windows) / 3, max(windows) * 3))
    style.plain_log(axes.yaxis)
    _plot(axes, spots, looks, windows)
    labels.beside(axes, [(spot.put_ms, spot.window_s, spot.label) for spot in spots], style.SMALL, style.FAINT)


def _rows(axes: Axes, spots: Sequence[Spot], looks: Mapping[str, style.Look]) -> None:
    """Settings that have no window between none and all: one line each."""
    axes.set(ylim=(len(spots) - 0.4, -0.6))
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    _plot(axes, spots, looks, list(range(len(spots))))
    middle = (axes.get_xlim()[0] * axes.get_xlim()[1]) ** 0.5
    for row, spot in enumerate(spots):
        left = spot.put_ms > middle
        axes.annotate(
            f"{spot.label}  {number(spot.put_ms)} ms, {spot.sure}", (spot.put_ms, row), (-10 if left else 10, 0),
            textcoords="offset points", ha="right" if left else "left", va="center", size=style.SMALL,
            annotation_clip=False, weight="bold" if spot.on_frontier else "normal",
        )  # fmt: skip


def _plot(axes: Axes, spots: Sequence[Spot], looks: Mapping[str, style.Look], ys: Sequence[float]) -> None:
    for spot, y in zip(spots, ys, strict=True):
        look = looks[spot.backend]
        if spot.on_frontier:
            axes.plot(spot.put_ms, y, "o", ms=11, mfc="none", mec=style.INK, mew=1)
        filled = look.colour if spot.window_s else style.PAPER
        axes.plot(spot.put_ms, y, look.marker, ms=6, color=look.colour, mfc=filled, mew=1.4)


def _hardest(cells: Sequence[Json]) -> str | None:
    """The fault that destroys most of those that were judged; not one that nobody promises to survive."""
    judged = {cell["fault"] for cell in cells if cell["trials_counted"] and cell["fault"] in FAULTS}
    rated = [fault for fault in FAULTS.values() if fault.name in judged and 0 < fault.destroys < 5]
    return max(rated, key=lambda fault: fault.destroys).name if rated else None


def _spots(material: Material, fault: str) -> list[Spot]:
    """One per setting that has both figures. The server of an embedded store is its writer: there, that kill counts."""
    grouped: dict[str, list[Json]] = {}
    for cell in material.cells:
        grouped.setdefault(material.place(cell), []).append(cell)
    found = []
    for label, members in grouped.items():
        timed = [cell["put_p50_ms"] for cell in members if cell["put_p50_ms"] is not None]
        struck = [cell for cell in members if cell["trials_counted"] and cell["fault"] == fault]
        possible = any(cell["fault"] == fault and cell["verdict"] != "–" for cell in members)
        if not struck and not possible and FAULTS[fault].needs_server:
            struck = [cell for cell in members if cell["trials_counted"] and cell["fault"] == "kill-client"]
        if not timed or not struck:
            continue
        window_s, sure = _window(material, struck)
        found.append(Spot(label, struck[0]["backend"], max(timed), window_s, sure))
    return found


def _window(material: Material, struck: Sequence[Json]) -> tuple[float, str]:
    """The p95 (or the longest) loss window of the worse part, and how sure it is."""
    worst, sure = 0.0, ""
    for cell in struck:
        key = (cell["host"], cell["backend"], setting_label(cell), cell["namespace"], cell["fault"])
        values = material.windows_s.get(key, ())
        _, of = counts(cell)
        all_lost = material.all_lost.get(key, 0)
        if 2 * all_lost > len(values):  # the windows are then as long as the trials, and say nothing else
            worst, sure = max((worst, sure), (inf, f"all lost in {all_lost} of {of}"))
        elif values:
            p95 = quantile(values, 0.95)
            found = max(p95 if p95 is not None else max(values), 1e-3)
            worst, sure = max((worst, sure), (found, "p95" if p95 is not None else f"longest of {len(values)}"))
    if worst:
        return worst, sure
    fewest = min(counts(cell)[1] for cell in struck)
    return 0.0, f"0/{fewest} {bound_text(0, fewest)}"


def frontier(spots: Sequence[Spot]) -> list[Spot]:
    """Marked where no other is at least as fast and as safe, and better in one of the two."""

    def beaten(spot: Spot) -> bool:
        return spot.window_s == inf or any(
            (other.put_ms, other.window_s) != (spot.put_ms, spot.window_s)
            and other.put_ms <= spot.put_ms
            and other.window_s <= spot.window_s
            for other in spots
        )

    return [replace(spot, on_frontier=not beaten(spot)) for spot in spots]


def _sentence(found: Sequence[Spot], fault: str) -> str:
    frontier = sorted((spot for spot in found if spot.on_frontier), key=lambda spot: spot.put_ms)
    safe = sum(not spot.window_s for spot in found)
    said = f"Under {fault} {safe} of {len(found)} settings lost nothing"
    if not frontier:
        return f"{said}, and all others mostly lost everything they had."
    names = ", ".join(
        f"{spot.label} ({number(spot.put_ms)} ms, {f'{spot.window_s:.3g} s lost' if spot.window_s else 'nothing lost'})"
        for spot in frontier
    )
    return f"{said}; none was both faster and safer than {names}: that is what was seen, not what is promised."
