"""One invocation of ``run``: prepares every target, runs controls, then rounds of trials, and writes what it saw.

Kill trials run several at a time; latency is taken apart and alone, interleaved with floors. Only this module's thread
writes to the result folder. Everything that is started dies with durabench, and nothing is left on the disk under test.
"""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from durabench import fault as faults
from durabench import floor, judgement, recorded, schedule
from durabench.ground import LEAVE_S
from durabench.guest import Laboratory, NoMachine
from durabench.host import machine8
from durabench.judgement import FailedControl, Held
from durabench.process import HarnessError
from durabench.row import loses
from durabench.schedule import Key, Visit, key_of
from durabench.service import Service
from durabench.trial import CUT, HARNESS, Outcome, Site, TrialPlan, in_one_line, namespaces, run_trial, without_trial
from durabench_backends.contract import Domain, Fact, Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from durabench.ground import Ground
    from durabench.history import Event
    from durabench.machine import Here
    from durabench.results import Folder
    from durabench.row import Row
    from durabench.schedule import Cell
    from durabench.service import Target

DEAR_S = 2.0
"""A setting over so many seconds a trial gets fewer of them."""
GROUP_TARGETS = 5
BRING_UPS = 2
"""How often a visit is tried to be brought up before its targets are given up, where it fails at once."""
AT_ONCE_S = 5.0
SHARES = 10
"""A visit gets so small a part of a budget …"""
TRIAL_S = 2.0
"""… or, where that is more, twice what its targets took to come up, and a trial."""
DROP_S = 10.0
"""Longest that it takes to leave somebody's store as it was found."""
SWITCH_S = 0.0005
"""Longest that one thread computes while another, which has heard of a put, waits to strike: usually ten times that."""


@dataclass(frozen=True)
class Prepared:
    """A target that came up once before the campaign: what it says of itself, or why it did not come up."""

    target: Target
    promise: Promise | None = None
    facts: Sequence[Fact] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    """Name of each of its programs → SHA-256."""
    why_not: str | None = None
    seconds: float = 0.0
    error: str | None = None
    """The mistake of the harness itself that it met, in one line."""

    def as_json(self) -> dict[str, Any]:
        """Its part of ``run.json``."""
        return {
            "facts": {fact.id: {"value": fact.value, "origin": fact.origin} for fact in self.facts},
            "promise": None if self.promise is None else self.promise.as_json(),
            "why_not": self.why_not,
        }


class Interrupted(Exception):
    """Ctrl-C: what was recorded is kept."""


def prepare(target: Target, ground: Ground, workload: str) -> Prepared:
    """Bring a target up once, look at it, and end it; a failure is told, not raised."""
    began = time.monotonic()
    try:
        machine = ground.machine([target], workload)
        try:
            service = Service(machine, target, machine.root / "store")
            service.set_up()
            service.look()
            programs = {} if target.url else dict(_programs(service))
            service.leave()
        finally:
            machine.close()
    except (HarnessError, OSError) as error:
        return Prepared(target, why_not=str(error), seconds=time.monotonic() - began)
    except Exception as error:
        why = in_one_line(error)
        return Prepared(target, why_not=why, seconds=time.monotonic() - began, error=why)
    return Prepared(target, service.promise, service.facts, programs, seconds=time.monotonic() - began)


def _programs(service: Service) -> Iterator[tuple[str, str]]:
    for command in service.backend.commands():
        path = Path(command.argv[0])
        with path.open("rb") as file:
            yield path.name, hashlib.file_digest(file, "sha256").hexdigest()


class Trouble(NamedTuple):
    """What kept a visit or a recording from its end. ``strikes`` count against its targets, which are given up at
    ``BRING_UPS``; 0: only told. ``error``: a mistake of the harness itself, in one line.
    """

    visit: Visit
    why: str
    strikes: int = BRING_UPS
    error: str | None = None


Mail = Outcome | Trouble


def run_visit(
    visit: Visit, ground: Ground, tell: Callable[[Mail], None], stop: threading.Event, share_s: float = float("inf")
) -> None:
    """Bring a visit's targets up on a fresh directory and run its trials; after one that went wrong, on another.

    ``tell`` gets each outcome as its trial ends, and what kept the visit from its end. It never takes longer than
    ``share_s``: then it is cut, the trial under way is unknown, and its machine is closed.
    """
    _Visiting(visit, ground, tell, stop, share_s).run()


@dataclass
class _Visiting:
    visit: Visit
    ground: Ground
    tell: Callable[[Mail], None]
    stop: threading.Event
    share_s: float
    left: list[TrialPlan] = field(init=False)
    until: float = field(init=False)
    failures: int = 0
    longest_s: float = 0.0
    """What the longest of its trials took."""
    hung: str | None = None
    """What was waited for when its share was spent."""

    def __post_init__(self) -> None:
        self.left = list(self.visit.plans)
        self.until = time.monotonic() + self.share_s

    def run(self) -> None:
        while self.left and self.failures < BRING_UPS and not self.stop.is_set() and self._another_fits():
            self._on_a_fresh_directory()
        if (self.left or self.hung) and self.failures < BRING_UPS and not self.stop.is_set():
            done = f"{len(self.visit.plans) - len(self.left)} of its {len(self.visit.plans)} trials"
            why = f"{CUT} of {self.share_s:.3g} s, with {done}: {self.hung or 'one more would take longer'}"
            self.tell(Trouble(self.visit, why, strikes=int(self.hung is not None)))

    def _another_fits(self) -> bool:
        """Whether it has time for one more trial, as long as its longest."""
        return self.hung is None and time.monotonic() + self.longest_s < self.until

    def _on_a_fresh_directory(self) -> None:
        machine, began = None, time.monotonic()
        try:
            machine = self.ground.machine(self.visit.key, self.left[0].workload, self.left[0].server_kill)
            machine.until = self.until
            self._trials(Site.set_up(machine, self.left[0].targets))
        except (HarnessError, OSError) as error:
            if time.monotonic() >= self.until:
                self.hung = str(error)
                return
            # Dead at once may be bad luck, such as a port that somebody took meanwhile; a minute's silence is not.
            self.failures += 1 if time.monotonic() - began < AT_ONCE_S else BRING_UPS
            if self.failures >= BRING_UPS and not self.stop.is_set():
                self.tell(Trouble(self.visit, str(error)))
        except Exception as error:
            self._mistaken(error)
        finally:
            if machine is not None:
                self._close(machine)

    def _trials(self, site: Site) -> None:
        while self.left and not self.stop.is_set() and self._another_fits():
            outcome = run_trial(self.left.pop(0), site)
            self.longest_s = max(self.longest_s, outcome.duration_s)
            if outcome.undisturbed or not self.stop.is_set():  # what a stop itself disturbed is done again by a resume
                self.tell(outcome)
            doubts = [event["why"] for event in outcome.events if event["e"] in ("doubt", "down")]
            if doubts:
                self.hung = doubts[-1].removeprefix(f"{CUT}: ") if time.monotonic() >= self.until else None
                break
        # Somebody's store is left as it was found, however late it is.
        site.machine.until = max(self.until, time.monotonic() + DROP_S)
        site.leave()
        site.machine.until = self.until

    def _mistaken(self, error: Exception) -> None:
        """A mistake of ours where no trial was under way: the one that was to come cannot be told, and says why."""
        why = in_one_line(error)
        self.failures += 1
        if self.left:
            self.tell(without_trial(self.left.pop(0), why, why))
        if self.left and self.failures >= BRING_UPS:
            self.tell(Trouble(self.visit, why))

    def _close(self, machine: Here) -> None:
        try:
            machine.close()
        except Exception as error:
            why = in_one_line(error)
            self.tell(Trouble(self.visit, why, 0, error=why))


def run_recording(
    plans: Sequence[TrialPlan],
    laboratory: Laboratory,
    shelf: recorded.Shelf,
    prepared: Mapping[Target, Prepared],
    tell: Callable[[Mail], None],
    stop: threading.Event,
    seconds: list[float],
    share_s: float = float("inf"),
) -> None:
    """Record once and look at every planned crash state; what loses is kept with the disk it began from. Or kill a
    server on a slow drive, as often as that is planned.

    No crash state is begun when its recording is older than ``share_s``. A mistake of ours leaves what was not told
    unknown.
    """
    if stop.is_set():
        return
    began = time.monotonic()
    told: set[int] = set()

    def hear(outcome: Outcome) -> None:
        told.add(outcome.plan.trial)
        tell(outcome)

    try:
        with laboratory.alone(plans[0].targets):
            if faults.load(plans[0].fault).late_flushes:
                _kill_slowly(plans, laboratory, hear, tell, stop)
            else:
                _look_at_states(plans, laboratory, shelf, prepared, hear, stop, share_s)
                if len(told) < len(plans) and not stop.is_set():
                    why = f"{CUT} of {share_s:.3g} s, with {len(told)} of its {len(plans)} crash states"
                    tell(Trouble(Visit(plans), why, strikes=int(len(told) <= 1)))
    except (HarnessError, NoMachine, OSError) as error:
        if not stop.is_set():
            tell(Trouble(Visit(plans), str(error), strikes=1))
    except Exception as error:
        why = in_one_line(error)
        for plan in plans:
            if plan.trial not in told:
                tell(without_trial(plan, why, why))
        tell(Trouble(Visit(plans), why, strikes=1, error=why))
    finally:
        seconds.append(time.monotonic() - began)


def _what_was_seen(plan: TrialPlan, error: Exception) -> Outcome:
    """A trial that was not struck, with what its writers had read."""
    seen = error.events if isinstance(error, recorded.Disturbed) else ()
    return without_trial(plan, str(error), seen=seen)


def _kill_slowly(
    plans: Sequence[TrialPlan],
    laboratory: Laboratory,
    hear: Callable[[Outcome], None],
    tell: Callable[[Mail], None],
    stop: threading.Event,
) -> None:
    """Each a trial of its own, with a doubt where it fails."""
    for plan in plans:
        if stop.is_set():
            return
        try:
            outcome = recorded.kill_on_slow_drive(plan, laboratory, stop.is_set)
            if outcome.undisturbed or not stop.is_set():
                hear(outcome)
        except (HarnessError, OSError) as error:
            if not stop.is_set():
                hear(_what_was_seen(plan, error))
                tell(Trouble(Visit([plan]), str(error), strikes=1))


def _look_at_states(
    plans: Sequence[TrialPlan],
    laboratory: Laboratory,
    shelf: recorded.Shelf,
    prepared: Mapping[Target, Prepared],
    hear: Callable[[Outcome], None],
    stop: threading.Event,
    share_s: float,
) -> None:
    found: list[Row] = []

    def look(outcome: Outcome) -> None:
        hear(outcome)
        found.extend(judgement.rows(outcome, held(outcome.plan, prepared), "", ""))

    if stop.is_set():
        return
    try:
        made = recorded.record(plans[0], laboratory, stop.is_set)
    except recorded.Disturbed as error:
        outcome = _what_was_seen(plans[0], error)
        if not stop.is_set() and any(
            row["verdict"] == "broken" for row in judgement.rows(outcome, held(plans[0], prepared), "", "")
        ):
            hear(outcome)  # its writers saw it in peace: no crash state is needed to tell
        raise
    until = time.monotonic() + share_s
    try:
        recorded.run_states(made, plans, laboratory, look, lambda: stop.is_set() or time.monotonic() > until)
        if any(row["verdict"] == "broken" or (loses(row) and row["destroyed"] != "flushed") for row in found):
            of = " ".join([*(target.label for target in plans[0].targets.values()), str(plans[0].filesystem)])
            shelf.keep(made, of, broken=any(row["verdict"] == "broken" for row in found))
    finally:
        made.close()


@dataclass
class Campaign:
    """The running of a schedule. Construct, then `run` inside ``with``."""

    folder: Folder
    ground: Ground
    cells: list[Cell]
    plans: list[TrialPlan]
    workload: str
    prepared: Mapping[Target, Prepared]
    facts: Mapping[str, Any]
    seed: int
    budget_s: float | None
    dear_trials: int | None
    dear_every_rounds: int
    round_kills: int
    executor: Executor
    at_once: int
    say: Callable[[str], None]
    progress: Callable[[int, int, str], None]
    power_budget_s: float | None = None
    recordings_max_bytes: int = 256 << 20
    latency_matters: bool = True
    no_machine: str | None = None
    """Why nothing could be reset here, although that was planned."""
    stop: threading.Event = field(default_factory=threading.Event)
    shelf: recorded.Shelf = field(init=False)
    troubles: dict[Key, str] = field(default_factory=dict)
    control_rows: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Mistakes of the harness itself, in the order in which they were met: what was not met is not known (exit 3)."""
    _mail: queue.SimpleQueue[Mail] = field(default_factory=queue.SimpleQueue)
    _seconds: dict[tuple[Target, Target], list[float]] = field(default_factory=dict)
    _counts: dict[tuple[Key, str], int] = field(default_factory=dict)
    _futures: list[Future[None]] = field(default_factory=list)
    _failures: dict[Key, int] = field(default_factory=dict)
    _whys: dict[Key, str] = field(default_factory=dict)
    _recordings_s: list[float] = field(default_factory=list)
    _recorded: Sequence[Row] = ()
    """The rows of the run that is resumed."""
    _done: int = 0
    _broken: int = 0
    _began: float = field(default_factory=time.monotonic)
    _failed: list[FailedControl] = field(default_factory=list)

    def __post_init__(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self.shelf = recorded.Shelf(self.folder.path / "recordings", self.recordings_max_bytes)

    def run(self, only: frozenset[int] | None = None) -> None:
        """Controls, then rounds until the budget or the plan is spent. ``only``: numbers of the trials still to do (a
        resume).
        """
        wanted = [plan for plan in self.plans if only is None or plan.trial in only]
        self._remember(self.folder.trials())
        try:
            self._kill(wanted)
            self._cut(wanted)
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            self.stop.set()
            self._leave()

    def _kill(self, wanted: Sequence[TrialPlan]) -> None:
        """The trials on this host: controls, then rounds, between floors."""
        if not any(plan.recording is None for plan in wanted):
            return
        here = [plan for plan in self.plans if plan.recording is None]
        chosen = {plan.trial for plan in wanted}
        self._began = time.monotonic()
        self._floor("before", times=2)
        self._controls([plan for plan in wanted if plan.control and plan.recording is None])
        by_budget = self.budget_s is not None
        for number, members in enumerate(schedule.rounds(here, by_budget=by_budget, round_kills=self.round_kills)):
            due = self._due(number, [plan for plan in members if plan.trial in chosen])
            if due and not self._round(number, due):
                break
        self._floor("after", times=2)

    def _cut(self, wanted: Sequence[TrialPlan]) -> None:
        """The crash states: controls, then recording after recording until the pass's own budget is spent."""
        grouped = [self._attempted(plans) for plans in schedule.recordings(wanted)]
        if not grouped:
            return
        try:
            laboratory = Laboratory(self.ground, self.say)
        except NoMachine as error:
            self._no_machine(str(error))
            return
        try:
            targets = {target for plans in grouped for target in plans[0].targets.values()}
            laboratory.prepare(targets, {plans[0].filesystem for plans in grouped}, self.workload)
            self._began, self.budget_s = time.monotonic(), self.power_budget_s
            for control in (True, False):
                self._record_all([plans for plans in grouped if bool(plans[0].control) == control], laboratory)
                if control:
                    self._doubt_if_controls_failed()
        except NoMachine as error:
            self._no_machine(str(error))
        except BaseException:
            self.stop.set()  # before anything is taken away under a crash state that is being looked at
            raise
        finally:
            self._leave()  # what still runs must have ended before its machine is taken away
            laboratory.close()

    def _attempted(self, plans: list[TrialPlan]) -> list[TrialPlan]:
        """The crash states of a recording that is to be made, with the number of this attempt at it: what a resumed run
        records anew is not what its earlier rows are of.
        """
        name = str(plans[0].recording)
        numbers = {plan.trial for plan in self.plans if plan.recording == name}
        before = [row["attempt"] for row in self._recorded if row["trial"] in numbers]
        attempt = 1 + max([self.shelf.attempts(name), *before])
        return [replace(plan, attempt=attempt) for plan in plans]

    def _no_machine(self, why: str) -> None:
        self.say(f"no machine to reset: {why}")
        self.no_machine = why

    def _record_all(self, grouped: Sequence[Sequence[TrialPlan]], laboratory: Laboratory) -> None:
        waiting: list[Future[None]] = []
        for plans in grouped:
            if key_of(plans[0]) in self.troubles or (not plans[0].control and self._left_s() < self._recording_s()):
                continue
            waiting.append(self._submit_recording(plans, laboratory))
            while sum(not future.done() for future in waiting) >= self.at_once:
                self._read_mail(0.02)
        self._await(waiting)

    def _recording_s(self) -> float:
        """How long a recording with its crash states has taken so far, in the mean."""
        return sum(self._recordings_s) / len(self._recordings_s) if self._recordings_s else 0.0

    def _submit_recording(self, plans: Sequence[TrialPlan], laboratory: Laboratory) -> Future[None]:
        words = (self.shelf, self.prepared, self._mail.put, self.stop, self._recordings_s, self._share_s(plans[0]))
        future = self.executor.submit(run_recording, plans, laboratory, *words)
        self._futures = [*(other for other in self._futures if not other.done()), future]
        return future

    def _remember(self, recorded: Sequence[Row]) -> None:
        """Take up what a resumed run had recorded: its controls, and how many trials its cells have."""
        self._recorded = recorded
        plans = {plan.trial: plan for plan in self.plans}
        self.control_rows += [row for row in recorded if row["control"]]
        whys = dict.fromkeys(row["why"] or "" for row in recorded if row["verdict"] == "unknown")
        self.errors += [why for why in whys if why.startswith(HARNESS)]
        for trial in {row["trial"] for row in recorded if not row["control"]} & set(plans):
            self._count(plans[trial])

    def _count(self, plan: TrialPlan) -> None:
        key = (key_of(plan), plan.fault)
        self._counts[key] = self._counts.get(key, 0) + 1

    def _leave(self) -> None:
        """Wait for the trials in flight; those that do not end soon are called off, and nobody hears what they say: it
        may be of a store that durabench itself killed.
        """
        end = time.monotonic() + LEAVE_S
        while time.monotonic() < end and not self._idle():
            self._read_mail(0.02)
        self._read_mail()
        if not self._idle():
            self._mail = queue.SimpleQueue()
            self.ground.call_off(self._idle, leave_s=0)

    def _idle(self) -> bool:
        """Whether no trial is under way."""
        return all(future.done() for future in self._futures)

    @property
    def host(self) -> str:
        """The machine's id."""
        return str(self.facts["id"])

    # --- what is due

    def dear(self, key: tuple[Target, Target]) -> bool:
        """Whether this pair has been measured to take over 2 s a trial."""
        seen = self._seconds.get(key)
        return sum(seen) / len(seen) > DEAR_S if seen else False

    def _due(self, number: int, members: Sequence[TrialPlan]) -> list[TrialPlan]:
        due: list[TrialPlan] = []
        taken: set[tuple[Target, Target, str]] = set()
        for plan in members:
            key = (plan.metadata, plan.data)
            if key_of(plan) in self.troubles:
                continue
            if self.dear(key):
                # By budget a dear pair gets one trial of each fault in every so many rounds.
                if self.budget_s is not None and (number % self.dear_every_rounds or (*key, plan.fault) in taken):
                    continue
                taken.add((*key, plan.fault))
                if self.budget_s is None and self._counts.get((key_of(plan), plan.fault), 0) >= (
                    self.dear_trials or len(self.plans)
                ):
                    continue
            due.append(plan)
        return due

    def _left_s(self) -> float:
        return float("inf") if self.budget_s is None else self.budget_s - (time.monotonic() - self._began)

    def _share_s(self, plan: TrialPlan) -> float:
        """How long a visit may take of a budget: a tenth, or what it needs to come up twice where that is more."""
        if self.budget_s is None:
            return float("inf")
        return share_s(self.budget_s, [self.prepared[target] for target in plan.targets.values()])

    def _fits(self, visit: Visit) -> bool:
        """Whether a visit is likely to end within the budget; what was never tried always gets its chance."""
        seen = self._seconds.get(visit.key)
        return self._left_s() > (sum(seen) / len(seen) * len(visit.plans) if seen else 0)

    # --- running

    def _controls(self, plans: Sequence[TrialPlan]) -> None:
        for plan in plans:
            run_visit(Visit([plan]), self.ground, self._mail.put, self.stop, self._share_s(plan))
            self._read_mail()
        self._doubt_if_controls_failed(here_only=True)

    def _doubt_if_controls_failed(self, *, here_only: bool = False) -> None:
        self._failed = self._failed_controls(here_only=here_only)
        if self._failed:
            self.say(f"a control failed: {', '.join(one.phrase for one in self._failed)}")

    def failed_controls(self) -> list[str]:
        """Controls that did not do what they must, or did not run at all, each with why."""
        return [one.phrase for one in self._failed_controls()]

    def _failed_controls(self, *, here_only: bool = False) -> list[FailedControl]:
        ran = {row["trial"] for row in self.control_rows}
        missing = [
            plan for plan in self.plans if plan.control and plan.trial not in ran and not (here_only and plan.recording)
        ]
        if self.no_machine:
            missing = [plan for plan in missing if plan.recording is None]
        return judgement.failed_controls(self.control_rows) + list(dict.fromkeys(map(self._did_not_run, missing)))

    def _did_not_run(self, plan: TrialPlan) -> FailedControl:
        on = f" on {plan.filesystem}" if plan.recording is not None else ""
        why = self._whys.get(key_of(plan), "stopped")
        phrase = f"{plan.control} ({plan.metadata.label}{on}: did not run: {why})"
        return FailedControl(plan.lane, plan.filesystem if plan.recording is not None else None, phrase)

    def _round(self, number: int, plans: Sequence[TrialPlan]) -> bool:
        """One round; False when the budget is spent.

        A few targets at a time get all their trials, so that a short budget leaves some cells whole instead of all of
        them without a kill; between these groups the floor is measured again.
        """
        rng = Random(f"{self.seed}/round/{number}")
        keys = sorted({(plan.metadata, plan.data) for plan in plans}, key=str)
        rng.shuffle(keys)
        keys.sort(key=self._slow_to_come_up)
        fitted = True
        for at in range(0, len(keys), GROUP_TARGETS):
            group = keys[at : at + GROUP_TARGETS]
            members = [plan for plan in plans if (plan.metadata, plan.data) in group]
            self._floor("between")
            at_once = [p for p in members if not _peaceful(p) and not self._slow_to_come_up((p.metadata, p.data))]
            fitted &= self._at_once(at_once, rng)
            fitted &= self._alone([plan for plan in members if plan not in at_once], rng)
        return fitted or self._left_s() > DEAR_S

    def _slow_to_come_up(self, key: tuple[Target, Target]) -> bool:
        """Whether coming up costs more than the trials: then all of a round's share one bring-up, last and alone."""
        return max(self.prepared[target].seconds for target in key) > DEAR_S

    def _alone(self, plans: Sequence[TrialPlan], rng: Random) -> bool:
        """One after the other, nothing beside them: latency is taken here. Whether all fitted the budget."""
        visits = schedule.visits(plans, rng)
        fitting = [visit for visit in visits if self._fits(visit)]
        for visit in fitting:
            self._await([self._submit(visit)])
        return len(fitting) == len(visits)

    def _at_once(self, plans: Sequence[TrialPlan], rng: Random) -> bool:
        """Several at a time. Whether all fitted the budget."""
        waiting: list[Future[None]] = []
        fitted = True
        for visit in schedule.visits(plans, rng):
            if not self._fits(visit):
                fitted = False
                continue
            waiting.append(self._submit(visit))
            while sum(not future.done() for future in waiting) >= self.at_once:
                self._read_mail(0.02)
        self._await(waiting)
        return fitted

    def _submit(self, visit: Visit) -> Future[None]:
        share_s = self._share_s(visit.plans[0])
        future = self.executor.submit(run_visit, visit, self.ground, self._mail.put, self.stop, share_s)
        self._futures = [*(other for other in self._futures if not other.done()), future]
        return future

    def _await(self, waiting: Sequence[Future[None]]) -> None:
        while not all(future.done() for future in waiting):
            self._read_mail(0.02)
        self._read_mail()
        for future in waiting:
            error = future.exception()
            if error is not None:
                self._mistaken(in_one_line(error))

    def _mistaken(self, error: str) -> None:
        self.errors.append(error)
        self.say(error)

    def _read_mail(self, timeout_s: float = 0.0) -> None:
        try:
            while True:
                mail = self._mail.get(timeout=timeout_s) if timeout_s else self._mail.get_nowait()
                timeout_s = 0.0
                if isinstance(mail, Outcome):
                    self._record(mail)
                else:
                    self._give_up(mail)
        except queue.Empty:
            return

    def _give_up(self, trouble: Trouble) -> None:
        """Tell what kept a visit from its end; a pair that is struck out gets no other."""
        visit, why, strikes, error = trouble
        self.say(f"{visit.key[0].label}: {why}")
        key = key_of(visit.plans[0])
        self._failures[key] = self._failures.get(key, 0) + strikes
        self._whys[key] = why
        if error is not None:
            self.errors.append(error)
        if self._failures[key] >= BRING_UPS:
            self.troubles[key] = why

    def _record(self, outcome: Outcome) -> None:
        """Write a trial down: its history, its latencies, its rows."""
        plan = outcome.plan
        key = (plan.metadata, plan.data)
        events = outcome.events
        failed = [one.phrase for one in self._failed if plan.control is None and one.voids(plan)]
        if failed:
            why = f"a control failed: {', '.join(failed)}"
            events = [*events, {"e": "doubt", "t": time.monotonic_ns(), "why": why, "voids": True}]
            outcome = replace(outcome, events=events)
        words = held(plan, self.prepared), self._host_of(plan), str(self.folder.path)
        rows, events, error = judged(outcome, *words)
        if error is not None:
            self._mistaken(f"trial {plan.trial}, {plan.metadata.label} {plan.fault}: {error}")
        self.folder.write_history(plan.trial, events, plan.attempt)
        if self.latency_matters and plan.control is None and plan.puts and not plan.recording:
            for row in rows:
                taken = judgement.latencies_ns(events, row["namespace"])
                row["samples_at"], row["samples_n"] = self.folder.append_samples(taken)
        elif plan.puts:
            rows = [{**row, "put_p50_ns": None, "put_p99_ns": None} for row in rows]
        self.folder.append(rows)
        if plan.control:
            self.control_rows += rows
            return
        self._seconds.setdefault(key, []).append(outcome.duration_s)
        self._count(plan)
        self._done += 1
        self._broken += any(row["verdict"] == "broken" for row in rows)
        self.progress(self._done, self._broken, f"{plan.metadata.label} {plan.fault}")

    def _host_of(self, plan: TrialPlan) -> str:
        """The machine's id; with another file system on it, another one, so that their cells are never added up."""
        return host_with(self.facts, plan.filesystem) if plan.recording else self.host

    def _floor(self, when: str, times: int = 1) -> None:
        floor.record(self.folder, self.host, self.ground.scratch, when, times)

    # --- afterwards

    def not_run(self) -> list[Cell]:
        """Cells that were planned and got no trial, with why."""
        found = []
        for cell in self.cells:
            recorded_fault = faults.load(cell.fault).needs_machine
            key = (*cell.targets, cell.filesystem if recorded_fault else None)
            if cell.verdict is None and not self._counts.get((key, cell.fault)):
                why = (self.no_machine if recorded_fault else None) or self._whys.get(key, "budget")
                found.append(schedule.not_run(cell, why))
        return found


def share_s(budget_s: float, prepared: Iterable[Prepared]) -> float:
    """A visit's share of a budget: a tenth, or what it needs to come up twice where that is more."""
    return max(budget_s / SHARES, 2 * max(one.seconds for one in prepared) + TRIAL_S)


def _peaceful(plan: TrialPlan) -> bool:
    return faults.load(plan.fault).destroys is Domain.NOTHING


def host_with(facts: Mapping[str, Any], filesystem: str | None) -> str:
    """The id of this machine with another file system under test."""
    return machine8({**facts, "filesystem": filesystem})


def judged(
    outcome: Outcome, words: Mapping[str, Held], host: str, folder: str
) -> tuple[list[Row], Sequence[Event], str | None]:
    """The rows of a trial, its history, and the mistake of ours that it met; where judging is the mistake, the rows are
    unknown and the history says why.
    """
    try:
        return judgement.rows(outcome, words, host, folder), outcome.events, outcome.error
    except Exception as error:
        why = in_one_line(error)
        events = [*outcome.events, {"e": "doubt", "t": time.monotonic_ns(), "why": why}]
        return judgement.untold(outcome, words, host, folder, why), events, why


def held(plan: TrialPlan, prepared: Mapping[Target, Prepared]) -> dict[str, Held]:
    """What each namespace is judged by: the setting's promise, or, for somebody's backend, what its settings add up
    to.
    """
    found = {}
    for namespace, target in plan.targets.items():
        _, setting = target.load()
        if setting is not None:
            found[namespace] = Held(setting.promise, setting.versions)
        else:
            live = prepared[target].promise if target in prepared else None
            found[namespace] = Held(live or Promise({}, None, None, "could not be read"))
    return found


def versions_of(one: Prepared) -> dict[str, Any]:
    """The versions that a target told, and the SHA-256 of every program that was started."""
    found = {fact.id: fact.value for fact in one.facts if fact.id.endswith("version")}
    return {**found, **{f"sha256 of {name}": digest for name, digest in one.programs.items()}}


def promises_of(prepared: Mapping[Target, Prepared]) -> dict[str, Any]:
    """What every target is judged by, so that a stored history can be judged again by the same words."""
    found = {}
    for target, one in prepared.items():
        _, setting = target.load()
        promise = setting.promise if setting else one.promise
        if promise is not None:
            found[target.label] = {**promise.as_json(), "versions": bool(setting and setting.versions)}
    return found


def cells_json(
    cells: Sequence[Cell], prepared: Mapping[Target, Prepared], plan_workload: str, facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Every cell of the campaign as ``run.json`` lists it, one entry per namespace."""
    found = []
    for cell in cells:
        for namespace in namespaces(plan_workload):
            target = cell.metadata if namespace == "metadata" else cell.data
            entry: dict[str, Any] = {
                "backend": target.backend,
                "setting": target.setting,
                "url": target.where,
                "tier": _tier(target, prepared),
                "namespace": namespace,
                "workload": plan_workload,
                "fault": cell.fault,
                "lane": cell.lane,
                "host": host_with(facts, cell.filesystem)
                if faults.load(cell.fault).needs_machine
                else str(facts["id"]),
                "by_name": cell.by_name,
            }
            if cell.verdict is not None:
                entry |= {"verdict": cell.verdict, "why": cell.why}
            found.append(entry)
    return found


def _tier(target: Target, prepared: Mapping[Target, Prepared]) -> str:
    if target.setting == "*":
        return "–"
    _, setting = target.load()
    if setting is not None:
        return setting.promise.tier
    promise = prepared[target].promise if target in prepared else None
    return promise.tier if promise else "T0"
