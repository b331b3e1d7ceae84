"""A report that has everything, in every format, as it looked when somebody looked; and what must never get through."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from durabench import verify
from durabench.verify.table import show
from durabench_backends.contract import RATED_DOMAINS, Check, Domain, Goal, Promise

GOLDEN = Path(__file__).parent / "golden"
SECRET = "opensesame"
SAFE = Promise(dict.fromkeys(RATED_DOMAINS, 0.0), Domain.DRIVE, Domain.DRIVE, "the vendor's manual, §1")
LATE = Promise({Domain.CLIENT: 0.0, Domain.SERVER: 0.6}, Domain.DRIVE, None, "the vendor's manual, §2")
HOSTILE = "]]><x> | `a` **b**\x1b[31m\x00\r\n::error::no %0A, password=opensesame"
EVERYTHING = verify.Report(
    target="store://***@host/box",
    goal=Goal(Domain.DRIVE, 0.0),
    judged_by=Goal(Domain.DRIVE, 0.0),
    promise=LATE,
    ignored={"store.replicas": "one machine is enough for us"},
    checks=(
        Check("store.flush", "ok", "on", "/etc/store.conf:12", evidence="read back from the running server"),
        Check(
            "store.commit",
            "fail",
            "off",
            "role ci",
            "the last 0.6 s of what was acknowledged, when the server dies; a suffix",
            "ALTER ROLE ci SET commit = on;\nSELECT reload();",
        ),
        Check("store.rights", "unknown", loses="whatever the setting allows", fix="GRANT read_settings TO ci;"),
        Check("store.replicas", "fail", "0", "default", "everything, when the machine burns", "add one"),
        Check("store.version", "warn", "3.1", loses="a commit in a race", fix="upgrade to 3.2", evidence="linked"),
        Check("store.mount", "skip", fix="run durabench on the server's host", evidence="the server is elsewhere"),
        Check("store.proved", "skip", evidence="needs --probe"),
        Check("store.hostile", "warn", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
    ),
)


@pytest.mark.parametrize(
    "form,name", [("table", "txt"), ("json", "json"), ("junit", "xml"), ("github", "github"), ("markdown", "md")]
)
def test_formats_look_as_they_did_when_somebody_looked(form, name, tmp_path):
    """To accept a change: look at the file that the failure names, then copy it over the golden one."""
    shown = tmp_path / f"verify.{name}"
    shown.write_text(verify.render(EVERYTHING, form))
    golden = GOLDEN / shown.name
    assert golden.exists(), f"look at {shown}"
    assert golden.read_text() == shown.read_text(), f"look at {shown}"


@pytest.mark.parametrize("form", verify.FORMS)
def test_what_a_server_says_steers_nothing(form):
    shown = verify.render(EVERYTHING, form)
    assert SECRET not in shown
    assert "\x1b" not in shown
    assert "\x00" not in shown
    assert "\r" not in shown
    assert not any(line.startswith("::error::") for line in shown.splitlines())
    if form == "github":
        assert all(
            line.startswith(("::error title=store.", "::warning title=store.", "::notice title="))
            for line in shown.splitlines()[:-1]
        )
    if form == "junit":
        ET.fromstring(shown)
    if form == "markdown":
        assert "<x>" not in shown.partition("Mend")[0]


def test_a_terminal_gets_colours_and_no_escape_of_a_server():
    sink = io.StringIO()
    show(verify.clean(EVERYTHING), Console(file=sink, force_terminal=True, width=100))
    assert "\x1b[" in sink.getvalue()
    assert "\x1b[31m\x00" not in sink.getvalue()
    assert "\\x1b[31m" in sink.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_to_paste_are_in_one_piece_at_any_width(width):
    sink = io.StringIO()
    show(EVERYTHING, Console(file=sink, width=width))
    assert "      ALTER ROLE ci SET commit = on;\n      SELECT reload();\n" in sink.getvalue()


STATUSES = st.sampled_from(["ok", "warn", "fail", "skip", "unknown"])
BOUNDS = st.dictionaries(st.sampled_from(RATED_DOMAINS), st.sampled_from([0.0, 0.6, 2.0, 60.0]))


@given(st.lists(STATUSES, max_size=5), BOUNDS, st.sampled_from(RATED_DOMAINS), st.sampled_from([0.0, 2.0]), st.data())
def test_held_is_never_said_where_something_stands_against_it(statuses, bounds, survive, max_loss_s, data):
    checks = tuple(Check(f"store.c{number}", status) for number, status in enumerate(statuses))
    chosen = data.draw(st.sets(st.sampled_from([check.id for check in checks]))) if checks else set()
    goal, promise = Goal(survive, max_loss_s), Promise(bounds, None, None, "")
    report = verify.Report("x://", goal, goal, checks, promise, dict.fromkeys(chosen, "known"))
    counted = {check.status for check in checks if check.id not in chosen}
    missed = [d for d in RATED_DOMAINS if d <= survive and bounds.get(d, float("inf")) > max_loss_s]
    if report.verdict == "held":
        assert not counted & {"fail", "unknown"}
        assert not missed or chosen & {check.id for check in checks if check.status in ("fail", "unknown")}
    if "fail" in counted:
        assert report.verdict == "broken"
    elif "unknown" in counted:
        assert report.verdict == "unknown"
    if not counted & {"fail", "unknown"} and not missed:
        assert report.verdict == "held"
    for form in verify.FORMS:
        assert verify.render(report, form)
    assert json.loads(verify.render(report, "json"))["verdict"] == report.verdict
