"""The command line: what a person can ask, and what each mistake is answered with.

Exit status: 0 every promise held, 1 one is broken, 2 usage, 3 could not tell, 130 interrupted. Each command is a
function in a module beside this one.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

from durabench import fault as faults
from durabench import workload as workloads
from durabench.cli import around, compare, explore, plan, report, run, verify
from durabench.cli.discreet import discreet
from durabench.cli.screen import BROKEN, COULD_NOT_TELL, INTERRUPTED, USAGE, stop
from durabench_backends import registry
from durabench_backends.locate import MissingExtra, MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    name="durabench",
    help="Which acknowledged checkpoints does your storage lose when something dies, and what does safety cost?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run.run)
app.command(name="list")(around.list_)
app.command()(verify.verify)
app.command()(explore.explore)
app.command()(plan.plan)
app.command()(report.report)
app.command()(compare.compare)
app.command()(report.judge)
app.command()(report.replay)
app.command()(around.conform)
app.command()(around.doctor)
app.command(
    name="vm",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="A machine to try by hand: `vm up --backend NAME:SETTING`, `vm cut`, `vm reset`, `vm shell`, `vm down`; "
    "each has --help, and is the script of that name in vm/.",
)(around.vm_)


ENDS_S = 30.0
"""Longest that an interrupted command tidies up, whatever it meets; the next one sweeps what is left then."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A supervisor's stop, and a terminal that goes, leave as little behind as Ctrl-C."""


def main() -> None:
    """Run the command line; every error that a person can mend is one line."""
    try:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
                signal.signal(number, _interrupt)
        with discreet(), _one_line_errors():
            app()
    except KeyboardInterrupt:  # before or after all that
        sys.exit(INTERRUPTED)


class Ended(KeyboardInterrupt):
    """A signal asked for the end. A class of its own: Python remembers a KeyboardInterrupt that passed through `exec`,
    as dataclasses do on import, and ends by SIGINT instead of our status, although it was caught.
    """


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Tidy up, once: a second signal does not disturb that, and a clock bounds it."""
    for number in ENDING:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs inherit
    signal.signal(signal.SIGALRM, _cut_short)
    signal.setitimer(signal.ITIMER_REAL, ENDS_S)
    raise Ended


def _cut_short(_number: int, _frame: object) -> NoReturn:
    from durabench.process import kill_descendants

    kill_descendants()
    os._exit(INTERRUPTED)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    except Exception as error:
        _tell(error)


def _tell(error: Exception) -> NoReturn:
    """One line and the status that an error means. The classes are imported only now: a command that goes well does
    not wait for the modules of all others.
    """
    from durabench import device, output, profile, results, schedule
    from durabench import explore as exploring
    from durabench import plan as planning
    from durabench import report as reports
    from durabench import run as running
    from durabench import verify as verifying
    from durabench.login import NoLogin
    from durabench.process import HarnessError
    from durabench.redact import redact
    from durabench.report import gates
    from durabench_vm import RecordingError

    usage = (
        schedule.UsageError,
        profile.ProfileError,
        registry.UnknownBackend,
        faults.UnknownFault,
        workloads.UnknownWorkload,
        *results.REFUSALS,
        reports.ExpectationsError,
        output.OutputError,
        gates.GateError,
        verifying.UsageError,
        verifying.UnknownCheck,
        NoLogin,
        planning.TraceError,
        exploring.UsageError,
    )
    could_not = (
        *(running.Unsupported, results.ResultsFull, HarnessError, RecordingError, MissingExtra),
        *(MissingProgram, OSError),
        *(planning.NoRoom, device.Busy),
    )
    if isinstance(error, planning.NothingMeets):
        stop(redact(str(error)), BROKEN)
    if isinstance(error, usage):
        stop(redact(str(error)), USAGE)
    if isinstance(error, could_not):
        stop(redact(str(error)), COULD_NOT_TELL)
    # Python's own status for a crash is 1, which would say that a promise was broken.
    print(redact("".join(traceback.format_exception(error))), file=sys.stderr)
    stop("a mistake of durabench's own; please report it with the lines above", COULD_NOT_TELL)
