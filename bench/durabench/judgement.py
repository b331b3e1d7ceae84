"""From what a trial left to its rows: find, judge, and write down, one row per namespace.

Pure, so that `durabench judge` can do it again from a stored history; what is read and written is the caller's.
"""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durabench import checker, fault
from durabench.history import from_events
from durabench.row import label as label_of
from durabench.row import loses
from durabench.statistics import quantile
from durabench_backends.contract import DATA, METADATA, Domain, Promise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durabench.history import Event, History
    from durabench.row import Row
    from durabench.trial import Outcome, TrialPlan


@dataclass(frozen=True)
class Held:
    """What a namespace of a plan is judged by: its target's promise, and whether older versions are part of it."""

    promise: Promise
    versions: bool = False


def rows(outcome: Outcome, held: Mapping[str, Held], host: str, folder: str) -> list[Row]:
    """The rows of a trial, without the place of its latencies; ``folder`` is named in the replay command."""
    history = from_events(outcome.events)
    return [
        _row(outcome, history, namespace, held[namespace], host, folder)
        for namespace in (METADATA, DATA)
        if history.of(namespace) or namespace == METADATA
    ]


def latencies_ns(events: Sequence[Event], namespace: str) -> list[int]:
    """The latency of every acknowledged put on a namespace, in ns."""
    return _latencies_ns(from_events(events), namespace)


def _latencies_ns(history: History, namespace: str) -> list[int]:
    return [a.latency_ns for a in history.of(namespace) if a.op.verb == "put" and a.latency_ns is not None]


def _row(outcome: Outcome, history: History, namespace: str, held: Held, host: str, folder: str) -> Row:
    plan = outcome.plan
    target, partner = plan.targets[namespace], plan.targets[DATA if namespace == METADATA else METADATA]
    destroyed = fault.load(plan.fault).destroys
    finding = checker.find(history, namespace, versions_promised=held.versions)
    verdict = checker.judge(finding, held.promise, destroyed)
    return {
        **_identity(plan, namespace),
        "backend": target.backend,
        "setting": target.setting,
        "url": target.where,
        "tier": held.promise.tier,
        "partner": None if partner == target else partner.label,
        "destroyed": destroyed.label,
        "host": host,
        "driver": outcome.driver,
        "started": outcome.started,
        "duration_s": outcome.duration_s,
        "struck": history.struck,
        "usual_put_ns": None if history.struck is None else _usual_ns(history, namespace),
        **_counts(finding),
        "recovery_s": None if history.recovery_ns is None else history.recovery_ns / 1e9,
        **(_peace(outcome, history, namespace) if destroyed is Domain.NOTHING else {}),
        "payload_bytes": sum(a.op.size for a in history.acknowledged(namespace) if a.op.verb == "put"),
        "control": plan.control,
        **outcome.more,
        **_told(outcome, namespace, finding, destroyed),
        "verdict": verdict.verdict,
        "why": verdict.why,
        "replay": f"durabench replay {shlex.quote(folder)} {plan.trial}",
    }


def _told(outcome: Outcome, namespace: str, finding: checker.Finding, destroyed: Domain) -> Row:
    """In which gap of a namespace a crash state is, and whether it tells. One that kept every write and lost nothing
    does not, where a drive could have dropped some: a store that forgets to flush would have come through as well.
    """
    told = dict(outcome.by_namespace.get(namespace, {}))
    kept_all = str(outcome.more.get("state") or "").startswith("all/") and destroyed > Domain.MACHINE
    return told | ({"telling": False} if told and kept_all and not finding.gone else {})


def _identity(plan: TrialPlan, namespace: str) -> Row:
    return {
        "trial": plan.trial,
        "attempt": plan.attempt,
        "namespace": namespace,
        "workload": plan.workload,
        "writers": plan.writers,
        "fault": plan.fault,
        "lane": plan.lane,
        "seed": plan.seed,
        "filesystem": plan.filesystem,
        "server_kill": plan.server_kill,
        "settle_s": plan.settle_s,
        "flush_delay_s": plan.flush_delay_s,
        "victim": plan.victim,
    }


def untold(outcome: Outcome, held: Mapping[str, Held], host: str, folder: str, why: str) -> list[Row]:
    """The rows of a trial whose history could not be judged, without a look at what it means: unknown, and why."""
    plan = outcome.plan
    begun = {METADATA, *(event["ns"] for event in outcome.events if event["e"] == "armed")}
    return [
        {
            **_identity(plan, namespace),
            "backend": plan.targets[namespace].backend,
            "setting": plan.targets[namespace].setting,
            "tier": held[namespace].promise.tier,
            "destroyed": fault.load(plan.fault).destroys.label,
            "host": host,
            "driver": outcome.driver,
            "started": outcome.started,
            "duration_s": outcome.duration_s,
            "control": plan.control,
            **outcome.more,
            "verdict": "unknown",
            "why": why,
            "replay": f"durabench replay {folder} {plan.trial}",
        }
        for namespace in (METADATA, DATA)
        if namespace in begun
    ]


COUNTS = ("acked", "in_doubt", "lost", "torn", "corrupt", "damaged_acked", "stale", "phantom", "resurrected", "hole")


def _counts(finding: checker.Finding) -> Row:
    more = ("versions_lost", "dangling", "orphan", "unavailable", "loss_window_s")
    return {name: getattr(finding, name) for name in (*COUNTS, *more)}


def _usual_ns(history: History, namespace: str) -> int | None:
    """The median of the puts that were acknowledged, which says whether a strike could have fallen inside one."""
    taken = _latencies_ns(history, namespace)
    return int(statistics.median(taken)) if taken else None


def _peace(outcome: Outcome, history: History, namespace: str) -> Row:
    """What only a trial without a fault measures."""
    p99 = quantile(_latencies_ns(history, namespace), 0.99)
    return {
        "put_p50_ns": _usual_ns(history, namespace),
        "put_p99_ns": None if p99 is None else int(p99),
        "size_bytes": outcome.sizes.get(namespace),
    }


@dataclass(frozen=True)
class FailedControl:
    """A control that did not do what it must: in which lane, on which file system made for it (None: the disk under
    test), in a phrase.
    """

    lane: str
    filesystem: str | None
    phrase: str

    def voids(self, plan: TrialPlan) -> bool:
        """Whether a trial cannot be believed for it: all, where the harness on this host failed; else those that were
        looked at in the same way.
        """
        return self.lane == "here" or (self.lane, self.filesystem) == (plan.lane, plan.filesystem)


def failed_controls(rows: Sequence[Mapping[str, Any]]) -> list[FailedControl]:
    """The controls among ``rows`` that failed.

    What must keep must have kept in every trial; what must lose, in at least one of those of the same kind and fault,
    in every lane and on every file system.
    """
    grouped: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        where = (row["lane"], row["filesystem"] or "") if row.get("recording") is not None else ("here", "")
        grouped.setdefault((row["control"], label_of(row), row["fault"], *where), []).append(row)
    failed = []
    for (kind, label, name, lane, filesystem), members in grouped.items():
        held = {
            "negative": all(row["verdict"] == "kept" for row in members),
            "positive": any(loses(row) or row["unavailable"] for row in members),
            "detector": any(row["lost"] and row["corrupt"] for row in members),
        }
        if not held[kind]:
            worst = next((row for row in members if row["verdict"] != "kept"), members[0])
            on = f" on {filesystem}" if filesystem else ""
            phrase = f"{kind} ({label}, {name}{on}: {worst['why']})"
            failed.append(FailedControl(lane, filesystem or None, phrase))
    return failed
