"""The survival matrix: what each setting lost under each fault, with its verdict, its count and its bound.

Blue held, orange lost, grey was not judged; the mark and the words say the same without any colour.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from durabench.report import layout
from durabench.report.charts import style
from durabench.row import label as label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from durabench.report.charts.material import Material
    from durabench.report.layout import Grid, Json

NAME, TITLE = "survival", "What survives which fault"
MEASURED = (
    "Each cell: verdict, then trials (after power cuts: telling gaps) with a loss of all, then "
    "the loss rate that this allows (exact, two-sided 95 %)."
)
_ROW, _HEAD, _PART, _COLUMN = 0.2, 0.5, 0.75, 2.05
"""Inches."""
_LONG = re.compile(r" rec\.|^[\d,]+ states?\b|cannot tell$")


def chart(material: Material) -> style.Chart:
    """Settings and parts down, faults across."""
    grids = [grid for grid in layout.grids(material.document) if grid.columns]
    if not grids:
        return style.nothing(NAME, TITLE, "no cell of any fault was recorded", MEASURED)
    columns = max(len(grid.columns) for grid in grids)
    label = style.room_for(f"{line.backend}:{line.setting}" for grid in grids for line in grid.lines)
    width = label + _PART + _COLUMN * columns + 0.15
    height = 0.75 + sum(_HEAD + _ROW * len(grid.lines) + _gaps(grid) for grid in grids)
    made = style.figure(width, height)
    style.heading(made, TITLE)
    axes = made.add_axes((0, 0, 1, 1))
    style.bare(axes)
    axes.set(xlim=(0, width), ylim=(height, 0))
    at = 0.4
    for grid in grids:
        at = _grid(axes, grid, at, label)
    for number, text in enumerate(
        ("✓ kept   ◐ within the promised window   ✕ broken   ○ nothing promised   ? unknown",)
    ):
        axes.text(0.12, height - 0.15 - 0.2 * number, text, size=style.SMALL, va="center", color=style.FAINT)
    return style.Chart(NAME, TITLE, sentence(material.document), MEASURED, made)


def sentence(document: Json) -> str:
    """How many settings kept what they promise, in all that was judged."""
    verdicts: dict[str, set[str]] = {}
    for cell in document["cells"]:
        if cell["trials"] and cell["fault"] != "none" and cell["destroyed"] not in ("flushed", "at-rest"):
            verdicts.setdefault(label_of(cell), set()).add(cell["verdict"])
    if not verdicts:
        return "No fault was judged."
    broken = [label for label, seen in verdicts.items() if "broken" in seen]
    lost = sum("no-promise" in seen and "broken" not in seen for seen in verdicts.values())
    kept = sum(seen <= {"kept", "within"} for seen in verdicts.values())
    said = f"{kept} of {len(verdicts)} settings kept their promise wherever they were struck"
    untold = sum("unknown" in seen and "broken" not in seen for seen in verdicts.values())
    said += f", {lost} more promise nothing under at least one of the faults" if lost else ""
    said += f", of {untold} something could not be told" if untold else ""
    return f"{said}, and {named(broken)} broke it." if broken else f"{said}; none broke it."


def named(labels: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    labels = list(dict.fromkeys(labels))
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _gaps(grid: Grid) -> float:
    """Room between backends."""
    return 0.08 * len({line.backend for line in grid.lines})


def _grid(axes: Axes, grid: Grid, top: float, label: float) -> float:
    """One table, with ``label`` inches for names; returns where it ends."""
    axes.text(0.12, top + 0.22, grid.title, size=style.USUAL, weight="bold", va="center")
    for number, name in enumerate(grid.columns):
        axes.text(_left(number, label) + 0.06, top + 0.22, name, size=style.USUAL, weight="bold", va="center")
    at = top + _HEAD - 0.12
    before = None
    for line in grid.lines:
        if before is None or line.backend != before.backend:
            at += 0.08
            axes.plot([0.12, _left(len(grid.columns), label) - 0.05], [at - 0.04] * 2, color=style.LINE, lw=0.6)
        if before is None or (line.backend, line.setting) != (before.backend, before.setting):
            axes.text(0.12, at + _ROW / 2, f"{line.backend}:{line.setting}", size=style.SMALL, va="center")
        axes.text(label, at + _ROW / 2, line.namespace, size=style.SMALL, va="center", color=style.FAINT)
        for number, (parts, verdict) in enumerate(zip(line.faults, line.verdicts, strict=True)):
            _cell(axes, _left(number, label), at, parts, _ground(verdict, parts))
        at += _ROW
        before = line
    return at + 0.12


def _left(column: int, label: float) -> float:
    return label + _PART + _COLUMN * column


def _cell(axes: Axes, left: float, top: float, parts: tuple[str, ...], ground: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top + 0.01), _COLUMN - 0.06, _ROW - 0.02, facecolor=ground, edgecolor="none"))
    axes.text(left + 0.06, top + _ROW / 2, short(parts), size=style.SMALL, va="center")


def short(parts: tuple[str, ...]) -> str:
    """A cell in one line, without how many recordings, crash states and contents that is of."""
    shown = [part for part in parts if not _LONG.search(part)]
    mark = shown[0].replace("✕ broken", "✕").replace("✓ kept", "✓").replace("◐ within", "◐")
    return " ".join([mark.replace("○ no-promise", "○"), *shown[1:]])


def _ground(verdict: str, parts: tuple[str, ...]) -> str:
    if verdict == "no-promise":
        return style.GREY if any(part.startswith("0/") for part in parts) else style.LOST_UNPROMISED
    grounds = {"kept": style.HELD, "within": style.WITHIN, "broken": style.LOST, layout.DASH: style.PAPER}
    return grounds.get(verdict, style.GREY)
