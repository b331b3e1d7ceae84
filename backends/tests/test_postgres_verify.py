"""What a user of verify relies on for PostgreSQL: each check wrong and right on a real server, and no false alarm."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench import counting, service
from durabench_backends.contract import Command, Domain, Fact, Goal, NotReady, Verifiable
from durabench_backends.postgres import Postgres, local, probe, session

SECRET = "correct-horse"
DRIVE = Goal(Domain.DRIVE)
WAIT_S = 20


class Server:
    """A server of ours, looked at as if it were somebody's."""

    def __init__(self, running):
        self.running = running
        self.port = running.machine.port("store/postgres")
        self.data = running.root / "data"

    def url(self, user="postgres", database="postgres", port=None, query=""):
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}{query}"

    def connect(self, **parameters):
        given = {"user": "postgres", "dbname": "postgres", **parameters}
        return psycopg.connect(host="127.0.0.1", port=self.port, autocommit=True, **given)

    def tell(self, *statements):
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def ask(self, query):
        with self.connect() as connection:
            return connection.execute(query).fetchone()[0]

    def until(self, query, wanted):
        end = time.monotonic() + WAIT_S
        while (found := self.ask(query)) != wanted:
            assert time.monotonic() < end, f"{query}: {found}"
            time.sleep(0.01)

    @contextlib.contextmanager
    def configured(self, name, value):
        """A setting of the server's, in force."""
        before = self.ask(f"SHOW {name}")
        self.tell(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
        try:
            self.until(f"SHOW {name}", value)
            yield
        finally:
            self.tell(f"ALTER SYSTEM RESET {name}", "SELECT pg_reload_conf()")
            self.until(f"SHOW {name}", before)

    def restarted(self):
        self.running.stop()
        self.running.start()
        end = time.monotonic() + WAIT_S
        while True:
            try:
                return self.connect().close()
            except psycopg.OperationalError:
                assert time.monotonic() < end, "the server does not come up"
                time.sleep(0.02)

    def tables(self):
        with self.connect() as connection:
            return {row[0] for row in connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^durabench'")}


def looked(url, goal=DRIVE):
    """The checks by name; and always that they say of the goal what the promise says."""
    facts = list(Postgres.from_url(url).inspect())
    checks = {check.id.removeprefix("postgres."): check for check in Postgres.checks(facts, goal)}
    bad = {check.id: check.status for check in checks.values() if check.status in ("fail", "unknown")}
    assert goal.is_met_by(Postgres.promise(facts)) == (not bad), bad
    assert {check.id for check in checks.values()} | set(Postgres.probes) == set(Postgres.pages)
    return checks


def probed(url, goal=DRIVE):
    return {check.id.removeprefix("postgres."): check for check in Postgres.from_url(url).probe(goal)}


def bad(checks):
    return {name for name, check in checks.items() if check.status in ("fail", "unknown")}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with service.running("postgres", "on", tmp_path_factory.mktemp("postgres") / "run") as running:
        made = Server(running)
        made.tell("CREATE ROLE app LOGIN", "CREATE ROLE writer", "CREATE DATABASE other")
        yield made


def test_a_well_configured_server_raises_no_alarm_even_under_load(server):
    assert isinstance(Postgres.from_url(server.url()), Verifiable)
    server.tell("CREATE TABLE IF NOT EXISTS load (n int)")
    stop = threading.Event()

    def write():
        with server.connect() as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO load VALUES (1)")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for user in ("postgres", "app"):
            checks = looked(server.url(user))
            assert {check.status for check in checks.values()} <= {"ok", "skip"}, checks
            assert checks["synchronous_commit"].value == "on"
            assert checks["synchronous_commit"].origin == "compiled default"
            flush = probed(server.url(user))["wal_flush"]
            assert flush.status in ("ok", "skip"), flush
            assert re.search(r" 0 of \d+ behind with on", flush.evidence)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not any("probe" in name for name in server.tables())


def test_looking_writes_nothing(server):
    def wrote(user):
        before = server.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        looked(server.url(user))
        return server.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text") != before

    for user in ("postgres", "app"):  # the server's own housekeeping may write in between, once in a while
        assert not all(wrote(user) for _ in range(3))


@pytest.mark.parametrize(
    "name, wrong, harmless",
    [
        ("synchronous_commit", "off", Domain.CLIENT),
        ("fsync", "off", Domain.SERVER),
        ("full_page_writes", "off", Domain.SERVER),
    ],
)
def test_a_setting_that_breaks_the_promise_fails_with_its_origin_and_a_line_that_mends_it(
    server, name, wrong, harmless
):
    with server.configured(name, wrong):
        checks = looked(server.url())
        assert bad(checks) == {name}
        check = checks[name]
        assert (check.status, check.value) == ("fail", wrong)
        file, _, line = check.origin.rpartition(":")
        assert Path(file).name == "postgresql.auto.conf"
        assert int(line) > 0
        assert check.loses
        worse = Domain(harmless + 1)
        assert bad(looked(server.url(), Goal(worse))) == {name}
        assert not bad(looked(server.url(), Goal(harmless)))
        plain = looked(server.url("app"))[name]
        assert (plain.status, plain.origin) == ("fail", "configuration file")
        assert "GRANT pg_read_all_settings TO app" in plain.evidence
        server.tell(*filter(None, check.fix.split(";")))
        server.until(f"SHOW {name}", "on")
        assert not bad(looked(server.url()))


LEVELS = {
    "role app": "ALTER ROLE app SET",
    "database postgres": "ALTER DATABASE postgres SET",
    "role app in database postgres": "ALTER ROLE app IN DATABASE postgres SET",
    "ALTER ROLE ALL": "ALTER ROLE ALL SET",
}


@pytest.mark.parametrize("origin", LEVELS)
def test_what_the_writing_session_gets_is_told_with_the_level_that_set_it(server, origin):
    try:
        server.tell(f"{LEVELS[origin]} synchronous_commit = off")
        check = looked(server.url("app"))["synchronous_commit"]
        assert (check.status, check.value, check.origin) == ("fail", "off", origin)
        server.tell(check.fix)
        assert not bad(looked(server.url("app")))
    finally:
        server.tell(f"{LEVELS[origin].removesuffix('SET')} RESET synchronous_commit")


def test_other_levels_are_a_remark_and_do_not_fail_this_login(server):
    try:
        server.tell(
            'CREATE ROLE "Odd one" LOGIN', 'ALTER ROLE "Odd one" IN DATABASE other SET synchronous_commit = off'
        )
        check = looked(server.url("app"))["db_role_setting"]
        assert check.status == "warn"
        assert "Odd one in database other: off" in check.value
        server.tell(check.fix)
        assert looked(server.url("app"))["db_role_setting"].status == "ok"
    finally:
        server.tell('DROP ROLE "Odd one"')


def test_options_of_the_connection_count(server, monkeypatch):
    query = "?options=-c%20synchronous_commit%3Doff"
    check = looked(server.url(query=query))["synchronous_commit"]
    assert (check.status, check.origin) == ("fail", "client, connection options")
    assert "options=" in check.fix
    assert looked(server.url("app"))["synchronous_commit"].status == "ok"
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    assert looked(server.url())["synchronous_commit"].status == "fail"


@pytest.mark.parametrize("value", ["local", "remote_write", "remote_apply"])
def test_without_standbys_every_value_but_off_means_on(server, value):
    check = looked(server.url(query=f"?options=-c%20synchronous_commit%3D{value}"))["synchronous_commit"]
    assert check.status == "ok"
    assert f"{value} means on" in check.evidence


def test_an_asynchronous_commit_may_fit_the_goal(server):
    with server.configured("synchronous_commit", "off"):
        assert not bad(looked(server.url(), Goal(Domain.DRIVE, 0.6)))
        assert bad(looked(server.url(), Goal(Domain.DRIVE, 0.5))) == {"synchronous_commit", "wal_writer_delay"}
        with server.configured("wal_writer_delay", "2s"):
            checks = looked(server.url(), Goal(Domain.DRIVE, 2))
            assert bad(checks) == {"synchronous_commit", "wal_writer_delay"}
            assert "6 s" in checks["synchronous_commit"].loses
            server.tell(*filter(None, checks["wal_writer_delay"].fix.split(";")))
            server.until("SHOW wal_writer_delay", "666ms")
            assert not bad(looked(server.url(), Goal(Domain.DRIVE, 2)))


def test_unlogged_tables_that_this_login_may_write_fail_and_others_are_a_remark(server):
    try:
        server.tell(
            "CREATE SCHEMA shop",
            'CREATE UNLOGGED TABLE shop."Cart, full" (n int)',
            "GRANT USAGE ON SCHEMA shop TO writer, app",
        )
        server.tell("CREATE TEMPORARY TABLE passing (n int)")
        assert looked(server.url("app"))["unlogged_tables"].status == "warn"
        server.tell('GRANT INSERT ON shop."Cart, full" TO writer', "GRANT writer TO app WITH INHERIT FALSE")
        check = looked(server.url("app"))["unlogged_tables"]
        assert (check.status, check.value) == ("fail", 'shop."Cart, full"')
        assert bad(looked(server.url(), Goal(Domain.SERVER, 60))) == {"unlogged_tables"}
        assert not bad(looked(server.url(), Goal(Domain.CLIENT)))
        server.tell("CREATE UNLOGGED TABLE shop.two (n int)", "ALTER TABLE shop.two OWNER TO writer")
        server.tell(*filter(None, looked(server.url("app"))["unlogged_tables"].fix.split(";")))
        assert looked(server.url("app"))["unlogged_tables"].status == "ok"
    finally:
        server.tell("DROP SCHEMA shop CASCADE", "REVOKE writer FROM app")


def test_an_unlogged_partition_is_written_through_the_table_that_it_is_a_part_of(server):
    try:
        server.tell(
            "CREATE TABLE parted (n int) PARTITION BY RANGE (n)",
            "CREATE TABLE middle PARTITION OF parted FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (n)",
            "CREATE UNLOGGED TABLE leaf PARTITION OF middle FOR VALUES FROM (0) TO (5)",
        )
        assert looked(server.url("app"))["unlogged_tables"].status == "warn"
        server.tell("GRANT INSERT ON parted TO app")
        check = looked(server.url("app"))["unlogged_tables"]
        assert (check.status, check.value) == ("fail", "public.leaf")
    finally:
        server.tell("DROP TABLE parted")


def test_what_the_goal_depends_on_and_may_not_be_read_is_unknown_with_the_grant(server):
    server.tell("REVOKE SELECT ON pg_class FROM PUBLIC")
    try:
        checks = looked(server.url("app"))
        assert bad(checks) == {"unlogged_tables"}
        assert checks["unlogged_tables"].status == "unknown"
        assert not bad(looked(server.url("app"), Goal(Domain.CLIENT)))
        server.tell(*filter(None, checks["unlogged_tables"].fix.split(";")))
        assert not bad(looked(server.url("app")))
    finally:
        server.tell(
            "REVOKE SELECT ON pg_class, pg_namespace, pg_inherits, pg_roles FROM app",
            "GRANT SELECT ON pg_class TO PUBLIC",
        )


def test_a_login_without_pg_settings_is_told_what_it_gets_but_not_by_whom(server):
    server.tell("REVOKE SELECT ON pg_settings FROM PUBLIC", "ALTER ROLE app SET synchronous_commit = off")
    try:
        checks = looked(server.url("app"))
        check = checks["synchronous_commit"]
        assert (check.status, check.value, check.origin) == ("fail", "off", "unknown")
        assert checks["pending_restart"].status == "skip"
        assert "GRANT SELECT ON pg_catalog.pg_settings TO app" in checks["pending_restart"].fix
    finally:
        server.tell("ALTER ROLE app RESET synchronous_commit", "GRANT SELECT ON pg_settings TO PUBLIC")


def test_a_file_that_was_changed_and_not_read_again_is_a_remark(server):
    skipped = looked(server.url("app"))["file_settings"]
    assert skipped.status == "skip"
    server.tell("ALTER SYSTEM SET fsync = off")
    try:
        check = looked(server.url())["file_settings"]
        assert check.status == "warn"
        assert re.match(r"fsync = off \(.*postgresql.auto.conf:\d+\)", check.value)
        server.tell(*filter(None, skipped.fix.split(";")))
        assert looked(server.url("app"))["file_settings"].status == "warn"
    finally:
        server.tell(
            "ALTER SYSTEM RESET fsync",
            "REVOKE SELECT ON pg_file_settings FROM app",
            "REVOKE EXECUTE ON FUNCTION pg_show_all_file_settings() FROM app",
        )
    with server.configured("fsync", "off"):
        server.tell("ALTER SYSTEM SET fsync = on")
        assert looked(server.url())["fsync"].fix.startswith("SELECT pg_reload_conf();")


def test_a_standby_that_commits_wait_for_in_vain_is_told_and_a_probe_does_not_hang(server, monkeypatch):
    monkeypatch.setattr(probe, "STATEMENT_TIMEOUT_S", 1.0)
    with server.configured("synchronous_standby_names", "ghost"):
        checks = looked(server.url())
        assert checks["synchronous_standby_names"].status == "warn"
        assert not bad(checks)
        began = time.monotonic()
        flush = probed(server.url())["wal_flush"]
        assert time.monotonic() - began < 15
        assert flush.status == "unknown"
        assert "did not return" in flush.evidence
        assert not any("probe" in name for name in server.tables())
        only_local = looked(server.url(query="?options=-c%20synchronous_commit%3Dlocal"))
        assert only_local["synchronous_standby_names"].status == "ok"
        assert "whatever the synchronous standbys have" in only_local["synchronous_commit"].evidence


def test_what_a_server_is_started_with(tmp_path):
    """Settings that only a start changes, all in one restart; then a standby of nobody."""
    wrong = {"data_sync_retry": "on", "wal_level": "minimal", "max_wal_senders": "0"}
    with service.running("postgres", "on", tmp_path / "run") as running:
        server = Server(running)
        server.tell(*(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in wrong.items()))
        server.tell("SELECT pg_reload_conf()")
        server.until("SELECT pending_restart FROM pg_settings WHERE name = 'wal_level'", True)
        pending = looked(server.url())["pending_restart"]
        assert pending.status == "warn"
        assert {"data_sync_retry", "wal_level"} <= set(pending.value.split(", "))
        running.stop()
        _checksums(server, "--disable")
        server.restarted()
        checks = looked(server.url())
        assert not bad(checks)
        assert checks["data_sync_retry"].status == "warn"
        assert checks["data_checksums"].status == "warn"
        assert "standby" in checks["wal_level"].evidence
        server.tell(*(f"ALTER SYSTEM RESET {name}" for name in wrong))
        server.restarted()
        assert looked(server.url())["data_sync_retry"].status == "ok"
        running.stop()
        (server.data / "standby.signal").touch()
        server.restarted()
        standby = looked(server.url(), Goal(Domain.CLIENT))
        assert bad(standby) == {"in_recovery"}
        assert standby["in_recovery"].status == "unknown"
        assert probed(server.url())["wal_flush"].status == "skip"


def _checksums(server, way):
    program = Path(server.running.backend.commands()[0].argv[0]).with_name("pg_checksums")
    server.running.machine.run(Command("setup", [str(program), way, "-D", str(server.data)]), server.running.root)


def test_the_file_system_is_looked_at_where_the_server_is_here(server):
    facts = {fact.id: fact for fact in Postgres.from_url(server.url()).inspect()}
    assert facts["postgres.filesystem"].value == local.mount_facts("postgres", server.data)[0].value

    def with_mount(filesystem, options):
        mount = {"postgres.filesystem": filesystem, "postgres.mount_options": options}
        changed = [Fact(name, mount.get(name, fact.value), fact.origin, fact.unread) for name, fact in facts.items()]
        assert Goal(Domain.SERVER).is_met_by(Postgres.promise(changed))
        checks = {check.id: check.status for check in Postgres.checks(changed, DRIVE)}
        return checks["postgres.filesystem"], checks["postgres.mount_options"]

    assert with_mount("tmpfs", "rw") == ("fail", "ok")
    assert with_mount("ext4", "rw,nobarrier") == ("ok", "fail")
    assert with_mount("nfs4", "rw") == ("warn", "ok")
    assert with_mount("overlay", "rw") == ("warn", "ok")
    assert with_mount("xfs", "rw") == ("ok", "ok")


def test_on_a_disk_of_memory_nothing_is_promised_once_the_machine_dies():
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no file system of memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder).chmod(0o755)
        with service.running("postgres", "on", Path(folder) / "run") as running:
            url = Server(running).url()
            assert bad(looked(url)) == {"filesystem"}
            assert not bad(looked(url, Goal(Domain.SERVER)))


def test_a_tablespace_of_memory_is_as_bad_as_a_data_directory_of_memory(server):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no file system of memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chown(folder, server.data.stat().st_uid, -1)
        server.tell(f"CREATE TABLESPACE fast LOCATION '{folder}'")
        try:
            for user in ("postgres", "app"):
                checks = looked(server.url(user))
                assert bad(checks) == {"filesystem"}
                assert folder in checks["filesystem"].origin
            assert not bad(looked(server.url(), Goal(Domain.SERVER)))
        finally:
            server.tell("DROP TABLESPACE fast")


def test_the_main_process_is_found_only_where_it_is_certain(server):
    main = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    for user in ("postgres", "app"):
        assert Postgres.from_url(server.url(user)).writer_pids() == (main,)

    class Elsewhere:
        """A server behind a tunnel: its process number happens to exist here."""

        from_here = True

        def __init__(self, pid, main_s, backend_s):
            self.row = [str(pid), str(main_s), str(backend_s)]

        def rows(self, _query):
            return [self.row]

    with server.connect() as connection:
        row = connection.execute(local.WHO).fetchone()
        assert local.postmaster(Elsewhere(*row)) == main
        assert local.postmaster(Elsewhere(row[0], float(row[1]) - 3600, row[2])) is None
        assert local.postmaster(Elsewhere(row[0], row[1], float(row[2]) - 3600)) is None
        assert local.postmaster(Elsewhere(os.getpid(), time.time(), time.time())) is None


@pytest.mark.parametrize("user", ["postgres", "app"])
def test_a_probe_proves_that_commits_wait_or_that_they_do_not(server, user):
    found = probed(server.url(user))
    assert found["wal_flush"].status == "ok", found
    assert "409600 bytes" in found["wal_flush"].evidence or " bytes)" in found["wal_flush"].evidence
    assert re.search(r"[1-9]\d* of \d+ behind with off", found["wal_flush"].evidence)
    assert re.match(r"\d+\.\d\d ms with its flush, \d+\.\d\d ms without", found["commit_latency"].value)
    into = "into table public.durabench_probe_" if user == "postgres" else "as messages into the log"
    assert into in found["wal_flush"].evidence
    query = "?options=-c%20synchronous_commit%3Doff"
    hasty = probed(server.url(user, query=query))["wal_flush"]
    assert hasty.status == "fail", hasty
    assert "0.6 s" in hasty.loses
    assert probed(server.url(user, query=query), Goal(Domain.DRIVE, 2))["wal_flush"].status == "ok"
    assert not any("probe" in name for name in server.tables())


def test_a_login_that_may_make_no_table_raises_no_alarm_where_puts_are_counted(server):
    url = server.url("app")
    backend = Postgres.from_url(url)
    (check,) = counting.count("postgres", url, backend, Postgres.promise(backend.inspect()), DRIVE)
    assert check.status == "skip", check
    assert "permission denied" in check.evidence


def test_a_probe_does_not_call_flushed_what_fsync_off_leaves_in_memory(server):
    with server.configured("fsync", "off"):
        assert probed(server.url())["wal_flush"].status == "skip"


def test_what_only_speaks_the_protocol_is_not_judged_by_anothers_documentation(server):
    facts = list(Postgres.from_url(server.url()).inspect())
    other = [Fact(fact.id, OTHERS[0], "") if fact.id == "postgres.platform" else fact for fact in facts]
    assert not Goal(Domain.CLIENT).is_met_by(Postgres.promise(other))
    checks = {check.id: check.status for check in Postgres.checks(other, DRIVE)}
    assert checks["postgres.server_version"] == "unknown"


PROBE = (
    "import sys; from durabench_backends.contract import Goal; from durabench_backends.postgres import Postgres, probe;"
    " probe.PAIRS_ENOUGH = probe.PAIRS_AT_MOST = 10**9; probe.MEASURE_S = 60;"
    " Postgres.from_url(sys.argv[1]).probe(Goal())"
)


def test_a_table_that_a_killed_probe_left_is_removed_by_the_next_and_that_of_a_living_one_stays(server):
    server.tell(
        "CREATE TABLE durabench_probe_0123456789abcdef (mine text)"
    )  # somebody's own: no comment says it is ours
    program = "from durabench_backends.postgres import probe\n" + PROBE
    running = subprocess.Popen([sys.executable, "-c", program, server.url()])
    try:
        end = time.monotonic() + WAIT_S
        while len(server.tables()) < 2:
            assert time.monotonic() < end, "the probe made no table"
            time.sleep(0.02)
        left = server.tables() - {"durabench_probe_0123456789abcdef"}
        assert "earlier probe" not in probed(server.url())["wal_flush"].evidence
        assert left <= server.tables()
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    server.until("SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory'", 0)
    assert "removed 1 table that an earlier probe left" in probed(server.url())["wal_flush"].evidence
    assert server.tables() == {"durabench_probe_0123456789abcdef"}
    server.tell("DROP TABLE durabench_probe_0123456789abcdef")


@contextlib.contextmanager
def pooled(server, mode):
    """The port of a PgBouncer before the server."""
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    port = server.running.machine.port(f"pgbouncer-{mode}")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        where.chmod(0o755)
        (where / "users").write_text('"postgres" ""\n"app" ""\n')
        (where / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {where}/users\n"
            f"pool_mode = {mode}\n"
        )
        other = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen([program, *other, where / "ini"], stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + WAIT_S
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                assert time.monotonic() < end, "pgbouncer does not come up"
                time.sleep(0.02)
            yield port
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_a_pooled_connection_is_recognised_and_judged_by_what_its_commits_get(server, mode):
    with pooled(server, mode) as port:
        url = server.url("app", port=port)
        checks = looked(url)
        assert not bad(checks)
        assert checks["pooler"].value == mode
        assert checks["pooler"].status == ("ok" if mode == "session" else "warn")
        left = "durabench_probe_00000000000000ff"
        server.tell(f"CREATE TABLE {left} (record text)", f"COMMENT ON TABLE {left} IS '{probe.MARK}'")
        assert "removed 1 table" in probed(server.url(port=port))["wal_flush"].evidence
        assert probed(url)["wal_flush"].status == "ok"
        if mode == "transaction":
            backend = Postgres.from_url(server.url(port=port))
            with contextlib.closing(backend.open("a")) as one, contextlib.closing(backend.open("b")) as two:
                for number in range(3):
                    one.put(f"{number}", b"1")
                    two.put_many({("a", f"two {number}"): b"2", ("b", f"{number}"): b"2"})
                    assert (one.get(f"two {number}"), two.get(f"{number}")) == (b"2", b"2")
            backend.drop("a")
            backend.drop("b")
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as somebody:
                somebody.execute("SET synchronous_commit = off")
            check = looked(url)["synchronous_commit"]
            assert (check.status, check.value) == ("fail", "off")
            assert check.origin.startswith("session")
    assert looked(server.url("app"))["pooler"].value == "none"


def refused(url):
    """What a person is told: one line and a mend, without a secret."""
    began = time.monotonic()
    with pytest.raises((NotReady, OSError, LookupError)) as caught:
        Postgres.from_url(url).inspect()
    assert time.monotonic() - began < 8
    message, (mend, *_) = str(caught.value), caught.value.__notes__
    assert "\n" not in message
    assert SECRET not in message + mend
    return f"{message}; {mend}"


def test_who_cannot_connect_is_told_why_and_how_to_mend_it(server):
    free = server.running.machine.port("nobody-listens")
    hba = server.data / "pg_hba.conf"
    before = hba.read_bytes()
    server.tell(f"ALTER ROLE app PASSWORD '{SECRET}'")
    try:
        hba.write_bytes(b"host other all all reject\nhost all app all scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
        server.tell("SELECT pg_reload_conf()")
        server.until("SELECT count(*)::int FROM pg_hba_file_rules", 3)
        assert "authentication failed; check the user and the password" in refused(server.url("app:wrong"))
        assert "asks for a password" in refused(server.url("app"))
        assert "pg_hba.conf refuses" in refused(server.url(database="other"))
        assert not bad(looked(server.url(f"app:{SECRET}")))
    finally:
        hba.write_bytes(before)
        server.tell("SELECT pg_reload_conf()")
    assert "database does not exist" in refused(server.url(f"app:{SECRET}", "missing"))
    assert "database does not exist" in refused(server.url(f"nobody:{SECRET}"))
    assert "refuses TLS" in refused(server.url(f"app:{SECRET}", query="?sslmode=require"))
    assert "connection refused; check host and port" in refused(server.url(f"app:{SECRET}", port=free))
    assert "host name is unknown" in refused(f"postgresql://app:{SECRET}@nowhere.invalid/d")
    assert "no server has this socket" in refused("postgresql://app@/d?host=/nowhere")
    assert "unknown parameter" in refused(server.url(query="?options=-c%20no_such%3D1"))


@pytest.mark.parametrize(
    "words, meaning",
    [
        ('root certificate file "/nowhere/root.crt" does not exist', "root certificate is missing"),
        ("SSL error: certificate verify failed", "no root that is known here signed its certificate"),
        ('server certificate for "a" does not match host name "b"', "TLS: its certificate is for another host name"),
        ("SSL error: tlsv1 alert", "TLS could not be agreed on"),
        ('no pg_hba.conf entry for host "::1", user "a", database "d", no encryption', "without TLS"),
        (
            'no pg_hba.conf entry for host "::1", user "a", database "d", SSL encryption',
            "pg_hba.conf refuses this host",
        ),
        ("unsupported startup parameter: options", "the pooler refuses an option of the URL"),
        ("words that nobody expected", "the connection failed"),
    ],
)
def test_what_libpq_says_of_tls_and_poolers_is_put_into_a_line(words, meaning):
    """The suite's own server is built without TLS, so that libpq's words stand for one."""
    error = session.refusal(f'connection to server at "h" failed: {words}', "h:1")
    assert meaning in str(error)
    assert error.__notes__


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_accepts_a_connection_and_is_no_server_does_not_hang_anybody(answer):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    while connection.recv(1024):
                        if answer:
                            connection.sendall(answer)
                            return

        threading.Thread(target=serve, daemon=True).start()
        words = refused(f"postgresql://app:{SECRET}@127.0.0.1:{listening.getsockname()[1]}/d?connect_timeout=2")
        assert ("no answer" if answer is None else "no PostgreSQL") in words


def test_a_server_that_hangs_is_told(server):
    """It greets, and then its process stands still: the look at it ends."""
    backend = Postgres.from_url(server.url())
    with server.connect() as watcher:
        looking = backend._session(0.5)
        pid = looking.greeted_as
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(NotReady, match="did not answer within 0.5 s"), looking:
                looking.rows("SELECT 1")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert watcher.execute("SELECT 1").fetchone() == (1,)


OTHERS = ["CockroachDB CCL v24.1", "PostgreSQL 11.2-YB-2.20 on x86_64", "PostgreSQL 16, compiled by Visual C++"]
VALUES = {
    "synchronous_commit": ["on", "off", "local", "nonsense"],
    "fsync": ["on", "off"],
    "full_page_writes": ["on", "off"],
    "wal_writer_delay": ["200ms", "10s", "soon"],
    "unlogged_tables": ["none", "public.cache, public.b and 2 more"],
    "unlogged_tables_of_others": ["none", "public.theirs"],
    "wal_sync_method": ["fdatasync", "open_datasync", "fsync_writethrough"],
    "platform": ["PostgreSQL 18.6 on x86_64-pc-linux-gnu", "PostgreSQL 17 on aarch64-apple-darwin", *OTHERS],
    "server_version": ["18.6"],
    "in_recovery": ["off", "on"],
    "filesystem": ["ext4", "tmpfs", "nfs4", "overlay", "unknown"],
    "mount_options": ["rw", "rw,nobarrier"],
    "session_user": ["app"],
    "pooler": ["none", "transaction"],
    "file_settings": ["none", "fsync = on (/f:1)"],
    "synchronous_standby_names": ["", "a"],
    "replication": ["none", "a sync (streaming)"],
    "db_role_setting": ["none", "role a in database b: off, all roles: off"],
    "data_sync_retry": ["off", "on"],
}
ORIGINS = [
    "compiled default",
    "configuration file",
    "/f:3",
    "role a",
    "role a in database b",
    "database b",
    "command line",
]


@given(
    values=st.fixed_dictionaries(
        {name: st.sampled_from([*values[:1] * 6, *values]) for name, values in VALUES.items()}
    ),
    missing=st.sets(st.sampled_from(list(VALUES)), max_size=2),
    hidden=st.sets(st.sampled_from(list(VALUES)), max_size=2),
    origin=st.sampled_from(ORIGINS),
    survive=st.sampled_from([Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE]),
    max_loss_s=st.sampled_from([0.0, 0.5, 0.6, 60.0]),
)
@settings(max_examples=300, deadline=None)
def test_checks_say_of_the_goal_what_the_promise_says(values, missing, hidden, origin, survive, max_loss_s):
    facts = [
        Fact(f"postgres.{name}", "", "", "no right: GRANT it TO app")
        if name in hidden
        else Fact(f"postgres.{name}", value, origin)
        for name, value in values.items()
        if name not in missing
    ]
    goal = Goal(survive, max_loss_s)
    checks = list(Postgres.checks(iter(facts), goal))
    assert goal.is_met_by(Postgres.promise(facts)) == all(check.status not in ("fail", "unknown") for check in checks)
    assert len({check.id for check in checks}) == len(checks)
    assert {check.id for check in checks} | set(Postgres.probes) == set(Postgres.pages)
    assert all(check.loses for check in checks if check.status == "fail")


def test_every_check_has_a_page_with_its_source():
    for page in Postgres.pages.values():
        assert all(part in page for part in ("Mend", "Source: "))
        assert "PostgreSQL 18 documentation" in page or "kernel.org" in page or "ext4.rst" in page
    required = ("synchronous_commit", "fsync", "full_page_writes", "unlogged_tables")
    assert {f"postgres.{name}" for name in required} <= set(Postgres.pages)
