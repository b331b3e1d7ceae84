"""Six charts of recorded results, each with a sentence that says what it shows and one on how that was measured.

`charts` makes them, `draw` writes them to files. Each module has a function ``chart(material)``; what has no data says
so. matplotlib is imported when something is drawn, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench.report.charts import latency_by_size, loss_rate, loss_window, style, survival, tail, tradeoff
from durabench.report.charts.material import Gathering, Material, gather
from durabench.report.charts.style import Chart
from durabench.results import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from durabench.report.layout import Json
    from durabench.results import Folder

__all__ = ["Chart", "Gathering", "Material", "charts", "draw", "gather"]

MAKERS = (survival, loss_rate, loss_window, latency_by_size, tail, tradeoff)


def charts(material: Material, *, without: Sequence[str] = ()) -> list[Chart]:
    """All six, in the order of a report, but those whose names are ``without``."""
    with style.styled():
        return [maker.chart(material) for maker in MAKERS if maker.NAME not in without]


def draw(
    document: Json, folders: Sequence[Folder], directory: Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write every chart of a document and its folders to ``directory``, once per format; the files."""
    material = gather(document, distinct(folders))
    return [path for chart in charts(material) for path in style.save(chart, directory, formats)]
