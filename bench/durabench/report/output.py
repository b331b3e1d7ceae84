"""The formats of a document, where each is to go, and the block of a README that is kept true by `report --write`."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import TYPE_CHECKING

from durabench import output
from durabench.output import Output, OutputError, escaped, pipes, replace_file, screen
from durabench.redact import redact_all
from durabench.report import layout
from durabench.report.cells import FIELDS
from durabench.report.table import table, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from durabench.report.layout import Grid, Json

BEGIN, END = "<!-- durabench:begin -->", "<!-- durabench:end -->"


def render(document: Json, form: str) -> str:
    """The document as ``table``, ``json``, ``csv`` or ``markdown``. OutputError for another format."""
    if form not in FORMS:
        message = f"no format {form!r}; there are {', '.join(FORMS)}"
        raise OutputError(message)
    shown: Json = redact_all(dict(document))
    return FORMS[form](shown)


def outputs(asked: Sequence[str]) -> list[Output]:
    """What ``--format`` asks for, of `FORMS`. OutputError: unknown, or two without a file."""
    return output.outputs(asked, FORMS)


def write(document: Json, asked: Sequence[Output], console: Console | None = None) -> None:
    """Write every output; what has no file goes to stdout, a table through ``console`` where there is one."""
    for each in asked:
        if each.path is not None:
            replace_file(each.path, render(document, each.form))
        elif each.form == "table":
            table(redact_all(dict(document)), console or screen())
        else:
            print(render(document, each.form), end="")


def write_block(path: Path, document: Json) -> None:
    """Replace what stands between the two marks in a file by a document; all else keeps every byte.

    A mark counts only where it stands alone on its line, not indented as code is. OutputError unless there is exactly
    one pair.
    """
    lines = _content(path).splitlines(keepends=True)
    begins, ends = ([at for at, line in enumerate(lines) if line.rstrip() == mark.encode()] for mark in (BEGIN, END))
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        found = f"{len(begins)} and {len(ends)} were found{', in the wrong order' if begins > ends else ''}"
        message = f"{path} needs one {BEGIN} and below it one {END}, each alone on its line: {found}; nothing written"
        raise OutputError(message)
    (begin,), (end,) = begins, ends
    newline = lines[begin].removeprefix(lines[begin].rstrip(b"\r\n"))  # the file's own
    block = [b"", *render(document, "markdown").encode().split(b"\n")]
    replace_file(path, b"".join([*lines[: begin + 1], newline.join(block), newline, *lines[end:]]))


def _content(path: Path) -> bytes:
    """What is in a file. OutputError: it cannot be read, or is none (a pipe would be waited for)."""
    try:
        if path.is_file() or not path.exists():
            return path.read_bytes()
        why: str | None = "it is no file"
    except OSError as error:
        why = error.strerror
    message = f"{path} cannot be read: {why}"
    raise OutputError(message)


def _json(document: Json) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(document: Json) -> str:
    sink = StringIO()
    writer = csv.DictWriter(sink, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(cell[name]) for name in FIELDS} for cell in document["cells"])
    return sink.getvalue()


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _markdown(document: Json) -> str:
    parts = [*("\n".join(_grid(grid)) for grid in layout.grids(document)), *layout.LEGEND]
    lists = (
        layout.pick_lines(document),
        layout.findings(document),
        layout.not_judged(document),
        layout.header(document),
    )
    parts += ["\n".join(f"- {escaped(line)}" for line in lines) for lines in lists if lines]
    goal = layout.goal_line(document)
    return "\n\n".join([*parts, *([escaped(goal)] if goal else [])]) + "\n"


def _grid(grid: Grid) -> list[str]:
    names = ["setting", "tier", "part", *grid.columns, "put / floor, ms", "p99, ms", "bytes per payload byte"]
    title = escaped(f"{grid.title[:1].upper()}{grid.title[1:]}")
    lines = [f"{title}:", "", pipes(list(map(escaped, names))), pipes(["---"] * len(names))]
    for line in grid.lines:
        faults = ["<br>".join(map(escaped, parts)) for parts in line.faults]
        first = [f"{line.backend}:{line.setting}", line.tier, line.namespace]
        last = [line.p50, line.p99, line.bytes_per_byte]
        lines.append(pipes([*map(escaped, first), *faults, *map(escaped, last)]))
    return lines


FORMS: Mapping[str, Callable[[Json], str]] = {"table": text, "json": _json, "csv": _csv, "markdown": _markdown}
