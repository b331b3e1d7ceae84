"""The peacetime suite: what every store must do while nothing dies, as plain functions over a running backend.

`run` gives one `Result` per check. A check says what went wrong by raising; whatever else a store raises is a failure
of that check too. Every clause of the contract's docstrings stands at the check that holds a backend to it, or in
`UNSEEN` with the reason why peacetime does not show it. No check needs pytest, a server's name, or a second of fixed
sleep. What the suite does not see: what survives when something dies (that is the cycle's job), and leftovers below the
backend's own root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends.conformance import backend, optional, store, suite
from durabench_backends.conformance.outside import find_outside
from durabench_backends.conformance.store import EDGE_KEYS, MANY_KEYS, OUTSIDE_KEYS
from durabench_backends.conformance.suite import Check, Environment, Result, random_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "CHECKS",
    "EDGE_KEYS",
    "MANY_KEYS",
    "OUTSIDE_KEYS",
    "UNSEEN",
    "Check",
    "Environment",
    "Result",
    "find_outside",
    "random_bytes",
    "run",
]

CHECKS: Sequence[Check] = (*store.CHECKS, *backend.CHECKS, *optional.CHECKS)
"""The whole suite. Ids are stable: they stand in the output of ``durabench conform``."""

UNSEEN: Mapping[str, str] = {
    "Backend: Four class attributes may be left out:": "what a backend says of itself, for the harness",
    "Backend: ``imports``, the modules of its client library, which the harness imports before it forks a driver;": (
        "a hint: what it leaves out is only slower"
    ),
    "Backend: ``mock``, True for what has no disk and is therefore not rated beyond the client;": "what it says of itself",  # noqa: E501
    "Backend: ``heavy``, True for a server that an emulated machine is too slow for;": "what it says of itself",
    "Backend: and ``url_form``, the URL of a person's client with ``{server}`` for host and port.": "read by a person",
    "Backend.__init__: ``port(name)`` gives the same free port for the same name.": "owed to the backend, not by it",
    "Backend.from_url: Somebody's running backend;": "the suite runs on servers of ours, never on somebody's",
    "Backend.from_url: `commands` is then empty.": "the same",
    "Backend.create: schema, buckets.": "an example",
    "Backend.size_bytes: reports subtract the value after `create`.": "what reports do",
    "Verifiable: A backend that can say of somebody's deployment whether it meets a goal.": "said by its methods",
    "Verifiable.writer_pids: empty where there are none:": "said by the next clause",
    "Compactable.compact: Rewrite and return when it is done;": "when it was done, only the software knows",
    "Sized: A backend that can say how large somebody's values are.": "said by its method",
    "Sized.sizes_bytes: ``within`` is a part of the store, in its own terms (a table, a prefix of keys), empty for all of "  # noqa: E501
    "it.": "which parts there are is its own; a ValueError may ask for one",
    "Sized.sizes_bytes: A value is a file, an object, a string, or all large columns of a row together.": (
        "which of these it is, is its own"
    ),
    "Watchable: An embedded backend that can tell from a program's system calls how the program writes to it.": (
        "takes a program that writes: a test of its own for each backend"
    ),
    "Watchable.watched: The facts that take the place of what `Backend.inspect` could not know:": "the same",
    "Watchable.watched: how each put was written, judged by the weakest.": "the same",
}
"""Clauses of the contract that no check holds a backend to, and why not."""


def run(environment: Environment, checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Run ``checks`` on a running backend in a fresh root; results come in the order of ``checks``."""
    return suite.run(environment, checks)
