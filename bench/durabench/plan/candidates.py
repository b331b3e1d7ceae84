"""Which settings a plan may choose among: those whose promise meets the goal; of the others, what excludes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench.schedule import refuse_alike, targets_of
from durabench_backends import registry
from durabench_backends.contract import RATED_DOMAINS, Goal, Limit, Promise
from durabench_backends.locate import MissingExtra, MissingProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench.service import Target

_NOWHERE = Path("/nonexistent")
"""Commands can be asked for without a place to run them."""


class NothingMeets(ValueError):
    """No candidate is left; the message says which goal excludes which (exit 1)."""


@dataclass(frozen=True)
class Candidate:
    """A target that was considered. ``excluded_by``: the option that excludes it, ``why`` in words; None where it is
    compared. ``stopped_bytes``: the first size that it did not take, and why.
    """

    target: Target
    tier: str | None
    excluded_by: str | None = None
    why: str | None = None
    limit: Limit | None = None
    embedded: bool = True
    largest_bytes: int | None = None
    stopped_bytes: int | None = None
    stopped_why: str | None = None

    @property
    def label(self) -> str:
        """As its target is called."""
        return self.target.label

    def as_json(self) -> dict[str, Any]:
        """Its entry in plan.json; of a URL no secret."""
        return {
            "label": self.label,
            "backend": self.target.backend,
            "setting": self.target.setting,
            "tier": self.tier,
            "meets_goal": self.excluded_by is None,
            "excluded_by": self.excluded_by,
            "why": self.why,
            "largest_bytes": self.largest_bytes,
            "stopped_bytes": self.stopped_bytes,
            "stopped_why": self.stopped_why,
            "limit": None if self.limit is None else asdict(self.limit),
        }


def choose(backends: Sequence[str], kinds: Sequence[Sequence[str]], goal: Goal) -> list[Candidate]:
    """Every candidate, those first that are compared; of each kind one. NothingMeets; UnknownBackend, UsageError.

    ``backends``: what a person asked for, instead of ``kinds``. What runs at a URL is judged once it was looked at.
    """
    found: list[Candidate] = []
    if backends:
        for text in backends:
            found += [_judged(target, goal) for target in targets_of(text)]
    else:
        for kind in kinds:
            judged = [_judged(targets_of(text)[0], goal) for text in kind]
            first = next((one for one in judged if one.excluded_by is None), None)
            found += [one for one in judged if one.excluded_by] if first is None else [first]
            found += [one for one in judged if one.excluded_by] if first is not None else []
    found = list({one.target: one for one in found}.values())
    refuse_alike(one.target for one in found)
    refuse_none(found)
    return sorted(found, key=lambda one: one.excluded_by is not None)


def refuse_none(found: Sequence[Candidate]) -> None:
    """NothingMeets unless there is one to compare."""
    if not any(one.excluded_by is None for one in found):
        reasons = "; ".join(f"{one.label}: {one.excluded_by} ({one.why})" for one in found)
        message = f"no backend meets the goal: {reasons}"
        raise NothingMeets(message)


def _judged(target: Target, goal: Goal) -> Candidate:
    try:
        registry.require(target.backend)
        backend, setting = target.load()
        # What is not installed is known before anything runs.
        commands = [] if setting is None else backend(setting, _NOWHERE, lambda _: 1).commands()
    except (MissingExtra, MissingProgram) as error:
        return Candidate(target, None, "not installed", str(error))
    limit: Limit | None = getattr(backend, "limit", None)
    embedded = setting is not None and not any(command.role == "daemon" for command in commands)
    tier = None if setting is None else setting.promise.tier
    candidate = Candidate(target, tier, limit=limit, embedded=embedded)
    if getattr(backend, "mock", False):
        return replace(candidate, excluded_by="--survive", why="a mock that has no disk")
    return candidate if setting is None else by_promise(candidate, setting.promise, goal)


def by_promise(candidate: Candidate, promise: Promise, goal: Goal) -> Candidate:
    """The candidate, excluded where ``promise`` does not meet the goal."""
    candidate = replace(candidate, tier=promise.tier)
    for domain in RATED_DOMAINS:
        if domain > goal.survive:
            break
        loses_s = promise.may_lose_s.get(domain)
        if loses_s is None:
            why = f"no promise when the {domain.label} dies"
            return replace(candidate, excluded_by=f"--survive {goal.survive.label}", why=why)
        if loses_s > goal.max_loss_s:
            why = f"may lose the last {loses_s:g} s when the {domain.label} dies"
            return replace(candidate, excluded_by=f"--max-loss {goal.max_loss_s:g}s", why=why)
    return candidate
