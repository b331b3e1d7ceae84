"""Behaviour by counting: how many flushes stand between one acknowledgement and the next, as the kernel saw them.

`count` looks at durabench's own writer and at the local server it writes to, `watch` at somebody's program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_backends.contract import Backend, Check, Fact, Goal, Promise

WATCH_S = 600.0
"""Longest run of a watched program; then it is stopped, and what was seen until then stands."""


@dataclass(frozen=True)
class Watched:
    """What a traced program did.

    ``exit_status`` is the program's own (128 + signal where one ended it, as a shell says it). ``facts`` are what the
    backend recognised in its calls: they take the place of facts of the same id that `Backend.inspect` could not know.
    ``checks`` are the counting's own, of the ids of `pages`.
    """

    exit_status: int
    facts: tuple[Fact, ...]
    checks: tuple[Check, ...]


def pages(prefix: str) -> dict[str, str]:
    """Id of every check made here → its page, for the backend whose ids begin with ``prefix``."""
    return {f"{prefix}.flushes": "…"}


def count(name: str, url: str, backend: Backend, promise: Promise, goal: Goal) -> list[Check]:
    """One check, ``<prefix>.flushes``: puts of our own at ``url``, in a namespace of their own that is removed again,
    and the flushes seen for each; ``name`` is the registry's, ``promise`` the one in force. For ``--probe``.
    """
    raise NotImplementedError


def watch(argv: Sequence[str], url: str, backend: Backend, goal: Goal, deadline_s: float = WATCH_S) -> Watched:
    """Run somebody's program to its end under a tracer, and say how it writes to what ``url`` names.

    Its stdout and stderr go to our stderr. HarnessError where it cannot be started.
    """
    raise NotImplementedError
