"""What stands around a run: ``list``, ``conform``, ``doctor`` and the machine to try by hand, ``vm``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from durabench.cli.options import DirOption


def list_() -> None:
    """Backends with their settings, promises and tiers; faults; workloads; what is missing here."""
    from durabench import inventory
    from durabench.output import screen

    inventory.show(screen())


def conform(name: Annotated[str, typer.Argument(metavar="NAME[:SETTING]")], directory: DirOption = None) -> None:
    """Check in peacetime that a backend keeps the contract, on each of its settings."""
    from durabench import conformity

    sys.exit(conformity.show(name, directory, Console(highlight=False)))


def doctor(directory: DirOption = None) -> None:
    """What in this machine will spoil numbers or hide losses, what is missing, and the line that mends it.

    Exit status: 0, or 3 where a loss could go unseen or something is missing.
    """
    from durabench import doctor as doctoring
    from durabench.run import LOCAL

    sys.exit(doctoring.show(Console(highlight=False, soft_wrap=True), directory or LOCAL))


def vm_(context: typer.Context) -> None:
    """Hand over to the machine's own commands, with a backend's programs where one is named."""
    from durabench import session

    sys.exit(session.main(context.args))
