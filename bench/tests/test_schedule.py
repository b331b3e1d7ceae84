"""Which cells a campaign has, which trials it plans for them and in which order, before anything is started."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from durabench import fault, profile, schedule, workload
from durabench.schedule import Asked, UsageError
from durabench.trial import VICTIMS, WINDOWS_SPANNED, TrialPlan
from durabench_backends import registry
from durabench_backends.contract import Domain

QUICK = profile.load("quick")
KILLS = ("none", "kill-client", "kill-server")


def planned(asked, chosen=QUICK):
    return schedule.plans(schedule.cells(asked, chosen), asked, chosen)


def trials(asked, chosen=QUICK):
    return [plan for plan in planned(asked, chosen) if plan.control is None]


def cell(asked, chosen=QUICK):
    (found,) = schedule.cells(asked, chosen)
    return found


# --- seeds


def test_the_same_seed_gives_the_same_plan():
    asked = Asked(backends=("files", "postgres"), faults=KILLS, trials=3, seed=7)
    assert planned(asked) == planned(asked)
    assert [plan.as_json() for plan in planned(asked)] != [plan.as_json() for plan in planned(replace(asked, seed=8))]


def test_every_trial_has_a_seed_and_a_number_of_its_own():
    plans = planned(Asked(backends=("files",), faults=KILLS, trials=50))
    assert len({plan.seed for plan in plans}) == len(plans)
    assert [plan.trial for plan in plans] == list(range(len(plans)))


def test_a_plan_survives_being_written_down():
    for plan in planned(
        Asked(metadata=("postgres:off",), data=("files:fsync-dir",), faults=("kill-server",), trials=2)
    ):
        assert TrialPlan.from_json(plan.as_json()) == plan


def test_victims_are_all_puts_from_the_second_to_the_fortieth():
    victims = Counter(
        plan.victim for plan in trials(Asked(backends=("files:rename",), faults=("kill-client",), trials=2000))
    )
    assert set(victims) == set(VICTIMS) == set(range(2, 41))


# --- rounds and visits


def test_a_number_of_trials_is_given_to_every_cell():
    counts = Counter(
        (p.metadata, p.fault)
        for p in trials(Asked(backends=("files", "valkey"), faults=("none", "kill-client"), trials=7))
    )
    assert set(counts.values()) == {7}
    assert len(counts) == 2 * (4 + 5)


def test_full_asks_for_a_bound_of_one_percent():
    counts = Counter(p.fault for p in trials(Asked(backends=("files:rename",)), profile.load("full")))
    assert counts["kill-client"] == counts["none"] == 368


@pytest.mark.parametrize("by_budget", [True, False])
def test_rounds_are_of_one_trial_a_cell_by_budget_and_of_a_directory_by_number(by_budget):
    asked = Asked(
        backends=("files",), faults=("none", "kill-client"), **({"budget_s": 60.0} if by_budget else {"trials": 50})
    )
    plans = planned(asked)
    for members in schedule.rounds(plans, by_budget=by_budget)[:-1]:
        counts = Counter((plan.metadata, plan.fault) for plan in members)
        assert len(counts) == 8
        assert set(counts.values()) == {1 if by_budget else schedule.VISIT_TRIALS}


def test_by_budget_full_kills_each_cell_several_times_in_a_round_and_measures_it_once():
    full = profile.load("full")
    plans = planned(Asked(backends=("files",), faults=("none", "kill-client"), budget_s=60.0), full)
    for members in schedule.rounds(plans, by_budget=True, round_kills=full.round_kills)[:-1]:
        counts = Counter((plan.metadata, plan.fault) for plan in members)
        assert {each: {n for (_, fault), n in counts.items() if fault == each} for each in KILLS[:2]} == {
            "none": {1},
            "kill-client": {full.round_kills},
        }


def test_rounds_lose_and_repeat_nothing():
    plans = planned(Asked(backends=("files",), faults=("none", "kill-client"), trials=50))
    together = [plan for members in schedule.rounds(plans, by_budget=False) for plan in members]
    assert together == [plan for plan in plans if plan.control is None]


def test_a_visit_is_of_one_pair_and_at_most_a_directory_and_its_order_is_the_seeds():
    plans = trials(Asked(backends=("files",), faults=("kill-client",), trials=50))
    visits = schedule.visits(plans, Random(1))
    assert sorted(p.trial for v in visits for p in v.plans) == sorted(p.trial for p in plans)
    assert all(
        len({(p.metadata, p.data) for p in v.plans}) == 1 and len(v.plans) <= schedule.VISIT_TRIALS for v in visits
    )
    assert visits == schedule.visits(plans, Random(1))
    assert visits != schedule.visits(plans, Random(2))


def test_a_short_budget_still_plans_three_of_every_cell():
    counts = Counter((p.metadata, p.fault) for p in trials(Asked(budget_s=1.0, faults=("none", "kill-client"))))
    assert min(counts.values()) >= 3


# --- controls


def test_controls_come_first_and_are_about_what_is_known():
    plans = planned(Asked(backends=("files",), faults=("kill-client",), trials=2, workload="agent"))
    controls = [plan for plan in plans if plan.control]
    assert plans[: len(controls)] == controls
    assert [(p.control, p.metadata.label, p.fault) for p in controls] == [
        ("negative", "files:fsync-dir", "none"),
        ("positive", "memory:dict", "kill-client"),
        ("detector", "files:fsync-dir", "none"),
    ]
    assert {(p.workload, p.writers, p.settle_s) for p in controls} == {("append", 1, 0.0)}


def test_every_lane_and_file_system_that_is_used_has_controls_of_its_own():
    plans = planned(Asked(lane="swap"), profile.load("full"))
    states = [plan for plan in plans if plan.recording is not None]
    used = {(plan.lane, plan.filesystem) for plan in states if plan.control is None and plan.fault != "slow-drive"}
    assert len(used) > 2
    for place in used:
        controls = {(p.control, p.fault, p.recording) for p in states if p.control and (p.lane, p.filesystem) == place}
        assert [each[:2] for each in sorted(controls)] == [
            ("negative", "cut-power"), ("positive", "cut-power"), ("positive", "lying-drive"),
        ]  # fmt: skip
    grouped = schedule.recordings(states)
    assert all(len({(plan.lane, plan.filesystem) for plan in plans}) == 1 for plans in grouped)


# --- pace


@pytest.mark.parametrize(
    "label, faulty, window_s",
    [
        ("postgres:off", "kill-server", 0.6),
        ("postgres:off", "kill-client", 0.0),
        ("postgres:on", "kill-server", 0.0),
        ("valkey:aof-everysec", "kill-server", 2.0),
        ("redis:aof-everysec", "kill-server", 2.0),
        ("valkey:rdb", "kill-server", 0.0),
        ("valkey:aof-everysec", "none", 0.0),
    ],
)
def test_puts_are_paced_so_that_acknowledgements_span_one_and_a_half_windows(label, faulty, window_s):
    for plan in trials(Asked(backends=(label,), faults=(faulty,), trials=20)):
        assert plan.pace_s * (plan.victim - 1) == pytest.approx(WINDOWS_SPANNED * window_s)


def test_a_pair_is_paced_by_the_longer_window():
    (plan,) = trials(
        Asked(metadata=("postgres:off",), data=("valkey:aof-everysec",), faults=("kill-server",), trials=1)
    )
    assert plan.pace_s * (plan.victim - 1) == pytest.approx(3.0)


# --- a slow drive


SLOW = Asked(backends=("valkey:aof-everysec",), faults=("slow-drive",))


@pytest.fixture
def _machine(monkeypatch):
    """As where a machine can be reset, whatever this host has."""
    monkeypatch.setattr(schedule.guest, "why_not", lambda: None)


@pytest.mark.usefixtures("_machine")
@pytest.mark.parametrize("asked_s, late_s", [(0.0, fault.LATE_FLUSH_S), (1.5, 1.5)])
def test_a_slow_drive_is_late_by_what_is_asked_or_by_what_it_says(asked_s, late_s):
    for asked in (replace(SLOW, trials=5), replace(SLOW, budget_s=60.0)):
        plans = trials(replace(asked, flush_delay_s=asked_s))
        assert plans
        assert {(plan.flush_delay_s, plan.lane) for plan in plans} == {(late_s, "guest")}
        assert len({plan.recording for plan in plans}) == len(plans), "each is a run of its own"
    assert len(trials(replace(SLOW, trials=5))) == 5


@pytest.mark.usefixtures("_machine")
def test_the_other_faults_are_not_late_beside_it_and_keep_their_recordings():
    plans = trials(replace(SLOW, faults=("cut-power", "slow-drive"), trials=4))
    late = {plan.recording for plan in plans if plan.fault == "slow-drive"}
    others = [plan for plan in plans if plan.fault == "cut-power"]
    assert {plan.flush_delay_s for plan in others} == {0.0}
    assert late.isdisjoint({plan.recording for plan in others})
    assert all(len({plan.fault for plan in members}) == 1 for members in schedule.recordings(plans))


@pytest.mark.usefixtures("_machine")
def test_on_a_slow_drive_acknowledgements_span_the_window_and_a_part_of_a_late_flush():
    spans = [plan.pace_s * (plan.victim - 1) for plan in trials(replace(SLOW, trials=200))]
    shortest = WINDOWS_SPANNED * 2.0
    assert all(shortest <= span <= shortest + fault.LATE_FLUSH_S for span in spans)
    assert max(spans) - min(spans) > fault.LATE_FLUSH_S / 2
    nothing = trials(replace(SLOW, backends=("valkey:aof-always",), trials=3))
    assert {plan.pace_s for plan in nothing} == {0.0}


@pytest.mark.usefixtures("_machine")
@pytest.mark.parametrize("lane", ["swap", "loop"])
def test_a_server_is_killed_in_a_live_guest_only(lane):
    found = cell(replace(SLOW, lane=lane, filesystem="ext4"))
    assert (found.verdict, found.why) == ("not run", schedule.IN_A_GUEST)


@pytest.mark.usefixtures("_machine")
def test_list_the_readme_and_help_say_how_late_the_plan_is(typed):
    (late_s,) = {plan.flush_delay_s for plan in trials(replace(SLOW, trials=1))}
    said = f"{late_s:g}s unless given"
    root = Path(__file__).parents[2]
    assert said in typed("list")[1].replace("\n", " ")
    (line,) = [each for each in (root / "README.md").read_text().splitlines() if each.startswith("| `slow-drive` |")]
    assert f"(`--flush-delay`, {said})" in line
    assert f"by {late_s:g} s unless\n`--flush-delay` says otherwise" in (root / "bench" / "README.md").read_text()
    assert f"{said})." in " ".join(typed("run", "--help")[1].replace("│", " ").split())


# --- what is asked for


def test_a_name_without_setting_means_all_of_them():
    found = schedule.cells(Asked(backends=("sqlite",), faults=("kill-client",)), QUICK)
    assert [c.metadata.setting for c in found] == [s.name for s in registry.load("sqlite").settings]
    assert all(c.metadata == c.data for c in found)


def test_two_backends_are_paired_each_with_each():
    asked = Asked(
        metadata=("postgres:on", "sqlite:wal-full"), data=("files:rename", "files:fsync-dir"), faults=("kill-client",)
    )
    found = schedule.cells(asked, QUICK)
    assert [c.label for c in found] == [
        "postgres:on + files:rename",
        "postgres:on + files:fsync-dir",
        "sqlite:wal-full + files:rename",
        "sqlite:wal-full + files:fsync-dir",
    ]


def test_nothing_is_asked_twice():
    assert len(schedule.cells(Asked(backends=("files", "files:rename"), faults=("kill-client",)), QUICK)) == 4


def test_the_quick_profile_is_about_every_backend():
    asked = {c.metadata.backend for c in schedule.cells(Asked(faults=KILLS), QUICK)}
    assert asked == set(registry.names())


@pytest.mark.parametrize(
    "asked, error, words",
    [
        (Asked(backends=("postgress",)), registry.UnknownBackend, "did you mean postgres"),
        (Asked(backends=("postgres:of",)), registry.UnknownBackend, "did you mean off"),
        (Asked(backends=("mongodb",)), registry.UnknownBackend, "known: "),
        (Asked(backends=("no_such_module:Backend",)), registry.UnknownBackend, "cannot be imported"),
        (Asked(backends=("gopher://host",)), registry.UnknownBackend, "unknown URL scheme 'gopher'"),
        (Asked(faults=("kil-client",)), fault.UnknownFault, "did you mean kill-client"),
        (Asked(workload="agnet"), workload.UnknownWorkload, "did you mean agent"),
        (Asked(metadata=("files",)), UsageError, "--metadata and --data come together"),
        (Asked(data=("files",)), UsageError, "--metadata and --data come together"),
        (Asked(lane="gest"), UsageError, "did you mean guest"),
        (Asked(faults=("kill-client",), filesystem="xfs"), UsageError, "--filesystem, --flush-delay and --settle"),
        (Asked(faults=("kill-client",), flush_delay_s=1.0), UsageError, "--filesystem, --flush-delay and --settle"),
        (Asked(faults=("kill-server",), settle_s=7.0), UsageError, "--filesystem, --flush-delay and --settle"),
        (Asked(faults=("cut-power",), filesystem="zfs"), UsageError, "no file system"),
        (Asked(trials=3, budget_s=3.0), UsageError, "exclude each other"),
        (Asked(budget_s=0.0), UsageError, "more than nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_with_its_mend(asked, error, words):
    with pytest.raises(error, match=words) as refused:
        schedule.cells(asked, QUICK)
    assert "\n" not in str(refused.value)


# --- what will not be judged


@pytest.mark.parametrize("label", ["files:fsync-dir", "sqlite:wal-full", "memory:dict"])
def test_an_embedded_store_has_no_server(label):
    found = cell(Asked(backends=(label,), faults=("kill-server",)))
    assert (found.verdict, found.why) == ("–", "an embedded store has no server; its writer is its server")


def test_two_embedded_stores_have_none_either():
    asked = Asked(metadata=("sqlite:wal-full",), data=("files:fsync-dir",), faults=("kill-server",))
    assert cell(asked).verdict == "–"


@pytest.mark.parametrize("pair", [("postgres:on", "files:fsync-dir"), ("files:fsync-dir", "postgres:on")])
def test_a_pair_with_one_server_has_one_to_kill(pair):
    assert cell(Asked(metadata=pair[:1], data=pair[1:], faults=("kill-server",))).verdict is None


def test_a_mock_is_not_rated_beyond_its_client():
    found = {c.fault: c for c in schedule.cells(Asked(backends=("s3-moto:versioned",), faults=KILLS), QUICK)}
    assert {name: c.verdict for name, c in found.items()} == {
        "none": None,
        "kill-client": None,
        "kill-server": "not rated",
    }


def test_a_pair_with_a_mock_is_not_rated():
    asked = Asked(metadata=("postgres:on",), data=("s3-moto:versioned",), faults=("kill-server",))
    assert cell(asked).verdict == "not rated"


def test_somebodys_backend_is_never_killed(tmp_path):
    found = schedule.cells(Asked(backends=(f"sqlite:///{tmp_path}/a.db",), faults=KILLS), QUICK)
    assert {c.fault: c.verdict for c in found} == {"none": None, "kill-client": None, "kill-server": "not run"}
    assert {c.metadata.setting for c in found} == {"live"}


@pytest.mark.parametrize("lane", ["guest", "swap", "loop"])
def test_a_process_is_not_killed_in_a_machine_that_is_reset(lane):
    found = cell(Asked(backends=("files:rename",), faults=("kill-client",), lane=lane))
    assert found.verdict == "not run"
    assert "this host only" in found.why


def test_this_host_is_never_reset():
    for found in schedule.cells(
        Asked(backends=("files:rename",), faults=("cut-power", "reset-machine"), lane="here"), QUICK
    ):
        assert found.verdict == "not run"
        assert "not reset" in found.why


def test_a_missing_program_is_not_run_and_names_its_mend(monkeypatch):
    monkeypatch.setenv("DURABENCH_POSTGRES", "/nonexistent")
    for name in [n for n in os.environ if n.startswith("DURABENCH_")]:
        monkeypatch.setenv(name, "/nonexistent")
    found = cell(Asked(backends=("postgres:on",), faults=("kill-server",)))
    assert found.verdict == "not run"
    assert "/nonexistent" in found.why
    assert found.by_name


@pytest.mark.parametrize(
    "label, library, extra",
    [("s3-swift:versioned", "swift", "s3"), ("postgres:on", "psycopg", "postgres"), ("redis:rdb", "redis", "redis")],
)
def test_a_missing_library_is_not_run_and_names_its_extra(label, library, extra, monkeypatch):
    original = importlib.util.find_spec

    def without(name, package=None):
        return None if name == library else original(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    found = {
        c.metadata.label: c
        for c in schedule.cells(Asked(backends=(label, "files:rename"), faults=("kill-client",)), QUICK)
    }
    assert found[label].verdict == "not run"
    assert found[label].why == f"{label.split(':')[0]} needs {library}: pip install 'durabench[{extra}]'"
    assert found["files:rename"].verdict is None


def test_cells_that_are_not_judged_get_no_trial():
    asked = Asked(backends=("files:rename", "s3-moto:versioned"), faults=("kill-server",), trials=5)
    assert trials(asked) == []


def test_only_what_dies_has_no_end():
    for plan in trials(Asked(backends=("files:rename",), faults=("none", "kill-client"), trials=2)):
        peace = fault.load(plan.fault).destroys is Domain.NOTHING
        assert (plan.puts is not None, plan.write_s is not None) == (peace, peace)
