"""The command ``verify``: does a live configuration do what its owner thinks?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from durabench.cli.options import MaxLossOption, Names, SurviveOption, seconds
from durabench.cli.screen import INTERRUPTED
from durabench_backends import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durabench.verify import Report
    from durabench_backends.contract import Goal


def verify(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help=registry.url_forms(),
        ),
    ] = None,
    command: Annotated[
        Names | None, typer.Argument(metavar="-- CMD", help="A program of yours, to be watched while it writes there.")
    ] = None,
    survive: SurviveOption = "drive",
    max_loss: MaxLossOption = "0",
    probe: Annotated[
        bool, typer.Option("--probe", help="Prove it: write in a namespace of its own, which is removed again.")
    ] = False,
    ignore: Annotated[
        Names | None, typer.Option(metavar="ID=REASON", help="A finding that is accepted, and why. Repeatable.")
    ] = None,
    explain: Annotated[str | None, typer.Option(metavar="ID", help="Print the page of a check.")] = None,
    form: Annotated[
        Names | None,
        typer.Option(
            "--format",
            metavar="F[=FILE]",
            help="table, json, junit, github or markdown; repeatable, at most one without a file.",
        ),
    ] = None,
) -> None:
    """Say which promise a deployment makes through this login, whether it meets the goal, and what mends it.

    Reads only, unless --probe is given. Exit status: 0 the goal is met, 1 it is not, 2 usage, 3 could not tell.
    """
    from durabench import verify as verifying

    if explain is not None:
        sys.stdout.write(_page(explain, url))
        return
    if url is None:
        message = "a URL is missing: durabench verify URL"
        raise verifying.UsageError(message)
    if command and "--" not in sys.argv:
        message = f"one URL at a time; a program to be watched comes after --: durabench verify URL -- {command[0]} …"
        raise verifying.UsageError(message)
    goal = verifying.goal(survive, seconds(max_loss))
    outputs = verifying.outputs(form or ["table"])
    ignored = verifying.ignored(ignore or ())
    try:
        report = verifying.verify(url, goal, probe=probe, ignore=ignored, command=command or ())
        status = report.exit_status
    except KeyboardInterrupt:
        report, status = _interrupted(url, goal, ignored), INTERRUPTED
    verifying.write(report, outputs)
    if report.unreached is not None:
        print(f"durabench: {report.unreached}", file=sys.stderr)
    sys.stdout.flush()
    sys.exit(status)


def _interrupted(url: str, goal: Goal, ignored: Mapping[str, str]) -> Report:
    from durabench.redact import shown
    from durabench.verify import Report

    return Report(shown(url, user=False), goal, goal, ignored=ignored, unreached="interrupted; ask again")


def _page(asked: str, url: str | None) -> str:
    from durabench.verify import page
    from durabench_backends import registry

    return page(asked, None if url is None else registry.load(registry.name_for_url(url)))
