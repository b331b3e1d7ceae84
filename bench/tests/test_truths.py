"""What processes that die cost, setting by setting, as it was measured by hand: the suite must find the same.

Each test is a row and a column of that table; its id names both. Real servers, real kills, several trials at a time.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

import pytest

from durabench import profile, schedule
from durabench.schedule import Asked

FILES = ("in-place", "rename", "fsync-file", "fsync-dir")
SQLITE = ("delete-full", "delete-extra", "wal-full", "wal-normal", "off")
POSTGRES = ("on", "off", "fsync-off", "unlogged")
KEYVALUE = ("rdb", "aof-always", "aof-everysec", "aof-no", "waitaof")
SWIFT = ("unversioned", "versioned")
SEAWEEDFS = ("unversioned", "versioned", "suspended", "versioned-fsync")
MOTO = ("unversioned", "versioned", "suspended")


def labels(**settings):
    return [f"{name.replace('_', '-')}:{setting}" for name, some in settings.items() for setting in some]


def verdicts(rows):
    return {row["verdict"]: [r["why"] for r in rows if r["verdict"] == row["verdict"]][:2] for row in rows}


def only(rows, *allowed):
    """Every trial ended in one of these; what else there was is shown with its reasons."""
    assert {name: whys for name, whys in verdicts(rows).items() if name not in allowed} == {}
    return rows


def trials_of(label):
    """Fewer of what takes seconds a trial."""
    dear = label.startswith("s3-") or label == "redis:waitaof"
    return 3 if dear else 20


@pytest.mark.parametrize("label", labels(files=FILES, sqlite=SQLITE))
def test_embedded_keeps_everything_when_its_client_is_killed(label, cycle):
    rows = cycle(Asked(backends=(label,), faults=("kill-client",), trials=60), visit=20)
    assert len(rows) == 60
    only(rows, "kept")
    assert sum(row["lost"] + row["stale"] + row["corrupt"] + row["phantom"] for row in rows) == 0
    assert sum(row["struck"] == "inside" for row in rows) > 30
    assert {row["destroyed"] for row in rows} == {"client"}


@pytest.mark.parametrize(
    "label",
    labels(postgres=POSTGRES, redis=KEYVALUE, valkey=KEYVALUE, s3_swift=SWIFT, s3_seaweedfs=SEAWEEDFS, s3_moto=MOTO),
)
def test_server_keeps_everything_when_its_client_is_killed(label, cycle):
    rows = cycle(Asked(backends=(label,), faults=("kill-client",), trials=min(10, trials_of(label))))
    only(rows, "kept")
    assert sum(row["lost"] + row["stale"] + row["corrupt"] + row["phantom"] for row in rows) == 0
    assert sum(row["acked"] for row in rows) > 0


def test_memory_loses_all_when_its_client_is_killed(cycle):
    rows = cycle(Asked(backends=("memory",), faults=("kill-client",), trials=10))
    only(rows, "no-promise")
    assert all(row["lost"] == row["acked"] > 0 for row in rows)


@pytest.mark.parametrize("label", labels(files=FILES, sqlite=SQLITE, memory=("dict",)))
def test_embedded_has_no_server_to_kill(label, toy_profile):
    (cell,) = schedule.cells(Asked(backends=(label,), faults=("kill-server",)), profile.load(str(toy_profile())))
    assert cell.verdict == "–"
    assert "embedded" in cell.why


KEPT_BY_SERVERS = labels(
    postgres=("on", "fsync-off"),
    redis=("aof-always", "aof-no", "waitaof"),
    valkey=("aof-always", "aof-no", "waitaof"),
    s3_swift=SWIFT,
    s3_seaweedfs=SEAWEEDFS,
)


@pytest.mark.parametrize("label", KEPT_BY_SERVERS)
def test_zero_lost_when_the_server_tree_is_killed(label, cycle):
    rows = cycle(Asked(backends=(label,), faults=("kill-server",), trials=trials_of(label)))
    only(rows, "kept")
    assert sum(row["lost"] + row["stale"] + row["corrupt"] + row["phantom"] for row in rows) == 0
    assert {row["destroyed"] for row in rows} == {"server"}


def test_postgres_off_loses_a_suffix_inside_its_window_when_the_server_tree_is_killed(cycle):
    rows = cycle(Asked(backends=("postgres:off",), faults=("kill-server",), trials=30), at_once=4, visit=8)
    only(rows, "within", "kept")
    losing = [row for row in rows if row["lost"]]
    assert losing, "30 kills lost nothing: a killed server must cost what was not yet flushed"
    assert {row["verdict"] for row in losing} == {"within"}
    assert sum(row["hole"] for row in rows) == 0, "what is lost is a suffix"
    assert max(row["loss_window_s"] for row in losing) <= 0.6


@pytest.mark.parametrize("label", labels(postgres=("unlogged",), redis=("rdb",), valkey=("rdb",)))
def test_all_is_lost_without_a_promise_when_the_server_tree_is_killed(label, cycle):
    rows = cycle(Asked(backends=(label,), faults=("kill-server",), trials=12))
    only(rows, "no-promise")
    assert all(row["lost"] == row["acked"] > 0 for row in rows)


@pytest.mark.parametrize("label", labels(redis=("aof-everysec",), valkey=("aof-everysec",)))
def test_everysec_never_loses_more_than_its_window_when_the_server_tree_is_killed(label, cycle):
    rows = cycle(Asked(backends=(label,), faults=("kill-server",), trials=18), at_once=6, visit=3)
    only(rows, "kept", "within")
    assert all(row["loss_window_s"] <= 2 for row in rows if row["lost"])
    assert sum(row["hole"] for row in rows) == 0


@pytest.mark.parametrize("label", labels(s3_moto=MOTO))
def test_a_mock_is_not_rated_when_the_server_tree_is_killed(label, toy_profile):
    (cell,) = schedule.cells(Asked(backends=(label,), faults=("kill-server",)), profile.load(str(toy_profile())))
    assert (cell.verdict, cell.why) == ("not rated", "a mock: it has no disk")


SLOW = """
from dataclasses import replace
from durabench_backends.redis import Redis, Valkey

INJECT = "inject=fdatasync:delay_enter=3000000"
STRACE = ("{strace}", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", INJECT)


def slowly(commands):
    return tuple(replace(c, argv=(*STRACE, *c.argv)) if c.role == "daemon" else c for c in commands)


class SlowRedis(Redis):
    def commands(self):
        return slowly(super().commands())


class SlowValkey(Valkey):
    def commands(self):
        return slowly(super().commands())
"""


@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed; the machine that is reset has the same row"
)
@pytest.mark.parametrize(
    "engine, setting, loses",
    [
        ("SlowRedis", "aof-everysec", True),
        ("SlowValkey", "aof-everysec", True),
        ("SlowRedis", "aof-no", False),
        ("SlowValkey", "aof-no", False),
    ],
)
def test_everysec_on_a_slow_disk_loses_what_it_acknowledged(engine, setting, loses, cycle, tmp_path, monkeypatch):
    """An fdatasync of 3 s: everysec puts off its writes for up to 2 s after the reply: a killed process loses."""
    module = tmp_path / "modules" / f"slow_disk_{engine.lower()}.py"
    module.parent.mkdir()
    module.write_text(textwrap.dedent(SLOW.replace("{strace}", shutil.which("strace") or "")))
    monkeypatch.syspath_prepend(str(module.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(module.parent), os.environ.get("PYTHONPATH", "")]))
    label = f"{module.stem}:{engine}:{setting}"
    rows = cycle(Asked(backends=(label,), faults=("kill-server",), trials=6), at_once=3, visit=2)
    if loses:
        # The engine looks at its 2 s ten times a second: it may be late by a tick, and is then rightly convicted.
        assert all(row["loss_window_s"] <= 2.3 for row in rows if row["lost"])
        assert {row["verdict"] for row in rows if not row["lost"]} <= {"kept"}
    else:
        only(rows, "kept")
    assert (sum(row["lost"] for row in rows) > 0) == loses
    assert sum(row["hole"] for row in rows) == 0
    sys.modules.pop(module.stem, None)
