"""What every workload's plan keeps to, whatever its seed, writer and number of writers."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench import workload
from durabench.trial import VICTIMS, namespaces
from durabench_backends.contract import DATA, METADATA, check_key

NAMES = sorted(workload.WORKLOADS)
LENGTH = 200
few = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**48)
team = st.integers(1, 8)


def planned(name, seed=0, writer=0, writers=1):
    return list(islice(workload.load(name)(writer, writers).plan(Random(f"{seed}/{writer}")), LENGTH))


names = pytest.mark.parametrize("name", NAMES)


@names
@few
@given(seed=seeds)
def test_the_same_seed_gives_the_same_plan(name, seed):
    assert planned(name, seed) == planned(name, seed)


@names
@few
@given(seed=seeds, writers=team)
def test_data_is_put_before_the_metadata_that_refers_to_it(name, seed, writers):
    for writer in range(writers):
        put = {}
        for op in planned(name, seed, writer, writers):
            if op.namespace == DATA:
                assert op.verb == "put"
                put[op.key] = op.sequence
            for key, sequence in op.refers:
                assert op.namespace == METADATA
                assert put.get(key) == sequence, "what is committed is the newest there is of that key"
        if DATA in namespaces(name):
            assert all(op.refers for op in planned(name, seed, writer, writers) if op.namespace == METADATA)


@names
@few
@given(seed=seeds, writers=team)
def test_sequences_are_unique_in_a_trial_and_grow_with_each_writer(name, seed, writers):
    every = [[op.sequence for op in planned(name, seed, writer, writers)] for writer in range(writers)]
    assert all(sequences == sorted(sequences) for sequences in every)
    flat = [sequence for sequences in every for sequence in sequences]
    assert len(set(flat)) == len(flat)
    assert min(flat) > 0, "0 is what a block of zeros would read"


@names
@few
@given(seed=seeds, writers=st.integers(2, 8))
def test_writers_never_touch_the_same_key(name, seed, writers):
    touched = [{(op.namespace, op.key) for op in planned(name, seed, writer, writers)} for writer in range(writers)]
    assert sum(map(len, touched)) == len(set().union(*touched))


@names
@few
@given(seed=seeds, writers=team)
def test_keys_are_allowed_and_sizes_are_those_of_the_design(name, seed, writers):
    for op in planned(name, seed, writers - 1, writers):
        check_key(op.key)
        if op.verb == "put":
            data = 65536 if name == "sharded" else 1 << 20
            assert op.size == (2048 + data if name == "whole" else {METADATA: 2048}.get(op.namespace, data))


@names
@few
@given(seed=seeds)
def test_every_victim_is_reached(name, seed):
    assert sum(op.verb == "put" for op in planned(name, seed)) > max(VICTIMS)


@few
@given(seed=seeds)
def test_rotate_deletes_only_the_fourth_oldest_after_two_newer_were_read_back(seed):
    held, read = [], set()
    for op in planned("rotate", seed):
        if op.verb == "put":
            held.append(op.key)
            read = set()
        elif op.verb == "get":
            assert op.key in held
            read.add(op.key)
        else:
            assert op.key == held[0]
            assert len(held) == 4
            assert read == set(held[-2:])
            held.pop(0)
    assert len(held) in (3, 4)


@few
@given(seed=seeds)
def test_overwrite_has_one_key_of_each(seed):
    assert {(op.namespace, op.key) for op in planned("overwrite", seed)} == {(METADATA, "checkpoint"), (DATA, "data")}


@pytest.mark.parametrize("name", ["append", "agent"])
@few
@given(seed=seeds)
def test_append_and_agent_never_use_a_key_twice(name, seed):
    keys = [(op.namespace, op.key) for op in planned(name, seed)]
    assert len(set(keys)) == len(keys)


@few
@given(seed=seeds)
def test_agent_changes_its_data_in_one_step_of_five(seed):
    ops = planned("agent", seed)
    changed = [
        index
        for index, op in enumerate(op for op in ops if op.namespace == METADATA)
        if op.refers[0][1] == op.sequence - 1
    ]
    assert changed[0] == 0, "there is no step without data to refer to"
    assert {later - earlier for earlier, later in pairwise(changed[1:])} == {5}


@few
@given(seed=seeds)
def test_a_marker_commits_all_shards_of_its_step(seed):
    shards = []
    for op in planned("sharded", seed):
        if op.namespace == DATA:
            shards.append((op.key, op.sequence))
        else:
            assert list(op.refers) == shards
            assert len(shards) > 1
            shards = []


@pytest.mark.parametrize("name", ["append", "rotate"])
def test_metadata_only(name):
    assert namespaces(name) == [METADATA]


@pytest.mark.parametrize("name", ["agent", "overwrite", "sharded"])
def test_both_namespaces(name):
    assert namespaces(name) == [METADATA, DATA]


def test_unknown_names_are_offered_the_nearest():
    with pytest.raises(workload.UnknownWorkload, match="did you mean append"):
        workload.load("apend")
    with pytest.raises(workload.UnknownWorkload, match="cannot be loaded"):
        workload.load("no_such_module:Workload")


@names
def test_every_workload_is_described_in_a_line(name):
    assert workload.describe(name)
    assert "\n" not in workload.describe(name)
