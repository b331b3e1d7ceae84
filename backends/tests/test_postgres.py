"""What a user of the postgres adapter relies on: the promise read back, what a killed server loses, and no secrets."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import hypothesis
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabench import fault, service
from durabench_backends.contract import Domain, Fact, NotReady, Refused
from durabench_backends.postgres import Postgres, session

SETTINGS = {setting.name: setting for setting in Postgres.settings}
SECRET = "correct-horse"


def kill(running):
    running.machine.strike(fault.load("kill-server"), 0)


def lost_after_kill(running, opened, puts=100):
    """How many of so many acknowledged puts are gone once the server was killed and is up again."""
    backend = running.backend
    backend.drop("data")
    with closing(opened(backend)) as store:
        for number in range(puts):
            store.put(f"key-{number}", b"x" * 500)
        kill(running)
    running.start()
    with closing(opened(backend)) as store:
        return puts - len(set(store.keys()))


def administrate(running, *statements):
    port = running.machine.port("store/postgres")
    with psycopg.connect(host="127.0.0.1", port=port, user="postgres", autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def postmaster(running):
    """Its process, from the lock file that it keeps in the data directory."""
    return int((running.root / "data" / "postmaster.pid").read_text().splitlines()[0])


def made_by(process):
    """The System V segments of this host that a process made."""
    lines = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:])
    return [words[1] for words in lines if int(words[4]) == process]


@pytest.fixture(params=list(SETTINGS))
def running(request, tmp_path):
    with service.running("postgres", request.param, tmp_path / "run") as found:
        yield found


@pytest.fixture
def fresh(tmp_path):
    """A default server of the test's own, to be killed or configured."""
    with service.running("postgres", "on", tmp_path / "run") as found:
        yield found


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """A default server that the tests of this file share; each in namespaces of its own."""
    with service.running("postgres", "on", tmp_path_factory.mktemp("postgres") / "run") as found:
        yield found


@pytest.mark.parametrize(
    "name, server_s, machine_s, atomic, ordered, tier",
    [
        ("on", 0, 0, Domain.DRIVE, Domain.DRIVE, "T3"),
        ("off", 0.6, 0.6, Domain.DRIVE, Domain.DRIVE, "T2 0.6 s"),
        ("fsync-off", 0, None, Domain.SERVER, Domain.SERVER, "T1"),
        ("unlogged", None, None, Domain.SERVER, None, "T0"),
    ],
)
def test_settings_promise_what_the_documentation_says(*, name, server_s, machine_s, atomic, ordered, tier):
    promise = SETTINGS[name].promise
    assert promise.may_lose_s.get(Domain.SERVER) == server_s
    assert promise.may_lose_s.get(Domain.MACHINE) == promise.may_lose_s.get(Domain.DRIVE) == machine_s
    assert promise.may_lose_s[Domain.NOTHING] == promise.may_lose_s[Domain.CLIENT] == 0
    assert (promise.atomic, promise.ordered, promise.tier) == (atomic, ordered, tier)
    assert "documentation" in promise.source


VALUES = {
    "synchronous_commit": ["on", "off", "local", "remote_write", "remote_apply", "nonsense"],
    "fsync": ["on", "off"],
    "full_page_writes": ["on", "off"],
    "wal_writer_delay": ["200ms", "10000ms", "1ms", "nonsense"],
    "unlogged_tables": ["none", "public.cache"],
    "wal_sync_method": ["fdatasync", "fsync_writethrough", "open_datasync"],
    "platform": ["PostgreSQL on linux-gnu", "PostgreSQL on apple-darwin", "PostgreSQL, Visual C++", "CockroachDB"],
    "in_recovery": ["on", "off"],
    "filesystem": ["ext4", "tmpfs", "unknown"],
    "mount_options": ["rw", "rw,nobarrier"],
    "server_version": ["18.6"],
}

DRAWN = st.fixed_dictionaries({name: st.sampled_from([*values[:1] * 6, *values]) for name, values in VALUES.items()})
"""The first of each is drawn most often: where several are bad, one that is missing changes nothing."""


@given(values=DRAWN, data=st.data())
@hypothesis.settings(deadline=None)
def test_missing_facts_never_strengthen_the_promise(no_stronger, values, data):
    facts = [Fact(f"postgres.{name}", value, "drawn") for name, value in values.items()]
    kept = data.draw(st.lists(st.sampled_from(facts), unique=True))
    whole = Postgres.promise(facts)
    assert no_stronger(Postgres.promise(kept), whole)
    assert Postgres.promise(iter(reversed(facts))) == whole


def test_a_server_promises_what_its_setting_does_and_a_kill_loses_only_what_that_lets_it(running, opened):
    running.look()
    assert running.promise == SETTINGS[running.target.setting].promise
    facts = {fact.id: fact for fact in running.facts}
    for option, value in SETTINGS[running.target.setting].options.items():
        assert (facts[f"postgres.{option}"].value, facts[f"postgres.{option}"].origin) == (value, "command line")
    tables = facts["postgres.unlogged_tables"]
    assert tables.value.startswith("durabench." if running.target.setting == "unlogged" else "none")
    assert "schema durabench" in tables.origin
    if running.target.setting == "off":
        # The WAL writer may have flushed right before the kill, so a single round could find nothing lost.
        assert any(lost_after_kill(running, opened) for _ in range(5))
    else:
        assert lost_after_kill(running, opened) == (100 if running.target.setting == "unlogged" else 0)


def test_facts_name_who_set_them(fresh):
    administrate(
        fresh,
        "ALTER ROLE postgres SET synchronous_commit = off",
        "ALTER SYSTEM SET wal_writer_delay = '1s'",
        "SELECT pg_reload_conf()",
    )
    end = time.monotonic() + 10
    while (facts := {fact.id: fact for fact in fresh.backend.inspect()})["postgres.wal_writer_delay"].value == "200ms":
        assert time.monotonic() < end, "the configuration was not read again"
    assert facts["postgres.synchronous_commit"].origin == "role postgres"
    file, _, line = facts["postgres.wal_writer_delay"].origin.rpartition(":")
    assert Path(file).name == "postgresql.auto.conf"
    assert int(line) > 0
    assert Postgres.promise(facts.values()).tier == "T2 3 s"


def test_a_table_that_is_not_what_was_asked_for_changes_the_promise(fresh):
    with closing(fresh.backend.open("data")):
        administrate(fresh, "ALTER TABLE durabench.data SET UNLOGGED")
    assert Postgres.promise(fresh.backend.inspect()).tier == "T0"


def test_a_restarted_server_is_told_apart_and_a_dead_one_is_not_ready(fresh, opened):
    backend = fresh.backend
    before = backend.identity()
    assert backend.identity() == before
    kill(fresh)
    for attempt in (backend.identity, backend.create, backend.inspect, lambda: backend.drop("data")):
        with pytest.raises(NotReady, match="connection refused"):
            attempt()
    with pytest.raises(NotReady, match="connection refused"):
        backend.open("data")
    fresh.start()
    opened(backend).close()
    assert backend.identity() != before


def test_nothing_is_left_in_shared_memory(fresh, opened):
    process = postmaster(fresh)
    assert "/dev/shm/PostgreSQL" not in Path(f"/proc/{process}/maps").read_text()
    own = Path(f"/proc/{process}/ns/ipc").readlink() != Path("/proc/self/ns/ipc").readlink()
    assert bool(made_by(process)) != own, "where it may, a server has a table of segments that goes with it"
    kill(fresh)
    assert not made_by(process)
    fresh.start()
    opened(fresh.backend).close()
    again = postmaster(fresh)
    fresh.stop()
    assert not made_by(again)


def test_the_second_create_is_refused(default):
    with pytest.raises(Refused, match="already exists"):
        default.backend.create()


def test_puts_of_several_namespaces_commit_together_or_not_at_all(default):
    backend = default.backend
    with closing(backend.open("many")) as data, closing(backend.open("more")) as metadata:
        data.put_many({("many", "a"): b"1", ("more", "a"): b"2"})
        assert (data.get("a"), metadata.get("a")) == (b"1", b"2")
        administrate(default, "ALTER TABLE durabench.more ADD CHECK (length(value) < 10)")
        with pytest.raises(Refused):
            data.put_many({("many", "b"): b"1", ("more", "b"): b"x" * 10})
        assert data.get("b") is None
        data.put("b", b"the connection is of use again")


def test_what_the_server_refuses_certainly_did_not_happen(default):
    with closing(default.backend.open("checked")) as store:
        administrate(default, "ALTER TABLE durabench.checked ADD CHECK (length(value) < 10)")
        with pytest.raises(Refused, match="23514"):
            store.put("a", b"x" * 10)
        assert store.get("a") is None


def test_names_that_do_not_fit_an_identifier_stay_apart(default):
    backend = default.backend
    names = ["n" * 100 + "a", "n" * 100 + "b", 'quo"ted', "quo''ted", "pg_class", "Case", "case"]
    for name in names:
        with closing(backend.open(name)) as store:
            store.put("key", name.encode())
    for name in names:
        with closing(backend.open(name)) as store:
            assert store.get("key") == name.encode()
        backend.drop(name)


def test_a_server_that_hangs_does_not_hang_the_client(default, monkeypatch):
    monkeypatch.setattr(session, "OPERATION_TIMEOUT_S", 0.3)
    with closing(default.backend.open("data")) as store:
        process = store._session._pgconn.backend_pid
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError, match="did not answer"):
                store.put("a", b"x" * (16 << 20))
        finally:
            os.kill(process, signal.SIGCONT)


def test_somebodys_server_is_used_through_its_url(default):
    port = default.machine.port("store/postgres")
    administrate(default, f"CREATE ROLE app LOGIN PASSWORD '{SECRET}'", "GRANT CREATE ON SCHEMA public TO app")
    backend = Postgres.from_url(f"postgresql://app:{SECRET}@127.0.0.1:{port}/postgres")
    assert backend.commands() == ()
    facts = list(backend.inspect())
    assert Postgres.promise(facts) == SETTINGS["on"].promise
    backend.create()
    with closing(backend.open("data")) as store:
        store.put("a", b"1")
        assert store.get("a") == b"1"
        assert store.size_bytes() > 0
    assert backend.size_bytes() > 0
    administrate(default, "ALTER TABLE durabench_data SET UNLOGGED")
    assert {fact.id: fact.value for fact in backend.inspect()}["postgres.unlogged_tables"] == "public.durabench_data"
    backend.drop("data")
    assert Postgres.promise(backend.inspect()) == SETTINGS["on"].promise
    assert SECRET not in f"{backend!r} {vars(store)!r} {facts}"


def test_a_password_is_never_shown(default, said):
    port = default.machine.port("store/postgres")
    free = default.machine.port("nobody-listens")
    assert SECRET not in said(lambda: Postgres.from_url(f"postgresql://u:{SECRET}@h:{SECRET}/d"), ValueError)
    assert SECRET not in said(lambda: Postgres.from_url(f"postgresql://u:{SECRET}@[h/d"), ValueError)
    assert SECRET not in said(lambda: Postgres.from_url(f"postgresql://h/d?nonsense={SECRET}"), ValueError)
    refused = Postgres.from_url(f"postgresql://u:{SECRET}@127.0.0.1:{free}/d")
    words = said(lambda: refused.open("data"), NotReady)
    assert SECRET not in words
    assert f"127.0.0.1:{free}" in words
    stranger = Postgres.from_url(f"postgresql://stranger:{SECRET}@127.0.0.1:{port}/postgres")
    words = said(lambda: stranger.open("data"), LookupError)
    assert SECRET not in words
    assert "does not exist" in words


def test_the_environment_does_not_reach_our_own_server(default, monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    facts = {fact.id: fact.value for fact in default.backend.inspect()}
    assert facts["postgres.synchronous_commit"] == "on"


def test_data_may_be_as_large_as_a_checkpoint(default):
    value = os.urandom(16 << 20)
    with closing(default.backend.open("data")) as store:
        before = store.size_bytes(), default.backend.size_bytes()
        store.put("large", value)
        assert store.get("large") == value
        assert store.size_bytes() - before[0] >= len(value)
        assert default.backend.size_bytes() > before[1]
