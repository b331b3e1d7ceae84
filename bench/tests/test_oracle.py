"""The checker against a slow oracle that was written from the words alone: over drawn histories they say the same."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from durabench import payload
from durabench.checker import find, judge
from durabench.history import Attempt, Doubt, Found, History, Reading, Value
from durabench_backends.contract import DATA, METADATA, Domain, Op, Promise

sys.path.append(str(Path(__file__).parent))
import oracle  # beside this file; importlib mode adds no path
from oracle import ABSENT, UNREADABLE, Get, Trial

SEED = 5
EXAMPLES = settings(
    deadline=None, derandomize=True, max_examples=int(os.environ.get("DURABENCH_EXAMPLES", "2000")), database=None
)
W = 0.5
LOSES = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0, Domain.SERVER: W, Domain.DRIVE: W}
PROMISES = [Promise(LOSES, one, one, "half") for one in (None, Domain.AT_REST)]
PROMISES += [Promise(LOSES, Domain.AT_REST, None, "half"), Promise(LOSES, None, Domain.AT_REST, "half")]
PROMISES += [Promise({**LOSES, Domain.NOTHING: W}, None, Domain.SERVER, "slow"), Promise({}, None, None, "none")]
DOMAINS = (Domain.NOTHING, Domain.CLIENT, Domain.SERVER, Domain.MACHINE, Domain.DRIVE)

SIZES = st.sampled_from([0, 1, 2, 23, 24, 512, 530, 1100, 1600])
VERBS = st.sampled_from(["put", "put", "put", "delete", "get"])
OUTCOMES = st.sampled_from(["ok", "ok", "ok", "ok", "info", "fail"])
LEFT = st.tuples(
    st.sampled_from(
        ["now"] * 8
        + ["absent"] * 3
        + ["any"] * 3
        + ["cut", "zeroed", "mixed", "flipped", "foreign", "strange", "error"]
    ),
    st.integers(0, 7),
    st.integers(0, 3),
)
STEPS = st.lists(
    st.tuples(
        VERBS, st.integers(0, 1), st.sampled_from("abc"), SIZES, OUTCOMES, st.sampled_from([1, 1, 125, 250, 500]), LEFT
    ),
    min_size=1,
    max_size=14,
)
AFTER = st.fixed_dictionaries(
    {
        "left": st.lists(LEFT, min_size=7, max_size=7),
        "mislisted": st.sampled_from([()] * 6 + [(0,), (1,), (2, 3), (6,)]),
        "unread": st.sampled_from([()] * 12 + [(0,), (2,)]),
        "unlisted": st.sampled_from([False] * 15 + [True]),
        "down": st.sampled_from([None] * 12 + ["all", "late", "other"]),
        "late": st.sampled_from([0] * 6 + [1, 2, 30]),
        "gap_ms": st.sampled_from([0, 1, 125, 500, 600]),
        "doubts": st.sampled_from([()] * 10 + [(Doubt("reader", voids=False),), (Doubt("control"),)]),
    }
)


@dataclass
class Teller:
    """Makes of what was drawn a history for the checker and the same trial for the oracle."""

    attempts: list[Attempt] = field(default_factory=list)
    values: dict[int, bytes] = field(default_factory=dict)
    gets: list[Get] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    now_ns: int = 1_000_000_000

    def step(self, verb, writer, key, size, outcome, ms, left) -> None:
        sequence, key = len(self.attempts) + 1, f"{key}{writer}"
        began_ns = self.now_ns
        self.now_ns += ms * 1_000_000
        op = Op(verb, METADATA, key, sequence, size if verb == "put" else 0, ())
        answered_ns = self.now_ns if outcome == "ok" else None
        if verb == "put":
            self.values[sequence] = payload.make(SEED, METADATA, key, sequence, size)
        if verb == "get" and outcome == "ok":
            seen = self.content(key, *left)
            self.gets.append(Get(len(self.attempts), key, seen, self.now_ns))
            self.found.append(Found(reading(key, seen), writer, sequence, self.now_ns))
        self.attempts.append(Attempt(op, writer, outcome, began_ns, answered_ns))

    def content(self, key: str, kind: str, which: int, where: int) -> bytes | str:
        """What a key may be made to read: what an honest store has now, or something else of that kind."""
        mine = [a for a in self.attempts if a.op.key == key and a.op.verb == "put"]
        if kind in ("absent", "error"):
            return ABSENT if kind == "absent" else UNREADABLE
        if kind == "strange":
            return payload.make(SEED, METADATA, key, 999, 24 + which)
        if kind == "foreign" or not mine:
            return payload.make(SEED, METADATA, "other", 1, 100 * which + where) if kind == "foreign" else ABSENT
        one = self.values[mine[which % len(mine)].op.sequence]
        other = self.values[mine[(which + 1) % len(mine)].op.sequence]
        if kind == "now":
            may = oracle.may_be(oracle.changes(self.attempts, key))
            some = sorted(may, key=lambda state: -1 if state == ABSENT else state.op.sequence)
            state = some[which % len(some)]
            return ABSENT if state == ABSENT else self.values[state.op.sequence]
        at = min(512 * where, len(one))
        made = {
            "any": one,
            "cut": one[: len(one) * (where + 1) // 5],
            "zeroed": one[:at] + bytes(len(one[at : at + 512])) + one[at + 512 :],
            "mixed": one[:at] + other[at:],
            "flipped": flipped(one, where),
        }
        return made[kind]


def flipped(value: bytes, where: int) -> bytes:
    """One bit is wrong. Not in a stamp: who reads it believes what it says of itself."""
    at = 30 + 512 * where if len(value) >= payload.STAMP_BYTES else 0
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] if at < len(value) else value


def reading(key: str, seen: bytes | str) -> Reading:
    if isinstance(seen, str):
        return Reading(METADATA, key, None, "OSError: I/O error" if seen == UNREADABLE else None)
    blocks = payload.read(SEED, METADATA, key, seen)
    return Reading(METADATA, key, Value(len(seen), payload.digest(seen), blocks))


def trial_of(steps, after) -> tuple[History, Trial]:
    told = Teller()
    for step in steps:
        told.step(*step)
    keys = [*(key + str(writer) for writer in (0, 1) for key in "abc"), "ghost"]
    attempted = {attempt.op.key for attempt in told.attempts}
    contents = {key: told.content(key, *left) for key, left in zip(keys, after["left"], strict=True)}
    seen = {key: what for key, what in contents.items() if key in attempted or what not in (ABSENT, UNREADABLE)}
    if "ghost" in seen and after["left"][6][0] != "strange":
        del seen["ghost"]
    listed = {key for key, what in seen.items() if what != ABSENT} ^ {keys[at] for at in after["mislisted"]}
    seen |= {key: ABSENT for key in listed if key not in seen}
    seen = {key: what for key, what in seen.items() if keys.index(key) not in after["unread"]}
    listing = None if after["unlisted"] else frozenset(listed)
    if after["down"] == "all":
        seen, listing = {}, None
    acked = [a.acknowledged_ns for a in told.attempts if a.acknowledged_ns is not None]
    strike_ns = (
        sorted(acked)[-min(after["late"], len(acked))]
        if acked and after["late"]
        else told.now_ns + after["gap_ms"] * 1_000_000
    )
    strangers = frozenset(payload.make(SEED, METADATA, key, 999, 24 + which) for key in keys for which in range(8))
    down = {"all": {METADATA: "no answer"}, "late": {METADATA: "went"}, "other": {DATA: "no answer"}, None: {}}[
        after["down"]
    ]
    history = History(
        SEED,
        told.attempts,
        strike_ns,
        "inside",
        [reading(key, what) for key, what in seen.items()],
        {} if listing is None else {METADATA: listing},
        down,
        doubts=after["doubts"],
        found=told.found,
    )
    return history, Trial(
        told.attempts, told.values, strike_ns, seen, listing, told.gets, METADATA in down, after["doubts"], strangers
    )


FIELDS = (
    *("acked", "in_doubt", "acked_before_strike", "oldest_acked_s", "unavailable"),
    *("lost", "torn", "corrupt", "stale", "phantom", "resurrected", "hole", "damaged_acked"),
    *("loss_window_s", "oldest_gone_s", "in_peace", "in_peace_s"),
)


@EXAMPLES
@given(STEPS, AFTER)
def test_the_checker_and_the_oracle_agree(steps, after):
    history, trial = trial_of(steps, after)
    finding, told = find(history, METADATA), oracle.tell(trial)
    assert {name: getattr(finding, name) for name in FIELDS} == {name: getattr(told, name) for name in FIELDS}
    assert finding.unavailable or (bool(finding.doubts), bool(finding.voids)) == (told.unsure, told.void)
    for promise, destroyed in product(PROMISES, DOMAINS):
        said = judge(finding, promise, destroyed)
        assert said.verdict == oracle.verdict(told, promise, destroyed), (promise, destroyed, said)
