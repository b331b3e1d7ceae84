"""From a history to rows: each namespace by its own promise, for what the fault destroyed, versions where promised."""

from __future__ import annotations

import pytest

from durabench import judgement, payload
from durabench.service import Target
from durabench.trial import Outcome, TrialPlan
from durabench_backends.contract import DATA, METADATA, Domain, Promise

SEED = 3
FILES = Target("files", "fsync-dir")
SAFE = Promise(dict.fromkeys(Domain, 0.0), Domain.AT_REST, Domain.AT_REST, "everything")
CLIENT_ONLY = Promise({Domain.CLIENT: 0.0}, None, None, "nothing when only the client dies")


def put(index, namespace, key):
    where = {"w": 0, "i": index}
    return [
        {"e": "armed", **where, "t": index, "verb": "put", "ns": namespace, "key": key, "seq": index, "size": 600},
        {"e": "ok", **where, "t": index + 1, "latency_ns": 1},
    ]


def value(namespace, key, sequence):
    content = payload.make(SEED, namespace, key, sequence, 600)
    blocks = payload.read(SEED, namespace, key, content)
    return {"length": len(content), "sha256": payload.digest(content), "blocks": blocks}


def reading(namespace, key, sequence, **more):
    content = None if sequence is None else value(namespace, key, sequence)
    return {"e": "reading", "ns": namespace, "key": key, "value": content, **more}


def rows(events, held, fault="cut-power"):
    plan = TrialPlan(7, SEED, FILES, FILES, "agent", fault)
    strike = [{"e": "strike", "t": 100}, {"e": "struck", "where": "inside"}, {"e": "up", "recovery_ns": 1}]
    keys = {namespace: [] for namespace in (METADATA, DATA)}
    for event in events:
        if event["e"] == "reading" and event["value"] is not None:
            keys[event["ns"]].append(event["key"])
    listings = [{"e": "listing", "ns": namespace, "keys": some} for namespace, some in keys.items()]
    told = [{"e": "trial", "seed": SEED}, *events, *strike, *listings]
    return judgement.rows(Outcome(plan, told), {name: judgement.Held(*each) for name, each in held.items()}, "h", "f")


def test_there_is_a_row_for_each_namespace_that_was_written_to():
    written = [*put(1, METADATA, "m"), *put(2, DATA, "d"), reading(METADATA, "m", 1), reading(DATA, "d", 2)]
    both = rows(written, {METADATA: (SAFE,), DATA: (SAFE,)})
    assert [(row["namespace"], row["verdict"], row["acked"]) for row in both] == [
        (METADATA, "kept", 1),
        (DATA, "kept", 1),
    ]
    (alone,) = rows([*put(1, METADATA, "m"), reading(METADATA, "m", 1)], {METADATA: (SAFE,), DATA: (SAFE,)})
    assert (alone["namespace"], alone["payload_bytes"]) == (METADATA, 600)
    assert rows([], {METADATA: (SAFE,), DATA: (SAFE,)})[0]["verdict"] == "unknown", "nothing was written at all"


def test_each_is_held_against_its_own_promise():
    lost = [*put(1, METADATA, "m"), *put(2, DATA, "d"), reading(METADATA, "m", None), reading(DATA, "d", None)]
    verdicts = [row["verdict"] for row in rows(lost, {METADATA: (SAFE,), DATA: (CLIENT_ONLY,)})]
    assert verdicts == ["broken", "no-promise"]
    verdicts = [row["verdict"] for row in rows(lost, {METADATA: (CLIENT_ONLY,), DATA: (SAFE,)})]
    assert verdicts == ["no-promise", "broken"]


@pytest.mark.parametrize(
    "fault, destroyed, verdict",
    [
        ("kill-client", "client", "broken"),
        ("kill-server", "server", "no-promise"),
        ("cut-power", "drive", "no-promise"),
        ("lying-drive", "flushed", "no-promise"),
    ],
)
def test_a_trial_is_judged_by_what_its_fault_destroys(fault, destroyed, verdict):
    lost = [*put(1, METADATA, "m"), reading(METADATA, "m", None)]
    (row,) = rows(lost, {METADATA: (CLIENT_ONLY,), DATA: (CLIENT_ONLY,)}, fault)
    assert (row["destroyed"], row["verdict"], row["lost"]) == (destroyed, verdict, 1)


@pytest.mark.parametrize("promised, lost, verdict", [(True, 1, "broken"), (False, 0, "kept")])
def test_older_versions_are_judged_where_they_are_promised(promised, lost, verdict):
    newest = value(METADATA, "m", 2)
    overwritten = [*put(1, METADATA, "m"), *put(2, METADATA, "m"), reading(METADATA, "m", 2, versions=[newest])]
    (row,) = rows(overwritten, {METADATA: (SAFE, promised), DATA: (SAFE,)})
    assert (row["lost"], row["verdict"]) == (lost, verdict)
    assert row["versions_lost"] == (None if promised else 1)
