"""The cycle beyond its table: pairs of backends, every workload, several writers, and what makes a trial unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from durabench import trial
from durabench.schedule import Asked

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


def of(rows, namespace):
    return [row for row in rows if row["namespace"] == namespace]


def verdicts(rows):
    """Of the rows that were judged: a strike may come before a namespace had its first acknowledgement."""
    judged = [row for row in rows if row["acked"] or row["verdict"] != "unknown"]
    return {(row["verdict"], row["why"]) for row in judged if row["verdict"] != "kept"} or {
        row["verdict"] for row in judged
    }


# --- two backends at once


@pytest.mark.parametrize("fault", ["none", "kill-client", "kill-server"])
def test_two_backends_at_once_keep_both_halves(fault, cycle):
    asked = Asked(metadata=("postgres:on",), data=("files:fsync-dir",), faults=(fault,), trials=4, workload="agent")
    rows = cycle(asked)
    assert verdicts(rows) == {"kept"}
    assert [len(of(rows, name)) for name in ("metadata", "data")] == [4, 4]
    assert {(row["backend"], row["partner"]) for row in rows} == {
        ("postgres", "files:fsync-dir"),
        ("files", "postgres:on"),
    }
    assert {row["dangling"] for row in of(rows, "metadata")} == {0}
    # At most the data that was put for the metadata record that the strike fell into.
    assert all(row["orphan"] <= 1 for row in of(rows, "metadata"))
    assert {(row["dangling"], row["orphan"]) for row in of(rows, "data")} == {(None, None)}


def test_data_that_is_lost_leaves_metadata_dangling(cycle):
    asked = Asked(
        metadata=("files:fsync-dir",), data=("valkey:rdb",), faults=("kill-server",), trials=4, workload="agent"
    )
    rows = cycle(asked)
    for metadata, data in zip(of(rows, "metadata"), of(rows, "data"), strict=True):
        assert (metadata["verdict"], metadata["lost"]) == ("kept", 0), (
            "dangling is counted here, its verdict falls there"
        )
        # One more where the record in doubt is there all the same.
        assert 0 < metadata["acked"] <= metadata["dangling"] <= metadata["acked"] + 1
        assert (data["verdict"], data["lost"]) == ("no-promise", data["acked"])


def test_metadata_that_is_lost_leaves_data_orphaned(cycle):
    asked = Asked(
        metadata=("valkey:rdb",), data=("files:fsync-dir",), faults=("kill-server",), trials=4, workload="agent"
    )
    rows = cycle(asked)
    for metadata, data in zip(of(rows, "metadata"), of(rows, "data"), strict=True):
        assert metadata["verdict"] == "no-promise"
        assert metadata["dangling"] == 0
        assert metadata["orphan"] >= data["acked"] > 0
        assert data["verdict"] == "kept"


# --- workloads and writers


@pytest.mark.parametrize("workload", ["agent", "append", "overwrite", "rotate", "sharded"])
@pytest.mark.parametrize("fault", ["none", "kill-client"])
def test_every_workload_is_kept_by_what_keeps(workload, fault, cycle):
    asked = Asked(backends=("files:fsync-dir", "sqlite:wal-full"), faults=(fault,), trials=4, workload=workload)
    rows = cycle(asked)
    assert verdicts(rows) == {"kept"}
    assert {row["namespace"] for row in rows} == (
        {"metadata"} if workload in ("append", "rotate") else {"metadata", "data"}
    )
    assert sum(row["acked"] for row in rows) > 0


@pytest.mark.parametrize("workload", ["overwrite", "rotate"])
def test_servers_keep_what_is_overwritten_and_deleted(workload, cycle):
    asked = Asked(backends=("postgres:on", "valkey:aof-always"), faults=("kill-server",), trials=3, workload=workload)
    assert verdicts(cycle(asked)) == {"kept"}


@pytest.mark.parametrize("fault", ["none", "kill-client", "kill-server"])
def test_several_writers_die_together(fault, cycle):
    rows = cycle(Asked(backends=("postgres:on",), faults=(fault,), trials=3, writers=3))
    assert verdicts(rows) == {"kept"}
    assert {row["writers"] for row in rows} == {3}


def test_a_fresh_interpreter_does_what_a_forked_one_does(cycle):
    rows = cycle(Asked(backends=("sqlite:wal-full",), faults=("kill-client", "none"), trials=2), driver="fresh")
    assert verdicts(rows) == {"kept"}
    assert {row["driver"] for row in rows} == {"fresh"}


@pytest.mark.parametrize("label", ["postgres:on", "valkey:aof-always"])
def test_the_main_process_may_be_killed_alone(label, cycle):
    rows = cycle(Asked(backends=(label,), faults=("kill-server",), trials=3, server_kill="main"))
    assert verdicts(rows) == {"kept"}
    assert {row["server_kill"] for row in rows} == {"main"}


# --- what a trial measures


def test_an_orderly_stop_measures_puts_and_sizes_and_a_kill_measures_none(cycle):
    rows = cycle(Asked(backends=("files:rename",), faults=("none", "kill-client"), trials=2))
    for row in rows:
        peace = row["fault"] == "none"
        assert ("put_p50_ns" in row and row["put_p50_ns"] > 0) == peace
        assert (row.get("size_bytes", 0) or 0) >= (row["payload_bytes"] if peace else 0)
        assert row["struck"] in ((None,) if peace else ("inside", "after", "before"))
        # What tells, without a trial in peace, whether a strike could have fallen inside a put.
        assert (row["usual_put_ns"] or 0) > 0 or peace or not row["acked"]
        assert row["usual_put_ns"] is None or not peace
        assert row["payload_bytes"] == row["acked"] * 2048
        assert row["recovery_s"] > 0


def test_what_was_acknowledged_before_the_victim_is_known(cycle):
    """The victim is put number ``victim``: all before it were acknowledged, and at most one is in doubt."""
    for row in cycle(Asked(backends=("files:fsync-dir",), faults=("kill-client",), trials=20)):
        assert row["acked"] >= row["victim"] - 1
        assert row["in_doubt"] == (row["struck"] == "inside")


# --- what makes a trial unknown, or broken without a loss


def test_a_setting_that_is_not_in_force_is_unknown(cycle):
    rows = cycle(Asked(backends=("toys:Misled:fsync-dir",), faults=("kill-client",), trials=1))
    assert [row["verdict"] for row in rows] == ["unknown"]
    assert "effective settings promise something else" in rows[0]["why"]


def test_a_server_that_is_the_same_after_its_death_is_unknown(cycle):
    rows = cycle(Asked(backends=("toys:Undead:rename",), faults=("kill-server",), trials=1))
    assert [row["verdict"] for row in rows] == ["unknown"]
    assert "is still the one from before the strike" in rows[0]["why"]


def test_a_server_that_does_not_come_up_again_is_broken_and_lost_is_not_guessed(cycle, monkeypatch):
    monkeypatch.setattr(trial, "READY_S", 2.0)
    rows = cycle(Asked(backends=("toys:Stubborn:rename",), faults=("kill-server",), trials=1))
    for row in rows:
        assert (row["verdict"], row["lost"], row["unavailable"]) == ("broken", None, True)
        assert "the log is damaged, I will not start" in row["why"], "the last lines of its log say why"


def test_a_server_that_is_killed_from_outside_after_its_restart_convicts_nobody(cycle, monkeypatch):
    monkeypatch.setattr(trial, "READY_S", 2.0)
    for row in cycle(Asked(backends=("toys:Slain:rename",), faults=("kill-server",), trials=1)):
        assert (row["verdict"], row["unavailable"]) == ("unknown", False)
        assert row["why"].startswith("ended from outside: ")
        assert "the server ended with -9" in row["why"]


def test_a_put_that_fails_in_peacetime_is_unknown(cycle, monkeypatch):
    rows = cycle(Asked(backends=("toys:Failing:rename",), faults=("none",), trials=1))
    assert [row["verdict"] for row in rows] == ["unknown"]


def test_a_writer_that_dies_by_itself_is_unknown(cycle):
    rows = cycle(Asked(backends=("toys:Suicidal:rename",), faults=("kill-client", "none"), trials=2))
    assert {row["verdict"] for row in rows} == {"unknown"}


def test_nothing_is_left_when_trials_go_wrong(cycle, no_leftovers, tmp_path):
    cycle(Asked(backends=("toys:Undead:rename", "toys:Suicidal:rename"), faults=("kill-client",), trials=3))
    assert list((tmp_path / "disk").iterdir()) == []
