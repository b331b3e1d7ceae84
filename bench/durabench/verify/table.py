"""The table on a terminal: the checks first, then the answer in one sentence, what is lost, and the lines to paste."""

from __future__ import annotations

import textwrap
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from durabench.output import PLAIN_WIDTH, screen
from durabench.verify import layout

if TYPE_CHECKING:
    from durabench.verify.verdict import Report

STYLES = {
    "ok": "blue",
    "held": "bold blue",
    "warn": "yellow",
    "unknown": "yellow",
    "fail": "bold dark_orange",
    "broken": "bold dark_orange",
    "skip": "dim",
    "ignored": "dim",
    "not rated": "dim",
}
BETWEEN = "  "
VALUE_WIDTH = 28
"""Longer values push the origin aside, in their own line only."""


def show(report: Report, console: Console | None = None) -> None:
    """Print a report."""
    console = console or screen()
    _say(console, f"{report.target}", "bold")
    _say(console, f"goal: {layout.goal_line(report.goal)}", "dim")
    if report.judged_by != report.goal:
        _say(console, "an embedded store has no server: its writer's death stands for it", "dim")
    if report.checks:
        console.print()
        _checks(console, report)
    console.print()
    sentence = f"{layout.VERDICT_SIGNS[report.verdict]} {layout.answer(report)}"
    _paragraph(console, sentence, STYLES[report.verdict], indent=0, hanging=2)
    for said in layout.losses(report):
        _paragraph(console, said, hanging=2)
    if report.promise is not None:
        _paragraph(console, layout.promise_line(report.promise), "dim")
    _paste(console, report)


def text(report: Report, width: int = PLAIN_WIDTH) -> str:
    """The same as plain text."""
    sink = StringIO()
    show(report, Console(file=sink, width=width, no_color=True, highlight=False, emoji=False, markup=False))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _checks(console: Console, report: Report) -> None:
    ids = max(len(check.id) for check in report.checks)
    values = max((len(value) for check in report.checks if len(value := check.value or "") <= VALUE_WIDTH), default=0)
    for check in report.checks:
        word = layout.word(report, check)
        value = layout.short(check) or check.value or ""
        said = BETWEEN.join((check.id.ljust(ids), value.ljust(values), check.origin or ""))
        line = Text(f"{BETWEEN}{layout.SIGNS[word]} ", style=STYLES[word])
        line.append(said.rstrip(), style="dim" if word in ("skip", "ignored") else "default")
        console.print(line, soft_wrap=True)
        for what, remark in layout.remarks(report, check):
            _paragraph(console, f"↳ {what}: {remark}", "dim", indent=6, hanging=2)


def _paste(console: Console, report: Report) -> None:
    """Lines to paste are never wrapped: they must be copied in one piece."""
    for one, fix in layout.lines_to_paste(report):
        _say(console, f"  mend {one}:", "")
        for line in fix.splitlines():
            _say(console, f"      {line}", "bold")


def _paragraph(console: Console, said: str, style: str = "", indent: int = 2, hanging: int = 0) -> None:
    """Wrapped between words, without the blanks that a piped table would end its lines with."""
    first, later = " " * indent, " " * (indent + hanging)
    wrapped = textwrap.wrap(
        said,
        console.width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in wrapped:
        _say(console, line, style)


def _say(console: Console, line: str, style: str) -> None:
    # Text, not str: what a server says may look like markup. soft_wrap: a path must be copied in one piece.
    console.print(Text(line, style=style), soft_wrap=True)
