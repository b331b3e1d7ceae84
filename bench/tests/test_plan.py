"""What `durabench plan` answers: through its door, on small sizes; and what its arithmetic must keep to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabench import cli, floor, meter, results, schedule, service
from durabench.cli.options import seconds
from durabench.plan import document, loss, planning, sizes, split, trace
from durabench.plan.accounting import drop_from_cache, written_bytes, written_since
from durabench.row import PLAN, as_markdown
from durabench_backends.contract import DATA, METADATA
from durabench_backends.s3.client import ours

HERE = Path(__file__).parent
TRACE = [{"step": n, "metadata_bytes": 2048, "data_bytes": 65536, "changed": n in (0, 3)} for n in range(6)]


@pytest.fixture(autouse=True)
def _shared(monkeypatch):
    """Other tests work on the same disk."""
    monkeypatch.setenv("DURABENCH_SHARED_DEVICE", "1")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))


def least(**more):
    """The shipped profile with the least that is still a plan."""
    shipped = planning.settings.load()
    effort = {"puts": 6, "put_s": 0.05, "cost_s": 60.0, "coarse_s": 60.0, "fine_s": 0.1, "steps": 8, "fault_trials": 0}
    effort |= {"total_s": 200.0, "rounds": 1, "compressible": False, "traces": ["growing"], **more}
    quick = shipped.quick.model_copy(update=effort)
    return shipped.model_copy(update={"quick": quick, "default": quick})


@pytest.fixture
def small(monkeypatch):
    """A plan that is over at once, and draws nothing."""
    profile = least()
    monkeypatch.setattr(planning.settings, "load", lambda: profile)
    monkeypatch.setattr(cli.plan, "_draw", lambda _planned: [])


# --- what it measures -------------------------------------------------------------------------------------------------


def carried_out(profile, words):
    """The command in this process, under a profile of the tests' own: (exit status, the plan)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DURABENCH_SHARED_DEVICE", "1")
        patch.setenv("PYTHONPATH", str(HERE))
        patch.syspath_prepend(str(HERE))
        patch.setattr(planning.settings, "load", lambda: profile)
        patch.setattr(sys, "argv", ["durabench", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
    return left.value.code


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan over two embedded stores and one that takes no large value, by the user's own steps."""
    top = tmp_path_factory.mktemp("plan")
    steps = top / "steps.jsonl"
    steps.write_text("".join(json.dumps(step) + "\n" for step in TRACE))
    words = ["--sizes", "1KiB..64KiB", "--trace", steps, "--dir", top / "disk", "--out", top / "out", "--seed", "1"]
    for name in ("files:fsync-dir", "sqlite:wal-full", "toys:Narrow:fsync-dir", "files:rename"):
        words += ["--backend", name]
    words += [word for form in ("json", "table", "csv") for word in ("--format", f"{form}={top / form}")]
    status = carried_out(least(rounds=5, fault_trials=1, compressible=True), words)
    plan = json.loads((top / "json").read_text())
    assert status == plan["recommendation"]["status"]
    assert status in (0, 3)  # 3: the disk of the tests need not be quiet
    return plan, top


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """A plan over one store whose puts take 4 ms, and one whose puts take 0.1 µs a byte: they cross at 40,000 bytes."""
    top = tmp_path_factory.mktemp("crossed")
    words = ["--sizes", "1KiB..1MiB", "--survive", "client", "--dir", top / "disk", "--out", top / "out", "--seed", "1"]
    for name in ("toys:Steady:in-place", "toys:Growing:in-place"):
        words += ["--backend", name]
    carried_out(least(rounds=5, fine_s=60.0), [*words, "--format", f"json={top / 'json'}"])
    return json.loads((top / "json").read_text())


def entries(plan, label, payload="incompressible"):
    return [one for one in plan["sweep"] if (one["label"], one["payload"]) == (label, payload)]


def test_every_candidate_is_measured_at_every_size_with_its_cost(planned):
    plan, _ = planned
    assert plan["sizes"] == [1024, 4096, 16384, 65536]
    for label in ("files:fsync-dir", "sqlite:wal-full"):
        coarse = [one for one in entries(plan, label) if one["size_bytes"] in plan["sizes"]]
        assert [one["size_bytes"] for one in coarse] == plan["sizes"]
        for one in coarse:
            assert one["trials"] >= 5
            assert one["puts"] >= one["trials"]
            assert one["put_p50_ns"] > 0
            assert one["put_p50_low_ns"] <= one["put_p50_ns"] <= one["put_p50_high_ns"]
            assert one["writer_bytes_per_put"] >= one["size_bytes"], "no put writes less than its payload"
            assert one["reload_warm_p50_ns"] > 0
            assert one["reload_cold_p50_ns"] or one["cold_why"]
        at_rest = {one["size_bytes"]: one["at_rest_per_payload_byte"] for one in coarse}
        assert at_rest[1024] > 1
        assert at_rest[16384] >= 1
    rewritten = [one["compacted_how"] for one in entries(plan, "sqlite:wal-full") if one["compacted_how"]]
    assert set(rewritten) == {"VACUUM"}
    assert not any(one["compacted_how"] for one in entries(plan, "files:fsync-dir"))


def test_a_crossing_is_found_looked_at_closely_and_named(crossed):
    if not crossed["ranked"]:
        assert crossed["crossings"] == []
        return
    (one,) = crossed["crossings"]
    assert one["fine"]
    assert (one["below"], one["above"]) == ("toys:Growing:in-place", "toys:Steady:in-place")
    assert one["reliable"], one["why"]
    assert one["low"] <= one["at_bytes"] <= one["high"]
    assert 40_000 / 1.5 < one["at_bytes"] < 40_000 * 1.5
    fine = {entry["size_bytes"] for entry in crossed["sweep"] if entry["stage"] == "fine"}
    assert len(fine) == 6
    assert min(fine) < one["at_bytes"] < max(fine)


def test_a_store_that_refuses_a_size_is_left_alone_from_there_on(planned):
    plan, _ = planned
    narrow = next(one for one in plan["candidates"] if one["label"] == "toys:Narrow:fsync-dir")
    assert narrow["largest_bytes"] == 4096
    assert narrow["stopped_bytes"] == 16384
    assert "no more than 8 KiB, says the owner" in narrow["stopped_why"]
    measured = [one for one in entries(plan, "toys:Narrow:fsync-dir") if one["puts"]]
    assert max(one["size_bytes"] for one in measured) < 8192


def test_what_does_not_promise_enough_is_not_swept(planned):
    plan, _ = planned
    rename = next(one for one in plan["candidates"] if one["label"] == "files:rename")
    assert not rename["meets_goal"]
    assert rename["excluded_by"] == "--survive drive"
    assert not entries(plan, "files:rename")


def test_split_writes_data_only_where_it_changed_and_the_accounting_agrees(planned):
    plan, _ = planned
    pairs = {(one["metadata"], one["data"]): one for one in plan["split"]}
    assert ("files:fsync-dir", "files:fsync-dir") in pairs
    assert len(pairs) > 2, "also over two backends"
    whole_step, unchanged = 2048 + 65536, 2048
    for one in pairs.values():
        if one["whole"] is None or one["whole"]["refused"] or one["split"]["refused"]:
            continue
        assert one["bytes_per_step_whole"] == whole_step
        assert one["bytes_per_step_split"] == (6 * 2048 + 2 * 65536) / 6
        assert one["ratios"]["unchanged_payload"] == whole_step / unchanged
        assert one["whole"]["unchanged"]["steps"] == 4
        assert one["split"]["unchanged"]["writer_bytes"] >= unchanged
        assert one["whole"]["writer_bytes"] >= 6 * whole_step
        assert one["split"]["writer_bytes"] >= one["split"]["payload_bytes"]
    files = pairs["files:fsync-dir", "files:fsync-dir"]
    assert files["split"]["unchanged"]["writer_bytes"] == unchanged, "nothing but the metadata is handed to write(2)"
    assert files["whole"]["unchanged"]["writer_bytes"] == whole_step
    assert files["put_many"] is None, "a directory has no transactions"
    assert pairs["sqlite:wal-full", "sqlite:wal-full"]["put_many"]["payload_bytes"] == files["split"]["payload_bytes"]


def test_both_layouts_are_put_through_the_faults(planned):
    plan, _ = planned
    assert any(one["split"]["faults"] for one in plan["split"] if one["metadata"] != one["data"]), "also over two"
    for one in plan["split"]:
        if one["metadata"] == one["data"]:
            assert {fault["fault"] for fault in one["whole"]["faults"]} <= {"kill-client"}, "there is no server to kill"
            for layout in ("whole", "split"):
                for fault in one[layout]["faults"]:
                    assert fault["trials"] + fault["trials_unknown"]
                    if not fault["trials"]:
                        continue
                    assert fault["lost"] == fault["dangling"] == 0
                    assert 0 < fault["bound_high"] < 1
    asked = {(one["metadata"], one["data"], one["layout"], one["fault"]) for one in plan["losses"]}
    assert len(asked) == len(plan["losses"])
    assert all(one["planned"] >= one["trials"] + one["trials_unknown"] for one in plan["losses"])
    assert {one["verdict"] for one in plan["losses"]} <= {"kept", "unknown", "not run"}


def test_the_folder_is_the_usual_one_and_reads_again(planned, typed):
    plan, top = planned
    folder = results.Folder.open(top / "out")
    assert folder.finished
    assert folder.run["profile"] == "plan"
    assert folder.plan_document["sweep"] == plan["sweep"]
    kinds = {row["kind"] for row in folder.plan_rows()}
    assert kinds == {"sweep", "cost", "replay"}
    assert all(row.keys() == PLAN.keys() for row in folder.plan_rows())
    for entry in plan["sweep"]:
        taken = [ns for at, n in entry["samples"] for ns in folder.samples(at, n)]
        assert len(taken) == entry["puts"]
        if taken:
            assert entry["put_p50_ns"] == round(statistics.median(taken))
    status, said, _ = typed("report", top / "out", "--format", "json")
    assert status in (0, 3)
    assert {cell["workload"] for cell in json.loads(said)["cells"]} == {"agent", "whole"}


def test_the_recommendation_comes_first_and_the_curve_is_drawn(planned):
    plan, top = planned
    assert plan["own_sizes"]["source"] == "trace steps.jsonl"
    assert plan["own_sizes"]["steps"] == [[2048, 65536, step["changed"]] for step in TRACE]
    first = (top / "table").read_text().splitlines()[0]
    assert first == plan["recommendation"]["answer"]
    assert (top / "out" / "latency-by-size.svg").read_text().lstrip().startswith("<")
    assert (top / "out" / "latency-by-size.png").stat().st_size
    assert len((top / "csv").read_text().splitlines()) == 1 + len(plan["sweep"])


def test_every_member_is_documented(planned):
    plan, _ = planned
    text = (HERE.parents[1] / "results" / "README.md").read_text()
    section = text[text.index("## Plans") : text.index("## Comparisons")]
    assert as_markdown(PLAN) in section
    split_entry = next(one for one in plan["split"] if one["put_many"])
    members = {*plan, *plan["candidates"][0], *plan["sweep"][0], *split_entry, *split_entry["ratios"]}
    members |= {*split_entry["whole"], *split_entry["whole"]["unchanged"], *plan["own_sizes"]}
    members -= {"results", "machine", "seed"}
    assert [name for name in sorted(members) if f"`{name}`" not in section] == []


def test_nothing_is_left_on_the_disk_under_test(planned):
    _, top = planned
    assert list((top / "disk").iterdir()) == []
    told = [path for path in (top / "out").glob("*.json*") if ".durabench-" in path.read_text()]
    assert told == [], "where a store lay is nobody's business"


# --- what bad input gets ----------------------------------------------------------------------------------------------

BAD_STEPS = [
    ('{"step": 0, "metadata_bytes": 1, "data_bytes": 1, "changed": true}\n{"step": 1}\n', "line 2: metadata_bytes"),
    ('{"step": 0, "metadata_bytes": -1, "data_bytes": 1, "changed": true}\n', "line 1: metadata_bytes is -1"),
    ('{"step": 0, "metadata_bytes": 1, "data_bytes": 1.5, "changed": true}\n', "line 1: data_bytes is 1.5"),
    ('{"step": 0, "metadata_bytes": 1, "data_bytes": 1, "changed": "perhaps"}\n', "line 1: changed is 'perhaps'"),
    ('{"step": 0, "metadata_bytes": 1\n', "line 1: no JSON object"),
    ("step,metadata_bytes,changed\n0,1,true\n", "line 1: the heading has no data_bytes"),
    ("step,metadata_bytes,data_bytes,changed\n0,1,2,true\n1,2,,false\n", "line 3: data_bytes is missing"),
    ("step,metadata_bytes,data_bytes,changed\n0,1,2,true\n1,2,-5,false\n", "line 3: data_bytes is '-5'"),
    ("step,metadata_bytes,data_bytes,changed\n", "has no steps"),
]


@pytest.mark.parametrize("content, said", BAD_STEPS)
def test_a_trace_names_the_line_that_cannot_be_read(tmp_path, typed, content, said):
    path = tmp_path / "trace"
    path.write_text(content)
    status, out, err = typed("plan", "--trace", path, "--dir", tmp_path / "disk")
    assert (status, out) == (2, "")
    assert said in err


def test_a_trace_in_csv_says_the_same_as_one_in_json(tmp_path):
    rows = ["step,metadata_bytes,data_bytes,changed"]
    rows += [f"{one['step']},{one['metadata_bytes']},{one['data_bytes']},{one['changed']}" for one in TRACE]
    (tmp_path / "a").write_text("\n".join(rows))
    (tmp_path / "b").write_text("\n".join(json.dumps(one) for one in TRACE))
    assert trace.read(tmp_path / "a").steps == trace.read(tmp_path / "b").steps


@pytest.mark.parametrize("asked", ["much", "64KiB", "64KiB..1KiB", "0..1KiB", "1KiB..", "-1..5", "1KiB..1KiB"])
def test_sizes_that_cannot_be_parsed_are_a_usage_error(tmp_path, typed, asked):
    status, out, err = typed("plan", f"--sizes={asked}", "--dir", tmp_path)
    assert (status, out) == (2, "")
    assert err.startswith("durabench: ")


@pytest.mark.parametrize(
    "option, value",
    [("--max-p99", "20 parsecs"), ("--max-loss", "-1s"), ("--max-bytes-per-step", "much"), ("--survive", "me")],
)
def test_a_goal_that_cannot_be_read_is_a_usage_error(tmp_path, typed, option, value):
    status, out, _ = typed("plan", f"{option}={value}", "--dir", tmp_path)
    assert (status, out) == (2, "")


def test_times_have_units():
    assert [seconds(text) for text in ("20ms", "2s", "1.5m", "1h", "3")] == [0.02, 2.0, 90.0, 3600.0, 3.0]


def test_a_goal_that_nothing_meets_names_what_excludes_each(tmp_path, typed):
    words = (
        "plan",
        "--backend",
        "files:rename",
        "--backend",
        "postgres:off",
        "--backend",
        "s3-moto",
        "--dir",
        tmp_path,
    )
    status, out, err = typed(*words)
    assert (status, out) == (1, "")
    assert "files:rename: --survive drive (no promise when the machine dies)" in err
    assert "postgres:off: --max-loss 0s (may lose the last 0.6 s when the server dies)" in err
    assert "s3-moto:unversioned" in err


def test_a_weaker_goal_lets_a_cheaper_setting_of_each_kind_in():
    from durabench.plan import candidates
    from durabench_backends.contract import Domain, Goal

    kinds = planning.settings.load().kinds

    def chosen(goal):
        return [one.label for one in candidates.choose((), kinds, goal) if one.excluded_by is None]

    assert chosen(Goal()) == ["files:fsync-dir", "sqlite:wal-full", "postgres:on", "valkey:aof-always"]
    assert chosen(Goal(Domain.DRIVE, 2.0)) == [
        "files:fsync-dir",
        "sqlite:wal-full",
        "postgres:off",
        "valkey:aof-everysec",
    ]
    assert chosen(Goal(Domain.SERVER)) == ["files:rename", "sqlite:wal-normal", "postgres:on", "valkey:aof-no"]


def test_a_disk_too_small_is_known_before_anything_runs(tmp_path, typed, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(planning.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    status, out, err = typed("plan", "--quick", "--backend", "files:fsync-dir", "--dir", tmp_path / "disk")
    assert (status, out) == (3, "")
    assert "has 1 MiB free and the sweep may need" in err
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_floor_that_moved_too_much_is_no_ranking(tmp_path, typed, monkeypatch, small):
    measured = iter(range(1, 10_000))

    def drifting(directory, times=1):
        yield floor.Floor(2048, (100_000 * next(measured) ** 3,) * 5)

    monkeypatch.setattr(floor, "measure", drifting)
    words = (
        "--backend",
        "files:fsync-dir",
        "--sizes",
        "1KiB..4KiB",
        "--out",
        tmp_path / "out",
        "--dir",
        tmp_path / "disk",
    )
    status, out, err = typed("plan", "--quick", *words, "--format", "json")
    assert status == 3
    plan = json.loads(out)
    assert not plan["ranked"]
    assert "the disk's own flush moved between" in plan["not_ranked_why"]
    assert plan["crossings"] == []
    assert "could not tell: the disk's own flush moved" in err


def test_a_store_that_loses_in_peace_is_no_measurement(tmp_path, typed, small):
    words = ("--backend", "toys:Absent:fsync-dir", "--sizes", "1KiB..4KiB", "--out", tmp_path / "out")
    status, _, err = typed("plan", "--quick", *words, "--dir", tmp_path / "disk")
    assert status == 3
    assert "value-0002 was acknowledged and is not there, with nothing killed" in err


def test_a_documented_limit_stops_before_it_is_tried(tmp_path, typed, small):
    words = ("--backend", "toys:Bounded:fsync-dir", "--sizes", "2KiB..32KiB", "--out", tmp_path / "out")
    status, out, _ = typed("plan", "--quick", *words, "--dir", tmp_path / "disk", "--format", "json")
    assert status in (0, 1, 3)  # 1: the built-in steps may have larger data
    plan = json.loads(out)
    (one,) = plan["candidates"]
    assert one["stopped_bytes"] == 32768
    assert one["stopped_why"] == "its limit is 8 KiB (the owner's manual)"
    assert {entry["size_bytes"] for entry in plan["sweep"]} == {2048, 8192}
    assert plan["split"][0]["split"]["growth"] == "N^2", "data that grows and is new at every step"


def test_ctrl_c_leaves_what_was_measured_and_says_so(tmp_path):
    out = tmp_path / "out"
    words = ["plan", "--quick", "--backend", "files:fsync-dir", "--sizes", "1KiB..1MiB", "--out", out]
    began = subprocess.Popen(
        [sys.executable, "-m", "durabench", *map(str, words), "--dir", str(tmp_path / "disk")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    rows = out / "plan.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (rows.exists() and rows.read_text().count('"sweep"') > 6):
        assert began.poll() is None
        time.sleep(0.05)
    began.send_signal(signal.SIGINT)
    _, err = began.communicate(timeout=60)
    assert began.returncode == 130, err
    assert f"interrupted; what was measured is kept in {out}" in err
    folder = results.Folder.open(out)
    assert not folder.finished
    plan = folder.plan_document
    assert plan["interrupted"]
    assert plan["recommendation"] is None
    assert plan["sweep"]
    assert list((tmp_path / "disk").iterdir()) == []


def test_somebodys_database_is_planned_with_and_left_as_it_was(tmp_path, typed, small):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE mine (value BLOB)")
        connection.execute("INSERT INTO mine VALUES (x'00')")
    connection.close()
    url = f"sqlite:///{path}?journal_mode=wal&synchronous=full"
    words = ("--backend", url, "--sizes", "1KiB..4KiB", "--out", tmp_path / "out", "--dir", tmp_path / "disk")
    status, out, err = typed("plan", "--quick", *words, "--format", "json")
    assert status in (0, 3), err
    plan = json.loads(out)
    assert [one["label"] for one in plan["candidates"]] == [f"sqlite:live ({url})"]
    assert {entry["size_bytes"] for entry in plan["sweep"]} == {1024, 4096}
    assert not any(entry["compacted_how"] for entry in plan["sweep"]), "nobody's file is rewritten"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall() == [("mine",)]
    connection.close()
    status, _, err = typed("plan", "--backend", url, "--backend", f"sqlite:///{path}", "--dir", tmp_path / "disk")
    assert status == 2
    assert "sqlite:live twice: one URL of each kind at a time" in err


# --- the user's own sizes ---------------------------------------------------------------------------------------------


def state_of(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def own_sizes(url, tmp_path):
    from durabench.ground import Ground
    from durabench.plan.own import sizes_at

    ground = Ground(tmp_path / "scratch")
    try:
        return sizes_at(url, ground)
    finally:
        ground.close()


def test_sizes_are_read_from_a_directory_and_nothing_is_written(tmp_path):
    store = tmp_path / "store"
    (store / "deep").mkdir(parents=True)
    for number, size in enumerate((0, 100, 100, 5000)):
        (store / "deep" / str(number)).write_bytes(b"x" * size)
    (store / "link").symlink_to(store / "deep" / "3")
    before = state_of(store)
    found = own_sizes(f"file://{store}", tmp_path)
    assert (found["values"], found["total_bytes"], found["quantiles"]["max"]) == (4, 5200, 5000)
    assert sum(count for _, count in found["histogram"]) == 4
    assert found["steps"] is None
    assert state_of(store) == before


def test_sizes_are_read_from_a_database_whose_log_was_left(tmp_path):
    (tmp_path / "db").mkdir()
    path = tmp_path / "db" / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("CREATE TABLE checkpoints (id INTEGER PRIMARY KEY, thread TEXT, value BLOB, more BLOB)")
    connection.execute("CREATE TABLE other (value BLOB)")
    connection.executemany("INSERT INTO checkpoints VALUES (?, 'abc', ?, NULL)", [(n, b"x" * 1000) for n in range(7)])
    connection.commit()
    before = state_of(tmp_path / "db")
    found = own_sizes(f"sqlite:///{path}#checkpoints", tmp_path)
    assert (found["values"], found["total_bytes"]) == (7, 7 * 1003), "what is only in the log counts"
    assert state_of(tmp_path / "db") == before
    connection.close()
    assert own_sizes(f"sqlite:///{path}", tmp_path)["values"] == 7
    assert [entry.name for entry in (tmp_path / "db").iterdir()] == ["app.db"]


def test_sizes_are_read_from_servers_by_prefix_or_table(tmp_path, monkeypatch):
    """One of each kind of server; nothing of theirs is changed by it."""
    sizes_put = [10, 20, 20, 30_000]
    with service.running("valkey", "aof-no", tmp_path / "valkey") as one:
        store = one.backend.open("data")
        for number, size in enumerate(sizes_put):
            store.put(f"k{number}", b"x" * size)
        store.close()
        host, port = one.machine.address(one.machine.port("store/valkey"))
        found = own_sizes(f"valkey://{host}:{port}#durabench:data:", tmp_path)
        assert (found["values"], found["total_bytes"]) == (4, sum(sizes_put))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "mock")
    with service.running("s3-moto", "unversioned", tmp_path / "moto") as one:
        store = one.backend.open("data")
        for number, size in enumerate(sizes_put):
            store.put(f"k{number}", b"x" * size)
        host, port = one.machine.address(one.machine.port("store/s3"))
        url = f"s3://{ours(port, '', '').bucket}/data?endpoint_url=http://{host}:{port}&region=us-east-1"
        found = own_sizes(url, tmp_path)
        assert (found["values"], found["total_bytes"]) == (4, sum(sizes_put))


@pytest.mark.parametrize(
    "url, status, said",
    [
        ("sqlite:////nowhere/app.db", 3, "/nowhere/app.db does not exist"),
        ("nowhere", 2, "--from takes a URL"),
        ("gopher://nowhere", 2, "unknown URL scheme"),
        ("s3-moto", 2, "--from takes a URL"),
    ],
)
def test_what_cannot_be_listed_is_said_in_one_line(tmp_path, typed, url, status, said):
    left, out, err = typed("plan", "--from", url, "--dir", tmp_path / "disk", "--backend", "files:fsync-dir")
    assert (left, out) == (status, "")
    assert said in err
    assert "Traceback" not in err


# --- arithmetic -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 30), st.integers(2, 1 << 30))
def test_a_grid_goes_from_end_to_end_and_its_neighbours_are_apart(low, factor):
    high = low * factor
    made = sizes.grid(low, high)
    assert made[0] == low
    assert made[-1] == high
    ratios = [b / a for a, b in pairwise(made)]
    assert all(1 < ratio < 8 for ratio in ratios)
    assert all(ratio == 4 for ratio in ratios[:-1])


@given(st.lists(st.integers(0, 1 << 33), max_size=50))
def test_a_histogram_loses_no_value_and_its_edges_lie_below(some):
    bins = sizes.histogram(some)
    assert sum(count for _, count in bins) == len(some)
    edges = [edge for edge, _ in bins]
    assert edges == sorted(set(edges))
    for size in some:
        below = max(edge for edge in edges if edge <= size)
        assert size <= below * sizes.BIN + 2


steps = st.lists(
    st.builds(trace.Step, st.integers(0, 9999), st.integers(0, 99999), st.booleans()), min_size=1, max_size=30
)


@given(steps)
def test_every_layout_puts_what_the_trace_says(some):
    one = trace.Trace("any", some)
    puts = {layout: split.steps_of(one, layout, 1) for layout in ("whole", "split", "put_many")}
    assert puts["whole"].payload_bytes(len(some)) == one.whole_bytes
    assert puts["split"].payload_bytes(len(some)) == one.split_bytes == puts["put_many"].payload_bytes(len(some))
    for layout, made in puts.items():
        for step, parts in zip(some, made.steps, strict=True):
            names = [namespace for namespace, _, _ in parts]
            assert names == ([DATA, METADATA] if step.changed and layout != "whole" else [METADATA]), "data comes first"
        keys = [(namespace, key) for step in made.steps for namespace, key, _ in step]
        assert len(keys) == len(set(keys))


def test_the_arithmetical_limit_of_the_headline():
    one = trace.once(50)
    assert round(one.whole_bytes / one.split_bytes, 1) == 49.7


@given(st.integers(0, 20000), st.booleans(), st.integers(0, 5))
def test_values_can_be_made_again_and_have_their_size(size, compressible, seed):
    first = meter.value_part(seed, "name", size, compressible=compressible)
    assert len(first) == size
    assert first == meter.value_part(seed, "name", size, compressible=compressible)


def test_noise_does_not_shrink_and_records_do():
    import zlib

    shrunk = {kind: len(zlib.compress(meter.value_part(1, "a", 1 << 18, compressible=kind))) for kind in (False, True)}
    assert shrunk[False] > 1 << 18
    assert shrunk[True] < 1 << 17


def test_the_largest_value_is_never_held_often(tmp_path):
    """A value is made, put and told in at most three times its size: 64 MiB then fit into 256."""
    import tracemalloc

    size = 8 << 20
    order = {
        **dict.fromkeys(("compressible", "warm_up", "together", "each"), False),
        "seed": 1,
        "at_least": 1,
        "limit_s": 60,
        "targets": {},
        "steps": [[(DATA, f"k{n}", [(f"k{n}", size)])] for n in range(3)],
    }

    class Sink:
        def put(self, key, value):
            assert len(value) == size

        def close(self):
            pass

    tracemalloc.start()
    try:
        meter.take_steps({DATA: Sink()}, order, lambda event: None, lambda: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * size


@pytest.mark.parametrize(
    "half, full, growth", [(100, 200, "N"), (100, 400, "N^2"), (100, 100, None), (None, 100, None), (0, 100, None)]
)
def test_growth_is_with_n_or_with_its_square(half, full, growth):
    row = {"share_half_bytes": half, "share_bytes": full, "puts": 4, "payload_bytes": 400}
    assert document._layout(row, [])["growth"] == growth


def test_bytes_of_processes_that_begin_meanwhile_count_whole():
    assert written_since({1: 10, 2: 5}, {1: 30, 3: 7}) == 27
    assert written_since(None, {1: 30}) is None


def test_the_kernel_counts_what_this_process_wrote(tmp_path):
    before = written_bytes([os.getpid()])
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    assert written_since(before, written_bytes([os.getpid()])) == 10_000


def test_a_dropped_file_is_seen_to_be_gone(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "empty").touch()
    assert drop_from_cache(tmp_path) in (True, False)  # a file system in memory cannot drop
    if planning.results.why_no_latency(tmp_path) is None:
        assert drop_from_cache(tmp_path)


def trial_row(trial, namespace="metadata", label="b:s", **words):
    backend, setting = label.split(":")
    same = {"workload": "agent", "fault": "kill-client", "verdict": "kept", "partner": None, "why": "nothing lost"}
    same |= dict.fromkeys(("lost", "stale", "damaged_acked", "resurrected", "dangling"), 0) | {"unavailable": False}
    return {**same, "trial": trial, "namespace": namespace, "backend": backend, "setting": setting, **words}


def over_two(trial, metadata=None, data=None, **words):
    """A trial of ``agent`` with metadata in b:s and data in c:t."""
    yield trial_row(trial, partner="c:t", **words, **(metadata or {}))
    yield trial_row(trial, "data", "c:t", partner="b:s", **words, **(data or {}))


def test_a_layout_that_loses_is_counted_by_trials():
    rows = [trial_row(0), trial_row(0, "data", lost=3, verdict="broken"), trial_row(1, dangling=1)]
    rows += [trial_row(2, verdict="unknown", lost=9, why="the reader died")]
    rows += over_two(3, {"lost": 5, "verdict": "broken"}, {"lost": 2, "verdict": "broken"})
    (found,) = loss.summary(rows, "b:s", "b:s", "split")
    assert (found["trials"], found["trials_with_loss"], found["lost"], found["dangling"]) == (2, 1, 3, 1)
    assert (found["verdict"], found["trials_unknown"], found["unknown_why"]) == ("broken", 1, "the reader died")
    assert loss.summary(rows, "b:s", "b:s", "whole") == []
    (two,) = loss.summary(rows, "b:s", "c:t", "split")
    assert (two["trials"], two["trials_with_loss"], two["lost"]) == (1, 1, 7)
    assert loss.summary(rows, "c:t", "b:s", "split") == []


@pytest.mark.parametrize("how", ["lost", "stale", "damaged_acked", "resurrected"])
def test_whatever_is_not_what_was_acknowledged_is_a_loss_of_the_one_that_kept_it(how):
    rows = [row for n in range(6) for row in over_two(n, data={how: 2, "verdict": "broken", "why": f"2 {how}"})]
    (found,) = loss.summary(rows, "b:s", "c:t", "split")
    assert (found["trials"], found["trials_with_loss"], found[how]) == (6, 6, 12)
    assert found["guilty"] == [{"label": "c:t", "trials": 6, "why": f"2 {how}"}], "b:s kept everything"
    assert found["bound_high"] == 1.0


def test_what_does_not_come_up_is_counted_apart_from_what_is_lost():
    down = {"lost": None, "stale": None, "damaged_acked": None, "resurrected": None, "unavailable": True}
    rows = [row for n in range(3) for row in over_two(n)]
    rows += over_two(3, {**down, "verdict": "broken", "why": "unavailable: it will not start"})
    (found,) = loss.summary(rows, "b:s", "c:t", "split")
    assert (found["trials"], found["trials_with_loss"], found["trials_unavailable"]) == (4, 0, 1)
    assert found["bound_high"] == pytest.approx(1 - 0.025 ** (1 / 3)), "of the three that can tell what they lost"
    assert [each["label"] for each in found["guilty"]] == ["b:s"]


def test_a_trial_of_which_a_half_is_unknown_is_not_judged_unless_the_other_half_is_broken():
    unknown = {"verdict": "unknown", "why": "window not exercised"}
    rows = [*over_two(0, unknown), *over_two(1, unknown, {"verdict": "broken", "lost": 1}), *over_two(2)]
    (found,) = loss.summary(rows, "b:s", "c:t", "split")
    assert (found["trials"], found["trials_unknown"], found["trials_with_loss"]) == (2, 1, 1)
    (found,) = loss.summary(list(over_two(0, unknown)), "b:s", "c:t", "split")
    assert (found["trials"], found["verdict"], found["bound_high"]) == (0, "unknown", None)


def test_every_arrangement_that_was_planned_is_told_of_also_where_none_of_its_trials_ran():
    from durabench.service import Target

    files, valkey = Target("files", "fsync-dir"), Target("valkey", "aof-everysec")
    cells = [
        ("agent", schedule.Cell(valkey, files, "kill-server")),
        ("whole", schedule.Cell(files, files, "kill-client")),
    ]
    some = loss.plans(cells, 3, 1)
    rows = [trial_row(0, label="files:fsync-dir", workload="whole")]
    first, second = loss.table(rows, some)
    assert (first["metadata"], first["data"], first["layout"]) == ("valkey:aof-everysec", "files:fsync-dir", "split")
    assert (first["planned"], first["trials"], first["trials_unknown"], first["verdict"]) == (3, 0, 0, "not run")
    assert (second["planned"], second["trials"], second["verdict"]) == (3, 1, "kept")


@pytest.mark.parametrize(
    "setting, fault, window_s", [("aof-everysec", "kill-server", 2.0), ("aof-everysec", "kill-client", 0.0)]
)
def test_the_trials_of_a_plan_are_paced_as_those_of_a_run(setting, fault, window_s):
    from durabench.service import Target
    from durabench.trial import WINDOWS_SPANNED

    target = Target("valkey", setting)
    for one in loss.plans([("agent", schedule.Cell(target, target, fault))], 20, 1):
        assert one.pace_s * (one.victim - 1) == pytest.approx(WINDOWS_SPANNED * window_s)
        assert one == schedule.paced(one)


def test_a_window_is_exercised_by_the_trials_of_a_plan(cycle):
    from durabench.service import Target

    target = Target("postgres", "off")
    rows = cycle.plans(loss.plans([("whole", schedule.Cell(target, target, "kill-server"))], 3, 1))
    (found,) = loss.summary(rows, "postgres:off", "postgres:off", "whole")
    assert (found["trials"], found["trials_unknown"]) == (3, 0)
    assert found["verdict"] in ("within", "kept")


def test_where_time_is_short_the_sizes_that_steps_put_stay_longest():
    from durabench.plan import candidates, sweep
    from durabench.service import Target

    one = candidates.Candidate(Target("files", "fsync-dir"), "T3")
    grid = sizes.grid(1024, 64 << 20)
    told = []

    class Silent:
        def say(self, what):
            told.append(what)

    going = sweep.Sweep(Silent(), planning.settings.load().default, [one], None, wanted=frozenset({1024, 1 << 20}))
    going._seconds = {(one.label, size): 1.0 for size in grid}
    left = going._affordable([sweep.Visit(one, size) for size in grid], 1, 5.0)
    assert [visit.size_bytes for visit in left] == [1024, 4096, 16384, 65536, 1 << 20]
    assert told[0].startswith("64 MiB was left out of the last 1 rounds")
    assert [visit.size_bytes for visit in going._affordable(left, 1, 0.0)] == [1024, 4096, 16384, 1 << 20]
