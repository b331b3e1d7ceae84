"""Two sets of runs held against each other, cell by cell: what got worse, what got better, and how sure that is.

Only like is compared with like: the same machine and disk, the same way of making a trial, the same methodology. What
is not is refused, cell by cell, with the reason, and the exit status is then 3. Differences of loss rates are tested
exactly (Boschloo), on recorded faults by dealing whole recordings out again, since gaps of one recording may share
their fate, with p adjusted for the number of tests (Holm); differences of latency have an interval by drawing whole
trials again, and are told only where they are larger than the floor moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from durabench.checker import WORST_FIRST
from durabench.fault import FAULTS
from durabench.report import crossings, gates
from durabench.report.cells import CELL, KEY, NOT_POSSIBLE, by_recording, counts_for_rate
from durabench.report.document import BROKEN, COULD_NOT_TELL, HELD, document
from durabench.results import SCHEMA_VERSION, distinct
from durabench.row import Field
from durabench.row import label as label_of
from durabench.statistics import boschloo, difference_by_trial, holm, permutation, smallest_permutation_p
from durabench.workload import WORKLOADS
from durabench_backends.contract import DATA, METADATA, Domain
from durabench_backends.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durabench.report.expectations import Expectation
    from durabench.report.gates import Gate
    from durabench.results import Folder
    from durabench.row import Row

    Json = Mapping[str, Any]

SURE = 0.05
"""A p, adjusted for the number of tests, from which on a difference is no longer put down to chance."""
MATCHED_BY = ("backend", "setting", "url", "namespace", "workload", "fault")
"""What two cells must have in common to be about the same thing; ``lane`` and ``host`` make them comparable."""
CONDITIONS = ("writers", "settle_s", "flush_delay_s", "server_kill")
"""Fields of a row in which trials that are compared must agree."""
CHANGES = (
    *("worsened", "untold", "refused", "missing", "new", "more lost", "less lost", "improved", "newly judged"),
    *("same", "not judged"),
)
"""What became of a cell, in the order in which it is shown."""
_MS = 1e6
_TOLD = ("recording", "gap", "telling", "lost", "stale", "damaged_acked", "resurrected")
_JUDGED = [verdict for verdict in WORST_FIRST if verdict != "unknown"]
_NO_GATE = (NOT_POSSIBLE, "not rated")

Place = tuple[str, ...]

COMPARISON: Mapping[str, Field] = {
    "change": Field("string", "", "what became of the cell: " + ", ".join(CHANGES), required=True),
    "why": Field("string", "", "why it is refused or untold; what decided the verdict that got worse"),
    "tests_unit": Field("string", "", "what was tested: trials or recordings; null where no test was made"),
    "tests_why": Field("string", "", "why no test was made, although both have a loss rate"),
    "p": Field("number", "", "of the two loss rates, two-sided: Boschloo's test of trials, permutation of recordings"),
    "p_holm": Field("number", "", "the same, adjusted for the number of tests by Holm"),
    "put_p50_change_ms": Field("number", "ms", "median put of B less that of A"),
    "put_p50_change_low_ms": Field("number", "ms", "its 95 % interval, by drawing whole trials again"),
    "put_p50_change_high_ms": Field("number", "ms", "the upper end"),
    "latency": Field("string", "", "slower, faster, or no difference; null where nobody can tell"),
    "latency_why": Field("string", "", "why nobody can tell, although both were measured"),
}
"""What a comparison says of a pair of cells, beside the cells themselves (`a`, `b`)."""
GATED: Mapping[str, Field] = {**CELL, **{name: what for name, what in COMPARISON.items() if name != "why"}}
"""What a gate may ask: the fields of B's cell, and those of the comparison."""
CHOSEN_BY = (*KEY, "destroyed", "by_name")
"""Of those what says which cell it is, and not what was found."""


@dataclass(frozen=True)
class Pair:
    """Two cells that are about the same thing, or one that has no counterpart; `COMPARISON` says what the rest is."""

    a: Json | None
    b: Json | None
    change: str = "same"
    why: str | None = None
    tests_unit: str | None = None
    tests_why: str | None = None
    more_lost: bool = False
    p: float | None = None
    p_holm: float | None = None
    put_p50_change_ms: float | None = None
    put_p50_change_low_ms: float | None = None
    put_p50_change_high_ms: float | None = None
    latency: str | None = None
    latency_why: str | None = None

    @property
    def cell(self) -> Json:
        """The one that names it: B's where there is one."""
        return self.b or self.a or {}

    @property
    def name(self) -> str:
        """``backend:setting, fault, namespace``."""
        cell = self.cell
        return f"{label_of(cell)}, {cell['fault']}, {cell['namespace']}"

    @property
    def newly_broken(self) -> bool:
        """A promise that B broke and A did not, and that nobody expected to be broken. Where A did not tell, or had no
        such cell, nobody has seen it broken before.
        """
        if self.b is None or self.change == "refused" or self.b["expected"] is not None:
            return False
        return bool(self.b["verdict"] == "broken") and (self.a is None or self.a["verdict"] != "broken")

    @property
    def untold(self) -> bool:
        """Whether B does not say what A said, tried what it could not tell, or must not be compared."""
        unknown = self.b is not None and self.b["verdict"] == "unknown"
        gone = self.change == "missing" and (self.a or {})["verdict"] in _JUDGED
        return self.change in ("untold", "refused") or gone or (self.change == "new" and unknown)

    @property
    def gated(self) -> bool:
        """Gates are about what B could have been judged by: not what cannot happen, and no mock."""
        if self.b is None:
            return self.untold
        return self.b["verdict"] not in _NO_GATE

    def as_json(self) -> dict[str, Any]:
        """Its key, the comparison, and both cells."""
        key = {name: self.cell.get(name) for name in (*MATCHED_BY, "lane", "host")}
        return {**key, **{name: getattr(self, name) for name in COMPARISON}, "a": self.a, "b": self.b}

    def as_gated(self) -> dict[str, Any]:
        """What gates see; of a cell that B does not have, which one it is."""
        cell = self.b or {name: self.cell[name] for name in CHOSEN_BY}
        return {**cell, **{name: getattr(self, name) for name in COMPARISON if name != "why"}}


@dataclass(frozen=True)
class Side:
    """One of the two: its document, and of its rows what the document does not have."""

    document: Json
    folders: Sequence[Folder]
    conditions: Mapping[Place, set[tuple[Any, ...]]]
    latencies: Mapping[Place, list[Sequence[int]]]
    recordings: Mapping[Place, list[float]]
    """Of each recording that can tell, the share of its telling gaps that lost."""
    methodology: int

    @classmethod
    def read(cls, folders: Sequence[Folder], expected: Sequence[Expectation]) -> Side:
        """Both passes over the folders' rows."""
        conditions: dict[Place, set[tuple[Any, ...]]] = {}
        latencies: dict[Place, list[Sequence[int]]] = {}
        recorded: dict[Place, list[Row]] = {}
        folders = distinct(folders)
        for folder in folders:
            for rows in folder.each_trial():
                for row in rows:
                    if row.get("control") is None:
                        place = _place(row)
                        conditions.setdefault(place, set()).add(tuple(row.get(name) for name in CONDITIONS))
                        taken = _latencies(folder, row)
                        if taken:
                            latencies.setdefault(place, []).append(taken)
                        if row.get("recording") is not None and counts_for_rate(row):
                            told = {name: row.get(name) for name in _TOLD}
                            recorded.setdefault(place, []).append({**told, "run": str(folder.path)})
        made = document(folders, expected=expected)  # refuses to add up runs of two methodologies
        shares = {place: _shares(rows) for place, rows in recorded.items()}
        return cls(made, folders, conditions, latencies, shares, folders[0].methodology)

    def floors(self, host: str, size_bytes: float) -> Sequence[float]:
        """Medians between which the floor moved, in ms, of the measured size that is nearest to ``size_bytes``."""
        floor = self.document["floor"]
        mine = [] if floor is None or floor["host"] != host else floor["sizes"]
        if not mine:
            return ()
        nearest = min(mine, key=lambda size: abs(log(size["size_bytes"] / size_bytes)))
        return nearest["lowest_p50_ms"], nearest["highest_p50_ms"]


def _shares(rows: Sequence[Row]) -> list[float]:
    return [len(losing) / len(gaps) for gaps, losing in by_recording(rows).values()]


def _place(row: Json) -> Place:
    return tuple(str(row.get(name)) for name in (*MATCHED_BY, "lane", "host"))


def _latencies(folder: Folder, row: Row) -> Sequence[int]:
    if row.get("destroyed") != "nothing" or row["lane"] != "here":
        return ()
    return folder.samples(row.get("samples_at"), row.get("samples_n"))


def fields(a: Iterable[Folder], b: Iterable[Folder]) -> tuple[Mapping[str, Field], ...]:
    """What gates may ask of these runs: of pairs of cells, and, where both hold plans, of pairs of crossings."""
    plans = all(any(crossings.is_plan(folder.path) for folder in side) for side in (a, b))
    return (GATED, crossings.GATED) if plans else (GATED,)


def compare(
    a: Sequence[Folder], b: Sequence[Folder], asked: Sequence[str] = (), expected: Sequence[Expectation] = ()
) -> dict[str, Any]:
    """The document of a comparison, with the exit status that it stands for: 1 where a gate failed or a promise is
    newly broken, else 3 where something was refused, untold, judged in A only or not comparable at all, where a gate
    cannot be told or chooses nothing, or B's runs are newly in doubt; else 0. GateError.
    """
    a, b = list(a), list(b)
    for text in asked:
        _read(text, [(kind, {}) for kind in fields(a, b)])  # a mistake is told before thousands of rows are read
    sides = Side.read(a, expected), Side.read(b, expected)
    pairs = _tested(_pairs(*sides))
    kinds: list[Kind] = [(GATED, words(*(side.document["cells"] for side in sides)))]
    things = [[(one.name, one.as_gated()) for one in pairs if one.gated]]
    made: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "a": _side_json(sides[0]),
        "b": _side_json(sides[1]),
        "differences": differences(*(side.folders for side in sides)),
        "tests": sum(one.p is not None for one in pairs),
        "cells": [one.as_json() for one in pairs],
        "crossings": None,
    }
    untold = any(one.untold for one in pairs) or bool(new_doubts(made))
    compared = any(one.change not in ("refused", "missing", "new", "not judged") for one in pairs)
    plans = [[folder.path for folder in side.folders if crossings.is_plan(folder.path)] for side in sides]
    if all(plans):
        found = crossings.compare(*(each[0] for each in plans))
        kinds.append((crossings.GATED, crossings.words(found)))
        things.append([(one.name, one.as_gated()) for one in found])
        made["crossings"] = [one.as_json() for one in found]
        compared |= not pairs and bool(found)
        untold |= any(one.untold for one in found)
    made["gates"] = [_asked(text, kinds, things) for text in asked]
    return {**made, "exit_status": _exit_status(pairs, made["gates"], untold=untold or not compared)}


Kind = tuple["Mapping[str, Field]", "Mapping[str, Sequence[str]]"]
"""What gates may ask of one kind of things, and the words that there are for it."""


def words(a: Sequence[Json], b: Sequence[Json]) -> dict[str, list[str]]:
    """All that a gate's words can be, field by field: those of the contract, and those of the cells of both sides.
    A field that is left out says anything, such as ``why``.
    """
    known = {
        "backend": list(BACKENDS),
        "setting": [],
        "tier": ["T0", "T1", "T2", "T3"],
        "namespace": [METADATA, DATA],
        "workload": list(WORKLOADS),
        "fault": list(FAULTS),
        "lane": [],
        "host": [],
        "destroyed": [domain.label for domain in Domain],
    }
    found = {name: dict.fromkeys(every) for name, every in known.items()}
    for cell in (*a, *b):
        for name, every in found.items():
            if cell[name] is not None:
                every[str(cell[name])] = None
    return {
        **{name: list(every) for name, every in found.items()},
        "verdict": [*WORST_FIRST, "not run"],
        "change": list(CHANGES),
        "tests_unit": ["trials", "recordings"],
        "loss_rate_unit": ["trial", "gap"],
        "latency": ["slower", "faster", "no difference"],
    }


def new_doubts(document: Json) -> list[str]:
    """What stands against trusting the runs of B, and did not stand against those of A."""
    a, b = ([doubt for run in document[side]["runs"] for doubt in run["doubts"]] for side in ("a", "b"))
    return [doubt for doubt in dict.fromkeys(b) if doubt not in a]


def _read(text: str, kinds: Sequence[Kind]) -> list[tuple[int, Gate]]:
    """The kinds of things that a gate can be about, each by its number; where there is none, the error is that of the
    first.
    """
    found, errors = [], []
    for number, (kind, known) in enumerate(kinds):
        try:
            found.append((number, gates.parse(text, kind, known)))
        except gates.GateError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _asked(text: str, kinds: Sequence[Kind], things: Sequence[gates.Things]) -> dict[str, Any]:
    read = [(gate, things[number]) for number, gate in _read(text, kinds)]
    of_cells = read[0][1] is things[0]
    chosen_by = (*CHOSEN_BY, *crossings.CHOSEN_BY)
    return gates.asked(text, read, chosen_by, "cell of B" if of_cells else "crossing")


def _exit_status(pairs: Sequence[Pair], told: Sequence[Json], *, untold: bool) -> int:
    if any(gate["failed"] for gate in told) or any(one.newly_broken for one in pairs):
        return BROKEN
    return COULD_NOT_TELL if untold or any(gate["untold"] for gate in told) else HELD


def _side_json(side: Side) -> dict[str, Any]:
    made = side.document
    return {"machine": made["machine"], "floor": made["floor"], "pick": made["pick"], "runs": made["runs"]}


# --- pairs


def _pairs(a: Side, b: Side) -> list[Pair]:
    """Every cell of either, with its counterpart; like with like first."""
    left = {_place(cell): cell for cell in a.document["cells"]}
    right = {_place(cell): cell for cell in b.document["cells"]}
    found = [_compared(a, b, left[place], right[place]) for place in right if place in left]
    alone = [(place, cell) for place, cell in right.items() if place not in left]
    over = {place: cell for place, cell in left.items() if place not in right}
    for place, cell in alone:
        like = [other for other in over if other[: len(MATCHED_BY)] == place[: len(MATCHED_BY)]]
        if like:
            other = over.pop(like[0])
            found.append(Pair(other, cell, "refused", _unlike(other, cell)))
        else:
            found.append(Pair(None, cell, "new", cell["why"] if cell["verdict"] in ("broken", "unknown") else None))
    return found + [Pair(cell, None, "missing", _gone(cell)) for cell in over.values()]


def _gone(cell: Json) -> str | None:
    return f"{cell['verdict']} in A, and not in B at all" if cell["verdict"] in _JUDGED else None


def _unlike(a: Json, b: Json) -> str:
    if a["host"] != b["host"]:
        return f"another machine or disk: {a['host']} against {b['host']}"
    return f"another lane: {a['lane']} against {b['lane']}"


def _compared(a: Side, b: Side, old: Json, new: Json) -> Pair:
    place = _place(new)
    refused = _refused(a, b, place)
    if refused:
        return Pair(old, new, "refused", refused)
    pair = Pair(old, new, *_verdicts(old, new))
    return _with_latency(_with_test(pair, a, b, place), a, b, place)


def _with_test(pair: Pair, a: Side, b: Side, place: Place) -> Pair:
    """Whether the loss rates differ: by trial, or by recording where there are enough of them to say anything."""
    old, new = (None if cell is None else _counts(cell) for cell in (pair.a, pair.b))
    if old is None or new is None:
        return pair
    if old[0] != new[0]:
        return replace(pair, tests_why=f"{old[0]} are not tested against {new[0]}")
    if new[0] == "trials":
        more = new[1] * old[2] > old[1] * new[2]
        return replace(pair, tests_unit="trials", more_lost=more, p=boschloo(*new[1:], *old[1:]))
    shares, others = b.recordings.get(place, []), a.recordings.get(place, [])
    if smallest_permutation_p(len(shares), len(others)) >= SURE:
        few = f"{len(others)} and {len(shares)} recordings are too few: whatever they lost could be chance"
        return replace(pair, tests_why=few)
    more = fmean(shares) > fmean(others)
    return replace(pair, tests_unit="recordings", more_lost=more, p=permutation(shares, others, seed=0))


def _refused(a: Side, b: Side, place: Place) -> str | None:
    """Why two cells of one machine are not compared all the same."""
    if a.methodology != b.methodology:
        return f"made by another methodology: {a.methodology} against {b.methodology} (results/README.md)"
    one, other = a.conditions.get(place), b.conditions.get(place)
    if not one or not other or one == other:
        return None
    unlike = [
        f"{name} {sorted({str(each[at]) for each in one})} against {sorted({str(each[at]) for each in other})}"
        for at, name in enumerate(CONDITIONS)
        if {each[at] for each in one} != {each[at] for each in other}
    ]
    return f"made with other options: {'; '.join(unlike)}"


def _verdicts(old: Json, new: Json) -> tuple[str, str | None]:
    """What became of the verdict, and why that is so."""
    before, after = (cell["verdict"] if cell["verdict"] in _JUDGED else None for cell in (old, new))
    if before is None and after is None and (new["verdict"] != "unknown" or old["verdict"] == "unknown"):
        return "not judged", new["why"]
    if after is None:
        return "untold", f"{new['verdict']}: {new['why'] or 'no reason recorded'}"
    if before is None:
        return "newly judged", new["why"]
    worse = _JUDGED.index(after) - _JUDGED.index(before)  # the worst comes first
    if worse < 0:
        return "worsened", new["why"]
    return ("improved", old["why"]) if worse > 0 else ("same", None)


def _counts(cell: Json) -> tuple[str, int, int] | None:
    """What a loss rate is counted in, losing, of all; None where none was judged."""
    if cell["gaps"]:
        return "recordings", cell["gaps_with_loss"], cell["gaps"]
    if cell["trials_counted"]:
        return "trials", cell["trials_with_loss"] or 0, cell["trials_counted"]
    return None


def _with_latency(pair: Pair, a: Side, b: Side, place: Place) -> Pair:
    old, new = pair.a or {}, pair.b or {}
    if old.get("put_p50_ms") is None or new.get("put_p50_ms") is None:
        return pair
    found = difference_by_trial(b.latencies[place], a.latencies[place], 0.5, seed=0)
    if found is None:
        return replace(pair, latency_why="too few puts")
    low, high = found.low, found.high
    if low is None or high is None:
        return replace(
            pair, put_p50_change_ms=_ms(found.value), latency_why="one trial says nothing about the next one"
        )
    size = (new["payload_bytes"] or 1) / (new["acked"] or 1)
    floors = [*a.floors(new["host"], size), *b.floors(new["host"], size)]
    moved = max(floors) - min(floors) if floors else 0.0
    if low <= 0 <= high:
        said, why = "no difference", None
    elif not floors:
        said, why = None, "no floor was measured to hold it against"
    elif abs(found.value) / _MS <= moved:
        said, why = None, f"the floor itself moved by {moved:.3g} ms"
    else:
        said, why = ("slower" if found.value > 0 else "faster"), None
    return replace(
        pair,
        put_p50_change_ms=_ms(found.value),
        put_p50_change_low_ms=_ms(low),
        put_p50_change_high_ms=_ms(high),
        latency=said,
        latency_why=why,
    )


def _ms(latency_ns: float) -> float:
    return float(f"{latency_ns / _MS:.6g}")


def _tested(pairs: Sequence[Pair]) -> list[Pair]:
    """With every p adjusted for how many there are; where a verdict stayed and the rate did not, that is the change."""
    made = [one for one in pairs if one.p is not None]
    adjusted = dict(zip(map(id, made), holm([one.p or 0.0 for one in made]), strict=True))
    found = []
    for one in pairs:
        sure = adjusted.get(id(one))
        pair = one if sure is None else replace(one, p=_six(one.p or 0.0), p_holm=_six(sure))
        if sure is not None and sure < SURE and one.change == "same":
            pair = replace(pair, change="more lost" if one.more_lost else "less lost")
        found.append(pair)
    faults = list(FAULTS)
    return sorted(
        found, key=lambda one: (not one.newly_broken, CHANGES.index(one.change), _fault_at(faults, one.cell["fault"]))
    )


def _fault_at(faults: Sequence[str], name: str) -> int:
    return faults.index(name) if name in faults else len(faults)


def _six(value: float) -> float:
    return float(f"{value:.6g}")


# --- what else is different


def differences(a: Sequence[Folder], b: Sequence[Folder]) -> list[str]:
    """In what the runs themselves differ: commit, profile, kernel, versions of what was tested."""
    one, other = (_known(side) for side in (a, b))
    return [
        f"{name}: {_shown(one.get(name))} → {_shown(other.get(name))}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _known(folders: Sequence[Folder]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}

    def add(name: str, value: Any) -> None:
        if value is not None:
            found.setdefault(name, {})[str(value)] = None

    for folder in folders:
        run = folder.run
        add("profile", run.get("profile"))
        add("commit", ((run.get("commit") or {}).get("commit") or "")[:12] or None)
        for name in ("kernel", "filesystem", "mount_options", "python"):
            add(name, (run.get("machine") or {}).get(name))
        for label, versions in (run.get("versions") or {}).items():
            for name, value in versions.items():
                if not name.startswith("sha256"):
                    add(f"{label.partition(':')[0]} {name}", value)
    return {name: ", ".join(values) for name, values in found.items()}


def _shown(value: str | None) -> str:
    return "not recorded" if value is None else value
