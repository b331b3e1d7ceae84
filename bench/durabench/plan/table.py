"""A plan as a person reads it: the answer first, then the curves, cost, crossings, layouts, and why the runner-up lost.

One list of sentences and grids, put into the syntax of a terminal or of Markdown; CSV is the sweep, a row per size.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from durabench.crossing import NONE_RELIABLE
from durabench.output import PLAIN_WIDTH, OutputError, escaped, pipes
from durabench.plan.document import losses_of
from durabench.plan.recommend import PAYLOAD
from durabench.plan.sizes import text as size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    Json = Mapping[str, Any]

DASH = "–"
PROMISED = (
    "whether the promises that meet the goal are kept: no machine was reset and no power cut here; "
    "durabench run does that"
)
CSV_FIELDS = (
    "label",
    "backend",
    "setting",
    "payload",
    "size_bytes",
    "trials",
    "puts",
    "put_p50_ns",
    "put_p50_low_ns",
    "put_p50_high_ns",
    "put_p99_ns",
    "put_max_ns",
    "reload_warm_p50_ns",
    "reload_cold_p50_ns",
    "writer_bytes_per_put",
    "device_bytes_per_put",
    "at_rest_per_payload_byte",
    "compacted_per_payload_byte",
)


@dataclass(frozen=True)
class Grid:
    """A title, headings, and rows of texts; the first ``names`` columns are words, the others figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1


@dataclass(frozen=True)
class Section:
    """Sentences under a heading; the first section has none, and its first sentence is the answer."""

    heading: str | None
    lines: Sequence[str]


def sections(document: Json) -> list[Section | Grid]:
    """The whole plan, in the order in which it is read."""
    parts: list[Section | Grid] = [
        Section(None, [answer(document), *_cautions(document)]),
        Section(None, _header(document)),
        *_curves(document),
        _cost(document),
        Section("crossings", _crossings(document)),
        *_layouts(document),
        Section("how many times less split writes than whole", _times_less(document)),
        Section("what the layouts lost", _losses(document)),
        Section("why not", _why_not(document)),
        Section("not measured", _not_measured(document)),
    ]
    return [part for part in parts if (part.rows if isinstance(part, Grid) else part.lines)]


def answer(document: Json) -> str:
    """The recommendation in one sentence, or why there is none."""
    found = document["recommendation"]
    if found:
        return str(found["answer"])
    return f"no recommendation: {document['not_ranked_why'] or 'the plan was not finished'}"


# --- formats --------------------------------------------------------------------------------------------------------


def render(document: Json, form: str) -> str:
    """The plan as ``table`` (plain text), ``markdown`` or ``csv``. OutputError for another format."""
    forms: Mapping[str, Callable[[Json], str]] = {"table": text, "markdown": markdown, "csv": csv_text}
    if form not in forms:
        raise OutputError(f"no format {form!r}; there are {', '.join(forms)}")
    return forms[form](document)


def show(document: Json, console: Console) -> None:
    """Print the plan: rich where there is a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for number, part in enumerate(sections(document)):
        if number:
            console.print()
        if isinstance(part, Section):
            if part.heading:
                console.print(Text(f"{part.heading}:", style="bold"))
            for at, line in enumerate(part.lines):
                style = "bold" if number == at == 0 else ""
                console.print(Text(line, style=style), soft_wrap=True)
            continue
        console.print(Text(part.title), soft_wrap=True)
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
        for at, name in enumerate(part.columns):
            made.add_column(name, justify="left" if at < part.names else "right", no_wrap=at < part.names)
        for row in part.rows:
            made.add_row(*(Text(cell) for cell in row))
        console.print(made)


def text(document: Json, width: int = PLAIN_WIDTH) -> str:
    """The same as plain text."""
    from rich.console import Console

    sink = StringIO()
    show(document, Console(file=sink, width=width, no_color=True, highlight=False, emoji=False, markup=False))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def markdown(document: Json) -> str:
    """The same in Markdown."""
    blocks = []
    for number, part in enumerate(sections(document)):
        if isinstance(part, Grid):
            rule = ["---"] * part.names + ["---:"] * (len(part.columns) - part.names)
            rows = [pipes([escaped(cell) for cell in row]) for row in part.rows]
            blocks.append("\n".join([f"**{escaped(part.title)}**", "", pipes(part.columns), pipes(rule), *rows]))
        elif number == 0:
            blocks.append("\n\n".join([f"**{escaped(part.lines[0])}**", *map(escaped, part.lines[1:])]))
        else:
            heading = [f"**{part.heading}**", ""] if part.heading else []
            blocks.append("\n".join([*heading, *(f"- {escaped(line)}" for line in part.lines)]))
    return "\n\n".join(blocks) + "\n"


def csv_text(document: Json) -> str:
    """The sweep, a row per candidate, payload and size; nothing where nothing was measured."""
    sink = StringIO()
    writer = csv.DictWriter(sink, CSV_FIELDS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(document["sweep"])
    return sink.getvalue()


# --- sentences ------------------------------------------------------------------------------------------------------


def _cautions(document: Json) -> list[str]:
    found = document["recommendation"] or {}
    return [f"but: {line}" for line in found.get("cautions", ())]


def _header(document: Json) -> list[str]:
    goal, machine = document["goal"], document["machine"]
    asked = [f"survive {goal['survive']}", f"lose at most {goal['max_loss_s']:g} s"]
    asked += [f"p99 at most {goal['max_p99_ms']:g} ms"] if goal["max_p99_ms"] is not None else []
    most = goal["max_bytes_per_step"]
    asked += [f"at most {size_text(most)} a step"] if most is not None else []
    lines = [f"goal: {', '.join(asked)}"]
    disk = " ".join(str(part) for part in (machine.get("filesystem"), machine.get("mount_options")) if part)
    lines.append(f"host {machine.get('id')}, disk under test: {disk or DASH}, seed {document['seed']}")
    for size, floor in sorted(document["floor"].items(), key=lambda item: int(item[0])):
        moved = f"moved from {_ms(floor['lowest_ns'])} to {_ms(floor['highest_ns'])}"
        lines.append(f"floor: a flush of {size_text(int(size))} takes {_ms(floor['p50_ns'])} (median); it {moved}")
    own = document.get("own_sizes")
    if own:
        spread = ", ".join(f"{name} {size_text(size)}" for name, size in own["quantiles"].items())
        lines.append(f"sizes of {own['source']}: {own['values']:,} values, {spread}")
    return lines


def _crossings(document: Json) -> list[str]:
    if not document["ranked"]:
        return [f"none is told: {document['not_ranked_why']}"]
    return [crossing_line(one) for one in document["crossings"]]


def crossing_line(one: Json) -> str:
    """One crossing in words, its cross-check beside it where the two disagree."""
    check = ""
    if one.get("affine_disagrees"):
        said = f"at {size_text(one['affine_bytes'])}" if one["affine_bytes"] is not None else "nowhere in the range"
        check = f"; fixed cost and bandwidth, as straight lines, cross {said}"
    if one["reliable"]:
        interval = f"{size_text(one['low'])} to {size_text(one['high'])}"
        return (
            f"{one['below']} is faster below {size_text(one['at_bytes'])} ({interval}), {one['above']} above it{check}"
        )
    if one["below"] is not None:
        other = one["b"] if one["below"] == one["a"] else one["a"]
        return f"{one['below']} is faster than {other} at every size measured{_range(one)}{check}"
    why = str(one["why"] or "not told").replace(NONE_RELIABLE, f"{NONE_RELIABLE}{_range(one)}")
    return f"{one['a']} and {one['b']}: {why}{check}"


def _range(one: Json) -> str:
    """The sizes that both have often enough."""
    if one.get("largest_bytes") is None:
        return ""
    return f" ({size_text(one['smallest_bytes'])} to {size_text(one['largest_bytes'])})"


def _times_less(document: Json) -> list[str]:
    """By payload, by the writers' own count and by the device's, in all and in a step without new data."""
    lines = []
    for entry in document["split"]:
        ratios = entry.get("ratios") or {}
        parts = [
            f"{said} {', '.join(figures)}"
            for when, said in (("total", "in all"), ("unchanged", "in a step without new data"))
            if (figures := _times(ratios, when))
        ]
        if parts:
            lines.append(f"{entry['trace']}, {_where(entry)}: {'; '.join(parts)}")
    return lines


def _times(ratios: Json, when: str) -> list[str]:
    names = {"payload": "payload", "writer": "writers", "device": "device"}
    known = {name: ratios.get(f"{when}_{name}") for name in names}
    return [f"{_number(known[name])} ({said})" for name, said in names.items() if known[name] is not None]


def _where(entry: Json) -> str:
    return str(entry["metadata"]) if entry["metadata"] == entry["data"] else f"{entry['metadata']}, {entry['data']}"


LOST = {"lost": "lost", "stale": "stale", "damaged_acked": "damaged", "resurrected": "resurrected"}


def _losses(document: Json) -> list[str]:
    """Per arrangement and fault: what of the acknowledged is gone, metadata whose data is gone, what did not come up,
    and what could not be judged.
    """
    lines = []
    for one in losses_of(document):
        lost = [f"{one['lost']:,} lost"]
        lost += [f"{one[name]:,} {said}" for name, said in LOST.items() if name != "lost" and one.get(name)]
        lost.append(f"{one['dangling']:,} dangling in {one['trials']} trials")
        lost += [f"{one['trials_unavailable']} not up again"] if one.get("trials_unavailable") else []
        lost += [f"{one['trials_unknown']} not judged: {one['unknown_why']}"] if one.get("trials_unknown") else []
        guilty = ", ".join(each["label"] for each in one.get("guilty", ()))
        verdict = one["verdict"] + (f" by {guilty}" if guilty and one["metadata"] != one["data"] else "")
        lines.append(f"{_where(one)}, {one['layout']}, {one['fault']}: {verdict}, {', '.join(lost)}")
    return list(dict.fromkeys(lines))


def _why_not(document: Json) -> list[str]:
    found = document["recommendation"] or {}
    lines = [found["why_runner_up_lost"]] if found.get("why_runner_up_lost") else []
    tied = [name for name in found.get("tied", ()) if not lines or not lines[0].startswith(f"{name}:")]
    lines += [f"nor told apart by speed: {'; '.join(tied)}"] if tied else []
    excluded = found.get("excluded")
    if excluded is None:
        excluded = [one for one in document["candidates"] if not one["meets_goal"]]
    return lines + [f"{one['label']}: {one['excluded_by']}: {one['why']}" for one in excluded]


def _not_measured(document: Json) -> list[str]:
    lines = [
        f"{one['label']} stops at {size_text(one['stopped_bytes'])}: {one['stopped_why']}"
        for one in document["candidates"]
        if one.get("stopped_bytes") is not None
    ]
    lines += list(document.get("left_out") or ())
    whys = dict.fromkeys((row["label"], row["cold_why"]) for row in document["sweep"] if row.get("cold_why"))
    lines += [f"no cold reload of {label}: {why}" for label, why in whys]
    cold = any(row.get("reload_cold_p50_ns") is not None for row in document["sweep"])
    lines += [f"cold: {document['cold_how']}"] if cold and document.get("cold_how") else []
    return [*lines, PROMISED]


# --- grids ----------------------------------------------------------------------------------------------------------


def _swept(document: Json) -> dict[tuple[str, str, int], Json]:
    return {(row["label"], row["payload"], row["size_bytes"]): row for row in document["sweep"]}


def _labels(document: Json) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in document["sweep"] if row["payload"] == PAYLOAD))


def _curves(document: Json) -> list[Grid]:
    """Median put by size, candidates side by side. The fine pass is in the CSV and in the chart."""
    rows, labels = _swept(document), _labels(document)
    table = []
    for size in document["sizes"]:
        found = [rows.get((label, PAYLOAD, size)) for label in labels]
        table.append([size_text(size), *(_put(row) for row in found)])
    quantiles = any(row["put_p99_ns"] is not None for row in document["sweep"])
    title = f"durable put, median{' (p99)' if quantiles else ''} in ms; p99 only from 368 puts"
    return [Grid(title, ["size", *labels], table)] if labels else []


def _put(row: Json | None) -> str:
    if row is None or row["put_p50_ns"] is None:
        return DASH
    p99 = f" ({_number(row['put_p99_ns'] / 1e6)})" if row["put_p99_ns"] is not None else ""
    return f"{_number(row['put_p50_ns'] / 1e6)}{p99}"


def _cost(document: Json) -> Grid:
    """What a reload takes and a payload byte costs."""
    rows, table = _swept(document), []
    for label in _labels(document):
        for size in document["sizes"]:
            row = rows.get((label, PAYLOAD, size))
            if row is None:
                continue
            other = next((rows[key] for key in rows if key[0] == label and key[2] == size and key[1] != PAYLOAD), {})
            table.append(
                [
                    label,
                    size_text(size),
                    _in_ms(row["reload_warm_p50_ns"]),
                    _in_ms(row["reload_cold_p50_ns"]),
                    _per_byte(row["writer_bytes_per_put"], size),
                    _per_byte(row["device_bytes_per_put"], size),
                    _number(row["at_rest_per_payload_byte"]),
                    _number(other.get("at_rest_per_payload_byte")),
                    _number(row["compacted_per_payload_byte"]),
                ]
            )
    columns = ["setting", "size", "warm", "cold", "writers", "device", "at rest", "compressible", "rewritten"]
    title = "reload in ms, warm and cold; bytes per payload byte: written by writers and device, at rest"
    return Grid(title, columns, table, names=1)


def _layouts(document: Json) -> list[Grid]:
    """Split against whole, a grid per trace."""
    found = []
    for trace in dict.fromkeys(entry["trace"] for entry in document["split"]):
        entries = [entry for entry in document["split"] if entry["trace"] == trace]
        first = entries[0]
        sizes = f"{size_text(first['metadata_bytes'])} of metadata, {size_text(first['data_bytes'])} of data"
        steps = f"{first['steps']} steps, {sizes}, new in {first['changes']}"
        title = (
            f"{trace}: {steps}; bytes per step as the writers count them, per unchanged step, and at rest at the end"
        )
        columns = ["metadata, data", "layout", "a step", "device", "unchanged", "unchanged / new ms", "at rest"]
        rows = [row for entry in entries for row in _layout_rows(entry)]
        found.append(Grid(title, columns, rows, names=2))
    return found


def _layout_rows(entry: Json) -> list[list[str]]:
    where = _where(entry)
    rows = []
    for layout in ("whole", "split", "put_many"):
        one = entry.get(layout)
        if one is None or (layout == "whole" and entry["metadata"] != entry["data"]):
            continue  # whole over two is whole in the first
        if one.get("refused") and not one.get("puts"):
            rows.append([where, layout, str(one["refused"]), *[DASH] * 4])
            continue
        unchanged, changed = one["unchanged"], one["changed"]
        rows.append(
            [
                where,
                layout,
                _size(_each(one["writer_bytes"], one)),
                _size(_each(one["device_bytes"], one)),
                _size(unchanged["writer_bytes"]),
                f"{_in_ms(_ns_of(unchanged))} / {_in_ms(_ns_of(changed))}",
                _size(one["at_rest_bytes"]) + (f", ~{one['growth']}" if one.get("growth") else ""),
            ]
        )
    return rows


def _ns_of(steps: Json) -> float | None:
    found: float | None = steps.get("p50_ns", steps.get("step_p50_ns"))
    return found


def _each(total: float | None, layout: Json) -> float | None:
    return total / layout["puts"] if total is not None and layout.get("puts") else None


# --- figures --------------------------------------------------------------------------------------------------------


def _number(value: float | None) -> str:
    """Three significant digits, a dash for what was not measured."""
    if value is None:
        return DASH
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def _in_ms(ns: float | None) -> str:
    return DASH if ns is None else _number(ns / 1e6)


def _ms(ns: float | None) -> str:
    return DASH if ns is None else f"{_number(ns / 1e6)} ms"


def _size(size_bytes: float | None) -> str:
    return DASH if size_bytes is None else size_text(size_bytes)


def _per_byte(per_put: float | None, size_bytes: int) -> str:
    return DASH if per_put is None or not size_bytes else _number(per_put / size_bytes)
