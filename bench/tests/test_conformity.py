"""`durabench conform`: what it prints of each check, and the exit status that adds up."""

import io

import pytest
from rich.console import Console

from durabench import conformity
from durabench_backends import conformance

ONE = conformance.CHECKS[0]


@pytest.mark.parametrize(
    "outcomes, status, mark",
    [
        (("passed", "not offered"), 0, "–"),
        (("passed", "unknown"), 3, "?"),
        (("failed", "unknown", "passed"), 1, "✕"),
    ],
)
def test_a_check_that_could_not_look_is_never_a_success(tmp_path, monkeypatch, outcomes, status, mark):
    results = [conformance.Result(ONE, outcome, "the reason") for outcome in outcomes]
    monkeypatch.setattr(conformance, "run", lambda _: results)
    told = io.StringIO()
    assert conformity.show("memory", tmp_path, Console(file=told, width=200)) == status
    assert f"{mark} {ONE.id}: {ONE.description}: the reason" in told.getvalue()


def test_an_honest_backend_passes(tmp_path):
    told = io.StringIO()
    assert conformity.show("files:rename", tmp_path, Console(file=told, width=200)) == 0
    assert "✓ keys-exact" in told.getvalue()
    assert "✕" not in told.getvalue()
