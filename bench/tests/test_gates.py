"""What a gate says, and that nothing it cannot tell passes in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabench.report import gates
from durabench.report.compare import GATED

CELL = {
    "tier": "T3",
    "fault": "none",
    "loss_rate_high": 0.02,
    "put_p50_ms": None,
    "trials": 36,
    "by_name": False,
    "verdict": "not run",
    "expected": None,
}


def said(text):
    return gates.parse(text, GATED).of(CELL)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("loss_rate_high>0.02", False),
        ("loss_rate_high>=0.02", True),
        ("loss_rate_high<2e-1", True),
        ("loss_rate_high<=0.01", False),
        ("trials==36", True),
        (" trials != 36 ", False),
        ("tier==T3", True),
        ("tier == 'T3'", True),
        ('verdict=="not run"', True),
        ("verdict!=kept", True),
        ("by_name==true", False),
        ("by_name==false", True),
        ("tier==T3&&loss_rate_high>0.01&&trials<100", True),
        ("tier==T1 && loss_rate_high>0.01", False),
    ],
)
def test_conditions_are_read_as_they_are_written(text, expected):
    assert said(text) is expected


def test_what_was_not_measured_decides_nothing_unless_another_condition_does():
    assert said("put_p50_ms>1") is None
    assert said("put_p50_ms<=1") is None
    assert said("put_p50_ms>1 && tier==T3") is None
    assert said("put_p50_ms>1 && tier==T1") is False
    assert said("put_p50_ms==null") is True
    assert said("put_p50_ms!=null && put_p50_ms>1") is False, "decided otherwise, by asking for it"
    assert said("expected!=null") is False
    assert gates.parse("put_p50_ms>1 && tier==T3", GATED).untold(CELL) == ["put_p50_ms"]


@pytest.mark.parametrize(
    "text,mend",
    [
        ("", "such as loss_rate_high>0.02"),
        ("loss_rate_high", "such as loss_rate_high>0.02"),
        ("loss_rate_high>", "such as"),
        ("loss_rate_high>0.02 &&", "such as"),
        ("loss_rate_high>0.02 || trials<3", "such as"),
        ("loss_rate_high > 0.02 > 1", "such as"),
        ("loss_rate_hihg>0.02", "did you mean loss_rate_high"),
        ("__class__==x", "nothing has a field '__class__'"),
        ("loss_rate_high>many", "is a number"),
        ("trials=3", "=="),
        ("verdict>kept", "only == and !="),
        ("put_p50_ms>null", "only == and !="),
        ("by_name==yes", "true or false"),
        ("loss_rate_high>nan", "is a number, not 'nan'"),
        ("loss_rate_high>-NaN", "is a number"),
        ("put_p50_ms>inf", "is a number"),
        ("put_p50_ms<-Infinity", "is a number"),
        ("lost>1e999", "is a number"),
        ("loss_rate_high>5", "between 0 and 1, 5 does not; 5 % is 0.05"),
        ("p_holm<-0.1", "between 0 and 1"),
        ("verdict==null", "verdict is never null"),
        ("trials!=null", "trials is never null"),
        ("__import__('os').system('true')", "such as"),
    ],
)
def test_what_is_no_gate_is_refused_with_its_mend(text, mend):
    with pytest.raises(gates.GateError, match=mend.replace("(", r"\(")) as refusal:
        gates.parse(text, GATED)
    assert "\n" not in str(refusal.value)


@given(st.text(max_size=40))
def test_any_text_is_a_gate_or_refused(text):
    try:
        gate = gates.parse(text, GATED)
    except gates.GateError:
        return
    assert gate.of(CELL) in (True, False, None)


WORDS = {"tier": ["T0", "T1", "T2", "T3", "T2 0.6 s"], "verdict": ["kept", "broken", "not run"], "host": []}


@pytest.mark.parametrize(
    "text,mend",
    [
        ("tier==t3", "tier is never 't3'; did you mean T3"),
        ("tier!=T4", "tier is never 'T4'; did you mean T"),
        ("verdict==brokn", "did you mean broken?"),
        ("verdict=='Not run'", "did you mean not run?"),
        ("trials>3 && verdict==x", "known: kept, broken, not run"),
        ("host==beef", "there is none here"),
        ("tier==''", "tier is never ''"),
    ],
)
def test_a_word_must_be_one_that_the_field_can_say(text, mend):
    with pytest.raises(gates.GateError) as refusal:
        gates.parse(text, GATED, WORDS)
    assert mend in str(refusal.value)
    gates.parse("verdict==kept && fault==whatever && tier=='T2 0.6 s'", GATED, WORDS)


def test_t2_is_every_t2_whatever_its_seconds():
    bounded = {"tier": "T2 0.6 s"}
    for text, expected in {
        "tier==T2": True,
        "tier!=T2": False,
        "tier=='T2 0.6 s'": True,
        "tier=='T2 2 s'": False,
        "tier==T3": False,
    }.items():
        assert gates.parse(text, GATED).of(bounded) is expected


def asked(text, things, **more):
    return gates.asked(text, [(gates.parse(text, GATED), things)], **more)


def test_all_that_met_a_gate_and_all_it_could_not_tell_are_named():
    things = [("one", {"trials": 1}), ("two", {"trials": None}), ("three", {"trials": 3})]
    told = asked("trials<2", things)
    assert told == {"gate": "trials<2", "failed": ["one"], "untold": ["two: trials not measured"]}


@pytest.mark.parametrize(
    "text,why",
    [
        ("fault==lying-drive", "no cell is fault==lying-drive: it chooses nothing"),
        ("fault==lying-drive && lost>0", "no cell is fault==lying-drive: it chooses nothing"),
        ("lost>0 && fault!=none && fault!=cut-power", "no cell is fault!=none && fault!=cut-power: it chooses nothing"),
        ("tier==T3 && fault==cut-power", "no cell is tier==T3 && fault==cut-power: it chooses nothing"),
        ("by_name==true", "no cell is by_name==true: it chooses nothing"),
        ("lost>3", None),
        ("tier==T3 && lost>0", None),
        ("fault==cut-power && lost>3", None),
    ],
)
def test_a_gate_that_chooses_nothing_is_untold(text, why):
    one = {"tier": "T3", "fault": "none", "lost": 0, "by_name": False}
    things = [("one", one), ("two", {**one, "tier": "T1", "fault": "cut-power"})]
    told = asked(text, things, chosen_by=("fault", "tier", "by_name"), whole="cell")
    assert (told["failed"], told["untold"]) == ([], [why] if why else [])


def test_of_nothing_at_all_no_gate_holds():
    assert asked("lost>3", [], whole="cell")["untold"] == ["there is no cell to ask"]
