"""What `plan` recommends, from documents whose costs are known, and how it is told."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench import cli, results
from durabench.crossing import NONE_RELIABLE
from durabench.plan import table
from durabench.plan.recommend import COULD_NOT_TELL, NOT_MET, OK, recommend

SIZES = [256 * 4**step for step in range(10)]
MIB = 1 << 20
# label → fixed cost in ns, ns per byte: one is cheap to start, one by size, one never.
COSTS = {"post:on": (1e6, 50.0), "tree:fsync": (3e6, 5.0), "slow:extra": (9e6, 60.0)}
AT = round(2e6 / 45)  # 43 KiB: where post and tree cross


def candidate(label, **other):
    backend, _, setting = label.partition(":")
    fields = {"meets_goal": True, "excluded_by": None, "why": None, "largest_bytes": SIZES[-1], "tier": "T3"}
    return {"label": label, "backend": backend, "setting": setting, **fields, "stopped_bytes": None, **other}


def point(label, size, cost, **other):
    backend, _, setting = label.partition(":")
    p50 = cost[0] + cost[1] * size
    return {
        "label": label,
        "backend": backend,
        "setting": setting,
        "payload": "incompressible",
        "size_bytes": size,
        "trials": 8,
        "puts": 40,
        "put_p50_ns": round(p50),
        "put_p50_low_ns": round(0.99 * p50),
        "put_p50_high_ns": round(1.01 * p50),
        "put_p99_ns": None,
        "put_max_ns": round(1.5 * p50),
        "reload_warm_p50_ns": 40_000,
        "reload_cold_p50_ns": None,
        "cold_why": "a server keeps values itself",
        "writer_bytes_per_put": size + 4096,
        "device_bytes_per_put": None,
        "at_rest_per_payload_byte": 1.25,
        "compacted_per_payload_byte": None,
        **other,
    }


def crossing(a, b, at=None, below=None, **other):
    above = None if below is None else below if at is None else (b if below == a else a)
    reliable = at is not None
    low, high = (round(at * 0.9), round(at * 1.1)) if reliable else (None, None)
    return {
        "a": a,
        "b": b,
        "at_bytes": at,
        "low": low,
        "high": high,
        "reliable": reliable,
        "affine_bytes": at,
        "affine_disagrees": False,
        "why": "" if reliable else f"{NONE_RELIABLE}: of 1,000 resamples 40 % cross several times",
        "below": below,
        "above": above,
        **other,
    }


CROSSINGS = [
    crossing("post:on", "tree:fsync", AT, "post:on"),
    crossing("post:on", "slow:extra", None, "post:on"),
    crossing("tree:fsync", "slow:extra", None, "tree:fsync"),
]


def document(costs=COSTS, moved_ns=100_000, **other):
    goal = {"survive": "drive", "max_loss_s": 0.0, "max_p99_ms": None, "max_bytes_per_step": None}
    made = {
        "schema_version": 1,
        "machine": {"id": "0123abcd", "filesystem": "ext4", "mount_options": "rw"},
        "seed": 1,
        "quick": False,
        "goal": goal | other.pop("goal", {}),
        "sizes": SIZES,
        "candidates": [candidate(label) for label in costs],
        "floor": {"2048": {"p50_ns": 500_000, "lowest_ns": 450_000, "highest_ns": 450_000 + moved_ns}},
        "ranked": True,
        "not_ranked_why": None,
        "left_out": [],
        "cold_how": "dropped",
        "sweep": [point(label, size, cost) for label, cost in costs.items() for size in SIZES],
        "crossings": [one for one in CROSSINGS if {one["a"], one["b"]} <= set(costs)],
        "split": [],
        "own_sizes": None,
        **other,
    }
    made["recommendation"] = recommend(made).as_json()
    return made


def own(steps, source="trace mine.jsonl"):
    """As plan.json has them; ``steps`` of (metadata, data, changed)."""
    sizes = sorted(size for metadata, data, changed in steps for size in (metadata, data * changed) if size)
    return {
        "source": source,
        "values": len(sizes),
        "quantiles": {"p50": sizes[len(sizes) // 2], "max": sizes[-1]},
        "histogram": [[size, 1] for size in sizes],
        "steps": [list(step) for step in steps],
    }


ONCE = own([(2048, 16 * MIB, step == 0) for step in range(50)])


# --- the answer ------------------------------------------------------------------------------------------------------


def test_the_answer_says_what_goes_where_above_which_size_and_what_a_step_then_writes():
    found = recommend(document(own_sizes=ONCE))
    assert found.answer == (
        "metadata in post, data in tree above 43.4 KiB; "
        "at your sizes a step without new data writes 6 KiB instead of 16 MiB"
    )
    assert (found.status, found.arrangement.metadata, found.arrangement.data) == (OK, "post:on", "tree:fsync")
    assert found.arrangement.above_bytes == AT
    assert not found.cautions


def test_what_was_replayed_counts_before_what_is_read_off_the_curves():
    layout = {"writer_bytes": 1, "device_bytes": 1, "puts": 50}
    entry = {
        "trace": "mine.jsonl",
        "metadata": "post:on",
        "data": "tree:fsync",
        "whole": {**layout, "unchanged": {"writer_bytes": 17_000_000}},
        "split": {**layout, "unchanged": {"writer_bytes": 4000}},
    }
    found = recommend(document(own_sizes=ONCE, split=[entry]))
    assert (found.unchanged_bytes, found.unchanged_bytes_whole) == (4000, 17_000_000)


def test_without_sizes_of_ones_own_the_built_in_steps_are_named():
    found = recommend(document())
    assert found.answer.startswith("metadata in post, data in tree above 43.4 KiB; with 2 KiB of metadata and 1 MiB")
    assert "at your sizes" not in found.answer


@pytest.mark.parametrize(
    "steps, answer",
    [
        ([(2048, 4096, True)] * 9, "everything in post, in one value"),  # one put costs less than two
        ([(2048, 8 * MIB, True)] * 9, "everything in tree, in one value"),
        ([(2048, 30_000, step == 0) for step in range(9)], "metadata and data in post, as two values"),
    ],
)
def test_the_steps_decide(steps, answer):
    assert recommend(document(own_sizes=own(steps))).answer.startswith(answer)


def test_the_runner_up_is_told_with_the_put_that_costs_it_the_most():
    found = recommend(document(own_sizes=own([(2048, 16 * MIB, step % 2 == 0) for step in range(50)])))
    assert found.why_runner_up_lost.startswith("metadata and data in tree, as two values: ")
    assert "a step instead of" in found.why_runner_up_lost
    assert "a put of 2 KiB takes tree:fsync 3.01 ms" in found.why_runner_up_lost


def test_sizes_without_steps_are_one_put_each():
    sizes = own([(0, size, True) for size in [1000] * 90 + [4 * MIB] * 10], "postgresql://host/db#state") | {
        "steps": None
    }
    found = recommend(document(own_sizes=sizes))
    assert found.answer.startswith("your values in post; above 43.4 KiB in tree; at your sizes")
    small = recommend(document(own_sizes=own([(0, 1000, True)] * 9, "file:///x") | {"steps": None}))
    assert small.answer.startswith("your values in post; at your sizes")
    assert not small.arrangement.whole


def test_two_settings_of_one_backend_are_told_apart():
    costs = {"post:on": (1e6, 50.0), "post:off": (0.5e6, 80.0)}
    assert "post:off" in recommend(document(costs, own_sizes=own([(2048, 3000, False)] * 5))).answer


# --- what is not said ------------------------------------------------------------------------------------------------


def test_no_ranking_inside_the_drift_of_the_floor():
    """Two systems must be worth it: inside the drift one is named, and that it is a tie."""
    steps = own([(2048, 100_000, step % 10 == 0) for step in range(50)])
    sure = recommend(document(own_sizes=steps, moved_ns=10_000))
    assert (sure.arrangement.backends, sure.tied) == (2, ())
    tied = recommend(document(own_sizes=steps, moved_ns=9_000_000))
    assert tied.arrangement.backends == 1
    assert "metadata in post, data in tree above 43.4 KiB" in tied.tied
    assert "by speed a tie with" in tied.answer


def test_no_ranking_inside_the_noise_of_the_puts():
    noisy = [
        row | {"put_p50_low_ns": row["put_p50_ns"] // 9, "put_p50_high_ns": row["put_p50_ns"] * 3}
        for row in document()["sweep"]
    ]
    found = recommend(document(sweep=noisy, moved_ns=0))
    assert found.tied
    assert found.arrangement.backends == 1


def test_no_recommendation_at_all_where_the_floor_moved_too_much():
    made = document(ranked=False, not_ranked_why="the disk's own flush moved between 0.1 and 4 ms", crossings=[])
    found = recommend(made)
    assert (found.status, found.arrangement) == (COULD_NOT_TELL, None)
    assert found.answer == "no recommendation: the disk's own flush moved between 0.1 and 4 ms"
    assert table.text(made).startswith(found.answer)
    assert "none is told" in table.text(made)


def test_without_a_reliable_crossing_no_size_is_named():
    unsure = [crossing("post:on", "tree:fsync"), *CROSSINGS[1:]]
    made = document(own_sizes=ONCE, crossings=unsure)
    found = recommend(made)
    assert found.answer.startswith("metadata in post, data in tree; at your sizes")
    assert found.arrangement.above_bytes is None
    assert f"post and tree: {NONE_RELIABLE}" in found.cautions[0]
    assert NONE_RELIABLE in table.text(made)


def test_where_the_crossing_is_beyond_what_was_measured_often_no_size_is_named():
    short = [
        crossing("post:on", "tree:fsync", None, "post:on", smallest_bytes=256, largest_bytes=16384),
        *CROSSINGS[1:],
    ]
    made = document(own_sizes=ONCE, crossings=short)
    found = recommend(made)
    assert found.answer.startswith("metadata in post, data in tree; at your sizes")
    assert "up to 16 KiB post is the faster one; what is larger was measured too seldom" in found.cautions[0]
    assert "post:on is faster than tree:fsync at every size measured (256 B to 16 KiB)" in table.text(made)


def test_one_trial_ranks_only_what_is_far_apart():
    alone = [row | {"put_p50_low_ns": None, "put_p50_high_ns": None} for row in document()["sweep"]]
    near = own([(2048, 100_000, step % 10 == 0) for step in range(50)])
    assert recommend(document(sweep=alone, own_sizes=near, moved_ns=0)).tied
    far = recommend(document(sweep=alone, own_sizes=own([(2048, 64 * MIB, True)] * 3), moved_ns=0))
    assert far.arrangement.data == "tree:fsync"


def test_what_rests_on_a_trial_or_two_says_so():
    seldom = [row | ({"trials": 1} if row["size_bytes"] >= MIB else {}) for row in document()["sweep"]]
    found = recommend(document(sweep=seldom, own_sizes=ONCE))
    assert "tree:fsync at 16 MiB was measured in fewer than 3 trials" in found.cautions
    assert not recommend(document(own_sizes=ONCE)).cautions


def test_what_is_beyond_the_measured_range_is_said():
    found = recommend(document(own_sizes=own([(2048, 1 << 30, step == 0) for step in range(9)])))
    assert any("was measured up to 64 MiB; the largest value of the steps, 1 GiB" in line for line in found.cautions)


# --- goals -----------------------------------------------------------------------------------------------------------


def test_what_the_promise_excludes_is_neither_charged_nor_forgotten():
    excluded = candidate(
        "quick:everysec",
        meets_goal=False,
        excluded_by="--max-loss 0s",
        why="may lose the last 2 s when the server dies",
    )
    made = document()
    made["candidates"].append(excluded)
    made["sweep"] += [point("quick:everysec", size, (1e3, 0.1)) for size in SIZES]
    found = recommend(made)
    assert "quick" not in found.answer
    assert {"label": "quick:everysec", "excluded_by": "--max-loss 0s", "why": excluded["why"]} in found.excluded


def test_bytes_per_step_exclude_the_whole_and_then_everything():
    steps = own([(2048, 4096, True)] * 9)
    assert recommend(document(own_sizes=steps)).arrangement.whole
    most = recommend(
        document(own_sizes=own([(2048, 16 * MIB, step == 0) for step in range(50)]), goal={"max_bytes_per_step": MIB})
    )
    assert most.status == OK
    assert not most.arrangement.whole
    none = recommend(document(own_sizes=ONCE, goal={"max_bytes_per_step": 1000}))
    assert (none.status, none.arrangement) == (NOT_MET, None)
    assert "--max-bytes-per-step 1e+03 B" not in none.answer
    for label in COSTS:
        assert f"{label}: --max-bytes-per-step 1000 B (no arrangement with it writes less than " in none.answer


def test_a_p99_that_is_too_slow_excludes_and_too_few_puts_leave_it_open():
    steps = own([(2048, 4096, step % 2 == 0) for step in range(9)])
    few = recommend(document(own_sizes=steps, goal={"max_p99_ms": 20.0}))
    assert few.status == COULD_NOT_TELL
    assert "368 puts; the slowest of 40 took" in few.cautions[0]
    enough = [row | {"put_p99_ns": 2 * row["put_p50_ns"], "puts": 400} for row in document()["sweep"]]
    told = recommend(document(own_sizes=steps, sweep=enough, goal={"max_p99_ms": 20.0}))
    assert (told.status, told.cautions) == (OK, ())
    fast = recommend(document(own_sizes=steps, sweep=enough, goal={"max_p99_ms": 5.0}))
    assert [one["label"] for one in fast.excluded] == ["tree:fsync", "slow:extra"]
    assert "tree" not in fast.answer
    none = recommend(document(own_sizes=steps, goal={"max_p99_ms": 0.5}))
    assert none.status == NOT_MET
    assert "--max-p99 0.5ms" in none.answer
    for label in COSTS:
        assert f"{label}: --max-p99 0.5ms (the p50 of a put" in none.answer


def test_what_was_seen_to_break_its_promise_is_not_recommended_however_fast_it_is():
    made = document(own_sizes=ONCE, losses=[lossy("post:on", "post:on", "post:on", trials=6)])
    found = recommend(made)
    assert found.arrangement.labels == {"tree:fsync"}
    assert found.excluded[0]["label"] == "post:on"
    assert "post:on: its promise: 2 of 6 trials of kill-server: 9 lost of 40" in table.text(made)


def lossy(metadata, data, *guilty, trials=6, **words):
    """An entry of ``losses``, in which the guilty ones broke their promise in two trials."""
    return {
        "layout": "split",
        "metadata": metadata,
        "data": data,
        "fault": "kill-server",
        "trials": trials,
        "trials_unknown": 0,
        "unknown_why": None,
        "lost": 9 if guilty else 0,
        "dangling": 0,
        "verdict": "broken" if guilty else "kept",
        "guilty": [{"label": label, "trials": 2, "why": "9 lost of 40"} for label in guilty],
        **words,
    }


def test_of_two_backends_only_the_one_that_broke_its_promise_is_excluded():
    made = document(own_sizes=ONCE, losses=[lossy("post:on", "tree:fsync", "tree:fsync")])
    found = recommend(made)
    assert [one["label"] for one in found.excluded] == ["tree:fsync"]
    assert "post:on" in found.arrangement.labels
    assert "post:on, tree:fsync, split, kill-server: broken by tree:fsync, 9 lost" in table.text(made)


@pytest.mark.parametrize(
    "words, said",
    [
        ({"trials_unknown": 6, "unknown_why": "window not exercised"}, "was judged: window not exercised"),
        ({}, "was judged: none was run"),
    ],
)
def test_what_no_trial_could_judge_is_recommended_with_a_caution(words, said):
    made = document(own_sizes=ONCE, losses=[lossy("post:on", "tree:fsync", trials=0, verdict="unknown", **words)])
    found = recommend(made)
    assert f"no trial of kill-server with tree:fsync {said}" in found.cautions
    judged = document(own_sizes=ONCE, losses=[*made["losses"], lossy("tree:fsync", "tree:fsync")])
    assert not any("with tree:fsync" in line for line in recommend(judged).cautions)


def test_what_meets_the_goal_and_was_not_measured_is_told_and_not_left_out_in_silence():
    made = document(own_sizes=ONCE)
    made["sweep"] = [one for one in made["sweep"] if one["label"] != "tree:fsync"]
    made["candidates"] = [
        one | ({"stopped_bytes": 1, "stopped_why": "it does not come up"} if one["label"] == "tree:fsync" else {})
        for one in made["candidates"]
    ]
    found = recommend(made)
    assert {"label": "tree:fsync", "excluded_by": "not measured", "why": "it does not come up"} in found.excluded
    made["sweep"] = []
    assert len(recommend(made).excluded) == len(COSTS)


def test_a_size_that_a_backend_does_not_take_excludes_it_there():
    made = document(own_sizes=ONCE)
    made["candidates"][1] |= {"stopped_bytes": 4 * MIB, "stopped_why": "its limit, 1 MiB (its manual)"}
    found = recommend(made)
    assert found.arrangement.data == "post:on"
    assert "metadata and data in post" in found.answer


# --- for any costs ---------------------------------------------------------------------------------------------------

ANY_COSTS = st.fixed_dictionaries(
    {label: st.tuples(st.floats(1e5, 1e7), st.floats(0.5, 100)) for label in ("one:x", "two:y")}
)
STEPS = st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 64 * MIB), st.booleans()), min_size=1, max_size=20)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(ANY_COSTS, STEPS, st.integers(0, 5_000_000))
def test_nothing_that_was_charged_is_clearly_faster_than_what_is_recommended(costs, steps, moved_ns):
    made = document(costs, moved_ns, own_sizes=own(steps), crossings=[crossing("one:x", "two:y")])
    found = recommend(made)
    assert found.status == OK
    by_hand = {}
    for home in costs:
        for data in costs:
            ns = [
                costs[home][0]
                + costs[home][1] * metadata
                + changed * (data_bytes > 0) * (costs[data][0] + costs[data][1] * data_bytes)
                for metadata, data_bytes, changed in steps
            ]
            by_hand[home, data] = sum(ns) / len(steps)
    # Read off measured points, so not to the digit; a tie may take what is slower by the drift of all its puts.
    slack_ms = 2 * moved_ns / 1e6 + 0.1 * min(by_hand.values()) / 1e6
    assert found.step_ms <= 1.3 * min(by_hand.values()) / 1e6 + slack_ms


@settings(deadline=None, derandomize=True, max_examples=25)
@given(STEPS, st.randoms())
def test_the_order_of_candidates_does_not_matter(steps, random):
    made = document(own_sizes=own(steps))
    answer = recommend(made).answer
    for name in ("candidates", "sweep", "crossings"):
        random.shuffle(made[name])
    assert recommend(made).answer == answer


# --- how it is told --------------------------------------------------------------------------------------------------

LAYOUT = {
    "puts": 50,
    "payload_bytes": 50 * MIB,
    "writer_bytes": 60 * MIB,
    "device_bytes": None,
    "at_rest_bytes": 50 * MIB,
    "growth": "N",
    "refused": None,
    "unchanged": {"steps": 40, "payload_bytes": MIB, "writer_bytes": MIB, "device_bytes": None, "p50_ns": 4e6},
    "changed": {"steps": 10, "payload_bytes": MIB, "writer_bytes": MIB, "device_bytes": None, "p50_ns": 5e6},
    "faults": [
        {
            "fault": "kill-client",
            "trials": 4,
            "trials_unknown": 0,
            "unknown_why": None,
            "lost": 0,
            "dangling": 2,
            "verdict": "kept",
            "guilty": [],
        }
    ],
}
SPLIT = {
    "trace": "agent",
    "metadata": "post:on",
    "data": "tree:fsync",
    "steps": 50,
    "changes": 10,
    "metadata_bytes": 2048,
    "data_bytes": MIB,
    "whole": LAYOUT,
    "split": LAYOUT,
    "put_many": None,
    "ratios": {"total_payload": 49.7, "total_writer": 48.0, "total_device": None, "unchanged_writer": 4097.0},
}


def test_the_answer_comes_first_then_the_table_then_why_the_runner_up_lost():
    made = document(own_sizes=ONCE, split=[SPLIT, SPLIT | {"data": "post:on", "put_many": LAYOUT}])
    told = table.text(made)
    order = [
        made["recommendation"]["answer"],
        "durable put, median",
        "reload in ms",
        "post:on is faster below 43.4 KiB (39.1 KiB to 47.7 KiB), tree:fsync above it",
        "agent: 50 steps",
        "in all 49.7 (payload), 48 (writers); in a step without new data 4,097 (writers)",
        "post:on, split, kill-client: kept, 0 lost, 2 dangling in 4 trials",
        made["recommendation"]["why_runner_up_lost"],
        "no cold reload of post:on: a server keeps values itself",
    ]
    places = [told.find(part) for part in order]
    assert -1 not in places
    assert places == sorted(places)
    assert told.startswith(order[0])
    assert "None" not in told
    assert "put_many" in told


def test_the_cross_check_is_told_only_where_it_disagrees():
    made = document(
        crossings=[crossing("post:on", "tree:fsync", AT, "post:on", affine_bytes=2 * AT, affine_disagrees=True)]
    )
    assert "as straight lines, cross at 86.8 KiB" in table.text(made)
    assert "straight lines" not in table.text(document())
    assert "post:on is faster than slow:extra at every size measured" in table.text(document())


def test_markdown_and_csv_have_every_row_and_no_markup_of_others():
    made = document()
    made["candidates"].append(candidate("evil:x", meets_goal=False, excluded_by="a|b", why="<script>"))
    made["recommendation"] = recommend(made).as_json()
    told = table.markdown(made)
    assert told.startswith("**metadata in post, data in tree above")
    assert "<script>" not in told
    assert "| 64 MiB |" in told
    rows = list(csv.DictReader(StringIO(table.csv_text(made))))
    assert len(rows) == len(made["sweep"])
    assert rows[0]["put_p99_ns"] == ""
    with pytest.raises(ValueError, match="no format 'xml'"):
        table.render(made, "xml")


def test_the_recommendation_is_json():
    made = document(own_sizes=ONCE)
    again = json.loads(json.dumps(made["recommendation"], allow_nan=False))
    assert again["arrangement"] == {"metadata": "post:on", "data": "tree:fsync", "whole": False, "above_bytes": AT}
    assert isinstance(again["excluded"], list)


def test_a_plan_that_was_recorded_is_reported_again(tmp_path, capsys, monkeypatch):
    folder = results.Folder.create_at(tmp_path / "plan")
    content = {"profile": "plan", "seed": 1, "plan": [], "cells": [], "targets": {}, "promises": {}, "versions": {}}
    folder.begin(
        content | {"machine": {"id": "0123abcd"}, "commit": None, "command": [], "asked": {}, "directory": None}
    )
    made = document(own_sizes=ONCE)
    folder.write_plan(made)
    folder.finish(0, doubts=[])

    def told(*words):
        monkeypatch.setattr("sys.argv", ["durabench", "report", str(folder.path), *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    assert told().startswith(made["recommendation"]["answer"])
    assert json.loads(told("--format", "json"))["plans"][0]["recommendation"] == made["recommendation"]
    assert told("--format", "markdown").startswith(f"**{made['recommendation']['answer']}**")
    assert told("--format", f"csv={tmp_path / 'plan.csv'}") == ""
    assert (tmp_path / "plan.csv").read_text().startswith("label,")
