"""Benchmarks of the harness itself: ratios of one run, printed and never asserted.

They run when named: ``python -m pytest bench/tests/benchmarks --benchmark-only``; ``--brief`` makes each as small as it
can be, so that the usual tests can show that they still work. What is compared is interleaved on the same disk and the
same server, since neither keeps its speed from one minute to the next.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from durabench import schedule
from durabench.campaign import Campaign
from durabench.ground import Ground
from durabench.results import Folder
from durabench.service import Service, Target
from durabench.trial import TrialPlan

BARE = Path(__file__).with_name("bare.py")
LINES = pytest.StashKey[dict]()
CLIENTS = {
    "files": lambda setting: ("files", {"write": setting}),
    "sqlite": lambda setting: ("sqlite", dict(zip(("journal_mode", "synchronous"), setting.split("-"), strict=True))),
    "postgres": lambda _: ("postgres", {}),
    "valkey": lambda _: ("redis", {}),
}
"""Which bare client stands beside a backend, with what options under a setting."""
ANSWER_S = 120


def pytest_addoption(parser):
    parser.addoption("--brief", action="store_true", help="one tiny round of each benchmark: do they still work?")


def pytest_configure(config):
    config.stash[LINES] = {}


def pytest_terminal_summary(terminalreporter, config):
    for title, (head, rows) in config.stash[LINES].items():
        terminalreporter.section(title)
        table = [head, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(head))]
        for row in table:
            cells = [
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            terminalreporter.write_line("  ".join(cells).rstrip())


@pytest.fixture
def brief(request):
    return request.config.getoption("--brief")


@pytest.fixture
def table(request):
    """Adds a row to a table of the summary: ``table(title, head, row)``."""

    def add(title, head, row):
        request.config.stash[LINES].setdefault(title, (head, []))[1].append([str(cell) for cell in row])

    return add


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path / "disk"


@dataclass
class Bench:
    """A campaign's own machinery over one target: trials run, are judged and are recorded as in ``durabench run``."""

    ground: Ground
    folder: Folder
    target: Target
    at_once: int
    campaign: Campaign = field(init=False)
    _numbers: itertools.count = field(default_factory=itertools.count)

    def plans(self, fault, trials, **more):
        made = [
            TrialPlan(0, 0, self.target, self.target, workload="append", fault=fault, **more) for _ in range(trials)
        ]
        return [schedule._numbered(plan, next(self._numbers), schedule.Asked(seed=1)) for plan in made]

    def run(self, plans):
        """Run them several at a time; seconds from the first bring-up to the last row on the disk, and the rows."""
        before = {row["trial"] for row in self.folder.trials()}
        began = time.monotonic()
        self.campaign._at_once(plans, Random(1))
        seconds = time.monotonic() - began
        assert self.campaign.troubles == {}
        return seconds, [row for row in self.folder.trials() if row["trial"] not in before]


@pytest.fixture
def bench(place, tmp_path):
    """Makes a `Bench`: ``with bench(backend, setting, driver) as one``."""
    numbers = itertools.count()

    @contextmanager
    def make(backend, setting, driver="forked", at_once=2):
        folder = Folder.create_at(tmp_path / f"results-{next(numbers)}")
        folder.begin({"plan": [], "cells": []})
        ground = Ground(place, driver)
        executor = ThreadPoolExecutor(at_once)  # outlives what its threads have started
        one = Bench(ground, folder, Target(backend, setting), at_once)
        one.campaign = Campaign(
            folder=folder,
            ground=ground,
            cells=[],
            plans=[],
            workload="append",
            prepared={},
            facts={"id": "benchmark"},
            seed=1,
            budget_s=None,
            dear_trials=None,
            dear_every_rounds=1,
            round_kills=1,
            executor=executor,
            at_once=at_once,
            say=lambda _line: None,
            progress=lambda *_: None,
        )
        try:
            yield one
        finally:
            one.campaign.stop.set()
            ground.close()
            executor.shutdown()
            folder.close()

    return make


@pytest.fixture
def bare():
    """Runs `bare.py`: ``bare(order)`` for one answer; ``with bare.asked(order) as ask`` for an answer to each line."""
    return Bare


class Bare:
    def __new__(cls, order):
        done = subprocess.run(
            [sys.executable, "-I", str(BARE), json.dumps(order)],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @staticmethod
    @contextmanager
    def asked(order):
        argv = [sys.executable, "-I", str(BARE), json.dumps(order)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

            def ask(*words):
                child.stdin.write(json.dumps(words) + "\n")
                child.stdin.flush()
                return json.loads(child.stdout.readline())

            yield ask
            child.stdin.close()


@pytest.fixture
def served(bench):
    """A service of the target on the ground of a `Bench`, for the bare client: ``with served(one) as service``."""

    @contextmanager
    def make(one):
        machine = one.ground.machine([one.target], "append")
        service = Service(machine, one.target, machine.root / "store")
        try:
            service.set_up()
            yield service
        finally:
            machine.close()

    return make


@pytest.fixture
def client_of():
    """What `bare.py` needs to find a service: its client, options and place."""

    def make(service):
        name = service.target.backend
        client, options = CLIENTS[name](service.target.setting)
        here = str(service.root) if service.embedded else next(iter(service.order()["ports"].values()))
        return {"client": client, "options": options, "place": here}

    return make
