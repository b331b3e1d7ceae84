"""A recorded run of every setting there is under every fault, made up, with a plan: what charts must have room for."""

from __future__ import annotations

import json
import math
import random

from durabench.results import SCHEMA_VERSION, Folder

HOST = "0a1b2c3d"
DESTROYED = {
    "none": "nothing",
    "kill-client": "client",
    "kill-server": "server",
    "reset-machine": "machine",
    "cut-power": "drive",
}
T3 = {"nothing": 0.0, "client": 0.0, "server": 0.0, "machine": 0.0, "drive": 0.0}
T1 = {"nothing": 0.0, "client": 0.0, "server": 0.0}
T0 = {"nothing": 0.0, "client": 0.0}
PROMISES = {
    "memory": {"dict": {}},
    "files": {"in-place": T1, "rename": T1, "fsync-file": T1, "fsync-dir": T3},
    "sqlite": {"delete-full": T1, "delete-extra": T3, "wal-full": T3, "wal-normal": T1, "off": T1},
    "postgres": {"on": T3, "off": T0 | {"server": 0.6, "machine": 0.6, "drive": 0.6}, "fsync-off": T1, "unlogged": T0},
    **{
        name: {
            "rdb": T0,
            "aof-always": T3,
            "aof-everysec": T0 | {"server": 2.0, "machine": 2.0, "drive": 2.0},
            "aof-no": T1,
            "waitaof": T3,
        }
        for name in ("redis", "valkey")
    },
    "s3-swift": {"unversioned": T3, "versioned": T3},
    "s3-seaweedfs": {"unversioned": T1, "versioned": T1, "suspended": T1, "versioned-fsync": T3},
    "s3-moto": {"unversioned": T0, "versioned": T0, "suspended": T0},
}
EMBEDDED = ("memory", "files", "sqlite")
BROKEN = "valkey:waitaof"
MACHINE = {
    "id": HOST,
    "system": "Linux",
    "kernel": "6.1.0",
    "cpu_model": "Example 9000",
    "cores": 2,
    "memory_bytes": 8 << 30,
    "virtualisation": "none",
    "device": {
        "name": "nvme0n1",
        "model": "Example SSD",
        "rotational": False,
        "write_cache": "write back",
        "fua": True,
    },
    "filesystem": "ext4",
    "mount_options": "rw,relatime",
    "latency": None,
}
SETTINGS = [(backend, setting) for backend, settings in PROMISES.items() for setting in settings]
COUNTS = ("lost", "torn", "corrupt", "damaged_acked", "stale", "phantom", "resurrected", "hole")


def tier(promise):
    bounds = [promise.get(domain) for domain in ("client", "server", "machine", "drive")]
    if None not in bounds:
        return "T3" if max(bounds) == 0 else f"T2 {max(bounds):g} s"
    return "T1" if bounds[:2] == [0, 0] else "T0"


def verdict_without_trials(backend, fault):
    """None where trials are made."""
    if fault == "kill-server" and backend in EMBEDDED:
        return {"verdict": "–", "why": "an embedded store has no server"}
    if backend == "memory" and fault in ("reset-machine", "cut-power"):
        return {"verdict": "–", "why": "it has no disk"}
    if backend == "s3-moto" and fault not in ("none", "kill-client"):
        return {"verdict": "not rated", "why": "a mock: it has no disk"}
    if backend == "s3-swift" and fault in ("reset-machine", "cut-power"):
        return {"verdict": "not run", "why": "budget"}
    return None


def record(path, trials=6, *, settings=tuple(SETTINGS), why="lost", machine=MACHINE, plan=True, done=True):
    """A folder at ``path``, of so many trials of each cell, enough puts for a p99. Returns it."""
    folder = Folder.create_at(path)
    folder.begin(begun(settings, machine))
    for when in ("before", "after"):
        for size, p50_ns in ((2048, 200_000), (1 << 20, 3_000_000)):
            at, n = folder.append_samples([p50_ns] * 5)
            row = {"when": when, "host": machine["id"], "size_bytes": size, "n": n, "samples_at": at, "samples_n": n}
            folder.append_floor({"time": "2026-12-01T10:15:01+00:00", "p50_ns": p50_ns, **row})
    write_trials(folder, [what for what in judged(settings) for _ in range(trials)], machine, why)
    if plan:
        (path / "plan.json").write_text(json.dumps(planned(settings, machine)))
    if done:
        folder.finish(1)
    else:
        folder.close()
    return Folder.open(path)


def judged(settings):
    """What trials are made of."""
    for backend, setting in settings:
        for fault in DESTROYED:
            if verdict_without_trials(backend, fault) is None:
                yield backend, setting, fault


def begun(settings, machine):
    """run.json."""
    labels = {f"{backend}:{setting}": (backend, setting) for backend, setting in settings}
    return {
        "profile": "full",
        "seed": 1,
        "command": ["durabench", "run", "--profile", "full"],
        "commit": {"commit": "0123456789abcdef", "dirty": False},
        "machine": machine,
        "cells": [
            {**key(backend, setting, namespace, fault, machine), **(verdict_without_trials(backend, fault) or {})}
            for backend, setting in settings
            for namespace in ("metadata", "data")
            for fault in DESTROYED
        ],
        "promises": {
            label: {
                "may_lose_s": PROMISES[backend][setting],
                "tier": tier(PROMISES[backend][setting]),
                "atomic": "drive",
                "ordered": None,
                "source": f"the manual of {backend}, section <durability>",
            }
            for label, (backend, setting) in labels.items()
        },
        "targets": {label: {"facts": {"store.fsync": {"value": "on", "origin": "default"}}} for label in labels},
        "versions": {label: {"server_version": "1.2"} for label in labels},
    }


def write_trials(folder, wanted, machine, why):
    """Rows in one go: a folder syncs every trial, which tests of a report need not wait for."""
    rng = random.Random(1)
    samples: list[int] = []
    lines = [row for number, what in enumerate(wanted) for row in rows(rng, what, number, samples, machine, why)]
    start, _ = folder.append_samples(samples)
    for row in lines:
        row["samples_at"] = None if row["samples_at"] is None else row["samples_at"] + start
    (folder.path / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    for name, parts in (
        ("histories", [f"{trial}.jsonl.gz" for trial in range(len(wanted))]),
        ("recordings", {f"{row['recording']}.gz" for row in lines if row["recording"]}),
    ):
        (folder.path / name).mkdir()
        for part in parts:
            (folder.path / name / part).touch()


def key(backend, setting, namespace, fault, machine):
    return {
        "backend": backend,
        "setting": setting,
        "tier": tier(PROMISES[backend][setting]),
        "namespace": namespace,
        "workload": "agent",
        "fault": fault,
        "lane": "guest" if fault in ("reset-machine", "cut-power") else "here",
        "host": machine["id"],
    }


def rows(rng, what, number, samples, machine, why):
    """Of one trial: what was promised is kept, but by one setting; what is not promised is mostly lost."""
    backend, setting, fault = what
    may = PROMISES[backend][setting].get(DESTROYED[fault])
    bad = may is None or (f"{backend}:{setting}" == BROKEN and fault == "cut-power")
    loses = fault != "none" and ((bad and rng.random() < 0.8) or (may and rng.random() < 0.7))
    everything = may is None and setting in ("dict", "in-place", "rdb", "unlogged", "rename")
    made = []
    for namespace in ("metadata", "data"):
        slow = 0.2 + 2.0 * abs(hash_of(backend, setting)) + (5 if namespace == "data" else 0)
        puts = [int(1e6 * slow * math.exp(rng.gauss(0, 0.4))) for _ in range(80 if namespace == "metadata" else 16)]
        timed = fault == "none"
        lost = (20 if everything else rng.randint(1, 8)) if loses else 0
        verdict = "kept" if may is not None and not loses else "within" if may else "broken" if bad and may == 0 else ""
        recorded = fault in ("reset-machine", "cut-power")
        made.append(
            {
                "trial": number,
                "attempt": 1,
                "rows": 2,
                **key(backend, setting, namespace, fault, machine),
                "destroyed": DESTROYED[fault],
                "writers": 1,
                "seed": rng.randrange(2**40),
                "victim": 4,
                "struck": None if fault == "none" else "inside",
                "recording": f"{backend}-{setting}-{fault}" if recorded else None,
                "position": number if recorded else None,
                "gap": number if recorded else None,
                "state": "mask/0/512" if recorded else None,
                "acked": 20,
                "in_doubt": 1,
                **dict.fromkeys(COUNTS, 0),
                "lost": lost,
                "unavailable": False,
                "loss_window_s": round((may or 3.0) * rng.uniform(0.05, 0.99), 6) if loses else None,
                "recovery_s": 0.01,
                "samples_at": len(samples) if timed else None,
                "samples_n": len(puts) if timed else None,
                "size_bytes": 90_000 if timed else None,
                "payload_bytes": 20 * (2048 if namespace == "metadata" else 1 << 20),
                "control": None,
                "verdict": verdict or "no-promise",
                "why": f"{lost} {why} of 20 acknowledged",
                "replay": f"durabench replay run {number}",
            }
        )
        samples.extend(puts if timed else [])
    return made


def hash_of(backend, setting):
    """Between 0 and 1, the same in every process."""
    return random.Random(f"{backend}:{setting}").random()


def planned(settings, machine):
    """A plan of every setting: a cost per put and one per byte, so that lines cross."""
    sizes = [256 * 4**step for step in range(10)]
    labels = [f"{backend}:{setting}" for backend, setting in settings]
    good = [label for label in labels if tier(PROMISES[label.split(":")[0]][label.split(":")[1]]) == "T3"]
    costs = {label: (0.1 + 5 * hash_of(label, "put"), 0.5 + 9 * hash_of(label, "byte")) for label in labels}
    sweep = [
        {
            "label": label,
            "backend": label.split(":")[0],
            "setting": label.split(":")[1],
            "payload": "incompressible",
            "size_bytes": size,
            "put_p50_ns": 1e6 * (costs[label][0] + costs[label][1] * size / 2**20),
            "put_p99_ns": 3e6 * (costs[label][0] + costs[label][1] * size / 2**20) if size < 2**22 else None,
            "at_rest_per_payload_byte": 1 + 4096 / size * hash_of(label, "rest") / 4,
        }
        for label in labels
        for size in sizes
    ]
    crossings = []
    for one in good:
        for other in good:
            (put, byte), (put_2, byte_2) = costs[one], costs[other]
            at = 2**20 * (put_2 - put) / (byte - byte_2) if byte > byte_2 else 0
            if put < put_2 and 256 < at < 2**26:
                found = {"a": one, "b": other, "below": one, "above": other, "at_bytes": at, "reliable": True}
                crossings.append({**found, "low": at * 0.8, "high": at * 1.3, "payload": "incompressible"})
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": machine,
        "candidates": [{"label": label, "meets_goal": label in good} for label in labels],
        "floor": {"2048": {"p50_ns": 200_000}, "1048576": {"p50_ns": 3_000_000}},
        "ranked": True,
        "sweep": sweep,
        "crossings": crossings,
        "recommendation": {"answer": "metadata in sqlite, data in files"},
    }
