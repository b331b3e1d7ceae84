"""What a put costs at each size, and from which size on another setting is faster.

Two panels, sizes of metadata and sizes of data; below each the bytes that are stored for a byte of payload.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from durabench.report.charts import labels, style
from durabench.report.layout import number, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from durabench.report.charts.material import Material
    from durabench.report.layout import Json

NAME, TITLE = "latency-by-size", "What a put costs at each size"
MEASURED = (
    "Median put of incompressible bytes without any fault; band: up to the 99th percentile, from 368 puts on, of the "
    "fastest settings that meet the goal. Dashed: one flush of this disk. Shaded: where two settings cross, with its "
    "95 % interval."
)
SPLIT_BYTES = 64 << 10
"""Up to here a value is metadata, from here on data."""
_LEFT, _PANEL = 0.75, 3.4
_LINE = 0.155
Curves = dict[str, list["Json"]]


def chart(material: Material) -> style.Chart:
    """One plan: of several the last one, which the sentence then says."""
    plans = [plan for plan in material.plans if _curves(plan)]
    if not plans:
        why = "no folder has a plan; durabench plan makes one" if not material.plans else "the plan measured no put"
        return style.nothing(NAME, TITLE, why, MEASURED)
    plan = plans[-1]
    curves = _curves(plan)
    best = _fastest(plan, curves)
    crossings = _shown(plan, best)
    sizes = sorted({point["size_bytes"] for points in curves.values() for point in points})
    panels = [
        (name, mine)
        for name, mine in (
            ("metadata", [size for size in sizes if size <= SPLIT_BYTES]),
            ("data", [size for size in sizes if size >= SPLIT_BYTES]),
        )
        if len(mine) > 1
    ] or [("sizes", sizes)]
    strip = 0.22 * max(1, len(crossings))
    tall = max(3.2, _LINE * (len(curves) + 1))
    low = max(1.8, _LINE * (len(curves) + 1))
    height = 0.75 + strip + tall + 0.75 + low + 0.55
    each = _LEFT + _PANEL + 0.45 + style.room_for(curves)
    made = style.figure(each * len(panels), height)
    style.heading(made, TITLE)
    looks = style.looks(material.backends)
    for place, (name, mine) in enumerate(panels):
        left = _LEFT + each * place
        above = _axes(made, left, height - 0.75 - strip, strip)
        upper = _axes(made, left, height - 0.75 - strip - tall, tall)
        lower = _axes(made, left, 0.55, low)
        title = f"{name}, {size_text(mine[0])} to {size_text(mine[-1])}"
        _latency(upper, curves, mine, looks, (plan.get("floor") or {}, best))
        _crossings(above, upper, crossings, mine)
        above.set_title(f"{title}: put, ms")
        _bytes(lower, curves, mine, looks)
        lower.set_title("bytes at rest per payload byte")
    said = _sentence(plan, best, crossings) + (f" This is the last of {len(plans)} plans." if len(plans) > 1 else "")
    return style.Chart(NAME, TITLE, said, MEASURED, made)


def _axes(made: Figure, left: float, bottom: float, height: float) -> Axes:
    """Axes of a panel's width; inches from the lower left."""
    wide, high = made.get_size_inches()
    axes: Axes = made.add_axes((left / wide, bottom / high, _PANEL / wide, height / high))
    return axes


def _curves(plan: Json) -> Curves:
    """Label → its measurements that have a median, by size."""
    found: Curves = {}
    for point in plan.get("sweep") or ():
        if point["payload"] == "incompressible" and point["put_p50_ns"] is not None:
            found.setdefault(point["label"], []).append(point)
    return {label: sorted(points, key=lambda point: point["size_bytes"]) for label, points in found.items()}


def _fastest(plan: Json, curves: Curves) -> list[str]:
    """Of the settings that meet the goal those that are the fastest at some size; of all where none is said to."""
    good = {candidate["label"] for candidate in plan.get("candidates") or () if candidate.get("meets_goal")}
    by_size: dict[int, tuple[float, str]] = {}
    for label in [label for label in curves if label in good] or curves:
        for point in curves[label]:
            mine = (point["put_p50_ns"], label)
            by_size[point["size_bytes"]] = min(mine, by_size.get(point["size_bytes"], mine))
    return list(dict.fromkeys(label for _, (_, label) in sorted(by_size.items())))


def _shown(plan: Json, best: Sequence[str]) -> list[Json]:
    """Crossings among the fastest, of which a chart can say something; there are as many as pairs of settings."""
    found = [
        crossing
        for crossing in plan.get("crossings") or ()
        if crossing.get("reliable")
        and crossing.get("at_bytes")
        and crossing.get("payload", "incompressible") == "incompressible"
        and {crossing["a"], crossing["b"]} <= set(best)
    ]
    return sorted(found, key=lambda crossing: float(crossing["at_bytes"]))[:6]


def _sizes(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set(xscale="log", xlim=(sizes[0] / 1.25, sizes[-1] * 1.25))
    ticks = [size for size in sizes if size & (size - 1) == 0]
    ticks = ticks[:: max(1, len(ticks) // 5)] or [sizes[0], sizes[-1]]
    axes.set_xticks(ticks, [size_text(size) for size in ticks])
    axes.minorticks_off()


def _latency(
    axes: Axes,
    curves: Curves,
    sizes: Sequence[int],
    looks: Mapping[str, style.Look],
    others: tuple[Mapping[str, Any], Sequence[str]],
) -> None:
    floor, best = others
    shown = {
        label: [point for point in points if sizes[0] <= point["size_bytes"] <= sizes[-1]]
        for label, points in curves.items()
    }
    shown = {label: points for label, points in shown.items() if points}
    axes.set_yscale("log")
    _sizes(axes, sizes)
    ends = []
    for label, points in shown.items():
        xs = [point["size_bytes"] for point in points]
        ys = [point["put_p50_ns"] / 1e6 for point in points]
        look = _look(points[0], looks)
        axes.plot(
            *(xs, ys),
            color=look.colour,
            ls=_dash(label, shown),
            lw=1.8 if label in best else 1,
            marker=look.marker,
            markersize=3.5 if label in best else 2.5,
        )
        if label in best:
            _band(axes, points, look.colour)
        ends.append((xs[-1], ys[-1], label))
    known = sorted((int(size), one["p50_ns"] / 1e6) for size, one in floor.items() if one.get("p50_ns"))
    if known:
        xs, ys = [sizes[0] / 1.25, sizes[-1] * 1.25], [_at(known, size) for size in (sizes[0], sizes[-1])]
        inner = [(size, value) for size, value in known if sizes[0] < size < sizes[-1]]
        line = [(xs[0], ys[0]), *inner, (xs[1], ys[1])]
        axes.plot(*zip(*line, strict=True), color=style.INK, lw=1, ls=(0, (4, 3)), zorder=3)
        ends.append((xs[1], ys[1], "floor (one flush)"))
    style.plain_log(axes.yaxis)
    labels.column(axes, ends, 6.5, style.FAINT, gap=0.08)


def _band(axes: Axes, points: Sequence[Json], colour: str) -> None:
    """From the median to the p99, over sizes that have one side by side; a single one is a line up to its p99."""
    for known, group in groupby(points, key=lambda point: point["put_p99_ns"] is not None):
        mine = list(group) if known else []
        xs, low, high = (
            [point["size_bytes"] for point in mine],
            *([point[name] / 1e6 for point in mine] for name in ("put_p50_ns", "put_p99_ns")),
        )
        if len(mine) > 1:
            axes.fill_between(xs, low, high, color=colour, alpha=0.14, lw=0)
        elif mine:
            axes.vlines(xs, low, high, color=colour, alpha=0.5, lw=2)


def _at(known: Sequence[tuple[int, float]], size: float) -> float:
    """Between two measured sizes on the straight line of the two logarithms; beyond them the nearest."""
    import numpy as np

    xs, ys = zip(*known, strict=True)
    return float(np.exp(np.interp(np.log(size), np.log(xs), np.log(ys))))


def _look(point: Json, looks: Mapping[str, style.Look]) -> style.Look:
    return looks[point["backend"]]


def _dash(label: str, curves: Mapping[str, Sequence[Json]]) -> Any:
    """Settings of one backend differ by their line."""
    backend = curves[label][0]["backend"]
    mine = [other for other, points in curves.items() if points[0]["backend"] == backend]
    return style.DASHES[mine.index(label) % len(style.DASHES)]


def _crossings(strip: Axes, axes: Axes, crossings: Sequence[Json], sizes: Sequence[int]) -> None:
    """A row each above the panel, so that their words cannot meet; their range is shaded through the panel."""
    strip.set(xscale="log", xlim=axes.get_xlim(), ylim=(max(1, len(crossings)) - 0.5, -0.5))
    style.bare(strip)
    middle = (sizes[0] * sizes[-1]) ** 0.5
    for row, crossing in enumerate(crossings):
        at = float(crossing["at_bytes"])
        if not sizes[0] <= at < sizes[-1]:
            continue
        low, high = float(crossing.get("low") or at), float(crossing.get("high") or at)
        axes.axvspan(low, high, color=style.INK, alpha=0.09, lw=0)
        axes.axvline(at, color=style.INK, lw=0.6)
        strip.plot([low, high], [row, row], color=style.INK, lw=4, alpha=0.35, solid_capstyle="butt")
        strip.plot([at], [row], "|", color=style.INK, ms=7)
        right = at < middle
        said = f"{about(at)}: from here {crossing['above']}" if crossing.get("above") else about(at)
        strip.annotate(
            said, (high if right else low, row), (4 if right else -4, 0), textcoords="offset points",
            ha="left" if right else "right", va="center", size=style.SMALL, annotation_clip=False,
        )  # fmt: skip


def about(size_bytes: float) -> str:
    """``12 KiB``, ``1.5 MiB``: two digits, for what is known to no more."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return (
                f"{size_bytes / factor:.2g} {unit}"
                if size_bytes < 100 * factor
                else f"{size_bytes / factor:.0f} {unit}"
            )
    return f"{size_bytes:.0f} B"


def _bytes(axes: Axes, curves: Curves, sizes: Sequence[int], looks: Mapping[str, style.Look]) -> None:
    shown = {
        label: [
            point
            for point in points
            if sizes[0] <= point["size_bytes"] <= sizes[-1] and point.get("at_rest_per_payload_byte")
        ]
        for label, points in curves.items()
    }
    shown = {label: points for label, points in shown.items() if points}
    axes.set_yscale("log")
    _sizes(axes, sizes)
    if not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", size=style.SMALL)
        return
    ends = []
    for label, points in shown.items():
        xs = [point["size_bytes"] for point in points]
        ys = [point["at_rest_per_payload_byte"] for point in points]
        look = _look(points[0], looks)
        axes.plot(xs, ys, color=look.colour, ls=_dash(label, shown), lw=1, marker=look.marker, markersize=2.5)
        ends.append((xs[-1], ys[-1], f"{label}  {number(ys[-1])}"))
    style.plain_log(axes.yaxis)
    labels.column(axes, ends, 6.5, style.FAINT, gap=0.08)


def _sentence(plan: Json, best: Sequence[str], crossings: Sequence[Json]) -> str:
    if not plan.get("ranked", True):
        return f"No crossing is drawn: {plan.get('not_ranked_why') or 'the floor moved too much'}."
    if not crossings:
        return f"Fastest at some size: {', '.join(best)}; no crossing between them is reliable."
    said = "; ".join(
        f"{crossing['above']} is faster than {crossing['below']} from about {about(float(crossing['at_bytes']))} on"
        + (
            f" ({about(float(crossing['low']))} to {about(float(crossing['high']))})"
            if crossing.get("low") and crossing.get("high")
            else ""
        )
        for crossing in crossings
    )
    return f"{said}."
