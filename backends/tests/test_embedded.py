"""The embedded stores: what they do to files, what they promise from what they read, and what they leave alone."""

import errno
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabench_backends import conformance, embedded, files, memory, sqlite
from durabench_backends.contract import Conditional, Domain, Fact, NotReady, Transactional

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200).filter(
    lambda key: len(key.encode()) <= 200
)
PROCESSES = [Domain.NOTHING, Domain.CLIENT, Domain.SERVER]
MACHINES = [*PROCESSES, Domain.MACHINE, Domain.DRIVE]


def no_port(name):
    raise AssertionError(name)


def made(cls, name, root):
    """A created backend of a setting in ``root``."""
    (setting,) = [setting for setting in cls.settings if setting.name == name]
    backend = cls(setting, root, no_port)
    backend.create()
    return backend


def in_another_process(code, *arguments, kill=False):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr.decode()
    return done.stdout.decode()


def snapshot(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


# Promises.


@pytest.mark.parametrize(
    "cls, name, kept, promised, tier",
    [
        (memory.Memory, "dict", [], (None, None), "T0"),
        (files.Files, "in-place", PROCESSES, (None, None), "T1"),
        (files.Files, "rename", PROCESSES, (Domain.SERVER, None), "T1"),
        (files.Files, "fsync-file", PROCESSES, (Domain.DRIVE, None), "T1"),
        (files.Files, "fsync-dir", MACHINES, (Domain.DRIVE, Domain.DRIVE), "T3"),
        (sqlite.Sqlite, "delete-full", PROCESSES, (Domain.DRIVE, Domain.DRIVE), "T1"),
        (sqlite.Sqlite, "delete-extra", MACHINES, (Domain.DRIVE, Domain.DRIVE), "T3"),
        (sqlite.Sqlite, "wal-full", MACHINES, (Domain.DRIVE, Domain.DRIVE), "T3"),
        (sqlite.Sqlite, "wal-normal", PROCESSES, (Domain.DRIVE, Domain.DRIVE), "T1"),
        (sqlite.Sqlite, "off", PROCESSES, (Domain.SERVER, Domain.SERVER), "T1"),
    ],
)
def test_what_each_setting_promises(cls, name, kept, promised, tier):
    (promise,) = [setting.promise for setting in cls.settings if setting.name == name]
    assert dict(promise.may_lose_s) == dict.fromkeys(kept, 0.0)
    assert ((promise.atomic, promise.ordered), promise.tier) == (promised, tier)
    assert promise.source


def test_the_first_sqlite_setting_is_what_the_library_does_by_itself(tmp_path):
    connection = sqlite3.connect(tmp_path / "default.db")
    options = sqlite.Sqlite.settings[0].options
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == options["journal_mode"]
    assert sqlite.SYNCHRONOUS[connection.execute("PRAGMA synchronous").fetchone()[0]] == options["synchronous"]
    connection.close()


@pytest.mark.parametrize("name", [setting.name for setting in sqlite.Sqlite.settings])
def test_a_store_runs_with_the_pragmas_of_its_setting(tmp_path, name):
    backend = made(sqlite.Sqlite, name, tmp_path)
    store = backend.open("metadata")
    assert isinstance(store, sqlite.SqliteStore)
    options = backend.setting.options
    assert store._connection.execute("PRAGMA journal_mode").fetchone()[0] == options["journal_mode"]
    assert sqlite.SYNCHRONOUS[store._connection.execute("PRAGMA synchronous").fetchone()[0]] == options["synchronous"]
    store.close()


@pytest.mark.parametrize(
    "filesystem, options, kept",
    [
        ("ext4", "rw,relatime", MACHINES),
        ("nfs4", "rw", MACHINES),
        ("tmpfs", "rw", PROCESSES),
        ("overlay", "rw,volatile", PROCESSES),
        ("ext4", "rw,nobarrier", MACHINES[:-1]),
        ("ext4", "rw,barrier=0", MACHINES[:-1]),
        ("unknown", "", PROCESSES),
    ],
)
def test_a_promise_reaches_no_further_than_the_mount(filesystem, options, kept):
    for name, cls, words in (
        ("files", files.Files, {"write": "fsync-dir"}),
        ("sqlite", sqlite.Sqlite, {"journal_mode": "wal", "synchronous": "full"}),
    ):
        facts = words | {"filesystem": filesystem, "mount_options": options}
        promise = cls.promise([Fact(f"{name}.{key}", value, "made up") for key, value in facts.items()])
        assert list(promise.may_lose_s) == kept
        assert promise.atomic == promise.ordered == kept[-1]


def test_a_place_weakens_what_a_setting_is_compared_with():
    promise = files.PROMISES["fsync-dir"]
    assert embedded.kept_here(promise, [Fact("files.write", "fsync-dir", "made up")]) == promise
    assert embedded.kept_here(promise, [Fact("files.filesystem", "xfs", "made up")]) == promise
    here = embedded.kept_here(promise, [Fact("files.filesystem", "tmpfs", "made up")])
    assert list(here.may_lose_s) == PROCESSES


def test_the_mount_below_a_path():
    assert embedded.mount_of(Path("/proc/self")).filesystem == "proc"
    assert embedded.mount_of(Path("/")).filesystem not in {"proc", "unknown"}
    assert (
        "rw" in embedded.mount_of(Path("/proc")).options.split(",") or "ro" in embedded.mount_of(Path("/proc")).options
    )


@pytest.mark.parametrize(
    "version, bug",
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_versions_with_the_wal_reset_bug(version, bug):
    assert sqlite.has_wal_reset_bug(version) is bug


def test_identity_names_the_process_that_asks(tmp_path):
    code = "from durabench_backends.embedded import process_identity; print(process_identity())"
    own = made(files.Files, "rename", tmp_path).identity()
    assert own == made(memory.Memory, "dict", tmp_path).identity()
    assert own not in {in_another_process(code).strip(), in_another_process(code).strip()}


# Files.


@given(KEYS, KEYS)
def test_file_names_are_safe_and_tell_keys_apart(one, other):
    name = files.file_name(one)
    assert files.key_of(name) == one
    assert len(name) <= 255
    assert name.isascii()
    assert "/" not in name
    assert not name.startswith(".")
    assert (name == files.file_name(other)) == (one == other)


@given(st.binary(min_size=150, max_size=200))
def test_file_names_of_long_keys_are_safe_too(raw):
    key = "/" * 100 + raw.decode("latin-1").replace("\0", "%")[:50]
    name = files.file_name(key)
    assert files.key_of(name) == key
    assert len(name) <= 255
    assert "/" not in name


@pytest.mark.parametrize("name", ["%2f", "a b", "%", "%zz", "%%", "%%a", "%ff", "%41", "k" * 201, ".tmp-1"])
def test_a_foreign_file_is_no_key(name):
    with pytest.raises(ValueError):  # noqa: PT011 - of whichever kind
        files.key_of(name)


@pytest.fixture
def calls(monkeypatch):
    """The calls that reach the file system, in order, each with what it works on."""
    seen = []

    def kind(descriptor):
        return "directory" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file"

    def watched(name, describe):
        real = getattr(os, name)

        def call(*arguments, **keywords):
            seen.append(describe(*arguments))
            return real(*arguments, **keywords)

        monkeypatch.setattr(os, name, call)

    watched("write", lambda *_: "write")
    watched("close", lambda descriptor: f"close {kind(descriptor)}")
    watched("fsync", lambda descriptor: f"fsync {kind(descriptor)}")
    watched("fdatasync", lambda descriptor: f"fdatasync {kind(descriptor)}")
    watched("rename", lambda *_: "rename")
    watched("unlink", lambda *_: "unlink")
    watched("sync", lambda: "sync")
    return seen


@pytest.mark.parametrize(
    "name, put, delete",
    [
        ("in-place", ["write", "close file"], ["unlink"]),
        ("rename", ["write", "close file", "rename"], ["unlink"]),
        ("fsync-file", ["write", "fsync file", "close file", "rename"], ["unlink"]),
        (
            "fsync-dir",
            ["write", "fsync file", "close file", "rename", "fsync directory"],
            ["unlink", "fsync directory"],
        ),
    ],
)
def test_a_put_does_what_its_setting_says_and_no_more(tmp_path, calls, name, put, delete):
    store = made(files.Files, name, tmp_path).open("metadata")
    for key in ("first", "second", "first"):
        calls.clear()
        store.put(key, b"value")
        assert calls == put
    for key in ("first", "absent"):
        calls.clear()
        store.delete(key)
        assert calls == delete
    calls.clear()
    assert store.get("second") == b"value"
    assert list(store.keys()) == ["second"]
    store.close()
    assert [call for call in calls if "sync" in call] == []


@pytest.mark.parametrize("name", [setting.name for setting in files.Files.settings])
def test_only_fsync_dir_syncs_anything_when_it_opens(tmp_path, calls, name):
    store = made(files.Files, name, tmp_path).open("metadata")
    store.close()
    assert ("fsync directory" in calls) == (name == "fsync-dir")
    assert not {"fsync file", "sync"} & set(calls)


@pytest.mark.parametrize("name", [setting.name for setting in files.Files.settings])
def test_short_writes_are_finished(tmp_path, monkeypatch, name):
    store = made(files.Files, name, tmp_path).open("data")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, value: real(descriptor, bytes(value)[:1000]))
    store.put("key", bytes(range(256)) * 40)
    monkeypatch.undo()
    assert store.get("key") == bytes(range(256)) * 40
    store.close()


@pytest.mark.parametrize("name", ["rename", "fsync-file", "fsync-dir"])
def test_a_put_that_fails_leaves_the_old_value(tmp_path, monkeypatch, name):
    store = made(files.Files, name, tmp_path).open("metadata")
    store.put("key", b"old")

    def full(descriptor, value):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        store.put("key", b"new")
    monkeypatch.undo()
    assert store.get("key") == b"old"
    assert list(store.keys()) == ["key"]
    store.put("key", b"newer")
    assert store.get("key") == b"newer"
    assert len(list((tmp_path / "files" / "metadata").iterdir())) == 1
    store.close()


def test_what_a_killed_writer_left_is_no_key_and_goes_with_the_next_put(tmp_path):
    code = """
import os, pathlib, signal, sys
from durabench_backends.files import Files
backend = Files(Files.settings[3], pathlib.Path(sys.argv[1]), None)
store = backend.open("metadata")
os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
store.put("key", b"never renamed")
"""
    backend = made(files.Files, "fsync-dir", tmp_path)
    in_another_process(code, tmp_path, kill=True)
    folder = tmp_path / "files" / "metadata"
    assert len(list(folder.iterdir())) == 1
    theirs = [folder / ".tmp-mine", folder / f".tmp-{'0' * 16}"]  # no name of ours, and no file
    theirs[0].touch()
    theirs[1].symlink_to(theirs[0])
    store = backend.open("metadata")
    assert list(store.keys()) == []
    assert store.get("key") is None
    assert len(list(folder.iterdir())) == 3, "reading removes nothing"
    store.put("other", b"value")
    assert sorted(folder.iterdir()) == sorted([*theirs, folder / "other"]), "only the dead writer's goes"
    backend.drop("metadata")
    assert not folder.exists()


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
@pytest.mark.parametrize("apart", [[], ["unshare", "--pid", "--fork", "--mount-proc"]])
def test_a_put_that_is_under_way_is_not_swept_whatever_its_process_is_called(tmp_path, write, apart):
    """In another namespace of processes its id is somebody else's, or nobody's. Needs root."""
    if apart and os.geteuid() != 0:
        assert subprocess.run([*apart, "true"], check=False, capture_output=True).returncode != 0
        return
    code = """
import os, pathlib, sys
from durabench_backends.files import Files
store = Files(Files.settings[3], pathlib.Path(sys.argv[1]), None).open("metadata")
name = "rename" if sys.argv[2] == "put" else "link"
finish = getattr(os, name)
def wait(*words, **more):
    print("under way", flush=True)
    sys.stdin.read(1)
    finish(*words, **more)
setattr(os, name, wait)
getattr(store, sys.argv[2])("key", b"value")
"""
    backend = made(files.Files, "fsync-dir", tmp_path)
    argv = [*apart, sys.executable, "-c", code, str(tmp_path), write]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"under way\n"
        store = backend.open("metadata")
        store.put("other", b"value")
        writer.communicate(b"\n", timeout=60)
    assert writer.returncode == 0
    assert sorted(store.keys()) == ["key", "other"]
    assert store.get("key") == b"value"


def test_a_crash_that_took_the_directory_leaves_an_empty_store(tmp_path):
    backend = made(files.Files, "rename", tmp_path)
    backend.open("metadata").close()
    (tmp_path / "files" / "metadata").rmdir()
    (tmp_path / "files").rmdir()
    store = backend.open("metadata")
    assert list(store.keys()) == []
    store.close()


@pytest.mark.parametrize("cls", [files.Files, sqlite.Sqlite])
def test_namespaces_are_told_apart_by_case_too(tmp_path, cls):
    backend = made(cls, cls.settings[1].name, tmp_path)
    stores = {name: backend.open(name) for name in ("a", "A", "a/b", "a%2Fb", "..", 'a"b', "ä")}
    for name, store in stores.items():
        store.put("key", name.encode())
    assert {name: store.get("key") for name, store in stores.items()} == {name: name.encode() for name in stores}
    for store in stores.values():
        store.close()


def test_optional_protocols():
    assert issubclass(sqlite.SqliteStore, Transactional)
    assert issubclass(sqlite.SqliteStore, Conditional)
    assert issubclass(files.FilesStore, Conditional)
    assert not issubclass(files.FilesStore, Transactional)


# URLs: somebody's.


@pytest.mark.parametrize(
    "cls, url, said",
    [
        (files.Files, "file:relative?write=rename", "absolute path"),
        (files.Files, "file://host/dir", "absolute path"),
        (files.Files, "file:///dir?write=fsync", "in-place, rename, fsync-file, fsync-dir"),
        (files.Files, "file:///dir?fsync=1", "parameter='fsync'"),
        (sqlite.Sqlite, "sqlite:///relative.db", "four slashes"),
        (sqlite.Sqlite, "sqlite:////abs.db?journal=wal", "parameter='journal'"),
        (sqlite.Sqlite, "sqlite:////abs.db?journal_mode=wall", "journal_mode='wall'"),
        (sqlite.Sqlite, "sqlite:////abs.db?synchronous=4", "off, normal, full, extra"),
        (memory.Memory, "memory:", "no URL"),
    ],
)
def test_a_wrong_url_is_named(cls, url, said):
    with pytest.raises(ValueError, match=said):
        cls.from_url(url)


@pytest.mark.parametrize("write", [None, *files.PROMISES])
def test_the_promise_of_a_directory_is_that_of_its_url(tmp_path, write):
    backend = files.Files.from_url(tmp_path.as_uri() + (f"?write={write}" if write else ""))
    facts = list(backend.inspect())
    promise = files.PROMISES[write] if write else files.UNKNOWN
    assert backend.promise(facts) == embedded.on_mount(promise, "files", {fact.id: fact.value for fact in facts})
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_somebody_keeps_what_was_in_it(tmp_path):
    (tmp_path / "theirs").write_text("stays")
    folder = tmp_path / "with space"
    folder.mkdir()
    backend = files.Files.from_url(f"{folder.as_uri()}?write=fsync-dir")
    assert backend.commands() == ()
    store = backend.open("durabench")
    store.put("key", b"value")
    store.close()
    assert (folder / "durabench" / "key").read_bytes() == b"value"
    backend.drop("durabench")
    assert list(folder.iterdir()) == []
    missing = files.Files.from_url((tmp_path / "absent").as_uri())
    with pytest.raises(NotReady, match="does not exist"):
        list(missing.inspect())
    with pytest.raises(FileNotFoundError, match="is not a directory; make it first"):
        missing.open("durabench")
    assert not (tmp_path / "absent").exists()


def database(path, *pragmas):
    """Somebody's database, with a table of theirs."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE theirs (value)")
    connection.execute("INSERT INTO theirs VALUES ('stays')")
    connection.close()


@pytest.mark.parametrize(
    "stored, query, promise",
    [
        ("delete", "", sqlite.OFF),
        ("delete", "?synchronous=extra", sqlite.EXTRA),
        ("delete", "?journal_mode=delete", sqlite.OFF),
        ("delete", "?journal_mode=DELETE&synchronous=FULL", sqlite.DELETE_FULL),
        ("delete", "?journal_mode=delete&synchronous=3", sqlite.EXTRA),
        ("delete", "?journal_mode=truncate&synchronous=full", sqlite.ROLLBACK_FULL),
        ("delete", "?journal_mode=delete&synchronous=normal", sqlite.ROLLBACK_NORMAL),
        ("delete", "?journal_mode=memory&synchronous=full", sqlite.NO_JOURNAL),
        ("delete", "?journal_mode=off&synchronous=full", sqlite.NO_JOURNAL),
        ("delete", "?journal_mode=wal&synchronous=full", sqlite.NO_JOURNAL),  # the file is not what the URL says
        ("wal", "", sqlite.OFF),
        ("wal", "?synchronous=normal", sqlite.WAL_NORMAL),
        ("wal", "?journal_mode=wal&synchronous=full", sqlite.WAL_FULL),
        ("wal", "?journal_mode=wal&synchronous=off", sqlite.OFF),
        ("wal", "?journal_mode=delete&synchronous=normal", sqlite.ROLLBACK_NORMAL),  # what the program sets leaves WAL
    ],
)
def test_the_promise_of_a_database_is_that_of_its_file_and_its_url(tmp_path, stored, query, promise):
    database(tmp_path / "their.db", f"journal_mode={stored}")
    backend = sqlite.Sqlite.from_url(f"sqlite:///{tmp_path / 'their.db'}{query}")
    facts = list(backend.inspect())
    assert backend.promise(facts) == embedded.on_mount(promise, "sqlite", {fact.id: fact.value for fact in facts})


KILLED_WAL = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode=wal")
connection.execute("CREATE TABLE theirs (value)")
os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_HOT = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE theirs (value)")
connection.execute("PRAGMA cache_size=2")
connection.execute("BEGIN")
for _ in range(200):
    connection.execute("INSERT INTO theirs VALUES (zeroblob(3000))")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "code, sidecars, mode", [(KILLED_WAL, {"-wal", "-shm"}, "wal"), (KILLED_HOT, {"-journal"}, "delete")]
)
def test_looking_at_a_database_that_needs_recovery_changes_nothing(tmp_path, code, sidecars, mode):
    path = tmp_path / "their.db"
    in_another_process(code, path, kill=True)
    before = snapshot(tmp_path)
    assert set(before) == {"their.db", *(f"their.db{sidecar}" for sidecar in sidecars)}
    backend = sqlite.Sqlite.from_url(f"sqlite:///{path}?synchronous=full")
    facts = {fact.id: fact.value for fact in backend.inspect()}
    assert facts["sqlite.journal_mode"] == mode
    assert facts["sqlite.version"] == sqlite3.sqlite_version
    assert snapshot(tmp_path) == before


def test_looking_at_a_clean_wal_database_makes_no_sidecars(tmp_path):
    database(tmp_path / "their.db", "journal_mode=wal")
    before = snapshot(tmp_path)
    list(sqlite.Sqlite.from_url(f"sqlite:///{tmp_path / 'their.db'}?synchronous=full").inspect())
    assert snapshot(tmp_path) == before == {"their.db": before["their.db"]}


READ_KEY = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
(value,) = connection.execute("SELECT value FROM durabench_metadata").fetchone()
connection.close()
print(value.decode(), end="")
"""


def test_looking_does_not_drop_the_locks_of_a_connection_in_the_same_process(tmp_path):
    backend = made(sqlite.Sqlite, "wal-full", tmp_path)
    store = backend.open("metadata")
    store.put("key", b"value")
    list(backend.inspect())
    # Without our lock this connection would think it is the last one, and remove the log that ours still writes to.
    path = tmp_path / "checkpoints.db"
    assert in_another_process(READ_KEY, path) == "value"
    assert path.with_name("checkpoints.db-wal").exists()
    store.put("key", b"again")
    assert in_another_process(READ_KEY, path) == "again"
    store.close()


def test_a_database_of_somebody_keeps_its_tables_and_its_journal_mode(tmp_path):
    path = tmp_path / "their.db"
    database(path, "journal_mode=delete")
    with pytest.raises(ValueError, match="has a rollback journal, the URL says journal_mode=wal"):
        sqlite.Sqlite.from_url(f"sqlite:///{path}?journal_mode=wal").open("durabench")
    backend = sqlite.Sqlite.from_url(f"sqlite:///{path}?journal_mode=delete&synchronous=full")
    store = backend.open("durabench")
    store.put("key", b"value")
    store.close()
    backend.drop("durabench")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    assert connection.execute("SELECT value FROM theirs").fetchall() == [("stays",)]
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
    connection.close()


def test_a_missing_database_is_not_made_by_looking_at_it(tmp_path):
    backend = sqlite.Sqlite.from_url(f"sqlite:///{tmp_path / 'absent.db'}")
    with pytest.raises(NotReady, match="does not exist"):
        list(backend.inspect())
    backend.drop("durabench")
    assert list(tmp_path.iterdir()) == []


def test_put_many_is_one_commit(tmp_path):
    backend = made(sqlite.Sqlite, "wal-full", tmp_path)
    store = backend.open("metadata")
    assert isinstance(store, sqlite.SqliteStore)
    seen = []
    store._connection.set_trace_callback(seen.append)
    store.put_many({("data", "a"): b"1", ("data", "b"): b"2", ("metadata", "a"): b"3"})
    assert [statement for statement in seen if statement in {"BEGIN IMMEDIATE", "COMMIT"}] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]
    assert backend.open("data").get("b") == b"2"
    store._connection.execute(
        "CREATE TRIGGER no BEFORE INSERT ON durabench_metadata BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="no"):
        store.put_many({("data", "later"): b"1", ("metadata", "later"): b"2"})
    assert backend.open("data").get("later") is None
    store.put_many({("data", "later"): b"1"})
    store.close()


def test_a_damaged_database_is_an_error_not_an_empty_store(tmp_path):
    backend = made(sqlite.Sqlite, "delete-full", tmp_path)
    store = backend.open("metadata")
    store.put("key", b"value")
    store.close()
    path = tmp_path / "checkpoints.db"
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    with pytest.raises(sqlite3.DatabaseError):
        backend.open("metadata")


@pytest.mark.parametrize("cls", [files.Files, sqlite.Sqlite])
def test_sizes_are_what_is_allocated(tmp_path, cls):
    backend = made(cls, cls.settings[-1].name, tmp_path)
    before = backend.size_bytes()
    one, other = backend.open("data"), backend.open("metadata")
    one.put("key", conformance.random_bytes(5_000_000, "size"))
    other.put("key", b"small")
    assert 5_000_000 <= one.size_bytes() <= 5_500_000
    assert 0 < other.size_bytes() <= 20_000
    assert 5_000_000 <= backend.size_bytes() - before <= 6_000_000
    one.close()
    other.close()
