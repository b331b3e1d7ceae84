"""A server that is killed in a live guest while its drive answers flushes late."""

from __future__ import annotations

import threading

import pytest

from durabench import campaign, fault, judgement, profile, schedule
from durabench.ground import Ground
from durabench.guest import Laboratory
from durabench.recorded import _Moment
from durabench.schedule import Asked
from durabench.service import Target
from durabench.trial import TrialPlan


def planned(label, trials=1, workload="append"):
    quick = profile.load("quick")
    asked = Asked(backends=(label,), faults=("slow-drive",), trials=trials, workload=workload, seed=3)
    cells = schedule.cells(asked, quick)
    assert [cell.why for cell in cells if cell.verdict] == [], "a machine can be reset here"
    return [plan for plan in schedule.plans(cells, asked, quick) if plan.control is None]


def ran(plans, directory):
    """What the trials left, in one laboratory."""
    ground, told, seconds = Ground(directory), [], []
    try:
        laboratory = Laboratory(ground, print)
        try:
            laboratory.prepare({plan.metadata for plan in plans}, {plans[0].filesystem}, "append")
            for members in schedule.recordings(plans):
                campaign.run_recording(members, laboratory, None, {}, told.append, threading.Event(), seconds)
        finally:
            laboratory.close()
    finally:
        ground.close()
    return told


def rows(outcome):
    return judgement.rows(outcome, campaign.held(outcome.plan, {}), "host", "folder")


def test_every_put_that_waits_for_a_flush_takes_as_long_as_the_drive_is_late(tmp_path):
    """Lower bounds only: that a put took so long cannot be anything but the drive, however busy this host is."""
    (always, everysec) = ran([*planned("valkey:aof-always"), *planned("valkey:aof-everysec")], tmp_path / "disk")
    late_ns = fault.LATE_FLUSH_S * 1e9
    taken = [event["latency_ns"] for event in always.events if event["e"] == "ok"]
    assert taken
    assert min(taken) >= late_ns
    assert [(row["verdict"], row["flush_delay_s"]) for row in rows(always)] == [("kept", fault.LATE_FLUSH_S)]
    (row,) = rows(everysec)
    assert row["verdict"] in ("within", "kept"), row["why"]
    assert (row["flush_delay_s"], row["lane"], row["unavailable"]) == (fault.LATE_FLUSH_S, "guest", False)
    for one in (always, everysec):
        assert sum(event["e"] in ("info", "fail") for event in one.events) <= 1


def armed(number, namespace="metadata", writer=0):
    return {"e": "armed", "w": writer, "i": number, "verb": "put", "ns": namespace}


@pytest.mark.parametrize("late", [False, True])
def test_the_victim_is_struck_once_every_namespace_has_an_acknowledgement_or_the_next_where_puts_are_slow(late):
    target = Target("valkey", "aof-always")
    moment = _Moment(TrialPlan(0, 0, target, target, "agent", "slow-drive"), victim=4)
    ready, ok = {"e": "ready", "w": 0, "identity": {}}, {"e": "ok", "w": 0}
    assert not moment.has_come(ready)
    if late:
        moment.due = 0.0
    assert not moment.has_come(armed(0, "data"))
    assert not moment.has_come(ok)
    assert not moment.has_come(armed(1)), "the metadata has none"
    assert not moment.has_come(armed(0, writer=1)), "the first writer's puts count"
    assert not moment.has_come(ok)
    assert moment.has_come(armed(2)) is late
    assert moment.has_come(armed(3))
