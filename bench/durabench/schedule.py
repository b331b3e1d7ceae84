"""Which cells a campaign is about, which trials it plans for them, and in which order they run. Pure.

A round is one trial of every cell (a block of trials where their number was asked for). Within a round everything is
shuffled by the campaign's seed, so that a disk that changes its mind changes it for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from durabench import fault as faults
from durabench import workload
from durabench.service import Target
from durabench.trial import WINDOWS_SPANNED, TrialPlan
from durabench_backends import registry
from durabench_backends.contract import Domain
from durabench_backends.locate import MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from durabench.profile import Profile

VISIT_TRIALS = 20
"""Trials on one fresh directory; also the size of a round where a number of trials was asked for."""
ROUNDS_MAX = 368
LIVE = "live"
LANES = ("here", "guest", "swap", "loop")
URL_FAULTS = ("none", "kill-client")
_NOWHERE = Path("/nonexistent")
"""Commands can be asked for without a place to run them."""


class UsageError(ValueError):
    """What was asked for cannot be run as it stands; the message names the mend (exit 2)."""


@dataclass(frozen=True)
class Asked:
    """What a person asked of a campaign, beyond its profile. None and empty: as the profile says."""

    backends: Sequence[str] = ()
    metadata: Sequence[str] = ()
    data: Sequence[str] = ()
    faults: Sequence[str] = ()
    workload: str | None = None
    writers: int | None = None
    trials: int | None = None
    budget_s: float | None = None
    seed: int = 0
    lane: str | None = None
    filesystem: str | None = None
    settle_s: float = 0.0
    flush_delay_s: float = 0.0
    server_kill: str = "tree"


@dataclass(frozen=True)
class Cell:
    """A pair of targets under a fault. ``verdict`` and ``why`` are set where it is known that nothing will be judged."""

    metadata: Target
    data: Target
    fault: str
    lane: str = "here"
    filesystem: str | None = None
    verdict: str | None = None
    why: str | None = None
    by_name: bool = False
    """Whether a person asked for this backend or this fault by name: then *not run* is exit 3."""

    @property
    def targets(self) -> tuple[Target, Target]:
        """Metadata's and data's."""
        return self.metadata, self.data

    @property
    def label(self) -> str:
        """``postgres:on`` or ``postgres:on + files:fsync-dir``."""
        return self.metadata.label if self.metadata == self.data else f"{self.metadata.label} + {self.data.label}"


def targets_of(text: str) -> list[Target]:
    """The targets of ``NAME``, ``NAME:SETTING``, ``package.module:Class[:SETTING]`` or a URL. UnknownBackend, MissingExtra."""
    if "://" in text:
        name = registry.name_for_url(text)
        registry.load(name).from_url(text)
        return [Target(name, LIVE, text)]
    name, _, setting = text.partition(":")
    if name not in registry.names() and setting:
        attribute, _, setting = setting.partition(":")
        name = f"{name}:{attribute}"
    found = registry.load(name)
    if setting:
        registry.setting_of(found, name, setting)
        return [Target(name, setting)]
    return [Target(name, each.name) for each in found.settings]


def cells(asked: Asked, profile: Profile) -> list[Cell]:
    """Every cell of the campaign, also those that cannot be judged here, with why. UsageError, UnknownBackend, UnknownFault."""
    _refuse_contradictions(asked)
    wanted = [faults.load(name) for name in asked.faults or profile.faults]
    workload.load(asked.workload or profile.workload)
    by_name = bool(asked.backends or asked.metadata or asked.faults)
    found: list[Cell] = []
    for pair in _pairs(asked, profile):
        if isinstance(pair, Cell):
            found += [replace(pair, fault=fault.name, by_name=by_name) for fault in wanted]
            continue
        for fault in wanted:
            cell = Cell(*pair, fault.name, lane=asked.lane or "here", filesystem=asked.filesystem, by_name=by_name)
            found.append(_with_why(cell, fault))
    return list(dict.fromkeys(found))


def _refuse_contradictions(asked: Asked) -> None:
    """Options that would be left unheeded are refused: a row must not claim what did not happen."""
    if asked.lane is not None and asked.lane not in LANES:
        message = f"unknown lane {asked.lane!r}; {registry.nearest(asked.lane, LANES)}"
        raise UsageError(message)
    if (asked.lane or "here") == "here" and (asked.filesystem or asked.flush_delay_s):
        message = "--filesystem and --flush-delay are a resettable machine's: give --lane guest, swap or loop with them"
        raise UsageError(message)
    if asked.trials is not None and asked.budget_s is not None:
        message = "--trials and --budget exclude each other: give one"
        raise UsageError(message)
    if asked.budget_s is not None and asked.budget_s <= 0:
        message = "--budget must be more than nothing, such as 150s"
        raise UsageError(message)


def _pairs(asked: Asked, profile: Profile) -> Iterable[tuple[Target, Target] | Cell]:
    if bool(asked.metadata) != bool(asked.data):
        message = "--metadata and --data come together: give both, or --backend for one backend under both"
        raise UsageError(message)
    names = list(asked.backends) or ([] if asked.metadata else profile.backends)
    for name in names:
        try:
            targets = targets_of(name)
        except registry.MissingExtra as error:
            nothing = Target(name.partition(":")[0], name.partition(":")[2] or "*")
            yield Cell(nothing, nothing, "", verdict="not run", why=str(error))
            continue
        yield from ((target, target) for target in targets)
    metadata = [target for name in asked.metadata for target in targets_of(name)]
    data = [target for name in asked.data for target in targets_of(name)]
    yield from product(metadata, data)


def _with_why(cell: Cell, fault: faults.Fault) -> Cell:
    """The cell, with its verdict where it is known beforehand that nothing can be judged."""
    served = False
    for target in cell.targets:
        found, setting = target.load()
        if target.url and fault.name not in URL_FAULTS:
            return replace(cell, verdict="not run", why="a backend of yours is never killed; only its client is")
        if getattr(found, "mock", False) and fault.destroys > Domain.CLIENT:
            return replace(cell, verdict="not rated", why="a mock: it has no disk")
        if setting is None:
            continue
        try:
            commands = found(setting, _NOWHERE, lambda _name: 0).commands()
        except MissingProgram as error:
            return replace(cell, verdict="not run", why=str(error))
        served = served or any(command.role == "daemon" for command in commands)
    if fault.needs_server and not served:
        return replace(cell, verdict="–", why="an embedded store has no server; its writer is its server")
    if fault.recorded or cell.lane != "here":
        return replace(cell, verdict="not run", why="needs a machine that can be reset")
    return cell


def not_run(cell: Cell, why: str) -> Cell:
    """The cell as one that could have been, and was not."""
    return replace(cell, verdict="not run", why=why)


def plans(found: Sequence[Cell], asked: Asked, profile: Profile) -> list[TrialPlan]:
    """The trials of every cell that can be judged, round by round, numbered in that order; controls come first."""
    live = [cell for cell in found if cell.verdict is None]
    made = [_plan(cell, asked, profile, number) for number, cell in enumerate(_controls(profile, asked))]
    for _ in range(_rounds(len(live), asked, profile) if live else 0):
        for cell in live:
            made.append(_plan(cell, asked, profile, len(made)))
    return made


def _rounds(live: int, asked: Asked, profile: Profile) -> int:
    trials = asked.trials or (None if asked.budget_s else profile.trials)
    if trials is not None:
        return trials
    budget_s = asked.budget_s or profile.budget_s or 0
    return max(3, min(ROUNDS_MAX, int(budget_s / (0.2 * live))))


@dataclass(frozen=True)
class _Control:
    kind: str
    cell: Cell


def _controls(profile: Profile, asked: Asked) -> list[_Control]:
    """Trials whose outcome is known beforehand."""
    del asked
    kinds = {"negative": "none", "positive": "kill-client", "detector": "none"}
    return [
        _Control(kind, Cell(target, target, fault))
        for kind, fault in kinds.items()
        for target in targets_of(getattr(profile.controls, kind))[:1]
    ]


def _plan(what: Cell | _Control, asked: Asked, profile: Profile, number: int) -> TrialPlan:
    cell = what.cell if isinstance(what, _Control) else what
    control = what.kind if isinstance(what, _Control) else None
    peace = faults.load(cell.fault).destroys is Domain.NOTHING
    plan = TrialPlan(
        trial=number,
        seed=Random(f"{asked.seed}/{number}").getrandbits(48),
        metadata=cell.metadata,
        data=cell.data,
        workload="append" if control else asked.workload or profile.workload,
        fault=cell.fault,
        writers=1 if control else asked.writers or profile.writers,
        lane=cell.lane,
        filesystem=cell.filesystem,
        settle_s=0.0 if control else asked.settle_s,
        flush_delay_s=asked.flush_delay_s,
        server_kill=asked.server_kill,
        puts=profile.puts if peace else None,
        write_s=profile.write_s if peace else None,
        control=control,
    )
    return replace(plan, pace_s=_pace_s(cell, plan.victim))


def _pace_s(cell: Cell, victim: int) -> float:
    """Seconds from put to put, so that acknowledgements span 1.5 windows where a setting may lose a window."""
    destroys = faults.load(cell.fault).destroys
    windows = [setting.promise.may_lose_s.get(destroys, 0.0) for _, setting in (t.load() for t in cell.targets) if setting]
    return WINDOWS_SPANNED * max(windows, default=0.0) / (victim - 1)


@dataclass(frozen=True)
class Visit:
    """Trials that share one bring-up and one fresh directory."""

    plans: Sequence[TrialPlan]

    @property
    def key(self) -> tuple[Target, Target]:
        """The pair of targets that it brings up."""
        return self.plans[0].metadata, self.plans[0].data


def visits(some: Iterable[TrialPlan], rng: Random) -> list[Visit]:
    """The trials grouped by what must be brought up, at most 20 to a directory, in a shuffled order."""
    grouped: dict[tuple[Target, Target], list[TrialPlan]] = {}
    for plan in some:
        grouped.setdefault((plan.metadata, plan.data), []).append(plan)
    found = []
    for members in grouped.values():
        rng.shuffle(members)
        found += [Visit(members[at : at + VISIT_TRIALS]) for at in range(0, len(members), VISIT_TRIALS)]
    rng.shuffle(found)
    return found


def rounds(made: Sequence[TrialPlan], live: int, *, by_budget: bool) -> list[list[TrialPlan]]:
    """The plan's trials (without controls) round by round: one trial a cell by budget, a directory's worth by number."""
    trials = [plan for plan in made if plan.control is None]
    size = live * (1 if by_budget else VISIT_TRIALS)
    return [trials[at : at + size] for at in range(0, len(trials), size)] if size else []
