"""What goes wrong in a trial or a visit is bounded, told and counted: nothing is dropped in silence.

Writers whose server died, stores that refuse, stores that hang under a budget, and mistakes of the harness itself.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabench import campaign, judgement, recorded, schedule, trial
from durabench.ground import Ground
from durabench.plan import loss, planning, split, sweep
from durabench.results import Folder
from durabench.service import Target
from durabench.trial import REFUSED_MAX, REFUSED_READ, Outcome, TrialPlan, keys_to_read

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def outcomes(tmp_path):
    """Runs trials of one setting in one visit; what they left."""

    def run(label, fault, number=1, workload="append", metadata=None, data=None, **words):
        target = Target(*label.rsplit(":", 1))
        peace = {"puts": 200, "write_s": 0.5} if fault == "none" else {}
        pair = metadata or target, data or target
        plans = [TrialPlan(each, each, *pair, workload, fault, **peace) for each in range(number)]
        ground, told = Ground(tmp_path / "disk"), []
        try:
            campaign.run_visit(schedule.Visit(plans), ground, told.append, threading.Event(), **words)
        finally:
            ground.close()
        return told

    return run


def rows_of(outcome):
    return judgement.rows(outcome, campaign.held(outcome.plan, {}), "host", "folder")


def kinds(outcome, name, *, after_strike=False):
    at = next((n for n, event in enumerate(outcome.events) if event["e"] == "strike"), len(outcome.events))
    return [event for event in outcome.events[at if after_strike else 0 :] if event["e"] == name]


# --- refusals


def test_a_writer_that_outlives_its_server_stops_at_its_first_failure(outcomes):
    for one in outcomes("toys:Closed:rename", "kill-server", 4):
        assert len(kinds(one, "fail") + kinds(one, "info")) <= 1
        assert len(kinds(one, "armed")) - len(kinds(one, "ok")) <= 1, "nothing was begun after it"
        assert {row["verdict"] for row in rows_of(one)} == {"kept"}


@pytest.mark.parametrize("fault", ["none", "kill-client"])
def test_a_store_that_takes_no_more_is_judged_by_what_it_took(fault, outcomes):
    (one,) = outcomes("toys:Quota:fsync-dir", fault)
    assert len(kinds(one, "ok")) <= 10
    (row,) = rows_of(one)
    assert (row["verdict"], row["acked"]) == ("kept", len(kinds(one, "ok")))
    if fault == "none":
        (sampled,) = kinds(one, "sampled")
        assert (sampled["read"], sampled["of"]) == (REFUSED_READ, len(kinds(one, "fail")))
        assert len(kinds(one, "reading")) == 10 + REFUSED_READ


def test_a_store_that_takes_nothing_is_not_written_at_for_minutes(outcomes):
    (one,) = outcomes("toys:Sated:rename", "kill-client")
    assert len(kinds(one, "fail")) == REFUSED_MAX
    (row,) = rows_of(one)
    assert (row["verdict"], row["acked"]) == ("unknown", 0)
    assert "41 puts were refused one after the other: Refused: over quota" in row["why"]


ANSWERS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["ok", "fail", "info", None])), max_size=80)


@given(ANSWERS, st.integers(0, 60), st.integers(0, 9))
def test_all_keys_are_read_but_those_that_were_only_refused_of_which_a_sample_is(answers, refused, seed):
    events = []
    for index, (key, answer) in enumerate([*answers, *((f"no-{n}", "fail") for n in range(refused))]):
        events.append({"e": "armed", "w": 0, "i": index, "ns": "metadata", "key": key})
        events += [{"e": answer, "w": 0, "i": index}] if answer else []
    keys, told = keys_to_read(events, seed)
    read = set(keys.get("metadata", ()))
    tried = {key for key, answer in answers if answer != "fail"}
    certain = {event["key"] for event in events if event["e"] == "armed"} - tried
    assert read >= tried
    assert len(read - tried) == min(len(certain), REFUSED_READ)
    assert [(event["read"], event["of"]) for event in told] == (
        [(REFUSED_READ, len(certain))] if len(certain) > REFUSED_READ else []
    )
    assert keys_to_read(events, seed)[0] == keys


# --- a visit's share


def test_a_visit_that_hangs_is_cut_and_says_so_in_its_history(outcomes, no_leftovers):
    one, trouble = outcomes("toys:Stuck:rename", "kill-client", 5, share_s=10.0)
    assert one.events[-1]["e"] == "doubt"
    assert one.events[-1]["why"].startswith(trial.CUT)
    assert [row["verdict"] for row in rows_of(one)] == ["unknown"]
    assert trouble.strikes == 1
    assert trouble.why.startswith(f"{trial.CUT} of 10 s, with 1 of its 5 trials: ")


def test_a_server_that_ends_instead_of_coming_up_is_a_finding_within_any_share(outcomes):
    one, *_ = outcomes("toys:Stubborn:rename", "kill-server", share_s=20.0)
    (row,) = rows_of(one)
    assert (row["verdict"], row["unavailable"]) == ("broken", True)
    assert "the log is damaged, I will not start" in row["why"]


def test_a_store_that_was_silent_for_its_whole_deadline_is_down_though_the_share_is_spent(outcomes, monkeypatch):
    monkeypatch.setattr(trial, "READY_S", 2.0)
    one, *_ = outcomes("toys:Mute:rename", "kill-client", share_s=8.0)
    assert [row["verdict"] for row in rows_of(one)] == ["broken"]


@pytest.mark.parametrize("silent", ["metadata", "data"])
def test_of_two_stores_the_silent_one_is_down_and_the_other_one_is_read(silent, outcomes, monkeypatch):
    monkeypatch.setattr(trial, "READY_S", 1.0)
    monkeypatch.setattr(trial, "READ_S", 1.0)
    other = {"data" if silent == "metadata" else "metadata": Target("files", "fsync-dir")}
    (one,) = outcomes("toys:Mute:rename", "kill-client", workload="agent", **other)
    said = {row["namespace"]: (row["verdict"], row["unavailable"]) for row in rows_of(one)}
    assert said.pop(silent) == ("broken", True)
    assert list(said.values()) == [("kept", False)]


def test_what_a_reader_told_before_it_was_cut_is_evidence(outcomes, monkeypatch):
    """The first key is gone, the second one hangs."""
    one, *_ = outcomes("toys:Leaky:fsync-dir", "kill-client", share_s=8.0)
    (row,) = rows_of(one)
    assert (row["verdict"], row["lost"]) == ("broken", 1)


def test_a_server_that_was_not_stopped_in_order_for_time_is_not_read_as_if_it_had_been(outcomes, no_leftovers):
    one, trouble = outcomes("toys:Lingering:rename", "none", share_s=10.0)
    assert not kinds(one, "reading")
    (row,) = rows_of(one)
    assert (row["verdict"], trouble.strikes) == ("unknown", 1)
    assert row["why"].startswith(f"{trial.CUT}: ")


def test_a_visit_whose_trials_are_many_is_cut_between_them_and_counts_against_nobody(outcomes, monkeypatch):
    original = campaign.run_trial
    monkeypatch.setattr(campaign, "run_trial", lambda *words: replace(original(*words), duration_s=200.0))
    one, trouble = outcomes("files:rename", "kill-client", 5, share_s=100.0)
    assert [row["verdict"] for row in rows_of(one)] == ["kept"]
    assert (trouble.strikes, trouble.error) == (0, None)
    assert trouble.why == f"{trial.CUT} of 100 s, with 1 of its 5 trials: one more would take longer"


def test_a_hanging_setting_gets_two_visits_and_the_others_the_rest_of_the_budget(typed, toy_profile, tmp_path):
    words = ["--profile", toy_profile(), "--budget", "30s", "--fault", "kill-client", "--dir", tmp_path / "disk"]
    words += ["--backend", "toys:Stuck:rename", "--backend", "files:rename", "--out", tmp_path / "run"]
    status, out, said = typed("run", *words, "--seed", 4, "--format", "json")
    assert status == 3
    assert f"toys:Stuck:rename: {trial.CUT}" in said
    cells = {cell["backend"]: cell for cell in json.loads(out)["cells"]}
    assert cells["toys:Stuck"]["trials"] <= campaign.BRING_UPS
    assert cells["toys:Stuck"]["verdict"] in ("unknown", "not run")
    assert trial.CUT in cells["toys:Stuck"]["why"]
    assert cells["files"]["verdict"] == "kept"
    assert cells["files"]["trials"] > campaign.BRING_UPS


@pytest.mark.parametrize(
    "budget_s, seconds, share_s", [(150.0, [1.0, 2.0], 15.0), (20.0, [0.1], 2.2), (20.0, [6.0, 1.0], 14.0)]
)
def test_a_share_is_a_tenth_or_what_coming_up_takes(budget_s, seconds, share_s):
    some = [campaign.Prepared(Target("files", "rename"), seconds=each) for each in seconds]
    assert campaign.share_s(budget_s, some) == pytest.approx(share_s)


# --- mistakes of the harness itself


@pytest.fixture
def ran(typed, toy_profile, tmp_path):
    """A run of six trials in this process: (exit status, stderr, rows without controls, the folder)."""

    def run(*more):
        words = ["--profile", toy_profile(), "--trials", 6, "--fault", "kill-client", "--seed", 2]
        words += ["--backend", "files:fsync-dir", "--out", tmp_path / "run", "--dir", tmp_path / "disk"]
        status, _, said = typed("run", *words, *more)
        folder = Folder.open(tmp_path / "run")
        return status, said, [row for row in folder.trials() if not row["control"]], folder

    return run


def once(original, error, when):
    """The function, which raises where ``when`` is true of its arguments."""

    def failing(*words, **more):
        if when(*words):
            raise error
        return original(*words, **more)

    return failing


FIFTH = 5
"""A trial of the plan behind the three controls."""


@pytest.mark.parametrize(
    "place, name, when",
    [
        (trial._Cycle, "run", lambda cycle: cycle.plan.trial == FIFTH),
        (trial._Cycle, "end", lambda cycle: cycle.plan.trial == FIFTH),
        (judgement, "rows", lambda outcome, *_: outcome.plan.trial == FIFTH),
    ],
    ids=["trial", "its end", "judging"],
)
@pytest.mark.parametrize("error", [KeyError("w"), MemoryError(), RecursionError("too deep")])
def test_a_mistake_in_a_trial_is_a_doubt_in_its_history_and_the_campaign_goes_on(
    place, name, when, error, ran, monkeypatch
):
    monkeypatch.setattr(place, name, once(getattr(place, name), error, when))
    status, said, rows, folder = ran()
    assert status == 3
    assert len(rows) == 6, "every trial that was planned has its row"
    (bad,) = [row for row in rows if row["verdict"] == "unknown"]
    assert bad["trial"] == FIFTH
    assert f"{trial.HARNESS}: {type(error).__name__}" in bad["why"]
    assert "(test_mishaps.py:" in bad["why"], "the line that raised it"
    assert bad["why"] in said
    doubts = [event["why"] for event in folder.history(FIFTH, 1) if event["e"] == "doubt"]
    assert any(type(error).__name__ in why for why in doubts)
    assert {row["verdict"] for row in rows if row is not bad} == {"kept"}


def test_a_mistake_in_a_bring_up_costs_the_trial_that_was_to_come(ran, monkeypatch):
    seen = []

    def when(_cls, _machine, _targets):
        seen.append(1)
        return len(seen) == 4  # behind those of the controls

    original = trial.Site.set_up.__func__
    monkeypatch.setattr(trial.Site, "set_up", classmethod(once(original, TypeError("no such thing"), when)))
    status, said, rows, _ = ran()
    assert status == 3
    assert sorted(row["verdict"] for row in rows) == ["kept"] * 5 + ["unknown"]
    assert f"{trial.HARNESS}: TypeError: no such thing" in said


def test_a_visit_whose_future_raises_is_told(ran, monkeypatch):
    original = campaign.run_visit

    def when(visit, *_):
        return visit.plans[0].control is None

    monkeypatch.setattr(campaign, "run_visit", once(original, AssertionError("what can never be"), when))
    status, said, rows, _ = ran()
    assert (status, rows) == (3, [])
    assert f"{trial.HARNESS}: AssertionError: what can never be" in said


def test_a_mistake_before_an_interruption_is_remembered_by_the_resume(ran, typed, monkeypatch, tmp_path):
    monkeypatch.setattr(trial._Cycle, "run", once(trial._Cycle.run, KeyError("w"), lambda c: c.plan.trial == FIFTH))
    after = once(campaign.Campaign._floor, KeyboardInterrupt(), lambda _, when, *more: when == "after")
    monkeypatch.setattr(campaign.Campaign, "_floor", after)
    assert ran()[0] == 130
    monkeypatch.undo()
    status, _, said = typed("run", "--resume", tmp_path / "run")
    assert status == 3, said
    assert f"{trial.HARNESS}: KeyError" in said


def test_a_mistake_in_preparing_is_not_run_and_says_its_class(ran, monkeypatch):
    look = campaign.Service.look
    monkeypatch.setattr(
        campaign.Service, "look", once(look, KeyError("fact"), lambda s: s.root.name == "store" and s.promise is None)
    )
    status, said, rows, _ = ran()
    assert (status, rows) == (3, [])
    assert f"files:fsync-dir does not come up: {trial.HARNESS}: KeyError: 'fact'" in said


class NoLaboratory:
    """Enough of a laboratory for a recording that fails."""

    def alone(self, targets):
        from contextlib import nullcontext

        return nullcontext()


@pytest.mark.parametrize("error", [KeyError("mark"), MemoryError()])
def test_a_mistake_in_a_recording_leaves_its_states_unknown_and_says_why(error, monkeypatch):
    target = Target("files", "rename")
    plans = [
        TrialPlan(number, number, target, target, "append", "cut-power", lane="loop", puts=4, recording="0-0")
        for number in range(3)
    ]
    monkeypatch.setattr(recorded, "record", once(recorded.record, error, lambda *_: True))
    told, seconds = [], []
    campaign.run_recording(plans, NoLaboratory(), None, {}, told.append, threading.Event(), seconds)
    *some, trouble = told
    assert [one.plan.trial for one in some] == [0, 1, 2]
    for one in some:
        assert isinstance(one, Outcome)
        assert type(error).__name__ in one.error
        assert [row["verdict"] for row in rows_of(one)] == ["unknown"]
    assert trouble.error == some[0].error
    assert len(seconds) == 1


# --- mistakes in a plan


def test_mistakes_in_a_plan_are_told_and_it_goes_on_and_means_no_success(typed, tmp_path, monkeypatch):
    def of(label):
        return lambda _, visit, *more: getattr(visit, "candidate", visit).label == label

    counting = once(sweep.Sweep._count, KeyError("at rest"), of("files:fsync-dir"))
    monkeypatch.setattr(sweep.Sweep, "_count", counting)
    measured = once(split._measured, ZeroDivisionError("per step"), lambda replay, *_: replay.layout == split.SPLIT)
    monkeypatch.setattr(split, "_measured", measured)
    late = once(sweep.Sweep._measure, IndexError("round"), lambda _, place, name, number, visit: number == 4)
    monkeypatch.setattr(sweep.Sweep, "_measure", late)
    cycle = once(trial._Cycle.run, MemoryError(), lambda cycle: cycle.plan.workload == "whole")
    monkeypatch.setattr(trial._Cycle, "run", cycle)
    judging = once(judgement.rows, KeyError("lost"), lambda outcome, *_: outcome.plan.workload == "agent")
    monkeypatch.setattr(judgement, "rows", judging)
    shipped = planning.settings.load()
    ample = shipped.quick.model_copy(update={"total_s": 600.0, "steps_s": 200.0, "faults_s": 200.0})
    monkeypatch.setattr(planning.settings, "load", lambda: shipped.model_copy(update={"quick": ample}))
    words = ["--quick", "--backend", "files:fsync-dir", "--sizes", "1KiB..4KiB", "--dir", tmp_path / "disk"]
    status, out, said = typed("plan", *words, "--out", tmp_path / "out", "--format", "json")
    assert status == 3
    document = json.loads(out)
    for words in ("KeyError: 'at rest'", "ZeroDivisionError: per step", "IndexError: round", "MemoryError", "KeyError"):
        assert f"{trial.HARNESS}: {words}" in said
    folder = Folder.open(tmp_path / "out")
    assert {(row["workload"], row["verdict"]) for row in folder.trials()} == {
        ("whole", "unknown"),
        ("agent", "unknown"),
    }
    assert {row["why"].startswith(trial.HARNESS) for row in folder.trials()} == {True}
    assert {(one["trials"], one["verdict"]) for one in document["losses"]} == {(0, "unknown")}
    assert any("could not be judged" in line for line in document["left_out"])
    assert any(line.startswith("bytes at rest of files:fsync-dir ") for line in document["left_out"])
    assert any(one["split"]["refused"] for one in document["split"])
    assert sum(trial.HARNESS in doubt for doubt in folder.done["doubts"]) >= 5


def test_a_visit_of_a_plan_whose_future_raises_is_told(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    said = []

    class Ledgered:
        ground, host, total_s, errors = None, "host", 60.0, []

        def left_s(self):
            return 60.0

        def progress(self, what):
            pass

        def mistaken(self, what, error):
            said.append(f"{what}: {trial.in_one_line(error)}")

    monkeypatch.setattr(campaign, "run_visit", once(campaign.run_visit, KeyError("x"), lambda *_: True))
    target = Target("files", "rename")
    some = loss.plans([("agent", schedule.Cell(target, target, "kill-client"))], 2, 1)
    with ThreadPoolExecutor(1) as executor:
        loss.Losses(Ledgered(), {target: campaign.Prepared(target)}, executor).run(some)
    assert len(said) == 1
    assert said[0].startswith(f"fault trials: {trial.HARNESS}: KeyError: 'x'")
