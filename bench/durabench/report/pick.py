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
    return pick_of_hosts(cells, dict.fromkeys(hosts_of(cells), floor_moved_ms))


def hosts_of(cells: Iterable[Cell]) -> list[str]:
    """Every host that has a cell, in the order of the cells."""
    return list(dict.fromkeys(cell.host for cell in cells))


def pick_of_hosts(cells: Sequence[Cell], floor_moved_ms: Mapping[str, float | None]) -> Pick:
    """The pick of the one host that has latencies; what was seen on any other can but stand against a setting.

    Of several hosts with latencies there is none, since their disks differ. ``floor_moved_ms`` is by host.
    """
    cells = [cell for cell in cells if cell.destroyed not in _PROMISED_BY_NOBODY]
    timed = hosts_of(cell for cell in cells if cell.put_p50_ms is not None)
    if len(timed) > 1:
        each = {host: _of_host(cells, host, floor_moved_ms.get(host)).setting or "none" for host in timed}
        said = "; ".join(f"{host}: {label}" for host, label in each.items())
        return Pick(None, f"several machines or disks, each has its own ({said})", _not_tried(cells))
    host = timed[0] if timed else None
    found = _of_host(cells, host, None if host is None else floor_moved_ms.get(host))
    if len(hosts_of(cells)) < 2 or host is None:
        return found
    return replace(found, why=f"{found.why} (on {host}, where latency was measured)")


def _of_host(cells: Sequence[Cell], host: str | None, floor_moved_ms: float | None) -> Pick:
    """The pick by the latencies of a host, after all that anything stands against anywhere is excluded; without a host
    of all cells.
    """
    members: dict[str, list[Cell]] = {}
    for cell in cells:
        members.setdefault(cell.label, []).append(cell)
    durable = {label: mine for label, mine in members.items() if any(cell.tier == DURABLE for cell in mine)}
    not_tried = _not_tried(cells)
    if not durable:
        return Pick(None, "no setting that promises to lose nothing (T3) was asked for", not_tried)
    if not any(_survives_power(_here(mine, host)) is not None for mine in durable.values()):
        why = "no power cut was made, and without one nobody can tell which settings keep what they acknowledged"
        return Pick(None, why, not_tried)
    against = {label: _against(mine, host) for label, mine in durable.items()}
    kept = {label: mine for label, mine in durable.items() if against[label] is None}
    if not kept:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in against.items())
        return Pick(None, f"no setting kept everything in every cell ({reasons})", not_tried)
    return _fastest(kept, host, floor_moved_ms, (*not_tried, *_not_run_elsewhere(kept, host)))


def _here(members: Iterable[Cell], host: str | None) -> list[Cell]:
    return [cell for cell in members if host in (None, cell.host)]


def _fastest(
    kept: Mapping[str, Sequence[Cell]], host: str | None, floor_moved_ms: float | None, not_tried: tuple[str, ...]
) -> Pick:
    """The fastest of settings that all kept everything, unless it is too close to call."""

    def all_of(labels: Sequence[str]) -> str:
        return f"{_and(labels)} {_kept([cell for label in labels for cell in kept[label]])}"

    puts = {label: found for label, mine in kept.items() if (found := _puts_ms(_here(mine, host)))}
    untimed = tuple(sorted(set(kept) - set(puts)))
    if not puts:
        return Pick(None, f"{all_of(untimed)}; no latency could be measured to choose by", not_tried, untimed)
    # Like is ranked with like: by the metadata, which every step writes; by the data where they hold nothing else.
    common = set.intersection(*(set(found) for found in puts.values()))
    chosen = [part for part in common if part[0] == METADATA] or sorted(common)
    if not chosen:
        tied = tuple(sorted(puts))
        return Pick(None, f"{all_of(tied)}; they were not timed by the same puts", not_tried, tied)
    timed = sorted((statistics.mean(found[part] for part in chosen), label) for label, found in puts.items())
    best_ms, best = timed[0]
    close = tuple(label for value, label in timed if value - best_ms <= (floor_moved_ms or 0.0))
    if len(close) > 1:
        moved = f"they differ by less than the floor moved ({floor_moved_ms or 0:.3g} ms): a tie"
        return Pick(None, f"{all_of(close)}; {moved}", not_tried, close)
    behind = f", before {timed[1][1]} ({timed[1][0]:.3g} ms)" if len(timed) > 1 else ""
    rest = f"; {_and(untimed)} kept everything too, and had no latency measured" if untimed else ""
    fastest = f"the fastest of them with a median put of {best_ms:.3g} ms{behind}{rest}"
    return Pick(best, f"promises T3, {_kept(kept[best])}; {fastest}", not_tried)


def _kept(members: Sequence[Cell]) -> str:
    """``kept everything …``, and how many of the trials could not be judged."""
    unknown, trials = (
        sum(counts) for counts in zip(*((cell.trials_unknown, cell.trials) for cell in members), strict=True)
    )
    said = "kept everything under every fault that was run, power cuts included"
    return f"{said} ({unknown:,} of {trials:,} trials unknown)" if unknown else said


def _against(members: Sequence[Cell], host: str | None) -> str | None:
    """What stands against a setting; None where every cell is kept, those of a power cut on this host among them."""
    here = _here(members, host)
    if not here:
        return f"was not run on {host}"
    for cell in members:
        elsewhere = f" on {cell.host}" if host not in (None, cell.host) else ""
        if cell.tier != DURABLE:
            return f"promises {cell.tier}{elsewhere}"
        if cell.verdict in ("kept", NOT_POSSIBLE) or _covered(cell, members, elsewhere=bool(elsewhere)):
            continue
        # How much was lost, without the list of it, which stands with the losing trials.
        said = cell.why.partition(": ")[0] if cell.why and cell.verdict == "broken" else cell.why
        why = f" ({said})" if said else ""
        if elsewhere and cell.verdict == "broken":
            return f"broke its promise{elsewhere} ({cell.fault}){f': {said}' if said else ''}"
        return f"{cell.fault}, {cell.namespace}{elsewhere}: {cell.verdict}{why}"
    missing = {cell.namespace for cell in here} - (_survives_power(here) or set())
    return f"no power cut judged for its {_and(sorted(missing))}" if missing else None


def _covered(cell: Cell, members: Sequence[Cell], *, elsewhere: bool) -> bool:
    """Of what was not run: a reset says nothing new where a power cut, which destroys more, was survived; another lane
    nothing where the fault was; and elsewhere nothing was tried, which is told.
    """
    if cell.verdict != "not run":
        return False
    same = (cell.fault, cell.namespace, cell.workload, cell.host)
    other_lane = any(
        one.verdict == "kept" and (one.fault, one.namespace, one.workload, one.host) == same for one in members
    )
    reset = cell.destroyed == Domain.MACHINE.label
    survived = _survives_power([one for one in members if one.host == cell.host]) or set()
    return elsewhere or other_lane or (reset and cell.namespace in survived)


def _survives_power(members: Iterable[Cell]) -> set[str] | None:
    """Namespaces kept in a power cut; None where none was made."""
    cut = [cell for cell in members if cell.destroyed == Domain.DRIVE.label and cell.judged]
    return {cell.namespace for cell in cut if cell.verdict == "kept"} if cut else None


def _puts_ms(members: Iterable[Cell]) -> dict[tuple[str, str], float]:
    """Median put by namespace and workload."""
    return {(cell.namespace, cell.workload): cell.put_p50_ms for cell in members if cell.put_p50_ms is not None}


def _not_run_elsewhere(kept: Mapping[str, Sequence[Cell]], host: str | None) -> tuple[str, ...]:
    """What was not run of settings that may be picked, on hosts other than that of the pick."""
    lines = [
        f"{label} on {cell.host}, {cell.fault}: {cell.why or cell.verdict}"
        for label, mine in kept.items()
        for cell in mine
        if cell.verdict == "not run" and host not in (None, cell.host)
    ]
    return tuple(dict.fromkeys(lines))


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
