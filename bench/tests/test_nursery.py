"""Drivers forked from a warmed parent: as apart as fresh ones, reaped, and never a hang when something ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from signal import SIGKILL

import psutil
import pytest

from durabench import process
from durabench.machine import Here, Nurseries, Ports
from durabench.process import Died, HarnessError
from durabench.schedule import Asked
from durabench.service import Service, Target

TOY = """
import os, sys
from durabench_backends.{module} import {base}

print("imported", "{{not json", flush=True)


class Toy({base}):
    {extra}
"""


@pytest.fixture
def nurseries(tmp_path):
    made = Nurseries(tmp_path)
    yield made
    made.close()


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A backend of a module that is made here: its name."""

    def make(module, base, extra):
        folder = tmp_path / "modules"
        folder.mkdir(exist_ok=True)
        name = f"toy_{abs(hash(extra))}"
        (folder / f"{name}.py").write_text(TOY.format(module=module, base=base, extra=extra))
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        return f"{name}:Toy"

    return make


def sockets(pid):
    """What a process has open beyond its three pipes and files."""
    return [
        target
        for fd in os.listdir(f"/proc/{pid}/fd")
        if (target := os.readlink(f"/proc/{pid}/fd/{fd}")).startswith(("socket:", "anon_inode:[pidfd]"))
    ]


def open_files(pid, below):
    return [
        target
        for fd in os.listdir(f"/proc/{pid}/fd")
        if (target := os.readlink(f"/proc/{pid}/fd/{fd}")).startswith(str(below))
    ]


def order(service, do, **words):
    return {"do": do, "deadline_s": 20, **words, "target": service.order()}


@pytest.mark.parametrize("label", ["sqlite:wal-full", "postgres:on"])
def test_drivers_never_share_an_opened_store(label, nurseries, tmp_path, no_leftovers):
    """Two drivers that have each opened the store, and the parent of both that has not."""
    name, setting = label.split(":")
    machine = Here(tmp_path / "1", Ports(), nurseries.get([name], "append"))
    service = Service(machine, Target(name, setting), machine.root / "store")
    try:
        service.set_up()
        writers = [nurseries.get([name], "append").fork() for _ in range(2)]
        parent = psutil.Process(writers[0].pid).ppid()
        for number, writer in enumerate(writers):
            words = {"targets": {n: service.order(f"t{number}{n}") for n in ("metadata", "data")}, "workload": "append"}
            writer.send(
                {
                    "do": "write",
                    "writer": 0,
                    "writers": 1,
                    "seed": 1,
                    "pace_s": 0.05,
                    "limit": None,
                    "limit_s": None,
                    "deadline_s": 20,
                    **words,
                }
            )
        for writer in writers:
            seen = []
            end = time.monotonic() + 30
            while not any(event["e"] == "ok" for event in seen):
                assert time.monotonic() < end
                seen += writer.receive(1)
            assert open_files(writer.pid, service.root) or sockets(writer.pid), "it has a store open"
        assert open_files(parent, service.root) == []
        assert len(sockets(parent)) == 1, "nothing but the line to its controller"
        one, other = (set(sockets(writer.pid)) - {"anon_inode:[pidfd]"} for writer in writers)
        assert one & other == set()
        for writer in writers:
            writer.close()
    finally:
        machine.close()


def test_forked_drivers_are_killed_reaped_and_confirmed(nurseries):
    nursery = nurseries.get(["files"], "append")
    drivers = [nursery.fork() for _ in range(5)]
    for driver in drivers:
        driver.kill()
        assert driver.exit_code == -SIGKILL
        assert not psutil.pid_exists(driver.pid), "reaped, not left a zombie"
        driver.close()


def test_a_forked_driver_that_ended_by_itself_is_no_confirmed_kill(nurseries):
    driver = nurseries.get(["files"], "append").fork()
    os.close(driver.stdin)
    driver.stdin = None
    while driver.alive():
        time.sleep(0.01)
    with pytest.raises(Died, match="had ended with 0"):
        driver.kill()
    driver.close()


def test_several_threads_fork_at_once(nurseries, no_leftovers):
    nursery = nurseries.get(["files"], "append")
    made, threads = [], [threading.Thread(target=lambda: made.append(nursery.fork())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({driver.pid for driver in made}) == 8
    for driver in made:
        assert driver.ask({"do": "nothing"}, 20)[-1]["e"] == "failed"
        driver.close()


def test_a_nursery_that_dies_is_an_error_at_once_and_its_drivers_die_with_it(nurseries):
    nursery = nurseries.get(["files"], "append")
    driver = nursery.fork()
    os.kill(psutil.Process(driver.pid).ppid(), SIGKILL)
    began = time.monotonic()
    while driver.alive():
        assert time.monotonic() - began < 10
        time.sleep(0.01)
    with pytest.raises(Died, match="the nursery of drivers ended"):
        nursery.fork()
    with pytest.raises(HarnessError, match="the nursery of drivers ended"):
        driver.wait(1)
    assert time.monotonic() - began < 20


def test_a_dead_nursery_is_replaced(nurseries):
    first = nurseries.get(["files"], "append")
    driver = first.fork()
    os.kill(psutil.Process(driver.pid).ppid(), SIGKILL)
    first._popen.wait(10)
    again = nurseries.get(["files"], "append").fork()
    assert again.ask({"do": "nothing"}, 20)[-1]["e"] == "failed"
    again.close()


def test_a_nursery_that_hangs_is_an_error_and_not_asked_again(nurseries):
    nursery = nurseries.get(["files"], "append")
    nursery._control.settimeout(0.2)
    nursery._popen.send_signal(signal.SIGSTOP)
    with pytest.raises(process.Hung, match="did not answer"):
        nursery.fork()
    assert not nursery.alive()
    nursery._popen.kill()


def test_what_cannot_be_imported_is_told_with_the_last_words(nurseries):
    with pytest.raises(Died, match="no_such_module"):
        nurseries.get(["no_such_module:Backend"], "append")


@pytest.mark.parametrize("driver", ["forked", "fresh"])
def test_a_stray_print_of_a_library_is_no_event(driver, toy, cycle):
    """On import, before each put, and past Python's own buffers."""
    extra = """
    def open(self, namespace):
        print("{not json either", flush=True)
        os.write(1, b'{"e": "ok", "w": 0, "i": 7, "latency_ns": 1}\\n')
        return super().open(namespace)
"""
    rows = cycle(
        Asked(backends=(toy("files", "Files", extra) + ":rename",), faults=("kill-client",), trials=4), driver=driver
    )
    assert [row["verdict"] for row in rows] == ["kept"] * 4
    assert {row["driver"] for row in rows} == {driver}


def test_an_interrupted_request_leaves_no_answer_to_be_taken_for_another(nurseries, monkeypatch):
    import socket

    nursery = nurseries.get(["files"], "append")
    driver = nursery.fork()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(socket, "recv_fds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            nursery.fork()
    assert not nursery.alive()
    driver.close()  # which was to be reaped by it
    assert driver.pidfd == -1


def test_what_is_called_off_dies_and_the_nursery_only_where_that_is_not_enough(tmp_path):
    """So that a fresh driver can still take out of somebody's store what a trial put there."""
    code = """
import sys
from pathlib import Path
from durabench import ground
from durabench.machine import DRIVER
from durabench.service import Target
ground.KILLED_S = 1.0
some = ground.Ground(Path(sys.argv[1]))
machine = some.machine([Target("files", "rename")], "append")
driver = machine.start(DRIVER, machine.root)
some.call_off(lambda: False, leave_s=0) if sys.argv[2] == "no" else some.call_off(lambda: not driver.alive())
print(driver.alive(), machine.nursery.alive())
some.close()
"""
    for ends, printed in (("yes", "False True"), ("no", "False False")):
        argv = [sys.executable, "-c", code, str(tmp_path / "disk"), ends]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.split() == printed.split(), done.stderr
        assert list((tmp_path / "disk").iterdir()) == []
