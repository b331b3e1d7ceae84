"""`durabench verify` against real servers and files: good ones held, bad input one by one, nothing touched."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest

from durabench import counting, service
from durabench.verify.pages import pages_of
from durabench_backends import registry
from durabench_backends.contract import RATED_DOMAINS, Fact, Goal

SERVERS = {"postgres": "on", "redis": "aof-always", "valkey": "aof-everysec", "s3-moto": "versioned"}
PORTS = {"postgres": "postgres", "s3-moto": "s3"}
SECRET = "correct-horse"


@pytest.fixture(scope="module", params=list(SERVERS))
def served(request, tmp_path_factory):
    """One server of each kind, with the URL of a person's client."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    with service.running(name, SERVERS[name], folder / "run") as running:
        yield running


@pytest.fixture
def typed(typed, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mock")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mock")

    return lambda *words: typed("verify", *words)


@pytest.fixture
def asked(typed):
    def run(*words):
        status, out, err = typed(*words, "--format", "json")
        return {**json.loads(out), "exit": status, "err": err}

    return run


def url_of(running, user="", database="", scheme=None):
    """Its URL, with another login, database or scheme where one is given."""
    (port,) = running.machine._ports.values()
    form = getattr(registry.load(running.target.backend), "url_form", None)
    if form is None:
        return f"s3://{database or 'durabench'}?endpoint_url=http://127.0.0.1:{port}&region=us-east-1"
    url = form.replace("{server}", f"{user}127.0.0.1:{port}")
    if database:
        url = f"{url.rpartition('/')[0]}/{database}" if "/postgres" in url else f"{url}/{database}"
    return url.replace(form.partition(":")[0], scheme, 1) if scheme else url


def by_id(found):
    return {check["id"]: check for check in found["checks"]}


# ---------------------------------------------------------------------------------------------------- good ones

EXPECTED = {"postgres": "held", "redis": "held", "valkey": "broken", "s3-moto": "not rated"}


def test_a_server_is_told_by_what_runs(served, asked):
    found = asked(url_of(served))
    assert found["verdict"] == EXPECTED[served.target.backend], found
    assert found["exit"] == {"held": 0, "broken": 1, "not rated": 3}[found["verdict"]]
    (prefix,) = {check["id"].partition(".")[0] for check in found["checks"]}
    assert prefix in {"postgres", "redis", "s3"}


def test_the_goal_decides(served, asked):
    name = served.target.backend
    words = ("--max-loss", "2s") if name == "valkey" else ("--survive", "client")
    assert asked(url_of(served), *words)["verdict"] == ("not rated" if name == "s3-moto" else "held")


def test_every_id_has_a_page_and_what_is_not_read_says_why(served, asked):
    found = asked(url_of(served))
    pages = pages_of(registry.load("s3" if served.target.backend == "s3-moto" else served.target.backend))
    assert set(by_id(found)) <= set(pages)
    assert all(check["evidence"] or check["fix"] for check in found["checks"] if check["status"] in ("skip", "unknown"))
    assert all(check["fix"] and check["loses"] for check in found["checks"] if check["status"] == "fail")


def test_a_probe_proves_and_leaves_nothing(served, asked, monkeypatch):
    """Counting flushes has tests of its own."""
    name = served.target.backend
    monkeypatch.setattr(counting, "count", lambda *_: [])
    before = everything(served)
    found = asked(url_of(served), "--probe")
    backend = registry.load("s3" if name == "s3-moto" else name)
    proved = [by_id(found)[one] for one in backend.probes]
    assert all(check["evidence"] for check in proved), proved
    if name in ("postgres", "redis"):
        assert {check["status"] for check in proved} <= {"ok", "warn", "skip"}, proved
    assert everything(served) == before


def everything(running):
    """What a person would see of a server: its keys, its tables."""
    name = running.target.backend
    if name == "postgres":
        import psycopg

        with psycopg.connect(url_of(running)) as connection:
            return connection.execute("SELECT relname FROM pg_class WHERE relname !~ '^pg_' ORDER BY 1").fetchall()
    if name == "s3-moto":
        client = running.backend._bucket.client
        return client.list_object_versions(Bucket="durabench").get("Versions", [])
    import redis

    with closing(redis.Redis.from_url(url_of(running, scheme="redis"))) as client:
        return sorted(client.scan_iter())


# ---------------------------------------------------------------------------------------------------- bad input


def could_not_tell(found, *said):
    assert (found["verdict"], found["checks"], found["promise"], found["exit"]) == ("unknown", [], None, 3), found
    assert found["err"].count("\n") == 1, found["err"]
    assert SECRET not in json.dumps(found)
    for each in said:
        assert each in found["err"]


def test_a_database_or_a_bucket_that_is_not_there(served, asked):
    there_is_no = {"postgres": "nope", "redis": "99", "valkey": "99", "s3-moto": "no-such-bucket"}
    could_not_tell(asked(url_of(served, database=there_is_no[served.target.backend])))


def test_a_wrong_password(served, asked):
    name = served.target.backend
    if name == "s3-moto":
        return  # it takes any
    with asking_for_a_password(served):
        found = asked(
            url_of(served, user=f":{SECRET}@" if name != "postgres" else f"locked:{SECRET}@").replace("postgres@", "")
        )
    could_not_tell(found, "***@", "password")


@contextmanager
def asking_for_a_password(running):
    if running.target.backend == "postgres":
        hba = running.root / "data" / "pg_hba.conf"
        before = hba.read_text()
        hba.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
        import psycopg

        with psycopg.connect(url_of(running), autocommit=True) as connection:
            connection.execute("CREATE ROLE locked LOGIN PASSWORD 'another'")
            connection.execute("SELECT pg_reload_conf()")
            try:
                yield
            finally:
                hba.write_text(before)
                connection.execute("DROP ROLE locked")
                connection.execute("SELECT pg_reload_conf()")
        return
    import redis

    with closing(redis.Redis.from_url(url_of(running, scheme="redis"))) as client:
        client.config_set("requirepass", "another")
        try:
            yield
        finally:
            client.config_set("requirepass", "")


def test_a_server_without_tls_that_is_asked_for_it(served, asked):
    name, url = served.target.backend, url_of(served)
    if name == "s3-moto":
        url = url.replace("http://", "https://")
    elif name == "postgres":
        url += "?sslmode=require"
    else:
        url = url_of(served, scheme={"redis": "rediss", "valkey": "valkeys"}[name])
    could_not_tell(asked(url), "TLS")


@pytest.fixture
def silent():
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []

        def take():
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    for each in taken:
        each.close()


URLS = [
    f"postgresql://me:{SECRET}@127.0.0.1:{{}}/x",
    f"redis://:{SECRET}@127.0.0.1:{{}}",
    f"valkey://:{SECRET}@127.0.0.1:{{}}/0",
    "s3://bucket?endpoint_url=http://127.0.0.1:{}",
]


@pytest.mark.parametrize("url", URLS)
def test_a_server_that_hangs_is_not_waited_for(url, asked, silent, monkeypatch):
    monkeypatch.setattr("durabench.verify.look.LOOK_S", 3.0)
    could_not_tell(asked(url.format(silent)))


@pytest.mark.parametrize("url", URLS)
def test_nobody_listens(url, asked):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: nobody else can take it meanwhile
        could_not_tell(asked(url.format(held.getsockname()[1])), "; ")


@pytest.mark.parametrize(
    "url", ["postgresql://x.invalid/x", "redis://x.invalid", "s3://bucket?endpoint_url=http://x.invalid"]
)
def test_a_host_that_is_not_known(url, asked, monkeypatch):
    could_not_tell(asked(url), "; ")


@pytest.mark.parametrize("url", ["file://{}/no/such", "sqlite:///{}/no.db"])
def test_a_path_that_is_not_there(url, asked, tmp_path):
    could_not_tell(asked(url.format(tmp_path)), str(tmp_path), "; ")


def test_a_file_that_is_no_database(asked, tmp_path):
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to have a header" * 100)
    could_not_tell(asked(f"sqlite:///{tmp_path}/x.db"), "; name one that is")


def test_a_file_for_a_directory_and_a_directory_for_a_file(asked, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    could_not_tell(asked(f"file://{tmp_path}/file?write=fsync-dir"), "is a file, not a directory; name one that is")
    could_not_tell(asked(f"sqlite:///{tmp_path}"), "is a directory, not a database; name one that is")


@pytest.mark.parametrize(
    "url",
    [
        "file:relative",
        "file:///x?write=sometimes",
        "sqlite:////x.db?synchronous=maybe",
        "postgresql://h:port/x",
        "s3://",
        "redis://h:port",
    ],
)
def test_a_url_that_cannot_be_read_is_2(url, typed):
    status, out, err = typed(url)
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1


# ---------------------------------------------------------------------------------------------------- nothing touched


def digests(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("mode,synchronous", [("delete", "extra"), ("wal", "full")])
def test_every_byte_of_an_sqlite_file_stays_as_it_was(mode, synchronous, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db?journal_mode={mode}&synchronous={synchronous}"

    def verdict():
        # In a process of its own: closing a file ends all locks that this process holds on it.
        words = [sys.executable, "-m", "durabench", "verify", url, "--format", "json"]
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        return json.loads(ran.stdout)["verdict"]

    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
        with connection:
            connection.execute("CREATE TABLE t (x)")
        before = digests(tmp_path)
        assert verdict() == "held"
        assert digests(tmp_path) == before
    before = digests(tmp_path)
    assert verdict() == "held"
    assert digests(tmp_path) == before


def test_every_byte_and_every_count_of_a_server_stays_as_it_was(served, asked):
    if served.target.backend not in ("redis", "valkey"):
        return
    import redis

    with closing(redis.Redis.from_url(url_of(served, scheme="redis"))) as client:
        client.set("mine", "x")

        def state():
            counted = client.info("persistence")
            return digests(served.root), client.dbsize(), counted["rdb_changes_since_last_save"], client.config_get()

        before = state()
        asked(url_of(served))
        assert state() == before
        client.delete("mine")


# ---------------------------------------------------------------------------------------------------- contract

WORDS = [
    "yes",
    "no",
    "on",
    "off",
    "0",
    "1",
    "none",
    "always",
    "everysec",
    "nfs4",
    "tmpfs",
    "overlay",
    "ext4",
    "unknown",
]
GOALS = [Goal(survive, loss) for survive in RATED_DOMAINS for loss in (0.0, 0.6, 2.0)]
FUZZED = 500


def held_to_the_contract(backend, facts, rounds=FUZZED):
    """Facts that were read once, in disorder: some missing, some unreadable, some with a word of another setting."""
    rng = random.Random(f"{backend.__name__}")
    options = [value for setting in backend.settings for value in setting.options.values()]
    words = [*WORDS, *options, *(fact.value for fact in facts if fact.value)]
    seen = set()
    for _ in range(rounds):
        given = []
        share = rng.choice([0.05, 0.3])
        for fact in facts:
            kind = rng.choices(["as it was", "missing", "unread", "another"], [1 - 3 * share, share, share, share])[0]
            if kind == "another":
                given.append(Fact(fact.id, rng.choice(words), fact.origin))
            elif kind == "unread":
                given.append(Fact(fact.id, "", "", "no right; GRANT it"))
            elif kind == "as it was":
                given.append(fact)
        for goal in GOALS:
            checks = list(backend.checks(given, goal))
            ids = [check.id for check in checks]
            assert len(set(ids)) == len(ids), "one check per id"
            assert not set(ids) & set(backend.probes)
            stands = [check.id for check in checks if check.status in ("fail", "unknown")]
            assert bool(stands) != goal.is_met_by(backend.promise(given)), (goal, given, stands)
            seen |= set(ids)
    assert seen | set(backend.probes) == set(backend.pages)


def test_a_promise_meets_a_goal_exactly_where_no_check_stands_against_it(served, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mock")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mock")
    backend = registry.load(registry.name_for_url(url_of(served)))
    facts = list(backend.from_url(url_of(served)).inspect())
    held_to_the_contract(backend, facts)


def test_the_same_of_files_and_sqlite(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    for url in (
        f"file://{tmp_path}?write=fsync-dir",
        f"sqlite:///{tmp_path}/x.db?journal_mode=delete&synchronous=extra",
    ):
        backend = registry.load(registry.name_for_url(url))
        held_to_the_contract(backend, list(backend.from_url(url).inspect()))


@pytest.mark.parametrize("name", ["files", "sqlite", "postgres", "redis", "valkey", "s3"])
def test_every_check_has_a_page_worth_reading(name):
    backend = registry.load(name)
    pages = pages_of(backend)
    assert set(backend.probes) < set(pages)
    assert {one.partition(".")[0] for one in pages} == {next(iter(backend.pages)).partition(".")[0]}
    for one, page in pages.items():
        assert len(page) > 120, one
        assert "ource:" in page or "http" in page or "documentation" in page, one
