"""Durable put and reload over sizes, for every candidate, interleaved; first a coarse pass, then a fine one.

In each round every candidate gets one trial of every size, in an order drawn from the seed, so that a disk that changes
its mind changes it for all of them. What is at rest is counted apart, on fresh stores, where nothing else has been.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from durabench.crossing import FEWEST_TRIALS, clearness, coarse_bracket, fine_sizes
from durabench.plan.accounting import COLD_KEPT, COLD_SERVER
from durabench.plan.measure import Place, Steps, WrongValue, put_of
from durabench.plan.sizes import text
from durabench.process import HarnessError
from durabench.results import ResultsFull
from durabench.row import label as label_of
from durabench_backends.contract import DATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from durabench.plan.candidates import Candidate
    from durabench.plan.ledger import Ledger
    from durabench.plan.measure import Wrote
    from durabench.plan.settings import Effort
    from durabench.row import Row
    from durabench.service import Target

INCOMPRESSIBLE, COMPRESSIBLE = "incompressible", "compressible"
PUTS_BYTES = 16 << 20
"""Payload of one trial, unless a single value is larger."""
COST_BYTES = 4 << 20
COST_PUTS = 64
LARGE_BYTES = 8 << 20
"""From here on one value at a time: with two, memory is what runs short."""
FLOOR_EVERY_S = 8.0
FEWEST_SIZES = 4
COARSE, FINE = "coarse", "fine"
SLACK = 1.3
"""By how much the fine pass may overrun before it is given up."""
WARM_GETS = 25
COMPRESSIBLE_EVERY = 2
"""Compressible payloads get every other round and every other size: they enter no crossing."""

Samples = Callable[[int | None, int | None], Iterable[int]]
"""Reads latencies by place and number."""
Curves = dict[str, dict[int, list[list[int]]]]
"""Label → size → trials, in the order of the rounds, each its latencies in ns."""


@dataclass(frozen=True)
class Visit:
    """One trial that is due."""

    candidate: Candidate
    size_bytes: int
    payload: str = INCOMPRESSIBLE


@dataclass
class Sweep:
    """Both passes. ``candidates`` change as sizes turn out to be too large for them."""

    ledger: Ledger
    effort: Effort
    candidates: list[Candidate]
    executor: Executor
    said: list[str] = field(default_factory=list)
    """What was left out, and why."""
    wanted: frozenset[int] = frozenset()
    """Sizes of the grid next to what the steps put, which the recommendation is computed from: left out last."""
    _seconds: dict[tuple[str, int], float] = field(default_factory=dict)
    """What a trial of that candidate and size took last."""
    _floor_at: float = float("-inf")
    _trial: int = 0
    _one_large: threading.Lock = field(default_factory=threading.Lock)

    # --- what is at rest

    def cost(self, sizes: Sequence[int]) -> None:
        """Bytes at rest, on a fresh store for every candidate and size; several at a time: no latency is taken."""
        due = [Visit(one, size) for one in self.candidates for size in sizes[::2] if not self._too_large(one, size)]
        if self.effort.compressible:
            due += [replace(visit, payload=COMPRESSIBLE) for visit in due if visit.size_bytes in sizes[::4]]
        Random(f"{self.ledger.seed}/cost").shuffle(due)
        due.sort(key=lambda visit: not visit.candidate.embedded)  # to bring up a server takes as long as ten of them
        until = time.monotonic() + self.effort.cost_s
        left_out = 0
        for number, told in enumerate(self.executor.map(lambda visit: self._cost(visit, until), due), 1):
            left_out += told is None
            name, failed = told or ("out of time", None)
            if failed is not None:
                self._leave_out(f"bytes at rest of {name} were not counted: {failed}")
            self.ledger.progress(f"bytes at rest, {number} of {len(due)}: {name}")
        if left_out:
            self._leave_out(f"{left_out} of {len(due)} counts of bytes at rest were left out, for time")

    def _cost(self, visit: Visit, until: float) -> tuple[str, str | None] | None:
        """One count: of what, and why it failed if it did; None where its time is over."""
        if time.monotonic() > until:
            return None
        name = f"{visit.candidate.label} {text(visit.size_bytes)}"
        try:
            if visit.size_bytes < LARGE_BYTES:
                self._count(visit)
            else:
                with self._one_large:
                    self._count(visit)
        except (HarnessError, OSError) as error:
            return name, str(error)
        except ResultsFull:
            raise
        except Exception as error:
            return name, self.ledger.mistaken(f"bytes at rest of {name}", error)
        return name, None

    def _count(self, visit: Visit) -> None:
        began = time.monotonic()
        target = visit.candidate.target
        size = visit.size_bytes
        puts = max(1, min(COST_PUTS, COST_BYTES // size))
        steps = Steps(
            self.ledger.seed,
            [put_of(DATA, f"value-{number:04d}", size) for number in range(puts)],
            compressible=visit.payload == COMPRESSIBLE,
            warm_up=False,
        )
        place = Place.set_up(self.ledger.ground, self.ledger.device, {DATA: target})
        try:
            empty = place.size_bytes()
            orders = place.orders("cost")
            wrote = place.write(orders, steps)
            full = place.size_bytes()
            how, saved = (None, 0) if target.url else place.compact(orders)
        finally:
            place.close()
        done = len(wrote.latencies_ns)
        self.ledger.record(
            "cost",
            visit.candidate,
            payload=visit.payload,
            size_bytes=size,
            puts=done,
            payload_bytes=done * size,
            writer_bytes=wrote.writer_bytes,
            at_rest_bytes=full - empty if done else None,
            compacted_bytes=full - empty - saved if done and how is not None and saved is not None else None,
            compacted_how=how,
            refused=wrote.refused,
            duration_s=time.monotonic() - began,
        )

    # --- the passes

    def coarse(self, sizes: Sequence[int], budget_s: float) -> None:
        """Every size of the grid; the largest are left out where the rounds would take too long."""
        due = [Visit(one, size) for one in self.candidates for size in sizes]
        extra = [Visit(one, size, COMPRESSIBLE) for one in self.candidates for size in sizes[::COMPRESSIBLE_EVERY]]
        self._rounds(COARSE, due, extra if self.effort.compressible else [], budget_s)

    def fine(self, budget_s: float) -> dict[tuple[str, str], tuple[int, int]]:
        """Six sizes inside the bracket of every pair that crosses; which pairs had one looked into."""
        brackets = self._brackets()
        wanted: dict[tuple[str, int], Visit] = {}
        by_label = {one.label: one for one in self.candidates}
        looked: dict[tuple[str, str], tuple[int, int]] = {}
        cost_s = 0.0
        for pair, bracket in brackets.items():
            visits = {(label, size): Visit(by_label[label], size) for label in pair for size in fine_sizes(*bracket)}
            more_s = sum(self._guess_s(*key) for key in visits.keys() - wanted.keys())
            if (cost_s + more_s) * self.effort.rounds > budget_s:
                self._leave_out(f"{pair[0]} and {pair[1]} were not looked at closely, for time")
                continue
            cost_s += more_s
            wanted |= visits
            looked[pair] = bracket
        if wanted:
            self._rounds(FINE, list(wanted.values()), [], budget_s * SLACK)
        return looked

    def _brackets(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Of every pair that crosses; those first that do so clearly, and of these the cheaper ones: between two that
        are alike over many sizes noise makes brackets, mostly small ones.
        """
        seen = curves(self.ledger, self.effort.rounds)
        labels = [one.label for one in self.candidates if one.label in seen]
        found = {}
        for at, a in enumerate(labels):
            for b in labels[at + 1 :]:
                bracket = coarse_bracket(seen[a], seen[b])
                if bracket is not None and fine_sizes(*bracket):
                    found[a, b] = bracket
        clear = {(a, b): round(clearness(seen[a], seen[b]), 1) for a, b in found}
        first = sorted(found, key=lambda pair: (-clear[pair], self._round_s(pair, found[pair])))
        return {pair: found[pair] for pair in first}

    def _round_s(self, pair: tuple[str, str], bracket: tuple[int, int]) -> float:
        return sum(self._guess_s(label, size) for label in pair for size in fine_sizes(*bracket))

    def _guess_s(self, label: str, size: int) -> float:
        """What a trial of that size is going to take: as one of the next larger size did."""
        known = sorted(at for name, at in self._seconds if name == label)
        above = next((at for at in known if at >= size), known[-1] if known else None)
        return 0.0 if above is None else self._seconds[label, above]

    def _rounds(self, name: str, due: Sequence[Visit], extra: Sequence[Visit], budget_s: float) -> None:
        places = self._bring_up({visit.candidate.target for visit in due})
        began = time.monotonic()
        try:
            for number in range(self.effort.rounds):
                members = [*due, *(extra if number % COMPRESSIBLE_EVERY == 1 else ())]
                Random(f"{self.ledger.seed}/{name}/{number}").shuffle(members)
                for visit in members:
                    self._floor_between()
                    self.ledger.progress(
                        f"{name} sweep, round {number + 1} of {self.effort.rounds}: "
                        f"{visit.candidate.label} {text(visit.size_bytes)}"
                    )
                    self._trial_of(places, name, number, visit)
                rounds, left_s = self.effort.rounds - number - 1, budget_s - (time.monotonic() - began)
                if name == FINE:
                    if rounds and left_s < 0:
                        self._leave_out(f"the fine pass ended {rounds} rounds early, for time: its sizes are not used")
                        break
                    continue
                if extra and left_s < rounds * self._round_s_of([*due, *extra]):
                    self._leave_out(f"compressible values were left out of the last {rounds} rounds, for time")
                    extra = []
                due = self._affordable(due, rounds, left_s)
        finally:
            for place in places.values():
                place.close()

    def _affordable(self, due: Sequence[Visit], rounds: int, left_s: float) -> list[Visit]:
        """What the rounds that are left can hold: the largest sizes that no step puts go first, for all alike."""
        due = [visit for visit in due if not self._stopped(visit)]
        while len({visit.size_bytes for visit in due}) > FEWEST_SIZES and rounds * self._round_s_of(due) > left_s:
            largest = max({visit.size_bytes for visit in due}, key=lambda size: (size not in self.wanted, size))
            self._leave_out(f"{text(largest)} was left out of the last {rounds} rounds, for time")
            due = [visit for visit in due if visit.size_bytes != largest]
        return due

    def _round_s_of(self, due: Sequence[Visit]) -> float:
        """What a round of these takes."""
        return sum(self._guess_s(visit.candidate.label, visit.size_bytes) for visit in due)

    def _leave_out(self, what: str) -> None:
        self.said.append(what)
        self.ledger.say(what)

    def _bring_up(self, targets: set[Target]) -> dict[Target, Place]:
        wanted = sorted(targets, key=str)
        ledger = self.ledger
        made = self.executor.map(lambda target: _try_up(ledger, target), wanted)
        found = {}
        for target, place in zip(wanted, made, strict=True):
            if isinstance(place, Place):
                found[target] = place
            else:
                self._stop_all(target, place)
        return found

    def _stop_all(self, target: Target, why: str) -> None:
        for candidate in [one for one in self.candidates if one.target == target]:
            self._stop(candidate, 1, f"it does not come up: {why}")

    def _floor_between(self) -> None:
        if time.monotonic() - self._floor_at > FLOOR_EVERY_S:
            self.ledger.measure_floor("between")
            self._floor_at = time.monotonic()

    # --- a trial

    def _too_large(self, candidate: Candidate, size: int) -> bool:
        return candidate.limit is not None and size > candidate.limit.size_bytes

    def _now(self, candidate: Candidate) -> Candidate:
        return next(one for one in self.candidates if one.label == candidate.label)

    def _stopped(self, visit: Visit) -> bool:
        stopped = self._now(visit.candidate).stopped_bytes
        return stopped is not None and visit.size_bytes >= stopped

    def _stop(self, candidate: Candidate, size: int, why: str) -> None:
        """From this size on the candidate is left alone."""
        at = next(number for number, one in enumerate(self.candidates) if one.label == candidate.label)
        now = self.candidates[at]
        if now.stopped_bytes is None or size < now.stopped_bytes:
            self.candidates[at] = replace(now, stopped_bytes=size, stopped_why=why)
            self.ledger.say(f"{candidate.label} stops below {text(size)}: {why}")

    def _trial_of(self, places: dict[Target, Place], name: str, number: int, visit: Visit) -> None:
        candidate, size = self._now(visit.candidate), visit.size_bytes
        place = places.get(candidate.target)
        if place is None or self._stopped(visit):
            return
        if candidate.limit is not None and size > candidate.limit.size_bytes:
            limit = candidate.limit
            self._stop(candidate, size, f"its limit is {text(limit.size_bytes)} ({limit.source})")
            return
        began = time.monotonic()
        try:
            self._measure(place, name, number, visit)
        except WrongValue:
            raise
        except (HarnessError, OSError) as error:
            self._stop(candidate, size, str(error))
            self._once_more(places, candidate)
        except ResultsFull:
            raise
        except Exception as error:
            self.ledger.mistaken(f"{candidate.label} {text(size)}", error)  # of ours: held against no size
            self._once_more(places, candidate)
        self._seconds[candidate.label, size] = time.monotonic() - began

    def _once_more(self, places: dict[Target, Place], candidate: Candidate) -> None:
        """On a fresh directory, after a trial that went wrong; what does not come up again is stopped at every size."""
        places.pop(candidate.target).close()
        again = _try_up(self.ledger, candidate.target)
        if isinstance(again, Place):
            places[candidate.target] = again
        else:
            self._stop_all(candidate.target, again)

    def _measure(self, place: Place, name: str, number: int, visit: Visit) -> None:
        began = time.monotonic()
        size = visit.size_bytes
        self._trial += 1
        trial = f"{name}-{number}-{self._trial}"
        puts = max(1, min(self.effort.puts, PUTS_BYTES // size))
        steps = Steps(
            Random(f"{self.ledger.seed}/{trial}").getrandbits(48),
            [put_of(DATA, f"value-{index:04d}", size) for index in range(puts)],
            compressible=visit.payload == COMPRESSIBLE,
            limit_s=self.effort.put_s,
        )
        orders = place.orders(trial)
        try:
            wrote = place.write(orders, steps)
            there = list(wrote.digests)
            warm = place.reload(orders, wrote, there[:WARM_GETS]) if there else []
            cold, cold_why = self._cold(place, orders, wrote, there)
        finally:
            place.drop(orders)
        done = len(wrote.latencies_ns)
        self.ledger.record(
            "sweep",
            visit.candidate,
            stage=name,
            round=number,
            payload=visit.payload,
            size_bytes=size,
            puts=done,
            payload_bytes=done * size,
            samples=wrote.latencies_ns,
            warm=warm,
            reload_cold_ns=cold,
            cold_why=cold_why,
            writer_bytes=wrote.writer_bytes,
            device_bytes=wrote.device_bytes,
            refused=wrote.refused,
            duration_s=time.monotonic() - began,
        )
        if wrote.refused is not None:
            self._stop(visit.candidate, size, f"it refused the first put of that size: {wrote.refused}")

    def _cold(
        self, place: Place, orders: Mapping[str, Mapping[str, Any]], wrote: Wrote, there: Sequence[tuple[str, str]]
    ) -> tuple[int | None, str | None]:
        """One value, read with nothing of the store in the page cache. More would find what the first one drew in."""
        gone = place.drop_cache()
        if gone is None:
            return None, COLD_SERVER
        if not gone or not there:
            return None, COLD_KEPT
        return place.reload(orders, wrote, [there[len(there) // 2]])[0], None


def _try_up(ledger: Ledger, target: Target) -> Place | str:
    try:
        return Place.set_up(ledger.ground, ledger.device, {DATA: target})
    except (HarnessError, OSError) as error:
        return str(error)
    except Exception as error:
        return ledger.mistaken(target.label, error)


def curves(ledger: Ledger, rounds: int) -> Curves:
    """The latencies of all puts of incompressible values, where a size has as many trials as a crossing takes."""
    return curves_of(ledger.rows, ledger.folder.samples, min(rounds, FEWEST_TRIALS))


def curves_of(rows: Sequence[Row], samples: Samples, fewest: int) -> Curves:
    """As `curves`, from the rows of a folder."""
    found: Curves = {}
    for row in sorted(
        (row for row in rows if row["kind"] == "sweep" and row["payload"] == INCOMPRESSIBLE),
        key=lambda row: (row["round"], row["stage"] or ""),
    ):
        taken = list(samples(row.get("samples_at"), row.get("samples_n")))
        if taken:
            label = label_of(row)
            found.setdefault(label, {}).setdefault(row["size_bytes"], []).append(taken)
    return {
        label: {size: trials for size, trials in sizes.items() if len(trials) >= fewest}
        for label, sizes in found.items()
    }
