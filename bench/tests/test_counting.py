"""Flushes are counted where the kernel sees them: the honest hold, the liars are convicted, nobody is harmed."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from durabench import counting, process, tracing
from durabench.service import running
from durabench_backends import registry
from durabench_backends.contract import RATED_DOMAINS, Domain, Goal, Promise

DURABLE = Promise(dict.fromkeys(RATED_DOMAINS, 0.0), None, None, "made up")
LIARS = """
import os
from durabench_backends.files import Files

real = os.fsync


class Never(Files):
    def open(self, namespace):
        os.fsync = lambda descriptor: None
        return super().open(namespace)


class NoDirectory(Files):
    def open(self, namespace):
        os.fsync = lambda descriptor: None if os.path.isdir(f"/proc/self/fd/{descriptor}") else real(descriptor)
        return super().open(namespace)


class EveryOther(Files):
    calls = 0

    def open(self, namespace):
        def fsync(descriptor):
            EveryOther.calls += 1
            if EveryOther.calls % 4 < 2:
                real(descriptor)
        os.fsync = fsync
        return super().open(namespace)
"""


def database(path, mode):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute("CREATE TABLE theirs (value)")
    connection.close()
    return path


def counted(url, goal=None, name=None):
    """The one check of a count at ``url``."""
    name = name or registry.name_for_url(url)
    backend = registry.load(name).from_url(url)
    (check,) = counting.count(name, url, backend, backend.promise(list(backend.inspect())), goal or Goal())
    assert check.id in counting.pages(check.id.partition(".")[0])
    return check


@pytest.fixture
def liars(tmp_path, monkeypatch):
    """A module of stores that swallow flushes, where drivers find it."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "swallows.py").write_text(LIARS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


# Our own writer.


@pytest.mark.parametrize(
    "target", ["file://{}?write=fsync-dir", "sqlite:///{}/wal.db?synchronous=full", "sqlite:///{}/delete.db?journal_mode=delete&synchronous=extra"],
)  # fmt: skip
def test_an_honest_store_flushes_before_every_acknowledgement_and_nothing_of_it_is_left(tmp_path, target):
    for mode in ("wal", "delete"):
        database(tmp_path / f"{mode}.db", mode)
    before = sorted(path.name for path in tmp_path.iterdir())
    check = counted(target.format(tmp_path))
    assert (check.status, check.fix) == ("ok", None)
    assert re.fullmatch(r"([1-9]\d*) of \1 puts flushed before their acknowledgement", check.value)
    assert "removed again" in check.evidence
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    for mode in ("wal", "delete"):
        connection = sqlite3.connect(tmp_path / f"{mode}.db")
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
        connection.close()


@pytest.mark.parametrize(
    "liar, said",
    [("Never", "0 of "), ("NoDirectory", "fsync-file"), ("EveryOther", " puts flushed")],
)
def test_a_store_that_swallows_flushes_is_convicted(tmp_path, liars, liar, said):
    (tmp_path / "data").mkdir()
    check = counted(f"file://{tmp_path}/data?write=fsync-dir", name=f"swallows:{liar}")
    assert check.status == "fail"
    assert said in f"{check.value} {check.evidence}"
    assert check.loses
    assert "doctor" in check.fix
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    "query, goal", [("?write=fsync-file", Goal()), ("", Goal()), ("?write=fsync-dir", Goal(Domain.CLIENT))]
)
def test_nothing_is_counted_or_written_where_no_flush_is_promised_or_needed(tmp_path, query, goal):
    changed = tmp_path.stat().st_mtime_ns
    assert counted(tmp_path.as_uri() + query, goal).status == "skip"
    assert tmp_path.stat().st_mtime_ns == changed


def test_what_a_killed_count_left_is_removed(tmp_path):
    url = f"{tmp_path.as_uri()}?write=fsync-dir"
    store = registry.load("files").from_url(url).open(counting.NAMESPACE)
    store.put("left", b"over")
    store.close()
    assert counted(url).status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_locked_database_is_unknown_in_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "ANSWER_S", 2.0)
    path = database(tmp_path / "their.db", "wal")
    owner = sqlite3.connect(path, isolation_level=None)
    owner.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    check = counted(f"sqlite:///{path}?synchronous=full")
    assert check.status == "unknown"
    assert check.evidence.startswith("not counted: ")
    assert time.monotonic() - began < 60
    owner.execute("COMMIT")
    owner.close()


def test_a_busy_database_is_counted_beside_its_writer(tmp_path):
    path = database(tmp_path / "their.db", "wal")
    code = (
        "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)\n"
        "c.execute('PRAGMA synchronous=normal')\nprint('ready', flush=True)\n"
        "for n in range(10**9):\n c.execute('INSERT INTO theirs VALUES (zeroblob(500))')\n"
        " c.execute('DELETE FROM theirs')\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "ready\n"
        assert counted(f"sqlite:///{path}?synchronous=full").status == "ok"
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


# Without leave.


@pytest.fixture
def no_strace(monkeypatch):
    tracing._lack.cache_clear()
    monkeypatch.setattr(tracing, "STRACE", "no-such-tracer")
    yield
    tracing._lack.cache_clear()


def test_without_a_tracer_it_is_unknown_with_what_would_allow_it(tmp_path, no_strace):
    check = counted(f"{tmp_path.as_uri()}?write=fsync-dir")
    assert (check.status, check.fix) == ("unknown", tracing.INSTALL)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(tracing.NotAllowed, match="not installed"):
        watched(tmp_path.as_uri(), sys.executable, "-c", "pass")


# A server on this machine.


class Local:
    """Somebody's server, by its main process; none is a server elsewhere."""

    pages: ClassVar = {"local.setting": ""}
    probes = ()

    def __init__(self, *pids):
        self.pids = pids

    @staticmethod
    def checks(facts, goal):
        return []

    def probe(self, goal):
        return []

    def writer_pids(self):
        return self.pids


@contextmanager
def a_server(place, setting):
    with running("valkey", setting, place / setting) as service:
        (server,) = service.machine._daemons
        (port,) = service._ports.values()
        yield service, server, f"valkey://127.0.0.1:{port}"


@pytest.mark.parametrize("setting, status", [("aof-always", "ok"), ("aof-everysec", "fail")])
def test_a_server_is_counted_and_goes_on_afterwards(tmp_path, setting, status):
    with a_server(tmp_path, setting) as (service, server, url):
        (check,) = counting.count("valkey", url, Local(server.pid), DURABLE, Goal())
        assert (check.id, check.status) == ("local.flushes", status)
        flushed, puts = map(int, re.match(r"(\d+) of (\d+) puts", check.value).groups())
        assert (
            flushed == puts if status == "ok" else flushed < puts / 2
        )  # everysec flushes now and then, on its own time
        assert server.alive()
        assert "TracerPid:\t0" in Path(f"/proc/{server.pid}/status").read_text()
        service.ready()


def test_a_server_survives_a_tracer_that_is_killed(tmp_path):
    with a_server(tmp_path, "aof-always") as (service, server, _):
        tracer = tracing.start(
            ["sleep", "60"], tmp_path / "trace", env=os.environ, cwd=tmp_path, log=tmp_path / "log", pids=[server.pid]
        )
        assert f"TracerPid:\t{tracer.pid}" in Path(f"/proc/{server.pid}/status").read_text()
        (sleeper,) = process.descendants(tracer.pid)
        tracer.kill()
        tracer.close()
        service.ready()
        assert server.alive()
        assert gone(sleeper), "what a tracer started dies with it"


def test_a_program_that_is_only_a_client_is_told_what_the_server_did(tmp_path):
    code = "import sys, redis; r = redis.Redis.from_url(sys.argv[1]); [r.set('durabench', n) for n in range(7)]"
    with a_server(tmp_path, "aof-always") as (service, server, url):
        argv = [sys.executable, "-c", code, url.replace("valkey", "redis")]
        found = counting.watch(argv, url, Local(server.pid), Goal())
        (check,) = found.checks
        # What its own session gave up is not seen, and was the question.
        assert (found.exit_status, found.facts, check.status) == (0, (), "unknown")
        assert "the server flushed 7 times" in check.evidence
        service.ready()
        assert counting.watch(argv, url, Local(), Goal(Domain.SERVER)).checks[0].status == "skip"
        assert counting.watch(argv, url, Local(), Goal()).checks[0].status == "unknown"


def gone(pid):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_a_server_that_may_not_be_traced_is_unknown(tmp_path):
    # One that is traced already is refused to everybody, root included.
    sleeper = subprocess.Popen(["sleep", "60"])
    first = tracing.start(
        ["sleep", "60"], tmp_path / "trace", env=os.environ, cwd=tmp_path, log=tmp_path / "log", pids=[sleeper.pid]
    )
    try:
        (check,) = counting.count("files", tmp_path.as_uri(), Local(sleeper.pid), DURABLE, Goal())
        assert check.status == "unknown"
        assert "may not be traced" in check.evidence
        assert check.fix
    finally:
        tracing.let_go(first)
        assert sleeper.poll() is None, "a process that was let go lives"
        sleeper.kill()
        sleeper.wait()


def test_a_server_elsewhere_is_skipped():
    (check,) = counting.count("valkey", "valkey://elsewhere", Local(), DURABLE, Goal())
    assert check.status == "skip"
    assert "not on this machine" in check.evidence


# Somebody's program.


def watched(url, *argv, **keywords):
    backend = registry.load(registry.name_for_url(url)).from_url(url)
    return counting.watch(argv, url, backend, Goal(), **keywords)


WAYS = """
import os, sys
folder, way = sys.argv[1:]
os.chdir(folder)
here = os.open(".", os.O_RDONLY)
for n in range(4):
    if way == "in-place":
        with open("checkpoint", "wb") as file:
            file.write(b"x" * 5000)
        continue
    if way == "in-place-fsync":
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if n == 0:
            os.fsync(here)
        os.write(log, b"x" * 50)
        os.fdatasync(log)
        os.close(log)
        continue
    with open("temporary", "wb") as file:
        file.write(b"x" * 5000)
        file.flush()
        if way != "rename":
            os.fsync(file.fileno())
    os.rename("temporary", f"checkpoint-{n}")
    if way == "fsync-dir":
        os.fsync(here)
"""


@pytest.mark.parametrize("way", ["in-place", "rename", "fsync-file", "in-place-fsync", "fsync-dir"])
def test_how_a_program_writes_files(tmp_path, way):
    found = watched(tmp_path.as_uri(), sys.executable, "-c", WAYS, str(tmp_path), way)
    (fact,), (check,) = found.facts, found.checks
    assert (found.exit_status, fact.id, fact.value) == (0, "files.write", way)
    assert fact.origin.startswith("as watched: ")
    assert (check.id, check.status) == ("files.flushes", "ok")


UNNAMED = """
import os, sys, tempfile
folder, flushed = sys.argv[1:]
with tempfile.TemporaryFile(dir=folder) as scratch:
    scratch.write(b"never a checkpoint" * 1000)
for n in range(3):
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(file, b"x" * 500)
    if flushed == "yes":
        os.fsync(file)
    directory = os.open(folder, os.O_RDONLY)
    os.link(f"/proc/self/fd/{file}", f"{folder}/checkpoint-{n}", src_dir_fd=directory, follow_symlinks=True)
    os.fsync(directory)
"""


@pytest.mark.parametrize("flushed, way", [("yes", "fsync-dir"), ("no", "rename")])
def test_a_file_that_gets_its_name_last(tmp_path, flushed, way):
    (fact,) = watched(tmp_path.as_uri(), sys.executable, "-c", UNNAMED, str(tmp_path), flushed).facts
    assert (fact.value, fact.origin.startswith(f"as watched: 3 {way}; ")) == (way, True)


STEPS = """
import os, sys
folder, way, flushed = sys.argv[1:]
for n in range(2):
    step = os.path.join(folder, f"run-{n}", "step")
    os.makedirs(step)
    with open(os.path.join(step, "temporary"), "wb") as file:
        file.write(b"x" * 5000)
        file.flush()
        os.fsync(file.fileno())
    if way == "fsync-dir":
        os.rename(os.path.join(step, "temporary"), os.path.join(step, "checkpoint"))
    for place in (step, os.path.dirname(step), folder)[: int(flushed)]:
        directory = os.open(place, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
"""


@pytest.mark.parametrize(
    "way, flushed, seen",
    [
        ("fsync-dir", 3, "fsync-dir"),
        ("fsync-dir", 2, "fsync-file"),
        ("fsync-dir", 1, "fsync-file"),
        ("in-place-fsync", 3, "in-place-fsync"),
        ("in-place-fsync", 1, "in-place"),
    ],
)
def test_a_new_directory_is_only_kept_with_its_own_entry(tmp_path, way, flushed, seen):
    (fact,) = watched(tmp_path.as_uri(), sys.executable, "-c", STEPS, str(tmp_path), way, str(flushed)).facts
    assert fact.value == seen


def test_a_child_of_a_program_counts_through_a_link_too(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    argv = ["sh", "-c", 'exec 3>&1; "$0" -c "$1" "$2" rename; true', sys.executable, WAYS, str(tmp_path / "link")]
    assert watched((tmp_path / "link").as_uri(), *argv).facts[0].value == "rename"


COMMITS = """
import sqlite3, sys
path, journal, synchronous = sys.argv[1:]
connection = sqlite3.connect(path, isolation_level=None)
connection.execute(f"PRAGMA synchronous={synchronous}")
connection.execute(f"PRAGMA journal_mode={journal}")
for n in range(5):
    connection.execute("INSERT INTO theirs VALUES (zeroblob(3000))")
connection.close()
"""


@pytest.mark.parametrize(
    "journal, synchronous, seen",
    [
        ("delete", "off", "off"),
        ("delete", "normal", "normal"),
        ("delete", "full", "full"),
        ("delete", "extra", "extra"),
        ("truncate", "normal", "normal"),
        ("truncate", "full", "full"),
        ("persist", "normal", "normal"),
        ("persist", "full", "full"),
        ("memory", "full", "off"),
        ("wal", "off", "off"),
        ("wal", "normal", "normal"),
        ("wal", "full", "full"),
    ],
)
def test_how_a_program_commits(tmp_path, journal, synchronous, seen):
    path = database(tmp_path / "their.db", journal)
    found = watched(f"sqlite:///{path}", sys.executable, "-c", COMMITS, str(path), journal, synchronous)
    assert {fact.id: fact.value for fact in found.facts} == {
        "sqlite.journal_mode": journal,
        "sqlite.synchronous": seen,
    }


def test_the_weakest_of_two_connections_decides(tmp_path):
    path = database(tmp_path / "their.db", "wal")
    code = COMMITS + "sys.argv[3] = 'normal'\n" + COMMITS
    found = watched(f"sqlite:///{path}", sys.executable, "-c", code, str(path), "wal", "full")
    assert "5 normal, 5 full" in found.facts[1].origin
    assert found.facts[1].value == "normal"


@pytest.mark.parametrize(
    "code, status", [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)]
)
def test_a_program_that_fails_is_told(tmp_path, code, status):
    found = watched(tmp_path.as_uri(), sys.executable, "-c", code)
    (check,) = found.checks
    assert (found.exit_status, check.status) == (status, "warn")
    assert str(status) in check.evidence
    assert "wrote no file below" in found.facts[0].unread


def test_a_program_that_does_not_end_is_stopped(tmp_path):
    code = "import sys, time; open(sys.argv[1], 'w').write(str(__import__('os').getpid())); time.sleep(600)"
    found = watched(tmp_path.as_uri(), sys.executable, "-c", code, str(tmp_path / "pid"), deadline_s=2.0)
    assert gone(int((tmp_path / "pid").read_text() or 0))
    assert "stopped" in found.checks[0].evidence
    assert found.checks[0].status == "warn"


def test_what_a_program_prints_does_not_mix_with_a_document(tmp_path, capfd):
    watched(tmp_path.as_uri(), "sh", "-c", "echo to stdout; echo to stderr >&2")
    said = capfd.readouterr()
    assert said.out == ""
    assert "to stdout" in said.err
    assert "to stderr" in said.err
    assert "strace" not in said.err


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(process.HarnessError, match="no-such-program"):
        watched(tmp_path.as_uri(), "no-such-program")


# Reading a trace.


def test_interleaved_calls_are_put_together_in_the_order_in_which_they_end(tmp_path):
    def hexed(text):
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    lines = [
        f'7 write(3<{hexed("/data/a")}>, ""..., 10) = 10',
        f"7 fsync(3<{hexed('/data/a')}> <unfinished ...>",
        f'8 openat(AT_FDCWD<{hexed("/")}>, "{hexed("x")}", O_RDWR|O_DSYNC) = 4<{hexed("/data/ü <b>")}>',
        "7 <... fsync resumed>) = 0",
        f'8 pwrite64(4<{hexed("/data/ü <b>")}>, ""..., 5, 4096) = 5',
        f"8 fdatasync(4<{hexed('/data/ü <b>')}>) = -1 EIO (Input/output error)",
        f'8 write(1<{hexed("pipe:[5]")}>, ""..., 5) = 5',
        f"8 fcntl(4<{hexed('/data/a-shm')}>, F_SETLK, {{l_type=F_WRLCK, l_whence=SEEK_SET, l_start=120, l_len=1}}) = 0",
        "8 +++ exited with 0 +++",
    ]
    (tmp_path / "trace").write_text("\n".join(lines) + "\n")
    seen = tracing.read(tmp_path / "trace", tmp_path)
    assert [(one.call.kind, one.call.path, one.began, one.ended) for one in seen] == [
        ("write", "/data/a", 0, 0),
        ("open", "/data/ü <b>", 2, 2),
        ("flush", "/data/a", 1, 3),
        ("write", "/data/ü <b>", 4, 4),
        ("lock", "/data/a-shm", 7, 7),
    ]
    assert (seen[3].call.offset, seen[3].call.size) == (4096, 5)
    assert "O_DSYNC" in seen[1].call.flags
    assert tracing.writes_to(tmp_path / "trace", "pipe:[5]") == [6]
