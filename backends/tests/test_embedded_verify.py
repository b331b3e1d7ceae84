"""Files and SQLite as somebody has them: every check right and wrong, under load; looking changes nothing."""

import errno
import fcntl
import hashlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from durabench_backends import place
from durabench_backends.contract import Call, Domain, Fact, Goal, NotReady, Verifiable, Watchable
from durabench_backends.files import PROMISES, Files
from durabench_backends.sqlite import Sqlite

DRIVE, CLIENT = Goal(), Goal(Domain.CLIENT)
EVERY_GOAL = [Goal(domain, loss) for domain in Domain if Domain.CLIENT <= domain <= Domain.DRIVE for loss in (0.0, 5.0)]


def looked(url, goal=DRIVE):
    """Id → check of somebody's store."""
    backend = (Files if url.startswith("file:") else Sqlite).from_url(url)
    return {check.id: check for check in backend.checks(list(backend.inspect()), goal)}


def made_up(cls, goal=DRIVE, **values):
    """Id → check of facts that no machine here has; None is a fact that could not be read."""
    name = {Files: "files", Sqlite: "sqlite"}[cls]
    facts = [
        Fact(f"{name}.{key}", value, "made up") if value is not None else Fact(f"{name}.{key}", "", "", "because: mend")
        for key, value in values.items()
    ]
    return {check.id: check for check in cls.checks(facts, goal)}


def everything(folder):
    """Name → content and time of change, of all that is in a folder."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


def database(path, *pragmas):
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE IF NOT EXISTS theirs (value)")
    connection.execute("INSERT INTO theirs VALUES ('stays')")
    connection.close()
    return path


def url_of(path, query=""):
    return f"sqlite:///{path}{query}"


# What holds for every combination.

PLACES = [
    {"filesystem": filesystem, "mount_options": options, "write_cache": cache}
    for filesystem, options, cache in (
        ("ext4", "rw,relatime", "write back"),
        ("tmpfs", "rw", None),
        ("nfs4", "rw,soft", None),
        ("overlay", "rw,volatile", None),
        ("ext4", "rw,barrier=0", "write through, virtual disk"),
        ("unknown", "", None),
    )
]
COMBINATIONS = [
    *((Files, {"write": write}) for write in (None, *PROMISES, "in-place-fsync", "nonsense")),
    *(
        (Sqlite, {"journal_mode": journal, "synchronous": synchronous})
        for journal in (None, "rollback", "delete", "truncate", "persist", "memory", "off", "wal")
        for synchronous in (None, "off", "normal", "full", "extra")
    ),
]


def named(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else value.__name__


@pytest.mark.parametrize("cls, values", COMBINATIONS, ids=named)
def test_something_fails_or_is_unknown_just_where_the_promise_misses_the_goal(cls, values):
    name = {Files: "files", Sqlite: "sqlite"}[cls]
    for where, goal in itertools.product(PLACES, EVERY_GOAL):
        checks = made_up(cls, goal, **values, **where)
        facts = [Fact(f"{name}.{key}", value, "made up") for key, value in {**values, **where}.items() if value]
        bad = [check for check in checks.values() if check.status in ("fail", "unknown")]
        assert bool(bad) != goal.is_met_by(cls.promise(facts)), (values, where, goal, bad)
        assert all(check.loses and check.fix for check in bad if check.status == "fail")
        assert all(check.fix for check in bad)


@pytest.mark.parametrize("cls", [Files, Sqlite])
def test_every_check_has_a_page_and_every_page_a_check(cls):
    made = {*made_up(cls), *cls.probes}
    assert made == set(cls.pages)
    assert not set(made_up(cls)) & set(cls.probes)
    assert all("Source: " in page and "Mend it: " in page for page in cls.pages.values())


def test_both_can_be_verified_and_watched(tmp_path):
    for backend in (Files.from_url(tmp_path.as_uri()), Sqlite.from_url(url_of(tmp_path / "a.db"))):
        assert isinstance(backend, Verifiable)
        assert isinstance(backend, Watchable)
        assert list(backend.writer_pids()) == []


# Files.


def test_a_directory_is_good_where_its_url_says_the_right_way(tmp_path):
    checks = looked(f"{tmp_path.as_uri()}?write=fsync-dir")
    assert {check.status for check in checks.values()} <= {"ok", "skip", "warn"}
    assert checks["files.write"].status == checks["files.mount_options"].status == "ok"
    assert checks["files.filesystem"].value not in {None, "unknown"}


@pytest.mark.parametrize("write, loses", [("in-place", "30 s"), ("rename", "flushed"), ("fsync-file", "new names")])
def test_a_way_that_flushes_too_little_fails_the_drive_and_holds_for_processes(tmp_path, write, loses):
    url = f"{tmp_path.as_uri()}?write={write}"
    failed = looked(url)["files.write"]
    assert (failed.status, failed.value, failed.origin) == ("fail", write, "URL")
    assert loses in failed.loses
    assert looked(url, CLIENT)["files.write"].status == ("warn" if write == "in-place" else "ok")


def test_what_the_url_does_not_say_is_unknown_with_two_ways_out(tmp_path):
    unknown = looked(tmp_path.as_uri())["files.write"]
    assert unknown.status == "unknown"
    assert f"durabench verify '{tmp_path.as_uri()}?write=fsync-dir'" in unknown.fix
    assert f"durabench verify '{tmp_path.as_uri()}' -- YOUR PROGRAM" in unknown.fix


def test_a_directory_in_memory_fails_the_machine_only():
    url = "file:///dev/shm?write=fsync-dir"
    assert looked(url)["files.filesystem"].status == "fail"
    assert looked(url, Goal(Domain.MACHINE))["files.filesystem"].status == "fail"
    assert looked(url, CLIENT)["files.filesystem"].status == "warn"


@pytest.mark.parametrize(
    "filesystem, status",
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("overlay", "warn"),
        ("nfs4", "warn"),
        ("9p", "warn"),
        ("fuse.sshfs", "warn"),
        ("vfat", "warn"),
        ("tmpfs", "fail"),
        ("unknown", "unknown"),
    ],
)
def test_file_systems(filesystem, status):
    for cls, words in ((Files, {"write": "fsync-dir"}), (Sqlite, {"journal_mode": "wal", "synchronous": "full"})):
        (check,) = [
            check
            for check in made_up(cls, **words, filesystem=filesystem, mount_options="rw").values()
            if check.id.endswith(".filesystem")
        ]
        assert check.status == status
        assert status == "ok" or check.loses or check.evidence


@pytest.mark.parametrize(
    "options, write, drive, machine",
    [
        ("rw,relatime", "fsync-dir", "ok", "ok"),
        ("rw,nobarrier", "fsync-dir", "fail", "warn"),
        ("rw,barrier=0", "fsync-dir", "fail", "warn"),
        ("rw,fsync_mode=nobarrier", "fsync-dir", "fail", "warn"),
        ("rw,volatile", "fsync-dir", "fail", "fail"),
        ("rw,noauto_da_alloc", "fsync-dir", "ok", "ok"),
        ("rw,noauto_da_alloc", "rename", "warn", "warn"),
        ("rw,data=writeback", "in-place", "warn", "warn"),
        ("rw,soft", "fsync-dir", "warn", "warn"),
        ("ro", "fsync-dir", "warn", "warn"),
        ("rw,sync", "fsync-dir", "ok", "ok"),
    ],
)
def test_mount_options(options, write, drive, machine):
    for goal, status in ((DRIVE, drive), (Goal(Domain.MACHINE), machine)):
        check = made_up(Files, goal, write=write, filesystem="ext4", mount_options=options)["files.mount_options"]
        assert check.status == status
        assert status == "ok" or (check.loses and check.fix)


@pytest.mark.parametrize(
    "cache, status",
    [
        ("write back", "ok"),
        ("write back, virtual disk", "ok"),
        ("write through", "ok"),
        (None, "skip"),
        ("write through, virtual disk", "warn"),
    ],
)
def test_write_caches(cache, status):
    values = {"write": "fsync-dir", "filesystem": "ext4", "mount_options": "rw", "write_cache": cache}
    assert made_up(Files, **values)["files.write_cache"].status == status


@pytest.mark.parametrize("what, said", [("absent", "does not exist"), ("file", "is a file, not a directory")])
def test_a_directory_that_is_none(tmp_path, what, said):
    (tmp_path / "file").touch()
    with pytest.raises(NotReady, match=said):
        looked((tmp_path / what).as_uri())


def test_looking_at_a_directory_changes_nothing(tmp_path):
    (tmp_path / "theirs").write_bytes(b"stays")
    before, changed = everything(tmp_path), tmp_path.stat().st_mtime_ns
    looked(f"{tmp_path.as_uri()}?write=fsync-dir")
    looked(tmp_path.as_uri())
    assert (everything(tmp_path), tmp_path.stat().st_mtime_ns) == (before, changed)


# SQLite: what the file says.


@pytest.mark.parametrize(
    "stored, query, statuses",
    [
        ("wal", "?synchronous=full", ("ok", "ok")),
        ("wal", "?journal_mode=wal&synchronous=extra", ("ok", "ok")),
        ("wal", "?synchronous=normal", ("ok", "fail")),
        ("wal", "?synchronous=off", ("ok", "fail")),
        ("wal", "", ("ok", "unknown")),
        ("wal", "?journal_mode=delete&synchronous=extra", ("ok", "ok")),
        ("wal", "?journal_mode=delete&synchronous=full", ("ok", "fail")),  # the program takes the file out of WAL
        ("wal", "?journal_mode=memory&synchronous=full", ("fail", "ok")),
        ("wal", "?journal_mode=off&synchronous=extra", ("fail", "ok")),
        ("delete", "?journal_mode=delete&synchronous=extra", ("ok", "ok")),
        ("delete", "?journal_mode=delete&synchronous=full", ("ok", "fail")),
        ("delete", "?journal_mode=truncate&synchronous=full", ("ok", "ok")),
        ("delete", "?journal_mode=persist&synchronous=normal", ("ok", "fail")),
        ("delete", "?journal_mode=memory&synchronous=full", ("fail", "ok")),
        ("delete", "?journal_mode=off&synchronous=extra", ("fail", "ok")),
        ("delete", "?synchronous=extra", ("ok", "ok")),
        ("delete", "?synchronous=full", ("ok", "fail")),
        ("delete", "?synchronous=normal", ("ok", "fail")),
        ("delete", "?journal_mode=wal&synchronous=full", ("fail", "ok")),
        ("delete", "", ("ok", "unknown")),
    ],
)
def test_journal_mode_and_synchronous_against_the_drive(tmp_path, stored, query, statuses):
    path = database(tmp_path / "their.db", f"journal_mode={stored}")
    checks = looked(url_of(path, query))
    assert tuple(checks[f"sqlite.{name}"].status for name in ("journal_mode", "synchronous")) == statuses
    for check in checks.values():
        if check.status == "fail":
            assert "PRAGMA" in check.fix
            assert check.loses
    waiting = [checks[f"sqlite.{name}"].status for name in ("hot_journal", "unrecovered_wal", "sidecars")]
    assert waiting == ["ok", "ok", "ok"]


def test_an_unknown_synchronous_names_both_ways_out(tmp_path):
    path = database(tmp_path / "their data.db", "journal_mode=wal")
    backend = Sqlite.from_url(f"sqlite:///{str(path).replace(' ', '%20')}")
    (check,) = [one for one in backend.checks(list(backend.inspect()), DRIVE) if one.id == "sqlite.synchronous"]
    assert check.status == "unknown"
    asked, _, watched = check.fix.partition("; or let us watch it: ")
    assert "their%20data.db?journal_mode=wal&synchronous=full'" in asked
    assert watched.endswith("their%20data.db' -- YOUR PROGRAM")


def test_for_processes_any_journal_on_the_disk_will_do(tmp_path):
    path = database(tmp_path / "their.db", "journal_mode=wal")
    assert looked(url_of(path), CLIENT)["sqlite.synchronous"].status == "skip"
    assert looked(url_of(path, "?synchronous=off"), CLIENT)["sqlite.synchronous"].status == "ok"
    memory = looked(url_of(database(tmp_path / "other.db"), "?journal_mode=memory&synchronous=full"), CLIENT)
    assert memory["sqlite.journal_mode"].status == "fail"


@pytest.mark.parametrize(
    "version, bug, journal, status",
    [
        ("3.51.2", "present", "wal", "warn"),
        ("3.51.2", "present", "delete", "ok"),
        ("3.51.2", "present", None, "warn"),
        ("3.51.3", "fixed", "wal", "ok"),
    ],
)
def test_the_wal_reset_bug_is_a_warning_where_there_is_a_wal(version, bug, journal, status):
    check = made_up(Sqlite, version=version, wal_reset_bug=bug, journal_mode=journal)["sqlite.version"]
    assert (check.status, check.value) == (status, version)
    if status == "warn":
        assert all(fixed in check.fix for fixed in ("3.51.3", "3.50.7", "3.44.6"))


@pytest.mark.parametrize(
    "content, said",
    [(None, "does not exist"), (b"no database, but a text" * 50, "is not a SQLite database"), ("folder", "directory")],
)
def test_what_is_no_database(tmp_path, content, said):
    path = tmp_path / "their.db"
    if content == "folder":
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(NotReady, match=said):
        looked(url_of(path))


# SQLite: what waits for recovery, and what only looks like it.

DIED_IN_WAL = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode=wal")
connection.execute("CREATE TABLE theirs (value)")
os.kill(os.getpid(), signal.SIGKILL)
"""
SPILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE theirs (value)")
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("PRAGMA cache_size=2")
connection.execute("BEGIN")
for _ in range(200):
    connection.execute("INSERT INTO theirs VALUES (zeroblob(3000))")
print("spilled", flush=True)
if sys.argv[3] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
connection.execute("COMMIT")
"""
BUSY = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("PRAGMA synchronous=off")
connection.execute("CREATE TABLE IF NOT EXISTS theirs (value)")
print("ready", flush=True)
end, commits = time.monotonic() + 1.5, 0
while time.monotonic() < end:
    connection.execute("INSERT INTO theirs VALUES (zeroblob(2000))")
    commits += 1
print(commits, flush=True)
"""

REOPENS = """
import sqlite3, sys, time
print("ready", flush=True)
end, commits = time.monotonic() + 1.5, 0
while time.monotonic() < end:
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
    connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
    connection.execute("PRAGMA synchronous=off")
    connection.execute("CREATE TABLE IF NOT EXISTS theirs (value)")
    connection.execute("INSERT INTO theirs VALUES (zeroblob(2000))")
    connection.close()
    commits += 1
print(commits, flush=True)
"""


def dies(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist"])
def test_a_hot_journal_is_found_and_left_alone(tmp_path, mode):
    path = tmp_path / "their.db"
    dies(SPILLED, path, mode, "dies")
    before = everything(tmp_path)
    checks = looked(url_of(path, f"?journal_mode={mode}&synchronous=extra"))
    assert everything(tmp_path) == before
    hot = checks["sqlite.hot_journal"]
    assert (hot.status, hot.value) == ("warn", "yes")
    assert "-journal" in checks["sqlite.sidecars"].value
    assert str(path) in hot.fix
    database(path)  # whoever opens it recovers it
    assert looked(url_of(path, f"?journal_mode={mode}&synchronous=extra"))["sqlite.hot_journal"].status == "ok"


def test_an_unrecovered_wal_is_found_and_left_alone(tmp_path):
    path = tmp_path / "their.db"
    dies(DIED_IN_WAL, path)
    before = everything(tmp_path)
    assert set(before) == {"their.db", "their.db-wal", "their.db-shm"}
    wal = looked(url_of(path, "?synchronous=full"))["sqlite.unrecovered_wal"]
    assert (wal.status, wal.value) == ("warn", "yes")
    (tmp_path / "their.db-shm").unlink()  # as in a copy
    before.pop("their.db-shm")
    assert looked(url_of(path, "?synchronous=full"))["sqlite.unrecovered_wal"].status == "warn"
    assert everything(tmp_path) == before
    database(path)
    assert looked(url_of(path, "?synchronous=full"))["sqlite.unrecovered_wal"].status == "ok"


def test_a_wal_beside_a_database_that_has_none_is_told(tmp_path):
    path = database(tmp_path / "their.db")
    (tmp_path / "their.db-wal").write_bytes(b"x" * 100)
    assert looked(url_of(path, "?journal_mode=delete&synchronous=extra"))["sqlite.sidecars"].status == "warn"


@pytest.mark.parametrize("code", [BUSY, REOPENS], ids=["stays", "reopens"])
@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_a_live_writer_is_neither_disturbed_nor_reported(tmp_path, mode, code):
    path = database(tmp_path / "their.db", f"journal_mode={mode}")
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path), mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline() == "ready\n"
        seen, looks = set(), 0
        while writer.poll() is None and looks < 400:
            checks = looked(url_of(path, f"?journal_mode={mode}&synchronous={'extra' if mode == 'delete' else 'full'}"))
            seen |= {(name, check.status) for name, check in checks.items() if check.status not in ("ok", "skip")}
            looks += 1
        told, errors = writer.communicate(timeout=60)
    finally:
        writer.kill()
        writer.wait()
    assert (writer.returncode, errors) == (0, "")
    assert int(told) > 20
    assert looks > 20
    assert {name for name, _ in seen} <= {"sqlite.version", "sqlite.filesystem", "sqlite.write_cache"}, seen


@pytest.mark.parametrize("mode", ["delete", "persist"])
def test_a_transaction_under_way_is_not_hot(tmp_path, mode):
    path = tmp_path / "their.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", SPILLED, str(path), mode, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout.readline() == b"spilled\n"
        before = everything(tmp_path)
        assert looked(url_of(path, f"?journal_mode={mode}&synchronous=extra"))["sqlite.hot_journal"].status == "ok"
        assert everything(tmp_path) == before
        writer.communicate(timeout=60)
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0, "its commit must still go through"


@pytest.mark.parametrize("mode", ["delete", "wal", "persist"])
def test_looking_at_a_database_at_rest_changes_nothing(tmp_path, mode):
    path = database(tmp_path / "their.db", f"journal_mode={mode}")
    before, changed = everything(tmp_path), tmp_path.stat().st_mtime_ns
    for query in ("", "?synchronous=full", f"?journal_mode={mode}&synchronous=full"):
        looked(url_of(path, query))
    assert (everything(tmp_path), tmp_path.stat().st_mtime_ns) == (before, changed)


def test_a_database_that_this_process_has_open_keeps_its_locks(tmp_path):
    path = database(tmp_path / "their.db", "journal_mode=wal")
    own = sqlite3.connect(path, isolation_level=None)
    own.execute("INSERT INTO theirs VALUES (1)")
    checks = looked(url_of(path, "?synchronous=full"))
    assert checks["sqlite.unrecovered_wal"].status == checks["sqlite.hot_journal"].status == "skip"
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM theirs').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    assert (tmp_path / "their.db-wal").exists(), "the other process thought that it was the last one"
    own.close()


# Probes.


def probed(directory, goal=DRIVE):
    return {check.id: check for check in Files.from_url(f"{directory.as_uri()}?write=fsync-dir").probe(goal)}


def test_a_probe_of_a_disk_holds_and_leaves_nothing(tmp_path):
    (tmp_path / "theirs").touch()
    checks = probed(tmp_path)
    assert set(checks) == set(Files.probes)
    assert checks["files.directory_fsync"].status == "ok"
    assert checks["files.flush_latency"].status in ("ok", "warn")
    assert all("removed" in check.evidence for check in checks.values())
    path = database(tmp_path / "their.db")
    assert {check.id for check in Sqlite.from_url(url_of(path)).probe(DRIVE)} == set(Sqlite.probes)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["their.db", "theirs"]


def test_a_flush_that_is_swallowed_is_faster_than_any_drive(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    check = probed(tmp_path)["files.flush_latency"]
    assert check.status == "fail"
    assert "LD_PRELOAD" in check.fix
    assert probed(tmp_path, CLIENT)["files.flush_latency"].status == "warn"


def test_memory_is_faster_than_any_drive():
    with place._folder(Path("/dev/shm")) as folder:
        assert probed(folder)["files.flush_latency"].status == "fail"


def test_a_directory_that_cannot_be_flushed_fails(tmp_path, monkeypatch):
    def refuses(descriptor):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuses)
    check = probed(tmp_path)["files.directory_fsync"]
    assert (check.status, check.value) == ("fail", "refused: EINVAL")
    assert list(tmp_path.iterdir()) == []


def test_a_probe_removes_what_a_killed_one_left_and_nobody_elses(tmp_path):
    dead, living, foreign = (tmp_path / f"{place.PROBE_PREFIX}{name}" for name in ("abcdefgh", "ijklmnop", "notes-x"))
    for folder in (dead, living, foreign):
        folder.mkdir()
        (folder / "flush").touch()
    for folder in (dead, living):
        (folder / place.PROBE_LOCK).touch()
    (tmp_path / f"{place.PROBE_PREFIX}link").symlink_to(dead)
    with (living / place.PROBE_LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        probed(tmp_path)
    assert {path.name.removeprefix(place.PROBE_PREFIX) for path in tmp_path.iterdir()} == {
        "ijklmnop",
        "notes-x",
        "link",
    }


def test_a_directory_that_may_not_be_written_to_is_unknown(tmp_path, monkeypatch):
    def refuses(path, *mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuses)
    checks = probed(tmp_path)
    assert {check.status for check in checks.values()} == {"unknown"}
    assert all("user who writes" in check.fix for check in checks.values())


# Watching, call by call; real programs are watched in bench/tests/test_counting.py.


def file_calls(folder, *words):
    """``open a``, ``write a``, ``flush a`` (``.`` the folder, nothing everything), ``rename a b``, ``unlink a``."""
    for word in words:
        kind, *names = word.split()
        paths = [str(folder) if name == "." else f"{folder}/{name}" for name in names]
        kinds = {"make": "open", "append": "open", "direct": "open"}
        flags = {
            "open": {"O_WRONLY", "O_CREAT", "O_TRUNC"},
            "make": {"O_WRONLY", "O_CREAT", "O_EXCL"},
            "append": {"O_WRONLY", "O_APPEND"},
            "direct": {"O_WRONLY", "O_TRUNC", "O_DSYNC"},
        }
        yield Call(kinds.get(kind, kind), 1, *(paths or [""]), flags=frozenset(flags.get(kind, ())))


@pytest.mark.parametrize(
    "calls, way",
    [
        (["open a", "write a"], "in-place"),
        (["open t", "write t", "rename t a"], "rename"),
        (["open t", "write t", "rename t a", "flush a", "flush ."], "rename"),
        (["open t", "write t", "flush t", "rename t a"], "fsync-file"),
        (["open t", "write t", "flush t", "rename t a", "flush ."], "fsync-dir"),
        (["make t", "write t", "flush t", "rename t a", "flush ."], "fsync-dir"),
        (["open t", "write t", "write t", "flush t", "write t", "rename t a", "flush ."], "rename"),
        (["open t", "write t", "flush t", "rename t a", "flush .", "open a", "write a"], "in-place"),
        (["open t", "write t", "flush t", "rename t a", "open u", "write u", "flush u", "rename u b", "flush ."],
         "fsync-file"),
        (["direct t", "write t", "rename t a", "flush ."], "fsync-dir"),
        (["open t", "write t", "flush", "rename t a", "flush"], "fsync-dir"),
        (["append log", "write log", "flush log", "write log", "flush log"], "in-place-fsync"),
        (["append log", "write log", "write log", "flush log"], "in-place"),
        (["append log", "write log", "flush log", "write log"], "in-place"),
        (["make new", "write new", "flush new"], "in-place"),
        (["make new", "write new", "flush new", "flush ."], "in-place-fsync"),
        (["open d/x", "write d/x", "flush d/x", "flush d", "rename d e", "flush ."], "fsync-dir"),
        (["open d/x", "write d/x", "flush d/x", "rename d e", "flush ."], "fsync-file"),
        (["open d/x", "write d/x", "rename d e", "flush ."], "rename"),
        (["open t", "write t", "unlink t"], None),
        (["open ../elsewhere", "write ../elsewhere"], None),
    ],
)  # fmt: skip
def test_the_way_that_calls_show(tmp_path, calls, way):
    found = [
        Call(call.kind, call.pid, os.path.normpath(call.path) if call.path else "", call.target, call.flags)
        for call in file_calls(tmp_path, *calls)
    ]
    (fact,) = Files.from_url(tmp_path.as_uri()).watched(found)
    assert fact.value == (way or "")
    assert bool(fact.unread) == (way is None)


@pytest.mark.parametrize("cls, target", [(Files, "file://{}"), (Sqlite, "sqlite:///{}/a.db")])
def test_what_a_tracer_cannot_follow_is_not_known(tmp_path, cls, target):
    backend = cls.from_url(target.format(tmp_path))
    facts = backend.watched([Call("write", 1, f"{tmp_path}/a"), Call("hidden", 1, "io_uring_setup")])
    assert all("io_uring_setup" in fact.unread for fact in facts)
