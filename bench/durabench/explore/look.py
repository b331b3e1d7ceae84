"""The states of a log, judged: by a person's own check, or by whether what was acknowledged is still as it was."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from durabench import process
from durabench.explore.report import Finding, Losing, Missing
from durabench.explore.trail import Suspect, Trail, group, named, paths_of, suspects
from durabench_model.folder import Folder
from durabench_model.log import BYTES, NAMES, Log
from durabench_model.rules import Model
from durabench_model.states import DRAWN, Class, Profile, State, Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

CHECK_S = 30.0
"""Longest wait for a check of one state."""
ACKNOWLEDGED, ROOT = "DURABENCH_ACKNOWLEDGED", "DURABENCH_ROOT"
"""What a check finds in its environment: a file of marks, one JSON a line, and the folder, which it stands in."""
SOUND, LOST = 0, 1
KEPT_STATES = 20


class Hangs(process.HarnessError):
    """The check did not end in time."""


@dataclass
class Check:
    """A person's own check of a folder: exit status 0 sound, 1 lost, anything else broken."""

    command: Sequence[str]
    scratch: Path
    folder: Folder = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Folder(self.scratch / "state")

    def ask(self, tree: Tree, marks: Sequence[object]) -> str:
        """Why a state loses; empty where it is sound. Hangs after `CHECK_S`."""
        self.folder.take_on(tree)
        told = self.scratch / "acknowledged"
        told.write_text("".join(json.dumps(mark) + "\n" for mark in marks))
        environment = {**os.environ, ACKNOWLEDGED: str(told), ROOT: str(self.folder.path)}
        log = self.scratch / "check.log"
        log.unlink(missing_ok=True)
        started = process.start(self.command, env=environment, cwd=self.folder.path, log=log)
        try:
            code = started.wait(CHECK_S)
        except process.Hung:
            raise Hangs(f"the check did not end within {CHECK_S:g} s on one state; is it waiting for input?") from None
        finally:
            started.close()
        if code == SOUND:
            return ""
        said = process.tail(log, 1).partition(": ")[2]
        return f"{'lost' if code == LOST else f'broken ({code})'}{': ' if said else ''}{said}"


@dataclass
class Seen:
    """What was seen of the states so far."""

    states: int = 0
    losing: list[Losing] = field(default_factory=list)
    shown: list[tuple[Losing, set[str]]] = field(default_factory=list)  # which suspects each losing state shows
    trees: dict[int, Tree] = field(default_factory=dict)  # of the first losing states, by number


class Look:
    """One log under one profile."""

    def __init__(self, log: Log, base: Path, profile: Profile, trail: Trail, *, end: int) -> None:
        """`end`: the position at which the program had ended."""
        self.log, self.trail, self.end = log, trail, end
        self.model = Model(log, base, profile)
        self._reference = Model(log, base, profile)  # what the program saw, at the same positions
        gaps = log.gaps(1, end)
        self.promises = [gap.first for gap in gaps[1:]] or [end]
        self.suspects = suspects(trail, Model(log, base, profile), self.promises, end)
        self._by_group: dict[str, list[Suspect]] = defaultdict(list)
        for each in self.suspects:
            self._by_group[group(trail, each)].append(each)
        self._invented: dict[str, Suspect] = {}
        self.seen = Seen()

    # --- which states

    def states(self, count: int, seed: int, *, crash_points: bool = False) -> Iterator[State]:
        """The least at every place that looks bad, then all gaps in rounds."""
        rng = Random(seed)
        first = [State(each.since, Class.NONE) for those in self._by_group.values() for each in those[:3]]
        yield from dict.fromkeys(chain(first, self._around_the_half_done(rng)))
        if crash_points:
            for position in range(2, self.end + 1):
                yield State(position, Class.ALL)
                yield State(position, Class.TORN_HEAD, position)
        gaps = self.log.gaps(self.promises[0], self.end)
        for round_number in range(-(-count // max(1, len(gaps))) * 4):
            for gap in rng.sample(gaps, len(gaps)):
                position = gap.first if round_number < 2 else rng.randint(gap.first, gap.last)
                yield State(position, rng.choice(DRAWN), rng.getrandbits(32), rng.choice((512, 4096)))

    def _around_the_half_done(self, rng: Random) -> Iterator[State]:
        for those in self._by_group.values():
            for each in those[:3]:
                if each.missing in {"order", "atomicity"}:
                    for kind in (Class.NONE, Class.NAMES, Class.ALL, Class.PREFIX, Class.SUBSET, Class.HOLE):
                        for position in {each.index + 1, min(each.index + 2, self.end), each.until}:
                            yield State(position, kind, rng.getrandbits(32), 4096)

    # --- judging

    def judge(self, states: Iterable[State], count: int, check: Check | None) -> None:
        """Judge up to so many different states; what was seen before an error stays."""
        different: set[tuple[bytes, int]] = set()
        for state in states:
            if len(different) >= count:
                return
            tree = self.model.build(state)
            key = tree.digest(), self.log.gap(state.position)
            if key in different:
                continue
            different.add(key)
            if check is None:
                shown = self._by_comparison(state, tree)
                why = f"{', '.join(sorted({self._path(each) for each in shown}))} not as acknowledged" if shown else ""
            else:
                why = check.ask(tree, self.log.acknowledged(state.position))
                shown = self._explained(state, tree) if why else set()
            self.seen.states += 1
            if why:
                self._lost(state, tree, why, shown)

    def _lost(self, state: State, tree: Tree, why: str, shown: set[str]) -> None:
        number = len(self.seen.losing) + 1
        lost = Losing(number, state.position, str(state.kind), state.seed, state.unit, why, tree.needs or None)
        self.seen.losing.append(lost)
        self.seen.shown.append((lost, shown))
        if number <= KEPT_STATES:
            self.seen.trees[number] = tree

    def _path(self, name: str) -> str:
        return (self._by_group[name][0] if name in self._by_group else self._invented[name]).path

    def _open(self, position: int) -> Iterator[tuple[str, Suspect]]:
        """The suspects that may show at a position."""
        for name, those in self._by_group.items():
            for each in those:
                if each.since <= position <= each.until:
                    yield name, each

    def _by_comparison(self, state: State, tree: Tree) -> set[str]:
        """The suspects whose path is not as it was acknowledged. Paths that were changed since are in doubt, unless
        they were to be replaced whole: then old and new are right.
        """
        if state.position < self.promises[0]:
            return set()
        model = self._reference
        now = model.build(State(state.position, Class.ALL))
        touched = self._touched(max(each for each in self.promises if each <= state.position), state.position)
        wrong = set()
        for name, each in self._open(state.position):
            if each.missing not in {"order", "atomicity"}:
                if each.path not in touched and not _same(tree, now, each.path):
                    wrong.add(name)
            elif state.position > each.index:
                before, after = (model.build(State(position, Class.ALL)) for position in (each.since, each.until))
                if not (_same(tree, before, each.path) or _same(tree, after, each.path)):
                    wrong.add(name)
        return wrong

    def _touched(self, begin: int, end: int) -> set[str]:
        """The paths that were changed between two positions."""
        model = self._reference
        paths, found = paths_of(model), set()
        for entry in self.log.entries[begin:end]:
            if entry.kind in BYTES and entry.a in paths:
                found.add(paths[entry.a])
            elif entry.kind in NAMES and entry.a >= 0:
                for folder, name in model.keys(entry):
                    found.add(f"{paths.get(folder, '')}/{name}".lstrip("/"))
        return found

    def _explained(self, state: State, tree: Tree) -> set[str]:
        """The suspects whose path is not as the program saw it; where there is none, an open change that is not."""
        now = self._reference.build(State(state.position, Class.ALL))
        shown = {name for name, each in self._open(state.position) if not _same(tree, now, each.path)}
        return shown or self._invent(state, tree, now)

    def _invent(self, state: State, tree: Tree, now: Tree) -> set[str]:
        """Nothing was left unflushed at an acknowledgement, and yet a state in between loses: the first open change
        that is not there whole. Half of it there is a matter of atomicity; whole ones in another order, of order.
        """
        model = self._reference
        least = model.build(State(state.position, Class.NONE))
        paths = paths_of(model)
        for index in model.changes(state.position):
            entry = self.log.entries[index]
            about = (
                [paths.get(entry.a)]
                if entry.kind in BYTES
                else [f"{paths.get(folder, '')}/{name}".lstrip("/") for folder, name in model.keys(entry)]
            )
            for path in about:
                if path is not None and not _same(tree, now, path):
                    half = not _same(tree, least, path)
                    missing: Missing = "atomicity" if half else "order"
                    each = Suspect(index, path, missing, state.position, self.end)
                    name = group(self.trail, each)
                    self._invented.setdefault(name, each)
                    return {name}
        return set()

    # --- what it comes to

    def findings(self) -> tuple[Finding, ...]:
        """The suspects that are proved: those that show alone in a losing state, then those without which a losing
        state would not be explained.
        """
        proved: list[str] = []
        for _, shown in sorted(self.seen.shown, key=lambda each: len(each[1])):
            if shown and not shown.intersection(proved):
                proved += sorted(shown) if len(shown) == 1 else self._likeliest(shown)
        return tuple(self._finding(name) for name in sorted(proved, key=self._order))

    def _likeliest(self, shown: set[str]) -> list[str]:
        often = Counter(chain.from_iterable(each for _, each in self.seen.shown))
        most = max(often[name] for name in shown)
        return sorted(name for name in shown if often[name] == most)

    def _order(self, name: str) -> int:
        return (self._by_group[name][0] if name in self._by_group else self._invented[name]).index

    def _finding(self, name: str) -> Finding:
        each = self._by_group[name][0] if name in self._by_group else self._invented[name]
        those = [lost for lost, shown in self.seen.shown if name in shown]
        needs = {lost.needs for lost in those}
        return named(self.trail, each, len(those), needs.pop() if len(needs) == 1 else None)


def _same(one: Tree, other: Tree, path: str) -> bool:
    """Whether a path has the same content in both, or is in neither."""
    a, b = one.items.get(path), other.items.get(path)
    if a is None or b is None:
        return a is b
    if a.token is not None and a.token == b.token:
        return True
    return a.target == b.target and a.content() == b.content()
