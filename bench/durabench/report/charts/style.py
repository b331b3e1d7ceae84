"""How every chart looks: one colour and marker per backend, text that is never coloured, files that never differ.

The colours are matplotlib's ``petroff10``: the six of ``petroff6`` are fewer than there are backends. Both were chosen
for colour-blind readers; the marker tells backends apart where there is no colour at all.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from durabench.output import OutputError, replace_file
from durabench_backends.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, FAINT, LINE, STRIPE, PAPER = "#1b1b1f", "#5c5c66", "#d3d3da", "#f5f5f8", "#ffffff"
"""Text, secondary text, grid, every other row, ground."""
HELD, WITHIN, LOST, LOST_UNPROMISED, GREY = "#a8c8f0", "#d6e6fa", "#f28e2b", "#fbd3a6", "#e4e4e8"
"""Cells: kept, lost inside the promised window, promise broken, lost where nothing is promised, not judged."""
COLOURS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
_MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p", "d", "P", "X", "*", "h")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
"""Line styles that tell the settings of one backend apart; a promise is a line across with a label of its own."""
SMALL, USUAL, LARGE = 7.5, 9.0, 11.0
DPI = 100

_RC: dict[str, Any] = {
    "svg.hashsalt": "durabench",
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": USUAL,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": USUAL,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Chart:
    """A figure, the sentence that says what it shows, and how that was measured."""

    name: str
    title: str
    sentence: str
    measured: str
    figure: Figure
    empty: bool = False


@dataclass(frozen=True)
class Look:
    """A backend's colour and marker."""

    colour: str
    marker: str


@contextmanager
def styled() -> Iterator[None]:
    """Within it figures are made, and saved, as above, whatever a person's own matplotlib settings are."""
    import matplotlib as mpl
    from matplotlib import style

    with mpl.rc_context(), style.context(["default", "petroff10", _RC]):
        yield


def looks(backends: Sequence[str]) -> dict[str, Look]:
    """A colour and a marker for each; a registered backend has the same in every chart of every run."""
    names = [*BACKENDS, *sorted(set(backends) - set(BACKENDS))]
    return {
        name: Look(COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)])
        for number, name in enumerate(names)
        if name in backends
    }


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, belonging to no window and to no list of open figures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(made)
    return made


def room_for(texts: Iterable[str]) -> float:
    """Inches that the longest of small labels takes, with some air."""
    return 0.3 + 0.066 * max(map(len, texts), default=0)


def heading(made: Figure, title: str) -> None:
    """The title at the upper left of the figure."""
    height = made.get_size_inches()[1]
    made.text(0.12 / made.get_size_inches()[0], 1 - 0.12 / height, title, size=LARGE, weight="bold", va="top")


def nothing(name: str, title: str, why: str, measured: str) -> Chart:
    """A chart of nothing says so, instead of showing an empty axis."""
    made = figure(7, 1.2)
    heading(made, title)
    made.text(0.12 / 7, 0.35, f"Nothing to draw: {why}.", size=USUAL, va="center", color=FAINT)
    return Chart(name, title, f"There is nothing to draw: {why}.", measured, made, empty=True)


def bare(axes: Axes) -> None:
    """No frame, no ticks, no grid."""
    axes.set_axis_off()
    axes.grid(visible=False)


def plain_log(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers, several of them where it spans no more than a decade or two."""
    low, high = sorted(axis.get_view_interval())
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps: tuple[float, ...] = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if high / low < 12 else steps
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def save(chart: Chart, directory: Path, formats: Sequence[str]) -> list[Path]:
    """Write a chart; the same chart gives the same bytes in every process. The files. OutputError where it cannot."""
    made = []
    for form in formats:
        path = directory / f"{chart.name}.{form}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}; choose another folder"
            raise OutputError(message) from None
        replace_file(path, content(chart, form))
        made.append(path)
    return made


def content(chart: Chart, form: str) -> bytes:
    """A chart as a file of ``png`` or ``svg``: no date and no version, so that it differs only where the chart does."""
    sink = BytesIO()
    with styled():
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        chart.figure.savefig(sink, format=form, metadata=metadata)
    # Verdana is as wide, where DejaVu is missing.
    return sink.getvalue().replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, sans-serif")
