"""What the charts draw: a report's document, and what of the rows it leaves out.

A loss window is one value per unit of evidence: the trial, or, on recorded faults, the gap between two
acknowledgements with the longest window of its crash states. Latencies are those that the document's medians are made
of: an orderly stop, on this host.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from durabench.results import NotAFolder
from durabench.row import label as label_of
from durabench.row import loses, setting_label
from durabench_backends.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durabench.report.layout import Json
    from durabench.results import Folder
    from durabench.row import Row

Place = tuple[str, str, str, str]
"""host, backend, setting, namespace."""
Struck = tuple[str, str, str, str, str]
"""host, backend, setting, namespace, fault."""


@dataclass(frozen=True)
class Material:
    """All that is drawn.

    ``windows_s``: loss windows of what lost something. ``all_lost``: in how many of them nothing acknowledged was left,
    so that the window says how long the trial was, and no more. ``latencies_ns``: put latencies, all trials together.
    ``promises``: ``backend:setting`` → domain → seconds that may go. ``plans``: contents of ``plan.json``.
    """

    document: Json
    windows_s: Mapping[Struck, Sequence[float]] = field(default_factory=dict)
    all_lost: Mapping[Struck, int] = field(default_factory=dict)
    latencies_ns: Mapping[Place, Sequence[int]] = field(default_factory=dict)
    promises: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    plans: Sequence[Json] = ()

    @property
    def cells(self) -> Sequence[Json]:
        """The cells of the document."""
        found: Sequence[Json] = self.document["cells"]
        return found

    @cached_property
    def hosts(self) -> list[str]:
        """Machines and disks, in order of appearance."""
        return list(dict.fromkeys(cell["host"] for cell in self.cells))

    @property
    def backends(self) -> list[str]:
        """Every backend that is drawn anywhere, in the order that gives each its colour and marker."""
        seen = {cell["backend"] for cell in self.cells}
        seen |= {point["backend"] for plan in self.plans for point in plan.get("sweep") or ()}
        return in_order(seen)

    def place(self, cell: Json) -> str:
        """``backend:setting``, with the host where there are several."""
        label = label_of(cell)
        return f"{label} @{cell['host']}" if len(self.hosts) > 1 else label


def in_order(backends: Iterable[str]) -> list[str]:
    """Registered backends as the registry has them, then others by name: no run changes another's colours."""
    known = list(BACKENDS)
    return sorted(backends, key=lambda name: (known.index(name) if name in known else len(known), name))


class Gathering:
    """Takes rows as they are read, once, and becomes `Material`: a run may have 100,000."""

    def __init__(self) -> None:
        self._windows: dict[Struck, dict[object, float]] = {}
        self._all_lost: dict[Struck, set[object]] = {}
        self._latencies: dict[Place, array[int]] = {}
        self._promises: dict[str, Mapping[str, float]] = {}
        self._plans: list[Json] = []

    def folder(self, folder: Folder) -> None:
        """Take what the folder says beside its rows."""
        for label, promise in (folder.run.get("promises") or {}).items():
            may = promise.get("may_lose_s") or {}
            known = self._promises.get(label, may)
            # Where two runs differ, as one label with two configurations does, the weaker promise is that of both.
            self._promises[label] = {domain: max(known[domain], may[domain]) for domain in known if domain in may}
        plan = _json(folder)
        if plan is not None:
            self._plans.append(plan)

    def row(self, row: Row, folder: Folder) -> None:
        """Take one row."""
        if row.get("control") is not None:
            return
        place = (row["host"], row["backend"], setting_label(row), row["namespace"])
        if row.get("samples_n") and row.get("destroyed") == "nothing" and row["lane"] == "here":
            taken = folder.samples(row.get("samples_at"), row.get("samples_n"))
            self._latencies.setdefault(place, array("q")).extend(taken)
        window = row.get("loss_window_s")
        if window is None or row["verdict"] == "unknown" or not loses(row):
            return
        unit: object = (str(folder.path), row["trial"])
        if row.get("recording") is not None and row.get("gap") is not None:
            unit = (str(folder.path), row["recording"], row["gap"])
        struck = (*place, row["fault"])
        units = self._windows.setdefault(struck, {})
        units[unit] = max(window, units.get(unit, 0.0))
        if (row.get("lost") or 0) >= (row.get("acked") or 0):
            self._all_lost.setdefault(struck, set()).add(unit)

    def material(self, document: Json) -> Material:
        """What was gathered, beside the document of the same folders."""
        windows = {key: sorted(units.values()) for key, units in self._windows.items()}
        all_lost = {key: len(units) for key, units in self._all_lost.items()}
        return Material(document, windows, all_lost, self._latencies, self._promises, tuple(self._plans))


def gather(document: Json, folders: Sequence[Folder]) -> Material:
    """The material of folders and of the document made of them."""
    gathering = Gathering()
    for folder in folders:
        gathering.folder(folder)
        for rows in folder.each_trial():
            for row in rows:
                gathering.row(row, folder)
    return gathering.material(document)


def _json(folder: Folder) -> dict[str, Any] | None:
    """plan.json of a folder that has one; what cannot be read is not drawn, and the chart says so."""
    try:
        return folder.plan_document
    except NotAFolder:
        return None
