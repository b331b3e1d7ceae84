"""The sizes of somebody's values, read where they are and never written to: ``--from``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from durabench.machine import DRIVER
from durabench.plan.document import own_sizes
from durabench.plan.measure import WORKLOAD
from durabench.process import HarnessError, Hung
from durabench.redact import learn, redact, shown
from durabench.schedule import UsageError, targets_of
from durabench.service import READY_S, Service
from durabench_backends import registry, urls

if TYPE_CHECKING:
    from durabench.ground import Ground

LISTING_S = 120.0


def sizes_at(url: str, ground: Ground) -> dict[str, Any]:
    """The distribution of sizes at ``url``; what follows a ``#`` names a part of it: a table, a prefix.

    UsageError where the URL is none or holds nothing; HarnessError where it cannot be read.
    """
    learn(url)
    address, _, within = urls.escaped(url).partition("#")
    if "://" not in address:
        raise UsageError(f"--from takes a URL, one of {registry.url_forms(parts=True)}, not {redact(url)!r}")
    target = targets_of(address)[0]
    machine = ground.machine([target], WORKLOAD)
    try:
        service = Service(machine, target, machine.root / "store")
        service.root.mkdir(parents=True, exist_ok=True)
        sizes = _listed(service, within)
    finally:
        machine.close()
    if not sizes:
        raise UsageError(f"--from {shown(url)} holds no values")
    return own_sizes(shown(url), sizes)


def _listed(service: Service, within: str) -> list[int]:
    """In a driver, as every contact with a store."""
    reader = service.machine.start(DRIVER, service.root)
    sizes: list[int] = []
    end = time.monotonic() + READY_S + LISTING_S
    try:
        reader.send({"do": "sizes", "target": service.order(), "within": within})
        while time.monotonic() < end:
            for event in reader.receive(1.0):
                if event["e"] == "failed":
                    raise HarnessError(f"--from: {event['why']}")
                sizes += event["sizes"]
                if event["e"] == "done":
                    return sizes
            if reader.ended:
                raise HarnessError(reader.last_words("--from: the reader ended"))
        raise Hung(f"--from: the sizes were not listed within {LISTING_S:g} s")
    finally:
        service.machine.end(reader)
