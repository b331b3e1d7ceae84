"""The command ``run`` from what was asked to an exit status; also ``--resume`` and ``replay``, which run the same
trials.

Everything that can be refused is refused before anything is started.
"""

from __future__ import annotations

import platform
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import durabench_vm as vm
from durabench import campaign, device, fault, judgement, outside, profile, recorded, results, schedule, stored
from durabench.campaign import Campaign, Interrupted, Prepared
from durabench.ground import Ground
from durabench.guest import Laboratory, NoMachine, parse_filesystem
from durabench.login import Logins, recorded_as
from durabench.process import HarnessError
from durabench.service import promise_from
from durabench.trial import Outcome, TrialPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from durabench.history import Event
    from durabench.row import Row
    from durabench.schedule import Asked, Cell
    from durabench.service import Target

LOCAL = Path("results") / "local"
OLDEST_LINUX = (5, 3)


@dataclass(frozen=True)
class Options:
    """What a person chose about where and how, beside what is tested."""

    asked: Asked
    profile: str = "quick"
    directory: Path | None = None
    out: Path | None = None
    resume: Path | None = None
    driver: str = "forked"
    password_file: Path | None = None
    """Holds the password of a URL of a run that is resumed."""
    command: Sequence[str] = field(default_factory=lambda: sys.argv)


@dataclass(frozen=True)
class Ran:
    """How a run ended: its folder, still open, whether it was interrupted, and what stands against trusting it (exit
    3).
    """

    folder: results.Folder
    not_run: Sequence[Mapping[str, Any]] = ()
    interrupted: bool = False
    doubts: Sequence[str] = ()
    not_kept: Mapping[str, str] = field(default_factory=dict)
    """Recordings of losing trials that are not kept, and why."""


class Unsupported(RuntimeError):
    """This system cannot run trials (exit 3)."""


def require_linux() -> None:
    """Unsupported unless this is Linux of a version that has pidfds for all."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if platform.system() != "Linux" or release < OLDEST_LINUX:
        here = f"{platform.system()} {platform.release()}"
        message = f"trials need Linux 5.3 or newer, this is {here}; report, compare and judge work here"
        raise Unsupported(message)


def new_seed() -> int:
    """A seed nobody chose."""
    return secrets.randbelow(1 << 31)


def run(options: Options, say: Callable[[str], None], progress: Callable[[int, int, str], None]) -> Ran:
    """Prepare, run, and write the folder up to but without ``done.json`` (`finish` does, when the exit status is
    known).

    Raises what the CLI turns into one line: UsageError, ProfileError, UnknownBackend, results.REFUSALS, ResultsFull, …
    """
    require_linux()
    if options.resume:
        options = _as_begun(options)
    chosen = profile.load(options.profile)
    asked = options.asked
    cells = schedule.cells(asked, chosen)
    plans = schedule.plans(cells, asked, chosen)
    workload = asked.workload or chosen.workload
    _refuse_taken(options.out)
    place = options.directory or (options.out.parent if options.out else LOCAL)
    ground = _ground(place, options)
    # One pool for everything: what a thread has started dies when that thread ends.
    executor = ThreadPoolExecutor(chosen.at_once)
    try:
        facts = results.machine_facts(ground.scratch)
        host = facts["id"]
        if device.shared():
            facts["device"] = {**facts["device"], "shared": True}
            say(f"{device.SHARE} is set: other campaigns may work on this device, and its latencies are theirs too")
        say(f"seed {asked.seed}; disk under test: {facts['filesystem']} on {facts['device']['name']} at {place}")
        prepared = _prepare_all(cells, plans, ground, workload, executor, say)
        cells = [_not_up(cell, prepared) for cell in cells]
        document = _run_json(options, asked, plans, cells, prepared, facts, workload)
        folder = _folder(options, document, host, ground)
        say(f"results go to {folder.path}")
        if not asked.budget_s and chosen.budget_s is None:
            say(
                f"{len(plans)} trials, about {_hours(plans, prepared, chosen.at_once)}; --resume goes on where it stops"
            )
        doubts = _doubts(facts, options)
        budget_s = None if asked.trials else asked.budget_s or chosen.budget_s
        going = Campaign(
            folder,
            ground,
            cells,
            _runnable(plans, cells),
            workload,
            prepared,
            facts,
            asked.seed,
            budget_s,
            chosen.dear_trials,
            chosen.dear_every_rounds,
            chosen.round_kills,
            executor,
            chosen.at_once,
            say,
            progress,
            power_budget_s=_power_budget_s(asked, chosen),
            recordings_max_bytes=_recordings_max_bytes(asked, chosen),
            latency_matters=facts["latency"] is None,
        )
        return _carry_out(going, options, doubts)
    finally:
        ground.dismiss(executor)
        ground.close()


def _hours(plans: Sequence[TrialPlan], prepared: Mapping[Target, Prepared], at_once: int) -> str:
    """A rough forecast, from how long each target took to come up: a killed server takes as long again."""
    crash_state_s, recording_s, put_s = 0.2, 20.0, 0.05
    recordings = len(schedule.recordings(plans))
    seconds = recordings * recording_s
    for plan in plans:
        up_s = max(prepared[target].seconds for target in plan.targets.values())
        seconds += crash_state_s if plan.recording else put_s + up_s / 4 + plan.pace_s * plan.victim
    hours = seconds / at_once / 3600
    return f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"


def _power_budget_s(asked: Asked, chosen: profile.Profile) -> float | None:
    """The power pass's own budget: the profile's, stretched as the other one was; the asked one where it has none."""
    if asked.trials:
        return None
    if chosen.power.budget_s is None:
        return asked.budget_s
    return chosen.power.budget_s * (asked.budget_s / chosen.budget_s if asked.budget_s and chosen.budget_s else 1)


def _recordings_max_bytes(asked: Asked, chosen: profile.Profile) -> int:
    usual = int(chosen.power.recordings_mib * 2**20)
    return usual if asked.recordings_max_bytes is None else asked.recordings_max_bytes


def _refuse_taken(out: Path | None) -> None:
    """Said before anything is brought up; `results.Folder.create_at` asks again, under its lock."""
    if out is not None and out.is_dir() and not results.is_free(out):
        message = f"{out} is not empty; --out takes a new or empty folder, --resume goes on with an unfinished run"
        raise results.NotEmpty(message)


def _as_begun(options: Options) -> Options:
    """The options of the run that is to be resumed, as its ``run.json`` has them."""
    folder = results.Folder.open(options.resume or LOCAL)
    results.refuse_finished(folder)
    begun = folder.run
    _need(folder, begun, "asked", "profile", "driver")
    unknown = [name for name in begun["asked"] if name not in {field.name for field in fields(schedule.Asked)}]
    if unknown:
        message = f"{folder.path} is no run that can be gone on with: it was asked for {unknown[0]}; start a new one"
        raise schedule.UsageError(message)
    try:
        asked = msgspec.convert(begun["asked"], schedule.Asked)
    except msgspec.ValidationError as error:
        raise _malformed(folder, f"asked: {outside.wrong(error)}") from None
    given = options.asked
    logins = Logins((*given.backends, *given.metadata, *given.data), options.password_file)
    logins.refuse_others((*asked.backends, *asked.metadata, *asked.data))
    backends, metadata, data = map(logins.all_of, (asked.backends, asked.metadata, asked.data))
    asked = replace(asked, backends=backends, metadata=metadata, data=data)
    directory = Path(begun["directory"]) if begun.get("directory") else None
    return replace(options, asked=asked, profile=begun["profile"], directory=directory, driver=begun["driver"])


def _need(folder: results.Folder, document: Mapping[str, Any], *names: str) -> None:
    """Malformed where run.json lacks what a command needs of it."""
    lacks = [name for name in names if document.get(name) is None]
    if lacks:
        raise _malformed(folder, f"it has no {', '.join(lacks)}")


def _malformed(folder: results.Folder, why: str) -> results.Malformed:
    message = f"{folder.path}/run.json is not what durabench writes: {why}; {stored.MEND}"
    return results.Malformed(message)


def _carry_out(going: Campaign, options: Options, doubts: list[str]) -> Ran:
    only = frozenset(going.folder.remaining()) if options.resume else None
    try:
        going.run(only)
    except Interrupted:
        going.folder.close()
        return Ran(going.folder, interrupted=True)
    doubts += [f"a control failed: {name}" for name in going.failed_controls()]
    doubts += dict.fromkeys([*(one.error for one in going.prepared.values() if one.error), *going.errors])
    missing = campaign.cells_json(going.not_run(), going.prepared, going.workload, going.facts)
    return Ran(going.folder, missing, doubts=doubts, not_kept=going.shelf.not_kept)


def _ground(place: Path, options: Options) -> Ground:
    try:
        return Ground(place, options.driver, alone=True)
    except OSError as error:
        message = f"the disk under test, {place}, cannot be written to: {error.strerror}; choose another with --dir"
        raise schedule.UsageError(message) from error


def _prepare_all(
    cells: Sequence[Cell],
    plans: Sequence[TrialPlan],
    ground: Ground,
    workload: str,
    executor: Executor,
    say: Callable[[str], None],
) -> dict[Target, Prepared]:
    """Bring every target up once, several at a time: what does not come up is known before the first trial."""
    wanted = {target for cell in cells if cell.verdict is None for target in cell.targets}
    wanted |= {target for plan in plans for target in plan.targets.values()}
    began = time.monotonic()
    found = list(executor.map(lambda target: campaign.prepare(target, ground, workload), sorted(wanted, key=str)))
    say(f"brought up {len(found)} settings once in {time.monotonic() - began:.0f} s")
    for one in found:
        if one.why_not:
            say(f"{one.target.label} does not come up: {one.why_not}")
    return {one.target: one for one in found}


def _not_up(cell: Cell, prepared: Mapping[Target, Prepared]) -> Cell:
    whys = [why for target in cell.targets if target in prepared and (why := prepared[target].why_not)]
    return schedule.not_run(cell, whys[0]) if whys and cell.verdict is None else cell


def _runnable(plans: Sequence[TrialPlan], cells: Sequence[Cell]) -> list[TrialPlan]:
    live = {(*cell.targets, cell.fault) for cell in cells if cell.verdict is None}
    return [plan for plan in plans if plan.control or (plan.metadata, plan.data, plan.fault) in live]


def _doubts(facts: Mapping[str, Any], options: Options) -> list[str]:
    if facts["latency"] is None or options.directory is not None:
        return []
    return [f"{facts['latency']}, and nobody chose it; choose the disk under test with --dir"]


def _run_json(
    options: Options,
    asked: Asked,
    plans: Sequence[TrialPlan],
    cells: Sequence[Cell],
    prepared: Mapping[Target, Prepared],
    facts: Mapping[str, Any],
    workload: str,
) -> dict[str, Any]:
    return {
        "profile": options.profile,
        "seed": asked.seed,
        "command": results.redact_argv(["durabench", *options.command[1:]]),
        "commit": results.commit_facts(),
        "machine": dict(facts),
        "versions": {one.target.label: campaign.versions_of(one) for one in prepared.values()},
        "targets": {one.target.label: one.as_json() for one in prepared.values()},
        "promises": campaign.promises_of(prepared),
        "driver": options.driver,
        "asked": asked.as_json(),
        "directory": None if options.directory is None else str(options.directory),
        "cells": campaign.cells_json(cells, prepared, workload, facts),
        "plan": [plan.as_json() for plan in plans],
    }


def _folder(options: Options, document: Mapping[str, Any], host: str, ground: Ground) -> results.Folder:
    if options.resume:
        folder = results.Folder.resume(options.resume, document)
    elif options.out:
        folder = results.Folder.create_at(options.out)
    else:
        folder = results.Folder.create(LOCAL, options.profile, host)
    folder.forget = str(ground.scratch)
    if not options.resume:
        folder.begin(document)
    return folder


def replay(
    folder: results.Folder,
    trial: int,
    directory: Path | None,
    say: Callable[[str], None],
    logins: Logins | None = None,
) -> list[Row]:
    """Run one stored plan row again, here and now, and return its rows; nothing is written to the folder. ``logins``
    has the secrets of its URLs.
    """
    require_linux()
    planned = {row["trial"]: row for row in folder.plan()}
    if trial not in planned:
        message = f"{folder.path} has no trial {trial}; it planned {len(planned)}, numbered from 0"
        raise schedule.UsageError(message)
    plan = replace(_planned(folder, planned[trial]), attempt=2)
    _refuse_unlike(folder, plan)
    _need(folder, folder.run, "machine")
    logins = logins or Logins()
    logins.refuse_others(target.url for target in plan.targets.values() if target.url)
    plan = replace(plan, metadata=recorded_as(plan.metadata, logins), data=recorded_as(plan.data, logins))
    if plan.recording is not None:
        return _replay_recorded(folder, plan, directory, say)
    ground = Ground(directory or folder.path.parent)
    outcomes: list[Outcome] = []
    failures: list[str] = []

    def tell(mail: Any) -> None:
        if isinstance(mail, Outcome):
            outcomes.append(mail)
        else:
            failures.append(mail[1])

    try:
        prepared = {target: campaign.prepare(target, ground, plan.workload) for target in set(plan.targets.values())}
        say(f"trial {trial}: {plan.metadata.label} {plan.fault}, seed {plan.seed}, victim put {plan.victim}")
        campaign.run_visit(schedule.Visit([plan]), ground, tell, threading.Event())
    finally:
        ground.close()
    if failures:
        raise HarnessError(failures[0])
    held = campaign.held(plan, prepared)
    return judgement.rows(outcomes[0], held, folder.run["machine"]["id"], str(folder.path))


def _replay_recorded(
    folder: results.Folder, plan: TrialPlan, directory: Path | None, say: Callable[[str], None]
) -> list[Row]:
    """The same crash image from the stored recording, recovered and judged again; a kill on a slow drive once more."""
    before = next((row for row in folder.trials() if row["trial"] == plan.trial), None)
    late = fault.load(plan.fault).late_flushes
    name = str(before["recording"] if before else plan.recording)
    if before is None or not (late or folder.has_recording(name)):
        usual = "only those that lost something are, as far as there is room: --max-recordings"
        why = (folder.done or {}).get("recordings_not_kept", {}).get(name, usual)
        message = f"trial {plan.trial} cannot be replayed: its recording is not kept ({why})"
        raise schedule.UsageError(message)
    held = _held(folder, plan)
    events = [] if late else _events(folder, plan, before["attempt"])
    where = f"victim put {plan.victim}" if late else f"recording {name}, position {before['position']}"
    say(f"trial {plan.trial}: {plan.metadata.label} {plan.fault}, {where}")
    ground = Ground(directory or folder.path.parent)
    try:
        laboratory = Laboratory(ground, say)
        try:
            if late or plan.lane != "loop":
                laboratory.prepare(plan.targets.values(), [plan.filesystem], plan.workload)
            if late:
                outcome = recorded.kill_on_slow_drive(plan, laboratory)
            else:
                path = folder.path / "recordings" / f"{name}.gz"
                outcome = recorded.again(path, plan, events, _state(folder, before), laboratory)
        finally:
            laboratory.close()
    except (NoMachine, vm.RecordingError) as error:
        raise HarnessError(str(error)) from error
    finally:
        ground.close()
    return judgement.rows(outcome, held, before["host"], str(folder.path))


def _planned(folder: results.Folder, row: Mapping[str, Any]) -> TrialPlan:
    """The plan of a trial, from run.json. Malformed."""
    try:
        return TrialPlan.from_json(row)
    except ValueError as error:
        raise _malformed(folder, f"trial {row['trial']} of the plan: {outside.wrong(error)}") from None


def _refuse_unlike(folder: results.Folder, plan: TrialPlan) -> None:
    """Malformed where the plan of a trial names a lane or a file system that is none. UnknownFault."""
    needs_machine = fault.load(plan.fault).needs_machine
    try:
        parse_filesystem(plan.filesystem)
    except ValueError as error:
        raise _malformed(folder, f"trial {plan.trial} of the plan: {outside.shown(str(error))}") from None
    if plan.lane not in schedule.LANES or needs_machine != (plan.recording is not None):
        where = f"{plan.fault} in lane {outside.quoted(plan.lane)}"
        raise _malformed(folder, f"trial {plan.trial} of the plan is {where}, recording {plan.recording}")


def _events(folder: results.Folder, plan: TrialPlan, attempt: int) -> list[Event]:
    """The stored history of a trial, complete enough to be judged. FileNotFoundError, Malformed."""
    events = folder.history(plan.trial, attempt)
    try:
        stored.refuse_incomplete(events)
    except ValueError as error:
        message = f"the history of trial {plan.trial} in {folder.path} is not what durabench writes: {error}"
        raise results.Malformed(message) from None
    return events


def _state(folder: results.Folder, row: Row) -> vm.CrashState:
    """The crash state that a row is of. Malformed."""
    try:
        return recorded.state_from(row["state"] or "", row["position"] or 0)
    except ValueError:
        state = outside.quoted(row["state"])
        message = f"{folder.path}/trials.jsonl: trial {row['trial']}: {state} is no crash state; {stored.MEND}"
        raise results.Malformed(message) from None


def judge_again(folder: results.Folder) -> list[tuple[Row, Row | None]]:
    """Every recorded row with the row that its stored history gives now, None where that is gone. Runs nothing."""
    plans = {row["trial"]: row for row in folder.plan()}
    promises = folder.run.get("promises") or {}
    _refuse_nameless(promises, [_planned(folder, row) for row in plans.values()])
    found: list[tuple[Row, Row | None]] = []
    for before in folder.each_trial():
        if before[0]["trial"] not in plans:
            raise _malformed(folder, f"it did not plan trial {before[0]['trial']}, of which there are rows")
        plan = _planned(folder, plans[before[0]["trial"]])
        try:
            events = _events(folder, plan, before[0]["attempt"])
        except FileNotFoundError:
            found += [(row, None) for row in before]
            continue
        held = _held(folder, plan, promises)
        outcome = Outcome(plan, events, driver=str(before[0]["driver"]))
        again = {row["namespace"]: row for row in judgement.rows(outcome, held, before[0]["host"], str(folder.path))}
        found += [(row, again[row["namespace"]]) for row in before]
    return found


def _held(
    folder: results.Folder, plan: TrialPlan, promises: Mapping[str, Any] | None = None
) -> dict[str, judgement.Held]:
    """What each namespace was promised when the run began. Schemas 1 and 2 have no URL in the names of promises.
    Malformed where run.json does not say.
    """
    known = (folder.run.get("promises") if promises is None else promises) or {}
    held = {}
    for name, target in plan.targets.items():
        try:
            found = known[target.label if target.label in known else _plain_label(target)]
            held[name] = judgement.Held(promise_from(found), bool(found["versions"]))
        except (KeyError, AttributeError):
            raise _malformed(folder, f"it does not say what {outside.quoted(target.label)} promises") from None
    return held


def _refuse_nameless(promises: Mapping[str, Any], plans: Iterable[TrialPlan]) -> None:
    """HarnessError where one promise was written down for two URLs: whose it is nobody knows."""
    targets = {target for plan in plans for target in plan.targets.values() if target.label not in promises}
    labels = [_plain_label(target) for target in targets]
    shared = sorted({label for label in labels if labels.count(label) > 1})
    if shared:
        message = f"this run of an older durabench wrote one promise for two URLs of {', '.join(shared)}: run it again"
        raise HarnessError(message)


def _plain_label(target: Target) -> str:
    return f"{target.backend}:{target.setting}"
