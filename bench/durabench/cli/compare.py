"""The command ``compare``: two sets of results, cell by cell, and the gates that a change must pass."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from durabench.cli.options import ExpectOption, FormatOption, Names


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The result folder before, or a folder with such in it.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The one after.")],
    fail_if: Annotated[
        Names | None,
        typer.Option(
            "--fail-if",
            metavar="EXPR",
            help="Exit 1 where a cell of B meets it, such as 'tier==T3 && loss_rate_high>0.02'. Repeatable.",
        ),
    ] = None,
    expect: ExpectOption = None,
    form: FormatOption = None,
) -> None:
    """Hold two results against each other: what got worse, and how sure that is. Runs nothing."""
    from durabench import output
    from durabench import report as reports
    from durabench.report import compare as comparing
    from durabench.report import comparison
    from durabench.results import runs_in

    outputs = output.outputs(form or ["table"], comparison.FORMS)
    document = comparing.compare(runs_in([a]), runs_in([b]), fail_if or (), reports.load_expectations(expect))
    comparison.write(document, outputs)
    sys.exit(document["exit_status"])
