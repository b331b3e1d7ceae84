"""The same cycle on a machine that is reset, a power that is cut, a drive that lies.

One *recording*: a guest writes to the power disk, whose log holds every write, flush and acknowledgement in one order;
then the power goes. From it many *crash states* are built, each a legal content of the disk at one position; each is
recovered in a lane, read by a process that never wrote, and judged by what had been acknowledged at that position.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from dataclasses import dataclass, field
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
    root_spec,
)
from durabench.process import Died, HarnessError, Hung
from durabench.service import ANSWER_S, Service, Target
from durabench.trial import SETTLE_AFTER_STRIKE_S, Outcome, TrialPlan
from durabench_backends.contract import METADATA, Domain
from durabench_vm.check import MACHINE_LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench.history import Event
    from durabench.machine import Machine
    from durabench.process import Process

WRITE_S = 180.0
"""Longest a recording writes under emulation; a paced one gets its pace on top."""
UP_S = 60.0
"""Longest wait for a backend to come up on a crash image; "does not come up" is a result."""
LATE_S = 0.05
"""How late the controller may hear that a put began: what reached the disk before is attempted, not invented."""
RECORDING_MAX_BYTES = 64 << 20
"""A losing recording is kept, with the disk it began from, unless it is larger than this, or `Shelf` is full."""
POLL_S = 0.02


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

    def hear(self, line: str) -> None:
        """Called in the thread that reads the guest's lines, at the moment each arrives."""
        event = json.loads(line)
        event["t"] = time.monotonic_ns()
        if event["e"] == "ok":
            self.disk.mark([event["w"], event["i"]])
        self.events.append(event)
        self.news.put(event)

    def wait(self, plan: TrialPlan, puts: int, victim: int | None) -> None:
        """Until every writer has acknowledged its puts and holds still, or put ``victim`` begins. HarnessError."""
        end = time.monotonic() + WRITE_S + (plan.pace_s + plan.flush_delay_s) * puts
        held: set[int] = set()
        begun = 0
        while len(held) < plan.writers:
            try:
                event = self.news.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                message = f"the guest's writer made {len(self.events)} events and not its {puts} puts in time"
                raise Hung(message) from None
            begun += event["e"] == "armed" and event["verb"] == "put" and event["w"] == 0
            if begun == victim:
                return
            if event["e"] == "ok":
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
                done += self.news.get(timeout=max(0.0, end - time.monotonic()))["e"] in ("done", "failed")
            except queue.Empty:
                return

    def struck(self) -> str:
        """Whether the strike fell inside a put that was never answered with ok."""
        answered = {(event["w"], event["i"]) for event in self.events if event["e"] == "ok"}
        begun = {(event["w"], event["i"]) for event in self.events if event["e"] == "armed"}
        return "inside" if begun - answered else "after"

    def identities(self) -> dict[str, str]:
        """Who answered the writers, by namespace."""
        return {name: who for event in self.events if event["e"] == "ready" for name, who in event["identity"].items()}


def kill_on_slow_drive(plan: TrialPlan, laboratory: Laboratory) -> Outcome:
    """Kill the server on a disk that answers flushes late, start it again on the same machine, and read. One trial."""
    filesystem, unit_bytes = parse_filesystem(plan.filesystem)
    base = laboratory.base(plan.targets, plan.filesystem, plan.workload)
    stem = laboratory.folder.path / f"slow-{plan.recording}"
    image, log = stem.with_suffix(".img"), stem.with_suffix(".log")
    vm.copy_sparse(base.image, image)
    disk = vm.PowerDisk(image, log, unit_bytes=unit_bytes, flush_delay_s=plan.flush_delay_s)
    began, writing = time.monotonic(), _Writing(disk)
    events: list[Event] = [
        {"e": "trial", "t": 0, "seed": plan.payload_seed, "trial": plan.trial, "attempt": plan.attempt}
    ]
    try:
        with laboratory.machine(plan, disk) as machine:
            machine.mount(filesystem, user=SERVER_USER if _adopts() else None)
            placed = _placed(machine, plan, base, laboratory)
            _write(plan, placed, base.folders, writing, victim=plan.victim)
            strike = {"e": "strike", "t": time.monotonic_ns(), "fault": plan.fault}
            for daemon in placed.daemons:
                daemon.kill(tree=True)
            for daemon in placed.daemons:
                daemon.wait()
            writing.wait_for_the_last(plan.writers)
            events += [*writing.events, strike, {"e": "struck", "t": time.monotonic_ns(), "where": writing.struck()}]
            placed.daemons.clear()
            began_ns = time.monotonic_ns()
            answer = _serve(placed, plan, base.folders, laboratory, _keys(events))
            events += _as_read(_at(answer), writing.identities(), began_ns, time.monotonic_ns())
    except (vm.GuestLost, vm.AgentError, vm.PowerDiskError, TimeoutError) as error:
        raise HarnessError(" ".join(str(error).split())[-600:]) from error
    finally:
        disk.close()
        image.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
    return Outcome(
        plan, events, driver="fresh", duration_s=time.monotonic() - began, more={"recording": str(plan.recording)}
    )


def _at(answer: Sequence[Event]) -> list[Event]:
    """A reader's events with the time at which all of them were here."""
    now_ns = time.monotonic_ns()
    return [{**event, "t": now_ns} for event in answer]


def record(plan: TrialPlan, laboratory: Laboratory) -> Recorded:
    """Write in a guest until every put of the plan is acknowledged, wait ``settle_s``, and cut the power.
    HarnessError.
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
            _write(plan, _placed(machine, plan, base, laboratory), base.folders, writing)
            if plan.settle_s:
                time.sleep(plan.settle_s)
            machine.cut()
    except (vm.GuestLost, vm.AgentError, vm.PowerDiskError, TimeoutError) as error:
        raise HarnessError(" ".join(str(error).split())[-600:]) from error
    finally:
        disk.close()
        image.unlink(missing_ok=True)
    return Recorded(str(plan.recording), vm.Recording.load(log), base, writing.events, facts, filesystem, unit_bytes)


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
    plan: TrialPlan, machine: Placed, folders: Mapping[str, str], writing: _Writing, victim: int | None = None
) -> None:
    """Start servers and writers; returns when all puts are acknowledged, or inside put ``victim``. HarnessError."""
    services = _services(plan, machine, folders)
    for service in {id(service): service for service in services.values()}.values():
        service.start()
    env = driver_env(root_spec(list(plan.targets.values())))
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
        }
        writing.writers.append(writer)
        writer.write_line(json.dumps(order))
    try:
        writing.wait(plan, puts, victim)
    except HarnessError as error:
        dead = machine.dead_daemon()
        raise type(error)(f"{error}; {dead}" if dead else str(error)) from None


# --- crash states


def states(recorded: Recorded, plans: Sequence[TrialPlan]) -> list[tuple[TrialPlan, vm.CrashState]]:
    """One legal state for every plan, drawn by the recording's seed, in the order that builds fastest.

    Nothing is drawn before every namespace has an acknowledgement. With ``settle_s`` every state is of the moment the
    power went.
    """
    recording = recorded.recording
    first, last = _first(recorded, plans[0].window_s), len(recording)
    found: list[tuple[TrialPlan, vm.CrashState]] = []
    by_fault: dict[str, list[TrialPlan]] = {}
    for plan in plans:
        by_fault.setdefault(plan.fault, []).append(plan)
    for name, members in by_fault.items():
        destroys = faults.load(name).destroys
        drawn = vm.sample_states(
            recording,
            len(members),
            Random(f"{plans[0].payload_seed}/{name}").getrandbits(32),
            unit_bytes=recorded.unit_bytes,
            lie_from=first if destroys is Domain.FLUSHED else None,
            first=last if members[0].settle_s else first,
            last=last,
            modes=(vm.Mode.ALL,)
            if destroys is Domain.MACHINE
            else (vm.Mode.DROP, vm.Mode.PREFIX, vm.Mode.SUBSET, vm.Mode.TORN),
        )
        found += zip(members, _exhausted(recording, drawn), strict=True)
    return sorted(found, key=lambda pair: pair[1].position)


def _exhausted(recording: vm.Recording, drawn: Sequence[vm.CrashState]) -> list[vm.CrashState]:
    """The drawn states; where few writes are unflushed at a position, those there take every subset in turn.

    Torn states stay as drawn, and so do those of a reset, which keeps everything.
    """
    found: list[vm.CrashState] = []
    taken: dict[int, int] = {}
    for state in drawn:
        every = None
        if state.mode in (vm.Mode.DROP, vm.Mode.PREFIX, vm.Mode.SUBSET):
            every = vm.enumerate_states(recording, state.position, unit_bytes=state.unit_bytes, lie_from=state.lie_from)
        number = taken.get(state.position, 0)
        taken[state.position] = number + 1
        found.append(every[number % len(every)] if every else state)
    return found


def _first(recorded: Recorded, window_s: float) -> int:
    """The first position at which every namespace that is written to has an acknowledgement older than the window that
    may be lost, so that a loss can tell. HarnessError where nothing was acknowledged.
    """
    namespace_of = {(e["w"], e["i"]): e["ns"] for e in recorded.events if e["e"] == "armed"}
    missing = {namespace_of[e["w"], e["i"]] for e in recorded.events if e["e"] == "ok"}
    for position, entry in enumerate(recorded.recording.entries):
        if entry.mark is not None:
            missing.discard(namespace_of[tuple(entry.mark)])
            if not missing:
                return _after(recorded, position + 1, entry.time_ns + window_s * 1e9)
    message = "nothing was acknowledged in the recording"
    raise HarnessError(message)


def _after(recorded: Recorded, position: int, time_ns: float) -> int:
    """The first position from ``position`` on that is later than a time; ``position`` where there is none."""
    entries = recorded.recording.entries
    later = (at + 1 for at in range(position - 1, len(entries)) if entries[at].time_ns > time_ns)
    return next(later, position)


def written_before(recorded: Recorded, position: int) -> list[Event]:
    """The history up to a position of the log: what had been acknowledged there, and what had been begun.

    An acknowledgement counts where its mark stands in the log. The rest is in doubt, including what the controller was
    told of a moment later: the disk may have heard of a put before the controller did.
    """
    at_ns = strike_ns(recorded, position)
    promised = {tuple(mark) for mark in recorded.recording.acknowledged(position)}
    events = []
    for event in recorded.events:
        if event["e"] == "ok":
            if (event["w"], event["i"]) in promised:
                events.append(event)
        elif event["e"] != "held" and event["t"] <= at_ns + LATE_S * 1e9:
            events.append(event)
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
    """Build, recover, read and tell one crash state per plan."""
    chosen = states(recorded, plans)
    lane = laboratory.lane(plans[0].lane, plans[0].filesystem)
    stem = laboratory.folder.path / f"crash-{plans[0].recording}-{plans[0].trial}"
    image = stem.with_suffix(".img")
    with vm.CrashBuilder(recorded.base.image, recorded.recording, stem.with_suffix(".durable")) as builder:
        try:
            for plan, state in chosen:
                if stop():
                    return
                began = time.monotonic()
                builder.build(state, image)
                tell(_look(recorded, plan, state, image, lane, laboratory, began))
        finally:
            image.unlink(missing_ok=True)


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
    inside = any(
        event["e"] == "armed" and event["t"] <= at_ns and (event["w"], event["i"]) not in answered for event in events
    )
    events.append({"e": "strike", "t": at_ns, "fault": plan.fault})
    events.append({"e": "struck", "t": at_ns, "where": "inside" if inside else "after"})
    events += _read(recorded, plan, image, lane, laboratory, _keys(events))
    return Outcome(
        plan,
        events,
        driver="fresh",
        duration_s=time.monotonic() - began,
        more={
            "recording": recorded.name,
            "position": state.position,
            "gap": recorded.recording.gap(state.position),
            "state": f"{state.mode}/{state.seed}/{state.unit_bytes}"
            + (f"/lie:{state.lie_from}" if state.lie_from else ""),
        },
    )


def _keys(events: Sequence[Event]) -> dict[str, list[str]]:
    keys: dict[str, set[str]] = {}
    for event in events:
        if event["e"] == "armed":
            keys.setdefault(event["ns"], set()).add(event["key"])
    return {namespace: sorted(some) for namespace, some in keys.items()}


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
    job = _job(recorded, plan, laboratory, keys)
    found = lane.check(image, recorded.filesystem, job, user=SERVER_USER if _adopts() else None)
    now_ns = time.monotonic_ns()
    if isinstance(found, vm.Finding):
        kind = "doubt" if found.what == MACHINE_LOST else "down"
        return [{"e": kind, "t": now_ns, "why": f"{found.what}: {' '.join(found.detail.split())[:500]}"}]
    answer = _at(found.answer)
    before = {
        name: who for event in recorded.events if event["e"] == "ready" for name, who in event["identity"].items()
    }
    return _as_read(answer, before, began_ns, now_ns)


def _as_read(answer: list[Event], before: Mapping[str, str], began_ns: int, now_ns: int) -> list[Event]:
    """A reader's events as a history has them: up or down, and never from an instance that was to be gone."""
    last: Event = answer.pop() if answer else {"e": "failed", "why": "no answer"}
    if last["e"] == "failed":
        return [*answer, {"e": "down", "t": now_ns, "why": last["why"]}]
    if any(last["identity"][name] == before.get(name) for name in last["identity"]):
        return [{"e": "doubt", "t": now_ns, "why": "the instance that answers is still the one from before the strike"}]
    return [{"e": "up", "t": now_ns, "recovery_ns": now_ns - began_ns}, *answer]


def _job(recorded: Recorded, plan: TrialPlan, laboratory: Laboratory, keys: Mapping[str, list[str]]) -> Any:
    """How an image is read: by one lasting process where stores are embedded, else by servers started on it."""
    machine = cast("Machine", _Elsewhere())
    services = {
        name: Service(machine, target, Path(recorded.base.folders[name])) for name, target in plan.targets.items()
    }
    request = {**_order(plan, services, UP_S), "do": "read", "keys": keys, "sizes": False}
    if all(service.embedded for service in services.values()):
        spec = root_spec(list(plan.targets.values()))
        return vm.Job(
            (*DRIVER, "--lasting"), env=driver_env(spec), deadline_s=UP_S + ANSWER_S, lasting=True, request=request
        )

    def serve(place: vm.Place) -> list[Event]:
        return _serve(_placed(place, plan, recorded.base, laboratory), plan, recorded.base.folders, laboratory, keys)

    return serve


def _serve(
    placed: Placed, plan: TrialPlan, folders: Mapping[str, str], laboratory: Laboratory, keys: Mapping[str, list[str]]
) -> list[Event]:
    """Start a plan's servers where they are placed and let a reader read them."""
    started = _services(plan, placed, folders)
    for service in {id(service): service for service in started.values()}.values():
        service.start()
    order = {**_order(plan, started, UP_S), "do": "read", "keys": keys, "sizes": False}
    for target in order["targets"].values():
        target["ports"] = {name: placed.address(port)[1] for name, port in target["ports"].items()}
    return _ask_reader(order, plan, placed, laboratory)


@dataclass
class _Elsewhere:
    """Stands for a machine where only the words of an order are needed; no port of it is ever used."""

    def port(self, _name: str) -> int:
        return 0


def _ask_reader(order: Mapping[str, Any], plan: TrialPlan, placed: Placed, laboratory: Laboratory) -> list[Event]:
    """A reader on this host, beside the place, which gives up as soon as a server has ended."""
    names = [target.backend for target in plan.targets.values()]
    reader: Process = laboratory.ground.nurseries.get(names, plan.workload).fork()
    events: list[Event] = []
    end = time.monotonic() + UP_S + ANSWER_S
    try:
        reader.send(order)
        while not (events and events[-1]["e"] in ("done", "failed")):
            events += reader.receive(POLL_S)
            dead = placed.dead_daemon()
            if dead and not (events and events[-1]["e"] in ("done", "failed")):
                return [{"e": "failed", "why": f"will not start: {dead}"}]
            if time.monotonic() > end or (reader.ended and not events):
                return [{"e": "failed", "why": "the reader gave no answer in time"}]
    finally:
        reader.close()
    if events[-1]["e"] == "failed":
        dead = placed.dead_daemon()
        events[-1]["why"] += f"; {dead}" if dead else ""
    return events


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
    made = Recorded(str(plan.recording), recording, base, events, {}, filesystem, unit_bytes)
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

    What is there already, of a run that is resumed, stays. ``not_kept`` says of each recording that is not kept why.
    `keep` may be called by several threads.
    """

    folder: Path
    max_bytes: int
    not_kept: dict[str, str] = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.glob("*.gz")):
            self._kept[path.name.removesuffix(".gz")] = _Kept(("", path.name), 0, path.stat().st_size)

    def keep(self, recorded: Recorded, of: str, *, broken: bool) -> None:
        """Store a recording of the setting ``of`` with the disk it began from, compressed, where there is room."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{recorded.name}.gz"
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


@dataclass(frozen=True)
class _Kept:
    """A recording on the shelf. ``rank``: 0 is the last to go."""

    group: tuple[str, str]
    rank: int
    size_bytes: int
