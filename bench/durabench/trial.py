"""One write–kill–reload cycle: a pure function of a plan row and the machine it runs on.

The controller stands outside the blast radius and records the history: what the drivers said and when it heard it, when
the strike began, and what a process that never wrote found afterwards. Judging is the checker's, from that history.
"""

from __future__ import annotations

import select
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from durabench import fault as faults
from durabench import stored, workload
from durabench.machine import DRIVER
from durabench.process import Died, HarnessError, Hung
from durabench.service import READY_S, Service, Target
from durabench_backends.contract import DATA, METADATA, Domain, Promise
from durabench_backends.embedded import kept_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durabench.history import Event, Struck
    from durabench.machine import Machine
    from durabench.process import Process

WRITE_S = 120.0
"""Longest a trial writes before it is given up; a paced one gets its pace on top."""
SETTLE_AFTER_STRIKE_S = 5.0
"""How long a writer may take to notice that its server died; then its put is in doubt and it is killed."""
READ_S = 120.0
VICTIMS = range(2, 41)
WINDOWS_SPANNED = 1.5
SPIN_BELOW_S = 0.002
VICTIM_S = 5.0
"""Where puts are so slow that the victim is not reached by then, the put that begins next is struck instead."""

WRITERS_MAX, PUTS_MAX, WAIT_MAX_S = 1024, 1_000_000, 86_400.0
"""Of a plan that is read from a folder."""


@dataclass(frozen=True)
class TrialPlan:
    """Everything a trial is a function of; a row of ``run.json``'s plan."""

    trial: int
    seed: int
    metadata: Target
    data: Target
    workload: str
    fault: str
    writers: int = 1
    lane: str = "here"
    filesystem: str | None = None
    settle_s: float = 0.0
    flush_delay_s: float = 0.0
    server_kill: str = "tree"
    pace_s: float = 0.0
    puts: int | None = None
    """Acknowledged puts after which a writer stops in order; only where nothing is killed."""
    write_s: float | None = None
    attempt: int = 1
    recording: str | None = None
    """Under faults that take the machine: which recording this crash state is of; ``puts`` are then its puts."""
    control: str | None = None
    """negative, positive or detector: its outcome is known beforehand."""

    @property
    def window_s(self) -> float:
        """The longest that one of its targets may lose acknowledgements of when the power is cut; 0 where none may."""
        settings = [target.load()[1] for target in self.targets.values()]
        windows = [setting.promise.may_lose_s.get(Domain.DRIVE, 0.0) for setting in settings if setting]
        return max(windows, default=0.0)

    @property
    def victim(self) -> int:
        """Which put is struck at, never the first."""
        return Random(f"{self.seed}/victim").choice(VICTIMS)

    @property
    def payload_seed(self) -> int:
        """What payloads and the writers' plans are made from: of the recording, where many trials share one."""
        return self.seed if self.recording is None else Random(self.recording).getrandbits(48)

    @property
    def targets(self) -> dict[str, Target]:
        """What each namespace is kept in."""
        return {METADATA: self.metadata, DATA: self.data}

    def as_json(self) -> dict[str, Any]:
        """A plan row of ``run.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TrialPlan:
        """The plan of such a row, whoever wrote it. ValueError says what is wrong with it."""
        plan: TrialPlan = msgspec.convert(dict(row), cls)
        if not (plan.trial >= 0 and plan.attempt >= 1 and 1 <= plan.writers <= WRITERS_MAX):
            message = f"trial {plan.trial}, attempt {plan.attempt}, {plan.writers} writers"
            raise ValueError(message)
        waits_s = [plan.settle_s, plan.flush_delay_s, plan.pace_s, plan.write_s or 0.0]
        if not (all(0 <= wait_s <= WAIT_MAX_S for wait_s in waits_s) and 1 <= (plan.puts or 1) <= PUTS_MAX):
            message = f"trial {plan.trial} would wait or put without end"
            raise ValueError(message)
        if plan.server_kill not in ("tree", "main"):
            message = f"trial {plan.trial} kills {plan.server_kill!r} of a server"
            raise ValueError(message)
        if plan.recording is not None:
            stored.file_name(plan.recording)
        return plan


@dataclass(frozen=True)
class Outcome:
    """What a trial leaves: the plan, its history's events, and, where they were asked for, sizes per namespace."""

    plan: TrialPlan
    events: Sequence[Event]
    sizes: Mapping[str, int] = field(default_factory=dict)
    driver: str = "fresh"
    started: str = ""
    duration_s: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its rows: where in which recording it is."""


@dataclass
class Site:
    """A machine with a plan's services up on it; lives for at most a visit's trials."""

    machine: Machine
    services: dict[str, Service]
    """By namespace; one service under both names where metadata and data are kept in the same target."""
    reader: Process | None = None
    """The driver that has read so far: it never wrote, opens every store anew, and serves the next trial too."""

    @classmethod
    def set_up(cls, machine: Machine, targets: Mapping[str, Target]) -> Site:
        """Bring up what the targets need, each once. HarnessError if something does not come up."""
        made: dict[Target, Service] = {}
        for namespace, target in targets.items():
            if target not in made:
                made[target] = Service(machine, target, machine.root / "disk" / f"store-{namespace}")
                made[target].set_up()
                made[target].look()
        site = cls(machine, {namespace: made[target] for namespace, target in targets.items()})
        machine.writers_are_servers = any(service.embedded for service in site.distinct)
        return site

    @property
    def distinct(self) -> list[Service]:
        """Each service once."""
        return list({id(service): service for service in self.services.values()}.values())

    def leave(self) -> None:
        """Leave nothing of ours in somebody's store."""
        for service in self.distinct:
            service.leave()

    def order(self, plan: TrialPlan) -> dict[str, Any]:
        """How a driver finds the namespaces of a trial: both, or only the one that its workload puts to."""
        return {
            "targets": {
                name: service.order(service.namespace(f"t{plan.trial}a{plan.attempt}{name[0]}"))
                for name, service in self.services.items()
                if name == METADATA or plan.workload not in workload.METADATA_ONLY
            },
            "seed": plan.seed,
            "deadline_s": READY_S,
        }


def run_trial(plan: TrialPlan, site: Site) -> Outcome:
    """Write, strike, reload; every failure of the harness itself becomes a doubt in the history, which makes it
    unknown.
    """
    cycle = _Cycle(plan, site)
    started, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    try:
        cycle.run()
    except HarnessError as error:
        cycle.note("doubt", why=str(error))
    finally:
        cycle.end()
    return Outcome(plan, cycle.events, cycle.sizes, site.machine.driver, started, time.monotonic() - began)


@dataclass
class _Cycle:
    plan: TrialPlan
    site: Site
    events: list[Event] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    _drivers: list[Process] = field(default_factory=list)
    _identities: dict[str, str | None] = field(default_factory=dict)
    _latencies_ns: dict[str, list[int]] = field(default_factory=dict)
    _armed: dict[int, Event] = field(default_factory=dict)
    _puts_armed: int = 0
    _written_to: frozenset[str] = frozenset()
    _strike_by: float = float("inf")

    def note(self, kind: str, **words: Any) -> None:
        """An event of the controller's own."""
        self.events.append({"e": kind, "t": time.monotonic_ns(), **words})

    def run(self) -> None:
        self.note("trial", seed=self.plan.seed, trial=self.plan.trial, attempt=self.plan.attempt)
        self._compare_settings()
        fault = faults.load(self.plan.fault)
        writers = [self._driver() for _ in range(self.plan.writers)]
        self.site.machine.writers = writers
        for number, writer in enumerate(writers):
            writer.send(self._write_order(number))
        if fault.destroys is Domain.NOTHING:
            self._write_to_the_end(writers)
            self.note("strike")
            self._retire(writers)
            self.site.machine.stop()
            for service in self.site.distinct:
                service.start()
        else:
            self._write_until_struck(writers, fault)
            self._retire(writers)
            if fault.destroys >= Domain.SERVER:
                self.site.machine.up()
                for service in self.site.distinct:
                    service.start()
        if self.plan.control == "detector":
            self._damage()
        self._reload(fault)

    def _damage(self) -> None:
        """Flip a byte of one acknowledged value and delete another, by hand: the checker must see both."""
        acked = [event["key"] for event in self.events if event["e"] == "armed" and event["ns"] == METADATA][:2]
        service = self.site.services[METADATA]
        service.ask({"do": "damage", "target": self.site.order(self.plan)["targets"][METADATA], "keys": acked})

    def _compare_settings(self) -> None:
        """A setting that is not in force, as far as the server says, makes the trial unknown."""
        for service in self.site.distinct:
            _, setting = service.target.load()
            if setting is None or service.promise is None:
                continue
            # The place is not the setting: on a disk of memory no setting keeps what it would keep on another.
            if same_promise(kept_here(setting.promise, service.facts), service.promise):
                continue
            self.note(
                "doubt",
                why=f"{service.target.label}: the effective settings promise something else ({service.promise.tier})",
            )

    def _write_order(self, writer: int) -> dict[str, Any]:
        plan = self.plan
        words = {
            "do": "write",
            "writer": writer,
            "writers": plan.writers,
            "workload": plan.workload,
            "pace_s": plan.pace_s,
        }
        return {**self.site.order(plan), **words, "limit": plan.puts, "limit_s": plan.write_s}

    def _driver(self) -> Process:
        made = self.site.machine.start(DRIVER, self.site.distinct[0].root)
        self._drivers.append(made)
        return made

    def _retire(self, drivers: Sequence[Process]) -> None:
        for driver in drivers:
            self.site.machine.end(driver)
            self._drivers.remove(driver)
        self.site.machine.writers = []

    def end(self) -> None:
        """Leave no driver behind."""
        for driver in list(self._drivers):
            self.site.machine.end(driver)
        self.site.machine.writers = []

    # --- writing

    def _take(self, events: Sequence[Event]) -> Event | None:
        """Record what writers said; the victim's ``armed`` if it is among it."""
        victim = None
        for event in events:
            kind = event["e"]
            if kind == "armed":
                self._armed[event["w"]] = event
                if event["verb"] == "put" and event["w"] == 0:
                    self._puts_armed += 1
                    late = self._puts_armed >= VICTIMS.start and time.monotonic() > self._strike_by
                    # Without an acknowledgement in each namespace there is nothing to be lost, and nothing to judge.
                    if (self._puts_armed >= self.plan.victim or late) and self._latencies_ns.keys() >= self._written_to:
                        victim = victim or event
            elif kind == "ok":
                armed = self._armed.pop(event["w"])
                if armed["verb"] == "put":
                    self._latencies_ns.setdefault(armed["ns"], []).append(event["latency_ns"])
            elif kind == "ready":
                self._identities.update(event["identity"])
            elif kind == "failed":
                raise HarnessError(f"the writer could not start: {event['why']}")
            self.events.append(event)
        return victim

    def _write_to_the_end(self, writers: Sequence[Process]) -> None:
        end = time.monotonic() + WRITE_S
        waiting = list(writers)
        while waiting:
            for writer in _readable(waiting, end, "the writers did not finish"):
                events = writer.receive(0)
                self._take(events)
                if writer.ended:
                    raise Died(writer.last_words("a writer ended in peacetime"))
                if any(event["e"] == "done" for event in events):
                    waiting.remove(writer)
        if any(event["e"] == "info" for event in self.events):
            self.note("doubt", why="a put failed in peacetime")

    def _write_until_struck(self, writers: Sequence[Process], fault: faults.Fault) -> None:
        end = time.monotonic() + WRITE_S + self.plan.pace_s * self.plan.victim
        self._written_to = frozenset(namespaces(self.plan.workload))
        self._strike_by = time.monotonic() + VICTIM_S + 2 * self.plan.pace_s * self.plan.victim
        armed = None
        while armed is None:
            for writer in _readable(writers, end, "the victim put was never reached"):
                armed = self._take(writer.receive(0)) or armed
                if writer.ended or (self.events and self.events[-1]["e"] in ("info", "done")):
                    raise Died(writer.last_words("a writer ended before the strike"))
        self._wait_inside(armed)
        self.note("strike", fault=fault.name)
        self.site.machine.strike(fault, self.plan.seed)
        self._hear_the_last(writers)
        self.note("struck", where=self._struck())

    def _wait_inside(self, armed: Event) -> None:
        """A random part of the put's usual latency, as this trial has seen it."""
        seen = self._latencies_ns.get(armed["ns"]) or [ns for some in self._latencies_ns.values() for ns in some]
        usual_s = statistics.median(seen) / 1e9 if seen else 0.0
        until = armed["t"] / 1e9 + Random(f"{self.plan.seed}/moment").random() * usual_s
        left = until - time.monotonic()
        if left > SPIN_BELOW_S:
            time.sleep(left - SPIN_BELOW_S)
        while time.monotonic() < until:
            pass

    def _hear_the_last(self, writers: Sequence[Process]) -> None:
        """What was already said when the strike came, and what surviving writers say of it; silence leaves puts in
        doubt.
        """
        end = time.monotonic() + SETTLE_AFTER_STRIKE_S
        waiting = list(writers)
        while waiting and time.monotonic() < end:
            ready, _, _ = select.select(waiting, [], [], max(0, end - time.monotonic()))
            for writer in ready:
                events = writer.receive(0)
                self._take([event for event in events if event["e"] != "failed"])
                if writer.ended or any(event["e"] in ("done", "failed") for event in events):
                    waiting.remove(writer)

    def _struck(self) -> Struck:
        if self._armed:
            return "inside"
        return "after" if self._puts_armed >= self.plan.victim else "before"

    # --- reloading

    def _reload(self, fault: faults.Fault) -> None:
        """Read all that is left in a process that never wrote."""
        began_ns = time.monotonic_ns()
        keys: dict[str, set[str]] = {}
        for event in self.events:
            if event["e"] == "armed":
                keys.setdefault(event["ns"], set()).add(event["key"])
        order = {
            **self.site.order(self.plan),
            "do": "read",
            "keys": {name: sorted(some) for name, some in keys.items()},
        }
        order["sizes"] = fault.destroys is Domain.NOTHING
        reader = self._reader()
        reader.send(order)
        end = time.monotonic() + READY_S + READ_S
        answer: Event | None = None
        while answer is None:
            for event in self._hear_reader(reader, end):
                if event["e"] == "listing" and not any(seen["e"] == "up" for seen in self.events):
                    self.events.append({"e": "up", "t": event["t"], "recovery_ns": event["t"] - began_ns})
                if event["e"] in ("done", "failed"):
                    answer = event
                else:
                    self.events.append(event)
        if answer["e"] == "failed":
            dead = self.site.machine.dead_daemon()
            self.note("down", why=answer["why"] + (f"; {dead}" if dead else ""))
            return
        self._drivers.remove(reader)
        self.site.reader = reader
        self.sizes = answer.get("sizes", {})
        self._compare_identities(fault, answer["identity"])

    def _reader(self) -> Process:
        """The site's reader, or a new driver. One that did not read to the end is ended with this trial."""
        reader, self.site.reader = self.site.reader, None
        if reader is None:
            return self._driver()
        self._drivers.append(reader)
        return reader

    def _hear_reader(self, reader: Process, end: float) -> list[Event]:
        if time.monotonic() > end:
            raise Hung(reader.last_words("the reader did not finish"))
        events = reader.receive(0.2)
        if reader.ended and not events:
            raise Died(reader.last_words("the reader ended"))
        return events

    def _compare_identities(self, fault: faults.Fault, after: Mapping[str, str]) -> None:
        """A stale server must not vouch for a restarted one, nor a restarted one for one that was to live on."""
        for name, instance in after.items():
            service = self.site.services[name]
            restarted = service.embedded or fault.destroys is not Domain.CLIENT
            if service.target.url:
                continue
            if restarted == (instance == self._identities.get(name)):
                why = "is still the one from before the strike" if restarted else "was restarted by something else"
                self.note("doubt", why=f"{service.target.label}: the instance that answers {why}")


def same_promise(asked: Promise, effective: Promise) -> bool:
    """Whether two promises say the same, whatever their sources."""
    return replace(asked, source="") == replace(effective, source="")


def _readable(processes: Sequence[Process], end: float, what: str) -> list[Process]:
    """Those with something to say before ``end``; Hung otherwise."""
    ready, _, _ = select.select(processes, [], [], max(0, end - time.monotonic()))
    if not ready:
        raise Hung(what + processes[0].last_words(""))
    return list(ready)


def namespaces(name: str) -> list[str]:
    """The namespaces a workload writes to, from the first operations of its plan."""
    made = workload.load(name)(0, 1)
    found = {op.namespace for op in islice(made.plan(Random(0)), 20)}
    return [namespace for namespace in (METADATA, DATA) if namespace in found]
