"""What a user of redis and valkey relies on: the promise read back, what a killed server loses, and no secrets."""

import os
import signal
import socketserver
import threading
from contextlib import closing, contextmanager
from functools import partial

import hypothesis
import pytest
import redis as client
from hypothesis import given
from hypothesis import strategies as st

from durabench import fault, service
from durabench_backends.contract import Domain, Fact, NotReady, Refused
from durabench_backends.redis import Redis, Valkey, adapter, promises, wire

CLASSES = {"redis": Redis, "valkey": Valkey}
NAMES = [setting.name for setting in Redis.settings]
SECRET = "correct-horse"


def setting_of(engine, name):
    return next(setting for setting in CLASSES[engine].settings if setting.name == name)


def kill(running):
    running.machine.strike(fault.load("kill-server"), 0)


def port_of(running):
    return running.machine.port(f"store/{running.target.backend}")


def administrate(running, *command):
    with closing(client.Redis(port=port_of(running))) as connection:
        return connection.execute_command(*command)


@contextmanager
def configured(running, name, value):
    """A parameter changed for a moment on a server that tests share."""
    with closing(client.Redis(port=port_of(running))) as connection:
        before = connection.config_get(name)[name]
        connection.config_set(name, value)
        try:
            yield
        finally:
            connection.config_set(name, before)


@pytest.fixture(scope="module", params=list(CLASSES))
def shared(request, tmp_path_factory):
    """A server under ``waitaof`` that the tests of this file share; it can be opened under every other setting too."""
    with service.running(request.param, "waitaof", tmp_path_factory.mktemp(request.param) / "run") as found:
        yield found


@pytest.fixture
def everysec(shared):
    """The shared server's adapter without WAITAOF."""
    return CLASSES[shared.target.backend](
        setting_of(shared.target.backend, "aof-everysec"), shared.root, lambda _: port_of(shared)
    )


@pytest.mark.parametrize("engine", CLASSES)
@pytest.mark.parametrize(
    "name, server_s, machine_s, atomic, ordered, tier",
    [
        ("rdb", None, None, Domain.SERVER, None, "T0"),
        ("aof-always", 0, 0, Domain.DRIVE, Domain.DRIVE, "T3"),
        ("aof-everysec", 2, 2, Domain.DRIVE, Domain.DRIVE, "T2 2 s"),
        ("aof-no", 0, None, Domain.SERVER, Domain.SERVER, "T1"),
        ("waitaof", 0, 0, Domain.DRIVE, Domain.DRIVE, "T3"),
    ],
)
def test_settings_promise_what_the_documentation_says(*, engine, name, server_s, machine_s, atomic, ordered, tier):
    promise = setting_of(engine, name).promise
    assert promise.may_lose_s.get(Domain.SERVER) == server_s
    assert promise.may_lose_s.get(Domain.MACHINE) == promise.may_lose_s.get(Domain.DRIVE) == machine_s
    assert promise.may_lose_s[Domain.NOTHING] == promise.may_lose_s[Domain.CLIENT] == 0
    assert (promise.atomic, promise.ordered, promise.tier) == (atomic, ordered, tier)
    assert promise.source.startswith(f"{engine.title()} documentation")


VALUES = {
    "appendonly": ["yes", "no"],
    "appendfsync": ["always", "everysec", "no", "nonsense"],
    "no_appendfsync_on_rewrite": ["no", "yes"],
    "save": ["", "3600 1"],
    "maxmemory": ["0", "1000000"],
    "maxmemory_policy": ["noeviction", "allkeys-lru", "volatile-ttl"],
    "waitaof": ["yes", "no"],
    "role": ["master", "slave"],
    "config_rewrite": ["as running", "as started", "changed since the start", "appendonly no", "appendfsync no"],
    "last_write_status": ["ok", "err"],
    "filesystem": ["ext4", "tmpfs"],
    "mount_options": ["rw", "rw,nobarrier"],
}

DRAWN = st.fixed_dictionaries({name: st.sampled_from([*values[:1] * 6, *values]) for name, values in VALUES.items()})
"""The first of each is drawn most often: where several are bad, one that is missing changes nothing."""


@given(values=DRAWN, data=st.data())
@hypothesis.settings(deadline=None)
def test_missing_facts_never_strengthen_the_promise(no_stronger, values, data):
    # Without its options a mount is judged by its file system alone, and both are always told together.
    facts = [Fact(f"redis.{name}", value, "drawn") for name, value in values.items()]
    kept = data.draw(st.lists(st.sampled_from(facts), unique=True))
    if any(fact.id == "redis.filesystem" for fact in kept):
        kept += [fact for fact in facts if fact.id == "redis.mount_options" and fact not in kept]
    whole = Valkey.promise(facts)
    assert no_stronger(Valkey.promise(kept), whole)
    assert Valkey.promise(iter(reversed(facts))) == whole


@pytest.mark.parametrize("engine", CLASSES)
@pytest.mark.parametrize("name", NAMES)
def test_a_server_promises_what_its_setting_does_and_a_kill_loses_only_what_that_lets_it(
    engine, name, tmp_path, opened
):
    setting = setting_of(engine, name)
    puts = 3 if name == "waitaof" else 100
    with service.running(engine, name, tmp_path / "run") as running:
        running.look()
        assert running.promise == setting.promise
        facts = {fact.id: fact for fact in running.facts}
        for option, value in setting.options.items():
            assert (facts[f"redis.{option}"].value, facts[f"redis.{option}"].origin) == (value, "command line")
        assert facts["redis.save"].value == promises.SHIPPED["save"]
        backend = running.backend
        before = backend.identity()
        with closing(backend.open("data")) as store:
            for number in range(puts):
                store.put(f"key-{number}", b"x" * 500)
            kill(running)
        for attempt in (backend.identity, backend.create, backend.inspect, lambda: backend.open("data")):
            with pytest.raises(NotReady, match="connection refused"):
                attempt()
        running.start()
        with closing(opened(backend)) as store:
            # everysec may lose two seconds, but on a drive whose flushes are quick a kill alone takes nothing.
            assert len(set(store.keys())) == (0 if name == "rdb" else puts) or name == "aof-everysec"
        assert backend.identity() != before


@pytest.mark.parametrize("engine", CLASSES)
def test_save_points_keep_everything_over_an_orderly_stop(engine, tmp_path, opened):
    with service.running(engine, "rdb", tmp_path / "run") as running:
        with closing(running.backend.open("data")) as store:
            store.put("a", b"1")
        running.stop()
        running.start()
        with closing(opened(running.backend)) as store:
            assert store.get("a") == b"1"
        assert running.backend.size_bytes() > 0


def test_waitaof_is_no_acknowledgement_before_the_server_has_flushed(shared, monkeypatch):
    monkeypatch.setattr(adapter, "WAITAOF_TIMEOUT_MS", 100)
    with configured(shared, "appendfsync", "no"), closing(shared.backend.open("flush")) as store:
        for write in (
            lambda: store.put("a", b"1"),
            lambda: store.put_if_absent("b", b"1"),
            lambda: store.put_many({("flush", "c"): b"1"}),
            lambda: store.delete("a"),
        ):
            with pytest.raises(TimeoutError, match="no local flush"):
                write()


def test_an_effective_setting_that_is_not_the_one_asked_for_changes_the_promise(shared, everysec):
    assert everysec.promise(everysec.inspect()) == setting_of(shared.target.backend, "aof-everysec").promise
    with configured(shared, "appendfsync", "no"):
        assert everysec.promise(everysec.inspect()).tier == "T1"
    with configured(shared, "no-appendfsync-on-rewrite", "yes"):
        assert everysec.promise(everysec.inspect()).tier == "T0"


def test_what_the_server_refuses_certainly_did_not_happen(shared, everysec):
    with closing(everysec.open("full")) as store:
        with configured(shared, "maxmemory", "1"):
            with pytest.raises(Refused, match="maxmemory"):
                store.put("a", b"1")
            with pytest.raises(Refused):
                store.put_many({("full", "a"): b"1", ("full", "b"): b"1"})
        assert store.get("a") is None
        store.put("a", b"the connection is of use again")


def test_the_second_create_is_refused(everysec):
    with pytest.raises(Refused, match="created before"):
        everysec.create()


def test_puts_of_several_namespaces_commit_together(everysec):
    with closing(everysec.open("many")) as data, closing(everysec.open("more")) as metadata:
        data.put_many({("many", "a"): b"1", ("more", "a"): b"2"})
        assert (data.get("a"), metadata.get("a")) == (b"1", b"2")


def test_namespaces_that_look_alike_stay_apart(everysec):
    names = ["a", "a:b", "a%3Ab", "a*", "a?", "[a]", "A", "a\\", "ä"]
    stores = {name: everysec.open(name) for name in names}
    for name, store in stores.items():
        store.put("b:c", name.encode())
    for name, store in stores.items():
        assert (list(store.keys()), store.get("b:c")) == (["b:c"], name.encode())
    everysec.drop("a*")
    assert [name for name, store in stores.items() if not list(store.keys())] == ["a*"]
    for name, store in stores.items():
        store.close()
        everysec.drop(name)


def test_a_server_that_hangs_does_not_hang_the_client(shared, everysec, monkeypatch):
    monkeypatch.setattr(wire, "OPERATION_TIMEOUT_S", 0.3)
    process = int(administrate(shared, "INFO", "server")["process_id"])
    with closing(everysec.open("hang")) as store:
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(client.TimeoutError):
                store.put("a", b"x" * (16 << 20))
        finally:
            os.kill(process, signal.SIGCONT)


class Loading(socketserver.BaseRequestHandler):
    """A server that answers every command as one does that still loads its data."""

    def handle(self):
        while commands := self.request.recv(4096):
            self.request.sendall(b"-LOADING server is loading the dataset in memory\r\n" * commands.count(b"*"))


@pytest.mark.parametrize("engine", CLASSES)
def test_a_server_that_loads_its_data_is_not_ready(engine):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Loading) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        backend = CLASSES[engine].from_url(f"{engine}://127.0.0.1:{server.server_address[1]}")
        for attempt in (backend.identity, backend.inspect, lambda: backend.open("data")):
            with pytest.raises(NotReady, match="loading"):
                attempt()
        server.shutdown()


def test_somebodys_server_is_used_through_its_url(shared):
    engine = shared.target.backend
    administrate(shared, "ACL", "SETUSER", "app", "on", f">{SECRET}", "~durabench:*", "+@all", "-config")
    keys = administrate(shared, "DBSIZE")
    backend = CLASSES[engine].from_url(f"{engine}://app:{SECRET}@127.0.0.1:{port_of(shared)}/0")
    assert backend.commands() == ()
    facts = {fact.id: fact for fact in backend.inspect()}
    # Without the right to read the configuration, what INFO tells is known and the rest is not assumed.
    assert (facts["redis.appendonly"].value, facts["redis.appendonly"].origin) == ("yes", "INFO aof_enabled")
    assert facts["redis.appendfsync"].unread.endswith("ACL SETUSER app +config|get")
    assert backend.promise(facts.values()).tier == "T0"
    backend.create()
    with closing(backend.open("guest")) as store:
        store.put("a", b"1")
        assert store.get("a") == b"1"
    assert backend.size_bytes() > 0
    backend.drop("guest")
    assert administrate(shared, "DBSIZE") == keys
    assert SECRET not in f"{backend!r} {store!r} {vars(store)!r} {facts}"


def test_a_password_is_never_shown(shared, said):
    engine, port, free = shared.target.backend, port_of(shared), shared.machine.port("nobody-listens")
    for url in (
        f"h:{SECRET}/0",
        f"u:{SECRET}@h?db={SECRET}",
        f"h?x={SECRET}",
    ):
        assert SECRET not in said(partial(CLASSES[engine].from_url, f"{engine}://{url}"), ValueError)
    for raw in (f"{SECRET}/1", f"1/{SECRET}@#?", f"100%:'{SECRET};, [é]"):  # read as it was meant
        backend = CLASSES[engine].from_url(f"{engine}://u:{raw}@h/0")
        assert (backend._at["host"], backend._at["password"]) == ("h", raw)
    refused = CLASSES[engine].from_url(f"{engine}://u:{SECRET}@127.0.0.1:{free}")
    words = said(lambda: refused.open("data"), NotReady)
    assert SECRET not in words
    assert f"127.0.0.1:{free}" in words
    stranger = CLASSES[engine].from_url(f"{engine}://stranger:{SECRET}@127.0.0.1:{port}")
    words = said(lambda: stranger.open("data"), ValueError)
    assert SECRET not in words
    assert "authentication failed" in words


def test_data_may_be_as_large_as_a_checkpoint(everysec):
    value = os.urandom(16 << 20)
    with closing(everysec.open("large")) as store:
        before = everysec.size_bytes()
        store.put("large", value)
        assert store.get("large") == value
        assert store.size_bytes() >= len(value)
        assert everysec.size_bytes() - before >= len(value)
    everysec.drop("large")
