"""How a comparison is shown: what got worse first, everything with its counts; as table, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import json
from collections import Counter
from io import StringIO
from typing import TYPE_CHECKING, Any

from durabench.output import escaped, pipes, replace_file
from durabench.redact import redact_all
from durabench.report.cells import FIELDS
from durabench.report.compare import CHANGES, COMPARISON, MATCHED_BY, new_doubts
from durabench.report.layout import cell_text, number, size_text
from durabench.row import label as label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from durabench.output import Output

    Json = Mapping[str, Any]

QUIET = ("same", "not judged")
"""What is counted and not listed."""
_STATUS = {
    0: "no promise is newly broken and no gate failed",
    1: "a promise is newly broken, or a gate failed",
    3: "could not tell: something was refused, untold, judged in A only, or not comparable",
}


def render(document: Json, form: str) -> str:
    """The document of a comparison in one of `FORMS`."""
    shown: Json = redact_all(dict(document))
    return FORMS[form](shown)


def write(document: Json, asked: Sequence[Output]) -> None:
    """Write every output; what has no file goes to stdout."""
    for each in asked:
        if each.path is None:
            print(render(document, each.form), end="")
        else:
            replace_file(each.path, render(document, each.form))


# --- sentences, before any format's syntax


def sides(document: Json) -> list[str]:
    """Which runs are A and which B, and in what they differ."""
    lines = []
    for name in ("a", "b"):
        side = document[name]
        runs = "; ".join(f"{run['name']} ({run['trials']:,} trials)" for run in side["runs"])
        lines.append(f"{name.upper()}: {runs} on host {side['machine'].get('id')}")
    lines += [f"different: {line}" for line in document["differences"]]
    return lines + [f"doubt of B: {doubt}" for doubt in new_doubts(document)]


def summary(document: Json) -> str:
    """How many cells became what, and how many tests that took."""
    counts = Counter(cell["change"] for cell in document["cells"])
    said = ", ".join(f"{counts[change]} {change}" for change in CHANGES if counts[change])
    tests = document["tests"]
    whys = Counter(cell["tests_why"] for cell in document["cells"] if cell["tests_why"])
    untested = "".join(f"; not tested in {count} cells: {why}" for why, count in whys.items())
    adjusted = f"{tests} tests, so p is adjusted for {tests} (Holm)"
    return f"{len(document['cells'])} cells: {said or 'none'}; {adjusted}{untested}"


def gate_lines(document: Json) -> list[str]:
    """Each gate, and what failed it or could not be told."""
    lines = []
    for gate in document["gates"]:
        word = "failed" if gate["failed"] else "untold" if gate["untold"] else "held"
        lines.append(f"gate {gate['gate']}: {word}")
        lines += [f"  met by {name}" for name in gate["failed"]]
        lines += [f"  cannot tell: {name}" for name in _some(gate["untold"])]
    return lines


def _some(names: Sequence[str], most: int = 8) -> list[str]:
    return list(names) if len(names) <= most else [*names[:most], f"and {len(names) - most} more"]


def cell_rows(document: Json) -> Iterator[list[str]]:
    """What changed, was refused or is on one side only: change, cell, A, B, p, why."""
    for cell in document["cells"]:
        if cell["change"] not in QUIET:
            p = "" if cell["p"] is None else f"{number(cell['p'])} ({number(cell['p_holm'])})"
            name = f"{label_of(cell)}, {cell['fault']}, {cell['namespace']}"
            texts = [" ".join(cell_text(cell[side])) for side in ("a", "b")]
            yield [cell["change"], name, *texts, p, cell["why"] or ""]


def latency_rows(document: Json) -> Iterator[list[str]]:
    """Both medians, their difference with its interval, and what that means."""
    for cell in document["cells"]:
        if cell["put_p50_change_ms"] is not None:
            low, high = cell["put_p50_change_low_ms"], cell["put_p50_change_high_ms"]
            interval = "" if low is None else f" [{_signed(low)}, {_signed(high)}]"
            yield [
                f"{label_of(cell)}, {cell['namespace']}",
                *(number(cell[side]["put_p50_ms"]) for side in ("a", "b")),
                f"{_signed(cell['put_p50_change_ms'])}{interval}",
                cell["latency"] or f"cannot tell: {cell['latency_why']}",
            ]


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def crossing_rows(document: Json) -> Iterator[list[str]]:
    """Every crossing: what became of it, where it was and is."""
    for one in document["crossings"] or ():
        yield [
            one["change"],
            f"{one['pair']} ({one['payload']})",
            *map(_crossing, (one["a"], one["b"])),
            one["why"] or "",
        ]


def _crossing(one: Json | None) -> str:
    if one is None or one.get("at_bytes") is None:
        return "–"
    ends = [one.get("low"), one.get("high")]
    said = size_text(round(one["at_bytes"]))
    return said if None in ends else f"{said} [{size_text(round(ends[0]))}, {size_text(round(ends[1]))}]"  # type: ignore[arg-type]


TABLES: Sequence[tuple[Sequence[str], Callable[[Json], Iterator[list[str]]]]] = (
    (("change", "cell", "A", "B", "p (Holm)", "why"), cell_rows),
    (("put, median ms", "A", "B", "B less A [95 %]", ""), latency_rows),
    (("change", "crossing", "A", "B", "why"), crossing_rows),
)


# --- formats


def _table(document: Json) -> str:
    lines = [*sides(document), "", summary(document), *gate_lines(document)]
    for names, rows_of in TABLES:
        rows = [list(names), *rows_of(document)]
        if len(rows) > 1:
            widths = [max(len(row[at]) for row in rows) for at in range(len(names) - 1)]
            lines.append("")
            for row in rows:
                cells = [each.ljust(width) for each, width in zip(row, widths, strict=False)]
                lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join([*lines, "", _STATUS[document["exit_status"]]]) + "\n"


def _markdown(document: Json) -> str:
    parts = ["\n".join(f"- {escaped(line)}" for line in sides(document)), escaped(summary(document))]
    gates = gate_lines(document)
    if gates:
        parts.append("\n".join(f"- {escaped(line.strip())}" for line in gates))
    for names, rows_of in TABLES:
        rows = list(rows_of(document))
        if rows:
            head = [pipes(names), pipes(["---"] * len(names))]
            parts.append("\n".join([*head, *(pipes(list(map(escaped, row))) for row in rows)]))
    return "\n\n".join([*parts, _STATUS[document["exit_status"]]]) + "\n"


def _json(document: Json) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(document: Json) -> str:
    """A line per pair: its key, the comparison, then every other field of both cells as ``a_…`` and ``b_…``."""
    key = [*MATCHED_BY, "lane", "host"]
    both = [name for name in FIELDS if name not in key]
    sink = StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([*key, *COMPARISON, *(f"{side}_{name}" for side in "ab" for name in both)])
    for cell in document["cells"]:
        values = [cell[name] for name in (*key, *COMPARISON)]
        values += [None if cell[side] is None else cell[side][name] for side in "ab" for name in both]
        writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in values])
    return sink.getvalue()


FORMS: Mapping[str, Callable[[Json], str]] = {"table": _table, "json": _json, "csv": _csv, "markdown": _markdown}
