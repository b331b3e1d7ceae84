"""What a person asks for, from words to a goal and to accepted findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends.contract import RATED_DOMAINS, Domain, Goal

if TYPE_CHECKING:
    from collections.abc import Iterable

SURVIVE = {**{domain.label: domain for domain in RATED_DOMAINS}, "power": Domain.DRIVE}
"""What may die, as it is written; where the power fails, the drive's cache goes."""


class UsageError(ValueError):
    """Something that cannot be verified as asked; the message names the mend (exit 2)."""


def goal(survive: str, max_loss_s: float) -> Goal:
    """The goal that ``--survive`` and ``--max-loss`` name. UsageError for another domain."""
    if survive not in SURVIVE:
        message = f"--survive {survive!r}: what may die is client, server, machine or drive"
        raise UsageError(message)
    return Goal(SURVIVE[survive], max_loss_s)


def ignored(asked: Iterable[str]) -> dict[str, str]:
    """Id → reason of every ``ID=REASON``. UsageError without a reason."""
    found = {}
    for each in asked:
        one, _, reason = each.partition("=")
        if not one.strip() or not reason.strip():
            message = f"--ignore {each!r} needs a reason: --ignore ID=REASON"
            raise UsageError(message)
        found[one.strip()] = reason.strip()
    return found
