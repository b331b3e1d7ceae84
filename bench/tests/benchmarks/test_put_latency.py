"""What a put takes through the suite, over what it takes in a bare loop of the same client: blocks ABBA of one run."""

from __future__ import annotations

import statistics

import pytest

from durabench import history
from durabench.trial import Site, run_trial

TITLE = "put latency through the suite, over a bare client's loop (2 KiB, forked driver; wanted: at most 1.10)"
HEAD = ("setting", "suite p50", "bare p50", "ratio", "of pairs", "puts each")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "backend,setting",
    [("files", "fsync-dir"), ("sqlite", "wal-full"), ("postgres", "on"), ("valkey", "aof-always")],
)
def test_put_latency(benchmark, brief, bench, bare, client_of, table, backend, setting):
    pairs, puts = (1, 20) if brief else (12, 200)
    suite, alone = [], []
    with bench(backend, setting) as one:
        plans = one.plans("none", pairs, puts=puts, write_s=60.0)
        machine = one.ground.machine([one.target], "append")
        try:
            site = Site.set_up(machine, plans[0].targets)
            service = site.distinct[0]
            with bare.asked({"loop": "puts", **client_of(service)}) as ask:

                def through_the_suite(number):
                    outcome = run_trial(plans[number], site)
                    attempts = history.from_events(outcome.events).acknowledged("metadata")
                    assert len(attempts) == puts
                    assert not any(event["e"] in ("doubt", "down") for event in outcome.events)
                    suite.append([attempt.latency_ns for attempt in attempts])

                def by_itself(number):
                    alone.append(ask(f"b{number}", puts))
                    assert len(alone[-1]) == puts

                numbers = iter(range(pairs))

                def pair():
                    number = next(numbers)
                    # Each trial restarts its server: in turn it is the suite and the bare loop that comes right after.
                    for block in (through_the_suite, by_itself) if number % 2 else (by_itself, through_the_suite):
                        block(number)

                benchmark.pedantic(pair, rounds=pairs, iterations=1)
        finally:
            machine.close()
    ratios = sorted(statistics.median(a) / statistics.median(b) for a, b in zip(suite, alone, strict=True))
    p50s = [statistics.median(latency for block in blocks for latency in block) for blocks in (suite, alone)]
    benchmark.extra_info.update(
        suite_p50_ns=int(p50s[0]), bare_p50_ns=int(p50s[1]), ratio_p50=p50s[0] / p50s[1], ratios_of_pairs=ratios
    )
    spread = f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}..{ratios[-1]:.2f}]"
    shown = [f"{p50 / 1000:.0f} us" for p50 in p50s]
    table(TITLE, HEAD, [f"{backend}:{setting}", *shown, f"{p50s[0] / p50s[1]:.2f}", spread, pairs * puts])
