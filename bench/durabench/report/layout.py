"""What a person reads: a document put into rows, columns and sentences, before any format's syntax.

A row is a setting and a namespace, a column a fault. Every cell says its verdict in a mark and a word, then losing of
all, then what that allows at 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from durabench.fault import FAULTS
from durabench.row import label as label_of
from durabench.row import setting_label
from durabench.statistics import bound_text, trials_for_bound

DASH = "–"
MARKS: Mapping[str, str] = {
    "kept": "✓",
    "within": "◐",
    "no-promise": "○",
    "unknown": "?",
    "broken": "✕",
    "not run": "·",
    "not rated": "·",
    DASH: "",
}
GOAL = 0.01
"""The bound that the last line tells how to reach."""

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A setting and a namespace: the texts of its columns, each of one or two parts (verdict, figures)."""

    backend: str
    setting: str
    tier: str
    namespace: str
    faults: Sequence[tuple[str, ...]]
    verdicts: Sequence[str]
    p50: str
    p99: str
    bytes_per_byte: str


@dataclass(frozen=True)
class Grid:
    """One table: the cells of a host and a workload. ``columns`` are the faults."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Line]


def grids(document: Json) -> list[Grid]:
    """One per host and workload."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for cell in document["cells"]:
        groups.setdefault((cell["host"], cell["workload"]), []).append(cell)
    hosts = {host for host, _ in groups}
    return [
        _grid(f"workload {workload}" + (f", host {host}" if len(hosts) > 1 else ""), members)
        for (host, workload), members in groups.items()
    ]


def _grid(title: str, members: Sequence[Json]) -> Grid:
    columns = _columns(members)
    rows: dict[tuple[str, str, str, str], dict[str, Json]] = {}
    for cell in members:
        key = (cell["backend"], setting_label(cell), cell["tier"], cell["namespace"])
        rows.setdefault(key, {})[_column(cell, columns)] = cell
    shown = [column for column in columns if column != "none" or _peace_failed(members)]
    return Grid(title, shown, [_line(key, cells, shown) for key, cells in rows.items()])


def _columns(members: Sequence[Json]) -> list[str]:
    """Faults in the order of what they destroy; with the lane where one was run in several."""
    lanes: dict[str, dict[str, None]] = {}
    for cell in members:
        lanes.setdefault(cell["fault"], {})[cell["lane"]] = None
    known = list(FAULTS)
    ordered = sorted(lanes, key=lambda fault: (known.index(fault) if fault in known else len(known), fault))
    return [
        fault if len(lanes[fault]) == 1 else f"{fault} ({lane})" for fault in ordered for lane in sorted(lanes[fault])
    ]


def _column(cell: Json, columns: Sequence[str]) -> str:
    fault: str = cell["fault"]
    return fault if fault in columns else f"{fault} ({cell['lane']})"


def _peace_failed(members: Sequence[Json]) -> bool:
    """An orderly stop has no column of its own: that it keeps everything is a control, and its latency stands apart."""
    peace = [cell for cell in members if cell["fault"] == "none"]
    told = any(cell["verdict"] in ("broken", "unknown") or cell["trials_unknown"] for cell in peace)
    return told or len(peace) == len(members)


def _line(key: tuple[str, str, str, str], cells: Mapping[str, Json], columns: Sequence[str]) -> Line:
    peace = next((cell for cell in cells.values() if cell["put_p50_ms"] is not None), None)
    sized = next((cell for cell in cells.values() if cell["bytes_per_payload_byte"] is not None), None)
    backend, setting, tier, namespace = key
    return Line(
        backend,
        setting,
        tier,
        namespace,
        [cell_text(cells.get(column)) for column in columns],
        [cells[column]["verdict"] if column in cells else DASH for column in columns],
        DASH if peace is None else f"{number(peace['put_p50_ms'])} / {number(peace['floor_p50_ms'])}",
        number(None if peace is None else peace["put_p99_ms"]),
        number(None if sized is None else sized["bytes_per_payload_byte"]),
    )


def cell_text(cell: Json | None) -> tuple[str, ...]:
    """What a cell says, in parts that belong together: ``("✓ kept", "0/3 ≤ 71 %")``, ``("· not run",)``."""
    if cell is None:
        return (DASH,)
    mark = f"{MARKS.get(cell['verdict'], '?')} {cell['verdict']}".strip()
    if cell["trials"] == 0:
        return (mark,)
    return (mark, *(["(expected)"] if cell["expected"] is not None else []), *_figures(cell))


def _figures(cell: Json) -> list[str]:
    if cell["verdict"] == "unknown":
        some = 0 < cell["trials_unknown"] < cell["trials"]
        return [_counted(cell["trials"], "trial"), *([f"{cell['trials_unknown']:,} unknown"] if some else [])]
    parts = _losing(cell)
    if cell["recordings"] is not None:
        parts.append(_looked_at(cell))
        parts += [f"{_counted(cell['gaps_untold'], 'gap')} cannot tell"] if cell["gaps_untold"] else []
    for name, word in (("unavailable", "down"), ("trials_unknown", "unknown")):
        parts += [f"{cell[name]:,} {word}"] if cell[name] else []
    return parts


def _looked_at(cell: Json) -> str:
    """``24 states``, ``24 states, 20 contents of 31``, ``24 states, 24 contents of > 2^40``."""
    said = _counted(cell["trials"], "state")
    if cell["contents"] is None:
        return said
    of = f"{cell['contents_of']:,}" if cell["contents_of"] is not None else f"≥ 2^{cell['contents_bits']}"
    return f"{said}, {_counted(cell['contents'], 'content')} of {of}"


def _losing(cell: Json) -> list[str]:
    """Losing of all, with the unit, and the rate that this allows, on recorded faults by gap and by recording; where
    nothing is promised, how much was lost in place of a bound.
    """
    counts = [(cell["trials_with_loss"], cell["trials_counted"], "")]
    if cell["gaps"] is not None:
        counts = [(cell["gaps_with_loss"], cell["gaps"], " gaps")]
        counts += [(cell["recordings_with_loss"], cell["recordings"], " rec.")]
    if not counts[0][1]:
        return []
    if cell["verdict"] == "no-promise":
        lost = f"lost {cell['lost'] or 0:,}/{cell['acked'] or 0:,}"
        said = [f"{losing}/{of}{unit}" for losing, of, unit in counts]
        return [*said, lost] if len(said) > 1 else [f"{said[0]} {lost}"]
    return [f"{losing}/{of}{unit} {bound_text(losing, of)}" for losing, of, unit in counts]


def number(value: float | None) -> str:
    """Three significant digits and at most four decimals, a dash for what was not measured."""
    if value is None:
        return DASH
    return f"{round(value, 4):.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _counted(count: int, word: str) -> str:
    """``1 trial``, ``1,200 trials``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# --- sentences


def header(document: Json) -> list[str]:
    """Where this was measured: machine, disk under test, floor, runs."""
    machines = document.get("machines") or {document["machine"].get("id"): document["machine"]}
    lines = [_machine(machine) for machine in machines.values()]
    floor = document["floor"]
    if floor is not None:
        lines += [_floor(size) for size in floor["sizes"]]
    for run in document.get("runs", ()):
        lines += [_run(run), *(f"doubt: {doubt}" for doubt in run["doubts"])]
    return lines


def _machine(machine: Json) -> str:
    device = machine.get("device") or {}
    disk = ", ".join(
        str(part)
        for part in (
            device.get("name"),
            device.get("model"),
            f"write cache: {device['write_cache']}" if device.get("write_cache") else None,
            f"{machine.get('filesystem')} ({machine.get('mount_options')})",
        )
        if part
    )
    memory = f"{(machine.get('memory_bytes') or 0) / 2**30:.0f} GiB"
    system = f"{machine.get('system')} {machine.get('kernel')}, virtualisation: {machine.get('virtualisation')}"
    what = f"{machine.get('cpu_model')}, {machine.get('cores')} cores, {memory}, {system}"
    latency = f"; no latency: {machine['latency']}" if machine.get("latency") else ""
    return f"host {machine.get('id')}: {what}; disk under test: {disk}{latency}"


def _floor(floor: Json) -> str:
    moved = f"{number(floor['lowest_p50_ms'])} to {number(floor['highest_p50_ms'])} ms"
    what = f"floor: a flush of {size_text(floor['size_bytes'])} takes {number(floor['p50_ms'])} ms (median)"
    return f"{what}; in {floor['measurements']} measurements it moved from {moved}"


def size_text(size_bytes: int) -> str:
    """``2 KiB``, ``1 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def _run(run: Json) -> str:
    parts = [f"run {run['name']}: {_counted(run['trials'], 'trial')}", f"seed {run['seed']}"]
    if not run["finished"]:
        parts.append("unfinished")
    if not run["trials"]:
        parts.append("no trial of it ended: it tells nothing yet")
    if run["dropped"]:
        parts.append(f"{_counted(run['dropped'], 'torn row')} dropped")
    if run["without_history"]:
        parts.append(f"{_counted(run['without_history'], 'trial')} without history, which cannot be judged again")
    if run["recordings_not_kept"]:
        parts.append(f"{_counted(run['recordings_not_kept'], 'losing recording')} not kept, which cannot be replayed")
    return ", ".join(parts)


def findings(document: Json) -> list[str]:
    """One line for everything that is broken or unknown, and for trials that are, with what decided and how to see it
    again.
    """
    grouped: dict[tuple[str, ...], list[str]] = {}
    for cell in document["cells"]:
        where = f"{label_of(cell)}, {cell['fault']}"
        if cell["verdict"] != "unknown" and cell["trials_unknown"]:
            said = (
                f"{MARKS['unknown']} {cell['trials_unknown']:,} of {_counted(cell['trials'], 'trial')} unknown {where}"
            )
            why = cell["unknown_why"] or "no reason recorded"
            grouped.setdefault((said, why, ""), []).append(cell["namespace"])
        if cell["verdict"] not in ("broken", "unknown"):
            continue
        expected = f" (expected: {cell['expected']})" if cell["expected"] is not None else ""
        said = f"{MARKS[cell['verdict']]} {cell['verdict']}{expected} {where}"
        replay = f"; again: {cell['replay']}" if cell["replay"] else ""
        grouped.setdefault((said, cell["why"] or "no reason recorded", replay), []).append(cell["namespace"])
    lines = [f"{said}, {' and '.join(spaces)}: {why}{again}" for (said, why, again), spaces in grouped.items()]
    return lines + [_dangling(cell) for cell in document["cells"] if cell["dangling"]]


def _dangling(cell: Json) -> str:
    where = f"{label_of(cell)}, {cell['fault']}"
    orphans = _counted(cell["orphan"] or 0, "orphan")
    return f"{where}: {cell['dangling']} dangling (metadata whose data is gone), {orphans}"


def not_judged(document: Json) -> list[str]:
    """What was not run or not rated, once for each reason."""
    reasons: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for cell in document["cells"]:
        if cell["verdict"] in ("not run", "not rated"):
            by_fault = reasons.setdefault((cell["verdict"], cell["why"] or "no reason recorded"), {})
            by_fault.setdefault(cell["fault"], {})[label_of(cell)] = None
    return [
        f"{verdict}: {why}: " + "; ".join(f"{fault} of {_some(list(settings))}" for fault, settings in by_fault.items())
        for (verdict, why), by_fault in reasons.items()
    ]


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{', '.join(labels[:3])} and {len(labels) - 3} more"


def pick_lines(document: Json) -> list[str]:
    """The pick or why there is none, then what was not tried."""
    pick = document["pick"]
    lines = [f"pick: {pick['setting']}: {pick['why']}" if pick["setting"] else f"no pick: {pick['why']}"]
    lines += [f"not tried: {what}" for what in pick["not_tried"]]
    seen = {cell["fault"] for cell in document["cells"] if cell["trials"]} - {"none"}
    blind: dict[str, list[str]] = {}
    for fault in FAULTS.values():
        if fault.name in seen:
            blind.setdefault(fault.cannot_see, []).append(fault.name)
    return lines + [f"{' and '.join(faults)} cannot see: {what}" for what, faults in blind.items()]


def goal_line(document: Json) -> str | None:
    """What would bring the bound of every cell without a loss to 1 %."""
    judged = [cell for cell in document["cells"] if cell["trials_counted"] and cell["fault"] != "none"]
    short = [cell for cell in judged if cell["verdict"] == "kept" and (cell["loss_rate_high"] or 0) > GOAL]
    if not short:
        return None
    worst = max(cell["loss_rate_high"] for cell in short)
    trials = trials_for_bound(GOAL)
    so_far = f"with so few trials, kept allows a loss rate of up to {100 * worst:.2g} %"
    unit = "trials" if all(cell["gaps"] is None for cell in short) else "trials (by power cuts: telling gaps)"
    return f"{so_far}; {trials} {unit} a cell without a loss would bring that to 1 %: --trials {trials}"


_CANNOT = f"{DASH} cannot happen"
LEGEND = (
    f"✓ kept  ◐ within the promised window  ○ no-promise  ✕ broken  ? unknown  · not run, not rated  {_CANNOT}",
    "k/n: trials with a loss, and the rate that this allows at 95 %; put and floor: medians in ms",
    "k/n gaps, k/n rec.: the same by telling gap between acknowledged changes, as if independent, and by recording",
    "contents: how many different contents of the disk were looked at, of how many there are",
    "B/B: bytes stored per payload byte",
)
