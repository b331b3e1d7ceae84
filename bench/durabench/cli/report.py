"""The commands that read recorded results: ``report`` and ``judge``; and ``replay``, which runs one trial again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durabench.cli.options import DirOption, ExpectOption, FormatOption, Names, PasswordFileOption
from durabench.cli.screen import COULD_NOT_TELL, Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench.output import Output
    from durabench.results import Folder
    from durabench.row import Row


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Result folders, or folders with such in them; several are shown together, by host."
        ),
    ],
    form: FormatOption = None,
    expect: ExpectOption = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="README.md", help="Replace the table between the durabench marks in this file."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="One page with everything, that opens offline.")
    ] = None,
    charts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The six charts, as PNG and SVG, in this folder.")
    ] = None,
) -> None:
    """Show recorded results again; runs nothing."""
    from durabench import report as reports
    from durabench.results import runs_in

    folders = runs_in(directories)
    outputs = reports.outputs(form or ["table"])
    document = reports.document(folders, expected=reports.load_expectations(expect))
    if write is not None:
        reports.write_block(write, document)
    if page is not None:
        from durabench.report import html

        html.write(document, folders, page)
    if charts is not None:
        from durabench.report import charts as drawings

        drawings.draw(document, folders, charts)
    plans = [plan for folder in folders if (plan := folder.whole_plan) is not None]
    if plans:
        _with_plans(plans, document, outputs, alone=len(plans) == len(folders))
    else:
        reports.write(document, outputs)


def _with_plans(
    plans: Sequence[dict[str, Any]], document: dict[str, Any], outputs: Sequence[Output], *, alone: bool
) -> None:
    """Plans as `plan` showed them, each in its words, then the runs; ``alone``: there are none. JSON has both."""
    from durabench import output
    from durabench import report as reports
    from durabench.plan import table
    from durabench.redact import redact_all

    shown = [redact_all(plan) for plan in plans]
    for one in outputs:
        if one.form == "json":
            reports.write({**document, "plans": shown}, [one])
        elif one.form == "csv" and not alone:
            reports.write(document, [one])  # a file has one heading
        elif one.form == "table" and one.path is None:
            for plan in shown:
                table.show(plan, output.screen())
            if not alone:
                reports.write(document, [one])
        else:
            said = "\n".join(table.render(plan, one.form) for plan in shown)
            said = said if alone else f"{said}\n{reports.render(document, one.form)}"
            if one.path is None:
                sys.stdout.write(said)
            else:
                output.replace_file(one.path, said)


def judge(directory: Annotated[Path, typer.Argument(metavar="DIR")], expect: ExpectOption = None) -> None:
    """Judge every trial again from its stored history; runs nothing. Exit 1 if one is broken and not a known
    finding, else 3 if a judgement differs from the recorded one, has no history any more, or a cell is unknown.
    """
    from durabench import run as running
    from durabench.report import load_expectations
    from durabench.results import Folder
    from durabench.row import names_of

    known = {(one.setting, one.fault) for one in load_expectations(expect)}
    folder = Folder.open(directory)
    every = running.judge_again(folder)
    pairs = [(was, now) for was, now in every if now is not None]
    gone = list(dict.fromkeys(Folder.history_name(was) for was, now in every if now is None))
    broken = [now for _, now in pairs if now["verdict"] == "broken" and now["control"] is None]
    new = [now for now in broken if not {(name, now["fault"]) for name in names_of(now)} & known]
    different = [(was, now) for was, now in pairs if (was["verdict"], was["lost"]) != (now["verdict"], now["lost"])]
    for was, now in different:
        print(f"trial {was['trial']} {was['namespace']}: recorded {was['verdict']}, now {now['verdict']}: {now['why']}")
    if gone:
        shown = ", ".join(gone[:5]) + ("" if len(gone) <= 5 else f" and {len(gone) - 5} more")
        print(f"gone or torn: {shown}: cannot be judged again")
    unknown = _unknown([{**was, **now} for was, now in pairs], folder)
    if unknown:
        shown = f"{', '.join(unknown[:5])}{', …' if unknown[5:] else ''}"
        print(f"of {len(unknown)} cells nobody can tell: {shown}")
    if not every:
        print("no trial of this run ended: there is nothing to judge")
    expected = f", {len(broken) - len(new)} of them expected" if len(new) < len(broken) else ""
    print(f"{len(pairs)} judgements: {len(different)} differ from what was recorded, {len(broken)} broken{expected}")
    sys.exit(1 if new else COULD_NOT_TELL if different or gone or unknown or not every else 0)


def _unknown(rows: Sequence[Row], folder: Folder) -> list[str]:
    """The cells of which nobody can tell, as the run itself counts them: where nothing is known, nothing held."""
    from durabench.report.cells import cells

    found = cells(rows, latencies=lambda row: folder.samples(row.get("samples_at"), row.get("samples_n")))
    return [f"{cell.label} {cell.fault} {cell.namespace}" for cell in found if cell.verdict == "unknown"]


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="The number of a trial in that folder.")],
    directory: DirOption = None,
    backend: Annotated[
        Names | None, typer.Option(metavar="URL", help="A URL of that trial again, with its password. Repeatable.")
    ] = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Run a recorded trial's plan again: the same seed, workload, victim and strike."""
    from durabench import run as running
    from durabench.login import Logins
    from durabench.results import Folder

    progress = Progress()
    rows = running.replay(Folder.open(folder), trial, directory, progress.say, Logins(backend or (), password_file))
    recorded = {row["namespace"]: row for row in Folder.open(folder).trials() if row["trial"] == trial}
    for row in rows:
        before = recorded.get(row["namespace"])
        was = f" (recorded: {before['verdict']})" if before else ""
        print(f"{row['namespace']}: {row['verdict']}{was}: {row['why']}")
    verdicts = {row["verdict"] for row in rows}
    sys.exit(1 if "broken" in verdicts else COULD_NOT_TELL if "unknown" in verdicts else 0)
