"""Starting, killing and reaping: what is asserted here is what makes a kill a confirmed kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import psutil
import pytest

from durabench import process
from durabench.machine import DRIVER, Here, Ports
from durabench.process import Died, Hung
from durabench.service import running
from durabench_backends.contract import Command

DAC_READ_SEARCH = 1 << 2
FAMILY = """
import os, sys, time
from pathlib import Path
for _ in range(2):
    if os.fork() == 0:
        os.fork()
        break
Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(60)
"""


def start(tmp_path, code, *arguments, **keywords):
    return process.start(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=dict(os.environ),
        cwd=tmp_path,
        log=tmp_path / "log",
        **keywords,
    )


def family(tmp_path):
    """A process, two children and two grandchildren, all running."""
    pids = tmp_path / "pids"
    pids.mkdir()
    root = start(tmp_path, FAMILY, pids)
    end = time.monotonic() + 20
    while len(list(pids.iterdir())) < 5:
        assert time.monotonic() < end
        time.sleep(0.01)
    return root, [int(path.name) for path in pids.iterdir()]


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_kill_is_confirmed_by_the_exit_being_that_signal(tmp_path):
    victim = start(tmp_path, "import time; time.sleep(60)")
    victim.kill()
    assert victim.exit_code == -SIGKILL
    assert not victim.alive()
    victim.close()


def test_what_had_ended_by_itself_is_no_confirmed_kill(tmp_path):
    victim = start(tmp_path, "raise SystemExit(7)")
    while victim.alive():
        time.sleep(0.01)
    with pytest.raises(Died, match="had ended with 7"):
        victim.kill()
    victim.close()


def test_a_tree_of_which_the_root_had_ended_is_no_confirmed_kill(tmp_path):
    victim = start(tmp_path, "pass")
    victim.wait(20)
    with pytest.raises(Died, match="had ended with 0"):
        process.kill_trees([victim])
    victim.close()


def test_a_tree_dies_whole_and_is_counted(tmp_path, no_leftovers):
    root, pids = family(tmp_path)
    assert process.kill_trees([root]) == 5
    assert all(gone(pid) for pid in pids)
    root.close()


def test_a_stopped_grandchild_dies_too(tmp_path, no_leftovers):
    root, pids = family(tmp_path)
    for pid in pids:
        os.kill(pid, SIGSTOP)
    assert process.kill_trees([root]) == 5
    assert all(gone(pid) for pid in pids)
    root.close()


def test_several_trees_and_a_single_one_die_together(tmp_path, no_leftovers):
    trees = [start(tmp_path, "import time; time.sleep(60)") for _ in range(3)]
    also = start(tmp_path, "import time; time.sleep(60)")
    assert process.kill_trees(trees, also=[also]) == 4
    assert {each.exit_code for each in (*trees, also)} == {-SIGKILL}
    for each in (*trees, also):
        each.close()


ORPHANS = """
import os, sys, time
from pathlib import Path
parent = os.getpid()
if os.fork() == 0:
    Path(sys.argv[1], "child").touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    Path(sys.argv[1], "alone").touch()
    raise SystemExit
time.sleep(60)
"""


def wait_for(path):
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


def test_a_kill_of_the_main_process_lets_the_others_end_by_themselves_and_waits_for_them(tmp_path, no_leftovers):
    root = start(tmp_path, ORPHANS, tmp_path)
    wait_for(tmp_path / "child")
    process.kill_trees([root], main_only=True)
    assert (tmp_path / "alone").exists(), "the child lived to see its parent's death, and was waited for"
    root.close()


def test_a_kill_of_the_tree_leaves_no_child_to_notice(tmp_path, no_leftovers):
    root = start(tmp_path, ORPHANS, tmp_path)
    wait_for(tmp_path / "child")
    process.kill_trees([root])
    assert not (tmp_path / "alone").exists()
    root.close()


def test_a_child_that_outlives_its_main_process_is_an_error_and_is_not_left(tmp_path, monkeypatch, no_leftovers):
    monkeypatch.setattr(process, "REAP_S", 0.5)
    root, _ = family(tmp_path)
    with pytest.raises(Hung, match="still lives after 0.5 s"):
        process.kill_trees([root], main_only=True)
    root.close()


def test_every_wait_ends(tmp_path):
    deaf = start(
        tmp_path, "import sys, time; print('hung up', file=sys.stderr, flush=True); time.sleep(60)", piped=True
    )
    wait_until_said(tmp_path / "log", "hung up")
    for wait in (
        lambda: deaf.wait(0.05),
        lambda: deaf.ask({"do": "read"}, 0.05),
        lambda: deaf.drain(0.05),
    ):
        with pytest.raises(Hung, match="within 0.05 s.*hung up"):
            wait()
    assert deaf.receive(0.05) == []
    deaf.close()


def wait_until_said(log, word):
    end = time.monotonic() + 20
    while word not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_dies_instead_of_answering_tells_its_last_words(tmp_path):
    rude = start(tmp_path, "import sys; sys.stdin.readline(); sys.exit('I quit')", piped=True)
    with pytest.raises(Died, match="I quit"):
        rude.ask({"do": "read"}, 20)
    rude.wait(20)
    with pytest.raises(Died, match="ended before it could be asked"):
        rude.send({"do": "read"})
    rude.close()


def test_a_program_that_fails_tells_its_last_words(tmp_path):
    argv = [sys.executable, "-c", "import sys; sys.exit('no room')"]
    with pytest.raises(Died, match="ended with 1; last lines of its log: no room"):
        process.run(argv, deadline_s=20, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log")


def test_a_program_that_does_not_end_is_ended(tmp_path, no_leftovers):
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(Hung, match="did not end within 0.2 s"):
        process.run(argv, deadline_s=0.2, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log")


STUBBORN = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_an_orderly_stop_that_is_refused_ends_all_the_same(tmp_path, no_leftovers):
    root = start(tmp_path, STUBBORN, tmp_path / "both")
    wait_for(tmp_path / "both")
    process.stop_tree(root, 0.3)
    assert root.exit_code == -SIGKILL
    root.close()


CONTROLLER = """
import sys, time
from pathlib import Path
from durabench.machine import DRIVER, Here, Nurseries, Ports
from durabench.service import Service, Target

root, backend, setting, driver = sys.argv[1:]
here = Path(root)
here.mkdir()
nursery = Nurseries(here).get([backend], "append") if driver == "forked" else None
machine = Here(here / "1", Ports(), nursery)
service = Service(machine, Target(backend, setting), machine.root / "store")
service.set_up()
machine.start(DRIVER, service.root)
(here / "up").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("driver", ["forked", "fresh"])
@pytest.mark.parametrize("label", ["postgres:on", "valkey:rdb", "files:rename"])
def test_servers_and_drivers_die_with_a_controller_that_is_killed(label, driver, tmp_path, left_in):
    name, setting = label.split(":")
    root = tmp_path / "root"
    tmp_path.chmod(0o755)
    log = tmp_path / "controller.log"
    with log.open("wb") as sink:
        controller = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, root, name, setting, driver], stderr=sink, cwd="/"
        )
    end = time.monotonic() + 60
    while not (root / "up").exists():
        assert controller.poll() is None, log.read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    everything = [child.pid for child in psutil.Process(controller.pid).children(recursive=True)]
    assert len(everything) >= 2
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    end = time.monotonic() + 1
    while (left := [pid for pid in everything if not gone(pid)]) and time.monotonic() < end:
        time.sleep(0.01)
    names = [psutil.Process(pid).cmdline() for pid in left]
    for pid in left:
        os.kill(pid, SIGKILL)
    assert names == []
    assert left_in(root) == []


WHO = """
import json, os, sys
from pathlib import Path
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
Path(sys.argv[1]).read_text()
found = {"uid": os.getuid(), "groups": os.getgroups(), "env": dict(os.environ), "capabilities": status["CapEff"]}
Path("who").write_text(json.dumps(found))
"""


def who(tmp_path, readable):
    here = Here(tmp_path / "root", Ports())
    store = here.root / "store"
    here.send(store, {"note": b"to be read"})
    here.run(Command("setup", (sys.executable, "-c", WHO, str(readable)), {"ITS_OWN": "1"}), store)
    found = json.loads((store / "who").read_text())
    here.close()
    return found


def test_servers_run_without_privileges_and_without_the_callers_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    monkeypatch.setenv("PGPASSWORD", "do-not-tell")
    with tempfile.TemporaryDirectory() as folder:  # reachable, as pytest's own is not
        open_to_all = Path(folder)
        open_to_all.chmod(0o755)
        (open_to_all / "readable").touch(mode=0o644)
        found = who(open_to_all, open_to_all / "readable")
    if os.geteuid() == 0:
        assert found["uid"] != 0
        assert found["groups"] == []
        assert int(found["capabilities"], 16) & ~DAC_READ_SEARCH == 0, "at most what a private folder needs"
    assert "do-not-tell" not in json.dumps(found["env"])
    assert set(found["env"]) <= {"PATH", "LANG", "HOME", "TMPDIR", "PWD", "ITS_OWN", "LC_CTYPE"}
    assert found["env"]["ITS_OWN"] == "1"


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root gives up privileges; an ordinary user's servers are the user's"
)
def test_servers_below_a_private_folder_may_look_but_not_touch(tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    secret = private / "checkout"
    secret.touch(mode=0o600)
    found = who(private, secret)
    assert found["uid"] != 0
    assert int(found["capabilities"], 16) == DAC_READ_SEARCH, "it and nothing else"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up privileges")
@pytest.mark.parametrize("label", ["postgres:on", "valkey:aof-always"])
def test_a_server_comes_up_below_a_private_folder(label, tmp_path, no_leftovers):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with running(*label.split(":"), private / "root") as service:
        service.put_elsewhere("metadata", "key", b"value")
        assert service.elsewhere("metadata", "key") == b"value"
        servers = [pid for daemon in service.machine._daemons for pid in (daemon.pid, *process._children(daemon.pid))]
        assert 0 not in {psutil.Process(pid).uids().real for pid in servers}


def test_a_driver_that_is_ended_is_gone(tmp_path, no_leftovers):
    here = Here(tmp_path / "root", Ports())
    driver = here.start(DRIVER, here.root)
    pid = driver.pid
    here.end(driver)
    assert gone(pid)
    here.close()
    assert not here.root.exists()


def test_no_port_is_handed_out_twice(tmp_path):
    ports = Ports()
    one, other = Here(tmp_path / "1", ports), Here(tmp_path / "2", ports)
    drawn = [machine.port(name) for machine in (one, other) for name in ("a", "b")]
    assert len(set(drawn)) == 4
    assert one.port("a") == drawn[0], "the same for the same name"


def test_shared_memory_of_a_server_goes_with_it_whoever_killed_it(tmp_path):
    """Where the caller may give it some of its own (root); what is killed with durabench nobody else could remove."""
    if os.geteuid() != 0:
        assert process._own_shared_memory() == []
        return

    def segments():
        return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}

    before = segments()
    code = "import ctypes, time; print(ctypes.CDLL(None).shmget(0, 56, 0o1600), flush=True); time.sleep(60)"
    argv = (sys.executable, "-c", code)
    started = process.start(argv, env={}, cwd=tmp_path, log=tmp_path / "log", as_server=True)
    end = time.monotonic() + 60
    while not (tmp_path / "log").read_text().strip().isdigit() and time.monotonic() < end:
        time.sleep(0.01)
    number = (tmp_path / "log").read_text().strip()
    assert number.isdigit()
    started.close()
    assert number not in segments() - before
