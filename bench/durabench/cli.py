"""The command line: what a person can ask, and what each mistake is answered with.

Exit status: 0 every promise held, 1 one is broken, 2 usage, 3 could not tell, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from durabench import fault as faults
from durabench import workload as workloads
from durabench_backends import registry
from durabench_backends.locate import MissingExtra, MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durabench.results import Folder

USAGE, COULD_NOT_TELL, INTERRUPTED = 2, 3, 130
PROGRESS_EVERY_S = 5.0

app = typer.Typer(
    name="durabench",
    help="Which acknowledged checkpoints does your storage lose when something dies, and what does safety cost?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
talk = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; every error that a person can mend is one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a supervisor's stop leaves as little behind as Ctrl-C
    with _one_line_errors():
        app()


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from durabench import profile, report, results, run, schedule
    from durabench.process import HarnessError
    from durabench.redact import redact

    usage = (
        schedule.UsageError,
        profile.ProfileError,
        registry.UnknownBackend,
        faults.UnknownFault,
        workloads.UnknownWorkload,
        *results.REFUSALS,
        report.OutputError,
        report.ExpectationsError,
    )
    could_not = (run.Unsupported, results.ResultsFull, HarnessError, MissingExtra, MissingProgram)
    try:
        yield
    except usage as error:
        _stop(redact(str(error)), USAGE)
    except could_not as error:
        _stop(redact(str(error)), COULD_NOT_TELL)
    except KeyboardInterrupt:
        _stop("interrupted", INTERRUPTED)
    except OSError as error:
        _stop(redact(str(error)), COULD_NOT_TELL)
    except Exception:
        # Python's own status for a crash is 1, which would say that a promise was broken.
        import traceback

        print(redact(traceback.format_exc()), file=sys.stderr)
        _stop("a mistake of durabench's own; please report it with the lines above", COULD_NOT_TELL)


def _stop(message: str, status: int) -> NoReturn:
    print(f"durabench: {message}", file=sys.stderr)
    sys.exit(status)


class _Progress:
    """One line that is rewritten on a terminal, a line every five seconds elsewhere; always on stderr."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def say(self, text: str) -> None:
        from durabench.redact import redact

        self._clear()
        talk.print(redact(text), markup=False)

    def __call__(self, done: int, broken: int, last: str) -> None:
        now = time.monotonic()
        line = f"{now - self._began:5.0f} s  {done} trials, {broken} broken; last: {last}"
        if talk.is_terminal:
            talk.file.write(f"\r\x1b[2K{line[: talk.width - 1]}")
            talk.file.flush()
        elif now - self._told >= PROGRESS_EVERY_S:
            self._told = now
            talk.print(line, markup=False)

    def _clear(self) -> None:
        if talk.is_terminal:
            talk.file.write("\r\x1b[2K")


DirOption = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="The disk under test (default: beside the results).")
]
FormatOption = Annotated[
    list[str] | None,
    typer.Option(
        "--format", metavar="F[=FILE]", help="table, json, csv or markdown; repeatable, at most one without a file."
    ),
]
Names = list[str]


@app.command()
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
        typer.Option(metavar="NAME", help="agent, append, overwrite, rotate, sharded, or package.module:Class."),
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
        str | None, typer.Option(metavar="TIME", help="How late the power disk answers flushes.")
    ] = None,
    server_kill: Annotated[
        str, typer.Option(metavar="tree|main", help="Kill the server's whole process tree, or its main process only.")
    ] = "tree",
    directory: DirOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's own result folder, new or empty.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with an unfinished run, as it was begun.")
    ] = None,
    expect: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Known findings (default: the project's own).")
    ] = None,
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
    outputs = report.outputs(form or ["table"])
    expected = report.load_expectations(expect)
    progress = _Progress()
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
    )
    options = running.Options(asked, profile, directory, out, resume, driver)
    ran = running.run(options, progress.say, progress)
    if ran.interrupted:
        _stop(f"interrupted; what was recorded is kept: durabench run --resume {ran.folder.path}", INTERRUPTED)
    document = report.document([ran.folder], expected=expected, not_run=ran.not_run)
    status = report.exit_status(document, doubts=ran.doubts)
    ran.folder.finish(status, doubts=list(ran.doubts), not_run=list(ran.not_run))
    for doubt in ran.doubts:
        progress.say(f"could not tell: {doubt}")
    report.write({**document, "results": str(ran.folder.path)}, outputs)
    if not any(output.form == "json" and output.path is None for output in outputs):
        print(ran.folder.path)
    sys.exit(status)


def seconds(text: str) -> float:
    """``150s``, ``10m``, ``1h`` or plain seconds. UsageError otherwise."""
    from durabench.schedule import UsageError

    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        found = float(number) * unit
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        message = f"{text!r} is no time; write 150s, 10m or 1h"
        raise UsageError(message)
    return found


@app.command(name="list")
def list_() -> None:
    """Backends with their settings, promises and tiers; faults; workloads; what is missing here."""
    from durabench import inventory
    from durabench.report.table import screen

    inventory.show(screen())


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Result folders; several are shown together, by host.")
    ],
    form: FormatOption = None,
    expect: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Known findings (default: the project's own).")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="README.md", help="Replace the table between the durabench marks in this file."),
    ] = None,
) -> None:
    """Show recorded results again; runs nothing."""
    from durabench import report as reports
    from durabench.results import Folder

    folders: list[Folder] = [Folder.open(directory) for directory in directories]
    outputs = reports.outputs(form or ["table"])
    document = reports.document(folders, expected=reports.load_expectations(expect))
    if write is not None:
        reports.write_block(write, document)
    reports.write(document, outputs)


@app.command()
def judge(directory: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Judge every trial again from its stored history; runs nothing. Exit 3 if a judgement differs from the recorded
    one.
    """
    from durabench import run as running
    from durabench.results import Folder

    try:
        pairs = running.judge_again(Folder.open(directory))
    except FileNotFoundError as error:
        _stop(f"{error}: its trial cannot be judged again", COULD_NOT_TELL)
    broken = sum(again["verdict"] == "broken" and again["control"] is None for _, again in pairs)
    different = [(was, now) for was, now in pairs if (was["verdict"], was["lost"]) != (now["verdict"], now["lost"])]
    for was, now in different:
        print(f"trial {was['trial']} {was['namespace']}: recorded {was['verdict']}, now {now['verdict']}: {now['why']}")
    print(f"{len(pairs)} judgements: {len(different)} differ from what was recorded, {broken} broken")
    sys.exit(COULD_NOT_TELL if different else int(broken > 0))


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="The number of a trial in that folder.")],
    directory: DirOption = None,
) -> None:
    """Run a recorded trial's plan again: the same seed, workload, victim and strike."""
    from durabench import run as running
    from durabench.results import Folder

    progress = _Progress()
    rows = running.replay(Folder.open(folder), trial, directory, progress.say)
    recorded = {row["namespace"]: row for row in Folder.open(folder).trials() if row["trial"] == trial}
    for row in rows:
        before = recorded.get(row["namespace"])
        was = f" (recorded: {before['verdict']})" if before else ""
        print(f"{row['namespace']}: {row['verdict']}{was}: {row['why']}")
    verdicts = {row["verdict"] for row in rows}
    sys.exit(1 if "broken" in verdicts else COULD_NOT_TELL if "unknown" in verdicts else 0)


@app.command()
def conform(name: Annotated[str, typer.Argument(metavar="NAME[:SETTING]")], directory: DirOption = None) -> None:
    """Check in peacetime that a backend keeps the contract, on each of its settings."""
    from durabench import conformity

    sys.exit(conformity.show(name, directory, Console(highlight=False)))


@app.command()
def doctor() -> None:
    """What this machine has for trials, what is missing, and the line that installs it."""
    from durabench import inventory

    sys.exit(inventory.doctor(Console(highlight=False)))


@app.command(
    name="vm",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="A machine to try by hand: `vm up --backend NAME:SETTING`, `vm cut`, `vm reset`, `vm shell`, `vm down`; "
    "each has --help, and is the script of that name in vm/.",
)
def vm_(context: typer.Context) -> None:
    """Hand over to the machine's own commands, with a backend's programs where one is named."""
    from durabench import session

    sys.exit(session.main(context.args))
