"""What the tests of the cycle share: many trials of real stores, judged, without a result folder."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING

import psutil
import pytest

from durabench import campaign, cli, judgement, profile, redact, schedule
from durabench.ground import Ground

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = """
backends = ["files"]
faults = ["kill-client"]
workload = "append"
trials = 2
puts = 5
write_s = 0.2
"""
"""Beside it the controls and the power pass of the shipped one."""
BROWSER = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--window-size=1280,1000"),
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """What one test gives as a secret is none in the next."""
    monkeypatch.setattr(redact, "KNOWN", redact.Known())


@pytest.fixture
def typed(capsys, monkeypatch):
    """Runs the command line in this process; (exit status, stdout, stderr)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["durabench", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return run


@pytest.fixture
def toy_profile(tmp_path):
    """A profile file that is done in seconds; ``edit`` replaces lines of it."""

    def make(**edit):
        shipped = (files("durabench") / "profiles" / "quick.toml").read_text()
        lines = [*PROFILE.strip().splitlines(), *shipped[shipped.index("[controls]") :].splitlines()]
        for name, value in edit.items():
            at = next((n for n, line in enumerate(lines) if line.startswith(f"{name} =")), 0)
            lines[at : at + bool(at)] = [f"{name} = {value}"]
        path = tmp_path / "toy.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    return make


@pytest.fixture
def cycle(tmp_path, toy_profile):
    """Runs trials as a campaign does, on fresh directories, several at a time; returns their rows without controls."""

    def run(asked, at_once=2, visit=10, driver="forked"):
        chosen = profile.load(str(toy_profile()))
        cells = schedule.cells(asked, chosen)
        assert [cell.why for cell in cells if cell.verdict] == []
        plans = [plan for plan in schedule.plans(cells, asked, chosen) if plan.control is None]
        return judged(plans, at_once, visit, driver)

    def judged(plans, at_once=2, visit=10, driver="forked"):
        ground = Ground(tmp_path / "disk", driver)
        outcomes, troubles = [], []

        def tell(mail):
            (troubles if isinstance(mail, tuple) else outcomes).append(mail)

        by_key = {}
        for plan in plans:
            by_key.setdefault((plan.metadata, plan.data), []).append(plan)
        visits = [
            schedule.Visit(members[at : at + visit])
            for members in by_key.values()
            for at in range(0, len(members), visit)
        ]
        # What a thread has started dies when it ends: the pool outlives the trials and their nurseries.
        executor = ThreadPoolExecutor(at_once)
        try:
            list(executor.map(lambda one: campaign.run_visit(one, ground, tell, threading.Event()), visits))
        finally:
            ground.close()
            executor.shutdown()
        assert not troubles
        assert len(outcomes) == len(plans)
        return [
            row
            for outcome in outcomes
            for row in judgement.rows(outcome, campaign.held(outcome.plan, {}), "host", "folder")
        ]

    run.plans = judged
    return run


@pytest.fixture
def no_leftovers(tmp_path):
    """Fails unless, within a second of the test's end, no process lives in ``tmp_path`` or was given a path in it."""
    yield
    end = time.monotonic() + 1
    while (left := processes_of(tmp_path)) and time.monotonic() < end:
        time.sleep(0.02)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert left == []


def processes_of(path: Path) -> list[psutil.Process]:
    """Processes other than this one that live in ``path``; zombies are dead."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            cwd = os.readlink(f"/proc/{process.pid}/cwd")
            if cwd.startswith(str(path)) or str(path) in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture
def left_in():
    """The function that tells which processes live in a folder."""
    return processes_of


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for a module. What is missing is a failure in CI, where apt installs it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*BROWSER, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options, Service(driver))
    opened.set_page_load_timeout(60)
    yield opened
    opened.quit()
