"""Kills a minute, two at a time, beside what a bare loop reaches in the same run; and the harness's peak memory."""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durabench import process

if TYPE_CHECKING:
    from durabench.machine import Here

TITLE = "confirmed kills a minute (append, 2 KiB, two at a time), over a bare loop's"
HEAD = ("setting and fault", "driver", "suite", "bare", "ratio", "of rounds", "wanted", "kills", "peak MiB")
WANTED = {
    ("files", "kill-client"): 3000,
    ("sqlite", "kill-client"): 3000,
    ("postgres", "kill-client"): 1000,
    ("valkey", "kill-client"): 600,
    ("postgres", "kill-server"): 150,
    ("valkey", "kill-server"): 600,
}
"""Of the suite on two cores of its own; a loaded machine or a slow disk gives less to both columns."""
CLIENTS = [
    ("files", "fsync-dir"),
    ("files", "fsync-file"),
    ("files", "rename"),
    ("files", "in-place"),
    ("sqlite", "wal-full"),
    ("postgres", "on"),
    ("valkey", "aof-always"),
]
SERVERS = [("postgres", "on"), ("valkey", "aof-always")]
AT_ONCE = 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("driver", ["forked", "fresh"])
@pytest.mark.parametrize("backend,setting", CLIENTS)
def test_kill_client(benchmark, brief, bench, served, bare, client_of, table, backend, setting, driver):
    rounds, trials, seconds = (1, 4, 0.3) if brief else (2, 80, 3.0) if driver == "forked" else (2, 40, 3.0)
    with bench(backend, setting, driver) as one, served(one) as service:
        order = {"loop": "kill-client", "how": driver, "seconds": seconds, "at_once": AT_ONCE, **client_of(service)}
        compare(
            benchmark, one, lambda number: bare({**order, "prefix": f"r{number}"}), table, "kill-client", rounds, trials
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend,setting", SERVERS)
def test_kill_server(benchmark, brief, bench, served, bare, client_of, table, backend, setting):
    rounds, trials, seconds = (1, 4, 0.5) if brief else (2, 40, 5.0)
    with bench(backend, setting) as one, ExitStack() as stack:
        services = [stack.enter_context(served(one)) for _ in range(AT_ONCE)]
        servers = []
        for service in services:
            found = client_of(service)
            service.stop()  # the bare loop starts and kills it by itself
            (daemon,) = [command for command in service.backend.commands() if command.role == "daemon"]
            servers.append({"place": found["place"], **argv_of(service.machine, daemon, service.root)})
        order = {"loop": "kill-server", "seconds": seconds, "at_once": AT_ONCE, "servers": servers}
        order |= {"client": found["client"], "options": found["options"]}
        compare(
            benchmark, one, lambda number: bare({**order, "prefix": f"r{number}"}), table, "kill-server", rounds, trials
        )


def argv_of(machine: Here, daemon, root):
    """How `process.start` would start a daemon, for a program that is not the harness."""
    words = machine._as_server(daemon, root)
    guard = process.guard(as_server=True, paths=[root, Path(daemon.argv[0])])
    return {"argv": [*guard, *daemon.argv], "cwd": str(root), "env": words["env"], "log": str(words["log"])}


def compare(benchmark, one, alone, table, fault, rounds, trials):
    """Rounds of the bare loop and the suite in turn; writes both rates, their ratio and the peak memory down."""
    label = f"{one.target.label} {fault}"
    _, rows = one.run(one.plans(fault, 2 * AT_ONCE))  # warm: nurseries are kept for a whole campaign
    confirmed(rows, 2 * AT_ONCE, fault)
    forget_peak()
    suite, bare = [], []
    numbers = iter(range(rounds))

    def pair():
        number = next(numbers)
        found = alone(number)
        assert found["lost"] == 0
        bare.append(found["per_minute"])
        seconds, rows = one.run(one.plans(fault, trials))
        suite.append(60 * confirmed(rows, trials, fault) / seconds)

    benchmark.pedantic(pair, rounds=rounds, iterations=1)
    peak = peak_mib([nursery._popen.pid for nursery in one.ground.nurseries.made.values()])
    ratios = [a / b for a, b in zip(suite, bare, strict=True)]
    benchmark.extra_info.update(
        suite_per_minute=suite, bare_per_minute=bare, ratios=ratios, kills=rounds * trials, peak_mib=peak
    )
    wanted = WANTED.get((one.target.backend, fault), "-") if one.ground.driver == "forked" else "-"
    spread = " ".join(f"{ratio:.2f}" for ratio in ratios)
    middle = [statistics.median(suite), statistics.median(bare)]
    shown = [f"{middle[0]:.0f}", f"{middle[1]:.0f}", f"{middle[0] / middle[1]:.2f}", spread]
    table(TITLE, HEAD, [label, one.ground.driver, *shown, wanted, rounds * trials, f"{peak:.0f}"])


def confirmed(rows, trials, fault):
    """How many kills are confirmed: struck, exit by that signal, restart seen, judged; the rest would be unknown."""
    kept = [row for row in rows if row["fault"] == fault and row["struck"] and row["verdict"] == "kept"]
    assert [row["why"] for row in rows if row not in kept] == []
    assert len({row["trial"] for row in kept}) == trials
    return len(kept)


def forget_peak():
    """Let the kernel's high-water mark of this process begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib(others):
    """The high-water marks of this process, pytest included, and of the nurseries, added up."""
    total = 0
    for pid in (os.getpid(), *others):
        status = Path(f"/proc/{pid}/status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return total / 1024
