"""The command ``explore``: which of what a program acknowledges can be lost, by its file calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from durabench.cli.options import Names
from durabench.cli.screen import INTERRUPTED, stop


def explore(
    program: Annotated[Names | None, typer.Argument(metavar="-- CMD", help="The program, in any language.")] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder whose files matter; default: where you are.")
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="posix|ext4-ordered", help="Whose rules say what may be lost.")
    ] = "posix",
    states: Annotated[int, typer.Option(metavar="N", help="Different crash states to judge at most.")] = 400,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="CMD2",
            help="Your own check, run in each state's folder: 0 sound, 1 lost, anything else broken. "
            "$DURABENCH_ACKNOWLEDGED names a file with what had been acknowledged, one JSON a line.",
        ),
    ] = None,
    acknowledged: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="A line on stdout that matches acknowledges what was written before it."),
    ] = None,
    ignore: Annotated[
        Names | None,
        typer.Option(metavar="GLOB", help="A path below DIR that holds nothing of value: a lock, a log. Repeatable."),
    ] = None,
    crash_points: Annotated[
        bool,
        typer.Option(
            "--crash-points",
            help="Kill it at every call, too, and, if the folder was empty, run it again with calls that fail once.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="S", help="Which states are drawn.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the log and the losing states in this new folder.")
    ] = None,
    form: Annotated[
        Names | None,
        typer.Option(
            "--format",
            metavar="F[=FILE]",
            help="table, json, junit, github or markdown; repeatable, at most one without a file.",
        ),
    ] = None,
) -> None:
    """Run a program, and say which of what it acknowledged a power cut may take, and which flush is missing.

    Acknowledged is what was written before durabench.mark(), a line that matches --acknowledged, or, without either,
    the program's end. Modelled, not measured. Exit status: 0 nothing can be lost, 1 something can, 2 usage, 3 could
    not tell.
    """
    from durabench import explore as exploring

    asked = exploring.outputs(form or ["table"])
    if not program:
        raise exploring.UsageError("a program is missing: durabench explore -- CMD")
    try:
        report = exploring.explore(
            program,
            (root or Path.cwd()).resolve(),
            profile=profile,
            states=states,
            check=check,
            acknowledged=acknowledged,
            ignore=ignore or (),
            crash_points=crash_points,
            seed=seed,
            out=out,
        )
    except KeyboardInterrupt:
        stop("interrupted; the program was ended", INTERRUPTED)
    exploring.write(report, asked)
    if report.verdict == "unknown":
        print(f"durabench: {report.answer}", file=sys.stderr)
    sys.stdout.flush()
    sys.exit(report.exit_status)
