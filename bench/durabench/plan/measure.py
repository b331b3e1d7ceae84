"""One trial of a plan: a fresh process puts, another one reloads, and what both cost is read off the kernel.

Nothing is killed here. Latency is taken with nothing else under way; what does not need it runs beside others.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from durabench.machine import DRIVER
from durabench.plan.accounting import drop_from_cache, written_bytes, written_since
from durabench.process import Died, HarnessError, Hung
from durabench.service import READY_S, Service
from durabench_backends.contract import DATA, METADATA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench.ground import Ground
    from durabench.machine import Here
    from durabench.plan.accounting import Device
    from durabench.process import Process
    from durabench.service import Target

TRIAL_S = 300.0
"""Longest that all steps of a trial take together; a store that is slower is given up."""
COMPACT_S = 120.0
WORKLOAD = "append"
"""What the nursery of drivers is warmed for; plans carry out none."""

Part = tuple[str, int]
Put = tuple[str, str, list[Part]]
"""Namespace, key, and the parts that the value is made of: name and size in bytes of each."""


class WrongValue(HarnessError):
    """A value that was acknowledged, with nothing killed, reads otherwise: nothing measured here means anything."""


class NotOffered(HarnessError):
    """The store cannot commit several puts at once."""


@dataclass(frozen=True)
class Steps:
    """What a writer is to do: a list of puts for each step, each step timed.

    ``together``: the puts of a step in one commit. ``each``: the kernel's counters are read after every step. Not fewer
    than ``at_least`` steps, then until ``limit_s`` is over.
    """

    seed: int
    steps: Sequence[Sequence[Put]]
    compressible: bool = False
    together: bool = False
    each: bool = False
    warm_up: bool = True
    at_least: int = 1
    limit_s: float = TRIAL_S

    def payload_bytes(self, steps: int) -> int:
        """Of the first ``steps``."""
        return sum(size for step in self.steps[:steps] for _, _, parts in step for _, size in parts)


@dataclass
class Wrote:
    """What the writing process and the kernel said. Bytes are None where the kernel does not tell."""

    latencies_ns: list[int] = field(default_factory=list)
    digests: dict[tuple[str, str], str] = field(default_factory=dict)
    """(namespace, key) → SHA-256 of the value."""
    refused: str | None = None
    writer_bytes: int | None = None
    device_bytes: int | None = None
    step_writer_bytes: list[int | None] = field(default_factory=list)
    step_device_bytes: list[int | None] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Services that were brought up on one machine, by namespace, with the device below them."""

    machine: Here
    services: Mapping[str, Service]
    device: Device

    @classmethod
    def set_up(cls, ground: Ground, device: Device, targets: Mapping[str, Target]) -> Place:
        """Bring up what the targets need, each once, on a fresh directory. HarnessError if it does not come up."""
        distinct = list(dict.fromkeys(targets.values()))
        machine = ground.machine(distinct, WORKLOAD)
        made = {
            target: Service(machine, target, machine.root / f"store-{number}") for number, target in enumerate(distinct)
        }
        try:
            for service in made.values():
                service.set_up()
        except BaseException:
            machine.close()
            raise
        return cls(machine, {namespace: made[target] for namespace, target in targets.items()}, device)

    @property
    def distinct(self) -> list[Service]:
        """Each service once."""
        return list({id(service): service for service in self.services.values()}.values())

    def close(self) -> None:
        """Take what is ours out of somebody's store, and end what was started."""
        try:
            for service in self.distinct:
                service.leave()
        finally:
            self.machine.close()

    def size_bytes(self) -> int:
        """All bytes at rest."""
        return sum(int(each.ask({"do": "size", "target": each.order()})["size_bytes"]) for each in self.distinct)

    def share_bytes(self, orders: Mapping[str, Mapping[str, Any]]) -> int:
        """What a trial's namespaces take of it, logs and what is preallocated left out."""
        answer = self.distinct[0].ask({"do": "share", "targets": orders})
        return int(answer["size_bytes"])

    def compact(self, orders: Mapping[str, Mapping[str, Any]]) -> tuple[str | None, int | None]:
        """Rewrite every store that can be: the names of what was done, None for nothing; and by how many bytes that
        made the share of a trial smaller, None where it failed, which is then what is told of it. All bytes at rest
        would not tell: the rewrite has a log of its own, and makes smaller what was there before.
        """
        try:
            before = self.share_bytes(orders)
            hows = [each.ask({"do": "compact", "target": each.order()}, COMPACT_S)["how"] for each in self.distinct]
            done = ", ".join(how for how in hows if how) or None
            return done, before - self.share_bytes(orders) if done else 0
        except HarnessError as error:
            return f"failed: {error}", None

    def orders(self, trial: str) -> dict[str, dict[str, Any]]:
        """Targets with namespaces of this trial's own."""
        return {name: each.order(each.namespace(f"{trial}-{name}")) for name, each in self.services.items()}

    def drop(self, orders: Mapping[str, Mapping[str, Any]]) -> None:
        """Remove a trial's namespaces."""
        for name, order in orders.items():
            service = self.services[name]
            service.ask({"do": "drop", "target": service.order(), "namespaces": [order["namespace"]]})

    # --- a trial

    def write(
        self, orders: Mapping[str, Mapping[str, Any]], steps: Steps, look: Callable[[int], None] | None = None
    ) -> Wrote:
        """Let a fresh process take the steps; ``look`` is called after each, where the steps are counted one by one.
        Hung, Died, HarnessError.
        """
        before = self.device.written_bytes()
        writer = self.machine.start(DRIVER, self.distinct[0].root)
        try:
            wrote = _Writing(self, writer, steps, look).run(orders)
        finally:
            self.machine.end(writer)
        after = self.device.written_bytes()
        wrote.device_bytes = None if before is None or after is None else after - before
        return wrote

    def reload(
        self, orders: Mapping[str, Mapping[str, Any]], wrote: Wrote, some: Sequence[tuple[str, str]]
    ) -> list[int]:
        """Let a process that never wrote get ``some`` keys; latencies in ns. WrongValue unless each is what was put."""
        reader = self.machine.start(DRIVER, self.distinct[0].root)
        try:
            order = {"do": "reloads", "targets": orders, "gets": [list(key) for key in some], "deadline_s": READY_S}
            answer = reader.ask(order, READY_S + TRIAL_S)[-1]
        finally:
            self.machine.end(reader)
        if answer["e"] == "failed":
            raise HarnessError(f"reload failed: {answer['why']}")
        for key, digest in zip(some, answer["digests"], strict=True):
            if digest != wrote.digests[key]:
                state = "is not there" if digest is None else "reads otherwise than it was put"
                raise WrongValue(f"{key[1]} was acknowledged and {state}, with nothing killed")
        return list(answer["latencies_ns"])

    def drop_cache(self) -> bool | None:
        """Drop what is at rest from the page cache; whether it is gone. None where a server keeps values itself."""
        if not all(service.embedded for service in self.distinct):
            return None
        return all(drop_from_cache(service.root) for service in self.distinct)


@dataclass
class _Writing:
    """The controller's side of one writing process."""

    place: Place
    writer: Process
    steps: Steps
    look: Callable[[int], None] | None = None
    wrote: Wrote = field(default_factory=Wrote)

    def run(self, orders: Mapping[str, Mapping[str, Any]]) -> Wrote:
        steps, wrote = self.steps, self.wrote
        order = dataclasses.asdict(steps) | {"do": "steps", "targets": orders, "deadline_s": READY_S}
        self.writer.send(order)
        end = time.monotonic() + READY_S + TRIAL_S
        if not self._hear("ready", end)["transactional"] and steps.together:
            raise NotOffered("this store has no put_many")
        first = last = self._written()
        device = self.place.device.written_bytes(settled=False)
        told = 0
        while (event := self._go_on(end))["e"] == "step":
            now, device_now = self._written(), self.place.device.written_bytes(settled=False)
            since = written_since(last, now)
            wrote.step_writer_bytes.append(None if since is None else since - _told_bytes(event))
            told += _told_bytes(event)
            both = device is not None and device_now is not None
            wrote.step_device_bytes.append(device_now - device if both else None)  # type: ignore[operator]
            if self.look is not None:
                self.look(len(wrote.step_writer_bytes))
            last, device = self._written(), self.place.device.written_bytes(settled=False)
        since = written_since(first, self._written())
        wrote.writer_bytes = None if since is None else since - told - _told_bytes(event)
        wrote.latencies_ns, wrote.refused = event["latencies_ns"], event["refused"]
        for step, digests in zip(steps.steps, event["digests"], strict=False):
            for (namespace, key, _), digest in zip(step, digests, strict=True):
                wrote.digests[namespace, key] = digest
        self._go_on(end)
        return wrote

    def _written(self) -> dict[int, int] | None:
        """Of the writer and, where the servers are ours, of them; somebody's server is not looked into."""
        if any(service.target.url for service in self.place.distinct):
            return None
        return written_bytes([self.writer.pid, *self.place.machine.daemon_pids()])

    def _go_on(self, end: float) -> dict[str, Any]:
        self.writer.send({})
        return self._hear(None, end)

    def _hear(self, kind: str | None, end: float) -> dict[str, Any]:
        """The next event. HarnessError if it is that it failed."""
        while time.monotonic() < end:
            for event in self.writer.receive(1.0):
                if event["e"] == "failed":
                    raise HarnessError(f"the writer failed: {event['why']}")
                if kind not in (None, event["e"]):
                    raise HarnessError(f"the writer said {event['e']}, not {kind}")
                return event
            if self.writer.ended:
                dead = self.place.machine.dead_daemon()
                raise Died(self.writer.last_words("the writer ended") + (f"; {dead}" if dead else ""))
        raise Hung(self.writer.last_words("the writer did not finish"))


def _told_bytes(event: Mapping[str, Any]) -> int:
    """What a driver wrote to tell an event: not the store's."""
    return len(json.dumps({name: value for name, value in event.items() if name != "t"})) + 1


def put_of(namespace: str, key: str, size: int) -> list[Put]:
    """A step of one put, whose value is named after its key."""
    return [(namespace, key, [(key, size)])]


NAMESPACES = (METADATA, DATA)
