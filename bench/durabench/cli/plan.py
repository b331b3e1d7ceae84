"""The command ``plan``: from which size on does data belong elsewhere?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from durabench.cli.options import DirOption, FormatOption, MaxLossOption, Names, SurviveOption, seconds, size_bytes
from durabench.cli.screen import INTERRUPTED, Progress, stop
from durabench_backends import registry

if TYPE_CHECKING:
    from durabench.output import Output
    from durabench.plan import Planned

FORMS = ("table", "json", "csv", "markdown")


def plan(
    sizes: Annotated[
        str | None, typer.Option(metavar="LOW..HIGH", help="Sizes to measure (default: 256..64MiB), in steps of ×4.")
    ] = None,
    backend: Annotated[
        Names | None,
        typer.Option(metavar="NAME[:SETTING]|URL", help="Repeatable (default: of each kind one that meets the goal)."),
    ] = None,
    survive: SurviveOption = "drive",
    max_loss: MaxLossOption = "0",
    max_p99: Annotated[
        str | None, typer.Option(metavar="TIME", help="Slowest put in a hundred that is accepted, such as 20ms.")
    ] = None,
    max_bytes_per_step: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most that a step may write, such as 1MiB.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own steps, JSONL or CSV: step, metadata_bytes, data_bytes, changed."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help=f"Your own sizes, read and never written: {registry.url_forms(parts=True)}.",
        ),
    ] = None,
    directory: DirOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The plan's own result folder, new or empty.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and trials: a minute and a half.")] = False,
    seed: Annotated[int | None, typer.Option(help="Orders everything that is drawn (default: a new one).")] = None,
    form: FormatOption = None,
) -> None:
    """Measure durable puts and reloads over sizes, and say what to keep where on this disk.

    Exit status: 0 a recommendation, 1 no backend meets the goal, 2 usage, 3 could not tell.
    """
    from durabench import output, verify
    from durabench import plan as planning
    from durabench import run as running

    outputs = output.outputs(form or ["table"], FORMS)
    running.require_linux()
    question = planning.Question(
        goal=verify.goal(survive, seconds(max_loss)),
        backends=tuple(backend or ()),
        sizes=None if sizes is None else sizes_between(sizes),
        max_p99_s=None if max_p99 is None else seconds(max_p99),
        max_bytes_per_step=None if max_bytes_per_step is None else size_bytes(max_bytes_per_step),
        trace=trace,
        source=source,
        quick=quick,
        directory=directory,
        out=out,
        seed=running.new_seed() if seed is None else seed,
    )
    progress = Progress()
    planned = planning.plan(question, sizes_between, progress.say, progress.line)
    folder = planned.folder
    folder.write_plan(planned.document)
    if planned.interrupted:
        folder.close()
        stop(f"interrupted; what was measured is kept in {folder.path}, without a recommendation", INTERRUPTED)
    curve = _draw(planned)
    folder.finish(planned.status, doubts=planned.doubts)
    for doubt in planned.doubts:
        progress.say(f"could not tell: {doubt}")
    for one in outputs:
        _write(one, planned)
    if curve:
        progress.say(f"the curve: {', '.join(map(str, curve))}")
    if not any(one.form == "json" and one.path is None for one in outputs):
        print(folder.path)
    sys.exit(planned.status)


def _draw(planned: Planned) -> list[Path]:
    """The curve as PNG and SVG, in the plan's folder."""
    from durabench.report.charts import latency_by_size, style
    from durabench.report.charts.material import Material

    with style.styled():
        chart = latency_by_size.chart(Material({"cells": []}, plans=[planned.document]))
    return style.save(chart, planned.folder.path, ("png", "svg"))


def _write(one: Output, planned: Planned) -> None:
    """A plan in one format, to a file or to the screen."""
    from durabench import output
    from durabench.plan import table

    if one.form == "table" and one.path is None:
        table.show(planned.document, output.screen())
        return
    if one.form == "json":
        text = json.dumps({**planned.document, "results": str(planned.folder.path)}, ensure_ascii=False) + "\n"
    else:
        text = table.render(planned.document, one.form)
    if one.path is None:
        sys.stdout.write(text)
    else:
        output.replace_file(one.path, text)


def sizes_between(text: str) -> list[int]:
    """``256..64MiB`` as the sizes of a coarse pass. UsageError otherwise."""
    from durabench.plan import grid
    from durabench.schedule import UsageError

    low, _, high = text.partition("..")
    try:
        return grid(size_bytes(low.strip()), size_bytes(high.strip()))
    except ValueError as error:
        message = f"--sizes {text}: {error}; write LOW..HIGH, such as 256..64MiB"
        raise UsageError(message) from None
