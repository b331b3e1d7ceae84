"""What a trial's history means, said slowly: the words and the table of README.md, by enumeration, on plain bytes.

Written from the words alone and sharing nothing with `durabench.checker` but the facts that both read. Where the
checker has rules for every case, this asks one question again and again: what may be there after these operations?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from durabench_backends.contract import Domain, Promise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durabench.history import Attempt, Doubt

BLOCK, STAMP = 512, 24
ABSENT, UNREADABLE = "absent", "unreadable"
"""What a key may read instead of bytes."""


@dataclass(frozen=True)
class Get:
    """What the get after ``before`` operations of the trial read of a key, while everything lived."""

    before: int
    key: str
    seen: bytes | str
    read_ns: int


@dataclass(frozen=True)
class Trial:
    """One namespace of a trial. ``values`` are the bytes of every put, by its sequence; ``seen`` what a reader found,
    every key that it read; ``listed`` None where there is no listing. ``strangers`` are values that look like puts of
    a key and were never attempted.
    """

    attempts: Sequence[Attempt]
    values: Mapping[int, bytes]
    strike_ns: int
    seen: Mapping[str, bytes | str]
    listed: frozenset[str] | None
    gets: Sequence[Get] = ()
    down: bool = False
    doubts: Sequence[Doubt] = ()
    strangers: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Wrong:
    """A key's one word, and the earliest acknowledged operation that does not hold (None: none is at stake)."""

    word: str
    gone: Attempt | None


@dataclass
class Told:
    """What the oracle says of a trial, in the fields of the checker's finding."""

    acked: int
    in_doubt: int
    acked_before_strike: int
    oldest_acked_s: float | None
    unavailable: bool
    unsure: bool
    void: bool
    lost: int | None = None
    torn: int | None = None
    corrupt: int | None = None
    stale: int | None = None
    phantom: int | None = None
    resurrected: int | None = None
    hole: int | None = None
    damaged_acked: int | None = None
    loss_window_s: float | None = None
    oldest_gone_s: float | None = None
    in_peace: int = 0
    in_peace_s: float = 0.0


def changes(attempts: Sequence[Attempt], key: str) -> list[Attempt]:
    """The puts and deletes of a key that happened or may have happened, in order."""
    return [a for a in attempts if a.op.key == key and a.op.verb != "get" and a.outcome != "fail"]


def may_be(ops: Sequence[Attempt]) -> set[Attempt | str]:
    """What may be there after these operations on a key: a put, or nothing."""
    may: set[Attempt | str] = {ABSENT}
    for op in ops:
        after = op if op.op.verb == "put" else ABSENT
        may = {after} if op.outcome == "ok" else {*may, after}
    return may


def undone(ops: Sequence[Attempt], state: Attempt | str) -> Attempt | None:
    """The acknowledged operation since which ``state`` may not be there any more; None where it still may."""
    last = max(n for n in range(len(ops) + 1) if state in may_be(ops[:n]))
    return ops[last] if last < len(ops) else None


def block(value: bytes, at: int) -> bytes:
    return value[at : at + BLOCK]


def made_of(value: bytes, puts: Sequence[Attempt], values: Mapping[int, bytes]) -> list[list[Attempt | str] | None]:
    """For each block whose it may be, in order: of puts (as much of it as is there), zeros; None where of nobody. An
    end too short for a stamp of its own is of whom the block before is.
    """
    found: list[list[Attempt | str] | None] = []
    for at in range(0, len(value), BLOCK):
        here = block(value, at)
        whose: list[Attempt | str] = [put for put in puts if block(values[put.op.sequence], at)[: len(here)] == here]
        if at and len(here) < STAMP:
            whose = [put for put in whose if put in (found[-1] or [])]
        found.append(whose or (["zeros"] if not here.strip(b"\0") else None))
    return found


def word_of(trial: Trial, before: int, key: str, seen: bytes | str, *, listed: bool | None) -> Wrong | None:  # noqa: PLR0911 - the first that fits
    """The word for what a key reads after the first ``before`` attempts of the trial. ``listed`` None: nobody asked."""
    ops = changes(trial.attempts[:before], key)
    puts = [op for op in ops if op.op.verb == "put"]
    acked = [op for op in ops if op.outcome == "ok"]
    may = may_be(ops)
    deleted = bool(acked) and acked[-1].op.verb == "delete"
    changing = may != may_be(acked)  # an operation in doubt may have been cut off in the middle
    if not puts and (listed or isinstance(seen, bytes)):
        return Wrong("phantom", None)
    if seen != UNREADABLE and ABSENT not in may and (seen == ABSENT or listed is False):
        return Wrong("lost", undone(ops, ABSENT))
    if seen == ABSENT and not listed:
        return None
    if seen == ABSENT:
        return Wrong("torn", None) if changing else Wrong("resurrected", acked[-1])
    if isinstance(seen, bytes):
        same = [put for put in puts if trial.values[put.op.sequence] == seen]
        if may & set(same):
            return None
        blocks = made_of(seen, [put for put in puts if put in may], trial.values)
        if changing and None not in blocks:
            return Wrong("torn", None)
        if same:
            gone = max((undone(ops, put) for put in same), key=ops.index)
            return Wrong("resurrected" if deleted else "stale", gone)
        if is_never_put(trial, key, seen):
            return Wrong("phantom", None)
    blocks = made_of(seen, puts, trial.values) if isinstance(seen, bytes) else [None]
    word = "corrupt" if None in blocks else "torn"
    tiny = any(put in may and put.outcome == "info" and put.op.size < STAMP for put in puts)
    if not acked or (changing and word == "corrupt" and not is_strange(trial, key, seen, tiny=tiny)):
        return Wrong(word, None)
    there = [put for whose in blocks for put in whose or () if put != "zeros" and len(seen) >= STAMP]
    gone = undone(ops, min(there, key=ops.index)) if there else None
    return Wrong("resurrected" if deleted and (listed or seen != UNREADABLE) else word, gone or acked[-1])


def never_put(trial: Trial, key: str) -> list[bytes]:
    """Values of this key that certainly never were there."""
    return [*trial.strangers, *(trial.values[a.op.sequence] for a in puts_of(trial, key) if a.outcome == "fail")]


def puts_of(trial: Trial, key: str) -> list[Attempt]:
    return [attempt for attempt in trial.attempts if attempt.op.key == key and attempt.op.verb == "put"]


def is_never_put(trial: Trial, key: str, seen: bytes) -> bool:
    """Whether it is such a value, or the begin of one, told by its stamps."""
    never = never_put(trial, key)
    return seen in never or (len(seen) >= STAMP and any(value[: len(seen)] == seen for value in never))


def is_strange(trial: Trial, key: str, seen: bytes | str, *, tiny: bool) -> bool:
    """Whether no operation that was cut off can have left that: no block begins as one of this key does or is zeros, or
    one is of a value that never was there. A ``tiny`` put in doubt may lie over the only begin that could be told.
    """
    if isinstance(seen, str) or len(seen) < STAMP:
        return False
    never, happened = never_put(trial, key), [trial.values[a.op.sequence] for a in puts_of(trial, key)]
    places = range(0, len(seen), BLOCK)
    begins = {
        (at, value[at : at + STAMP]) for value in (*never, *happened) for at in range(0, len(value) - STAMP + 1, BLOCK)
    }
    for value in never:
        for at in places:
            stamped = at if len(block(seen, at)) >= STAMP else at - BLOCK  # an end is of whom the stamp before it is
            same = block(value, at) == block(seen, at)
            if same and stamped >= 0 and value[stamped : stamped + STAMP] == seen[stamped : stamped + STAMP]:
                return True
    if tiny and len(seen) < BLOCK + STAMP:
        return False
    return not any((at, seen[at : at + STAMP]) in begins or not block(seen, at).strip(b"\0") for at in places)


def holes(trial: Trial, after: Mapping[str, Wrong]) -> int:
    """How many losses are older than something of the same writer that survived.

    A writer's operations are cut off after the first so many: the smallest cut at which everything that is there had
    happened, and every key that is rightly absent is absent. What does not hold though it came before that is a hole.
    """
    count = 0
    for writer in {attempt.writer for attempt in trial.attempts}:
        mine = [attempt for attempt in trial.attempts if attempt.writer == writer]
        keys = {attempt.op.key for attempt in mine}
        cut = next((n for n in range(len(mine) + 1) if all(fits(trial, mine[:n], key, after) for key in keys)), 0)
        losses = [wrong for key, wrong in after.items() if key in keys and wrong.word in LOSSES]
        count += sum(1 for wrong in losses if wrong.gone in mine[:cut])
    return count


LOSSES = ("lost", "stale", "resurrected")


def fits(trial: Trial, ops: Sequence[Attempt], key: str, after: Mapping[str, Wrong]) -> bool:
    """Whether what a key reads had come about after ``ops``. What is lost or damaged says nothing."""
    seen = trial.seen.get(key)
    word = after[key].word if key in after else None
    if seen is None or word in ("lost", "torn", "corrupt", "phantom"):
        return True
    done = changes(ops, key)
    if seen == ABSENT:
        return word is not None or ABSENT in may_be(done)
    same = [
        put for put in changes(trial.attempts, key) if put.op.verb == "put" and trial.values[put.op.sequence] == seen
    ]
    return not same or any(put in done for put in same)


def tell(trial: Trial) -> Told:
    """What the trial shows."""
    changed = [a for a in trial.attempts if a.op.verb != "get"]
    acked = [a for a in changed if a.outcome == "ok"]

    def age_s(attempt: Attempt, until_ns: int = trial.strike_ns) -> float:
        return max(0, until_ns - attempt.acknowledged_ns) / 1e9

    keys = {a.op.key for a in changed}
    owed = {a.op.key for a in changed if a.outcome != "fail" or a.op.key in (trial.listed or ())}
    unread = owed - set(trial.seen)
    down = trial.down and bool(unread or trial.listed is None)
    told = Told(
        acked=len(acked),
        in_doubt=sum(a.outcome == "info" for a in changed),
        acked_before_strike=sum(a.acknowledged_ns < trial.strike_ns for a in acked),
        oldest_acked_s=max(map(age_s, acked), default=None),
        unavailable=down,
        unsure=(not down and bool(unread or (changed and trial.listed is None)))
        or any(not doubt.voids for doubt in trial.doubts),
        void=any(doubt.voids for doubt in trial.doubts),
    )
    peace: dict[str, Wrong] = {}
    for get in trial.gets:
        wrong = None if get.seen == UNREADABLE else word_of(trial, get.before, get.key, get.seen, listed=None)
        if wrong and get.key not in peace:
            peace[get.key] = wrong
            told.in_peace_s = max(told.in_peace_s, age_s(wrong.gone, get.read_ns) if wrong.gone else 0.0)
    told.in_peace = len(peace)
    if told.unavailable:
        return told
    after: dict[str, Wrong] = {}
    for key, seen in trial.seen.items():
        listed = None if trial.listed is None else key in trial.listed
        wrong = word_of(trial, len(trial.attempts), key, seen, listed=listed)
        if wrong:
            after[key] = wrong
    after |= {key: Wrong("phantom", None) for key in (trial.listed or set()) - keys - set(trial.seen)}
    every = [*after.items(), *peace.items()]
    for word in ("lost", "torn", "corrupt", "stale", "phantom", "resurrected"):
        setattr(told, word, len({key for key, wrong in every if wrong.word == word}))
    gone = [(key, wrong) for key, wrong in every if wrong.gone]
    told.damaged_acked = len({(key, wrong.word) for key, wrong in gone if wrong.word in ("torn", "corrupt")})
    told.hole = holes(trial, after)
    told.loss_window_s = max((age_s(wrong.gone) for _, wrong in gone if wrong.word in LOSSES), default=None)
    told.oldest_gone_s = max((age_s(wrong.gone) for _, wrong in gone), default=None)
    return told


def verdict(told: Told, promise: Promise, destroyed: Domain) -> str:  # noqa: PLR0911 - a line of the table each
    """The first line of the table that fits."""
    window_s = promise.may_lose_s.get(destroyed)
    gone = bool(told.lost or told.stale or told.resurrected or told.damaged_acked)
    in_peace_s = promise.may_lose_s.get(Domain.NOTHING)
    if told.void:
        return "unknown"
    if told.in_peace and in_peace_s is not None and (in_peace_s == 0 or told.in_peace_s > in_peace_s):
        return "broken"
    if not told.acked_before_strike:
        return "unknown"
    if window_s is None:
        return "unknown" if told.unsure else "no-promise"
    if (
        told.unavailable
        or told.phantom
        or (promise.is_atomic(destroyed) and (told.torn or told.corrupt))
        or (promise.is_ordered(destroyed) and told.hole)
        or (window_s == 0 and gone)
        or (gone and (told.oldest_gone_s or 0) > window_s)
    ):
        return "broken"
    if told.unsure or (window_s > 0 and (told.oldest_acked_s or 0) <= window_s):
        return "unknown"
    return "within" if gone else "kept"
