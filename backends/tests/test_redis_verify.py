"""What a user of `durabench verify redis://…` relies on, against servers started with each setting wrong and right."""

import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time
import traceback
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis as client
from hypothesis import given
from hypothesis import strategies as st

from durabench import verify
from durabench_backends import locate
from durabench_backends.contract import Domain, Fact, Goal, NotReady, Verifiable
from durabench_backends.redis import Redis, Valkey, adapter, promises, wire
from durabench_backends.redis.probe import NAMESPACE

ENGINES = {"redis": (Redis, promises.REDIS), "valkey": (Valkey, promises.VALKEY)}
SECRET = "correct-horse"
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec"}
DRIVE, MACHINE, SERVER, CLIENT = (
    Goal(domain) for domain in (Domain.DRIVE, Domain.MACHINE, Domain.SERVER, Domain.CLIENT)
)
TWO_SECONDS = Goal(Domain.DRIVE, 2.0)


class Running:
    """A server, as somebody has one."""

    def __init__(self, engine, port, process, folder):
        self.engine, self.port, self.process, self.folder = engine, port, process, folder
        self.admin = client.Redis(port=port)

    def url(self, rest=""):
        return f"{self.engine}://127.0.0.1:{self.port}{rest}"

    def facts(self, rest=""):
        return {fact.id.removeprefix("redis."): fact for fact in backend(self.url(rest)).inspect()}

    def checks(self, goal=DRIVE, rest=""):
        found = backend(self.url(rest))
        facts = list(found.inspect())
        checks = list(found.checks(facts, goal))
        assert goal.is_met_by(found.promise(facts)) == (not decisive(checks))
        return {check.id.removeprefix("redis."): check for check in checks}

    def cli(self, line):
        """What a person pastes, without the programs of that name, which are not installed here."""
        for command in line.partition("  #")[0].split(" && "):
            words = command.split()
            assert words[0] in ("redis-cli", "valkey-cli")
            self.admin.execute_command(*words[1:])

    def settle(self):
        """Until a log that was switched on has its first part."""
        end = time.monotonic() + 60
        while {"1", 1} & {self.admin.info()[f"aof_rewrite_{how}"] for how in ("in_progress", "scheduled")}:
            assert time.monotonic() < end
            time.sleep(0.02)


def backend(url):
    return ENGINES[url.partition("://")[0].rstrip("s").replace("redi", "redis")][0].from_url(url)


def decisive(checks):
    return {check.id.removeprefix("redis."): check.status for check in checks if check.status in ("fail", "unknown")}


def free_port():
    """Not one of those that connections are given: a poll of a free one would connect to itself."""
    while True:
        port = random.randrange(15000, 30000)
        with closing(socket.socket()) as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port


@contextmanager
def server(folder, options, engine="redis", *, flags=None, before=None):
    """One server on ``options`` in a configuration file, or on ``flags`` alone where that is all there is."""
    program = locate.program(
        *(getattr(ENGINES[engine][1], name) for name in ("program", "variable", "wheel", "places")), ""
    )
    folder.mkdir(exist_ok=True)
    port = free_port()
    must = {"port": port, "bind": "127.0.0.1", "dir": str(folder), "daemonize": "no"}
    words = [str(program)]
    if options is not None:
        file = folder / "server.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in {**must, **options}.items()))
        words.append(str(file))
    else:
        flags = {**must, **(flags or {})}
    words += [word for name, value in (flags or {}).items() for word in (f"--{name}", str(value))]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=before)  # noqa: PLW1509 - before sets a limit
    try:
        found = Running(engine, port, process, folder)
        end = time.monotonic() + 30
        while True:
            try:
                found.admin.ping()
                break
            except client.AuthenticationError:
                break
            except client.ConnectionError:
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.01)
        yield found
        found.admin.close()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=list(ENGINES))
def durable(request, tmp_path_factory):
    """A well-configured server: every put flushed, by its configuration file."""
    with server(tmp_path_factory.mktemp("durable") / "d", ALWAYS, request.param) as found:
        yield found


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with server(tmp_path_factory.mktemp("shared") / "d", ALWAYS) as found:
        yield found


@pytest.fixture
def load(over_and_over):
    """Somebody who writes to a server all the time."""

    @contextmanager
    def writing(running):
        connection = client.Redis(port=running.port)
        with closing(connection), over_and_over(lambda: connection.set("load", b"x" * 2000)):
            yield

    return writing


def test_both_are_verifiable_and_have_a_page_for_every_check(durable):
    kind = ENGINES[durable.engine][0]
    assert isinstance(backend(durable.url()), Verifiable)
    made = {f"redis.{name}" for name in durable.checks()}
    assert made | set(kind.probes) == set(kind.pages)
    assert not made & set(kind.probes)
    for name, page in kind.pages.items():
        assert all(word in page for word in ("Lost otherwise:", "Mend:", "Source:")), name


def test_a_good_deployment_raises_no_alarm_under_load(durable, load):
    with load(durable):
        for goal in (DRIVE, MACHINE, SERVER, CLIENT, TWO_SECONDS):
            checks = durable.checks(goal)
            assert {check.status for check in checks.values()} == {"ok"}, checks
        report = verify.verify(durable.url(), DRIVE)
    assert (report.verdict, report.exit_status) == ("held", 0)
    assert report.promise.tier == "T3"


def test_who_set_a_value_is_told_by_file_and_line(durable):
    facts = durable.facts()
    assert facts["appendfsync"].origin == f"{durable.folder}/server.conf:6"
    assert facts["no_appendfsync_on_rewrite"].origin == "default"
    assert facts["directory"].value == str(durable.folder)
    assert facts["filesystem"].value


@pytest.mark.parametrize(
    "options, goal",
    [
        (EVERYSEC, TWO_SECONDS),
        ({**EVERYSEC, "appendfsync": "no"}, SERVER),
        ({**ALWAYS, "no-appendfsync-on-rewrite": "yes"}, SERVER),
        ({**ALWAYS, "maxmemory": "100mb"}, DRIVE),
        ({**ALWAYS, "maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}, DRIVE),
        ({**ALWAYS, "maxmemory-policy": "allkeys-lru"}, DRIVE),  # without a limit nothing is evicted
        ({}, CLIENT),
    ],
)
def test_what_meets_its_goal_raises_no_alarm(options, goal, tmp_path):
    with server(tmp_path / "d", options) as running:
        checks = running.checks(goal)
        assert {check.status for check in checks.values()} == {"ok"}, checks


WRONG = [
    ("appendonly", {}, SERVER),
    ("appendonly", {"appendonly": "no"}, DRIVE),
    ("appendfsync", EVERYSEC, DRIVE),
    ("appendfsync", EVERYSEC, Goal(Domain.SERVER, 1.0)),
    ("appendfsync", {**EVERYSEC, "appendfsync": "no"}, MACHINE),
    ("appendfsync", {**EVERYSEC, "appendfsync": "no"}, Goal(Domain.MACHINE, 60.0)),
    ("no_appendfsync_on_rewrite", {**ALWAYS, "no-appendfsync-on-rewrite": "yes"}, DRIVE),
    ("no_appendfsync_on_rewrite", {**EVERYSEC, "no-appendfsync-on-rewrite": "yes"}, TWO_SECONDS),
    ("maxmemory_policy", {**ALWAYS, "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, CLIENT),
]


@pytest.mark.parametrize("name, options, goal", WRONG)
def test_what_misses_its_goal_fails_says_what_is_lost_and_the_pasted_lines_mend_it(name, options, goal, tmp_path):
    with server(tmp_path / "d", options) as running:
        checks = running.checks(goal)
        assert checks[name].status == "fail"
        assert checks[name].loses
        assert verify.verify(running.url(), goal).exit_status == 1
        for _ in range(3):  # with the log on, its own settings count too
            for check in running.checks(goal).values():
                if check.status == "fail":
                    running.cli(check.fix)
            running.settle()
        assert {check.status for check in running.checks(goal).values()} == {"ok"}


def test_what_a_restart_would_undo_fails_until_it_is_written_down(tmp_path):
    with server(tmp_path / "d", EVERYSEC) as running:
        running.admin.config_set("appendfsync", "always")
        found = running.checks()["config_rewrite"]
        assert (found.status, found.value) == ("fail", "appendfsync everysec")
        assert found.origin == f"{running.folder}/server.conf:6"
        assert "appendfsync always" in found.evidence
        assert running.checks(TWO_SECONDS)["config_rewrite"].status == "warn"
        report = verify.verify(running.url(), DRIVE)
        assert (report.verdict, [check.id for check in report.checks if check.status == "fail"]) == (
            "broken",
            ["redis.config_rewrite"],
        )
        running.cli(found.fix)
        assert running.checks()["config_rewrite"].status == "ok"


def test_a_log_that_is_only_switched_on_in_the_running_server_is_not_there_after_a_restart(durable, tmp_path):
    with server(tmp_path / "d", {"appendfsync": "always"}, durable.engine) as running:
        running.admin.config_set("appendonly", "yes")
        running.settle()
        assert decisive(running.checks().values()) == {"config_rewrite": "fail"}
        assert decisive(running.checks(CLIENT).values()) == {}


def test_counts_that_were_reset_do_not_speak_for_a_server_without_a_file(tmp_path):
    with server(tmp_path / "d", None) as running:
        running.admin.config_set("appendonly", "yes")
        running.admin.config_set("appendfsync", "always")
        running.settle()
        for _ in range(2):
            found = running.checks()
            assert decisive(found.values()) == {"config_rewrite": "unknown"}
            assert "restart it with --appendonly yes --appendfsync always" in found["config_rewrite"].fix
            running.admin.config_resetstat()


def test_from_elsewhere_which_of_set_and_rewrite_came_last_is_a_warning(tmp_path):
    with server(tmp_path / "d", ALWAYS) as running, forwarded(running.port) as port:
        running.admin.config_set("appendfsync", "everysec")
        running.admin.config_rewrite()
        running.admin.config_set("appendfsync", "always")
        forwarding = backend(f"redis://127.0.0.1:{port}")
        checks = {check.id: check for check in forwarding.checks(list(forwarding.inspect()), DRIVE)}
        found = checks["redis.config_rewrite"]
        assert found.status == "warn"
        assert "SET was called 2 times since the start, CONFIG REWRITE 1 times" in found.evidence


def test_a_log_whose_first_part_is_still_being_written_does_not_count_yet(durable, tmp_path):
    options = {"appendfsync": "always", "rdb-key-save-delay": "20000"}
    with server(tmp_path / "d", options, durable.engine) as running:
        for number in range(100):
            running.admin.set(f"key-{number}", b"1")
        running.cli("redis-cli CONFIG SET appendonly yes && redis-cli CONFIG REWRITE")
        running.admin.set("while", b"it is written")
        found = running.checks(SERVER)
        assert decisive(found.values()) == {"appendonly": "fail"}
        assert found["appendonly"].value == "starting"
        running.admin.config_set("rdb-key-save-delay", "0")
        running.settle()
        assert decisive(running.checks().values()) == {}
        running.admin.bgrewriteaof()  # one more is no alarm: the log of before is there
        assert decisive(running.checks().values()) == {}


def test_a_file_that_was_edited_after_the_start_counts_from_the_next_start_on(tmp_path):
    with server(tmp_path / "d", ALWAYS) as running:
        file = running.folder / "server.conf"
        file.write_text(file.read_text().replace("always", "no"))
        later = time.time() + 60
        os.utime(file, (later, later))
        assert decisive(running.checks().values()) == {"config_rewrite": "fail"}


def test_a_log_that_only_the_file_switches_on_empties_the_server_at_its_next_start_unless_mended(durable, tmp_path):
    with server(tmp_path / "d", {}, durable.engine) as running:
        file = running.folder / "server.conf"
        file.write_text(file.read_text() + "appendonly yes\n")
        later = time.time() + 60
        os.utime(file, (later, later))
        found = running.checks(CLIENT)["config_rewrite"]
        assert (found.status, found.value) == ("warn", "appendonly yes")
        assert "everything, at the next start" in found.loses
        running.admin.set("theirs", b"1")
        running.cli(found.fix)
        running.settle()
        port = running.port
    with closing(client.Redis(port=port)) as gone, pytest.raises(client.ConnectionError):
        gone.ping()
    with server(tmp_path / "d", None, durable.engine, flags={"appendonly": "yes"}) as again:
        assert again.admin.get("theirs") == b"1"


def test_options_of_the_command_line_win_over_the_file_and_are_no_alarm(tmp_path):
    with server(tmp_path / "d", EVERYSEC, flags={"appendfsync": "always"}) as running:
        found = running.checks()
        assert decisive(found.values()) == {}
        assert found["config_rewrite"].value == "as started"


def test_included_files_are_read_and_the_last_line_wins(tmp_path):
    included = tmp_path / "more.conf"
    included.write_text('# comment\nAppendFsync "always"\nmaxmemory 1gb\n')
    options = {**EVERYSEC, "include": f"{tmp_path}/*.conf"}
    with server(tmp_path / "d", options) as running:
        found = running.checks()
        assert (found["config_rewrite"].status, found["config_rewrite"].value) == ("ok", "as running")
        assert found["appendfsync"].origin == f"{included}:2"


def test_a_server_without_a_configuration_file_is_told_what_a_start_by_hand_gives(durable, tmp_path):
    with server(tmp_path / "d", None, durable.engine, flags=ALWAYS) as running:
        found = running.checks()
        assert decisive(found.values()) == {}
        assert found["config_rewrite"].status == "warn"
        assert "appendonly no" in found["config_rewrite"].evidence
        running.admin.config_set("slowlog-max-len", "100")
        # It may have been the log that was switched on: nobody can tell.
        assert decisive(running.checks().values()) == {"config_rewrite": "unknown"}
        assert decisive(running.checks(CLIENT).values()) == {}
    with server(tmp_path / "shipped", None, durable.engine) as running:
        assert running.checks(CLIENT)["config_rewrite"].status == "ok"


def test_what_a_login_may_not_read_is_unknown_with_the_line_that_grants_it(redis_server):
    redis_server.admin.execute_command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "+@all", "-config")
    url = redis_server.url("/0").replace("://", f"://app:{SECRET}@")
    report = verify.verify(url, DRIVE)
    assert (report.verdict, report.exit_status) == ("unknown", 3)
    found = {check.id.removeprefix("redis."): check for check in report.checks}
    assert decisive(found.values()) == {"appendfsync": "unknown", "no_appendfsync_on_rewrite": "unknown"}
    # What INFO tells is known, and what the goal does not depend on is no more than skipped.
    assert (found["appendonly"].status, found["appendonly"].origin) == ("ok", "INFO aof_enabled")
    assert found["maxmemory_policy"].status == "ok"
    assert found["config_rewrite"].status == "skip"
    assert decisive(verify.verify(url, Goal(Domain.SERVER, 2.0)).checks) == {}
    assert SECRET not in str(report)
    redis_server.admin.execute_command(*found["appendfsync"].fix.split())
    assert verify.verify(url, DRIVE).verdict == "held"
    redis_server.admin.execute_command("ACL", "DELUSER", "app")


def test_a_login_that_may_read_nothing_is_unknown_whatever_the_goal(redis_server):
    redis_server.admin.execute_command("ACL", "SETUSER", "blind", "on", f">{SECRET}", "~*", "+ping")
    url = redis_server.url("/0").replace("://", f"://blind:{SECRET}@")
    for goal in (DRIVE, CLIENT):
        report = verify.verify(url, goal)
        assert (report.verdict, report.unreached) == ("unknown", None)
    assert any(check.fix == "ACL SETUSER blind +info" for check in report.checks)
    redis_server.admin.execute_command("ACL", "DELUSER", "blind")


def test_a_service_without_config_is_told_from_a_login_without_the_right(tmp_path):
    with server(tmp_path / "d", {**ALWAYS, "rename-command": 'CONFIG ""'}) as running:
        found = running.checks()
        assert decisive(found.values()) == {"appendfsync": "unknown", "no_appendfsync_on_rewrite": "unknown"}
        assert "renamed or removed" in found["appendfsync"].evidence
        assert "ACL" not in found["appendfsync"].fix
        assert found["appendonly"].value == "yes"


def test_a_folder_in_memory_fails_what_must_survive_the_machine(tmp_path):
    shared_memory = Path("/dev/shm") / f"durabench-test-{os.getpid()}"
    try:
        with server(shared_memory, ALWAYS) as running:
            found = running.checks(MACHINE)
            assert decisive(found.values()) == {"directory": "fail"}
            assert "tmpfs" in found["directory"].value
            assert decisive(running.checks(SERVER).values()) == {}
    finally:
        subprocess.run(["rm", "-r", str(shared_memory)], check=True)


def test_a_replica_is_no_place_to_write_and_its_master_is_warned(redis_server, tmp_path):
    with server(tmp_path / "d", {**ALWAYS, "replicaof": f"127.0.0.1 {redis_server.port}"}) as replica:
        end = time.monotonic() + 30
        while redis_server.admin.info()["connected_slaves"] == 0 or replica.admin.info()["loading"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert decisive(replica.checks(CLIENT).values()) == {"role": "fail"}
        found = redis_server.checks()
        assert (found["replicas"].status, found["replicas"].value) == ("warn", "1")
        assert decisive(found.values()) == {}


def test_keys_that_expire_are_told(tmp_path):
    with server(tmp_path / "d", {**ALWAYS, "maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}) as running:
        running.admin.set("kept", "1")
        running.admin.set("gone", "1", ex=1000)
        found = running.checks()
        assert (found["expiry"].status, found["expiry"].value) == ("warn", "1 of 2")
        assert found["maxmemory_policy"].status == "warn"
        assert running.checks(rest="/1")["expiry"].value == "0 of 0"


def with_small_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def fill(running):
    for number in range(100_000):
        running.admin.set(f"key-{number % 100}", os.urandom(1000))


def test_a_log_that_can_no_longer_be_written_fails(tmp_path):
    with server(tmp_path / "d", EVERYSEC, before=with_small_files) as running:
        with pytest.raises(client.ResponseError, match="MISCONF"):
            fill(running)
        assert decisive(running.checks(TWO_SECONDS).values()) == {"last_write_status": "fail"}
        assert running.checks(CLIENT)["last_write_status"].status == "warn"


def test_a_dump_that_cannot_be_written_warns(tmp_path):
    with server(tmp_path / "d", {"save": '"1 1"'}, before=with_small_files) as running:
        with pytest.raises(client.ResponseError, match="MISCONF"):
            fill(running)
        found = running.checks(CLIENT)
        assert (found["rdb_last_bgsave_status"].status, decisive(found.values())) == ("warn", {})


def contents(folder):
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [ALWAYS, {}], ids=["aof", "rdb"])
def test_nothing_is_written_without_a_probe(options, tmp_path):
    with server(tmp_path / "d", options) as running:
        running.admin.set("theirs", b"1")
        if not options:
            running.admin.save()
        before, keys, unsaved = contents(running.folder), running.admin.keys(), running.admin.info()
        verify.verify(running.url(), DRIVE)
        backend(running.url()).writer_pids()
        assert contents(running.folder) == before
        assert running.admin.keys() == keys
        now = running.admin.info()
        for name in ("rdb_changes_since_last_save", "aof_current_size", "master_repl_offset"):
            assert now.get(name) == unsaved.get(name)
        called = running.admin.info("commandstats")
        assert not {name for name in called if name in ("cmdstat_set", "cmdstat_del", "cmdstat_config|set")} - {
            "cmdstat_set"
        }
        assert called["cmdstat_set"]["calls"] == 1


def test_a_probe_removes_what_it_wrote_and_what_a_killed_one_left_and_says_how_much(durable, load):
    durable.admin.set("theirs", b"1")
    with closing(backend(durable.url()).open(NAMESPACE)) as left:
        left.put("left", b"by a probe that was killed")
    with closing(backend(durable.url()).open(f"{NAMESPACE}-2")) as other:
        other.put("other", b"of somebody else")
    with load(durable):
        found = {check.id.removeprefix("redis."): check for check in backend(durable.url()).probe(DRIVE)}
    assert {f"redis.{name}" for name in found} == set(Redis.probes)
    # On a busy machine no flush may come while a WAITAOF is waited for: that is said, and alarms nobody.
    assert {name for name, check in found.items() if check.status == "warn"} <= {"waitaof"}, found
    assert {check.status for check in found.values()} <= {"ok", "skip", "warn"}, found
    for check in found.values():
        assert "bytes in" in check.evidence
        assert "removed 1 keys that an earlier probe had left" in check.evidence
    assert {key.decode() for key in durable.admin.keys("*")} == {"theirs", "load", f"durabench:{NAMESPACE}-2:other"}
    backend(durable.url()).drop(f"{NAMESPACE}-2")


def test_answers_of_waitaof_are_counted_against_the_flushes_there_can_have_been(durable, tmp_path):
    with server(tmp_path / "d", EVERYSEC, durable.engine) as running:
        url = running.url("/0?waitaof=yes")
        found = {check.id: check for check in backend(url).probe(DRIVE)}["redis.waitaof"]
        # Redis waits for its flush; Valkey answers at once, and its promise, which is the documentation's, is not kept.
        assert found.status == ("ok" if durable.engine == "redis" else "fail")
        checks = running.checks(rest="/0?waitaof=yes")
        assert decisive(checks.values()) == {}
        assert checks["server_version"].status == ("ok" if durable.engine == "redis" else "warn")
        assert decisive(running.checks().values()) == {"appendfsync": "fail"}


def test_the_store_of_such_a_url_waits_for_the_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(adapter, "WAITAOF_TIMEOUT_MS", 100)
    with server(tmp_path / "d", {**EVERYSEC, "appendfsync": "no"}) as running:
        with closing(backend(running.url("?waitaof=yes")).open("n")) as store, pytest.raises(TimeoutError):
            store.put("a", b"1")
        with closing(backend(running.url("?waitaof=no")).open("n")) as store:
            store.put("a", b"1")
        with pytest.raises(ValueError, match="waitaof=yes"):
            backend(running.url("?waitaof=perhaps"))


def test_a_login_that_may_not_write_makes_no_probe_and_no_alarm(redis_server):
    redis_server.admin.execute_command(
        "ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read", "+ping", "+info", "+config|get"
    )
    url = redis_server.url("/0").replace("://", f"://reader:{SECRET}@")
    found = list(backend(url).probe(DRIVE))
    assert {check.status for check in found} == {"skip"}
    assert all("ACL SETUSER" in check.fix for check in found)
    redis_server.admin.execute_command("ACL", "DELUSER", "reader")


def test_the_writing_process_is_told_where_it_is_certainly_the_one(durable):
    assert backend(durable.url()).writer_pids() == (durable.process.pid,)
    assert backend(durable.url().replace("127.0.0.1", "localhost")).writer_pids() == (durable.process.pid,)
    with forwarded(durable.port) as port:
        forwarding = backend(f"{durable.engine}://127.0.0.1:{port}")
        assert forwarding.writer_pids() == ()
        facts = {fact.id: fact for fact in forwarding.inspect()}
        assert facts["redis.filesystem"].unread
        assert decisive(forwarding.checks(facts.values(), DRIVE)) == {}


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        target.close()


@contextmanager
def forwarded(port, wrap=lambda accepted: accepted):
    """A port that leads to another one, with ``wrap`` around what was accepted."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve():
            while True:
                try:
                    accepted = listening.accept()[0]
                except OSError:
                    return
                try:
                    accepted = wrap(accepted)
                except OSError:
                    accepted.close()
                    continue
                there = socket.create_connection(("127.0.0.1", port))
                for pair in ((accepted, there), (there, accepted)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(
        [*words.split(), "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True
    )
    return folder


def said(url):
    """The line that a person gets, with its mend, and no secret anywhere."""
    report = verify.verify(url, DRIVE)
    assert (report.verdict, report.exit_status, list(report.checks)) == ("unknown", 3, [])
    assert report.unreached.count("\n") == 0
    assert SECRET not in report.unreached
    with pytest.raises((NotReady, ValueError)) as caught:
        backend(url).inspect()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__notes__, "the mend"
    return report.unreached


def test_a_server_that_cannot_be_reached_is_one_line_with_the_mend(tmp_path, certificate, monkeypatch):
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT_S", 1.0)
    with server(tmp_path / "d", {**ALWAYS, "requirepass": SECRET + "2"}) as running:
        admin = f"redis://:{SECRET}2@127.0.0.1:{running.port}"
        assert "no password was given" in said(running.url())
        wrong = said(f"redis://:{SECRET}@127.0.0.1:{running.port}")
        assert "authentication failed" in wrong
        assert "redis://***@127.0.0.1" in wrong
        assert "without TLS use redis://" in said(admin.replace("redis://", "rediss://"))
        assert "refuses this user or database" in said(f"{admin}/99")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        with forwarded(running.port, lambda accepted: context.wrap_socket(accepted, server_side=True)) as port:
            assert "rediss://" in said(f"redis://:{SECRET}2@127.0.0.1:{port}")
            secure = f"rediss://:{SECRET}2@localhost:{port}"
            assert "ssl_ca_certs" in said(secure)
            assert backend(f"{secure}?ssl_ca_certs={certificate}/cert.pem").inspect()
        with closing(client.Redis(port=running.port, password=SECRET + "2")) as authorized:
            authorized.ping()
    assert "connection refused" in said(f"redis://u:{SECRET}@127.0.0.1:{running.port}")
    assert "correct the host" in said(f"redis://u:{SECRET}@nobody.invalid/0")


def test_a_server_that_hangs_is_told_and_not_waited_for(durable, monkeypatch):
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT_S", 0.5)
    os.kill(durable.process.pid, signal.SIGSTOP)
    try:
        assert "no answer within 0.5 s" in said(durable.url())
    finally:
        os.kill(durable.process.pid, signal.SIGCONT)


VALUES = {
    "appendonly": ["yes", "no", "starting"],
    "appendfsync": ["always", "everysec", "no", "nonsense"],
    "no_appendfsync_on_rewrite": ["yes", "no"],
    "maxmemory": ["0", "1000000"],
    "maxmemory_policy": ["noeviction", "allkeys-lru", "volatile-ttl"],
    "waitaof": ["yes", "no"],
    "role": ["master", "slave"],
    "config_rewrite": [
        "as running",
        "as started",
        "changed since the start",
        "not counted since the start",
        "appendonly no",
        "appendfsync no, maxmemory 9",
    ],
    "last_write_status": ["ok", "err"],
    "expiry": ["0 of 0", "2 of 7"],
    "replicas": ["0", "1"],
    "directory": ["/d"],
    "filesystem": ["ext4", "tmpfs", "overlay", "nfs"],
    "mount_options": ["rw", "rw,nobarrier", "rw,volatile"],
}
UNREAD, MISSING = object(), object()
drawn = st.fixed_dictionaries({name: st.sampled_from([*values, UNREAD, MISSING]) for name, values in VALUES.items()})
goals = st.builds(
    Goal,
    st.sampled_from([Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE]),
    st.sampled_from([0.0, 1.0, 2.0, 90.0]),
)


@given(drawn, goals)
def test_a_check_fails_or_is_unknown_exactly_where_the_promise_misses_the_goal(values, goal):
    facts = [
        Fact(f"redis.{name}", "", "", "not allowed; the line")
        if value is UNREAD
        else Fact(f"redis.{name}", value, "drawn")
        for name, value in values.items()
        if value is not MISSING
    ]
    checks = list(Valkey.checks(facts, goal))
    assert len({check.id for check in checks}) == len(checks)
    assert goal.is_met_by(Valkey.promise(facts)) == (not decisive(checks))
    for check in checks:
        if check.status == "fail":
            assert check.loses
            assert check.fix
