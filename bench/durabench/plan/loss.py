"""What both layouts lose when something dies: the ordinary cycle, on the workloads ``whole`` and ``agent``."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from durabench import campaign, schedule
from durabench import fault as faults
from durabench.row import label as label_of
from durabench.trial import TrialPlan
from durabench.workload import DATA_BYTES, METADATA_BYTES
from durabench_backends.contract import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from durabench.campaign import Prepared
    from durabench.plan.candidates import Candidate
    from durabench.plan.ledger import Ledger
    from durabench.row import Row
    from durabench.service import Target

WORKLOADS = {"whole": "whole", "split": "agent"}
"""Layout → the workload that writes in it."""
LARGEST_BYTES = METADATA_BYTES + DATA_BYTES
FAULTS = ("kill-client", "kill-server")
LOSSES = ("lost", "stale", "damaged_acked", "resurrected")
"""Fields of a row that say that something acknowledged is not what it should be."""
VERDICTS = ("broken", "no-promise", "within", "kept")
"""Of what was judged, worst first."""


def cells(candidates: Sequence[Candidate], embedded: Mapping[Target, bool]) -> list[tuple[str, schedule.Cell]]:
    """(workload, cell) of every candidate, layout and fault that can be done to it here; and of split over two, its
    data in the first candidate.
    """
    targets = [one.target for one in candidates]
    arranged = [(workload, target, target) for target in targets for workload in WORKLOADS.values()]
    arranged += [(WORKLOADS["split"], target, targets[0]) for target in targets[1:]]
    return [
        (workload, schedule.Cell(metadata, data, name))
        for workload, metadata, data in arranged
        for name in FAULTS
        if not faults.load(name).needs_server
        or any(not embedded[target] and not target.url for target in (metadata, data))
    ]


def plans(some: Sequence[tuple[str, schedule.Cell]], trials: int, seed: int) -> list[TrialPlan]:
    """Every trial with its seed, paced as `run` does, in the order of the cells."""
    numbers = count()
    return [
        schedule.paced(
            TrialPlan(
                trial=(number := next(numbers)),
                seed=Random(f"{seed}/fault/{number}").getrandbits(48),
                metadata=cell.metadata,
                data=cell.data,
                workload=workload,
                fault=cell.fault,
            )
        )
        for workload, cell in some
        for _ in range(trials)
    ]


@dataclass
class Losses:
    """Runs the trials, several at a time, and writes down their rows as a campaign does."""

    ledger: Ledger
    prepared: Mapping[Target, Prepared]
    executor: Executor
    stop: threading.Event = field(default_factory=threading.Event)
    troubles: list[str] = field(default_factory=list)
    _mail: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def run(self, some: Sequence[TrialPlan]) -> None:
        """All of them; KeyboardInterrupt leaves those that have ended."""
        futures = [self._submit(visit) for visit in _visits(some)]
        done = 0
        try:
            while not all(future.done() for future in futures) or not self._mail.empty():
                if self.ledger.left_s() < 0 and done < len(some) and not self.stop.is_set():
                    self.stop.set()
                    self._trouble(f"{len(some) - done} of {len(some)} fault trials were left out, for time")
                for mail in self._letters():
                    done += self._take(mail)
                    self.ledger.progress(f"faults, trial {done} of {len(some)}")
            for future in futures:
                error = future.exception()
                if error is not None:
                    self.ledger.mistaken("fault trials", error)
        finally:
            self.stop.set()

    def _submit(self, visit: schedule.Visit) -> Future[None]:
        """No visit takes longer than its share of all the time."""
        share_s = campaign.share_s(self.ledger.total_s, [self.prepared[target] for target in visit.key])
        return self.executor.submit(campaign.run_visit, visit, self.ledger.ground, self._mail.put, self.stop, share_s)

    def _letters(self) -> Iterator[Any]:
        try:
            yield self._mail.get(timeout=0.05)
            while True:
                yield self._mail.get_nowait()
        except queue.Empty:
            return

    def _take(self, mail: Any) -> int:
        if isinstance(mail, campaign.Trouble):
            self._trouble(f"{mail.visit.key[0].label}: {mail.why}")
            self.ledger.errors += [mail.error] if mail.error else []
            return 0
        folder, plan = self.ledger.folder, mail.plan
        held = campaign.held(plan, self.prepared)
        rows, events, error = campaign.judged(mail, held, self.ledger.host, str(folder.path))
        folder.write_history(plan.trial, events, plan.attempt)
        folder.append(rows)
        if error is not None:
            self.ledger.errors.append(f"trial {plan.trial}, {plan.metadata.label} {plan.fault}: {error}")
            self._trouble(self.ledger.errors[-1])
        return 1

    def _trouble(self, what: str) -> None:
        self.troubles.append(what)
        self.ledger.say(what)


def _visits(some: Sequence[TrialPlan]) -> Iterator[schedule.Visit]:
    """Trials that share a bring-up: of one target, one workload (the drivers are warmed for it), one fault."""
    grouped: dict[tuple[Any, ...], list[TrialPlan]] = {}
    for plan in some:
        grouped.setdefault((plan.metadata, plan.data, plan.workload), []).append(plan)
    for members in grouped.values():
        Random(members[0].seed).shuffle(members)  # what is left out, for time, is then some of every fault
        for at in range(0, len(members), schedule.VISIT_TRIALS):
            yield schedule.Visit(members[at : at + schedule.VISIT_TRIALS])


@dataclass(frozen=True)
class Arranged:
    """What a trial wrote where: the labels of metadata's and data's home, and the workload."""

    metadata: str
    data: str
    workload: str

    @classmethod
    def of_plan(cls, plan: TrialPlan) -> Arranged:
        """A planned trial's."""
        return cls(plan.metadata.label, plan.data.label, plan.workload)

    @classmethod
    def of_row(cls, row: Row) -> Arranged | None:
        """A trial's, from its metadata row; None for the other one."""
        label = label_of(row)
        return cls(label, row["partner"] or label, row["workload"]) if row["namespace"] == METADATA else None


def table(rows: Sequence[Row], planned: Sequence[TrialPlan]) -> list[dict[str, Any]]:
    """Every arrangement and fault that trials were planned for, with what they showed: one entry each, also where none
    ran.
    """
    layouts = {workload: layout for layout, workload in WORKLOADS.items()}
    numbers = Counter((Arranged.of_plan(plan), plan.fault) for plan in planned)
    found = []
    for (one, fault), number in numbers.items():
        layout = layouts[one.workload]
        seen = {entry["fault"]: entry for entry in summary(rows, one.metadata, one.data, layout)}
        where = {"layout": layout, "metadata": one.metadata, "data": one.data, "planned": number}
        found.append({**where, **seen.get(fault, _counted(fault, []))})
    return found


def summary(rows: Sequence[Row], metadata: str, data: str, layout: str) -> list[dict[str, Any]]:
    """What a layout lost under each fault: counts over the trials, and the bound that they give."""
    wanted = Arranged(metadata, data, WORKLOADS[layout])
    trials: dict[str, dict[int, list[Row]]] = {name: {} for name in FAULTS}
    mine = {row["trial"] for row in rows if Arranged.of_row(row) == wanted}
    for row in rows:
        if row["trial"] in mine and row["fault"] in trials:
            trials[row["fault"]].setdefault(row["trial"], []).append(row)
    return [_counted(name, list(members.values())) for name, members in trials.items() if members]


def _counted(fault: str, trials: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """One fault's entry. A trial is judged where each of its namespaces was, or where one was seen to break its
    promise: what a store did outweighs a doubt. What did not come up is counted apart from what was lost.
    """
    from durabench.statistics import loss_rate

    told = [rows for rows in trials if not _untold(rows)]
    every = [row for rows in told for row in rows]
    losing = [rows for rows in told if any(_loses(row) for row in rows)]
    counted = [rows for rows in told if rows in losing or not any(row["unavailable"] for row in rows)]
    doubts = [_why(row) for rows in trials if _untold(rows) for row in rows if row["verdict"] == "unknown"]
    return {
        "fault": fault,
        "trials": len(told),
        "trials_unknown": len(trials) - len(told),
        "unknown_why": doubts[0] if doubts else None,
        "trials_with_loss": len(losing),
        "trials_unavailable": sum(any(row["unavailable"] for row in rows) for rows in told),
        **{name: sum(row.get(name) or 0 for row in every) for name in (*LOSSES, "dangling")},
        "verdict": _worst(every, trials),
        "guilty": _guilty(told),
        "bound_high": loss_rate(len(losing), len(counted))[1] if counted else None,
    }


def _untold(rows: Sequence[Row]) -> bool:
    verdicts = {row["verdict"] for row in rows}
    return "unknown" in verdicts and "broken" not in verdicts


def _loses(row: Row) -> bool:
    return any(row.get(name) for name in LOSSES)


def _worst(judged: Sequence[Row], trials: Sequence[object]) -> str:
    words = {row["verdict"] for row in judged}
    return next((word for word in VERDICTS if word in words), "unknown" if trials else "not run")


def _why(row: Row) -> str:
    return row.get("why") or f"{row['verdict']}, nobody said why"


def _guilty(trials: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Which backend broke its promise, in how many of the trials, and how: of two never the other one."""
    whys: dict[str, list[str]] = {}
    for rows in trials:
        for label in dict.fromkeys(label_of(row) for row in rows if row["verdict"] == "broken"):
            first = next(row for row in rows if row["verdict"] == "broken" and label_of(row) == label)
            whys.setdefault(label, []).append(_why(first))
    return [{"label": label, "trials": len(some), "why": some[0]} for label, some in whys.items()]
