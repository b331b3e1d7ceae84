"""The checker against stores that are modelled: an honest one is never convicted, a single lie always, by its word."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from durabench import payload
from durabench.checker import find, judge
from durabench.history import Event, History, from_events
from durabench_backends.contract import DATA, METADATA, Domain, Promise

if TYPE_CHECKING:
    from random import Random

SEED = 5
STEP_NS = 10_000_000
SAFE = Promise(dict.fromkeys(Domain, 0.0), Domain.AT_REST, Domain.AT_REST, "everything")
WINDOW_S = 0.5
WINDOW = Promise(dict.fromkeys(Domain, WINDOW_S), Domain.AT_REST, Domain.AT_REST, "half a second")
SIZES = st.sampled_from([0, 1, 20, 24, 512, 530, 2048, 5000])
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])


@dataclass
class Recorder:
    """Writes down what a modelled store was asked and answered, as the controller would: a list of events."""

    events: list[Event] = field(default_factory=lambda: [{"e": "trial", "seed": SEED}])
    now_ns: int = 1_000_000_000
    index: int = 0
    ops: dict[int, tuple[str, str, str, int]] = field(default_factory=dict)

    def step(self, verb: str, key: str, outcome: str | None, size: int = 0, *, namespace=METADATA) -> int:
        """One operation and its answer; None: it never answered. Returns its sequence."""
        self.index += 1
        where = {"w": 0, "i": self.index, "t": self.now_ns}
        op = {"verb": verb, "ns": namespace, "key": key, "seq": self.index, "size": size}
        self.ops[self.index] = (verb, namespace, key, size)
        self.events.append({"e": "armed", **where, **op})
        self.now_ns += STEP_NS
        if outcome is not None:
            answer = {"e": outcome, **where, "t": self.now_ns}
            self.events.append({**answer, "latency_ns": STEP_NS} if outcome == "ok" else {**answer, "why": "told so"})
        return self.index

    def value(self, sequence: int) -> bytes:
        _, namespace, key, size = self.ops[sequence]
        return payload.make(SEED, namespace, key, sequence, size)

    def struck(self, contents: dict[tuple[str, str], bytes], namespaces=(METADATA,)) -> list[Event]:
        """All events, with the strike, and with what a process that never wrote then found."""
        events = [*self.events, {"e": "strike", "t": self.now_ns}, {"e": "struck", "where": "inside"}]
        events.append({"e": "up", "recovery_ns": 5})
        asked = {(namespace, key) for _, namespace, key, _ in self.ops.values()} | set(contents)
        listed = {namespace: sorted(key for n, key in contents if n == namespace) for namespace in namespaces}
        events += [{"e": "listing", "ns": namespace, "keys": keys} for namespace, keys in listed.items()]
        return [*events, *(reading(*where, contents.get(where)) for where in sorted(asked))]


def reading(namespace: str, key: str, content: bytes | None) -> Event:
    event: Event = {"e": "reading", "ns": namespace, "key": key, "value": None}
    if content is not None:
        blocks = payload.read(SEED, namespace, key, content)
        event["value"] = {"length": len(content), "sha256": payload.digest(content), "blocks": blocks}
    return event


# The same examples in every run: a failure must be somebody's change. Raise `max_examples` to look for new ones.
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=int(os.environ.get("DURABENCH_EXAMPLES", "100")))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete"]), KEYS, SIZES, st.sampled_from(["ok", "ok", "ok", "fail"])
    ),
    min_size=1,
    max_size=25,
)
PUTS = st.lists(st.tuples(st.just("put"), KEYS, SIZES, st.sampled_from(["ok", "ok", "ok", "fail"])), max_size=25)
LAST = st.tuples(st.sampled_from(["put", "delete"]), KEYS, SIZES, st.sampled_from(["info", None]))


def tell(steps, last=None) -> tuple[Recorder, list[dict[str, int]]]:
    """Carry out the steps; returns the record and, after each step, which put every key holds (also in doubt)."""
    record, held = Recorder(), [{}]
    for verb, key, size, outcome in [*steps, *([last] if last else [])]:
        sequence = record.step(verb, key, outcome, size)
        now = dict(held[-1])
        if outcome != "fail":
            now.pop(key, None)
            if verb == "put":
                now[key] = sequence
        held.append(now)
    return record, held


def contents(record: Recorder, held: dict[str, int]) -> dict[tuple[str, str], bytes]:
    return {(METADATA, key): record.value(sequence) for key, sequence in held.items()}


def history_of(events: list[Event]) -> History:
    return from_events(json.loads(json.dumps(events)))


# --- honest stores are never convicted -------------------------------------------------------------------------------


@EXAMPLES
@given(STEPS, LAST, st.booleans())
def test_a_store_that_keeps_what_it_acknowledged_is_kept(steps, last, happened):
    record, held = tell(steps, last)
    assume(any(step[3] == "ok" for step in steps))
    finding = find(history_of(record.struck(contents(record, held[-1 if happened else -2]))), METADATA)
    assert judge(finding, SAFE, Domain.DRIVE).verdict == "kept", finding
    assert finding.details == ()
    assert finding.loss_window_s is None


@EXAMPLES
@given(STEPS, LAST, st.data())
def test_a_store_that_is_not_atomic_may_tear_what_is_in_doubt(steps, last, data):
    record, held = tell(steps, ("put", *last[1:]))
    assume(any(step[3] == "ok" for step in steps))
    key, new = last[1], record.value(len(steps) + 1)
    before = contents(record, held[-2])
    old = before.get((METADATA, key), b"")
    cut = 512 * data.draw(st.integers(0, len(new) // 512))
    torn = new[:cut] + old[cut:]
    finding = find(history_of(record.struck({**before, (METADATA, key): torn})), METADATA)
    assert judge(finding, replace(SAFE, atomic=None), Domain.DRIVE).verdict == "kept", finding
    assert finding.damaged_acked == 0
    if torn != new and (METADATA, key) not in before:
        assert finding.torn == 1


@EXAMPLES
@given(STEPS, st.data())
def test_a_store_that_loses_a_suffix_inside_its_window_is_within(steps, data):
    """A lost delete is a loss like any other: it has an age, and what a suffix loses is no hole."""
    record, held = tell([("put", "old", 24, "ok"), *steps])
    record.now_ns += int(WINDOW_S * 1e9)  # now all of those are older than the window, and what follows is not
    late, held_late = data.draw(STEPS), []
    now = dict(held[-1])
    for verb, key, size, outcome in [("put", "late", 24, "ok"), *late]:
        held_late.append(dict(now))
        sequence = record.step(verb, key, outcome, size)
        if outcome != "fail":
            now.pop(key, None)
            now |= {key: sequence} if verb == "put" else {}
    left = data.draw(st.sampled_from([*held_late, now]))
    finding = find(history_of(record.struck(contents(record, left))), METADATA)
    assert judge(finding, WINDOW, Domain.SERVER).verdict == ("within" if finding.gone else "kept"), finding
    assert finding.hole == 0
    assert (finding.loss_window_s or 0) <= WINDOW_S


@EXAMPLES
@given(STEPS, st.integers(0, 30))
def test_any_prefix_is_no_hole(steps, cut):
    record, held = tell(steps)
    finding = find(history_of(record.struck(contents(record, held[min(cut, len(held) - 1)]))), METADATA)
    assert finding.hole == 0, finding


@EXAMPLES
@given(STEPS, LAST, st.randoms(use_true_random=False))
def test_the_order_of_the_readings_changes_nothing(steps, last, random: Random):
    record, held = tell(steps, last)
    events = record.struck(contents(record, held[len(held) // 2]))
    first = next(at for at, event in enumerate(events) if event["e"] == "listing")
    after = events[first:]
    random.shuffle(after)
    assert find(history_of([*events[:first], *after]), METADATA) == find(history_of(events), METADATA)


# --- a single lie is always convicted, by its own word ----------------------------------------------------------------


@EXAMPLES
@given(
    STEPS,
    st.sampled_from(["lost", "torn", "corrupt", "stale", "phantom", "resurrected", "foreign", "hole", "failed"]),
    st.data(),
)
def test_a_single_lie_is_convicted_by_its_own_word(steps, lie, data):
    steps = [("put", "deleted", 600, "ok"), ("put", "twice", 600, "ok"), ("put", "victim", 600, "ok"), *steps]
    steps += [("delete", "deleted", 0, "ok"), ("put", "twice", 600, "ok"), ("put", "failed", 600, "fail")]
    record, held = tell(steps)
    left = contents(record, held[-1])
    victim = data.draw(st.sampled_from(sorted(key for key, value in left.items() if len(value) >= 24)))
    value = left[victim]
    if lie == "lost":
        del left[victim]
    elif lie == "torn":
        left[victim] = value[: data.draw(st.integers(0, len(value) - 1))]
    elif lie == "corrupt":
        at = data.draw(st.integers(0, len(value) - 1))
        left[victim] = value[:at] + bytes([value[at] ^ data.draw(st.integers(1, 255))]) + value[at + 1 :]
    elif lie == "stale":
        left[METADATA, "twice"] = record.value(2)
    elif lie == "phantom":
        left[METADATA, "ghost"] = data.draw(st.binary(max_size=600))
    elif lie == "resurrected":
        left[METADATA, "deleted"] = record.value(1)
    elif lie == "foreign":
        left[victim] = data.draw(st.binary(min_size=len(value), max_size=len(value)))
    elif lie == "hole":
        del left[METADATA, "victim"]
    else:
        left[METADATA, "failed"] = record.value(len(steps))
    finding = find(history_of(record.struck(left)), METADATA)
    assert judge(finding, SAFE, Domain.CLIENT).verdict == "broken", (lie, finding)
    word = {"failed": "phantom", "foreign": "corrupt"}.get(lie, lie)
    if lie in ("corrupt", "foreign"):  # damage may hit a stamp, or be all zeros: still damage, whatever its name
        assert (finding.corrupt or 0) + (finding.torn or 0) + (finding.phantom or 0) == 1, finding
    else:
        assert getattr(finding, word) == 1, (lie, finding)


@EXAMPLES
@given(STEPS)
def test_losing_one_inside_the_window_is_within_and_outside_broken(steps):
    steps = [("put", "first", 24, "ok"), ("put", "old", 24, "ok"), *steps, ("put", "last", 24, "ok")]
    record, held = tell(steps)
    left = contents(record, held[-1])
    record.now_ns += int(WINDOW_S * 1e9)
    record.step("put", "late", "ok", 24)
    left_late = {**left, (METADATA, "late"): record.value(record.index)}
    loose = replace(WINDOW, ordered=None)
    for lost, verdict in (("late", "within"), ("old", "broken")):
        remaining = {where: value for where, value in left_late.items() if where != (METADATA, lost)}
        finding = find(history_of(record.struck(remaining)), METADATA)
        assert judge(finding, loose, Domain.SERVER).verdict == verdict, finding


# --- a disk that forgets ---------------------------------------------------------------------------------------------


class Disk(RuleBasedStateMachine):
    """A store on a fake disk with a volatile cache: what it acknowledged after a flush survives any crash.

    The rules write, flush, fail and crash in any order; after each crash the checker reads the history. As the honest
    store acknowledges after the flush only, acknowledged ⊆ recovered holds, and the checker must see exactly that.
    The same disk under a store that acknowledges before the flush must be convicted whenever something is missing.
    """

    acknowledges_early = False

    def __init__(self) -> None:
        super().__init__()
        self.record = Recorder()
        self.durable: dict[tuple[str, str], int] = {}
        self.cache: list[tuple[tuple[str, str], int | None]] = []
        self.promised: dict[tuple[str, str], int] = {}
        self.stopped = False

    @initialize()
    def first(self) -> None:
        self.write("put", "first", 64, METADATA)

    def write(self, verb: str, key: str, size: int, namespace: str, outcome: str | None = "ok") -> None:
        sequence = self.record.step(verb, key, outcome, size, namespace=namespace)
        where, content = (namespace, key), sequence if verb == "put" else None
        self.cache.append((where, content))
        if outcome == "ok" and not self.acknowledges_early:
            self.flush(len(self.cache))
        if outcome == "ok":
            self.promised.pop(where, None)
            if content is not None:
                self.promised[where] = content

    def flush(self, entries: int) -> None:
        """The oldest entries of the cache reach the disk."""
        for where, content in self.cache[:entries]:
            self.durable.pop(where, None)
            if content is not None:
                self.durable[where] = content
        self.cache = self.cache[entries:]

    @precondition(lambda self: not self.stopped)
    @rule(key=KEYS, size=SIZES, namespace=st.sampled_from([METADATA, DATA]))
    def put(self, key: str, size: int, namespace: str) -> None:
        self.write("put", key, size, namespace)

    @precondition(lambda self: not self.stopped)
    @rule(key=KEYS, namespace=st.sampled_from([METADATA, DATA]))
    def delete(self, key: str, namespace: str) -> None:
        self.write("delete", key, 0, namespace)

    @precondition(lambda self: not self.stopped)
    @rule(key=KEYS, size=SIZES)
    def refuse(self, key: str, size: int) -> None:
        self.record.step("put", key, "fail", size)

    @precondition(lambda self: not self.stopped)
    @rule(verb=st.sampled_from(["put", "delete"]), key=KEYS, size=SIZES, answered=st.booleans())
    def break_off(self, verb: str, key: str, size: int, answered: bool) -> None:
        """An operation in doubt is the last of its writer: it saw an error, or never an answer."""
        self.write(verb, key, size, METADATA, "info" if answered else None)
        self.stopped = True

    @rule(entries=st.integers(0, 5))
    def write_back(self, entries: int) -> None:
        """The disk may flush some of its cache by itself at any time."""
        self.flush(entries)

    @invariant()
    def the_checker_sees_what_a_crash_would_leave(self) -> None:
        left = {where: self.record.value(sequence) for where, sequence in self.durable.items()}
        history = history_of(self.record.struck(left, (METADATA, DATA)))
        for namespace in (METADATA, DATA):
            finding = find(history, namespace)
            verdict = judge(finding, SAFE, Domain.DRIVE).verdict
            if not finding.acked_before_strike:
                assert verdict == "unknown"
            elif self.must_be_convicted(namespace):
                assert verdict == "broken", finding
                assert finding.hole == 0, finding
            else:
                assert verdict == "kept", finding

    def must_be_convicted(self, namespace: str) -> bool:
        """Whether some key holds neither what was acknowledged last nor what was in doubt after it."""
        doubt = {}
        if self.stopped:
            verb, where_namespace, key, _ = self.record.ops[self.record.index]
            doubt[where_namespace, key] = self.record.index if verb == "put" else None
        for where in {*self.promised, *self.durable}:
            if where[0] == namespace and self.durable.get(where) != self.promised.get(where):
                if where in doubt and self.durable.get(where) == doubt[where]:
                    continue
                if self.looks_like(self.durable.get(where), self.promised.get(where)):
                    continue
                return True
        return False

    def looks_like(self, one: int | None, other: int | None) -> bool:
        """Tiny values of two puts may be equal: nobody can tell them apart then."""
        return one is not None and other is not None and self.record.value(one) == self.record.value(other)


class EarlyDisk(Disk):
    acknowledges_early = True


TestHonestDisk = Disk.TestCase
TestEarlyDisk = EarlyDisk.TestCase
TestHonestDisk.settings = TestEarlyDisk.settings = settings(EXAMPLES, max_examples=30, stateful_step_count=15)


# --- stored histories ------------------------------------------------------------------------------------------------


@EXAMPLES
@given(STEPS, LAST)
def test_events_that_went_through_json_give_the_same_finding(steps, last):
    record, held = tell(steps, last)
    events = record.struck(contents(record, held[-2]))
    lines = [json.dumps(event) for event in events]
    assert find(from_events(map(json.loads, lines)), METADATA) == find(from_events(events), METADATA)


@pytest.mark.parametrize("namespace", [METADATA, DATA])
def test_a_namespace_that_was_never_used_is_empty_and_not_in_doubt(namespace):
    finding = find(history_of([{"e": "trial", "seed": 1}]), namespace)
    assert (finding.acked, finding.lost, finding.doubts) == (0, 0, ())
    assert judge(finding, SAFE, Domain.CLIENT).verdict == "unknown"
