"""What ``--format F[=FILE]`` asks for, and how a file is replaced whole: shared by all that shows a document."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
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


def replace_file(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path``, all or nothing; OutputError where that cannot be.

    A file that is there keeps its mode and its owner. Through a link its target is replaced, and the link stays.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or /dev/stdout: there is nothing to replace
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}; choose another file"
        raise OutputError(message) from None


def _replace(target: Path, data: bytes) -> None:
    if target.is_symlink():  # links that go round in a circle end nowhere
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    # Made exclusively, under a name that nobody can have laid a link at.
    part = target.with_name(f".{secrets.token_hex(8)}.durabench")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if target.exists():
            _make_like(part, target.stat())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _make_like(part: Path, before: os.stat_result) -> None:
    if hasattr(os, "chown"):
        with suppress(PermissionError):  # somebody else's file in a folder of ours: the new one is ours
            os.chown(part, before.st_uid, before.st_gid)
    part.chmod(stat.S_IMODE(before.st_mode))


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
