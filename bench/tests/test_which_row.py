"""README's "which row am I?", held against the programs that are at hand: what they set, and which calls they make.

A row about a library of others is tested where requirements.lock brings that library; elsewhere there is no such test.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import sqlite3
import stat
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from durabench_backends import registry
from durabench_backends.contract import NotReady

ROOT = Path(__file__).resolve().parents[2]
LOCKED = set(re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
READY_S = 20.0


def said_of(words):
    """The rows that README names for what ``words`` begins a line of its table."""
    table = (ROOT / "README.md").read_text().partition("## Which row am I?")[2].partition("\n## ")[0]
    lines = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("|")]
    (found,) = [row for what, row in lines if what.strip().startswith(words)]
    return re.findall(r"`([a-z0-9-]+:[a-z0-9-]+)`", found)


def test_every_row_that_is_named_exists():
    table = (ROOT / "README.md").read_text().partition("## Which row am I?")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z0-9-]+):([a-z0-9-]+)`", table))
    assert len(named) >= 8
    for backend, setting in named:
        registry.setting_of(registry.load(backend), backend, setting)


# --- SQLite: the pragmas in force


def row_of_sqlite(pragma):
    """The settings of ours that hold what ``pragma`` reads back from somebody's own connection."""
    words = ("off", "normal", "full", "extra")
    in_force = {"journal_mode": pragma("journal_mode"), "synchronous": words[pragma("synchronous")]}
    settings = registry.load("sqlite").settings
    return [f"sqlite:{setting.name}" for setting in settings if dict(setting.options) == in_force]


def pragma_of(connection):
    return lambda name: connection.execute(f"pragma {name}").fetchone()[0]


def test_python_s_own_sqlite3(tmp_path):
    with closing(sqlite3.connect(tmp_path / "some.db")) as connection:
        connection.execute("create table checkpoint (step)")
        assert row_of_sqlite(pragma_of(connection)) == said_of("Python's `sqlite3.connect(path)`")


def test_a_connection_that_was_changed_is_another_row(tmp_path):
    with closing(sqlite3.connect(tmp_path / "some.db")) as connection:
        connection.execute("pragma journal_mode=wal")
        assert row_of_sqlite(pragma_of(connection)) == ["sqlite:wal-full"]


if "langgraph-checkpoint-sqlite" in LOCKED:

    def test_langgraph(tmp_path):
        saver = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        with saver.from_conn_string(str(tmp_path / "client.db")) as opened:
            opened.setup()
            assert row_of_sqlite(pragma_of(opened.conn)) == said_of("LangGraph `SqliteSaver`")


if "dbos" in LOCKED:

    def test_dbos(tmp_path):
        module = importlib.import_module("dbos")
        url = f"sqlite:///{tmp_path / 'client.db'}"
        instance = module.DBOS(config={"name": "which-row", "system_database_url": url})
        module.DBOS.launch()
        try:
            with instance._sys_db.engine.connect() as connection:
                row = row_of_sqlite(lambda name: connection.exec_driver_sql(f"pragma {name}").scalar_one())
        finally:
            module.DBOS.destroy()
        assert row == said_of("DBOS with SQLite")


# --- files: the calls that matter, in their order


@pytest.fixture
def calls(monkeypatch):
    """What this process does to make a file durable, in order: ("fsync", "file" | "directory") and ("rename",)."""
    seen = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def traced_fsync(descriptor):
        mode = os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno()).st_mode
        seen.append(("fsync", "directory" if stat.S_ISDIR(mode) else "file"))
        return fsync(descriptor)

    def traced(call):
        def renamed(*arguments, **words):
            seen.append(("rename",))
            return call(*arguments, **words)

        return renamed

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "fdatasync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced(rename))
    monkeypatch.setattr(os, "replace", traced(replace))
    return seen


def in_place(path, value):
    path.write_bytes(value)


def in_place_by_hand(path, value):
    with path.open("wb") as file:
        file.write(value)


def replaced(path, value):
    part = path.with_suffix(".part")
    part.write_bytes(value)
    os.replace(part, path)


def synced(path, value):
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(value)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def synced_with_its_directory(path, value):
    synced(path, value)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


RECIPES = [
    (in_place, '`open(path, "wb")`, write, close'),
    (in_place_by_hand, '`open(path, "wb")`, write, close'),
    (replaced, "temporary file, `os.replace`"),
    (synced, "… with `os.fsync(file)` before it"),
    (synced_with_its_directory, "… and `os.fsync(directory)` after it"),
]


@pytest.mark.parametrize("recipe, words", RECIPES)
def test_a_recipe_makes_the_calls_of_its_row_and_of_no_other(recipe, words, calls, tmp_path):
    recipe(tmp_path / "checkpoint", b"state")
    made = list(calls)
    found = registry.load("files")
    same = []
    for setting in found.settings:
        root = tmp_path / setting.name
        root.mkdir()
        backend = found(setting, root, lambda _name: 0)
        backend.create()
        store = backend.open("metadata")
        store.put("first", b"state")  # its first put may sweep up after others
        calls.clear()
        store.put("step", b"state")
        if calls == made:
            same.append(f"files:{setting.name}")
        store.close()
    assert same == said_of(words)


# --- Redis and Valkey: what a server says that was started without any option


@pytest.mark.parametrize("engine", ["redis", "valkey"])
def test_a_server_as_shipped(engine, tmp_path):
    found = registry.load(engine)
    program = found(found.settings[0], tmp_path, lambda _name: 0).commands()[0].argv[0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Where it listens and lies is not how it keeps: everything else is as shipped.
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([program, *where], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        facts = facts_of(found.from_url(f"{engine}://127.0.0.1:{port}"), server, tmp_path / "log")
    finally:
        server.kill()
        server.wait(10)
    assert {fact.origin for fact in facts if fact.id == "redis.save"} == {"CONFIG GET; no configuration file"}
    same = [f"{engine}:{setting.name}" for setting in found.settings if setting.promise == found.promise(facts)]
    assert same == [f"{engine}:{found.settings[0].name}"]
    assert same[0] in said_of("a stock `redis-server` or `valkey-server`")


def facts_of(backend, server, log):
    """What it says of itself once it answers."""
    end = time.monotonic() + READY_S
    while True:
        try:
            return list(backend.inspect())
        except NotReady:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
