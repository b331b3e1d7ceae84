"""Options that several commands share, and how a time is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

DirOption = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="The disk under test (default: beside the results).")
]
FormatOption = Annotated[
    list[str] | None,
    typer.Option(
        "--format", metavar="F[=FILE]", help="table, json, csv or markdown; repeatable, at most one without a file."
    ),
]
ExpectOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Known findings (default: the project's own).")]
SurviveOption = Annotated[
    str, typer.Option(metavar="client|server|machine|drive", help="What may die; `power` is `drive`.")
]
MaxLossOption = Annotated[
    str, typer.Option(metavar="TIME", help="How much of what was acknowledged may then be lost: 0, or 2s.")
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Its first line is the password of a URL of that run: results hold none. See also README."
    ),
]
Names = list[str]


def seconds(text: str) -> float:
    """``20ms``, ``150s``, ``10m``, ``1h`` or plain seconds. UsageError otherwise."""
    return _measured(text, {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}, "time; write 20ms, 150s, 10m or 1h")


def size_bytes(text: str) -> int:
    """``512``, ``64KiB``, ``4MiB``, ``1GiB``. UsageError otherwise."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "B": 1}
    return int(_measured(text, units, "size; write 512, 64KiB, 4MiB or 1GiB"))


def _measured(text: str, units: Mapping[str, float], mend: str) -> float:
    """A number with one of ``units``, looked for in their order, or with none."""
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        found = float(text.removesuffix(unit)) * units.get(unit, 1.0)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        from durabench.schedule import UsageError

        message = f"{text!r} is no {mend}"
        raise UsageError(message)
    return found
