"""The formats of a document, where each is to go, and the block of a README that is kept true by `report --write`."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from durabench.redact import redact_all
from durabench.report import layout
from durabench.report.cells import FIELDS
from durabench.report.table import screen, table, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from durabench.report.layout import Grid, Json

BEGIN, END = "<!-- durabench:begin -->", "<!-- durabench:end -->"


class OutputError(ValueError):
    """A format or a file that cannot be written as asked; the message names the mend (exit 2)."""


@dataclass(frozen=True)
class Output:
    """A format, and the file it goes to; None is stdout."""

    form: str
    path: Path | None


def render(document: Json, form: str) -> str:
    """The document as ``table``, ``json``, ``csv`` or ``markdown``. OutputError for another format."""
    if form not in FORMS:
        message = f"no format {form!r}; there are {', '.join(FORMS)}"
        raise OutputError(message)
    shown: Json = redact_all(dict(document))
    return FORMS[form](shown)


def outputs(asked: Sequence[str]) -> list[Output]:
    """What ``--format F[=FILE]``, given any number of times, asks for. OutputError: unknown, or two without a file."""
    found = []
    for each in asked:
        form, _, name = each.partition("=")
        if form not in FORMS:
            message = f"no format {form!r}; there are {', '.join(FORMS)}"
            raise OutputError(message)
        found.append(Output(form, Path(name) if name else None))
    if sum(output.path is None for output in found) > 1:
        message = "only one --format can go to the screen; give the others a file: --format json=FILE"
        raise OutputError(message)
    return found


def write(document: Json, asked: Sequence[Output], console: Console | None = None) -> None:
    """Write every output; what has no file goes to stdout, a table through ``console`` where there is one."""
    for output in asked:
        if output.path is not None:
            _replace(output.path, render(document, output.form))
        elif output.form == "table":
            table(redact_all(dict(document)), console or screen())
        else:
            print(render(document, output.form), end="")


def write_block(path: Path, document: Json) -> None:
    """Replace what stands between the two marks in a file by a document. OutputError without the marks."""
    try:
        whole = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise OutputError(message) from None
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after:
        message = f"{path} needs one {BEGIN} and below it one {END}, on lines of their own"
        raise OutputError(message)
    _replace(path, f"{before}{BEGIN}\n\n{render(document, 'markdown')}\n{END}{after}")


def _replace(path: Path, content: str) -> None:
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
    parts += ["\n".join(f"- {_escaped(line)}" for line in lines) for lines in lists if lines]
    goal = layout.goal_line(document)
    return "\n\n".join([*parts, *([_escaped(goal)] if goal else [])]) + "\n"


def _grid(grid: Grid) -> list[str]:
    names = ["setting", "tier", "part", *grid.columns, "put / floor, ms", "p99, ms", "bytes per payload byte"]
    lines = [f"{grid.title[:1].upper()}{grid.title[1:]}:", "", _pipes(names), _pipes(["---"] * len(names))]
    for line in grid.lines:
        faults = ["<br>".join(map(_escaped, parts)) for parts in line.faults]
        first = [f"{line.backend}:{line.setting}", line.tier, line.namespace]
        last = [line.p50, line.p99, line.bytes_per_byte]
        lines.append(_pipes([*map(_escaped, first), *faults, *map(_escaped, last)]))
    return lines


def _pipes(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escaped(said: str) -> str:
    """What a server says must not become a table, a tag or a mark of ours."""
    for special in "\\|<>*`":
        said = said.replace(special, f"\\{special}" if special not in "<>" else {"<": "&lt;", ">": "&gt;"}[special])
    return " ".join(said.split())


FORMS: Mapping[str, Callable[[Json], str]] = {"table": text, "json": _json, "csv": _csv, "markdown": _markdown}
