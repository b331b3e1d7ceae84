"""The command ``run``: write, kill, reload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from durabench.cli.options import (
    DirOption,
    ExpectOption,
    FormatOption,
    Names,
    PasswordFileOption,
    seconds,
    size_bytes,
)
from durabench.cli.screen import INTERRUPTED, Progress, stop


def run(
    profile: Annotated[str, typer.Option(help="quick, full, or a TOML file.")] = "quick",
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long to run, such as 150s or 10m, instead of a number of trials."),
    ] = None,
    backend: Annotated[
        Names | None, typer.Option(metavar="NAME[:SETTING]|URL", help="Repeatable; without a setting all of them.")
    ] = None,
    metadata: Annotated[
        Names | None, typer.Option(metavar="NAME[:SETTING]", help="Where metadata is kept, with --data for the data.")
    ] = None,
    data: Annotated[Names | None, typer.Option(metavar="NAME[:SETTING]", help="Where data is kept.")] = None,
    fault: Annotated[
        Names | None, typer.Option(metavar="NAME", help="Repeatable; `durabench list` names them.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="agent, append, overwrite, rotate, sharded, whole, or package.module:Class."),
    ] = None,
    writers: Annotated[int | None, typer.Option(min=1, max=64)] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="So many trials of every cell, however long it takes.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Orders everything that is drawn (default: a new one, printed).")
    ] = None,
    lane: Annotated[str | None, typer.Option(help="here, guest, swap or loop.")] = None,
    filesystem: Annotated[
        str | None, typer.Option(metavar="FS[:OPTIONS]", help="File system of the machine that is reset.")
    ] = None,
    settle: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds between the last acknowledgement and the strike.")
    ] = 0.0,
    flush_delay: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How late the power disk answers flushes (slow-drive: 4s unless given)."),
    ] = None,
    server_kill: Annotated[
        str, typer.Option(metavar="tree|main", help="Kill the server's whole process tree, or its main process only.")
    ] = "tree",
    max_recordings: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="How much the recordings of losing trials may take together, such as 4MiB."),
    ] = None,
    directory: DirOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's own result folder, new or empty.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with an unfinished run, as it was begun.")
    ] = None,
    password_file: PasswordFileOption = None,
    expect: ExpectOption = None,
    driver: Annotated[
        str,
        typer.Option(
            metavar="forked|fresh", help="Fork drivers from a warmed parent, or start an interpreter for each."
        ),
    ] = "forked",
    form: FormatOption = None,
) -> None:
    """Write, kill, reload: what each backend loses on this disk, what it costs, and which to pick."""
    from durabench import report
    from durabench import run as running
    from durabench.schedule import Asked, UsageError

    for value, known, what in (
        (server_kill, ("tree", "main"), "--server-kill"),
        (driver, ("forked", "fresh"), "--driver"),
    ):
        if value not in known:
            message = f"{what} is {' or '.join(known)}, not {value!r}"
            raise UsageError(message)
    if password_file and not resume:
        message = "--password-file is for --resume; a URL has its password in it, or in its client's own variables"
        raise UsageError(message)
    outputs = report.outputs(form or ["table"])
    expected = report.load_expectations(expect)
    progress = Progress()
    asked = Asked(
        backends=tuple(backend or ()),
        metadata=tuple(metadata or ()),
        data=tuple(data or ()),
        faults=tuple(fault or ()),
        workload=workload,
        writers=writers,
        trials=trials,
        budget_s=None if budget is None else seconds(budget),
        seed=running.new_seed() if seed is None else seed,
        lane=lane,
        filesystem=filesystem,
        settle_s=settle,
        flush_delay_s=0.0 if flush_delay is None else seconds(flush_delay),
        server_kill=server_kill,
        recordings_max_bytes=None if max_recordings is None else size_bytes(max_recordings),
    )
    options = running.Options(asked, profile, directory, out, resume, driver, password_file)
    ran = running.run(options, progress.say, progress)
    if ran.interrupted:
        stop(f"interrupted; what was recorded is kept: durabench run --resume {ran.folder.path}", INTERRUPTED)
    document = report.document([ran.folder], expected=expected, not_run=ran.not_run)
    status = report.exit_status(document, doubts=ran.doubts)
    ran.folder.finish(status, doubts=list(ran.doubts), not_run=list(ran.not_run), recordings_not_kept=ran.not_kept)
    for doubt in ran.doubts:
        progress.say(f"could not tell: {doubt}")
    report.write({**document, "results": str(ran.folder.path)}, outputs)
    if not any(output.form == "json" and output.path is None for output in outputs):
        print(ran.folder.path)
    sys.exit(status)
