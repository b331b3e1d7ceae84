"""What a person types and what comes back: one document or one line, and an exit status that never flatters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from durabench import run
from durabench.results import Folder
from durabench_vm.rundir import start_time

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run that was done by the command: its folder, exit status, stdout and stderr."""
    folder = tmp_path_factory.mktemp("finished")
    out = folder / "run"
    words = [
        "--backend",
        "files:fsync-dir",
        "--fault",
        "none",
        "--fault",
        "kill-client",
        "--trials",
        "3",
        "--seed",
        "1",
    ]
    words += ["--dir", folder / "disk", "--out", out, "--format", "json", "--format", f"csv={folder / 'cells.csv'}"]
    ran = subprocess.run(
        [sys.executable, "-m", "durabench", "run", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=300,
    )
    return out, ran


def test_json_on_stdout_is_one_document_and_all_talk_is_on_stderr(finished):
    out, ran = finished
    document = json.loads(ran.stdout)
    assert document["results"] == str(out)
    assert {"schema_version", "machine", "floor", "pick", "cells"} <= set(document)
    assert {(c["backend"], c["setting"], c["fault"]) for c in document["cells"] if c["trials"]} == {
        ("files", "fsync-dir", "none"),
        ("files", "fsync-dir", "kill-client"),
    }
    assert "seed 1" in ran.stderr
    assert str(out) in ran.stderr


def test_a_run_whose_promises_held_is_0(finished):
    _, ran = finished
    assert ran.returncode == 0, ran.stderr


def test_a_second_format_goes_to_its_file(finished):
    out, _ = finished
    assert (out.parent / "cells.csv").read_text().startswith("backend,setting,")


def test_report_shows_the_same_again(finished, typed):
    out, ran = finished
    status, said, _ = _in_process(typed, "report", out, "--format", "json")
    assert status in (0, None)
    again, before = json.loads(said), json.loads(ran.stdout)
    assert again["cells"] == before["cells"]


def _in_process(typed, *words):
    return typed(*words)


def test_judge_repeats_every_verdict(finished, typed):
    out, _ = finished
    status, said, _ = typed("judge", out)
    assert said.strip().endswith("0 differ from what was recorded, 0 broken"), said
    assert status == 0


def test_judge_does_not_hold_where_nothing_could_be_judged(finished, typed, monkeypatch):
    out, _ = finished
    rows = [now for _, now in run.judge_again(Folder.open(out)) if now["control"] is None]
    rows = [row for row in rows if (row["fault"], row["namespace"]) == ("kill-client", "metadata")]
    doubted = [{**row, "verdict": "unknown"} for row in rows]
    untold = [{**row, "recording": "r0", "gap": 1, "telling": False} for row in rows]
    for again, expected in ((doubted, 3), ([rows[0], *doubted[1:]], 0), (untold, 3)):
        monkeypatch.setattr(run, "judge_again", lambda _, again=again: [(row, row) for row in again])
        status, said, _ = typed("judge", out)
        assert status == expected
        told = "of 1 cells nobody can tell: files:fsync-dir kill-client metadata"
        assert (told in said) == (expected == 3)


@pytest.mark.parametrize("trial", [3, 4])
def test_replay_runs_the_same_plan_again(trial, finished, typed, tmp_path):
    out, _ = finished
    plan = Folder.open(out).plan()[trial]
    before = sorted(path.name for path in out.iterdir())
    status, said, talk = typed("replay", out, trial, "--dir", tmp_path)
    assert status == 0
    assert (
        f"trial {trial}: {plan['metadata']['backend']}:{plan['metadata']['setting']} {plan['fault']}, "
        f"seed {plan['seed']}" in talk
    )
    assert "metadata: kept (recorded: kept)" in said
    assert sorted(path.name for path in out.iterdir()) == before, "a finished folder never changes"
    assert list(tmp_path.iterdir()) == []


def test_replay_names_a_trial_that_is_none(finished, typed):
    out, _ = finished
    status, _, said = typed("replay", out, 4711)
    assert (status, said.count("\n")) == (2, 1)
    assert "no trial 4711" in said


def test_a_finished_run_is_not_resumed(finished, typed):
    out, _ = finished
    status, _, said = typed("run", "--resume", out)
    assert (status, said.strip().count("\n")) == (2, said.strip().count("\n"))
    assert "is complete" in said.splitlines()[-1]


REFUSED = {
    "unknown backend": (("--backend", "postgress"), "did you mean postgres"),
    "unknown setting": (("--backend", "sqlite:wal-ful"), "did you mean wal-full"),
    "unknown fault": (("--fault", "kill-sever"), "did you mean kill-server"),
    "unknown workload": (("--workload", "agnt"), "did you mean agent"),
    "unknown profile": (("--profile", "quik"), "there are quick, full"),
    "unknown lane": (("--lane", "hear"), "did you mean here"),
    "unknown server kill": (("--server-kill", "all"), "tree or main"),
    "unknown driver": (("--driver", "new"), "forked or fresh"),
    "unknown format": (("--format", "xml"), "xml"),
    "two formats on stdout": (("--format", "json", "--format", "csv"), "--format"),
    "metadata alone": (("--metadata", "files"), "come together"),
    "time": (("--budget", "soon"), "150s, 10m or 1h"),
    "negative time": (("--budget", "-5s"), "150s, 10m or 1h"),
    "no number as time": (("--budget", "nan"), "150s, 10m or 1h"),
    "trials and budget": (("--trials", "3", "--budget", "3s"), "exclude each other"),
    "no such results": (("--resume", "/nonexistent"), "does not exist"),
    "no such expectations": (("--expect", "/nonexistent.toml"), "/nonexistent.toml"),
}


@pytest.mark.parametrize("words, mend", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_one_line(words, mend, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, said = typed("run", *words)
    assert status == 2
    assert out == ""
    assert len(said.strip().splitlines()) == 1
    assert said.startswith("durabench: ")
    assert mend in said
    assert list(tmp_path.iterdir()) == [], "nothing was started or made"


@pytest.mark.parametrize(
    "words",
    [
        ("--trials", "0"),
        ("--trials", "-3"),
        ("--writers", "-1"),
        ("--settle", "-1"),
        ("--no-such-option",),
        ("--trials", "many"),
    ],
)
def test_numbers_that_are_none_are_refused(words, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, said = typed("run", *words)
    assert (status, out) == (2, "")
    assert words[0] in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["report", "judge", "replay"])
def test_what_is_no_results_folder_is_said(command, typed, tmp_path):
    status, out, said = typed(command, tmp_path, *(["1"] if command == "replay" else []))
    assert (status, out) == (2, "")
    assert len(said.strip().splitlines()) == 1
    assert "not a results folder" in said


def test_list_names_every_backend_setting_fault_and_workload(capsys, monkeypatch):
    ran = subprocess.run(
        [sys.executable, "-m", "durabench", "list"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    for word in (
        "files:fsync-dir",
        "sqlite:delete-full ★",
        "postgres:on ★",
        "valkey:aof-always",
        "s3-swift:versioned",
        "kill-server",
        "cut-power",
        "sharded",
        "T3",
        "T2 0.6 s",
    ):
        assert word in ran.stdout


def test_memory_prints_no_promise_with_all_lost_and_never_success(tmp_path):
    words = [
        "--backend",
        "memory",
        "--fault",
        "kill-client",
        "--trials",
        "5",
        "--dir",
        tmp_path / "disk",
        "--out",
        tmp_path / "run",
        "--format",
        "json",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "durabench", "run", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    cells = [c for c in json.loads(ran.stdout)["cells"] if c["trials"]]
    assert {c["verdict"] for c in cells} == {"no-promise"}
    assert all(c["lost"] == c["acked"] > 0 for c in cells)
    assert ran.returncode == 0, "no-promise does not count"


# --- signals


@pytest.fixture
def signalled(tmp_path):
    """The function that runs the command line with other work, signals it once that has begun, and gives what the work
    had printed, its exit status and stderr.
    """

    def run(work, number):
        code = f"import os, subprocess, time\nfrom durabench import cli\n{work}\ncli.app = app\ncli.main()\n"
        (tmp_path / "some.py").write_text(code)
        argv = [sys.executable, "-m", "some"]
        with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            printed = running.stdout.readline()
            running.send_signal(number)
            _, said = running.communicate(timeout=60)
        return printed, running.returncode, said

    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_130_inside_exec_too(number, signalled):
    """As dataclasses use it on import: a KeyboardInterrupt that passes there makes Python end by SIGINT, caught or
    not.
    """
    work = """
def app():
    try:
        exec("print('begun', flush=True)\\nwhile True: time.sleep(1)")
    except KeyboardInterrupt:
        raise SystemExit(130)  # as Typer does
"""
    assert signalled(work, number) == ("begun\n", 130, "")


def test_what_does_not_end_is_cut_short_and_takes_what_it_started_with_it(signalled):
    work = """
cli.ENDS_S = 1.0
def app():
    nothing = subprocess.DEVNULL
    try:
        print(subprocess.Popen(["sleep", "600"], stdout=nothing, stderr=nothing).pid, flush=True)
        time.sleep(600)
    finally:
        os.kill(os.getpid(), 15)  # somebody who cannot wait
        time.sleep(600)
"""
    printed, status, said = signalled(work, signal.SIGINT)
    assert (status, said) == (130, "")
    end = time.monotonic() + 20
    while start_time(int(printed)) is not None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_was_started_to_ignore_a_signal_goes_on_ignoring_it(tmp_path):
    code = """
import os, signal
from durabench import cli
signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli.app = lambda: os.kill(os.getpid(), signal.SIGHUP)
cli.main()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"done\n"


def test_ctrl_c_before_it_is_there_to_hear_it_ends_it_without_a_word(tmp_path):
    (tmp_path / "typer.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    argv, env = [sys.executable, "-m", "durabench", "list"], {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (-signal.SIGINT, "")
