"""The same cycle on a machine that is reset, a power that is cut, a drive that lies.

One *recording*: a guest writes to the power disk, whose log holds every write, flush and acknowledgement in one order;
then the power goes. From it many *crash states* are built, each a legal content of the disk at one position; each is
recovered in a lane, read by a process that never wrote, and judged by what had been acknowledged at that position.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import durabench_vm as vm
from durabench import fault as faults
from durabench.guest import (
    DRIVER,
    SERVER_USER,
    Base,
    Laboratory,
    Placed,
    driver_env,
    is_heavy,
    parse_filesystem,
)
from durabench.process import CRASHES, Died, HarnessError, Hung, is_answered
from durabench.service import ANSWER_S, Service, Target, not_in_force, promise_from
from durabench.trial import (
    SETTLE_AFTER_STRIKE_S,
    VICTIM_S,
    VICTIMS,
    Outcome,
    TrialPlan,
    down_or_doubt,
    keys_to_read,
    namespaces,
)
from durabench_backends.contract import METADATA, Domain, Fact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench.history import Event
    from durabench.machine import Machine
    from durabench.process import Process
    from durabench.row import Row

WRITE_S = 180.0
"""Longest a recording writes under emulation; a paced one gets its pace on top."""
UP_S = 60.0
"""Longest wait for a backend to come up on a crash image; "does not come up" is a result."""
RECORDING_MAX_BYTES = 64 << 20
"""A losing recording is kept, with the disk it began from, unless it is larger than this, or `Shelf` is full."""
POLL_S = 0.02
STOP_S = 0.1
"""How soon a recording hears that the campaign stops."""
STOPPED = "the campaign was stopped"


class Disturbed(HarnessError):
    """What kept writers from their end, with the events that they had told until then: what they read is evidence."""

    def __init__(self, why: str, events: Sequence[Event]) -> None:
        super().__init__(why)
        self.events = events


@dataclass
class Recorded:
    """A recording, the events of its writers, and what it began from."""

    name: str
    recording: vm.Recording
    base: Base
    events: Sequence[Event]
    facts: Mapping[str, object]
    filesystem: vm.Filesystem
    unit_bytes: int

    def close(self) -> None:
        """Let go of the log and remove it."""
        self.recording.close()
        self.recording.source.unlink(missing_ok=True)


@dataclass
class _Writing:
    """What the controller hears from a guest's writers, as it hears it: events, and a mark in the log for every ok."""

    disk: vm.PowerDisk
    events: list[Event] = field(default_factory=list)
    news: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    writers: list[vm.GuestProcess] = field(default_factory=list)
    late_s: float = 0.0
    """By how much flushes are late from when the first writer is ready until the strike: what is set up before, and
    what comes up again, has its deadlines.
    """

    def hear(self, line: str) -> None:
        """Called in the thread that reads the guest's lines, at the moment each arrives."""
        event = json.loads(line)
        event["t"] = time.monotonic_ns()
        if event["e"] == "ok":
            self.disk.mark([event["w"], event["i"]])
        elif event["e"] == "ready" and self.late_s:
            self.disk.flush_delay_s = self.late_s
        self.events.append(event)
        self.news.put(event)

    def wait(self, plan: TrialPlan, puts: int, victim: int | None, stop: Callable[[], bool]) -> None:
        """Until every writer has acknowledged its puts and holds still, or put ``victim`` begins. HarnessError, also
        where ``stop`` says so.
        """
        end = time.monotonic() + WRITE_S + (plan.pace_s + plan.flush_delay_s) * (victim or puts)
        held: set[int] = set()
        moment = None if victim is None else _Moment(plan, victim)
        while len(held) < plan.writers:
            try:
                event = self.news.get(timeout=STOP_S)
            except queue.Empty:
                if stop():
                    raise HarnessError(STOPPED) from None
                if time.monotonic() < end:
                    continue
                message = f"the guest's writer made {len(self.events)} events and not its {puts} puts in time"
                raise Hung(message) from None
            if stop():
                raise HarnessError(STOPPED)
            if moment is not None and moment.has_come(event):
                return
            if event["e"] in ("ok", "fail"):
                self.writers[event["w"]].write_line("")
            if event["e"] == "held":
                held.add(event["w"])
            elif event["e"] in ("failed", "info", "done"):
                message = f"the guest's writer stopped: {event.get('why', event['e'])}"
                raise Died(message)

    def wait_for_the_last(self, writers: int) -> None:
        """What writers say of a server that died; silence leaves their puts in doubt."""
        end = time.monotonic() + SETTLE_AFTER_STRIKE_S
        done = 0
        while done < writers and time.monotonic() < end:
            try:
                event = self.news.get(timeout=max(0.0, end - time.monotonic()))
                done += event["e"] in ("fail", "info", "done", "failed")
            except queue.Empty:
                return

    def struck(self) -> str:
        """Whether the strike fell inside a put that was never answered with ok."""
        answered = {(event["w"], event["i"]) for event in self.events if event["e"] == "ok"}
        begun = {(event["w"], event["i"]) for event in self.events if event["e"] == "armed"}
        return "inside" if begun - answered else "after"


@dataclass
class _Moment:
    """When a live server is struck: inside put ``victim``, or where puts are so slow that it takes too long, inside the
    next one; never before every namespace has an acknowledgement.
    """

    plan: TrialPlan
    victim: int
    begun: int = 0
    due: float = float("inf")
    acknowledged: set[str] = field(default_factory=set)
    _armed: dict[int, str] = field(default_factory=dict)

    def has_come(self, event: Event) -> bool:
        """Whether it is with this event: a put of the first writer that begins."""
        if event["e"] == "ready":
            paced_s = self.plan.pace_s * (self.victim - 1)
            self.due = min(self.due, time.monotonic() + VICTIM_S + paced_s)
        elif event["e"] == "ok":
            self.acknowledged.add(self._armed[event["w"]])
        elif event["e"] == "armed":
            self._armed[event["w"]] = event["ns"]
        if event["e"] != "armed" or event["verb"] != "put" or event["w"] != 0:
            return False
        self.begun += 1
        late = self.begun >= VICTIMS.start and time.monotonic() > self.due
        there = self.acknowledged.issuperset(namespaces(self.plan.workload))
        return there and (self.begun >= self.victim or late)


def _never() -> bool:
    return False


def kill_on_slow_drive(plan: TrialPlan, laboratory: Laboratory, stop: Callable[[], bool] = _never) -> Outcome:
    """Kill the server on a disk that answers flushes late, start it again on the same machine, and read. One trial."""
    filesystem, unit_bytes = parse_filesystem(plan.filesystem)
    base = laboratory.base(plan.targets, plan.filesystem, plan.workload)
    stem = laboratory.folder.path / f"slow-{plan.recording}"
    image, log = stem.with_suffix(".img"), stem.with_suffix(".log")
    vm.copy_sparse(base.image, image)
    disk = vm.PowerDisk(image, log, unit_bytes=unit_bytes)
    began, writing = time.monotonic(), _Writing(disk, late_s=plan.flush_delay_s)
    events: list[Event] = [
        {"e": "trial", "t": 0, "seed": plan.payload_seed, "trial": plan.trial, "attempt": plan.attempt}
    ]
    try:
        with laboratory.machine(plan, disk) as machine:
            machine.mount(filesystem, user=SERVER_USER if _adopts() else None)
            placed = _placed(machine, plan, base, laboratory)
            _write(plan, placed, base.folders, writing, stop, victim=plan.victim)
            strike = {"e": "strike", "t": time.monotonic_ns(), "fault": plan.fault}
            for daemon in placed.daemons:
                daemon.kill(tree=True)
            for daemon in placed.daemons:
                daemon.wait()
            disk.flush_delay_s = 0.0
            writing.wait_for_the_last(plan.writers)
            events += [*writing.events, *_not_in_force(plan, writing.events)]
            events += [strike, {"e": "struck", "t": time.monotonic_ns(), "where": writing.struck()}]
            placed.daemons.clear()
            began_ns = time.monotonic_ns()
            keys, sampled = keys_to_read(events, plan.seed)
            events += sampled
            answer = _serve(placed, plan, base.folders, laboratory, keys)
            events += _as_read(_at(answer), identities(writing.events), began_ns)
    except (vm.GuestLost, vm.AgentError, vm.PowerDiskError, TimeoutError) as error:
        raise HarnessError(" ".join(str(error).split())[-600:]) from error
    finally:
        disk.close()
        image.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
    return Outcome(
        plan, events, driver="fresh", duration_s=time.monotonic() - began, more={"recording": plan.recording_name}
    )


def identities(events: Sequence[Event]) -> dict[str, str]:
    """Who answered the writers, by namespace."""
    return {name: who for event in events if event["e"] == "ready" for name, who in event["identity"].items()}


def _not_in_force(plan: TrialPlan, events: Sequence[Event]) -> list[Event]:
    """What makes a trial unknown: a setting that was asked for and, as its store told the writer, is not in force."""
    found: dict[str, Event] = {}
    for event in events:
        for namespace, said in event.get("settings", {}).items() if event["e"] == "ready" else ():
            target = plan.targets[namespace]
            if "why" in said:
                why: str | None = f"{target.label}: its effective settings could not be read back: {said['why']}"
            else:
                why = not_in_force(target, promise_from(said["promise"]), [Fact(*fact) for fact in said["facts"]])
            if why:
                found[why] = {"e": "doubt", "t": event["t"], "why": why, "voids": True}
    return list(found.values())


def _at(answer: Sequence[Event]) -> list[Event]:
    """A reader's events with the time at which all of them were here."""
    now_ns = time.monotonic_ns()
    return [{**event, "t": now_ns} for event in answer]


def record(plan: TrialPlan, laboratory: Laboratory, stop: Callable[[], bool] = _never) -> Recorded:
    """Write in a guest until every put of the plan is acknowledged, wait ``settle_s``, and cut the power.
    HarnessError, also where ``stop`` says so meanwhile.
    """
    filesystem, unit_bytes = parse_filesystem(plan.filesystem)
    base = laboratory.base(plan.targets, plan.filesystem, plan.workload)
    stem = laboratory.folder.path / f"recording-{plan.recording}-{plan.trial}"
    image, log = stem.with_suffix(".img"), stem.with_suffix(".log")
    vm.copy_sparse(base.image, image)
    disk = vm.PowerDisk(image, log, unit_bytes=unit_bytes, flush_delay_s=plan.flush_delay_s)
    writing = _Writing(disk)
    try:
        with laboratory.machine(plan, disk) as machine:
            machine.mount(filesystem, user=SERVER_USER if _adopts() else None)
            facts = machine.facts()
            _write(plan, _placed(machine, plan, base, laboratory), base.folders, writing, stop)
            settled = time.monotonic() + plan.settle_s
            while (left := settled - time.monotonic()) > 0 and not stop():
                time.sleep(min(left, STOP_S))
            if stop():
                raise HarnessError(STOPPED)
            machine.cut()
    except (vm.GuestLost, vm.AgentError, vm.PowerDiskError, TimeoutError) as error:
        raise HarnessError(" ".join(str(error).split())[-600:]) from error
    finally:
        disk.close()
        image.unlink(missing_ok=True)
    recording = vm.Recording.load(log)
    return Recorded(plan.recording_name, recording, base, writing.events, facts, filesystem, unit_bytes)


def _placed(place: vm.Place, plan: TrialPlan, base: Base, laboratory: Laboratory) -> Placed:
    """A machine on a place; a heavy server keeps the ports of its set-up, which it may have written on its disk."""
    ports = dict(base.ports) if is_heavy(plan.targets.values()) else {}
    return Placed(place, laboratory.ground, plan.lane, ports=ports)


def _adopts() -> bool:
    """Whether the disk's content belongs to the caller's own user and must be given to the guest's."""
    return os.geteuid() != 0


def _services(plan: TrialPlan, machine: Placed, folders: Mapping[str, str]) -> dict[str, Service]:
    made: dict[Target, Service] = {}
    for namespace, target in plan.targets.items():
        made.setdefault(target, Service(machine, target, machine.root / folders[namespace]))  # type: ignore[arg-type]
    services = {namespace: made[target] for namespace, target in plan.targets.items()}
    if _adopts():
        for service in made.values():
            machine.place.run(["chown", "-R", SERVER_USER, str(service.root)])
    return services


def _order(plan: TrialPlan, services: Mapping[str, Service], deadline_s: float) -> dict[str, Any]:
    targets = {name: service.order(f"{plan.recording}{name[0]}") for name, service in services.items()}
    return {"targets": targets, "seed": plan.payload_seed, "deadline_s": deadline_s}


def _write(
    plan: TrialPlan,
    machine: Placed,
    folders: Mapping[str, str],
    writing: _Writing,
    stop: Callable[[], bool],
    victim: int | None = None,
) -> None:
    """Start servers and writers; returns when all puts are acknowledged, or inside put ``victim``. Disturbed."""
    services = _services(plan, machine, folders)
    for service in {id(service): service for service in services.values()}.values():
        service.start()
    env = driver_env(list(plan.targets.values()), plan.workload)
    puts = plan.puts or 1
    for number in range(plan.writers):
        writer = machine.place.start(DRIVER, env, on_line=writing.hear)
        words = {
            "do": "write",
            "writer": number,
            "writers": plan.writers,
            "workload": plan.workload,
            "pace_s": plan.pace_s,
        }
        limit = None if victim else puts
        order = {
            **_order(plan, services, UP_S),
            **words,
            "limit": limit,
            "limit_s": None,
            "hold": True,
            "lockstep": True,
            "look": True,
        }
        writing.writers.append(writer)
        writer.write_line(json.dumps(order))
    try:
        writing.wait(plan, puts, victim, stop)
    except HarnessError as error:
        dead = machine.dead_daemon()
        told = [*writing.events, *_not_in_force(plan, writing.events)]
        raise Disturbed(f"{error}; {dead}" if dead else str(error), told) from None


# --- crash states


@dataclass(frozen=True)
class Chosen:
    """A crash state that is looked at, and what its rows say of the draw (fields of the same names)."""

    state: vm.CrashState
    content: str
    contents_of: int | None
    contents_bits: int | None

    def as_row(self) -> Row:
        """Its part of a row."""
        return {"content": self.content, "contents_of": self.contents_of, "contents_bits": self.contents_bits}


def states(recorded: Recorded, plans: Sequence[TrialPlan]) -> list[tuple[TrialPlan, Chosen]]:
    """One legal state for every plan, drawn by the recording's seed, in the order that builds fastest; none twice in a
    gap before all that the gaps have were drawn.

    Nothing is drawn before every namespace has an acknowledgement. With ``settle_s`` every state is of the moment the
    power went.
    """
    recording = recorded.recording
    first, last = _first(recorded, plans[0].window_s), len(recording)
    contents = vm.Contents(recording, recorded.base.image)
    found: list[tuple[TrialPlan, Chosen]] = []
    by_fault: dict[str, list[TrialPlan]] = {}
    for plan in plans:
        by_fault.setdefault(plan.fault, []).append(plan)
    for name, members in by_fault.items():
        destroys = faults.load(name).destroys
        draw = vm.draw_states(
            recording,
            len(members),
            Random(f"{plans[0].payload_seed}/{name}").getrandbits(32),
            strata=_strata(recorded, last if members[0].settle_s else first, last),
            contents=contents,
            unit_bytes=recorded.unit_bytes,
            lie_from=first if destroys is Domain.FLUSHED else None,
            modes=(vm.Mode.ALL,) if destroys is Domain.MACHINE else vm.CLASSES,
        )
        bits = draw.bits if draw.of is None else None
        chosen = [Chosen(one.state, f"{one.content:016x}", draw.of, bits) for one in draw.states]
        found += zip(members, islice(cycle(chosen), len(members)), strict=True)
    return sorted(found, key=lambda pair: pair[1].state.position)


def _changes(recorded: Recorded) -> list[tuple[int, str]]:
    """Where in the log a put or a delete was acknowledged, and in which namespace. A get changes nothing; of what came
    after a crash state its stored history does not know.
    """
    armed = {(e["w"], e["i"]): e for e in recorded.events if e["e"] == "armed"}
    marks = [(index, tuple(entry.mark)) for index, entry in enumerate(recorded.recording.entries) if entry.mark]
    return [(index, armed[mark]["ns"]) for index, mark in marks if mark in armed and armed[mark]["verb"] != "get"]


def _strata(recorded: Recorded, first: int, last: int) -> list[list[vm.Gap]]:
    """The stretches between two acknowledged changes, by the namespace of the one that begins them: drawn in turn, so
    that few states are of every namespace.
    """
    changes = _changes(recorded)
    before = [change for change in changes if change[0] < first]
    begun = [*before[-1:], *(change for change in changes if first <= change[0] < last)]
    ends = [*(index for index, _ in begun[1:]), last]
    strata: dict[str, list[vm.Gap]] = {}
    for number, ((index, namespace), end) in enumerate(zip(begun, ends, strict=True), max(len(before), 1)):
        strata.setdefault(namespace, []).append(vm.Gap(number, max(index + 1, first), end))
    return list(strata.values())


def told(recorded: Recorded, position: int, lie_from: int | None = None) -> dict[str, Row]:
    """By namespace the gap that a position lies in, and whether it tells: the fields ``gap`` and ``telling``.

    A gap of a namespace is the stretch from one of its acknowledged puts or deletes to its next. A position in it tells
    if no flush that the disk received after that acknowledgement has been answered: what is durable there is so by
    flushes that came before the acknowledgement, the store's own, and had it not made them, the acknowledged change
    could be gone. A later flush (of the next put, of the other namespace, of the file system) may cover what the store
    forgot; from then on a survival proves nothing of the store.
    """
    durable = recorded.recording.durable(position, lie_from)
    found: dict[str, Row] = {}
    for index, namespace in _changes(recorded):
        gap = found.setdefault(namespace, {"gap": 0, "telling": False})
        if index < position:
            gap.update(gap=gap["gap"] + 1, telling=index >= durable)
    return found


def _first(recorded: Recorded, window_s: float) -> int:
    """The first position at which every namespace that is written to has an acknowledgement older than the window that
    may be lost, so that a loss can tell. HarnessError where nothing was acknowledged.
    """
    changes = _changes(recorded)
    missing = {namespace for _, namespace in changes}
    for index, namespace in changes:
        missing.discard(namespace)
        if not missing:
            return _after(recorded, index + 1, recorded.recording.entries[index].time_ns + window_s * 1e9)
    message = "nothing was acknowledged in the recording"
    raise HarnessError(message)


def _after(recorded: Recorded, position: int, time_ns: float) -> int:
    """The first position from ``position`` on that is later than a time; ``position`` where there is none."""
    entries = recorded.recording.entries
    later = (at + 1 for at in range(position - 1, len(entries)) if entries[at].time_ns > time_ns)
    return next(later, position)


def written_before(recorded: Recorded, position: int) -> list[Event]:
    """The history up to a position of the log: what had been acknowledged there, and what may have been begun.

    An acknowledgement counts where its mark stands in the log. A writer in lockstep begins nothing before that mark is
    made, so that it has one operation open: the first one without a mark, whenever the controller heard of it, is in
    doubt, and the ones after it had not begun.
    """
    promised = {tuple(mark) for mark in recorded.recording.acknowledged(position)}
    answered = {(event["w"], event["i"]) for event in recorded.events if event["e"] == "fail"}
    held: set[int] = set()
    """Writers whose one open operation has been met."""
    events = []
    for event in recorded.events:
        if "i" not in event:
            events += [event] if event["e"] != "held" else []
        elif (event["w"], event["i"]) in promised | answered or (event["e"] == "armed" and event["w"] not in held):
            events.append(event)
            if (event["w"], event["i"]) not in promised | answered:
                held.add(event["w"])
    return events


def strike_ns(recorded: Recorded, position: int) -> int:
    """The earliest the power can have gone with the log at this position: when its last entry was made."""
    return recorded.recording.entries[position - 1].time_ns


def run_states(
    recorded: Recorded,
    plans: Sequence[TrialPlan],
    laboratory: Laboratory,
    tell: Callable[[Outcome], None],
    stop: Callable[[], bool],
) -> None:
    """Build, recover, read and tell one crash state per plan, until ``stop`` says so. What was being looked at then is
    told only if it came up: the machine may have been taken away under it, and that is no finding.
    """
    chosen = states(recorded, plans)
    lane = laboratory.lane(plans[0].lane, plans[0].filesystem)
    stem = laboratory.folder.path / f"crash-{plans[0].recording}-{plans[0].trial}"
    image = stem.with_suffix(".img")
    with vm.CrashBuilder(recorded.base.image, recorded.recording, stem.with_suffix(".durable")) as builder:
        try:
            _prove(recorded, plans[0], image, lane, laboratory)
            for plan, each in chosen:
                if stop():
                    return
                began = time.monotonic()
                builder.build(each.state, image)
                outcome = _look(recorded, plan, each.state, image, lane, laboratory, began)
                if stop() and not outcome.undisturbed:
                    return
                tell(replace(outcome, more={**outcome.more, **each.as_row()}))
        finally:
            image.unlink(missing_ok=True)


def _prove(recorded: Recorded, plan: TrialPlan, image: Path, lane: vm.Lane, laboratory: Laboratory) -> None:
    """That the disk as it was before the first put mounts, comes up and reads here: else no state of it is judged.

    HarnessError. Asked once per lane, file system and targets, and again by `_look` whenever a state does not come up.
    """
    key = (plan.lane, plan.filesystem, *plan.targets.values())
    if key not in laboratory.undamaged:
        for why in _undamaged_fails(recorded, plan, image, lane, laboratory).values():
            message = f"the undamaged disk does not come up in lane {plan.lane} on {recorded.filesystem.name}: {why}"
            raise HarnessError(message)
        laboratory.undamaged.add(key)


def _undamaged_fails(
    recorded: Recorded, plan: TrialPlan, image: Path, lane: vm.Lane, laboratory: Laboratory
) -> dict[str, str]:
    """The namespaces that cannot be read on the disk as it was before the first put either, and why."""
    vm.copy_sparse(recorded.base.image, image)
    events = _read(recorded, plan, image, lane, laboratory, {})
    failed = [event for event in reversed(events) if event["e"] in ("down", "doubt")]
    return {name: event["why"] for event in failed for name in event.get("ns", plan.targets)}


def _without_surroundings(left: Sequence[Event], fails: Mapping[str, str], plan: TrialPlan) -> list[Event]:
    """What was found, but that what the surroundings do to every disk says nothing of this one: where the undamaged
    disk ``fails`` too, a namespace is not down but in doubt. What was read of the others stands.
    """
    found: list[Event] = []
    for event in left:
        names = list(event.get("ns", plan.targets)) if event["e"] == "down" else []
        guilty = [name for name in names if name not in fails]
        found += [] if names and not guilty else [{**event, "ns": guilty} if names else event]
        whys = dict.fromkeys(fails[name] for name in names if name in fails)
        found += [{**_doubt(f"the undamaged disk fails too: {why}"), "t": event["t"]} for why in whys]
    return found


def _look(
    recorded: Recorded,
    plan: TrialPlan,
    state: vm.CrashState,
    image: Path,
    lane: vm.Lane,
    laboratory: Laboratory,
    began: float,
) -> Outcome:
    events: list[Event] = [
        {
            "e": "trial",
            "t": 0,
            "seed": plan.payload_seed,
            "trial": plan.trial,
            "attempt": plan.attempt,
            "ports": dict(recorded.base.ports),
        }
    ]
    events += written_before(recorded, state.position)
    at_ns = strike_ns(recorded, state.position)
    answered = {(event["w"], event["i"]) for event in events if event["e"] == "ok"}
    inside = any(event["e"] == "armed" and (event["w"], event["i"]) not in answered for event in events)
    events.append({"e": "strike", "t": at_ns, "fault": plan.fault})
    events.append({"e": "struck", "t": at_ns, "where": "inside" if inside else "after"})
    events += _not_in_force(plan, recorded.events)
    keys, sampled = keys_to_read(events, plan.seed)
    events += sampled
    left = _read(recorded, plan, image, lane, laboratory, keys)
    if any(event["e"] == "down" for event in left):
        left = _without_surroundings(left, _undamaged_fails(recorded, plan, image, lane, laboratory), plan)
    events += left
    return Outcome(
        plan,
        events,
        driver="fresh",
        duration_s=time.monotonic() - began,
        more={
            "recording": recorded.name,
            "position": state.position,
            "state": f"{state.mode}/{state.seed}/{state.unit_bytes}"
            + (f"/lie:{state.lie_from}" if state.lie_from else ""),
        },
        by_namespace=told(recorded, state.position, state.lie_from),
    )


def _read(
    recorded: Recorded,
    plan: TrialPlan,
    image: Path,
    lane: vm.Lane,
    laboratory: Laboratory,
    keys: Mapping[str, list[str]],
) -> list[Event]:
    """Recover the image in its lane and read it; what does not mount, start or answer is what was found."""
    began_ns = time.monotonic_ns()
    try:
        job = _job(recorded, plan, laboratory, keys)
        found = lane.check(image, recorded.filesystem, job, user=SERVER_USER if _adopts() else None)
    except HarnessError as error:
        return [_doubt(str(error))]
    if isinstance(found, vm.Finding):
        why = f"{found.what}: {' '.join(found.detail.split())[:500]}"
        return [{"e": "down", "t": time.monotonic_ns(), "why": why} if found.of_image else _doubt(why)]
    return _as_read(_at(found.answer), identities(recorded.events), began_ns)


def _doubt(why: str, *, voids: bool = False) -> Event:
    return {"e": "doubt", "t": time.monotonic_ns(), "why": why, "voids": voids}


def _as_read(answer: list[Event], before: Mapping[str, str], began_ns: int) -> list[Event]:
    """A reader's events as a history has them: up or down, and never from an instance that was to be gone."""
    last: Event = answer.pop() if answer else {"e": "failed", "why": "the reader gave no answer", "ours": True}
    if last["e"] == "failed":
        down = {"e": "down", "t": time.monotonic_ns(), "why": last["why"]}
        return [*answer, _doubt(f"the reader failed: {last['why']}") if last["ours"] else down]
    if any(last["identity"][name] == before.get(name) for name in last["identity"]):
        return [_doubt("the instance that answers is still the one from before the strike", voids=True)]
    if any(event["e"] == "listing" for event in answer):
        now_ns = time.monotonic_ns()
        return [{"e": "up", "t": now_ns, "recovery_ns": now_ns - began_ns}, *answer]
    return answer


def _job(recorded: Recorded, plan: TrialPlan, laboratory: Laboratory, keys: Mapping[str, list[str]]) -> Any:
    """How an image is read: by one lasting process where the store is embedded, else by servers started on it. Of two
    stores each has a reader of its own: one that hangs or crashes takes the answer of the other one with it.
    """
    machine = cast("Machine", _Elsewhere())
    services = {
        name: Service(machine, target, Path(recorded.base.folders[name])) for name, target in plan.targets.items()
    }
    if len(set(plan.targets.values())) == 1 and services[METADATA].embedded:
        env = driver_env(list(plan.targets.values()), plan.workload)
        request = _read_order(plan, services, keys)
        return vm.Job((*DRIVER, "--lasting"), env=env, deadline_s=UP_S + ANSWER_S, lasting=True, request=request)

    def serve(place: vm.Place) -> list[Event]:
        return _serve(_placed(place, plan, recorded.base, laboratory), plan, recorded.base.folders, laboratory, keys)

    return serve


def _read_order(plan: TrialPlan, services: Mapping[str, Service], keys: Mapping[str, list[str]]) -> dict[str, Any]:
    return {**_order(plan, services, UP_S), "do": "read", "keys": keys, "sizes": False}


def _serve(
    placed: Placed, plan: TrialPlan, folders: Mapping[str, str], laboratory: Laboratory, keys: Mapping[str, list[str]]
) -> list[Event]:
    """Start a plan's servers where they are placed and read every store by itself: of two, one may come up.

    A server is read from this host, beside the place; an embedded store where its files are, in the place.
    """
    started = _services(plan, placed, folders)
    distinct = {id(service): service for service in started.values()}.values()
    for service in distinct:
        service.start()
    events: list[Event] = []
    identity: dict[str, str] = {}
    for service in distinct:
        names = {name: one for name, one in started.items() if one is service}
        order = _read_order(plan, names, {name: keys.get(name, []) for name in names})
        answer = _ask_inside(order, plan, placed) if service.embedded else _ask_reader(order, plan, placed, laboratory)
        last = answer.pop()
        identity |= last.get("identity", {})
        events += [_with_last_words({"t": time.monotonic_ns(), **event}, placed, service) for event in answer]
        if last["e"] == "failed" and last["ours"]:
            events.append(_doubt(f"the reader failed: {last['why']}"))
        elif last["e"] == "failed":
            down = {"e": "down", "t": time.monotonic_ns(), "ns": list(names), "why": last["why"]}
            events.append(_with_last_words(down, placed, service))
    if stranger := placed.stranger():
        events.append(_doubt(stranger, voids=True))
    return [*events, {"e": "done", "identity": identity}]


def _with_last_words(event: Event, placed: Placed, service: Service) -> Event:
    """Of a store that is down, the last words of its own server; a doubt where that was ended from outside."""
    dead = placed.dead_daemon(service.root) if event["e"] == "down" else None
    return down_or_doubt(event, [dead], placed.ended_by(service.root)) if dead else event


@dataclass
class _Elsewhere:
    """Stands for a machine where only the words of an order are needed; no port of it is ever used."""

    def port(self, _name: str) -> int:
        return 0


def _ask_inside(order: Mapping[str, Any], plan: TrialPlan, placed: Placed) -> list[Event]:
    """A reader in the place itself, where the files of an embedded store are."""
    reader = placed.place.start(DRIVER, driver_env(list(plan.targets.values()), plan.workload))
    events: list[Event] = []
    end = time.monotonic() + UP_S + ANSWER_S
    try:
        reader.write_line(json.dumps(order))
        while not is_answered(events):
            line = reader.read_line(max(0.0, end - time.monotonic()))
            if line is None:
                return [*events, _ended_early(reader.wait(), " | ".join([*reader.stderr_tail][-3:]))]
            events.append(json.loads(line))
    except TimeoutError:
        reader.kill()
        return [*events, {"e": "failed", "why": "no answer in time", "ours": False}]
    reader.close_stdin()
    return events


def _ask_reader(order: dict[str, Any], plan: TrialPlan, placed: Placed, laboratory: Laboratory) -> list[Event]:
    """A reader on this host, beside the place, which gives up as soon as the server has ended."""
    for target in order["targets"].values():
        target["ports"] = {name: placed.address(port)[1] for name, port in target["ports"].items()}
    root = next(Path(target["root"]) for target in order["targets"].values())
    names = [target.backend for target in plan.targets.values()]
    reader: Process = laboratory.ground.nurseries.get(names, plan.workload).fork()
    events: list[Event] = []
    end = time.monotonic() + UP_S + ANSWER_S
    try:
        reader.send(order)
        while not is_answered(events):
            events += reader.receive(POLL_S)
            if is_answered(events):
                break
            if dead := placed.dead_daemon(root):
                return [*events, {"e": "failed", "why": f"will not start: {dead}", "ours": False}]
            if reader.ended:
                return [*events, _ended_early(reader.wait(ANSWER_S), reader.last_words(""))]
            if time.monotonic() > end:
                return [*events, {"e": "failed", "why": "no answer in time", "ours": False}]
    finally:
        reader.close()
    return events


def _ended_early(status: int, words: str) -> Event:
    """Of a reader that ended without an answer. A crash comes of what it read; any other end is not the store's."""
    return {"e": "failed", "why": f"the reader ended with {status}; {words}", "ours": -status not in CRASHES}


def again(
    path: Path, plan: TrialPlan, events: Sequence[Event], state: vm.CrashState, laboratory: Laboratory
) -> Outcome:
    """One stored crash state once more: the same image, bit for bit, recovered and read in the plan's lane.

    ``path`` is the kept recording, ``events`` the trial's stored history, ``state`` its row's.
    """
    filesystem, unit_bytes = parse_filesystem(plan.filesystem)
    image = laboratory.folder.path / "base-again.img"
    recording = vm.Recording.load(path)
    recording.write_base(image)
    names = {namespace: f"store-{namespace}" for namespace in plan.targets}
    if plan.metadata == plan.data:
        names = dict.fromkeys(names, f"store-{METADATA}")
    ports: dict[str, int] = next((event["ports"] for event in events if "ports" in event), {})
    base = Base(image, names, ports)
    made = Recorded(path.name.removesuffix(".gz"), recording, base, events, {}, filesystem, unit_bytes)
    image = laboratory.folder.path / "crash-again.img"
    with vm.CrashBuilder(base.image, recording, image.with_suffix(".durable")) as builder:
        try:
            builder.build(state, image)
        except ValueError as error:
            message = f"{path}: {error}"
            raise vm.RecordingError(message) from None
        return _look(
            made, plan, state, image, laboratory.lane(plan.lane, plan.filesystem), laboratory, time.monotonic()
        )


def state_from(words: str, position: int) -> vm.CrashState:
    """A crash state from a row's ``state`` (`_look` writes it). ValueError."""
    mode, seed, unit_bytes, *lie = words.split("/")
    lie_from = int(lie[0].removeprefix("lie:")) if lie else None
    return vm.CrashState(position, vm.Mode(mode), int(seed), int(unit_bytes), lie_from)


@dataclass
class Shelf:
    """The kept recordings of a run: ``max_bytes`` together at most, and first of all one of each setting that lost, one
    that broke a promise before one that lost what nobody promised.

    What is there already, of a run that is resumed, stays and is never replaced: rows name it. ``not_kept`` says of
    each recording that is not kept why. `keep` may be called by several threads.
    """

    folder: Path
    max_bytes: int
    not_kept: dict[str, str] = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for half in self.folder.glob("*.gz.part"):  # a run that was killed while it stored one
            half.unlink()
        for path in sorted(self.folder.glob("*.gz")):
            self._kept[path.name.removesuffix(".gz")] = _Kept(("", path.name), 0, path.stat().st_size)

    def keep(self, recorded: Recorded, of: str, *, broken: bool) -> None:
        """Store a recording of the setting ``of`` with the disk it began from, compressed, where there is room."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{recorded.name}.gz"
        if path.exists():
            self.not_kept[recorded.name] = "another one of that name is kept"
            return
        recorded.recording.save(path, base=recorded.base.image)
        size = path.stat().st_size
        with self._lock:
            group = ("broken" if broken else "lost", of)
            rank = (0 if broken else 1) + 2 * any(other.group == group for other in self._kept.values())
            if size > RECORDING_MAX_BYTES or not self._room(size, rank):
                path.unlink()
                limit = min(RECORDING_MAX_BYTES, self.max_bytes)
                self.not_kept[recorded.name] = f"{size:,} bytes compressed, and the limit of {limit:,} is reached"
            else:
                self._kept[recorded.name] = _Kept(group, rank, size)

    def attempts(self, recording: str) -> int:
        """The last attempt of a planned recording that is kept; 0 where none is."""
        return max((_attempt(name, recording) for name in self._kept), default=0)

    def _room(self, size: int, rank: int) -> bool:
        """Whether so much fits, after what matters less has made room for it."""
        free = self.max_bytes - sum(one.size_bytes for one in self._kept.values())
        lesser = sorted((one.rank, one.size_bytes, name) for name, one in self._kept.items() if one.rank > rank)
        if free + sum(each for _, each, _ in lesser) < size:
            return False
        while free < size:
            _, freed, name = lesser.pop()
            del self._kept[name]
            (self.folder / f"{name}.gz").unlink()
            self.not_kept[name] = "made room for one that tells more"
            free += freed
        return True


def _attempt(name: str, recording: str) -> int:
    """Which attempt at ``recording`` a recording's name is of (`TrialPlan.recording_name`); 0: of another one."""
    found = re.fullmatch(re.escape(recording) + r"(?:\.([1-9][0-9]{0,8}))?", name)
    return int(found[1] or 1) if found else 0


@dataclass(frozen=True)
class _Kept:
    """A recording on the shelf. ``rank``: 0 is the last to go."""

    group: tuple[str, str]
    rank: int
    size_bytes: int
