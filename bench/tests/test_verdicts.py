"""Every line of the table of verdicts, and every word of a finding, told by hand: it fits, and it just does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from durabench import payload
from durabench.checker import Finding, Verdict, find, judge, worst
from durabench.history import Attempt, Doubt, Found, History, Reading, Value
from durabench_backends.contract import DATA, METADATA, Domain, Op, Promise

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED = 11
STRIKE_NS = 100_000_000_000
WINDOW_S = 2.0

SAFE = Promise(dict.fromkeys(Domain, 0.0), Domain.AT_REST, Domain.AT_REST, "everything")
LOOSE = Promise(dict.fromkeys(Domain, 0.0), None, None, "nothing lost, but neither atomic nor ordered")
WINDOW = Promise(dict.fromkeys(Domain, WINDOW_S), Domain.AT_REST, Domain.AT_REST, "two seconds")
LOOSE_WINDOW = Promise(dict.fromkeys(Domain, WINDOW_S), None, None, "two seconds, neither atomic nor ordered")
NONE = Promise({}, None, None, "nothing at all")


@dataclass
class Story:
    """A trial told step by step; what is left is what an honest store would have, but for what `left` says."""

    namespace: str = METADATA
    seed: int = SEED
    attempts: list[Attempt] = field(default_factory=list)
    found: dict[tuple[str, str], Reading] = field(default_factory=dict)
    unlisted: set[tuple[str, str]] = field(default_factory=set)
    ghosts: set[tuple[str, str]] = field(default_factory=set)
    down: str | None = None
    doubts: Sequence[str] = ()
    voids: Sequence[str] = ()
    found_before: list[Found] = field(default_factory=list)
    _sequences: count[int] = field(default_factory=lambda: count(1))

    def step(self, verb, key, outcome="ok", *, age_s=3.0, size=2048, writer=0, refers=(), namespace=None) -> int:
        sequence = next(self._sequences)
        op = Op(verb, namespace or self.namespace, key, sequence, size, refers)
        answered_ns = STRIKE_NS - int(age_s * 1e9)
        acknowledged_ns = answered_ns if outcome == "ok" else None
        self.attempts.append(Attempt(op, writer, outcome, answered_ns - 1_000_000, acknowledged_ns))
        return sequence

    def put(self, key, **how) -> int:
        return self.step("put", key, **how)

    def doubtful(self, key, **how) -> int:
        return self.step("put", key, "info", **how)

    def failed(self, key, **how) -> int:
        return self.step("put", key, "fail", **how)

    def delete(self, key, outcome="ok", **how) -> int:
        return self.step("delete", key, outcome, **how)

    def bytes_of(self, sequence: int) -> bytes:
        op = next(a.op for a in self.attempts if a.op.sequence == sequence)
        return payload.make(self.seed, op.namespace, op.key, op.sequence, op.size)

    def value(self, key: str, content: bytes | int, namespace: str | None = None) -> Value:
        content = self.bytes_of(content) if isinstance(content, int) else content
        blocks = payload.read(self.seed, namespace or self.namespace, key, content)
        return Value(len(content), payload.digest(content), blocks)

    def left(self, key, content: bytes | int | None, *, versions=None, listed=None, error=None, namespace=None) -> None:
        namespace = namespace or self.namespace
        value = None if content is None else self.value(key, content, namespace)
        kept = None if versions is None else [self.value(key, one, namespace) for one in versions]
        self.found[namespace, key] = Reading(namespace, key, value, error, kept)
        if listed is False:
            self.unlisted.add((namespace, key))
        if listed is True:
            self.ghosts.add((namespace, key))

    def read_before(self, key, content: bytes | int | None, *, age_s=0.5, writer=0, error=None) -> None:
        """A get of the writer itself, while everything lived."""
        sequence = self.step("get", key, age_s=age_s, writer=writer)
        value = None if content is None else self.value(key, content)
        read = Reading(self.namespace, key, value, error)
        self.found_before.append(Found(read, writer, sequence, STRIKE_NS - int(age_s * 1e9)))

    def history(self) -> History:
        honest: dict[tuple[str, str], int | None] = {}
        for attempt in self.attempts:
            where = (attempt.op.namespace, attempt.op.key)
            honest.setdefault(where, None)
            if attempt.outcome == "ok" and attempt.op.verb != "get":
                honest[where] = attempt.op.sequence if attempt.op.verb == "put" else None
        readings = {
            (namespace, key): Reading(namespace, key, None if last is None else self.value(key, last, namespace))
            for (namespace, key), last in honest.items()
        } | self.found
        there = {where for where, reading in readings.items() if reading.value is not None or reading.error is not None}
        listed = (there | self.ghosts) - self.unlisted
        namespaces = {
            namespace: frozenset(key for n, key in listed if n == namespace) for namespace in (METADATA, DATA)
        }
        told = History(
            self.seed,
            self.attempts,
            STRIKE_NS,
            "inside",
            list(readings.values()),
            namespaces,
            recovery_ns=5,
            doubts=[*(Doubt(why, voids=False) for why in self.doubts), *map(Doubt, self.voids)],
            found=self.found_before,
        )
        if self.down:
            down = dict.fromkeys((METADATA, DATA), self.down)
            return replace(told, readings=(), listed={}, recovery_ns=None, down=down)
        return told

    def find(self, namespace: str | None = None, *, versions_promised: bool = False) -> Finding:
        return find(self.history(), namespace or self.namespace, versions_promised=versions_promised)

    def judge(self, promise: Promise, destroyed: Domain = Domain.CLIENT) -> Verdict:
        return judge(self.find(), promise, destroyed)


def counts(finding: Finding) -> dict[str, int]:
    """What is not 0 or None among the words of a finding."""
    words = ("lost", "torn", "corrupt", "stale", "phantom", "resurrected", "hole")
    return {word: getattr(finding, word) for word in words if getattr(finding, word)}


@pytest.fixture
def story() -> Story:
    return Story()


# --- the table, line by line -----------------------------------------------------------------------------------------


def test_unknown_where_the_harness_is_in_doubt(story):
    story.put("a")
    assert story.judge(SAFE).verdict == "kept"
    for kind in ("doubts", "voids"):
        doubtful = replace(story, **{kind: ("the reader was killed",)})
        assert doubtful.judge(SAFE) == Verdict("unknown", "the reader was killed")
        assert doubtful.judge(WINDOW) == Verdict("unknown", "the reader was killed")
        assert doubtful.judge(NONE) == Verdict("unknown", "the reader was killed")
    assert judge(Story(attempts=story.attempts).find(), SAFE, Domain.CLIENT, ["control lost"]).verdict == "unknown"


def test_what_was_seen_outweighs_a_doubt_of_what_was_not(story):
    story.put("a")
    story.left("a", None)
    story.doubts = ("the reader was killed",)
    assert story.judge(SAFE).verdict == "broken"
    assert story.judge(WINDOW).verdict == "broken"
    assert story.judge(NONE).verdict == "unknown"
    unavailable = replace(story, down="no answer in 30 s")
    assert unavailable.judge(SAFE).verdict == "broken"


def test_a_loss_inside_the_window_does_not_outweigh_a_doubt(story):
    story.put("a")
    story.put("b", age_s=0.1)
    story.left("b", None)
    assert story.judge(WINDOW).verdict == "within"
    story.doubts = ("the reader was killed",)
    assert story.judge(WINDOW).verdict == "unknown"


def test_what_was_found_under_another_setting_or_by_a_stranger_convicts_nobody(story):
    story.put("a")
    story.left("a", None)
    story.voids = ("effective setting differs",)
    assert story.judge(SAFE) == Verdict("unknown", "effective setting differs")
    assert story.judge(NONE).verdict == "unknown"
    assert replace(story, down="no answer in 30 s").judge(SAFE).verdict == "unknown"


# --- what a writer's own gets read before the strike


@pytest.mark.parametrize("promise", [SAFE, LOOSE, WINDOW, replace(NONE, may_lose_s={Domain.NOTHING: 0.0})])
def test_what_a_store_forgets_while_everything_lives_is_lost_whatever_a_fault_may_cost(story, promise):
    promise = replace(promise, may_lose_s={**promise.may_lose_s, Domain.NOTHING: 0.0})
    story.put("a", age_s=3)
    first = story.put("b", age_s=3)
    story.read_before("b", first, age_s=2)
    assert story.judge(promise).verdict in ("kept", "no-promise")
    story.read_before("b", None, age_s=1)
    verdict = story.judge(promise)
    assert verdict.verdict == "broken"
    assert verdict.why.startswith("1 lost of 2 acknowledged, 1 of it before anything was struck: b is absent")
    assert story.find().in_peace_s == pytest.approx(2)
    assert story.judge(NONE).verdict == "no-promise"


def test_what_is_deleted_after_it_was_forgotten_was_lost_all_the_same(story):
    story.put("a")
    story.put("b", age_s=3)
    story.read_before("b", None, age_s=2)
    story.delete("b", age_s=1)
    assert counts(story.find()) == {"lost": 1}
    assert story.judge(SAFE).verdict == "broken"


@pytest.mark.parametrize("seen", ["old", "torn", "foreign", "deleted"])
def test_a_get_before_the_strike_is_read_by_the_same_rules(story, seen):
    old = story.put("a")
    new = story.put("a", size=2048)
    words = {"old": "stale", "torn": "torn", "foreign": "phantom", "deleted": "resurrected"}
    if seen == "deleted":
        story.delete("a")
    content = {"old": old, "torn": story.bytes_of(new)[:1000], "foreign": payload.make(9, METADATA, "a", 1, 2048)}
    story.read_before("a", content.get(seen, new))
    assert counts(story.find()) in ({words[seen]: 1}, {"corrupt": 1})
    assert story.judge(SAFE).verdict == "broken"


def test_a_get_is_held_against_what_its_own_writer_did_before_it(story):
    story.put("a", writer=0)
    story.put("b", writer=1)
    story.read_before("c", None)
    story.doubtful("d")
    story.read_before("d", None)
    story.failed("e")
    story.read_before("e", None)
    assert counts(story.find()) == {}
    later = story.step("get", "f", age_s=2)
    story.put("f", age_s=1)
    nothing = Reading(METADATA, "f", None)
    story.found_before.append(Found(nothing, 0, later, STRIKE_NS - 2_000_000_000))
    assert counts(story.find()) == {}, "what is put later cannot have been lost before"


def test_a_get_that_raised_has_shown_nothing(story):
    story.put("a")
    story.read_before("a", None, error="TimeoutError: timed out")
    assert counts(story.find()) == {}
    assert story.judge(SAFE).verdict == "kept"


def test_a_key_that_was_forgotten_before_and_is_gone_after_the_strike_is_one_loss(story):
    story.put("a")
    story.put("b")
    story.read_before("b", None)
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1}
    assert story.find().in_peace == 1


def test_unknown_where_nothing_was_acknowledged_before_the_strike(story):
    story.doubtful("a")
    assert story.judge(SAFE).verdict == "unknown"
    story.put("b", age_s=-0.001)  # the answer arrived when the strike had begun
    assert story.judge(SAFE).why == "nothing was acknowledged before the strike"
    story.put("c", age_s=0.001)
    assert story.judge(SAFE).verdict == "kept"


def test_no_promise_carries_the_count_also_where_nothing_is_lost(story):
    story.put("a")
    story.put("b")
    assert story.judge(NONE).verdict == "no-promise"
    assert story.judge(NONE).why.startswith("nothing lost of 2 acknowledged")
    story.left("a", None)
    story.left("b", None)
    assert story.judge(NONE).verdict == "no-promise"
    assert story.judge(NONE).why.startswith("2 lost of 2 acknowledged")


@pytest.mark.parametrize("destroyed", list(Domain))
def test_a_promise_for_another_domain_is_no_promise(story, destroyed):
    story.put("a")
    story.left("a", None)
    promise = replace(SAFE, may_lose_s={Domain.SERVER: 0.0})
    assert story.judge(promise, destroyed).verdict == ("broken" if destroyed is Domain.SERVER else "no-promise")


@pytest.mark.parametrize("promise", [SAFE, LOOSE, WINDOW], ids=lambda promise: promise.source)
def test_not_up_by_the_deadline_is_broken_and_its_losses_are_not_counted(story, promise):
    story.put("a")
    story.down = "no answer in 30 s"
    finding = story.find()
    assert finding.unavailable
    assert (finding.lost, finding.torn, finding.phantom, finding.hole, finding.loss_window_s) == (None,) * 5
    verdict = judge(finding, promise, Domain.CLIENT)
    assert verdict == Verdict("broken", "unavailable: no answer in 30 s")
    assert judge(finding, NONE, Domain.CLIENT).verdict == "no-promise"


def test_a_store_that_went_down_after_all_was_read_is_judged_by_what_was_read(story):
    story.put("a")
    finding = find(replace(story.history(), down={METADATA: "stopped answering later"}), METADATA)
    assert not finding.unavailable
    assert finding.lost == 0


@pytest.mark.parametrize("promise", [SAFE, LOOSE, WINDOW, LOOSE_WINDOW], ids=lambda promise: promise.source)
def test_a_phantom_is_broken_whatever_else_is_promised(story, promise):
    story.put("a")
    assert story.judge(promise).verdict == "kept"
    story.left("ghost", b"boo")
    assert story.judge(promise).verdict == "broken"
    assert "1 phantom" in story.judge(promise).why
    assert story.judge(NONE).verdict == "no-promise"


@pytest.mark.parametrize("promise", [SAFE, LOOSE], ids=lambda promise: promise.source)
def test_a_lost_delete_is_broken_where_nothing_may_be_lost(story, promise):
    first = story.put("a")
    story.delete("a", age_s=0.5)
    story.put("b", age_s=0.7)
    assert story.judge(promise).verdict == "kept"
    story.left("a", first)
    assert story.judge(promise).verdict == "broken"
    assert "1 resurrected" in story.judge(promise).why


@pytest.mark.parametrize(
    "age_s, verdict", [(0.05, "within"), (WINDOW_S, "within"), (WINDOW_S + 0.001, "broken"), (2.9, "broken")]
)
def test_a_lost_delete_is_a_loss_with_an_age(story, age_s, verdict):
    story.put("b", age_s=3)
    first = story.put("a", age_s=3)
    story.delete("a", age_s=age_s)
    story.left("a", first)
    assert counts(story.find()) == {"resurrected": 1}
    assert story.find().loss_window_s == pytest.approx(age_s)
    assert story.judge(WINDOW).verdict == verdict
    assert story.judge(LOOSE_WINDOW).verdict == verdict


def test_a_lost_delete_older_than_a_survivor_is_a_hole(story):
    first = story.put("a", age_s=3)
    story.delete("a", age_s=0.5)
    story.put("b", age_s=0.2)
    story.left("a", first)
    assert counts(story.find()) == {"resurrected": 1, "hole": 1}
    assert story.judge(WINDOW).verdict == "broken"
    assert story.judge(LOOSE_WINDOW).verdict == "within"


def test_a_put_that_its_lost_delete_replaced_gives_the_loss_its_age(story):
    first = story.put("a", age_s=3)
    story.put("a", age_s=2.5)
    story.delete("a", age_s=0.5)
    story.left("a", first)
    assert story.find().loss_window_s == pytest.approx(2.5), "the second put is not there either"
    assert story.judge(WINDOW).verdict == "broken"


@pytest.mark.parametrize("promise", [SAFE, WINDOW], ids=lambda promise: promise.source)
def test_a_torn_value_in_doubt_is_broken_only_where_puts_are_atomic(story, promise):
    story.put("a")
    new = story.doubtful("b")
    story.left("b", story.bytes_of(new)[:1000])
    assert counts(story.find()) == {"torn": 1}
    assert story.judge(promise).verdict == "broken"
    assert story.judge(replace(promise, atomic=Domain.CLIENT)).verdict == "broken"
    assert story.judge(replace(promise, atomic=Domain.NOTHING)).verdict == "kept"
    assert story.judge(replace(promise, atomic=None)).verdict == "kept"


def test_a_corrupt_value_in_doubt_is_broken_only_where_puts_are_atomic(story):
    story.put("a")
    new = story.bytes_of(story.doubtful("b"))
    story.left("b", new[:1500] + b"\xff" + new[1501:])
    assert counts(story.find()) == {"corrupt": 1}
    assert story.judge(SAFE).verdict == "broken"
    assert story.judge(LOOSE).verdict == "kept"


def test_a_hole_is_broken_only_where_losses_are_ordered(story):
    story.put("a", age_s=3)
    story.put("b", age_s=0.5)
    story.put("c", age_s=0.2)
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1, "hole": 1}
    assert story.judge(WINDOW).verdict == "broken"
    assert story.judge(replace(WINDOW, ordered=None)).verdict == "within"
    assert story.judge(replace(WINDOW, ordered=Domain.NOTHING)).verdict == "within"
    story.left("c", None)
    assert counts(story.find()) == {"lost": 2}
    assert story.judge(WINDOW).verdict == "within"


def test_one_lost_is_broken_where_nothing_may_be_lost(story):
    story.put("a")
    story.put("b", age_s=0.001)
    assert story.judge(LOOSE) == Verdict("kept", "nothing lost of 2 acknowledged")
    story.left("b", None)
    assert story.judge(LOOSE).verdict == "broken"
    assert "b is absent" in story.judge(LOOSE).why


def test_one_stale_is_broken_where_nothing_may_be_lost(story):
    old = story.put("a")
    story.put("a")
    assert story.judge(LOOSE).verdict == "kept"
    story.left("a", old)
    assert counts(story.find()) == {"stale": 1}
    assert story.judge(LOOSE).verdict == "broken"


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 2047])
def test_an_acknowledged_value_that_is_torn_is_broken_even_where_puts_are_not_atomic(story, cut):
    value = story.bytes_of(story.put("a"))
    assert story.judge(LOOSE).verdict == "kept"
    story.left("a", value[:cut])
    assert story.find().torn == 1
    assert story.find().damaged_acked == 1
    assert story.judge(LOOSE).verdict == "broken"


def test_an_acknowledged_value_that_is_corrupt_is_broken_even_where_puts_are_not_atomic(story):
    value = story.bytes_of(story.put("a"))
    story.left("a", value[:700] + bytes([value[700] ^ 1]) + value[701:])
    assert counts(story.find()) == {"corrupt": 1}
    assert story.judge(LOOSE).verdict == "broken"


def test_a_loss_older_than_the_window_is_broken(story):
    story.put("a", age_s=5)
    story.put("b", age_s=WINDOW_S)
    story.left("b", None)
    assert story.judge(WINDOW).verdict == "within"
    story.put("c", age_s=WINDOW_S + 0.001)
    story.left("c", None)
    assert story.judge(WINDOW).verdict == "broken"
    assert story.find().loss_window_s == pytest.approx(WINDOW_S + 0.001)


@pytest.mark.parametrize("age_s, verdict", [(1.9, "within"), (2.1, "broken")])
def test_a_torn_acknowledgement_counts_as_gone_in_a_window(story, age_s, verdict):
    story.put("a", age_s=5)
    story.put("b", age_s=age_s)
    story.left("b", b"")
    assert story.judge(LOOSE_WINDOW).verdict == verdict


@pytest.mark.parametrize("oldest_block, verdict", [(1, "broken"), (2, "within")])
def test_a_torn_value_is_as_old_as_what_came_after_its_oldest_block(story, oldest_block, verdict):
    story.put("a", age_s=5)
    story.put("a", age_s=2.5)
    story.put("a", age_s=0.5)
    story.left("a", story.bytes_of(3)[:1024] + story.bytes_of(oldest_block)[1024:])
    assert story.judge(LOOSE_WINDOW).verdict == verdict


@pytest.mark.parametrize("age_s, verdict", [(1.9, "within"), (2.1, "broken")])
def test_a_stale_value_is_as_old_as_the_first_acknowledgement_after_it(story, age_s, verdict):
    old = story.put("a", age_s=5)
    story.put("a", age_s=age_s)
    story.put("a", age_s=0.1)
    story.left("a", old)
    assert story.find().loss_window_s == pytest.approx(age_s)
    assert story.judge(WINDOW).verdict == verdict


def test_an_absent_key_lost_its_first_acknowledgement_too(story):
    story.put("other", age_s=9)
    story.put("a", age_s=5)
    story.put("a", age_s=0.1)
    story.left("a", None)
    story.left("other", None)
    assert story.find().loss_window_s == pytest.approx(9)
    assert story.judge(WINDOW).verdict == "broken"
    deleted = Story()
    deleted.put("other", age_s=9)
    deleted.put("a", age_s=5)
    deleted.delete("a", age_s=4)
    deleted.put("a", age_s=0.1)
    deleted.left("a", None)
    assert deleted.judge(WINDOW).verdict == "within"


def test_a_window_that_was_not_exercised_is_unknown(story):
    story.put("a", age_s=WINDOW_S)
    verdict = story.judge(WINDOW)
    assert verdict.verdict == "unknown"
    assert verdict.why.startswith("window not exercised")
    story.left("a", None)
    assert story.judge(WINDOW).verdict == "unknown"
    story.put("b", age_s=WINDOW_S + 0.001)
    assert story.judge(replace(WINDOW, ordered=None)).verdict == "within"


def test_a_window_without_a_strike_time_is_never_kept(story):
    story.put("a", age_s=9)
    history = replace(story.history(), strike_ns=None)
    assert judge(find(history, METADATA), WINDOW, Domain.NOTHING).verdict == "unknown"
    assert judge(find(history, METADATA), SAFE, Domain.NOTHING).verdict == "kept"


def test_kept_in_a_window_where_nothing_is_lost(story):
    story.put("a", age_s=3)
    story.put("b", age_s=1)
    assert story.judge(WINDOW).verdict == "kept"


# --- the words of a finding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["old", "new", "torn"])
def test_an_overwrite_in_doubt_may_read_old_new_or_torn(story, left):
    old = story.put("a")
    new = story.doubtful("a")
    torn = story.bytes_of(new)[:1024] + story.bytes_of(old)[1024:]
    story.left("a", {"old": old, "new": new, "torn": torn}[left])
    assert counts(story.find()) == ({"torn": 1} if left == "torn" else {})
    assert story.find().gone == 0
    assert story.judge(LOOSE).verdict == "kept"
    assert story.judge(SAFE).verdict == ("broken" if left == "torn" else "kept")


def test_an_overwrite_in_doubt_does_not_excuse_an_absence(story):
    story.put("a")
    story.doubtful("a")
    story.left("a", None)
    assert counts(story.find()) == {"lost": 1}
    assert story.judge(LOOSE).verdict == "broken"


def test_a_doubt_that_was_overtaken_is_no_doubt_any_more(story):
    old = story.doubtful("a")
    story.put("a")
    story.left("a", old)
    assert counts(story.find()) == {"stale": 1}


def test_an_overwrite_in_doubt_does_not_excuse_blocks_older_than_the_acknowledged_ones(story):
    old, acked, new = story.put("a"), story.put("a"), story.doubtful("a")
    story.left("a", story.bytes_of(new)[:1024] + story.bytes_of(acked)[1024:])
    assert story.judge(LOOSE).verdict == "kept"
    story.left("a", story.bytes_of(new)[:1024] + story.bytes_of(old)[1024:])
    assert story.find().damaged_acked == 1
    assert story.judge(LOOSE).verdict == "broken"


def test_a_value_of_somebody_else_is_nobodys_tear(story):
    story.put("a")
    story.doubtful("a")
    other = story.put("b")
    story.left("a", story.bytes_of(other))
    assert counts(story.find()) == {"corrupt": 1}
    assert story.judge(LOOSE).verdict == "broken"


def test_a_delete_in_doubt_may_leave_it_or_not(story):
    story.put("a")
    story.put("b")
    story.delete("b", "info")
    assert counts(story.find()) == {}
    story.left("b", None)
    assert counts(story.find()) == {}


def test_an_acknowledged_delete_with_a_later_put_is_no_resurrection(story):
    old = story.put("a")
    story.delete("a")
    new = story.doubtful("a")
    for content, found in ((None, {}), (new, {}), (old, {"resurrected": 1})):
        story.left("a", content)
        assert counts(story.find()) == found
    again = story.put("a")
    for content, found in ((again, {}), (new, {"stale": 1}), (old, {"stale": 1}), (None, {"lost": 1})):
        story.left("a", content)
        assert counts(story.find()) == found


def test_a_deleted_key_that_is_damaged_or_listed_is_resurrected(story):
    old = story.bytes_of(story.put("a"))
    story.delete("a")
    story.left("a", old[:512])
    assert counts(story.find()) == {"resurrected": 1}
    story.left("a", None, listed=True)
    assert counts(story.find()) == {"resurrected": 1}


def test_a_failed_put_certainly_did_not_happen(story):
    kept = story.put("a")
    failed = story.failed("a")
    never = story.failed("b")
    assert counts(story.find()) == {}
    assert story.find().in_doubt == 0
    story.left("a", failed)
    assert counts(story.find()) == {"phantom": 1}
    story.left("a", kept)
    story.left("b", never)
    assert counts(story.find()) == {"phantom": 1}
    story.left("b", story.bytes_of(never)[:100])
    assert counts(story.find()) == {"phantom": 1}


def test_a_put_that_was_never_made_is_a_phantom(story):
    story.put("a")
    story.left("a", payload.make(SEED, METADATA, "a", 999, 2048))
    assert counts(story.find()) == {"phantom": 1}


def test_a_key_that_cannot_be_read_is_corrupt(story):
    story.put("a")
    story.left("a", None, error="OSError: I/O error")
    assert counts(story.find()) == {"corrupt": 1}
    assert story.judge(LOOSE).verdict == "broken"
    assert "I/O error" in story.judge(LOOSE).why
    story.doubtful("a")
    assert story.judge(LOOSE).verdict == "kept"
    assert story.judge(SAFE).verdict == "broken"


def test_every_key_unreadable_is_never_kept(story):
    story.put("a")
    story.put("b")
    story.delete("b")
    for key in ("a", "b"):
        story.left(key, None, error="timeout", listed=False)
    assert story.find().corrupt == 2
    assert story.judge(LOOSE).verdict == "broken"


def test_what_is_not_listed_cannot_be_found_again_and_is_lost(story):
    acked = story.put("a")
    story.left("a", acked, listed=False)
    assert counts(story.find()) == {"lost": 1}
    assert "not listed" in story.judge(LOOSE).why


def test_the_listing_of_a_put_in_doubt_may_lag(story):
    story.put("a")
    doubtful = story.doubtful("b")
    story.left("b", doubtful, listed=False)
    assert counts(story.find()) == {}
    assert story.judge(SAFE).verdict == "kept"


def test_what_is_listed_but_reads_nothing(story):
    story.put("a")
    story.left("a", None, listed=True)
    assert counts(story.find()) == {"lost": 1}
    story.doubtful("b")
    story.left("b", None, listed=True)
    assert counts(story.find()) == {"lost": 1, "torn": 1}
    story.left("ghost", None, listed=True)
    assert counts(story.find()) == {"lost": 1, "torn": 1, "phantom": 1}


@pytest.mark.parametrize("content", [b"", bytes(2048), b"\0" * 100], ids=["empty", "zeros", "short zeros"])
def test_empty_and_zeroed_values_are_torn(story, content):
    story.put("a")
    story.left("a", content)
    assert counts(story.find()) == {"torn": 1}


def test_values_without_a_stamp_are_told_by_length_and_digest(story):
    sizes = [0, 1, 8, 23]
    for size in sizes:
        story.put(f"key-{size}", size=size)
    assert counts(story.find()) == {}
    whole = story.bytes_of(4)
    for content, word in ((whole[:-1], "torn"), (b"", "torn"), (bytes(23), "torn"), (whole[:-1] + b"?", "corrupt")):
        story.left("key-23", content)
        assert counts(story.find()) == {word: 1}, content


def test_two_tiny_values_that_are_equal_are_read_in_favour_of_the_store(story):
    for _ in range(3):
        story.put("a", size=0)
    story.left("a", b"")
    assert counts(story.find()) == {}


def test_a_tiny_value_that_may_be_an_older_one_is_no_survivor(story):
    story.put("a", size=0)
    story.put("b")
    story.put("a", size=0)
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1}


def test_an_empty_value_may_be_the_beginning_of_a_put_in_doubt(story):
    old = story.put("a", size=0)
    story.put("a")
    story.left("a", old)
    assert counts(story.find()) == {"stale": 1}
    story.doubtful("a")
    assert counts(story.find()) == {"torn": 1}
    assert story.judge(LOOSE).verdict == "kept"


def test_the_end_of_a_payload_that_is_zero_by_chance_is_whole(story):
    by_chance = next(seed for seed in range(10_000) if payload.make(seed, METADATA, "a", 1, 513)[-1] == 0)
    story = Story(seed=by_chance)
    story.put("a", size=513)
    assert counts(story.find()) == {}


def test_a_gap_in_the_reading_is_a_doubt_and_not_a_loss(story):
    story.put("a")
    story.put("b")
    history = story.history()
    partial = replace(history, readings=history.readings[:1])
    assert find(partial, METADATA).doubts == ("b was not read back",)
    forgotten = replace(partial, listed={METADATA: frozenset("a")})
    assert find(forgotten, METADATA).doubts == ("b was not read back",)
    unlisted = find(replace(history, listed={}), METADATA)
    assert judge(unlisted, SAFE, Domain.CLIENT).verdict == "unknown"
    twice = replace(history, readings=[*history.readings, Reading(METADATA, "a", None)])
    assert judge(find(twice, METADATA), SAFE, Domain.CLIENT).verdict == "unknown"
    lost_at_first = replace(history, readings=[Reading(METADATA, "a", None), *history.readings])
    assert judge(find(lost_at_first, METADATA), SAFE, Domain.CLIENT).verdict == "unknown"


def test_counts_and_ages_of_what_was_acknowledged(story):
    story.put("a", age_s=3)
    story.put("b", age_s=2)
    story.delete("b", age_s=1)
    story.step("get", "a", age_s=0.7)
    story.doubtful("c", age_s=0.5)
    finding = story.find()
    assert (finding.acked, finding.in_doubt) == (3, 1)
    assert finding.oldest_acked_s == pytest.approx(3)
    assert finding.oldest_gone_s is None
    assert finding.loss_window_s is None


def test_details_name_the_first_wrongs_and_say_how_many_more(story):
    for number in range(8):
        story.put(f"key-{number}")
        story.left(f"key-{number}", None)
    assert len(story.find().details) == 6
    assert story.find().details[-1] == "and 3 more"


# --- holes: a suffix per namespace and writer -----------------------------------------------------------------------


def test_a_suffix_is_judged_per_writer(story):
    story.put("a", writer=0)
    story.put("b", writer=1)
    story.left("a", None)
    assert counts(story.find()) == {"lost": 1}
    story.put("c", writer=0)
    assert counts(story.find()) == {"lost": 1, "hole": 1}


def test_a_survivor_in_doubt_makes_a_hole_as_well(story):
    story.put("a")
    story.put("b")
    new = story.doubtful("c")
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1}
    story.left("c", new)
    assert counts(story.find()) == {"lost": 1, "hole": 1}


def test_what_was_superseded_makes_no_hole(story):
    story.put("a")
    story.put("b")
    story.put("a")
    story.left("a", None)
    story.left("b", None)
    assert story.find().hole == 0


def test_a_stale_value_is_a_hole_if_what_came_next_is_older_than_a_survivor(story):
    old = story.put("a")
    story.put("a")
    story.put("b")
    story.put("a")
    story.left("a", old)
    assert counts(story.find()) == {"stale": 1, "hole": 1}
    story.left("b", None)
    assert counts(story.find()) == {"stale": 1, "lost": 1}


def test_a_deleted_key_proves_nothing_where_its_put_may_be_lost_too(story):
    for key in ("a", "b"):
        story.put(key)
    story.delete("a")
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1}


def test_a_deleted_key_proves_a_hole_where_its_put_must_have_survived(story):
    story.put("a")
    story.put("witness")
    story.put("b")
    story.delete("a")
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1, "hole": 1}


def test_a_key_put_and_deleted_again_proves_only_the_delete_that_must_have_happened(story):
    story.put("a")
    story.put("witness")
    story.put("b")
    story.delete("a")
    story.put("a")
    story.put("c")
    story.delete("a")
    story.left("c", None)
    assert counts(story.find()) == {"lost": 1}, "a may be absent by its first delete"
    story.left("b", None)
    assert counts(story.find()) == {"lost": 2, "hole": 1}, "b is older than that delete"


def test_a_delete_in_doubt_proves_nothing_more(story):
    story.put("a")
    story.put("witness")
    story.delete("a", "info")
    story.put("b")
    story.delete("a")
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1}


def test_one_proof_may_be_the_premise_of_another(story):
    story.put("a")
    story.put("witness")
    story.put("z")
    story.put("b")
    story.delete("a")
    story.put("c")
    story.delete("b")
    story.left("c", None)
    assert counts(story.find()) == {"lost": 1, "hole": 1}


# --- what the oracle found (tests/oracle.py), told by hand ------------------------------------------------------------


def test_what_is_in_doubt_and_was_not_read_back_is_a_doubt(story):
    story.put("a")
    story.doubtful("b")
    history = story.history()
    unread = replace(history, readings=[reading for reading in history.readings if reading.key == "a"])
    assert find(unread, METADATA).doubts == ("b was not read back",)
    story.failed("c")
    refused = replace(story.history(), readings=history.readings)
    assert find(refused, METADATA).doubts == (), "what certainly did not happen owes nothing"


def test_what_was_forgotten_before_the_strike_says_nothing_of_the_order_of_what_the_strike_lost(story):
    kept = story.put("a", age_s=3)
    story.read_before("a", None, age_s=2)
    story.put("b", age_s=1)
    story.left("a", kept)
    assert counts(story.find()) == {"lost": 1}


def test_two_wrongs_of_a_key_at_two_times_are_two_and_one_at_both_is_as_old_as_the_older(story):
    story.put("other", age_s=9)
    old = story.put("a", age_s=5)
    story.read_before("a", None, age_s=4)
    story.delete("a", age_s=1.5)
    story.put("a", age_s=0.5)
    story.left("a", None)
    assert counts(story.find()) == {"lost": 1}
    assert story.find().loss_window_s == pytest.approx(5)
    story.left("a", b"")
    assert counts(story.find()) == {"lost": 1, "torn": 1}
    story.doubtful("a")
    assert counts(story.find()) == {"lost": 1, "torn": 1}
    assert story.find().damaged_acked == 0
    assert story.find().gone == 1, f"put {old} was lost, whatever may be there in doubt"
    assert judge(story.find(), replace(LOOSE, may_lose_s={Domain.CLIENT: 0.0}), Domain.CLIENT).verdict == "broken"


def test_a_delete_in_doubt_of_what_is_not_there_excuses_nothing(story):
    old = story.put("a")
    story.delete("a")
    story.delete("a", "info")
    assert counts(story.find()) == {}
    story.left("a", None, listed=True)
    assert counts(story.find()) == {"resurrected": 1}
    story.left("a", story.bytes_of(old)[:600])
    assert counts(story.find()) == {"resurrected": 1}
    assert story.judge(LOOSE).verdict == "broken"


@pytest.mark.parametrize("deleted", ["ok", "info"])
def test_what_was_never_put_is_a_phantom_also_where_it_was_deleted(story, deleted):
    story.put("b")
    failed = story.failed("a")
    story.delete("a", deleted)
    for content in (None, failed, story.bytes_of(failed)[:600], b"boo"):
        story.left("a", content, listed=True)
        assert counts(story.find()) == {"phantom": 1}, content
        if content is not None:
            story.left("a", content, listed=False)
            assert counts(story.find()) == {"phantom": 1}, content
        story.ghosts.clear()
        story.unlisted.clear()


def test_blocks_of_a_put_that_failed_were_never_put_there(story):
    acked = story.put("a", age_s=3)
    failed = story.failed("a")
    story.put("a", age_s=0.5)
    story.left("a", story.bytes_of(failed)[:1024])
    assert counts(story.find()) == {"phantom": 1}
    assert story.judge(LOOSE_WINDOW).verdict == "broken"
    story.left("a", story.bytes_of(acked)[:1024] + story.bytes_of(failed)[1024:])
    assert counts(story.find()) == {"corrupt": 1}
    assert story.find().oldest_gone_s == pytest.approx(0.5), "the failed put is no block that is still there"


def test_a_deleted_value_that_reads_and_is_not_listed_is_as_old_as_what_it_contradicts(story):
    first = story.put("a", age_s=3)
    story.put("a", age_s=2.5)
    story.delete("a", age_s=0.5)
    story.left("a", first, listed=False)
    assert counts(story.find()) == {"resurrected": 1}
    assert story.find().loss_window_s == pytest.approx(2.5)
    assert story.judge(LOOSE_WINDOW).verdict == "broken"


def test_a_tiny_value_is_torn_in_doubt_only_if_it_is_the_beginning_of_what_may_be_there(story):
    first = story.put("a", size=20)
    second = story.put("a", size=20)
    story.doubtful("a")
    story.left("a", story.bytes_of(second)[:9])
    assert (story.find().torn, story.find().damaged_acked) == (1, 0)
    story.left("a", story.bytes_of(first)[:9])
    assert (story.find().torn, story.find().damaged_acked) == (1, 1)
    assert story.judge(LOOSE).verdict == "broken"


def test_an_empty_value_may_be_what_a_delete_in_doubt_left(story):
    story.put("a", size=0)
    story.put("a")
    story.delete("a", "info")
    story.left("a", b"")
    assert counts(story.find()) == {"torn": 1}
    assert story.judge(LOOSE).verdict == "kept"


def test_a_tiny_put_in_doubt_may_lie_over_the_only_stamp(story):
    value = story.bytes_of(story.put("a", size=530))
    tiny = story.bytes_of(story.doubtful("a", size=2))
    story.left("a", tiny + value[2:])
    assert (story.find().corrupt, story.find().damaged_acked) == (1, 0)
    assert story.judge(LOOSE).verdict == "kept"
    assert story.judge(SAFE).verdict == "broken"


@pytest.mark.parametrize("delete", ["ok", "info"])
def test_a_delete_that_must_have_happened_proves_a_hole_also_where_it_is_in_doubt(story, delete):
    story.put("a")
    story.put("witness")
    story.put("b")
    story.delete("a", delete)
    story.left("a", None)
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1, "hole": 1}


def test_a_put_in_doubt_after_the_survivor_does_not_excuse_that_its_key_is_absent(story):
    story.put("a")
    story.doubtful("a")
    story.put("witness")
    story.put("b")
    story.delete("a")
    story.left("b", None)
    assert counts(story.find()) == {"lost": 1, "hole": 1}


# --- versions --------------------------------------------------------------------------------------------------------


def test_every_acknowledged_version_must_be_there_where_versions_are_promised(story):
    one, two, three = story.put("a"), story.put("a"), story.put("a")
    story.left("a", three, versions=[three, two, one])
    assert counts(story.find(versions_promised=True)) == {}
    story.left("a", three, versions=[three])
    finding = story.find(versions_promised=True)
    assert finding.lost == 2
    assert judge(finding, LOOSE, Domain.CLIENT).verdict == "broken"


def test_a_lost_last_version_is_counted_once(story):
    one, two, three = story.put("a"), story.put("a"), story.put("a")
    story.left("a", two, versions=[two, one])
    assert counts(story.find(versions_promised=True)) == {"lost": 1}
    story.left("a", two, versions=[three, two, one])
    assert counts(story.find(versions_promised=True)) == {"stale": 1}
    story.left("a", None, versions=[])
    assert counts(story.find(versions_promised=True)) == {"lost": 3}
    story.left("a", None, versions=[three, two, one])
    assert counts(story.find(versions_promised=True)) == {"lost": 1, "hole": 1}


def test_a_version_in_doubt_may_be_there_or_not(story):
    one, two = story.put("a"), story.doubtful("a")
    for versions in ([one], [two, one]):
        story.left("a", versions[0], versions=versions)
        assert counts(story.find(versions_promised=True)) == {}
    story.left("a", two, versions=[two])
    assert counts(story.find(versions_promised=True)) == {"lost": 1, "hole": 1}


def test_a_damaged_version_is_damaged_and_not_lost_as_well(story):
    one, two = story.put("a"), story.put("a")
    story.left("a", two, versions=[two, story.bytes_of(one)[:512]])
    finding = story.find(versions_promised=True)
    assert counts(finding) == {"torn": 1}
    assert finding.damaged_acked == 1
    story.left("a", story.bytes_of(two)[:512], versions=[story.bytes_of(two)[:512], one])
    assert counts(story.find(versions_promised=True)) == {"torn": 1}


def test_versions_of_failed_or_unknown_puts_are_phantoms(story):
    one, failed = story.put("a"), story.failed("a")
    story.left("a", one, versions=[one, failed])
    assert counts(story.find(versions_promised=True)) == {"phantom": 1}
    story.left("a", one, versions=[one, payload.make(SEED, METADATA, "a", 77, 2048)])
    assert counts(story.find(versions_promised=True)) == {"phantom": 1}


def test_a_deleted_key_still_has_its_versions(story):
    one = story.put("a")
    story.delete("a")
    story.left("a", None, versions=[one])
    assert counts(story.find(versions_promised=True)) == {}
    story.left("a", None, versions=[])
    assert counts(story.find(versions_promised=True)) == {"lost": 1}


def test_versions_that_are_not_promised_are_counted_and_not_judged(story):
    one, two = story.put("a"), story.put("a")
    assert story.find().versions_lost is None
    story.left("a", two, versions=[two])
    finding = story.find()
    assert (finding.lost, finding.versions_lost) == (0, 1)
    assert judge(finding, SAFE, Domain.CLIENT).verdict == "kept"
    story.left("a", two, versions=[two, one])
    assert story.find().versions_lost == 0


def test_versions_that_were_not_read_are_a_doubt(story):
    story.put("a")
    assert judge(story.find(versions_promised=True), SAFE, Domain.CLIENT).verdict == "unknown"


# --- metadata and data ------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(story) -> Story:
    """Two steps; the first changed the data."""
    data = story.put("d1", namespace=DATA, size=4096)
    story.put("m1", refers=(("d1", data),))
    story.put("m2", refers=(("d1", data),))
    return story


@pytest.mark.parametrize("harm", ["lost", "torn", "old"])
def test_metadata_is_dangling_where_its_data_is_lost_torn_or_old(story, harm):
    old = story.put("d", namespace=DATA, size=4096)
    new = story.put("d", namespace=DATA, size=4096)
    story.put("m", refers=(("d", new),))
    assert story.find().dangling == 0
    story.left("d", {"lost": None, "torn": b"", "old": old}[harm], namespace=DATA)
    assert story.find().dangling == 1
    assert story.judge(SAFE).verdict == "kept", (
        "dangling is counted in the metadata row, its verdict falls in the data row"
    )
    assert judge(story.find(DATA), SAFE, Domain.CLIENT).verdict == "broken"
    assert story.find(DATA).dangling is None
    assert story.find(DATA).orphan is None


def test_every_record_that_refers_to_lost_data_dangles(pair):
    pair.left("d1", None, namespace=DATA)
    assert pair.find().dangling == 2
    pair.left("m2", None)
    assert pair.find().dangling == 1


def test_data_without_metadata_is_an_orphan_and_harmless(pair):
    assert pair.find().orphan == 0
    new = pair.doubtful("d2", namespace=DATA)
    pair.left("d2", new, namespace=DATA)
    assert pair.find().orphan == 1
    assert pair.judge(SAFE).verdict == "kept"
    assert judge(pair.find(DATA), SAFE, Domain.CLIENT).verdict == "kept"


def test_newer_data_and_data_deleted_on_purpose_do_not_dangle(story):
    data = story.put("d", namespace=DATA)
    story.put("m", refers=(("d", data),))
    story.put("d", namespace=DATA)
    assert story.find().dangling == 0
    story.delete("d", namespace=DATA)
    assert story.find().dangling == 0


def test_a_record_of_data_in_doubt_does_not_dangle(story):
    data = story.doubtful("d", namespace=DATA)
    story.put("m", refers=(("d", data),))
    assert (story.find().dangling, story.find().orphan) == (0, 0)


def test_pairs_are_unmeasured_where_there_is_no_data_or_it_did_not_come_up(story, pair):
    alone = Story()
    alone.put("m")
    assert (alone.find().dangling, alone.find().orphan) == (None, None)
    half = replace(pair.history(), down={DATA: "data did not come up"}, listed={METADATA: frozenset({"m1", "m2"})})
    half = replace(half, readings=[reading for reading in half.readings if reading.namespace == METADATA])
    assert not find(half, METADATA).unavailable
    assert find(half, METADATA).dangling is None
    assert find(half, DATA).unavailable


# --- cells -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verdicts, expected",
    [
        (["kept"], "kept"),
        (["kept", "within"], "within"),
        (["within", "no-promise", "kept"], "no-promise"),
        (["kept", "broken", "no-promise"], "broken"),
        (["unknown", "kept"], "kept"),
        (["unknown", "within", "unknown"], "within"),
        (["unknown", "unknown"], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_worst_verdict_decides_and_unknown_only_where_no_trial_was_judged(verdicts, expected):
    assert worst(verdicts) == expected
