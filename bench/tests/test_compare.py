"""What two results held against each other say: what got worse, how sure that is, and what must not be compared."""

from __future__ import annotations

import csv
import io
import json

import pytest

from durabench import cli, report
from durabench.report import comparison
from durabench.report.compare import compare
from durabench.report.gates import GateError
from durabench.results import Folder
from durabench.statistics import boschloo, holm

HOST = "0a1b2c3d"
UNTRIED = ("not run", "not rated", "–")
DESTROYS = {"none": "nothing", "kill-client": "client", "kill-server": "server", "cut-power": "drive"}


@pytest.fixture
def recorded(tmp_path):
    """Writes a run: ``cells`` maps (setting, fault) to how many trials, and how many of them lost or broke."""

    def record(
        name,
        cells,
        *,
        host=HOST,
        p50_ns=100_000,
        floors_ns=(50_000, 50_000),
        run=None,
        cell="absent",
        doubts=(),
        **more,
    ):
        folder = Folder.create_at(tmp_path / name)
        lane = {name: value for name, value in more.items() if name == "lane"}
        entries = [{**_key(setting, fault, host), **lane} for setting, fault in cells]
        if cell != "absent":  # one more, of that verdict
            entries.append({**_key("cell", "kill-client", host), "verdict": cell if cell in UNTRIED else None})
        folder.begin({"machine": {"id": host}, "cells": entries, "seed": 1, **(run or {})})
        for floor_ns in floors_ns:
            floor = {"time": "t", "when": "before", "host": host, "size_bytes": 2048, "n": 9, "p50_ns": floor_ns}
            folder.append_floor(floor)
        number = 0
        for (setting, fault), (trials, losing) in cells.items():
            for at in range(trials):
                row = {**_key(setting, fault, host), "trial": number, "seed": number, "destroyed": DESTROYS[fault]}
                lost = at < losing
                row |= {"acked": 20, "payload_bytes": 20 * 2048, "lost": int(lost), "unavailable": False}
                row |= {"verdict": "broken" if lost else "kept", "why": "1 lost" if lost else "nothing lost"}
                row |= {"writers": 1, "settle_s": 0.0, "server_kill": "tree", **more}
                if fault == "none":
                    taken = [p50_ns + 100 * (each % 20) + at for each in range(40)]
                    row["samples_at"], row["samples_n"] = folder.append_samples(taken)
                folder.append([row])
                number += 1
        if cell not in ("absent", *UNTRIED):
            row = {**_key("cell", "kill-client", host), "trial": number, "seed": 1, "destroyed": "client"}
            lost = int(cell not in ("kept", "unknown"))
            row |= {"acked": 20, "lost": lost, "verdict": cell, "why": f"{lost} lost", "settle_s": 0.0, "writers": 1}
            folder.append([row | {"server_kill": "tree", "unavailable": False}])
        folder.finish(0, doubts=list(doubts))
        return Folder.open(folder.path)

    return record


def _key(setting, fault, host):
    place = {"lane": "here" if fault != "cut-power" else "loop", "host": host}
    return {"backend": "toy", "setting": setting, "tier": "T3", "namespace": "metadata", "workload": "agent"} | {
        "fault": fault,
        **place,
    }


def changes(made):
    return {(cell["setting"], cell["fault"]): cell["change"] for cell in made["cells"]}


def test_a_promise_that_is_newly_broken_comes_first_and_is_exit_1(recorded):
    a = recorded("a", {("one", "kill-client"): (5, 0), ("two", "kill-client"): (5, 0)})
    b = recorded("b", {("one", "kill-client"): (5, 0), ("two", "kill-client"): (5, 1)})
    made = compare([a], [b])
    assert made["exit_status"] == 1
    assert (made["cells"][0]["setting"], made["cells"][0]["change"]) == ("two", "worsened")
    assert made["cells"][0]["why"] == "1 lost"
    assert compare([b], [a])["exit_status"] == 0, "what is mended is no failure"
    assert changes(compare([b], [a]))["two", "kill-client"] == "improved"
    assert compare([b], [b])["exit_status"] == 0, "what was broken before is not newly broken"
    known = [report.Expectation(setting="toy:two", fault="kill-client", reason="known")]
    assert compare([a], [b], expected=known)["exit_status"] == 0


def test_loss_rates_are_tested_exactly_and_adjusted_for_how_many_tests_there_are(recorded):
    a = recorded("a", {("one", "kill-client"): (60, 20), ("two", "kill-client"): (30, 1)})
    b = recorded("b", {("one", "kill-client"): (60, 50), ("two", "kill-client"): (40, 3)})
    made = compare([a], [b])
    assert made["tests"] == 2
    found = {cell["setting"]: (cell["p"], cell["p_holm"]) for cell in made["cells"]}
    expected = [boschloo(20, 60, 50, 60), boschloo(1, 30, 3, 40)]
    adjusted = holm(expected)
    assert found["one"] == pytest.approx((expected[0], adjusted[0]), rel=1e-5)
    assert found["two"] == pytest.approx((expected[1], adjusted[1]), rel=1e-5)
    assert changes(made) == {("one", "kill-client"): "more lost", ("two", "kill-client"): "same"}
    assert changes(compare([b], [a]))["one", "kill-client"] == "less lost"


def test_recordings_are_not_tested_against_trials(recorded):
    a = recorded("a", {("one", "cut-power"): (6, 0)}, recording="r", gap=1)
    b = recorded("b", {("one", "cut-power"): (6, 0)})
    (cell,) = compare([a], [b])["cells"]
    assert (cell["p"], cell["tests_unit"]) == (None, None)
    assert cell["tests_why"] == "recordings are not tested against trials"


def states(path, losing, of=4, gaps=6):
    """A run of ``of`` recordings, of which the first ``losing`` lose in every gap: they share their fate."""
    folder = Folder.create_at(path)
    folder.begin({"machine": {"id": HOST}, "cells": [_key("one", "cut-power", HOST)], "seed": 1})
    for number in range(of * gaps):
        recording, gap = divmod(number, gaps)
        lost = int(recording < losing)
        row = {**_key("one", "cut-power", HOST), "trial": number, "seed": number, "destroyed": "drive"}
        row |= {"acked": 20, "lost": lost, "unavailable": False, "verdict": "no-promise", "writers": 1}
        folder.append([{**row, "recording": f"r{recording}", "gap": gap, "telling": True}])
    folder.finish(0)
    return Folder.open(folder.path)


def test_recorded_faults_are_tested_by_recording_and_not_by_gap(tmp_path):
    a, b = states(tmp_path / "a", 0), states(tmp_path / "b", 2)
    (cell,) = compare([a], [b])["cells"]
    assert (cell["tests_unit"], cell["change"]) == ("recordings", "same")
    assert cell["p"] == pytest.approx(30 / 70, rel=1e-5), "two of four recordings lost, none of four: that is chance"
    assert boschloo(12, 24, 0, 24) < 1e-4, "what gaps that share their fate would have claimed"
    (cell,) = compare([a], [states(tmp_path / "c", 4)])["cells"]
    assert (cell["p"], cell["change"]) == (pytest.approx(2 / 70, rel=1e-5), "more lost")


def test_too_few_recordings_are_not_tested_and_the_reason_is_told(tmp_path):
    a, b = states(tmp_path / "a", 0, of=3), states(tmp_path / "b", 3, of=3)
    made = compare([a], [b])
    (cell,) = made["cells"]
    assert (cell["p"], cell["tests_unit"], made["tests"]) == (None, None, 0)
    assert cell["tests_why"] == "3 and 3 recordings are too few: whatever they lost could be chance"
    assert "not tested in 1 cells: 3 and 3 recordings are too few" in comparison.summary(made)


# --- what is not alike


def test_unlike_machines_are_refused_cell_by_cell(recorded):
    a = recorded("a", {("one", "kill-client"): (5, 0), ("two", "kill-client"): (5, 0)})
    b = recorded("b", {("one", "kill-client"): (5, 5), ("two", "kill-client"): (5, 0)}, host="ffffffff")
    made = compare([a], [b])
    assert set(changes(made).values()) == {"refused"}
    assert f"another machine or disk: {HOST} against ffffffff" in made["cells"][0]["why"]
    assert made["tests"] == 0
    assert made["exit_status"] == 3
    together = compare([a], [a, b])
    assert sorted(cell["change"] for cell in together["cells"]) == ["new", "new", "same", "same"]
    assert together["exit_status"] == 1, "of the machine that A does not have one promise is broken"


@pytest.mark.parametrize(
    "more,why",
    [
        ({"lane": "guest"}, "another lane: here against guest"),
        ({"settle_s": 7.0}, "made with other options: settle_s"),
        ({"writers": 4}, "made with other options: writers"),
        ({"run": {"methodology": 99}}, "another methodology: 2 against 99"),
    ],
)
def test_trials_that_were_made_otherwise_are_refused(recorded, more, why):
    a = recorded("a", {("one", "kill-client"): (5, 0)})
    b = recorded("b", {("one", "kill-client"): (5, 5)}, **more)
    made = compare([a], [b])
    refused = [cell for cell in made["cells"] if cell["change"] == "refused"]
    assert why in refused[0]["why"]
    assert made["exit_status"] == 3


def test_what_is_on_one_side_only_is_named(recorded):
    a = recorded("a", {("one", "kill-client"): (5, 0), ("old", "kill-client"): (5, 0)})
    b = recorded("b", {("one", "kill-client"): (5, 0), ("young", "kill-client"): (5, 0)})
    made = compare([a], [b])
    assert changes(made) == {
        ("one", "kill-client"): "same",
        ("old", "kill-client"): "missing",
        ("young", "kill-client"): "new",
    }
    shown = comparison.render(made, "table")
    assert "toy:old, kill-client" in shown
    assert "toy:young, kill-client" in shown
    assert made["exit_status"] == 3, "what A judged, B does not speak of"
    assert "toy:old, kill-client, metadata" in shown
    assert "kept in A, and not in B at all" in shown
    assert compare([recorded("fewer", {("one", "kill-client"): (5, 0)})], [b])["exit_status"] == 0
    nothing = compare([a], [recorded("c", {("young", "kill-client"): (5, 0)})])
    assert nothing["exit_status"] == 3, "nothing at all could be compared"


def test_what_was_judged_and_is_no_longer_is_untold(recorded):
    a = recorded("a", {("one", "kill-client"): (5, 0)})
    b = recorded("b", {("one", "kill-client"): (0, 0)})
    made = compare([a], [b])
    assert changes(made) == {("one", "kill-client"): "untold"}
    assert "not run" in made["cells"][0]["why"]
    assert made["exit_status"] == 3


SOMETHING = {("other", "kill-client"): (5, 0)}
"""So that there is always something to compare."""


@pytest.mark.parametrize("before", ["unknown", "not run", "not rated", "–", "absent"])
@pytest.mark.parametrize("after,status", [("broken", 1), ("unknown", 3), ("kept", 0), ("not run", 0)])
def test_what_a_did_not_tell_and_b_broke_is_newly_broken(recorded, before, after, status):
    made = compare([recorded("a", SOMETHING, cell=before)], [recorded("b", SOMETHING, cell=after)])
    expected = 0 if (before, after) == ("unknown", "unknown") else status
    assert made["exit_status"] == expected, made["cells"]
    if status == 1:
        assert made["cells"][0]["setting"] == "cell", "it comes first"
        assert "1 lost" in comparison.render(made, "table")


@pytest.mark.parametrize("before", ["broken", "no-promise", "within", "kept"])
@pytest.mark.parametrize(
    "after,status", [("broken", 1), ("unknown", 3), ("kept", 0), ("not run", 3), ("not rated", 3), ("absent", 3)]
)
def test_what_a_told_and_b_does_not_is_never_held(recorded, before, after, status):
    made = compare([recorded("a", SOMETHING, cell=before)], [recorded("b", SOMETHING, cell=after)])
    assert made["exit_status"] == (0 if before == after == "broken" else status), made["cells"]


def test_a_known_finding_in_a_new_cell_is_not_newly_broken(recorded):
    known = [report.Expectation(setting="toy:cell", fault="kill-client", reason="known")]
    a, b = recorded("a", SOMETHING), recorded("b", SOMETHING, cell="broken")
    assert compare([a], [b], expected=known)["exit_status"] == 0


def test_a_gate_asks_new_cells_and_those_that_vanished(recorded):
    old, young = recorded("a", SOMETHING), recorded("b", SOMETHING, cell="kept")
    (told,) = compare([old], [young], ["loss_rate_high>0.02 && change==new"])["gates"]
    assert told["failed"] == ["toy:cell, kill-client, metadata"]
    (told,) = compare([young], [old], ["change==missing"])["gates"]
    assert told["failed"] == ["toy:cell, kill-client, metadata"]
    (told,) = compare([young], [old], ["setting==cell && lost>0"])["gates"]
    assert told["untold"] == ["toy:cell, kill-client, metadata: lost not measured"]


def test_doubts_that_are_new_in_b_are_told_and_nothing_holds(recorded):
    a, b = recorded("a", SOMETHING), recorded("b", SOMETHING, doubts=["a control failed: x"])
    made = compare([a], [b])
    assert made["exit_status"] == 3
    assert "doubt of B: a control failed: x" in comparison.render(made, "table")
    assert compare([b], [b])["exit_status"] == 0


# --- latency


def test_latency_is_told_with_its_interval_only_where_the_floor_moved_less(recorded):
    cells = {("one", "none"): (5, 0)}
    a = recorded("a", cells, p50_ns=100_000)
    b = recorded("b", cells, p50_ns=400_000)
    (cell,) = compare([a], [b])["cells"]
    assert cell["put_p50_change_ms"] == pytest.approx(0.3, rel=0.01)
    assert 0 < cell["put_p50_change_low_ms"] <= cell["put_p50_change_ms"] <= cell["put_p50_change_high_ms"]
    assert cell["latency"] == "slower"
    (cell,) = compare([b], [a])["cells"]
    assert (cell["latency"], cell["latency_why"]) == ("faster", None)
    (cell,) = compare([a], [a])["cells"]
    assert cell["latency"] == "no difference"
    moved = recorded("moved", cells, p50_ns=400_000, floors_ns=(50_000, 400_000))
    (cell,) = compare([a], [moved])["cells"]
    assert cell["latency"] is None
    assert "the floor itself moved by 0.35 ms" in cell["latency_why"]
    between = recorded("between", cells, p50_ns=400_000, floors_ns=(450_000, 450_000))
    (cell,) = compare([a], [between])["cells"]
    assert cell["latency"] is None, "the floors of the two runs are apart by more than the puts"


def test_one_trial_gives_no_interval_and_no_ranking(recorded):
    a = recorded("a", {("one", "none"): (1, 0)})
    b = recorded("b", {("one", "none"): (1, 0)}, p50_ns=900_000)
    (cell,) = compare([a], [b])["cells"]
    assert (cell["put_p50_change_low_ms"], cell["latency"]) == (None, None)
    assert "one trial" in cell["latency_why"]


# --- the command


def typed(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["durabench", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize(
    "gate,status",
    [
        ("loss_rate_high>0.9", 0),
        ("loss_rate_high>0.02", 1),
        ("tier==T1 && loss_rate_high>0.02", 3),
        ("fault==lying-drive", 3),
        ("fault==lying-drive && loss_rate_high>0.02", 3),
        ("tier==T3 && loss_rate_high>0.9", 0),
        ("verdict==broken", 0),
        ("backend==postgres && verdict==broken", 3),
        ("fault==cut_power", 2),
        ("tier==t3", 2),
        ("verdict==brokn", 2),
        ("setting==two", 2),
        ("tests_unit==recordings", 0),
        ("loss_rate_unit==trial && loss_rate_high>0.9", 0),
        ("loss_rate_unit==trials", 2),
        ("recording_rate_high>5", 2),
        ("change==worse", 2),
        ("loss_rate_high>nan", 2),
        ("loss_rate_high>5", 2),
        ("put_p50_ms>5", 3),
        ("fault==none && put_p50_ms>5", 0),
        ("put_p50_ms>5 && put_p50_ms!=null", 0),
        ("change==worsened", 0),
        ("loss_rate_hi>0.02", 2),
    ],
)
def test_gates_decide_the_exit_status(recorded, monkeypatch, capsys, gate, status):
    a = recorded("a", {("one", "kill-client"): (5, 0), ("one", "none"): (2, 0)})
    b = recorded("b", {("one", "kill-client"): (5, 0), ("one", "none"): (2, 0)})
    assert typed(monkeypatch, "compare", a.path, b.path, "--fail-if", gate) == status
    captured = capsys.readouterr()
    if status == 2:
        assert "--fail-if: " in captured.err
        assert captured.err.count("\n") == 1
    else:
        assert f"gate {gate}: {['held', 'failed', '', 'untold'][status]}" in captured.out


def test_a_failed_gate_comes_before_one_that_cannot_be_told(recorded, monkeypatch, capsys):
    a = recorded("a", {("one", "kill-client"): (5, 0)})
    gates = ["--fail-if", "put_p50_ms>5", "--fail-if", "loss_rate_high>0.02"]
    assert typed(monkeypatch, "compare", a.path, a.path, *gates) == 1
    said = capsys.readouterr().out
    assert "cannot tell: toy:one, kill-client, metadata: put_p50_ms not measured" in said
    assert "met by toy:one, kill-client, metadata" in said


def test_every_format_shows_the_same_comparison(recorded, monkeypatch, capsys, tmp_path):
    a = recorded("a", {("one", "kill-client"): (5, 0), ("one", "none"): (3, 0)})
    b = recorded("b", {("one", "kill-client"): (5, 2), ("one", "none"): (3, 0)}, p50_ns=900_000)
    words = ["--format", "json", "--format", f"csv={tmp_path / 'c.csv'}", "--format", f"markdown={tmp_path / 'c.md'}"]
    assert typed(monkeypatch, "compare", a.path, b.path, *words) == 1
    made = json.loads(capsys.readouterr().out)
    assert made["exit_status"] == 1
    assert made["cells"][0]["b"]["trials_with_loss"] == 2
    lines = list(csv.DictReader(io.StringIO((tmp_path / "c.csv").read_text())))
    assert [(line["change"], line["a_verdict"], line["b_verdict"]) for line in lines] == [
        ("worsened", "kept", "broken"),
        ("same", "kept", "kept"),
    ]
    markdown = (tmp_path / "c.md").read_text()
    assert "| worsened | toy:one, kill-client, metadata |" in markdown
    assert "slower" in markdown


def test_folders_of_runs_are_compared_as_one(recorded, monkeypatch, capsys, tmp_path):
    for side in ("before", "after"):
        for seed, name in enumerate(("x", "y")):
            recorded(f"{side}/{name}", {("one", "kill-client"): (3, 0)}, run={"seed": seed})
    assert typed(monkeypatch, "compare", tmp_path / "before", tmp_path / "after", "--format", "json") == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert (cell["a"]["trials"], cell["b"]["trials"]) == (6, 6)


def test_what_is_no_result_is_usage(monkeypatch, capsys, tmp_path):
    assert typed(monkeypatch, "compare", tmp_path / "none", tmp_path) == 2


# --- plans


@pytest.fixture
def planned(recorded):
    def plan(name, *crossings, host=HOST, **more):
        folder = recorded(name, {}, host=host)
        document = {"machine": {"id": host}, "ranked": True, "crossings": list(crossings), **more}
        (folder.path / "plan.json").write_text(json.dumps(document))
        return folder

    return plan


def crossing(at, a="toy:one", b="toy:two", **more):
    usual = {"a": a, "b": b, "payload": "incompressible", "at_bytes": at, "low": at * 0.8, "high": at * 1.2}
    return {**usual, "reliable": True, "below": a, "above": b, "affine_bytes": None, "why": None, **more}


def test_plans_are_compared_crossing_by_crossing(planned):
    a = planned("a", crossing(10_000), crossing(50_000, b="toy:three"), crossing(9, b="toy:four"))
    b = planned(
        "b",
        crossing(90_000),
        crossing(52_000, b="toy:three"),
        crossing(9, b="toy:four", reliable=False, why="too noisy"),
        crossing(7, b="toy:five"),
    )
    made = compare([a], [b], ["moved_ratio>2"])
    found = {one["pair"]: one["change"] for one in made["crossings"]}
    assert found == {
        "toy:one / toy:two": "moved",
        "toy:one / toy:three": "same",
        "toy:four / toy:one": "untold",
        "toy:five / toy:one": "new",
    }
    assert made["gates"][0]["failed"] == ["toy:one / toy:two (incompressible)"]
    assert made["exit_status"] == 1
    assert "moved" in comparison.render(made, "table")
    turned = planned("turned", crossing(10_000, below="toy:two", above="toy:one"))
    assert {one["change"] for one in compare([a], [turned])["crossings"]} == {"turned", "gone"}


def test_gates_are_about_cells_and_crossings_whichever_they_can_be_about(planned):
    a, b = planned("a", crossing(10_000)), planned("b", crossing(90_000))
    for gate, failed in {
        "change==moved": ["toy:one / toy:two (incompressible)"],
        "change==moved && pair=='toy:one / toy:two'": ["toy:one / toy:two (incompressible)"],
        "change==same": [],
        "payload==compressible && moved_ratio>2": [],
    }.items():
        made = compare([a], [b], [gate])
        assert made["gates"][0]["failed"] == failed
        nothing = [] if "payload" not in gate else ["no crossing is payload==compressible: it chooses nothing"]
        assert made["gates"][0]["untold"] == nothing
        assert made["exit_status"] == (1 if failed else 3 if nothing else 0)
    with pytest.raises(GateError, match="did you mean"):
        compare([a], [b], ["pair=='toy:one / toy:tow'"])


def test_a_crossing_that_a_could_tell_and_b_does_not_have_is_not_held(planned):
    a, b = planned("a", crossing(10_000), crossing(9, b="toy:four")), planned("b", crossing(10_000))
    assert compare([a], [b])["exit_status"] == 3
    assert compare([b], [a])["exit_status"] == 0
    unreliable = planned("u", crossing(10_000), crossing(9, b="toy:four", reliable=False))
    assert compare([unreliable], [b])["exit_status"] == 0


def test_plans_of_two_machines_are_refused(planned):
    a, b = planned("a", crossing(10_000)), planned("b", crossing(90_000), host="ffffffff")
    made = compare([a], [b])
    assert [one["change"] for one in made["crossings"]] == ["refused"]
    assert made["exit_status"] == 3
