"""Campaigns that are interrupted, killed, starved of room, or misled: nothing is lost and nothing is left."""

from __future__ import annotations

import gzip
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from durabench import run as running
from durabench.machine import Here, Ports
from durabench.process import HarnessError
from durabench.results import Folder
from durabench.service import Service, Target
from durabench_vm import LoopDisk

HERE = Path(__file__).parent
sys.path.append(str(HERE))
import killing  # noqa: E402  beside this file; importlib mode adds no path

COMMAND = [sys.executable, "-m", "durabench"]


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def words(tmp_path, toy_profile):
    """The options that every run here has: its folder, its disk, few trials."""

    def make(*backends, faults=("kill-client",), trials=4, out=None, directory=None, **edit):
        found = ["--profile", toy_profile(**edit), "--seed", "1", "--workload", "append"]
        found += [word for name in backends for word in ("--backend", name)]
        found += [word for name in faults for word in ("--fault", name)]
        found += ["--trials", trials] if trials else []
        found += ["--out", out or tmp_path / "run", "--dir", directory or tmp_path / "disk"]
        return list(map(str, found))

    return make


def durabench(*words, prefix=(), **keywords):
    return subprocess.run(
        [*prefix, *COMMAND, *map(str, words)], capture_output=True, text=True, check=False, timeout=300, **keywords
    )


def begun(words, folder, lines):
    """A run that has recorded so many lines, still going."""
    running = subprocess.Popen([*COMMAND, "run", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    path = folder / "trials.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.01)
    return running


def whole(folder, disk):
    """A finished folder: the plan's trials, each once, and a disk that is as it was."""
    read = Folder.open(folder)
    planned = [row["trial"] for row in read.run["plan"]]
    assert sorted(row["trial"] for row in read.trials()) == planned
    assert read.finished
    assert list(disk.iterdir()) == []


# --- an end that was not planned


@pytest.mark.parametrize("label", ["files:fsync-dir", "valkey:aof-always"])
def test_killed_in_the_middle_it_leaves_nothing_running_reads_and_goes_on(label, words, tmp_path, left_in):
    options = words(label, trials=40)
    running = begun(options, tmp_path / "run", 8)
    running.kill()
    running.communicate()
    time.sleep(1)
    assert left_in(tmp_path) == []
    recorded = Folder.open(tmp_path / "run").trials()
    assert len(recorded) >= 8
    shown = durabench("report", tmp_path / "run", "--format", "json")
    assert json.loads(shown.stdout)["cells"]
    resumed = durabench("run", "--resume", tmp_path / "run", "--format", "json")
    assert resumed.returncode == 0, resumed.stderr
    whole(tmp_path / "run", tmp_path / "disk")
    assert Folder.open(tmp_path / "run").trials()[: len(recorded)] == recorded, "nothing that was recorded ran again"
    assert left_in(tmp_path) == []


def test_interrupted_it_says_how_to_go_on_and_goes_on(words, tmp_path, left_in):
    running = begun(words("files:rename", trials=200), tmp_path / "run", 8)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert f"durabench run --resume {tmp_path / 'run'}" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert left_in(tmp_path) == []
    assert list((tmp_path / "disk").iterdir()) == []
    assert len(Folder.open(tmp_path / "run").trials()) >= 8
    assert not Folder.open(tmp_path / "run").finished


def test_interrupted_while_it_prepares_it_leaves_nothing(words, tmp_path, left_in):
    options = words("postgres", "valkey", faults=("kill-server",))
    running = subprocess.Popen([*COMMAND, "run", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not list((tmp_path / "disk").glob(".durabench-*/1")):
        assert running.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in said
    time.sleep(0.5)
    assert left_in(tmp_path) == []


def test_interrupted_while_a_put_hangs_it_does_not_wait_for_it_and_goes_on(words, tmp_path, left_in):
    """The trial would wait two minutes for its victim, and Python for the trial's thread."""
    running = begun(words("toys:Stuck:fsync-dir", trials=8), tmp_path / "run", 3)
    time.sleep(3)
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGTERM)  # somebody who cannot wait disturbs nothing
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert list((tmp_path / "disk").iterdir()) == left_in(tmp_path) == []
    assert {row["verdict"] for row in Folder.open(tmp_path / "run").trials()} <= {"kept", "no-promise", "broken"}
    assert [row["backend"] for row in Folder.open(tmp_path / "run").trials() if row["verdict"] == "broken"] == ["files"]


def test_crash_states_interrupted_and_gone_on_with_are_each_of_their_own_recording(tmp_path, monkeypatch, left_in):
    """In lane loop, where root may: nothing in flight becomes unknown, nothing is left, and a replay rebuilds each row
    from the log that it was read from.
    """
    if lack := LoopDisk.lack():
        assert "root" in lack or "fuse" in lack
        return
    killing.prepare(tmp_path)
    (tmp_path / "vm").mkdir()
    monkeypatch.setenv("PYTHONPATH", killing.python_path(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.setenv("DURABENCH_VM_RUN", str(tmp_path / "vm"))
    run, disk = tmp_path / "run", tmp_path / "disk"
    options = ["--profile", tmp_path / "loop.toml", "--backend", "heavyfiles:Heavy:rename", "--fault", "cut-power"]
    options += ["--filesystem", "ext4", "--lane", "loop", "--workload", "append", "--trials", "60", "--seed", "1"]
    going = begun(list(map(str, [*options, "--out", run, "--dir", disk])), run, 32)
    going.send_signal(signal.SIGINT)
    _, said = going.communicate(timeout=120)
    assert going.returncode == 130, said
    assert list(disk.iterdir()) == list((tmp_path / "vm").iterdir()) == left_in(tmp_path) == []
    first = Folder.open(run).trials()
    assert {row["attempt"] for row in first} == {1}
    assert all(row["verdict"] != "unknown" for row in first), "what was in flight is done again"
    (run / "recordings" / "half.gz.part").write_bytes(b"half of one")
    assert durabench("run", "--resume", run).returncode == 0
    whole(run, disk)
    assert not list((run / "recordings").glob("*.part"))
    rows = Folder.open(run).trials()
    assert rows[: len(first)] == first
    begun_before = {row["recording"] for row in first}
    again = [row for row in rows[len(first) :] if row["recording"].removesuffix(".2") in begun_before]
    assert again
    assert all(row["attempt"] == 2 and row["recording"].endswith(".2") for row in again)
    for row in (first[-1], again[0], again[-1]):
        (found,) = running.replay(Folder.open(run), row["trial"], disk, print)
        same = ("acked", "in_doubt", "lost", "verdict", "recording", "position", "gap", "state")
        assert [found[name] for name in same] == [row[name] for name in same]


def test_ended_at_random_moments_durabench_leaves_nothing(tmp_path):
    """30 of them, over commands and lanes; `killing.py` says how to do 300."""
    argv = [sys.executable, str(HERE / "killing.py"), "--moments", "30"]
    done = subprocess.run(
        argv, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_resume_remembers_a_control_that_failed(words, tmp_path):
    options = words("files:rename", trials=60, negative='"toys:Forgetful:fsync-dir"')
    # Under [controls] of the profile: the first is what must keep everything, and does not.
    running = begun(options, tmp_path / "run", 8)
    running.kill()
    running.communicate()
    resumed = durabench("run", "--resume", tmp_path / "run")
    assert resumed.returncode == 3
    assert "a control failed: negative" in resumed.stderr
    rows = [row for row in Folder.open(tmp_path / "run").trials() if row["control"] is None]
    assert {row["verdict"] for row in rows} == {"unknown"}


# --- a resume that must not be


@pytest.fixture
def unfinished(words, tmp_path):
    running = begun(words("files:rename", trials=200), tmp_path / "run", 8)
    running.kill()
    running.communicate()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "member, change, said",
    [
        ("plan", lambda plan: [{**plan[0], "seed": 1}, *plan[1:]], "plan differs from entry 0"),
        ("commit", lambda commit: {**(commit or {}), "commit": "0" * 40}, "commit"),
        ("machine", lambda machine: {**machine, "id": "elsewhere"}, "machine was elsewhere"),
        ("versions", lambda versions: {name: {"sha256 of files": "0"} for name in versions}, "versions."),
    ],
)
def test_a_resume_of_something_else_is_refused(member, change, said, unfinished):
    run = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(json.dumps({**run, member: change(run[member])}))
    refused = durabench("run", "--resume", unfinished)
    assert refused.returncode == 2, refused.stderr
    assert "cannot be resumed here" in refused.stderr.splitlines()[-1]
    assert said in refused.stderr.splitlines()[-1]


def test_two_never_write_to_one_folder(words, tmp_path):
    running = begun(words("files:rename", trials=400), tmp_path / "run", 4)
    try:
        refused = durabench("run", "--resume", tmp_path / "run")
    finally:
        running.kill()
        running.communicate()
    assert refused.returncode == 2
    assert "another durabench is writing" in refused.stderr.splitlines()[-1]


# --- disks


@contextmanager
def small_disk(path, size):
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def may_mount():
    return (
        os.geteuid() == 0
        and shutil.which("mount")
        and subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        ).returncode
        == 0
    )


def full(ran, folder):
    assert ran.returncode == 3, ran.stderr
    assert "no room left for the results" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
    rows = Folder.open(folder).trials()
    assert rows
    shown = durabench("report", folder, "--format", "json")
    assert json.loads(shown.stdout)["cells"], "what was recorded can be read"


@pytest.mark.skipif(not may_mount(), reason="only root mounts a disk to fill; the folder's own tests limit files")
def test_a_full_disk_of_results_ends_it_and_keeps_what_there_is(words, tmp_path, left_in):
    with small_disk(tmp_path / "small", "200k") as small:
        ran = durabench("run", *words("files:rename", trials=80, out=small / "run"))
        full(ran, small / "run")
    assert left_in(tmp_path) == []
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.skipif(not may_mount(), reason="only root mounts a disk to fill")
def test_a_disk_under_test_that_is_full_is_no_finding(words, tmp_path, left_in):
    with small_disk(tmp_path / "small", "2m") as small:
        ran = durabench("run", *words("files:rename", directory=small))
        assert ran.returncode == 3, "never 1, which says that a promise was broken"
        assert "No space left on device" in ran.stderr
        assert "Traceback" not in ran.stderr
    assert left_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is one already: see the next test")
def test_a_disk_that_may_not_be_written_to_is_refused(words, tmp_path):
    nobody = pwd.getpwnam("nobody")
    prefix = ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
    prefix += [
        "--inh-caps",
        "+dac_read_search",
        "--ambient-caps",
        "+dac_read_search",
    ]  # so that it reaches the checkout
    refused = durabench("run", *words("files:rename"), prefix=prefix)
    refuses(refused, "cannot be written to: Permission denied; choose another with --dir")


def test_a_disk_that_is_a_file_is_refused(words, tmp_path):
    (tmp_path / "disk").touch()
    refuses(durabench("run", *words("files:rename")), "cannot be written to")


def refuses(refused, words):
    assert refused.returncode == 2, refused.stderr
    assert refused.stdout == ""
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    assert words in refused.stderr


def test_a_folder_that_is_not_empty_is_refused(words, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("three years of work")
    refused = durabench("run", *words("files:rename"))
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr.splitlines()[-1]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]
    assert not (tmp_path / "disk").exists()


MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no disk of memory here")
@pytest.mark.parametrize("chosen", [True, False])
def test_on_a_disk_of_memory_there_is_no_latency_and_by_default_no_answer(chosen, words):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        options = words(
            "files:rename", faults=("none",), trials=2, out=Path(folder) / "run", directory=Path(folder) / "disk"
        )
        if not chosen:
            at = options.index("--dir")
            del options[at : at + 2]
        ran = durabench("run", *options, "--format", "json", cwd=folder)
        cells = [cell for cell in json.loads(ran.stdout)["cells"] if cell["trials"]]
    assert {cell["put_p50_ms"] for cell in cells} == {None}
    assert {cell["verdict"] for cell in cells} == {"kept"}, ran.stderr
    assert ran.returncode == (0 if chosen else 3), ran.stderr
    assert ("nobody chose it" in ran.stderr) == (not chosen)


# --- servers that do not come up


def test_a_server_that_never_answers_is_given_up_with_its_last_words(tmp_path, no_leftovers):
    machine = Here(tmp_path / "root", Ports())
    try:
        service = Service(machine, Target("toys:Deaf", "rename"), machine.root / "store")
        service._send_files()
        service.start()
        with pytest.raises(HarnessError, match="nobody answers"):
            service.ask({"do": "create", "target": service.order()}, deadline_s=0.5)
    finally:
        machine.close()


def test_a_port_that_is_taken_is_said_with_the_servers_last_words(tmp_path, no_leftovers):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as squatter:
        ports = Ports()

        ports.draw = lambda: squatter.getsockname()[1]  # type: ignore[method-assign]
        machine = Here(tmp_path / "root", ports)
        try:
            service = Service(machine, Target("valkey", "rdb"), machine.root / "store")
            with pytest.raises(HarnessError, match="(?i)address already in use"):
                service.set_up()
        finally:
            machine.close()


def test_what_does_not_come_up_is_not_run_and_costs_the_others_nothing(words, tmp_path):
    ran = durabench("run", *words("toys:Refusing:rename", "files:rename"), "--format", "json")
    cells = {(cell["backend"]): cell for cell in json.loads(ran.stdout)["cells"]}
    assert cells["files"]["verdict"] == "kept"
    assert cells["toys:Refusing"]["verdict"] == "not run"
    assert "password authentication failed" in cells["toys:Refusing"]["why"]
    assert ran.returncode == 3, "it was asked for by name"
    assert "does not come up" in ran.stderr


# --- judging again


def test_judge_notices_a_history_that_was_doctored(words, tmp_path):
    assert durabench("run", *words("files:rename")).returncode == 0
    assert durabench("judge", tmp_path / "run").returncode == 0
    path = max((tmp_path / "run" / "histories").iterdir())
    events = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    gone = next(event["key"] for event in events if event["e"] == "reading")
    for event in events:
        if event["e"] == "listing":
            event["keys"] = [key for key in event["keys"] if key != gone]
        if event["e"] == "reading" and event["key"] == gone:
            event["value"] = None
    path.write_bytes(gzip.compress("".join(json.dumps(event) + "\n" for event in events).encode()))
    again = durabench("judge", tmp_path / "run")
    assert "recorded kept, now broken" in again.stdout
    assert again.returncode in (1, 3), "a result that cannot be repeated is no success"


def test_judge_says_which_history_is_torn(words, tmp_path):
    assert durabench("run", *words("files:rename")).returncode == 0
    path = max((tmp_path / "run" / "histories").iterdir())
    path.write_bytes(path.read_bytes()[:100])
    again = durabench("judge", tmp_path / "run")
    assert again.returncode == 3
    assert "Traceback" not in again.stderr
    assert path.name in again.stdout + again.stderr
