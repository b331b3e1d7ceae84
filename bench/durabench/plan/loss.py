"""What both layouts lose when something dies: the ordinary cycle, on the workloads ``whole`` and ``agent``."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from durabench import campaign, judgement, schedule
from durabench import fault as faults
from durabench.row import label as label_of
from durabench.trial import Outcome, TrialPlan
from durabench.workload import DATA_BYTES, METADATA_BYTES
from durabench_backends.contract import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from durabench.campaign import Prepared
    from durabench.plan.candidates import Candidate
    from durabench.plan.ledger import Ledger
    from durabench.row import Row
    from durabench.service import Target

WORKLOADS = {"whole": "whole", "split": "agent"}
"""Layout → the workload that writes in it."""
LARGEST_BYTES = METADATA_BYTES + DATA_BYTES
FAULTS = ("kill-client", "kill-server")
LEAVE_S = 10.0


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
    """Every trial with its seed, in the order of the cells."""
    numbers = count()
    return [
        TrialPlan(
            trial=(number := next(numbers)),
            seed=Random(f"{seed}/fault/{number}").getrandbits(48),
            metadata=cell.metadata,
            data=cell.data,
            workload=workload,
            fault=cell.fault,
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
        futures = [
            self.executor.submit(campaign.run_visit, visit, self.ledger.ground, self._mail.put, self.stop)
            for visit in _visits(some)
        ]
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
                future.result()
        finally:
            self.stop.set()
            end = time.monotonic() + LEAVE_S
            while time.monotonic() < end and not all(future.done() for future in futures):
                time.sleep(0.02)

    def _letters(self) -> Iterator[Any]:
        try:
            yield self._mail.get(timeout=0.05)
            while True:
                yield self._mail.get_nowait()
        except queue.Empty:
            return

    def _take(self, mail: Any) -> int:
        if not isinstance(mail, Outcome):
            visit, why = mail
            self._trouble(f"{visit.key[0].label}: {why}")
            return 0
        folder = self.ledger.folder
        folder.write_history(mail.plan.trial, mail.events, mail.plan.attempt)
        held = campaign.held(mail.plan, self.prepared)
        folder.append(judgement.rows(mail, held, self.ledger.host, str(folder.path)))
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


def _arranged(row: Row) -> tuple[str, str, str] | None:
    """Metadata's and data's label and the workload of a trial, from its metadata row; None for the other one."""
    label = label_of(row)
    return (label, row["partner"] or label, row["workload"]) if row["namespace"] == METADATA else None


def summary(rows: Sequence[Row], metadata: str, data: str, layout: str) -> list[dict[str, Any]]:
    """What a layout lost under each fault: counts over the trials, and the bound that they give."""
    from durabench.statistics import loss_rate

    wanted = (metadata, data, WORKLOADS[layout])
    found = []
    for name in FAULTS:
        here = {row["trial"] for row in rows if row["fault"] == name and _arranged(row) == wanted}
        mine: dict[int, list[Row]] = {}
        for row in rows:
            if row["trial"] in here and row["verdict"] != "unknown":
                mine.setdefault(row["trial"], []).append(row)
        if not mine:
            continue
        losing = sum(any(row["lost"] or row["unavailable"] for row in members) for members in mine.values())
        every = [row for members in mine.values() for row in members]
        verdicts = ("broken", "no-promise", "within", "kept")
        found.append(
            {
                "fault": name,
                "trials": len(mine),
                "trials_with_loss": losing,
                "lost": sum(row["lost"] or 0 for row in every),
                "dangling": sum(row["dangling"] or 0 for row in every),
                "verdict": min((row["verdict"] for row in every), key=verdicts.index),
                "bound_high": loss_rate(losing, len(mine))[1],
            }
        )
    return found
