"""The table on a terminal: rich where there is one, plain text where the output is piped."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from durabench.output import PLAIN_WIDTH
from durabench.report import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench.report.layout import Grid, Json, Line

_STYLES = {"kept": "blue", "within": "cyan", "broken": "bold dark_orange", "unknown": "yellow"}


def table(document: Json, console: Console) -> None:
    """Print a document: where it was measured, a table per workload, findings, what was not judged, the pick."""
    for line in layout.header(document):
        _say(console, line, "dim")
    for grid in layout.grids(document):
        console.print()
        console.print(_table(grid, _form(grid, console.width)))
    for line in layout.LEGEND:
        _say(console, line, "dim")
    for lines in (layout.findings(document), layout.not_judged(document), layout.pick_lines(document)):
        if lines:
            console.print()
        for line in lines:
            _say(console, line, "bold" if line.startswith("pick:") else "")
    goal = layout.goal_line(document)
    if goal:
        console.print()
        _say(console, goal, "dim")


def text(document: Json, width: int = PLAIN_WIDTH) -> str:
    """The same as plain text."""
    sink = StringIO()
    table(document, Console(file=sink, width=width, no_color=True, highlight=False, emoji=False, markup=False))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _say(console: Console, line: str, style: str) -> None:
    # Text, not str: what a server says may look like markup. soft_wrap: a path must be copied in one piece.
    console.print(Text(line, style=style), soft_wrap=True)


def _columns(grid: Grid) -> list[str]:
    return ["setting", "tier", "part", *grid.columns, "put / floor", "p99", "B/B"]


def _texts(line: Line, joined: str) -> list[str]:
    faults = [joined.join(parts) for parts in line.faults]
    return [f"  {line.setting}", line.tier, line.namespace, *faults, line.p50, line.p99, line.bytes_per_byte]


@dataclass(frozen=True)
class _Form:
    """How the parts of a cell are joined, how far columns are apart, and whether the table then fits."""

    joined: str
    between: int
    fits: bool


def _form(grid: Grid, width: int) -> _Form:
    """Verdict and figures side by side where there is room, below each other where there is less."""
    for joined, between in ((" ", 2), ("\n", 2), ("\n", 1), ("\n", 0)):
        rows = [_columns(grid), *(_texts(line, joined) for line in grid.lines)]
        widest = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
        if 2 + sum(widest) + (between + 1) * (len(widest) - 1) <= width:  # the box has a blank at every side
            return _Form(joined, between, fits=True)
    return _Form("\n", 0, fits=False)


def _width(said: str) -> int:
    return max(map(len, said.split("\n")))


def _table(grid: Grid, form: _Form) -> Table:
    made = Table(
        title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, form.between, 0, 0)
    )
    figures = len(grid.columns) + 3
    for number, name in enumerate(_columns(grid)):
        made.add_column(name, justify="right" if number >= figures else "left", no_wrap=form.fits or number < 3)
    before: Line | None = None
    for line in grid.lines:
        if before is None or line.backend != before.backend:
            if before is not None:
                made.add_section()
            made.add_row(Text(line.backend, style="bold"))
        made.add_row(*_cells(line, form.joined, same=before is not None and _setting(line) == _setting(before)))
        before = line
    return made


def _setting(line: Line) -> tuple[str, str, str]:
    return line.backend, line.setting, line.tier


def _cells(line: Line, joined: str, *, same: bool) -> Sequence[Text]:
    """The cells of a line; setting and tier are said once for metadata and data."""
    texts = _texts(line, joined)
    texts[:2] = ["", ""] if same else texts[:2]
    styles = ["", "", "dim", *(_STYLES.get(verdict, "dim") for verdict in line.verdicts), "", "", ""]
    return [Text(each, style=style) for each, style in zip(texts, styles, strict=True)]
