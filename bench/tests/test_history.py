"""A recorded sequence of events gives the facts that the checker reads, and nothing that did not happen."""

from __future__ import annotations

import json

import pytest

from durabench.history import Doubt, Found, Reading, Value, from_events
from durabench_backends.contract import Op

ARMED = {"e": "armed", "w": 0, "i": 0, "t": 100, "verb": "put", "ns": "metadata", "key": "a", "seq": 1, "size": 8}
OK = {"e": "ok", "w": 0, "i": 0, "t": 150, "latency_ns": 40}


def facts(*events):
    return from_events(json.loads(json.dumps(events)))


def test_an_answered_put_is_acknowledged_at_the_time_its_answer_was_received():
    (attempt,) = facts(ARMED, OK).attempts
    assert attempt.op == Op("put", "metadata", "a", 1, 8)
    assert (attempt.outcome, attempt.invoked_ns, attempt.acknowledged_ns, attempt.latency_ns) == ("ok", 100, 150, 40)


@pytest.mark.parametrize(
    "answer, outcome",
    [(None, "info"), ({"e": "info"}, "info"), ({"e": "fail"}, "fail"), ({"e": "ok", "latency_ns": 1}, "ok")],
)
def test_what_never_answered_is_in_doubt_and_only_a_refusal_certainly_did_not_happen(answer, outcome):
    answers = [{**answer, "w": 0, "i": 0, "t": 150, "why": "x"}] if answer else []
    (attempt,) = facts(ARMED, *answers).attempts
    assert attempt.outcome == outcome
    assert (attempt.acknowledged_ns is not None) == (outcome == "ok")


def test_answers_belong_to_their_writer():
    other = {**ARMED, "w": 1, "seq": 2, "key": "b"}
    first, second = facts(ARMED, other, {**OK, "w": 1}).attempts
    assert (first.writer, first.outcome) == (0, "info")
    assert (second.writer, second.outcome) == (1, "ok")


def test_references_come_back_as_pairs():
    (attempt,) = facts({**ARMED, "refers": [["d", 7]]}).attempts
    assert attempt.op.refers == (("d", 7),)


def test_acknowledged_leaves_out_reads_and_doubts_and_follows_the_answers():
    history = facts(
        ARMED,
        {**ARMED, "i": 1, "seq": 2, "key": "b"},
        {**ARMED, "i": 2, "seq": 3, "verb": "get"},
        {**ARMED, "i": 3, "seq": 4, "key": "c"},
        {**ARMED, "i": 4, "seq": 5, "ns": "data"},
        {**OK, "i": 1, "t": 160},
        {**OK, "i": 0, "t": 170},
        {**OK, "i": 2, "t": 180},
        {**OK, "i": 4, "t": 190},
    )
    assert [attempt.op.key for attempt in history.acknowledged("metadata")] == ["b", "a"]
    assert [attempt.op.sequence for attempt in history.of("data")] == [5]


def test_what_was_found_after_the_fault():
    history = facts(
        {"e": "trial", "seed": 9},
        {"e": "strike", "t": 1000},
        {"e": "struck", "where": "inside"},
        {"e": "up", "recovery_ns": 77},
        {"e": "listing", "ns": "metadata", "keys": ["a", "b"]},
        {
            "e": "reading",
            "ns": "metadata",
            "key": "a",
            "value": {"length": 3, "sha256": "ab", "blocks": [[1, 2], [-1, 1]]},
        },
        {"e": "reading", "ns": "metadata", "key": "b", "value": None},
        {"e": "reading", "ns": "metadata", "key": "c", "value": None, "error": "OSError: gone"},
        {
            "e": "reading",
            "ns": "data",
            "key": "d",
            "value": None,
            "versions": [{"length": 0, "sha256": "cd", "blocks": [], "version": "v1"}],
        },
        {"e": "doubt", "why": "identity"},
        {"e": "doubt", "why": "the reader was killed", "voids": False},
    )
    assert (history.seed, history.strike_ns, history.struck, history.recovery_ns) == (9, 1000, "inside", 77)
    assert history.listed == {"metadata": frozenset({"a", "b"})}
    assert history.doubts == (Doubt("identity"), Doubt("the reader was killed", voids=False))
    assert history.down == {}
    assert list(history.readings) == [
        Reading("metadata", "a", Value(3, "ab", ((1, 2), (-1, 1)))),
        Reading("metadata", "b", None),
        Reading("metadata", "c", None, "OSError: gone"),
        Reading("data", "d", None, None, [Value(0, "cd", (), "v1")]),
    ]


def test_down_says_why():
    assert facts({"e": "down", "why": "no answer", "ns": ["data"]}).down == {"data": "no answer"}
    older = facts({"e": "down", "why": "no answer in 30 s"})
    assert older.down == dict.fromkeys(("metadata", "data"), "no answer in 30 s")


def test_what_a_get_found_before_the_strike():
    value = {"length": 3, "sha256": "ab", "blocks": [[1, 2]]}
    get = {**ARMED, "i": 1, "seq": 2, "verb": "get"}
    history = facts(
        ARMED, OK, get, {"e": "found", "w": 0, "i": 1, "t": 180, "value": value}, {**OK, "i": 1, "t": 190},
        {**get, "i": 2, "seq": 3}, {"e": "found", "w": 0, "i": 2, "t": 200, "value": None},
    )  # fmt: skip
    assert history.found == [
        Found(Reading("metadata", "a", Value(3, "ab", ((1, 2),))), 0, 2, 180),
        Found(Reading("metadata", "a", None), 0, 3, 200),
    ]


@pytest.mark.parametrize(
    "event", [{}, {"e": "armed"}, {"e": "listing"}, {"e": "strike"}, {"e": "reading", "ns": "data"}]
)
def test_what_is_no_history_is_an_error(event):
    with pytest.raises(KeyError):
        facts(event)
