"""What ``--format F[=FILE]`` asks for, and how a file is replaced whole: shared by all that shows a document."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console


PLAIN_WIDTH = 120
"""Columns of a table that is piped or written to a file."""


class OutputError(ValueError):
    """A format or a file that cannot be written as asked; the message names the mend (exit 2)."""


@dataclass(frozen=True)
class Output:
    """A format, and the file it goes to; None is stdout."""

    form: str
    path: Path | None


def outputs(asked: Sequence[str], forms: Collection[str]) -> list[Output]:
    """What ``--format F[=FILE]``, given any number of times, asks for. OutputError: none of ``forms``, or two without
    a file.
    """
    found = []
    for each in asked:
        form, _, name = each.partition("=")
        if form not in forms:
            message = f"no format {form!r}; there are {', '.join(forms)}"
            raise OutputError(message)
        found.append(Output(form, Path(name) if name else None))
    if sum(output.path is None for output in found) > 1:
        message = "only one --format can go to the screen; give the others a file: --format json=FILE"
        raise OutputError(message)
    return found


def replace_file(path: Path, content: str) -> None:
    """Write ``content`` to ``path``, all or nothing; OutputError where that cannot be."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(content)  # a pipe or /dev/stdout: there is nothing to replace
            return
        part = path.with_name(f".{path.name}.durabench")
        part.write_text(content)
        part.replace(path)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}; choose another file"
        raise OutputError(message) from None


def screen() -> Console:
    """Standard output: as wide as the terminal, as `PLAIN_WIDTH` where it is piped and nobody says COLUMNS."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def escaped(said: str) -> str:
    """A string in Markdown: what a server says must not become a table, a tag or a mark of ours."""
    for special in "\\|<>*`":
        said = said.replace(special, f"\\{special}" if special not in "<>" else {"<": "&lt;", ">": "&gt;"}[special])
    return " ".join(said.split())


def pipes(texts: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(texts)} |"
