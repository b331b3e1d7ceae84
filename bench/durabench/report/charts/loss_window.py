"""How far back a loss reaches: the distribution of loss windows, with what each setting's documentation allows.

The window is from the earliest lost acknowledgement to the strike, the smallest that it can have been.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench.fault import FAULTS
from durabench.report.charts import labels, style
from durabench.report.charts.material import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from durabench.report.charts.material import Material, Struck

NAME, TITLE = "loss-window", "How far back a loss reaches"
MEASURED = (
    "Of the trials (after power cuts: gaps) that lost something, the share whose earliest lost acknowledgement was at "
    "most so old when the strike began; by the controller's clock. Where "
    "all was gone, the window is as long as the trial was. Dashed: what is promised."
)
_LEFT, _PANEL, _WORDS = 0.6, 5.0, 3.0
FLOOR_S = 1e-3
"""Shorter windows are drawn here: a millisecond is what a strike takes."""


def chart(material: Material) -> style.Chart:
    """A panel per backend that lost something, a curve per setting, part and fault."""
    windows = {
        key: values
        for key, values in material.windows_s.items()
        if values and _destroys(key[4]) not in ("nothing", "flushed", "at-rest")
    }
    if not windows:
        return style.nothing(NAME, TITLE, "nothing acknowledged was lost", MEASURED)
    backends = in_order({key[1] for key in windows})
    curves = {name: [key for key in windows if key[1] == name] for name in backends}
    heights = {name: max(1.15, 0.19 * len(curves[name]) + 0.15) for name in backends}
    height = 0.85 + sum(each + 0.62 for each in heights.values())
    several = len(material.hosts) > 1
    settings = (f"{setting} @{host}" if several else setting for host, _, setting, _, _ in windows)
    width = _LEFT + _PANEL + _WORDS + style.room_for(settings)
    made = style.figure(width, height)
    style.heading(made, TITLE)
    looks = style.looks(material.backends)
    longest = max(max(values) for values in windows.values())
    at = height - 0.65
    for name in backends:
        at -= heights[name]
        axes = made.add_axes((_LEFT / width, at / height, _PANEL / width, heights[name] / height))
        axes.set(xscale="log", xlim=(FLOOR_S / 1.3, max(1.0, longest) * 2.5), ylim=(0, 1.03), title=name)
        axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        _seconds(axes)
        _curves(axes, {key: windows[key] for key in curves[name]}, material, looks[name])
        at -= 0.62
    made.text(
        _LEFT / width, 0.12 / height, "loss window (time since the earliest lost acknowledgement)", size=style.SMALL
    )
    return style.Chart(NAME, TITLE, _sentence(material, windows), MEASURED, made)


def _destroys(fault: str) -> str:
    return FAULTS[fault].destroys.label if fault in FAULTS else "client"


def _seconds(axes: Axes) -> None:
    marks = {0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1: "1 s", 10: "10 s", 100: "100 s", 1000: "1000 s"}
    high = axes.get_xlim()[1]
    axes.set_xticks([at for at in marks if at < high], [name for at, name in marks.items() if at < high])
    axes.minorticks_off()


def _curves(axes: Axes, windows: Mapping[Struck, Sequence[float]], material: Material, look: style.Look) -> None:
    settings = list(dict.fromkeys(key[2] for key in windows))
    ends = []
    promised: dict[float, list[str]] = {}
    for key, values in sorted(windows.items(), key=lambda item: (item[1][len(item[1]) // 2], item[0])):
        host, _, setting, namespace, fault = key
        dash = style.DASHES[settings.index(setting) % len(style.DASHES)]
        shown = _spaced(len(values))
        xs = [FLOOR_S, *(max(values[at], FLOOR_S) for at in shown), axes.get_xlim()[1]]
        ys = [0.0, *((at + 1) / len(values) for at in shown), 1.0]
        axes.step(
            xs, ys, where="post", color=look.colour, lw=1.4, ls=dash, alpha=1 if namespace == "metadata" else 0.55
        )
        middle = len(values) // 2
        point = max(values[middle], FLOOR_S), (middle + 0.5) / len(values)
        axes.plot(*point, look.marker, color=look.colour, markersize=4, zorder=3)
        where = f" @{host}" if len(material.hosts) > 1 else ""
        everything = f", {all_lost} with all gone" if (all_lost := material.all_lost.get(key)) else ""
        ends.append((*point, f"{setting}{where}, {namespace}, {fault} ({len(values)}{everything})"))
        bound = material.promises.get(f"{key[1]}:{setting}", {}).get(_destroys(fault))
        if bound:
            promised.setdefault(bound, []).append(setting)
    for bound, names in promised.items():
        axes.axvline(bound, color=style.INK, lw=1, ls=(0, (4, 3)))
        said = f"{' and '.join(dict.fromkeys(names))}: ≤ {bound:g} s"
        axes.annotate(
            said, (bound, 1), (3, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
            size=style.SMALL, ha="center", va="bottom", annotation_clip=False,
        )  # fmt: skip
    labels.column(axes, ends, style.SMALL, style.FAINT, gap=0.08)


def _spaced(count: int) -> Sequence[int]:
    """Which of so many sorted values become steps: all, or 200 of them with the last; more would be seen by nobody."""
    return range(count) if count <= 200 else [round((step + 1) * count / 200) - 1 for step in range(200)]


def _sentence(material: Material, windows: Mapping[Struck, Sequence[float]]) -> str:
    worst = max(windows, key=lambda key: (windows[key][-1], key))
    said = f"The longest loss reached back {windows[worst][-1]:.3g} s ({worst[1]}:{worst[2]} under {worst[4]})"
    over: dict[str, None] = {}
    inside: dict[str, None] = {}
    for (_, backend, setting, _, fault), values in windows.items():
        bound = material.promises.get(f"{backend}:{setting}", {}).get(_destroys(fault))
        if bound is not None:
            (over if values[-1] > bound else inside)[f"{backend}:{setting}"] = None
    if over:
        said += f"; longer than is promised: {', '.join(over)}"
    if within := [label for label in inside if label not in over]:
        said += f"; inside what is promised: {', '.join(within)}"
    return f"{said}."
