"""One write–kill–reload cycle: a pure function of a plan row and the machine it runs on.

The controller stands outside the blast radius and records the history: what the drivers said and when it heard it, when
the strike began, and what a process that never wrote found afterwards. Judging is the checker's, from that history.
"""

from __future__ import annotations

import select
import statistics
import time
import traceback
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from durabench import fault as faults
from durabench import stored, workload
from durabench.machine import DRIVER
from durabench.process import CRASHES, Died, HarnessError, Hung, is_answered
from durabench.service import READY_S, Service, Target, not_in_force
from durabench_backends.contract import DATA, METADATA, Domain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durabench.history import Event, Struck
    from durabench.machine import Machine
    from durabench.process import Process

WRITE_S = 120.0
"""Longest a trial writes before it is given up; a paced one gets its pace on top."""
SETTLE_AFTER_STRIKE_S = 5.0
"""How long a writer may take to notice that its server died; then its put is in doubt and it is killed."""
REFUSED_READ = 20
"""Of the keys of which every operation was refused so many are read back: that they are not there is soon seen."""
READ_S = 120.0
VICTIMS = range(2, 41)
REFUSED_MAX = VICTIMS.stop
"""Where a store refuses so many puts in a row before anything dies, there will be nothing to lose."""
HARNESS = "an error of the harness itself"
CUT = "cut, its visit has had its share of the budget"
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
    def recording_name(self) -> str:
        """What its recording is called: one that is made again, by a resumed run, is another one."""
        return str(self.recording) if self.attempt == 1 else f"{self.recording}.{self.attempt}"

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
        return {**asdict(self), "metadata": self.metadata.as_json(), "data": self.data.as_json()}

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
    by_namespace: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same, of the rows of one namespace: in which of its gaps."""
    error: str | None = None
    """The mistake of the harness itself that it met, in one line: the campaign cannot be trusted to have no other."""

    @property
    def undisturbed(self) -> bool:
        """Whether it came up and nothing stands against trusting it. Of a campaign that is stopped, only such a trial
        counts: the others are done again.
        """
        return not any(event["e"] in ("doubt", "down") for event in self.events)


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
    unknown, a mistake in its own code too.
    """
    cycle = _Cycle(plan, site)
    started, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    why: str | None = None
    try:
        try:
            cycle.run()
        finally:
            cycle.end()
    except HarnessError as error:
        cycle.note("doubt", why=str(error) if site.machine.left_s(1.0) else f"{CUT}: {error}", voids=False)
    except Exception as error:
        why = in_one_line(error)
        cycle.note("doubt", why=why, voids=True)
    took_s = time.monotonic() - began
    return Outcome(plan, cycle.events, cycle.sizes, site.machine.driver, started, took_s, error=why)


def without_trial(plan: TrialPlan, why: str, error: str | None = None, seen: Sequence[Event] = ()) -> Outcome:
    """What is left of a trial that could not begin: a history that says so. ``error``: as in `Outcome`. Where it began
    and was not struck, ``seen`` is what its writers told, which stands.
    """
    now_ns = time.monotonic_ns()
    events: list[Event] = [
        {"e": "trial", "t": now_ns, "seed": plan.payload_seed, "trial": plan.trial, "attempt": plan.attempt},
        *seen,
        {"e": "doubt", "t": now_ns, "why": why, "voids": not seen},
    ]
    return Outcome(plan, events, started=datetime.now(UTC).isoformat(timespec="milliseconds"), error=error)


def in_one_line(error: BaseException) -> str:
    """A mistake of ours for a history and for a person: its class, its words, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    words = " ".join(str(error).split())[:300]
    return f"{HARNESS}: {type(error).__name__}{f': {words}' if words else ''}{where}"


def keys_to_read(events: Sequence[Event], seed: int) -> tuple[dict[str, list[str]], list[Event]]:
    """The keys that a reader is asked for, by namespace: every one that was attempted, but of those of which every
    operation was refused a sample; and an event that says how many of how many, where some are left out.

    What is listed is read anyway, so that a refused put that is there all the same is seen.
    """
    refused = {(event["w"], event["i"]) for event in events if event["e"] == "fail"}
    certain: dict[str, dict[str, bool]] = defaultdict(dict)
    for event in events:
        if event["e"] == "armed":
            of_key = certain[event["ns"]]
            of_key[event["key"]] = of_key.get(event["key"], True) and (event["w"], event["i"]) in refused
    keys: dict[str, list[str]] = {}
    told: list[Event] = []
    for namespace, every in certain.items():
        failed = sorted(key for key, all_refused in every.items() if all_refused)
        read = failed
        if len(failed) > REFUSED_READ:
            read = Random(f"{seed}/refused/{namespace}").sample(failed, REFUSED_READ)
            words = {"ns": namespace, "read": len(read), "of": len(failed)}
            told.append({"e": "sampled", "t": time.monotonic_ns(), **words})
        keys[namespace] = sorted({key for key, all_refused in every.items() if not all_refused} | set(read))
    return keys, told


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
    _refused: int = 0
    """How many puts of the first writer were refused one after the other."""
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
            if not self.site.machine.left_s(1.0):
                raise Hung("the servers were not stopped in order, for time")
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
            why = service.promise and not_in_force(service.target, service.promise, service.facts)
            if why:
                self.note("doubt", why=why, voids=True)

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
        end = self._end(WRITE_S)
        waiting = list(writers)
        while waiting:
            for writer in _readable(waiting, end, "the writers did not finish"):
                events = writer.receive(0)
                self._take(events)
                _go_on(writer, events)
                if writer.ended:
                    raise Died(writer.last_words("a writer ended in peacetime"))
                if any(event["e"] == "done" for event in events):
                    waiting.remove(writer)
        if any(event["e"] == "info" for event in self.events):
            self.note("doubt", why="a put failed in peacetime", voids=False)

    def _write_until_struck(self, writers: Sequence[Process], fault: faults.Fault) -> None:
        end = self._end(WRITE_S + self.plan.pace_s * self.plan.victim)
        self._written_to = frozenset(namespaces(self.plan.workload))
        self._strike_by = time.monotonic() + VICTIM_S + 2 * self.plan.pace_s * self.plan.victim
        armed = None
        while armed is None:
            for writer in _readable(writers, end, "the victim put was never reached"):
                events = writer.receive(0)
                armed = self._take(events) or armed
                if writer.ended or (self.events and self.events[-1]["e"] in ("info", "done")):
                    raise Died(writer.last_words("a writer ended before the strike"))
                self._refuse_to_wait(events)
                if armed is None:
                    _go_on(writer, events)
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

    def _refuse_to_wait(self, events: Sequence[Event]) -> None:
        """Died where the store takes nothing: a victim is never reached without an acknowledgement."""
        for event in events:
            if event["e"] in ("ok", "fail") and event["w"] == 0:
                self._refused = self._refused + 1 if event["e"] == "fail" else 0
                if self._refused >= REFUSED_MAX:
                    raise Died(f"{self._refused} puts were refused one after the other: {event['why']}")

    def _end(self, wait_s: float) -> float:
        """The monotonic time in ``wait_s``, or when the visit has had its share."""
        return time.monotonic() + self.site.machine.left_s(wait_s)

    def _hear_the_last(self, writers: Sequence[Process]) -> None:
        """What was already said when the strike came, and one failure of every writer that lives on: it waits after a
        put that was refused, and nothing tells it to go on; one in doubt is its last. Silence leaves puts in doubt.
        """
        end = self._end(SETTLE_AFTER_STRIKE_S)
        waiting = list(writers)
        while waiting and time.monotonic() < end:
            ready, _, _ = select.select(waiting, [], [], max(0, end - time.monotonic()))
            for writer in ready:
                events = writer.receive(0)
                self._take([event for event in events if event["e"] != "failed"])
                if writer.ended or any(event["e"] in ("fail", "info", "done", "failed") for event in events):
                    waiting.remove(writer)

    def _struck(self) -> Struck:
        if self._armed:
            return "inside"
        return "after" if self._puts_armed >= self.plan.victim else "before"

    # --- reloading

    def _reload(self, fault: faults.Fault) -> None:
        """Read all that is left in a process that never wrote; of two stores each by itself, for one may be silent."""
        began_ns = time.monotonic_ns()
        keys, sampled = keys_to_read(self.events, self.plan.seed)
        self.events += sampled
        order = {**self.site.order(self.plan), "do": "read", "keys": keys}
        order["sizes"] = fault.destroys is Domain.NOTHING
        identity: dict[str, str] = {}
        for service in self.site.distinct:
            targets = {name: one for name, one in order["targets"].items() if self.site.services[name] is service}
            if targets:
                answer = self._read_back({**order, "targets": targets}, service)
                self.sizes |= answer.get("sizes", {})
                identity |= answer.get("identity", {})
        first = next((event for event in self.events if event["e"] == "listing"), None)
        if first is not None:
            self.events.append({"e": "up", "t": first["t"], "recovery_ns": first["t"] - began_ns})
        if fault.destroys >= Domain.SERVER and (stranger := self.site.machine.stranger()):
            self.note("doubt", why=stranger, voids=True)
        self._compare_identities(fault, identity)

    def _read_back(self, order: Mapping[str, Any], service: Service) -> Event:
        """What a reader said last; what it read is recorded, of a second one where the first was lost on the way.

        A reader that hangs or crashes does so in the store: the store is down, as is one whose server has ended. One
        that was ended from outside, or by a fault of its own, says nothing of the store. Died.
        """
        for again in (True, False):
            reader, asked = self._reader(), time.monotonic()
            with suppress(Died):  # what ended meanwhile is seen by its silence
                reader.send(order)
            events: list[Event] = []
            gone, end = False, self._end(READY_S + READ_S)
            while time.monotonic() < end and not (reader.ended or gone or is_answered(events)):
                events += reader.receive(0.2)
                gone = self.site.machine.dead_daemon(service.root) is not None
            if is_answered(events):
                return self._answered(reader, events, order)
            hung = not reader.ended
            crashed = not hung and -reader.wait(READ_S) in CRASHES
            why = reader.last_words("did not answer in time" if hung else f"the reader ended with {reader.exit_code}")
            silent = not events and time.monotonic() - asked >= READY_S
            if hung and not (gone or silent or self.site.machine.left_s(1.0)):
                break  # that its visit has had its share says nothing of the store
            if hung or (crashed and not again):
                self._found(events, order, "its server has ended" if gone else why)
                return {}
        self._found(events, order)
        raise Died(why)

    def _answered(self, reader: Process, events: list[Event], order: Mapping[str, Any]) -> Event:
        answer = events.pop()
        if answer["e"] == "done":
            self._drivers.remove(reader)
            self.site.reader = reader
        self._found(events, order, None if answer["e"] == "done" or answer["ours"] else answer["why"])
        if answer["e"] != "done" and answer["ours"]:
            raise HarnessError(f"the reader failed: {answer['why']}")
        return answer

    def _found(self, events: Sequence[Event], order: Mapping[str, Any], down: str | None = None) -> None:
        """Record what a reader told, and that its store is down; whatever comes of the trial, it is evidence."""
        self.events += [self._with_last_words(event) for event in events]
        if down is not None:
            event = {"e": "down", "t": time.monotonic_ns(), "ns": sorted(order["targets"]), "why": down}
            self.events.append(self._with_last_words(event))

    def _with_last_words(self, event: Event) -> Event:
        """Of a store that is down, the last words of its own server, where that has ended. One that was ended from
        outside is not down, but in doubt.
        """
        if event["e"] != "down":
            return event
        roots = dict.fromkeys(self.site.services[namespace].root for namespace in event["ns"])
        dead = [words for root in roots if (words := self.site.machine.dead_daemon(root))]
        return down_or_doubt(event, dead, any(self.site.machine.ended_by(root) for root in roots))

    def _reader(self) -> Process:
        """The site's reader, or a new driver. One that did not read to the end is ended with this trial."""
        reader, self.site.reader = self.site.reader, None
        if reader is None:
            return self._driver()
        self._drivers.append(reader)
        return reader

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


def down_or_doubt(down: Event, last_words: Sequence[str], ended_from_outside: object) -> Event:
    """That a store is down, with its server's last words; a doubt where a signal from outside had ended the server."""
    why = "; ".join([down["why"], *(words for words in last_words if words not in down["why"])])
    if not ended_from_outside:
        return {**down, "why": why}
    return {"e": "doubt", "t": down["t"], "why": f"ended from outside: {why}", "voids": False}


def _go_on(writer: Process, events: Sequence[Event]) -> None:
    """A writer whose put was refused waits to be told to go on."""
    if any(event["e"] == "fail" for event in events):
        writer.send({})


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
