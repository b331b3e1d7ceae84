"""One invocation of ``plan``: what is asked, then cost, coarse pass, fine pass, layouts, faults, and the document.

Nothing is measured before it is known that a candidate meets the goal and that the disk has room. Every trial is
written down as it ends: Ctrl-C leaves a folder that says what there is.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench import campaign, results
from durabench.crossing import FEWEST_TRIALS
from durabench.ground import Ground
from durabench.plan import accounting, candidates, document, loss, settings, split, trace
from durabench.plan.ledger import Ledger
from durabench.plan.measure import WORKLOAD
from durabench.plan.own import sizes_at
from durabench.plan.recommend import COULD_NOT_TELL, recommend
from durabench.plan.sizes import text
from durabench.plan.sweep import Sweep, curves
from durabench.row import label as label_of
from durabench.schedule import UsageError
from durabench_backends.contract import Goal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench.campaign import Prepared
    from durabench.plan.candidates import Candidate
    from durabench.plan.settings import Effort
    from durabench.plan.trace import Trace
    from durabench.service import Target
    from durabench.trial import TrialPlan

LOCAL = Path("results") / "local"
AT_ONCE = 2
ROOM_FACTOR = 4
"""What a store may take for a payload while it writes it: log, copy, and what a rewrite makes beside it."""
ROOM_BYTES = 1 << 30
"""Beyond that: what servers preallocate."""
REPLAY_BYTES = 1 << 30
REPLAY_STEPS = 200
"""How much of a user's trace is replayed on the disk; the recommendation is computed from all of it."""


class NoRoom(RuntimeError):
    """The disk is too small for the sweep (exit 3)."""


@dataclass(frozen=True)
class Question:
    """What a person asks. ``max_p99_s`` and ``max_bytes_per_step`` are part of the goal; the rest is where and how.

    ``sizes``: the coarse grid in bytes, None for the profile's. ``trace``: their own steps; ``source``: a URL whose
    sizes are read.
    """

    goal: Goal = field(default_factory=Goal)
    backends: Sequence[str] = ()
    sizes: Sequence[int] | None = None
    max_p99_s: float | None = None
    max_bytes_per_step: int | None = None
    trace: Path | None = None
    source: str | None = None
    quick: bool = False
    directory: Path | None = None
    out: Path | None = None
    seed: int = field(default_factory=lambda: secrets.randbelow(1 << 31))
    command: Sequence[str] = field(default_factory=lambda: sys.argv)


@dataclass(frozen=True)
class Planned:
    """How it ended: the folder, still open, and plan.json's content. ``interrupted``: the rest was not measured."""

    folder: results.Folder
    document: Mapping[str, Any]
    interrupted: bool = False
    errors: Sequence[str] = ()
    """Mistakes of the harness itself that it met."""

    @property
    def status(self) -> int:
        """The exit status that the document means; with a mistake of ours in it, nobody could tell."""
        could_not_tell = self.interrupted or self.errors
        return COULD_NOT_TELL if could_not_tell else int(self.document["recommendation"]["status"])

    @property
    def doubts(self) -> list[str]:
        """What stands against trusting it."""
        return [*([] if self.document["ranked"] else [str(self.document["not_ranked_why"])]), *self.errors]


def plan(
    question: Question,
    parse_sizes: Callable[[str], Sequence[int]],
    say: Callable[[str], None],
    line: Callable[[str], None],
) -> Planned:
    """Measure and recommend. The folder is written up to, without, plan.json and done.json.

    Raises what the CLI answers with one line: NothingMeets, TraceError, NoRoom, UsageError, results.REFUSALS, …
    """
    profile = settings.load()
    effort = profile.quick if question.quick else profile.default
    own = None if question.trace is None else trace.read(question.trace)
    if question.source is not None and own is not None:
        raise UsageError("--trace or --from, not both: each says which sizes are yours")
    chosen = candidates.choose(question.backends, profile.kinds, question.goal)
    _refuse_twins(chosen)
    sizes = list(question.sizes or parse_sizes(effort.sizes))
    traces = _traces(own, effort, chosen)
    place = question.directory or (question.out.parent if question.out else LOCAL)
    _refuse_taken(question.out)
    ground = _ground(place)
    executor = ThreadPoolExecutor(AT_ONCE)  # one for everything: what a thread has started dies when that thread ends
    try:
        _refuse_too_small(ground.scratch, sizes, [one for one, _ in traces])
        going = _Going(question, effort, ground, executor, sizes, traces, own, chosen, say, line)
        return going.run()
    finally:
        ground.dismiss(executor)
        ground.close()


def _refuse_taken(out: Path | None) -> None:
    if out is not None and out.is_dir() and not results.is_free(out):
        raise results.NotEmpty(f"{out} is not empty; --out takes a new or empty folder")


def _refuse_twins(chosen: Sequence[Candidate]) -> None:
    labels = [f"{one.target.backend}:{one.target.setting}" for one in chosen]
    twins = {label for label in labels if labels.count(label) > 1}
    if twins:
        raise UsageError(f"{', '.join(sorted(twins))} twice: one URL of each kind at a time")


def _ground(place: Path) -> Ground:
    try:
        return Ground(place, alone=True)
    except OSError as error:
        message = f"the disk under test, {place}, cannot be written to: {error.strerror}; choose another with --dir"
        raise UsageError(message) from error


def _traces(own: Trace | None, effort: Effort, chosen: Sequence[Candidate]) -> list[tuple[Trace, list[Candidate]]]:
    """What is replayed in every layout, and on which candidates."""
    left = [one for one in chosen if one.excluded_by is None]
    if own is not None:
        steps = REPLAY_STEPS
        while steps > 1 and own.first(steps).whole_bytes > REPLAY_BYTES:
            steps //= 2
        return [(own.first(steps), left)]
    found = []
    for name in effort.traces:
        headline = [one for one in left if one.target.backend in effort.headline]
        some = headline if name == "once" else left
        if some:
            found.append((trace.BUILT_IN[name](effort.steps), some))
    return found


def _refuse_too_small(scratch: Path, sizes: Sequence[int], traces: Sequence[Trace]) -> None:
    largest = max([max(sizes), *(one.whole_bytes for one in traces)])
    needed = ROOM_FACTOR * largest + ROOM_BYTES
    free = shutil.disk_usage(scratch).free
    if free < needed:
        message = (
            f"the disk under test has {text(free)} free and the sweep may need {text(needed)}; "
            "choose smaller --sizes, or another disk with --dir"
        )
        raise NoRoom(message)


@dataclass
class _Going:
    """A plan under way."""

    question: Question
    effort: Effort
    ground: Ground
    executor: ThreadPoolExecutor
    sizes: list[int]
    traces: list[tuple[Trace, list[Candidate]]]
    own: Trace | None
    chosen: list[Candidate]
    say: Callable[[str], None]
    line: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)
    own_sizes: dict[str, Any] | None = None
    looked: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def run(self) -> Planned:
        facts = results.machine_facts(self.ground.scratch)
        if self.question.source is not None:
            self.own_sizes = sizes_at(self.question.source, self.ground)
        elif self.own is not None:
            each = [size for step in self.own.steps for size in (step.metadata_bytes, step.data_bytes * step.changed)]
            self.own_sizes = document.own_sizes(f"trace {self.own.name}", [size for size in each if size], self.own)
        prepared = self._prepare()
        left = [one for one in self.chosen if one.excluded_by is None]
        cells = loss.cells(left, {one.target: one.embedded for one in left})
        trials = loss.plans(cells, self.effort.fault_trials, self.question.seed)
        folder = self._folder(facts, prepared, cells, trials)
        ledger = Ledger(
            folder,
            self.ground,
            accounting.Device(self.ground.scratch),
            str(facts["id"]),
            self.question.seed,
            self.say,
            self.line,
            total_s=self.effort.total_s,
            began=self.began,
        )
        self.say(f"results go to {folder.path}; this takes at most {self.effort.total_s / 60:.2g} minutes")
        interrupted = False
        try:
            self._measure(ledger, left, prepared, trials)
        except KeyboardInterrupt:
            interrupted = True
            self.ground.dismiss(self.executor)  # else it would go on writing while it is read
        finally:
            self.line("")
        made = self._document(ledger, facts, trials)
        made |= {"interrupted": True} if interrupted else {"recommendation": recommend(made).as_json()}
        return Planned(folder, made, interrupted, self._errors(ledger, prepared))

    def _errors(self, ledger: Ledger, prepared: Mapping[Target, Prepared]) -> tuple[str, ...]:
        met = [f"{one.target.label}: {one.error}" for one in prepared.values() if one.error]
        return tuple(dict.fromkeys([*met, *ledger.errors]))

    def _measure(
        self, ledger: Ledger, left: list[Candidate], prepared: Mapping[Target, Prepared], trials: Sequence[TrialPlan]
    ) -> None:
        ledger.measure_floor("before", times=2)
        sweep = Sweep(ledger, self.effort, list(left), self.executor, self.said, self._wanted())
        try:
            sweep.cost(self.sizes)
            rest_s = self.effort.faults_s + self.effort.steps_s
            sweep.coarse(self.sizes, min(self.effort.coarse_s, ledger.left_s() - rest_s))
            self.looked = sweep.fine(min(self.effort.fine_s, ledger.left_s() - rest_s))
        finally:
            changed = {one.label: one for one in sweep.candidates}
            self.chosen = [changed.get(one.label, one) for one in self.chosen]
        self._replay(ledger)
        ledger.measure_floor("after", times=2)
        losses = loss.Losses(ledger, prepared, self.executor)
        fitting = [one for one in trials if all(self._takes(each) for each in one.targets.values())]
        if len(fitting) < len(trials):
            which = dict.fromkeys(
                each.label for one in trials for each in one.targets.values() if not self._takes(each)
            )
            most = text(loss.LARGEST_BYTES)
            left_out = f"{len(trials) - len(fitting)} of {len(trials)} fault trials were left out"
            losses.troubles.append(f"{left_out}: {', '.join(which)} does not take {most}")
        losses.run(fitting)
        self.said += losses.troubles
        for one in loss.table(ledger.folder.trials(), fitting):
            if one["trials_unknown"]:
                where = f"{one['metadata']} + {one['data']}" if one["metadata"] != one["data"] else one["metadata"]
                of = f"{one['trials_unknown']} of {one['trials'] + one['trials_unknown']} trials of {one['fault']}"
                self.said.append(f"{where}, {one['layout']}: {of} could not be judged: {one['unknown_why']}")

    def _wanted(self) -> frozenset[int]:
        """Sizes of the grid next to those of the first steps: yours, or the workload's."""
        steps = self.own.steps if self.own else [step for one, _ in self.traces[:1] for step in one.steps]
        put = {size for step in steps for size in (step.metadata_bytes, step.data_bytes) if size}
        return frozenset(min(self.sizes, key=lambda at: abs(log(at / size))) for size in put)

    def _replay(self, ledger: Ledger) -> None:
        for one, some in self.traces:
            there = [candidate for candidate in some if candidate.label in self._came_up(ledger)]
            data = self._fastest(ledger, there, max(step.data_bytes for step in one.steps))
            left_out = []
            for replay in split.replays(one, there, data):
                if split.forecast_s(replay, ledger.rows) > ledger.left_s() - self.effort.faults_s:
                    left_out.append(str(replay))
                    continue
                ledger.measure_floor("between")
                ledger.progress(f"steps of {one.name}, {replay}")
                split.carry_out(replay, ledger)
            if left_out:
                self.said.append(f"left out, for time, of {one.name}: {'; '.join(left_out)}")
                self.say(self.said[-1])

    def _takes(self, target: Target) -> bool:
        """Whether a value of the workloads was not refused: who refuses would be written at for ever."""
        stopped = next(one.stopped_bytes for one in self.chosen if one.target == target)
        return stopped is None or stopped > loss.LARGEST_BYTES

    def _came_up(self, ledger: Ledger) -> set[str]:
        return {label_of(row) for row in ledger.rows if row["kind"] == "sweep"}

    def _fastest(self, ledger: Ledger, some: Sequence[Candidate], size: int) -> Candidate | None:
        """Whose median put is shortest at the measured size next to ``size``; None where nothing was measured."""
        seen: dict[str, list[tuple[int, int]]] = {}
        for row in ledger.rows:
            if row["kind"] == "sweep" and row.get("put_p50_ns") is not None:
                label = label_of(row)
                seen.setdefault(label, []).append((abs(row["size_bytes"] - size), row["put_p50_ns"]))
        timed = [(min(seen[one.label]), one) for one in some if one.label in seen]
        nearest = min((distance for (distance, _), _ in timed), default=0)
        there = [(ns, one) for (distance, ns), one in timed if distance == nearest]
        return min(there, key=lambda pair: pair[0])[1] if there else None

    def _prepare(self) -> dict[Target, Prepared]:
        """Bring every candidate up once, and look at it: one at a URL is judged by what it says."""
        left = [one for one in self.chosen if one.excluded_by is None]
        began = time.monotonic()
        found = list(self.executor.map(lambda one: campaign.prepare(one.target, self.ground, WORKLOAD), left))
        self.say(f"brought up {len(found)} settings once in {time.monotonic() - began:.0f} s")
        judged = {}
        for one, prepared in zip(left, found, strict=True):
            if prepared.why_not is not None:
                judged[one] = replace(one, excluded_by="does not come up", why=prepared.why_not)
            elif one.target.url and prepared.promise is not None:
                judged[one] = candidates.by_promise(one, prepared.promise, self.question.goal)
            else:
                judged[one] = one
        self.chosen = [judged.get(one, one) for one in self.chosen]
        candidates.refuse_none(self.chosen)
        return {one.target: one for one in found}

    def _folder(
        self,
        facts: Mapping[str, Any],
        prepared: Mapping[Target, Prepared],
        cells: Sequence[Any],
        trials: Sequence[TrialPlan],
    ) -> results.Folder:
        question = self.question
        listed = [entry for workload, cell in cells for entry in campaign.cells_json([cell], prepared, workload, facts)]
        content = {
            "profile": "plan",
            "seed": question.seed,
            "command": results.redact_argv(["durabench", *question.command[1:]]),
            "commit": results.commit_facts(),
            "machine": dict(facts),
            "versions": {one.target.label: campaign.versions_of(one) for one in prepared.values()},
            "targets": {one.target.label: one.as_json() for one in prepared.values()},
            "promises": campaign.promises_of(prepared),
            "driver": "forked",
            "asked": _asked(question),
            "directory": None if question.directory is None else str(question.directory),
            "cells": listed,
            "plan": [one.as_json() for one in trials],
        }
        name = "plan-quick" if question.quick else "plan"
        folder = (
            results.Folder.create_at(question.out) if question.out else results.Folder.create(LOCAL, name, facts["id"])
        )
        folder.forget = str(self.ground.scratch)
        folder.begin(content)
        return folder

    def _document(self, ledger: Ledger, facts: Mapping[str, Any], trials: Sequence[TrialPlan]) -> dict[str, Any]:
        floor = document.floor_of(ledger.folder.floors())
        timed = facts["latency"] is None
        why = document.not_ranked_why(floor) if timed else f"{facts['latency']}: no latency, no ranking"
        labels = [one.label for one in self.chosen if one.excluded_by is None]
        seen = curves(ledger, self.effort.rounds) if timed else {}
        seed, trial_rows = self.question.seed, ledger.folder.trials()
        few = [label for label in labels if timed and len(seen.get(label, {})) < 2]
        if few and len(labels) > 1:
            rounds = min(self.effort.rounds, FEWEST_TRIALS)
            self.said.append(f"no crossings with {', '.join(few)}: too few sizes were measured in {rounds} rounds")
        return {
            "machine": dict(facts),
            "seed": seed,
            "quick": self.question.quick,
            "goal": _goal(self.question),
            "sizes": self.sizes,
            "candidates": [_with_largest(one, ledger).as_json() for one in self.chosen],
            "floor": floor,
            "ranked": why is None,
            "not_ranked_why": why,
            "left_out": self.said,
            "cold_how": accounting.COLD_HOW,
            "sweep": document.sweep_table(ledger.rows, ledger.folder.samples, seed, timed=timed),
            "crossings": document.crossings_of(seen, labels, seed, self.looked) if why is None else [],
            "split": document.split_table(ledger.rows, trial_rows, [one for one, _ in self.traces]),
            "losses": loss.table(trial_rows, trials),
            "own_sizes": self.own_sizes,
            "recommendation": None,
        }


def _with_largest(one: Candidate, ledger: Ledger) -> Candidate:
    taken = [
        row["size_bytes"]
        for row in ledger.rows
        if row["kind"] == "sweep" and row["puts"] and label_of(row) == one.label
    ]
    return replace(one, largest_bytes=max(taken, default=None))


def _goal(question: Question) -> dict[str, Any]:
    return {
        "survive": question.goal.survive.label,
        "max_loss_s": question.goal.max_loss_s,
        "max_p99_ms": None if question.max_p99_s is None else question.max_p99_s * 1000,
        "max_bytes_per_step": question.max_bytes_per_step,
    }


def _asked(question: Question) -> dict[str, Any]:
    named = {"backends", "sizes", "quick"}
    return {**{name: value for name, value in asdict(question).items() if name in named}, "goal": _goal(question)}
