"""Which cells a campaign is about, which trials it plans for them, and in which order they run. Pure.

A round is one trial of every cell (a block of trials where their number was asked for). Within a round everything is
shuffled by the campaign's seed, so that a disk that changes its mind changes it for everybody.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - read when what was asked is read from a folder
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from durabench import fault as faults
from durabench import guest, workload
from durabench.redact import learn, shown
from durabench.service import Target
from durabench.trial import WINDOWS_SPANNED, TrialPlan
from durabench_backends import registry
from durabench_backends.contract import Domain
from durabench_backends.locate import MissingExtra, MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from durabench.profile import Profile
    from durabench_backends.contract import Command

VISIT_TRIALS = 20
"""Trials on one fresh directory; also the size of a round where a number of trials was asked for."""
ROUNDS_MAX = 368
RECORDINGS_MAX = 36
"""Most recordings of a cell that a budget is planned for."""
NOT_HERE = "this host is not reset: leave --lane out, or give guest, swap or loop"
HERE_ONLY = "processes are killed on this host only: leave --lane out"
IN_A_GUEST = "the server of a live guest is killed: leave --lane out, or give guest"
TOO_SLOW = "too heavy for a disk that answers flushes late: it does not come up within a minute"
SLOW_TRIALS = 2
"""Kills under late flushes in a round: each is a run of its own, of several seconds."""
CONTROL_PUTS = 12
CONTROL_STATES = 8
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
    recordings_max_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Its part of ``run.json``: URLs without their secrets."""
        names = ("backends", "metadata", "data")
        return {**asdict(self), **{name: [_recorded(each) for each in getattr(self, name)] for name in names}}


def _recorded(text: str) -> str:
    return shown(text) if "://" in text else text


@dataclass(frozen=True)
class Cell:
    """A pair of targets under a fault. ``verdict`` and ``why`` are set where nothing will be judged."""

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
    """The targets of ``NAME``, ``NAME:SETTING``, ``package.module:Class[:SETTING]`` or a URL. UnknownBackend,
    MissingExtra.
    """
    if "://" in text:
        learn(text)
        name = registry.name_for_url(text)
        found = registry.load(name)
        try:
            found.from_url(text)
        except ValueError as error:
            raise UsageError(f"{shown(text)}: {error}") from None
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
    """Every cell of the campaign, also those that cannot be judged here, with why. UsageError, UnknownBackend,
    UnknownFault.
    """
    _refuse_contradictions(asked)
    workload.load(asked.workload or profile.workload)
    by_name = bool(asked.backends or asked.metadata or asked.faults)
    wanted = [faults.load(name) for name in asked.faults or profile.faults]
    found = [
        cell
        for pair in _pairs(asked, profile.backends)
        for fault in wanted
        if not fault.needs_machine
        for cell in [_cell(pair, fault, asked, by_name=by_name)]
    ]
    # A machine is reset where that was asked for, and in the run of somebody who asked for nothing.
    recorded = [fault for fault in wanted if fault.needs_machine] or (
        [] if by_name else list(map(faults.load, profile.power.faults))
    )
    lack = guest.why_not() if recorded else None
    for text in (asked.filesystem,) if asked.filesystem else profile.power.filesystems:
        try:
            guest.parse_filesystem(text)
        except ValueError as error:
            raise UsageError(str(error)) from None
        for pair in _pairs(asked, profile.power.backends):
            found += [_recorded_cell(pair, fault, asked, text, lack, by_name=by_name) for fault in recorded]
    refuse_alike(target for cell in found for target in cell.targets)
    return list(dict.fromkeys(found))


def refuse_alike(targets: Iterable[Target]) -> None:
    """UsageError where two URLs of a backend read alike once their secrets are hidden: nobody could tell their results
    apart.
    """
    seen: dict[str, Target] = {}
    for target in targets:
        if seen.setdefault(target.label, target) != target:
            message = f"two URLs read as {target.where} once their secrets are hidden: give each a run of its own"
            raise UsageError(message)


def _cell(pair: tuple[Target, Target] | Cell, fault: faults.Fault, asked: Asked, *, by_name: bool) -> Cell:
    if isinstance(pair, Cell):
        return replace(pair, fault=fault.name, by_name=by_name)
    return _with_why(
        Cell(*pair, fault.name, lane=asked.lane or "here", filesystem=asked.filesystem, by_name=by_name), fault
    )


def _recorded_cell(
    pair: tuple[Target, Target] | Cell,
    fault: faults.Fault,
    asked: Asked,
    filesystem: str,
    lack: str | None,
    *,
    by_name: bool,
) -> Cell:
    lane = asked.lane or ("guest" if fault.late_flushes else guest.default_lane())
    if isinstance(pair, Cell):
        return replace(pair, fault=fault.name, by_name=by_name, lane=lane, filesystem=filesystem)
    cell = _with_why(Cell(*pair, fault.name, lane=lane, filesystem=filesystem, by_name=by_name), fault)
    if cell.verdict is not None:
        return cell
    why = IN_A_GUEST if fault.late_flushes and lane != "guest" else lack
    if not why and guest.is_heavy(cell.targets):
        why = TOO_SLOW if fault.late_flushes else guest.why_not_heavy(lane, filesystem)
    return not_run(cell, why) if why else cell


def _refuse_contradictions(asked: Asked) -> None:
    """Options that would be left unheeded are refused: a row must not claim what did not happen."""
    if asked.lane is not None and asked.lane not in LANES:
        message = f"unknown lane {asked.lane!r}; {registry.nearest(asked.lane, LANES)}"
        raise UsageError(message)
    recorded = any(faults.load(name).needs_machine for name in asked.faults)
    if not recorded and (asked.filesystem or asked.flush_delay_s or asked.settle_s):
        message = "--filesystem, --flush-delay and --settle are of a machine that is reset: give --fault cut-power too"
        raise UsageError(message)
    if asked.trials is not None and asked.budget_s is not None:
        message = "--trials and --budget exclude each other: give one"
        raise UsageError(message)
    if asked.budget_s is not None and asked.budget_s <= 0:
        message = "--budget must be more than nothing, such as 150s"
        raise UsageError(message)


def _pairs(asked: Asked, usual: Sequence[str]) -> Iterable[tuple[Target, Target] | Cell]:
    if bool(asked.metadata) != bool(asked.data):
        message = "--metadata and --data come together: give both, or --backend for one backend under both"
        raise UsageError(message)
    names = list(asked.backends) or ([] if asked.metadata else usual)
    for name in names:
        try:
            targets = targets_of(name)
        except MissingExtra as error:
            nothing = Target(name.partition(":")[0], name.partition(":")[2] or "*")
            yield Cell(nothing, nothing, "", verdict="not run", why=str(error))
            continue
        yield from ((target, target) for target in targets)
    metadata = [target for name in asked.metadata for target in targets_of(name)]
    data = [target for name in asked.data for target in targets_of(name)]
    yield from product(metadata, data)


def _with_why(cell: Cell, fault: faults.Fault) -> Cell:
    """The cell, with its verdict where it is known beforehand that nothing can be judged."""
    found = [target.load() for target in cell.targets]
    if any(target.url for target in cell.targets) and fault.name not in URL_FAULTS:
        return not_run(cell, "a backend of yours is never killed; only its client is")
    if any(getattr(backend, "mock", False) for backend, _ in found) and fault.destroys > Domain.CLIENT:
        return replace(cell, verdict="not rated", why="a mock: it has no disk")
    try:
        for target in cell.targets:
            registry.require(target.backend)
        served = any(command.role == "daemon" for target in cell.targets for command in _commands(target))
    except (MissingProgram, MissingExtra) as error:
        return not_run(cell, str(error))
    if fault.needs_server and not served:
        return replace(cell, verdict="–", why="an embedded store has no server; its writer is its server")
    if fault.needs_machine == (cell.lane == "here"):
        return not_run(cell, NOT_HERE if fault.needs_machine else HERE_ONLY)
    return cell


def not_run(cell: Cell, why: str) -> Cell:
    """The cell as one that could have been, and was not."""
    return replace(cell, verdict="not run", why=why)


def plans(found: Sequence[Cell], asked: Asked, profile: Profile) -> list[TrialPlan]:
    """The trials of every cell that can be judged, numbered in the order in which they run; controls come first."""
    live = [cell for cell in found if cell.verdict is None]
    here = [cell for cell in live if not faults.load(cell.fault).needs_machine]
    on_disk = [cell for cell in live if faults.load(cell.fault).needs_machine]
    made: list[TrialPlan] = []
    if here:
        made += _controls(asked, profile)
    times = round_trials(here, 1 if asked.trials or not (asked.budget_s or profile.budget_s) else profile.round_kills)
    for _ in range(_rounds(sum(times), asked, profile) if here else 0):
        made += [_plan(cell, asked, profile) for cell, number in zip(here, times, strict=True) for _ in range(number)]
    if on_disk:
        made += _power_controls(on_disk, asked, profile)
        made += _recordings(on_disk, asked, profile)
    return [_numbered(plan, number, asked) for number, plan in enumerate(made)]


def _numbered(plan: TrialPlan, number: int, asked: Asked) -> TrialPlan:
    """With its number, its own seed, and the pace that its victim needs."""
    return paced(replace(plan, trial=number, seed=Random(f"{asked.seed}/{number}").getrandbits(48)))


def paced(plan: TrialPlan) -> TrialPlan:
    """The plan with the pace that its victim needs."""
    last = plan.puts if faults.load(plan.fault).recorded and plan.puts else plan.victim
    return replace(plan, pace_s=_pace_s(plan, last))


def _rounds(live: int, asked: Asked, profile: Profile) -> int:
    trials = asked.trials or (None if asked.budget_s else profile.trials)
    if trials is not None:
        return trials
    budget_s = asked.budget_s or profile.budget_s or 0
    return max(3, min(ROUNDS_MAX, int(budget_s / (0.2 * live))))


def round_trials(found: Iterable[Cell | TrialPlan], round_kills: int) -> list[int]:
    """How many trials each cell gets in a round: one in peace, ``round_kills`` where something dies."""
    return [1 if faults.load(cell.fault).destroys is Domain.NOTHING else round_kills for cell in found]


def _plan(cell: Cell, asked: Asked, profile: Profile) -> TrialPlan:
    fault = faults.load(cell.fault)
    peace = fault.destroys is Domain.NOTHING
    return TrialPlan(
        trial=0,
        seed=0,
        metadata=cell.metadata,
        data=cell.data,
        workload=asked.workload or profile.workload,
        fault=cell.fault,
        writers=asked.writers or profile.writers,
        lane=cell.lane,
        filesystem=cell.filesystem,
        settle_s=asked.settle_s,
        flush_delay_s=asked.flush_delay_s or (faults.LATE_FLUSH_S if fault.late_flushes else 0.0),
        server_kill=asked.server_kill,
        puts=profile.puts if peace else None,
        write_s=profile.write_s if peace else None,
    )


def _controls(asked: Asked, profile: Profile) -> list[TrialPlan]:
    """Trials whose outcome is known beforehand."""
    kinds = {"negative": "none", "positive": "kill-client", "detector": "none"}
    return [
        replace(
            _plan(Cell(target, target, fault), asked, profile), workload="append", writers=1, settle_s=0.0, control=kind
        )
        for kind, fault in kinds.items()
        for target in targets_of(getattr(profile.controls, kind))[:1]
    ]


def _power_controls(found: Sequence[Cell], asked: Asked, profile: Profile) -> list[TrialPlan]:
    """Crash states whose outcome is known, in every lane and on every file system that is used: the right way survives,
    no flush loses, a lying drive loses even the right way.
    """
    # Images are looked at where that is fastest, also where a server is killed alive.
    fastest = asked.lane or guest.default_lane()
    where = [(fastest if faults.load(cell.fault).late_flushes else cell.lane, cell.filesystem) for cell in found]
    negative, positive = (
        targets_of(name)[0] for name in (profile.power.controls.negative, profile.power.controls.positive)
    )
    made = []
    for lane, filesystem in dict.fromkeys(where):
        for target, fault, control in (
            (negative, "cut-power", "negative"),
            (negative, "lying-drive", "positive"),
            (positive, "cut-power", "positive"),
        ):
            plan = _plan(Cell(target, target, fault, lane=lane, filesystem=filesystem), asked, profile)
            name = f"control-{target.label}-{lane}-{filesystem}".replace(":", "_")
            plan = replace(plan, workload="append", writers=1, settle_s=0.0, flush_delay_s=0.0, puts=CONTROL_PUTS)
            made += [replace(plan, control=control, recording=name)] * CONTROL_STATES
    return made


def _recordings(found: Sequence[Cell], asked: Asked, profile: Profile) -> list[TrialPlan]:
    """Round by round one recording of every pair and file system, with its crash states under every fault."""
    grouped: dict[tuple[Target, Target, str | None], list[Cell]] = {}
    for cell in found:
        grouped.setdefault((cell.metadata, cell.data, cell.filesystem), []).append(cell)
    trials = asked.trials or (None if asked.budget_s else profile.power.trials)
    number = RECORDINGS_MAX if trials is None else min(trials, profile.power.recordings)
    made: list[TrialPlan] = []
    for round_number in range(number):
        for members in grouped.values():
            states = _states(members[0], profile) if trials is None else len(range(round_number, trials, number))
            for cell in members:
                name = f"{asked.seed}-{round_number}-{cell.label.replace(' + ', '+')}-{cell.filesystem}"
                name = name.replace(":", "_")
                plan = replace(_plan(cell, asked, profile), write_s=None)
                if faults.load(cell.fault).late_flushes:
                    # Each is a run of its own, and has the disk to itself.
                    times = SLOW_TRIALS if trials is None else states
                    made += [replace(plan, recording=f"{name}-{cell.fault}-{each}") for each in range(times)]
                else:
                    made += [replace(plan, puts=profile.power.puts, recording=name)] * states
    return made


def _states(cell: Cell, profile: Profile) -> int:
    """How many crash states of a recording a budget is spent on: a server takes longer than a file to open."""
    served = any(command.role == "daemon" for target in cell.targets for command in _commands(target))
    return profile.power.server_states if served else profile.power.states


def _commands(target: Target) -> Sequence[Command]:
    found, setting = target.load()
    return [] if setting is None else found(setting, _NOWHERE, lambda _name: 0).commands()


def _pace_s(plan: TrialPlan, last: int) -> float:
    """Seconds from put to put, so that acknowledgements up to put ``last`` span 1.5 windows where one may be lost; and
    where flushes are late a part of one more, drawn: what waits for it is written at times of its own, and a strike
    that always came just after one would never find anything waiting.

    Crash states of one recording share its pace: that of a power cut.
    """
    fault = faults.load(plan.fault)
    destroys = Domain.DRIVE if fault.recorded else fault.destroys
    loaded = [target.load()[1] for target in plan.targets.values()]
    windows = [setting.promise.may_lose_s.get(destroys, 0.0) for setting in loaded if setting]
    window_s = max(windows, default=0.0)
    drawn = Random(f"{plan.seed}/late").random() if fault.late_flushes and window_s else 0.0
    late_s = plan.flush_delay_s * drawn
    return (WINDOWS_SPANNED * window_s + late_s) / (last - 1)


@dataclass(frozen=True)
class Visit:
    """Trials that share one bring-up and one fresh directory."""

    plans: Sequence[TrialPlan]

    @property
    def key(self) -> tuple[Target, Target]:
        """The pair of targets that it brings up."""
        return self.plans[0].metadata, self.plans[0].data


def visits(some: Iterable[TrialPlan], rng: Random) -> list[Visit]:
    """The trials grouped by what must be brought up, at most 20 to a directory, in a shuffled order; those in which
    nothing is killed come first, on a directory that nothing was killed on.
    """
    grouped: dict[tuple[Target, Target], list[TrialPlan]] = {}
    for plan in some:
        grouped.setdefault((plan.metadata, plan.data), []).append(plan)
    found = []
    for members in grouped.values():
        rng.shuffle(members)
        members.sort(key=lambda plan: faults.load(plan.fault).destroys is not Domain.NOTHING)
        found += [Visit(members[at : at + VISIT_TRIALS]) for at in range(0, len(members), VISIT_TRIALS)]
    rng.shuffle(found)
    return found


def rounds(made: Sequence[TrialPlan], *, by_budget: bool, round_kills: int = 1) -> list[list[TrialPlan]]:
    """The plan's trials (without controls) by rounds: one trial a cell in peace and ``round_kills`` under a kill by
    budget, a directory's worth by number.
    """
    trials = [plan for plan in made if plan.control is None and plan.recording is None]
    live = list({(plan.metadata, plan.data, plan.fault): plan for plan in trials}.values())
    size = sum(round_trials(live, round_kills)) if by_budget else len(live) * VISIT_TRIALS
    return [trials[at : at + size] for at in range(0, len(trials), size)] if size else []


Key = tuple[Target, Target, str | None]
"""What is given up together: a pair of targets, and the file system made for it, None on the disk under test."""


def key_of(plan: TrialPlan) -> Key:
    """Of a trial's pair, and of the file system that its crash state is on."""
    return plan.metadata, plan.data, plan.filesystem if plan.recording is not None else None


def recordings(made: Sequence[TrialPlan]) -> list[list[TrialPlan]]:
    """The crash states of the plan, grouped by the recording that they are of, in the order of the plan."""
    grouped: dict[str, list[TrialPlan]] = {}
    for plan in made:
        if plan.recording is not None:
            grouped.setdefault(plan.recording, []).append(plan)
    return list(grouped.values())
