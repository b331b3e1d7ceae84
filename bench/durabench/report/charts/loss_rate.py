"""The forest of loss rates: how often something acknowledged was lost, with the exact interval of each.

A zero is an open marker, and its bound is the end of its line: "nothing lost in n" is never "never".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durabench.report.charts import style
from durabench.statistics import bound_text
from durabench_backends.contract import METADATA

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from durabench.report.charts.material import Material
    from durabench.report.layout import Json

NAME, TITLE = "loss-rate", "How often something acknowledged is lost"
MEASURED = (
    "Loss rate by trial (after power cuts by telling gap between acknowledged changes), with exact two-sided 95 % "
    "intervals; filled: seen to lose; open: never seen to lose, the line ends at what that allows. Upper line "
    "metadata, lower line data. +n?: n more trials could not be judged."
)
_ROW, _COLUMN, _FIGURES = 0.36, 2.0, 1.25


def chart(material: Material) -> style.Chart:
    """Settings down, a panel per fault."""
    counted = [cell for cell in material.cells if counts(cell)[1] and cell["fault"] != "none"]
    if not counted:
        return style.nothing(NAME, TITLE, "no trial under a fault was judged", MEASURED)
    faults = _faults(counted)
    rows = list(dict.fromkeys(_row(material, cell) for cell in counted))
    label = style.room_for(rows)
    width, height = label + (_COLUMN + _FIGURES) * len(faults), 1.25 + _ROW * len(rows)
    made = style.figure(width, height)
    style.heading(made, TITLE)
    looks = style.looks(material.backends)
    for number, fault in enumerate(faults):
        left = label + (_COLUMN + _FIGURES) * number
        axes = made.add_axes((left / width, 0.5 / height, _COLUMN / width, (height - 1.15) / height))
        _scale(axes, rows, fault, first=number == 0)
        mine = [
            (cell, _at(cell, rows.index(_row(material, cell)))) for cell in counted if _fault(cell, counted) == fault
        ]
        for backend, look in looks.items():
            _intervals(axes, [(cell, at) for cell, at in mine if cell["backend"] == backend], look)
    return style.Chart(NAME, TITLE, _sentence(material, counted), MEASURED, made)


def _row(material: Material, cell: Json) -> str:
    workloads = {one["workload"] for one in material.cells}
    return material.place(cell) + (f" {cell['workload']}" if len(workloads) > 1 else "")


def _faults(cells: Sequence[Json]) -> list[str]:
    from durabench.fault import FAULTS

    known = list(FAULTS)
    found = {_fault(cell, cells): cell["fault"] for cell in cells}
    return sorted(found, key=lambda name: (known.index(found[name]) if found[name] in known else len(known), name))


def _fault(cell: Json, cells: Sequence[Json]) -> str:
    """Its name, with the lane where one fault has several."""
    fault: str = cell["fault"]
    lanes = {other["lane"] for other in cells if other["fault"] == fault}
    return fault if len(lanes) == 1 else f"{fault} ({cell['lane']})"


def _forwards(rate: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    return np.sqrt(np.maximum(rate, 0))


def _backwards(root: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    return np.square(root)


def _scale(axes: Axes, rows: Sequence[str], title: str, *, first: bool) -> None:
    axes.set_xscale("function", functions=(_forwards, _backwards))  # from 1 % to 100 %, and zero as well
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6), title=title)
    axes.set_xticks([0, 0.01, 0.1, 0.25, 0.5, 1], ["0", "1 %", "10", "25", "50", "100"])
    axes.set_yticks(range(len(rows)), rows if first else [""] * len(rows))
    axes.tick_params(length=0)
    axes.spines[["left"]].set_visible(False)
    for number in range(0, len(rows), 2):
        axes.axhspan(number - 0.5, number + 0.5, color=style.STRIPE, lw=0, zorder=0)
    axes.grid(visible=False, axis="y")


def _at(cell: Json, row: int) -> float:
    return row + (-0.2 if cell["namespace"] == METADATA else 0.2)


def _intervals(axes: Axes, cells: Sequence[tuple[Json, float]], look: style.Look) -> None:
    """Of one backend: rates, intervals, and both in figures beside the panel."""
    if not cells:
        return
    lows, highs = ([cell[name] for cell, _ in cells] for name in ("loss_rate_low", "loss_rate_high"))
    axes.hlines([at for _, at in cells], lows, highs, color=look.colour, lw=1.4, zorder=2)
    for lost in (False, True):
        mine = [(losing / of, at) for cell, at in cells for losing, of in [counts(cell)] if bool(losing) == lost]
        if mine:
            rates, heights = zip(*mine, strict=True)
            ground = look.colour if lost else style.PAPER
            common: dict[str, Any] = {"color": look.colour, "markersize": 4.5, "clip_on": False, "zorder": 3, "ls": ""}
            axes.plot(rates, heights, look.marker, markerfacecolor=ground, **common)
    for cell, at in cells:
        losing, of = counts(cell)
        unknown = f" +{cell['trials_unknown']}?" if cell["trials_unknown"] else ""
        said = f"{losing}/{of}  {bound_text(losing, of)}{unknown}"
        axes.text(1.03, at, said, size=6.5, va="center", transform=axes.get_yaxis_transform(), clip_on=False)


def counts(cell: Json) -> tuple[int, int]:
    """Losing of all: gaps where there are some, else trials."""
    if cell["gaps"] is not None:
        return cell["gaps_with_loss"], cell["gaps"]
    return cell["trials_with_loss"], cell["trials_counted"]


def _sentence(material: Material, counted: Sequence[Json]) -> str:
    """The highest rate among what promises something, and the widest and narrowest bound of a zero."""
    zeros = [cell for cell in counted if not cell["trials_with_loss"]]
    lossy = [cell for cell in counted if cell["trials_with_loss"]]
    said = f"{len(lossy)} of {len(counted)} cells lost something acknowledged"
    broken = [cell for cell in lossy if cell["verdict"] == "broken"]
    if broken:
        worst = max(broken, key=lambda cell: (cell["loss_rate_low"], cell["loss_rate_high"]))
        losing, of = counts(worst)
        what = f"{material.place(worst)} under {worst['fault']} ({losing} of {of})"
        said += f", most often against its promise {what}"
    if zeros:
        low, high = (100 * pick(cell["loss_rate_high"] for cell in zeros) for pick in (min, max))
        bounds = f"{low:.2g} %" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g} %"
        said += f"; where nothing was lost, a loss rate of at most {bounds} is still possible"
    return f"{said}."
