"""Which setting to take: only among those promised to keep everything, and seen to, power cuts included.

Speed alone never picks: what does not sync is fastest and survives every kill of a process. Without a power cut there
is therefore no pick at all, and no ranking between settings that differ less than the disk itself moved.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from durabench.fault import FAULTS
from durabench.report.cells import NOT_POSSIBLE
from durabench_backends.contract import METADATA, Domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durabench.report.cells import Cell

DURABLE = "T3"
_PROMISED_BY_NOBODY = (Domain.FLUSHED.label, Domain.AT_REST.label)


@dataclass(frozen=True)
class Pick:
    """``setting`` (backend:setting) or None, why, and what was not tried. ``tied``: settings that cannot be ranked."""

    setting: str | None
    why: str
    not_tried: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The member ``pick`` of a document."""
        return {**asdict(self), "not_tried": list(self.not_tried), "tied": list(self.tied)}


def pick(cells: Sequence[Cell], floor_moved_ms: float | None = None) -> Pick:
    """The pick among the cells of one host. ``floor_moved_ms``: by how much the floor moved during the run."""
    cells = [cell for cell in cells if cell.destroyed not in _PROMISED_BY_NOBODY]
    not_tried = _not_tried(cells)
    durable: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.tier == DURABLE:
            durable.setdefault(cell.label, []).append(cell)
    if not durable:
        return Pick(None, "no setting that promises to lose nothing (T3) was asked for", not_tried)
    if not any(_survives_power(members) is not None for members in durable.values()):
        why = "no power cut was made, and without one nobody can tell which settings keep what they acknowledged"
        return Pick(None, why, not_tried)
    against = {label: _against(members) for label, members in durable.items()}
    kept = [label for label, reason in against.items() if reason is None]
    if not kept:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in against.items())
        return Pick(None, f"no setting kept everything in every cell ({reasons})", not_tried)
    return _fastest({label: _put_p50_ms(durable[label]) for label in kept}, floor_moved_ms, not_tried)


def hosts_of(cells: Iterable[Cell]) -> list[str]:
    """Every host that has a cell, in the order of the cells."""
    return list(dict.fromkeys(cell.host for cell in cells))


def pick_of_hosts(cells: Sequence[Cell], floor_moved_ms: Mapping[str, float | None]) -> Pick:
    """The pick of the one host that has latencies; what file systems made for a power cut saw can but stand against it.

    Of several hosts with latencies there is none, since their disks differ. ``floor_moved_ms`` is by host.
    """
    hosts = hosts_of(cells)
    each = {host: pick([cell for cell in cells if cell.host == host], floor_moved_ms.get(host)) for host in hosts}
    if len(hosts) < 2:
        return each[hosts[0]] if hosts else pick(cells)
    timed = {cell.host for cell in cells if cell.put_p50_ms is not None}
    if len(timed) != 1:
        said = "; ".join(f"{host}: {one.setting or 'none'}" for host, one in each.items())
        return Pick(None, f"several machines or disks, each has its own ({said})")
    (host,) = timed
    one = each[host]
    for cell in cells:
        if cell.host != host and cell.label == one.setting and cell.verdict == "broken":
            why = f"{one.setting}, the fastest on {host}, broke its promise on {cell.host} ({cell.fault})"
            return Pick(None, why, one.not_tried)
    return replace(one, why=f"{one.why} (on {host}, where latency was measured)")


def _fastest(p50_ms: dict[str, float | None], floor_moved_ms: float | None, not_tried: tuple[str, ...]) -> Pick:
    """The fastest of settings that all kept everything, unless it is too close to call."""
    kept = "kept everything under every fault that was run, power cuts included"
    timed = sorted((value, label) for label, value in p50_ms.items() if value is not None)
    if not timed:
        tied = tuple(sorted(p50_ms))
        return Pick(None, f"{_and(tied)} {kept}; no latency could be measured to choose by", not_tried, tied)
    best_ms, best = timed[0]
    close = tuple(label for value, label in timed if value - best_ms <= (floor_moved_ms or 0.0))
    if len(close) > 1:
        why = f"{_and(close)} {kept}; they differ by less than the floor moved ({floor_moved_ms or 0:.3g} ms): a tie"
        return Pick(None, why, not_tried, close)
    behind = f", before {timed[1][1]} ({timed[1][0]:.3g} ms)" if len(timed) > 1 else ""
    return Pick(
        best, f"promises T3, {kept}; the fastest of them with a median put of {best_ms:.3g} ms{behind}", not_tried
    )


def _against(members: Iterable[Cell]) -> str | None:
    """What stands against a setting; None where every cell is kept, those of a power cut among them."""
    members = list(members)
    for cell in members:
        if cell.verdict not in ("kept", NOT_POSSIBLE) and not _covered(cell, members):
            # How much was lost, without the list of it, which stands with the losing trials.
            said = cell.why.partition(": ")[0] if cell.why and cell.verdict == "broken" else cell.why
            why = f" ({said})" if said else ""
            return f"{cell.fault}, {cell.namespace}: {cell.verdict}{why}"
    missing = {cell.namespace for cell in members} - (_survives_power(members) or set())
    return f"no power cut judged for its {_and(sorted(missing))}" if missing else None


def _covered(cell: Cell, members: Sequence[Cell]) -> bool:
    """A reset that was not run says nothing new where a power cut, which destroys more, was survived."""
    reset = cell.verdict == "not run" and cell.destroyed == Domain.MACHINE.label
    return reset and cell.namespace in (_survives_power(members) or set())


def _survives_power(members: Iterable[Cell]) -> set[str] | None:
    """Namespaces kept in a power cut; None where none was made."""
    cut = [cell for cell in members if cell.destroyed == Domain.DRIVE.label and cell.judged]
    return {cell.namespace for cell in cut if cell.verdict == "kept"} if cut else None


def _put_p50_ms(members: Iterable[Cell]) -> float | None:
    """Median put of the metadata, which every step writes; of the data where the setting holds nothing else."""
    timed = [cell for cell in members if cell.put_p50_ms is not None]
    chosen = [cell for cell in timed if cell.namespace == METADATA] or timed
    return statistics.mean(cell.put_p50_ms or 0.0 for cell in chosen) if chosen else None


def _not_tried(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Faults nobody was put through, then settings promised T3 that were put through nothing."""
    found = []
    for fault in FAULTS.values():
        if fault.destroys in (Domain.NOTHING, Domain.FLUSHED, Domain.AT_REST):
            continue
        mine = [cell for cell in cells if cell.fault == fault.name]
        possible = not mine or any(cell.verdict != NOT_POSSIBLE for cell in mine)
        if possible and not any(cell.judged for cell in mine):
            whys = dict.fromkeys(cell.why for cell in mine if cell.verdict == "not run" and cell.why)
            found.append(f"{fault.name}: {'; '.join(whys) or 'not asked for'}")
    tried = {cell.label for cell in cells if cell.judged}
    for cell in cells:
        if cell.tier == DURABLE and cell.label not in tried:
            line = f"{cell.label}: {cell.why or cell.verdict}"
            found += [line] if not any(one.startswith(f"{cell.label}:") for one in found) else []
    return tuple(found)


def _and(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
