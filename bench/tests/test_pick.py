"""What is picked, and above all what is never picked: speed and survived kills are not enough."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from durabench.report import NOT_POSSIBLE, Cell, pick
from durabench.report.pick import pick_of_hosts

DESTROYED = {
    "none": "nothing",
    "kill-client": "client",
    "kill-server": "server",
    "reset-machine": "machine",
    "cut-power": "drive",
    "lying-drive": "flushed",
}
KILLS = ("none", "kill-client", "kill-server")
ALL = (*KILLS, "reset-machine", "cut-power")


def cells_of(label, tier, p50_ms, faults=ALL, *, verdicts=None, whys=None, namespaces=("metadata", "data")):
    backend, setting = label.split(":")
    return [
        Cell(
            backend,
            setting,
            tier,
            namespace,
            "agent",
            fault,
            "here" if fault in KILLS else "guest",
            "0a1b2c3d",
            destroyed=DESTROYED[fault],
            trials=0 if (verdicts or {}).get(fault) in ("not run", NOT_POSSIBLE) else 50,
            put_p50_ms=p50_ms if fault == "none" else None,
            verdict=(verdicts or {}).get(fault, "kept"),
            why=(whys or {}).get(fault),
        )
        for namespace, fault in itertools.product(namespaces, faults)
    ]


TEMPTING = [
    *cells_of("postgres:fsync-off", "T1", 0.05),
    *cells_of("postgres:off", "T2 0.6 s", 0.06),
    *cells_of("sqlite:off", "T1", 0.02),
    *cells_of("valkey:aof-no", "T1", 0.03),
    *cells_of("redis:aof-no", "T1", 0.03),
    *cells_of("files:rename", "T1", 0.01),
]
"""The fastest, and lossless under every fault that is shown here: none of them promises to be."""
DURABLE = [*cells_of("files:fsync-dir", "T3", 2.0), *cells_of("sqlite:wal-full", "T3", 1.0)]


def test_the_fastest_durable_setting_is_picked():
    picked = pick([*TEMPTING, *DURABLE], 0.1)
    assert picked.setting == "sqlite:wal-full"
    assert "files:fsync-dir" in picked.why
    assert "1 ms" in picked.why


def test_what_does_not_promise_it_is_never_picked_however_fast_and_lossless():
    assert pick(TEMPTING, 0.0).setting is None
    for fault_set in (KILLS, ALL):
        shown = [cell for cell in [*TEMPTING, *DURABLE] if cell.fault in fault_set]
        picked = pick(shown, 0.0)
        assert picked.setting in (None, "sqlite:wal-full")
        assert not set(picked.tied) & {cell.label for cell in TEMPTING}


def test_without_a_power_cut_there_is_no_pick_and_that_is_the_reason():
    killed = [cell for cell in [*TEMPTING, *DURABLE] if cell.fault in KILLS]
    picked = pick(killed, 0.0)
    assert picked.setting is None
    assert "no power cut" in picked.why
    assert "cut-power: not asked for" in picked.not_tried
    cut = {"cut-power": "not run"}
    not_cut = cells_of("sqlite:wal-full", "T3", 1.0, verdicts=cut, whys={"cut-power": "qemu is missing"})
    picked = pick(not_cut, 0.0)
    assert picked.setting is None
    assert "no power cut" in picked.why
    assert "cut-power: qemu is missing" in picked.not_tried


@pytest.mark.parametrize("fault", ALL)
@pytest.mark.parametrize("verdict", ["broken", "unknown", "no-promise", "within"])
def test_one_cell_that_is_not_kept_is_enough_against_a_setting(fault, verdict):
    flawed = cells_of("sqlite:wal-full", "T3", 1.0, verdicts={fault: verdict}, whys={fault: "because"})
    picked = pick([*flawed, *cells_of("files:fsync-dir", "T3", 2.0)], 0.0)
    assert picked.setting == "files:fsync-dir"
    alone = pick(flawed, 0.0)
    assert alone.setting is None
    assert f"{fault}, metadata: {verdict} (because)" in alone.why


@pytest.mark.parametrize("fault", ["none", "kill-client", "kill-server", "cut-power"])
def test_a_fault_that_was_not_run_is_no_evidence(fault):
    lacking = cells_of("sqlite:wal-full", "T3", 1.0, verdicts={fault: "not run"}, whys={fault: "budget"})
    picked = pick([*lacking, *cells_of("files:fsync-dir", "T3", 2.0)], 0.0)
    assert picked.setting == "files:fsync-dir"


def test_a_reset_that_was_not_run_is_covered_by_the_power_cut_that_was():
    lacking = cells_of("sqlite:wal-full", "T3", 1.0, verdicts={"reset-machine": "not run"})
    assert pick(lacking, 0.0).setting == "sqlite:wal-full"


def test_what_cannot_happen_stands_against_nobody():
    embedded = cells_of("sqlite:wal-full", "T3", 1.0, verdicts={"kill-server": NOT_POSSIBLE})
    picked = pick(embedded, 0.0)
    assert picked.setting == "sqlite:wal-full"
    assert not any("kill-server" in line for line in picked.not_tried)


def test_both_namespaces_must_survive_the_power_cut():
    metadata_only = [
        cell for cell in cells_of("sqlite:wal-full", "T3", 1.0) if (cell.namespace, cell.fault) != ("data", "cut-power")
    ]
    picked = pick(metadata_only, 0.0)
    assert picked.setting is None
    assert "no power cut judged for its data" in picked.why


def test_a_lying_drive_stands_against_nobody():
    lied_to = cells_of("sqlite:wal-full", "T3", 1.0, (*ALL, "lying-drive"), verdicts={"lying-drive": "no-promise"})
    assert pick(lied_to, 0.0).setting == "sqlite:wal-full"


def test_settings_that_differ_less_than_the_floor_moved_are_a_tie():
    picked = pick([*DURABLE, *cells_of("postgres:on", "T3", 9.0)], 1.0)
    assert picked.setting is None
    assert set(picked.tied) == {"files:fsync-dir", "sqlite:wal-full"}
    assert "tie" in picked.why
    assert "1 ms" in picked.why


def test_without_latencies_there_is_nothing_to_choose_by():
    picked = pick([*cells_of("files:fsync-dir", "T3", None), *cells_of("sqlite:wal-full", "T3", None)], 0.0)
    assert picked.setting is None
    assert set(picked.tied) == {"files:fsync-dir", "sqlite:wal-full"}
    assert "no latency" in picked.why


def test_the_metadata_put_decides_since_every_step_makes_one():
    slow_data = [
        Cell(**{**cell.as_json(), "put_p50_ms": 50.0}) if cell.namespace == "data" and cell.put_p50_ms else cell
        for cell in cells_of("sqlite:wal-full", "T3", 1.0)
    ]
    assert pick([*slow_data, *cells_of("files:fsync-dir", "T3", 2.0)], 0.0).setting == "sqlite:wal-full"


def test_settings_promised_to_be_durable_that_never_ran_are_named():
    nothing = dict.fromkeys(ALL, "not run")
    absent = cells_of("s3-swift:unversioned", "T3", None, verdicts=nothing, whys=dict.fromkeys(ALL, "no swift here"))
    picked = pick([*DURABLE, *absent], 0.0)
    assert picked.setting == "sqlite:wal-full"
    assert "s3-swift:unversioned: no swift here" in picked.not_tried


def test_nothing_asked_for_is_no_pick():
    assert pick([]).setting is None


def cut_elsewhere(verdict="kept"):
    """Cells of a file system that was made for power cuts: another disk, without latencies."""
    cut = [cell for cell in DURABLE if cell.fault == "cut-power"]
    return [replace(cell, host="ffffffff", put_p50_ms=None, verdict=verdict) for cell in cut]


def test_a_file_system_made_for_power_cuts_takes_no_pick_away():
    found = pick_of_hosts([*DURABLE, *cut_elsewhere()], {"0a1b2c3d": 0.1})
    assert found.setting == "sqlite:wal-full"
    assert "0a1b2c3d, where latency was measured" in found.why


def test_what_broke_on_another_file_system_is_not_picked():
    found = pick_of_hosts([*DURABLE, *cut_elsewhere("broken")], {"0a1b2c3d": 0.1})
    assert found.setting is None
    assert "broke its promise on ffffffff (cut-power)" in found.why


def test_two_disks_with_latencies_have_a_pick_each_and_none_together():
    other = [replace(cell, host="ffffffff") for cell in DURABLE]
    found = pick_of_hosts([*DURABLE, *other], {})
    assert found.setting is None
    assert "0a1b2c3d: sqlite:wal-full; ffffffff: sqlite:wal-full" in found.why


def test_what_was_lost_is_counted_in_the_reason_and_not_listed():
    broken = cells_of(
        "files:fsync-dir", "T3", 2.0, verdicts={"cut-power": "broken"}, whys={"cut-power": "2 lost of 3: a; b"}
    )
    assert pick(broken).why.endswith("(files:fsync-dir: cut-power, metadata: broken (2 lost of 3))")


# --- several file systems: what is excluded is excluded before anything is ranked or tied


def on(host, label, verdicts=None, **more):
    """Power cuts on a file system that was made for them."""
    return [
        replace(cell, host=host, put_p50_ms=None, **more)
        for cell in cells_of(label, "T3", None, ("cut-power",), verdicts=verdicts)
    ]


@pytest.mark.parametrize("verdict", ["broken", "unknown", "within", "no-promise"])
@pytest.mark.parametrize("p50_ms,floor_ms", [(0.1, 0.01), (1.01, 0.5), (5.0, 0.01)])
def test_what_failed_on_any_file_system_is_neither_ranked_nor_tied(verdict, p50_ms, floor_ms):
    cells = [
        *cells_of("files:fsync-dir", "T3", 1.0),
        *cells_of("sqlite:wal-full", "T3", p50_ms),
        *on("ffffffff", "files:fsync-dir"),
        *on("ffffffff", "sqlite:wal-full", {"cut-power": verdict}),
    ]
    found = pick_of_hosts(cells, {"0a1b2c3d": floor_ms})
    assert found.setting == "files:fsync-dir"
    assert found.tied == ()
    assert "sqlite" not in found.why
    last = pick_of_hosts([*cells, *on("eeeeeeee", "files:fsync-dir", {"cut-power": verdict})], {"0a1b2c3d": floor_ms})
    assert last.setting is None
    assert "on ffffffff" in last.why
    assert "on eeeeeeee" in last.why


def test_what_failed_in_another_lane_is_not_picked():
    lane = [replace(cell, lane="loop") for cell in on("0a1b2c3d", "sqlite:wal-full", {"cut-power": "broken"})]
    found = pick_of_hosts([*DURABLE, *lane], {"0a1b2c3d": 0.1})
    assert found.setting == "files:fsync-dir"


def test_what_broke_elsewhere_is_no_pick_of_a_disk_with_latencies_either():
    other = [replace(cell, host="ffffffff", verdict="broken") for cell in cells_of("sqlite:wal-full", "T3", 1.0)]
    other += [replace(cell, host="ffffffff") for cell in cells_of("files:fsync-dir", "T3", 2.0)]
    found = pick_of_hosts([*DURABLE, *other], {})
    assert "(0a1b2c3d: files:fsync-dir; ffffffff: files:fsync-dir)" in found.why


def test_what_was_not_run_on_another_file_system_is_told_and_stands_against_nobody():
    elsewhere = on("ffffffff", "sqlite:wal-full", {"cut-power": "not run"}, trials=0, why="budget")
    found = pick_of_hosts([*DURABLE, *elsewhere], {"0a1b2c3d": 0.1})
    assert found.setting == "sqlite:wal-full"
    assert "sqlite:wal-full on ffffffff, cut-power: budget" in found.not_tried


def test_what_was_run_on_another_machine_only_is_not_picked_for_this_one():
    found = pick_of_hosts([*cells_of("files:fsync-dir", "T3", 2.0), *on("ffffffff", "sqlite:wal-full")], {})
    assert found.setting == "files:fsync-dir"
    broken = [replace(cell, verdict="broken") for cell in cells_of("files:fsync-dir", "T3", 2.0)]
    assert (
        "sqlite:wal-full: was not run on 0a1b2c3d"
        in pick_of_hosts([*broken, *on("ffffffff", "sqlite:wal-full")], {}).why
    )


def test_one_label_with_two_promises_is_not_promised_to_be_durable():
    weaker = [replace(cell, tier="T1") for cell in on("ffffffff", "sqlite:wal-full")]
    found = pick_of_hosts([*DURABLE, *weaker], {"0a1b2c3d": 0.1})
    assert found.setting == "files:fsync-dir"


def test_a_lane_that_was_not_run_is_no_gap_where_the_fault_was_run_in_another():
    lane = [replace(cell, lane="loop") for cell in on("0a1b2c3d", "sqlite:wal-full", {"cut-power": "not run"})]
    assert pick([*DURABLE, *lane], 0.1).setting == "sqlite:wal-full"


def test_trials_that_could_not_be_judged_are_counted_in_the_words():
    doubted = [replace(cell, trials_unknown=7 * (cell.fault == "kill-client")) for cell in DURABLE]
    assert "power cuts included (14 of 500 trials unknown); the fastest" in pick(doubted, 0.1).why
    assert "unknown" not in pick(DURABLE, 0.1).why


def test_only_like_puts_are_ranked():
    def timed(label, p50_ms, workload="agent", namespaces=("metadata",)):
        found = cells_of(label, "T3", p50_ms, namespaces=namespaces)
        return [replace(cell, workload=workload) for cell in found]

    both = [*timed("files:fsync-dir", 9.0), *timed("files:fsync-dir", 1.0, "append")]
    assert pick([*both, *timed("sqlite:wal-full", 2.0, "append")], 0.0).setting == "files:fsync-dir"
    apart = pick([*timed("files:fsync-dir", 1.0), *timed("sqlite:wal-full", 2.0, "append")], 0.0)
    assert apart.setting is None
    assert "not timed by the same puts" in apart.why
    parts = pick([*timed("files:fsync-dir", 1.0), *timed("sqlite:wal-full", 2.0, namespaces=("data",))], 0.0)
    assert parts.setting is None
    untimed = pick([*timed("files:fsync-dir", 1.0), *timed("sqlite:wal-full", None)], 0.0)
    assert untimed.setting == "files:fsync-dir"
    assert "sqlite:wal-full kept everything too, and had no latency measured" in untimed.why
