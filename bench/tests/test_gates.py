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


def test_all_that_met_a_gate_and_all_it_could_not_tell_are_named():
    things = [("one", {"trials": 1}), ("two", {"trials": None}), ("three", {"trials": 3})]
    (told,) = gates.asked([gates.parse("trials<2", GATED)], things)
    assert told == {"gate": "trials<2", "failed": ["one"], "untold": ["two: trials not measured"]}
