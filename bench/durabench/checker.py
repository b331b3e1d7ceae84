"""Finds what a crash did to a history, and judges it by the promise: pure, repeatable, without a store, clock or file.

Two steps. `find` reads one namespace of a `History` and counts facts, without knowing any promise: what is lost, torn,
corrupt, stale, phantom, resurrected. `judge` holds a finding against a promise, by the table of verdicts, first line
that fits. Both are functions of their arguments only, so that stored histories can be judged again.

How a key is read. Its operations have one order, the writer's. What may be there is the last acknowledged state or the
state after any later operation in doubt (one that *failed* certainly did not happen and may never be seen). Everything
else has exactly one word, so a key is counted once:

- absent although acknowledged, and no delete in doubt: *lost*. An overwrite in doubt is no excuse.
- reads but is not listed: *lost* too. Who comes back after a crash finds its checkpoints by listing; `Store.keys` owes
  exactly what is there. Where the key is only in doubt, or its delete is, it may be there or not, and its listing
  may lag: only its value counts.
- an older put than the last acknowledged one: *stale*, or *resurrected* where the last acknowledged one is a delete.
- listed but reads nothing: *resurrected* after an acknowledged delete, *torn* in doubt, *phantom* if never attempted.
- old and new blocks, zeros, or too short: *torn*. Wrong or foreign bytes, or an error when read: *corrupt*.
- never attempted, failed, or a value that was never put there: *phantom*.

What a writer's own get read before the strike is held against the operations before it by the same rules: a store that
forgets while everything lives has lost, and no later reading makes that good. A key that is wrong before and after, in
two ways, counts for both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from durabench import payload
from durabench_backends.contract import DATA, METADATA, Domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from durabench.history import Attempt, History, Reading, Value
    from durabench_backends.contract import Promise

Kind = Literal["lost", "torn", "corrupt", "stale", "phantom", "resurrected"]
Word = Literal["broken", "unknown", "no-promise", "within", "kept"]

WORST_FIRST: tuple[Word, ...] = ("broken", "unknown", "no-promise", "within", "kept")
WINDOW_NOT_EXERCISED = "window not exercised"
DETAILS_MAX = 5
"""How many wrongs a finding names; the counts say how many there were."""


@dataclass(frozen=True)
class Finding:
    """What one namespace of a trial shows. Counts are None where they could not be found out, never 0 instead.

    ``acked`` and ``in_doubt`` count puts and deletes; ``lost`` counts keys, or versions where versions are promised;
    ``hole`` is how many of the losses are older than a survivor of the same writer. ``damaged_acked`` is how many of
    the torn and corrupt were acknowledged, as against in doubt. ``dangling`` and ``orphan`` are set for metadata only.

    Ages are seconds from an acknowledgement to the moment the strike began: ``loss_window_s`` of the earliest that is
    lost, stale or resurrected, ``oldest_gone_s`` of the earliest that is lost, stale, resurrected, torn or corrupt,
    ``oldest_acked_s`` of the earliest there was. ``in_peace`` counts the keys that a get found wrong before the strike,
    ``in_peace_s`` is the longest that an acknowledgement was old when a get found it gone.

    ``voids`` say why nothing that was found counts, ``doubts`` why more may be wrong; ``details`` name the first.
    """

    acked: int
    in_doubt: int
    acked_before_strike: int
    lost: int | None
    torn: int | None
    corrupt: int | None
    stale: int | None
    phantom: int | None
    resurrected: int | None
    hole: int | None
    damaged_acked: int | None
    versions_lost: int | None
    dangling: int | None
    orphan: int | None
    unavailable: bool
    loss_window_s: float | None
    oldest_gone_s: float | None
    oldest_acked_s: float | None
    details: tuple[str, ...]
    doubts: tuple[str, ...]
    voids: tuple[str, ...] = ()
    in_peace: int = 0
    in_peace_s: float = 0.0

    @property
    def gone(self) -> int:
        """How many acknowledgements do not hold: of what is lost, stale or resurrected, or torn or corrupt."""
        return (self.lost or 0) + (self.stale or 0) + (self.resurrected or 0) + (self.damaged_acked or 0)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one trial and, in one line, what decided."""

    verdict: Word
    why: str


def find(history: History, namespace: str, *, versions_promised: bool = False) -> Finding:
    """What the fault did to one namespace (``metadata`` or ``data``) of a history.

    With ``versions_promised`` every acknowledged put must be among the versions of its key, and ``lost`` counts
    versions. Without, versions that were read but are not promised give ``versions_lost``, which nobody judges.
    """
    seen = _see(history, namespace, versions_promised=versions_promised)
    down = history.down.get(namespace)
    unavailable = down is not None and not seen.complete
    peace = _in_peace(history, namespace)
    after = [wrong for key in seen.keys.values() for wrong in key.wrongs]
    wrongs = _once(after, [wrong for wrong, _ in peace])
    kinds = Counter(wrong.kind for wrong in wrongs)
    acked = history.acknowledged(namespace)
    strike_ns = history.strike_ns
    gone = [(wrong.kind, wrong.gone) for wrong in wrongs if wrong.gone is not None]

    def known(count: int | None) -> int | None:
        return None if unavailable else count

    dangling, orphan = _pairs(history, seen) if namespace == METADATA else (None, None)
    return Finding(
        acked=len(acked),
        in_doubt=sum(attempt.outcome == "info" for of_key in seen.attempts.values() for attempt in of_key),
        acked_before_strike=sum(strike_ns is None or _acknowledged_ns(a) < strike_ns for a in acked),
        lost=known(kinds["lost"]),
        torn=known(kinds["torn"]),
        corrupt=known(kinds["corrupt"]),
        stale=known(kinds["stale"]),
        phantom=known(kinds["phantom"]),
        resurrected=known(kinds["resurrected"]),
        hole=known(_holes(seen, after)),
        damaged_acked=known(sum(wrong.kind in ("torn", "corrupt") and wrong.gone is not None for wrong in wrongs)),
        versions_lost=known(seen.versions_lost),
        dangling=known(dangling),
        orphan=known(orphan),
        unavailable=unavailable,
        loss_window_s=None if unavailable else _oldest_s((a for kind, a in gone if kind in _LOSSES), strike_ns),
        oldest_gone_s=None if unavailable else _oldest_s((a for _, a in gone), strike_ns),
        oldest_acked_s=_oldest_s(acked, strike_ns),
        details=(f"unavailable: {down}", *_details([wrong for wrong, _ in peace])) if unavailable else _details(wrongs),
        doubts=(*(d.why for d in history.doubts if not d.voids), *(() if unavailable else seen.doubts)),
        voids=(*(d.why for d in history.doubts if d.voids), *seen.voids),
        in_peace=len(peace),
        in_peace_s=max((age_s for _, age_s in peace), default=0.0),
    )


def _in_peace(history: History, namespace: str) -> list[tuple[_Wrong, float]]:
    """The first wrong of each key that a writer's get found before the strike, and how old its acknowledgement was.

    A writer's operations have one order and its keys are its own: what a get may read is settled by those before it. A
    get that raised has shown nothing.
    """
    first: dict[str, tuple[_Wrong, float]] = {}
    written: dict[tuple[int, str], list[Attempt]] = defaultdict(list)
    for attempt in sorted(history.of(namespace), key=lambda attempt: attempt.op.sequence):
        if attempt.op.verb != "get":
            written[attempt.writer, attempt.op.key].append(attempt)
    for found in history.found:
        reading = found.reading
        if reading.namespace != namespace or reading.error is not None or reading.key in first:
            continue
        before = [a for a in written[found.writer, reading.key] if a.op.sequence < found.sequence]
        for wrong in _KeyHistory(history.seed, reading.key, before, reading, None).as_read().wrongs[:1]:
            since_ns = found.read_ns if wrong.gone is None else _acknowledged_ns(wrong.gone)
            age_s = max(0.0, (found.read_ns - since_ns) / 1e9)
            text = f"{wrong.text}, read by its writer before anything was struck"
            first[reading.key] = (replace(wrong, text=text), age_s)
    return list(first.values())


def _once(after: Sequence[_Wrong], peace: Iterable[_Wrong]) -> list[_Wrong]:
    """What is wrong after the strike, and what was before it: of a key and a kind once, and as old as the older."""
    wrongs = list(after)
    for wrong in peace:
        alike = (n for n, other in enumerate(wrongs) if (other.key, other.kind) == (wrong.key, wrong.kind))
        at = next(alike, None)
        if at is None:
            wrongs.append(wrong)
        elif wrong.gone is not None:
            known = wrongs[at].gone or wrong.gone
            wrongs[at] = replace(wrongs[at], gone=min(known, wrong.gone, key=_acknowledged_ns))
    return wrongs


def _acknowledged_ns(attempt: Attempt) -> int:
    return attempt.acknowledged_ns or 0


def _oldest_s(attempts: Iterable[Attempt], strike_ns: int | None) -> float | None:
    """Seconds from the earliest acknowledgement to the strike; one received after it began is 0 s old, not younger."""
    earliest_ns = min(map(_acknowledged_ns, attempts), default=None)
    return None if earliest_ns is None or strike_ns is None else max(0.0, (strike_ns - earliest_ns) / 1e9)


def _details(wrongs: Sequence[_Wrong]) -> tuple[str, ...]:
    named = tuple(f"{wrong.key} {wrong.text}" for wrong in wrongs[:DETAILS_MAX])
    more = len(wrongs) - len(named)
    return (*named, f"and {more} more") if more else named


@dataclass(frozen=True)
class _Wrong:
    """One thing that is not as it should be.

    ``gone`` is the earliest acknowledged operation of the key that what is there contradicts; None where nothing
    acknowledged is at stake (a value in doubt, a phantom).
    """

    kind: Kind
    key: str
    text: str
    gone: Attempt | None = None


@dataclass(frozen=True)
class _Key:
    """What became of one key.

    ``current`` is the put that it reads, whole; ``whole`` those and the ones among its versions; ``present`` whether
    anything of it is there.
    """

    wrongs: Sequence[_Wrong] = ()
    current: Attempt | None = None
    whole: Sequence[Attempt] = ()
    present: bool = True

    def is_absent(self) -> bool:
        """Whether nothing of it is there, as it should be."""
        return not self.present and not self.wrongs


@dataclass(frozen=True)
class _Seen:
    """One namespace, key by key, in an order that does not depend on the order of the readings."""

    attempts: Mapping[str, Sequence[Attempt]]
    keys: Mapping[str, _Key]
    versions_lost: int | None
    doubts: Sequence[str]
    voids: Sequence[str]
    complete: bool
    """Listed, and every key read that had to be: whatever happened afterwards, it had come up."""


def _see(history: History, namespace: str, *, versions_promised: bool) -> _Seen:
    listed = history.listed.get(namespace)
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    # Keys of different writers never collide, and sequences grow with each writer's operations.
    for attempt in sorted(history.of(namespace), key=lambda attempt: attempt.op.sequence):
        if attempt.op.verb != "get":
            attempts[attempt.op.key].append(attempt)
    readings: dict[str, list[Reading]] = defaultdict(list)
    for reading in history.readings:
        if reading.namespace == namespace:
            readings[reading.key].append(reading)
    keys: dict[str, _Key] = {}
    versions_lost: int | None = None
    for name in [*attempts, *sorted({*readings, *(listed or ())} - set(attempts))]:
        first = next(iter(readings.get(name, ())), None)
        if name in attempts and first is None:
            continue  # `_incomplete` says so where it matters
        key = _KeyHistory(history.seed, name, attempts.get(name, ()), first, listed)
        keys[name] = key.with_versions() if versions_promised and key.versions is not None else key.as_read()
        if not versions_promised and key.versions is not None:
            versions_lost = (versions_lost or 0) + key.older_versions_lost()
    doubts = tuple(_incomplete(attempts, readings, listed, versions_promised=versions_promised))
    voids = [
        f"{key} was read twice, and differently"
        for key, found in sorted(readings.items())
        if any(reading != found[0] for reading in found[1:])
    ]
    complete = listed is not None and not doubts and not voids
    return _Seen(attempts, keys, versions_lost, doubts, voids, complete)


def _incomplete(
    attempts: Mapping[str, Sequence[Attempt]],
    readings: Mapping[str, Sequence[Reading]],
    listed: frozenset[str] | None,
    *,
    versions_promised: bool,
) -> Iterator[str]:
    """Why the readings cannot answer for every key: a gap in what the harness read is not a loss of the store's."""
    if attempts and listed is None:
        yield "the keys were not listed after the fault"
    for key, of_key in attempts.items():
        owed = any(attempt.outcome != "fail" for attempt in of_key) or key in (listed or ())
        if owed and key not in readings:
            yield f"{key} was not read back"
    for key, found in sorted(readings.items()):
        if versions_promised and key in attempts and found[0].versions is None and found[0].error is None:
            yield f"the versions of {key} were not read back"


def _holes(seen: _Seen, wrongs: Sequence[_Wrong]) -> int:
    """How many losses are older than something of the same writer that survived."""
    newest: dict[int, int] = defaultdict(lambda: -1)
    for key in seen.keys.values():
        for survivor in key.whole:
            newest[survivor.writer] = max(newest[survivor.writer], survivor.op.sequence)
    absent = [of_key for name, of_key in seen.attempts.items() if name in seen.keys and seen.keys[name].is_absent()]
    while sum(_proves_a_delete(attempts, newest) for attempts in absent):  # each proof may be another's premise
        pass
    return sum(
        wrong.kind in _LOSSES and wrong.gone is not None and wrong.gone.op.sequence < newest[wrong.gone.writer]
        for wrong in wrongs
    )


def _proves_a_delete(attempts: Sequence[Attempt], newest: dict[int, int]) -> bool:
    """Move ``newest`` on to a delete that must have survived, given that the key is absent; False if there is none.

    That a deleted key is absent proves nothing by itself, for its put may be lost as well. It does where its put is
    older than a survivor: what was lost after that put would otherwise have left it there.
    """
    writer = attempts[-1].writer
    if _may_be_absent(attempt for attempt in attempts if attempt.op.sequence <= newest[writer]):
        return False
    later = (a for a in attempts if a.op.sequence > newest[writer] and a.op.verb == "delete" and a.outcome != "fail")
    newest[writer] = next(later).op.sequence
    return True


def _may_be_absent(attempts: Iterable[Attempt]) -> bool:
    """Whether a key may be absent after these of its operations."""
    may = True
    for attempt in attempts:
        if attempt.outcome == "ok":
            may = attempt.op.verb == "delete"
        elif attempt.outcome == "info":
            may = may or attempt.op.verb == "delete"
    return may


def _pairs(history: History, metadata: _Seen) -> tuple[int | None, int | None]:
    """(dangling, orphan): metadata records whose data is lost, torn or old; data that no surviving record refers to."""
    data = _see(history, DATA, versions_promised=False)
    if not data.attempts or not data.complete:
        return None, None
    records = [key.current for key in metadata.keys.values() if key.current is not None]
    dangling = sum(any(_is_gone(data, *reference) for reference in record.op.refers) for record in records)
    referred = {key for record in records for key, _ in record.op.refers}
    return dangling, sum(key.present and name not in referred for name, key in data.keys.items())


def _is_gone(data: _Seen, name: str, sequence: int) -> bool:
    """Whether acknowledged data that a record refers to is lost, torn or old. Deleted on purpose is none of these."""
    attempts, key = data.attempts.get(name, ()), data.keys.get(name)
    if key is None or not any(a.op.sequence == sequence and a.outcome == "ok" for a in attempts):
        return False
    if key.current is not None:
        return key.current.op.sequence < sequence
    deleted = any(a.op.verb == "delete" and a.outcome != "fail" and a.op.sequence > sequence for a in attempts)
    return key.present or not deleted


class _KeyHistory:
    """The operations of one key in the writer's order, and what it read."""

    def __init__(
        self, seed: int, key: str, attempts: Sequence[Attempt], reading: Reading | None, listed: frozenset[str] | None
    ) -> None:
        self.seed, self.key, self.attempts = seed, key, attempts
        self.value = reading.value if reading else None
        self.error = reading.error if reading else None
        self.versions = reading.versions if reading else None
        self.puts = [attempt for attempt in attempts if attempt.op.verb == "put"]
        self.happened = [put for put in self.puts if put.outcome != "fail"]
        self.deletes = [attempt for attempt in attempts if attempt.op.verb == "delete" and attempt.outcome != "fail"]
        self.acked = [attempt for attempt in attempts if attempt.outcome == "ok"]
        self.last = self.acked[-1] if self.acked else None
        self.last_sequence = self.last.op.sequence if self.last else -1
        self.doubts = [a for a in attempts if a.outcome == "info" and a.op.sequence > self.last_sequence]
        if not any(attempt.op.verb == "put" for attempt in (*self.acked[-1:], *self.doubts)):
            self.doubts = []  # a delete in doubt of what is not there changes nothing
        # Without a listing there is nothing to compare with, and `_incomplete` says so.
        self.listed = key in listed if listed is not None else self.value is not None

    # What may be there.

    def is_deleted(self) -> bool:
        return self.last is not None and self.last.op.verb == "delete"

    def may_be_absent(self) -> bool:
        return _may_be_absent(self.attempts)

    def legal(self) -> set[int]:
        """The puts that may be read: the last acknowledged one, and those in doubt after it."""
        last = [] if self.last is None else [self.last]
        return {attempt.op.sequence for attempt in (*last, *self.doubts) if attempt.op.verb == "put"}

    def acked_after(self, sequence: int) -> Attempt | None:
        return next((attempt for attempt in self.acked if attempt.op.sequence > sequence), None)

    def gone_if_absent(self) -> Attempt | None:
        """The first acknowledged put after the key was last allowed to be absent: none of them is there any more."""
        deleted = (delete.op.sequence for delete in self.deletes if delete.op.sequence < self.last_sequence)
        return self.acked_after(max(deleted, default=-1))

    def gone_if_damaged(self) -> Attempt | None:
        """The first acknowledgement after the oldest block that is still there; the last one where there is none."""
        puts = {put.op.sequence for put in self.happened}
        blocks = self.value.blocks if self.value else ()
        oldest = min((who for who, _ in blocks if who in puts), default=self.last_sequence)
        return self.last if oldest >= self.last_sequence else self.acked_after(oldest)

    # What is there.

    def as_read(self) -> _Key:
        """The key by the rules at the top of this module."""
        if self.error is not None:
            return self._damaged(_Damage("corrupt", f"cannot be read: {self.error}", explained=bool(self.doubts)))
        if (self.value is not None) != self.listed:
            return self._half_there()
        if self.value is None:
            return self._absent()
        return self._by_value(self.value)

    def _by_value(self, value: Value) -> _Key:
        matching = self._matching(value)
        return self._whole(matching) if matching else self._damaged(self._damage(value))

    def _is(self, kind: Kind, text: str, gone: Attempt | None = None, *, present: bool = True) -> _Key:
        return _Key([_Wrong(kind, self.key, text, gone)], present=present)

    def _absent(self) -> _Key:
        if self.may_be_absent():
            return _Key(present=False)
        return self._is("lost", f"is absent (put {self.last_sequence})", self.gone_if_absent(), present=False)

    def _half_there(self) -> _Key:
        how = "reads, but is not listed" if self.value is not None else "is listed, but reads nothing"
        if not self.may_be_absent():
            return self._is("lost", f"{how} (put {self.last_sequence})", self.gone_if_absent())
        if self.value is not None:
            return self._by_value(self.value)
        if self.doubts and self.happened:
            return self._is("torn", f"{how}, in doubt")
        if self.is_deleted() and self.happened:
            return self._is("resurrected", f"{how}, although deleted by {self.last_sequence}", self.last)
        return self._is("phantom", f"{how}, and was never put")

    def _whole(self, matching: Sequence[Attempt]) -> _Key:
        """It reads what a put wrote, whole. Tiny values may be equal: the put that is best for the store counts."""
        legal = [put for put in matching if put.op.sequence in self.legal()]
        attempted = [put for put in matching if put.outcome != "fail"]
        if legal:
            return _Key(current=legal[-1], whole=attempted[:1])
        if self.doubts and self.value is not None and not self.value.blocks and self._is_torn_legal(self.value):
            return self._damaged(self._damage(self.value))  # as well what an operation in doubt has left
        if not attempted:
            return self._is("phantom", f"reads put {matching[0].op.sequence}, which failed")
        read = attempted[-1]
        text = f"reads put {read.op.sequence} instead of {self.last_sequence}"
        wrong = _Wrong("stale", self.key, text, self.acked_after(read.op.sequence))
        if self.is_deleted():
            text = f"reads put {read.op.sequence}, although deleted by {self.last_sequence}"
            wrong = _Wrong("resurrected", self.key, text, self.acked_after(read.op.sequence))
        return _Key([wrong], current=read, whole=attempted[:1])

    def _damaged(self, found: _Damage) -> _Key:
        there = self.listed or self.value is not None
        if there and not self.happened:
            what = f"reads {self.value.length} bytes" if self.value is not None else found.text
            return self._is("phantom", f"{what}, and was never put")
        if found.kind == "phantom" or found.explained or self.last is None:
            return self._is(found.kind, found.text)
        if self.is_deleted() and there:
            text = f"{found.text}, although deleted by {self.last_sequence}"
            return self._is("resurrected", text, self.gone_if_damaged())
        return self._is(found.kind, found.text, self.gone_if_damaged())

    # Values.

    def _matching(self, value: Value) -> list[Attempt]:
        """The puts whose bytes exactly these are, oldest first."""
        return [put for put in self.puts if put.op.size == value.length and self._is_of(value, put)]

    def _is_of(self, value: Value, put: Attempt) -> bool:
        """Blocks of one put are that put. Else the digest decides, so that a value is never called damaged in error."""
        who = {sequence for sequence, _ in value.blocks}
        if len(who) == 1 and min(who) >= 0 and value.length % payload.BLOCK_BYTES != payload.STAMP_BYTES:
            return who == {put.op.sequence}
        return value.sha256 == self._digest(put)

    def _digest(self, put: Attempt, length: int | None = None) -> str:
        op = put.op
        return payload.digest(payload.make(self.seed, op.namespace, op.key, op.sequence, op.size)[:length])

    def _damage(self, value: Value) -> _Damage:
        """The word for a value that is no put's."""
        who = {sequence for sequence, _ in value.blocks}
        puts = {put.op.sequence for put in self.happened}
        runs = [f"{count} of {_BLOCKS.get(one, f'put {one}')}" for one, count in value.blocks[:_RUNS_NAMED]]
        runs += ["…"] if len(value.blocks) > _RUNS_NAMED else []
        text = f"{value.length} bytes ({'blocks: ' if runs else 'too few for a stamp'}{', '.join(runs)})"
        if any(one >= 0 and one not in puts for one in who):
            kind: Kind = "phantom" if len(who) == 1 else "corrupt"
            return _Damage(kind, f"reads {text}, which were never put there", explained=False)
        if payload.CORRUPT in who or payload.FOREIGN in who or not (who or self._is_torn_tiny(value, self.happened)):
            # A block that was cut in two reads as corrupt or foreign; nothing but foreign blocks is nobody's tear.
            nobodys = who == {payload.FOREIGN} and not self._may_hide_a_stamp(value)
            return _Damage("corrupt", f"is corrupt: {text}", explained=bool(self.doubts) and not nobodys)
        left_so = who <= self.legal() | {payload.ZERO} if who else self._is_torn_legal(value)
        return _Damage("torn", f"is torn: {text}", explained=bool(self.doubts) and left_so)

    def _may_hide_a_stamp(self, value: Value) -> bool:
        """Whether a put in doubt, too small for a stamp, may lie over the only one that this value could have."""
        tiny = any(a.op.verb == "put" and a.op.size < payload.STAMP_BYTES for a in self.doubts)
        return tiny and value.length < payload.BLOCK_BYTES + payload.STAMP_BYTES

    def _is_torn_legal(self, value: Value) -> bool:
        legal = self.legal()
        return self._is_torn_tiny(value, [put for put in self.puts if put.op.sequence in legal])

    def _is_torn_tiny(self, value: Value, puts: Sequence[Attempt]) -> bool:
        """Whether a value without a stamp is empty, zeros, or the beginning of one of the puts."""
        zeros = value.sha256 == payload.digest(bytes(value.length))
        return zeros or any(
            value.sha256 == self._digest(put, value.length) for put in puts if put.op.size > value.length
        )

    # Versions.

    def with_versions(self) -> _Key:
        """The key where every acknowledged put must be among its versions."""
        key = self.as_read()
        wrongs: list[_Wrong] = []
        kept = {put.op.sequence: put for put in key.whole}
        damaged: list[Value] = []
        for version in self.versions or ():
            matching = self._matching(version)
            kept.update((put.op.sequence, put) for put in matching)
            if self.value is not None and version.sha256 == self.value.sha256:
                continue  # the key itself has been judged
            if not matching:
                damaged.append(version)
            elif all(put.outcome == "fail" for put in matching):
                text = f"has a version of put {matching[0].op.sequence}, which failed"
                wrongs.append(_Wrong("phantom", self.key, text))
        missing = {put.op.sequence: put for put in self.puts if put.outcome == "ok" and put.op.sequence not in kept}
        # What is left of a put in a damaged version is damaged, and not lost as well.
        if self.value is not None and not self._matching(self.value):
            self._take(missing, self.value)
        for version in damaged:
            found = self._damage(version)
            owner = self._take(missing, version) or (None if self.doubts or found.kind == "phantom" else self.last)
            wrongs.append(_Wrong(found.kind, self.key, f"has a version that {found.text}", owner))
        wrongs += [
            _Wrong("lost", self.key, f"has no version of put {put.op.sequence}", put) for put in missing.values()
        ]
        # A last put without a version was just counted: the key would count it again.
        own = [wrong for wrong in key.wrongs if wrong.kind not in _LOSSES or self.last_sequence in kept]
        return replace(key, wrongs=[*own, *wrongs], whole=[kept[sequence] for sequence in sorted(kept)])

    def _take(self, missing: dict[int, Attempt], value: Value) -> Attempt | None:
        """The missing put that a damaged value is the rest of, if any, taken out of ``missing``."""
        return next((missing.pop(who) for who, _ in value.blocks if who in missing), None)

    def older_versions_lost(self) -> int:
        """How many acknowledged puts, the newest of the key left out, are not among its versions."""
        kept = {put.op.sequence for version in self.versions or () for put in self._matching(version)}
        return sum(put.op.sequence not in kept for put in [put for put in self.puts if put.outcome == "ok"][:-1])


@dataclass(frozen=True)
class _Damage:
    """The word for a value that is no put's; ``explained`` if an operation in doubt may have left it so."""

    kind: Kind
    text: str
    explained: bool


_BLOCKS = {payload.ZERO: "zeros", payload.CORRUPT: "corrupt", payload.FOREIGN: "foreign"}
_RUNS_NAMED = 4
_LOSSES = ("lost", "stale", "resurrected")


def judge(finding: Finding, promise: Promise, destroyed: Domain, doubts: Sequence[str] = ()) -> Verdict:
    """The verdict on one finding when ``destroyed`` was destroyed: the first line of the table that fits.

    ``doubts`` are the caller's own, and void it: a control that failed, an effective setting that is not the one asked
    for.
    """
    return next(Verdict(word, why) for fits, word, why in _table(finding, promise, destroyed, doubts) if fits)


def _table(
    finding: Finding, promise: Promise, destroyed: Domain, voids: Sequence[str]
) -> Iterator[tuple[bool, Word, str]]:
    """The table of verdicts, line by line: whether it fits, the verdict, and why.

    What the store was seen to do outweighs a doubt of what was not seen: every line that convicts comes before it.
    """
    voids, counts, details = [*voids, *finding.voids], _counts(finding), "; ".join(finding.details)
    yield bool(voids), "unknown", "; ".join(voids[:DETAILS_MAX])

    in_peace_s = promise.may_lose_s.get(Domain.NOTHING)
    forgot = finding.in_peace > 0 and in_peace_s is not None and (not in_peace_s or finding.in_peace_s > in_peace_s)
    yield forgot, "broken", f"{counts}, {finding.in_peace} of it before anything was struck: {details}"

    doubtful, doubt = bool(finding.doubts), "; ".join(finding.doubts[:DETAILS_MAX])
    nothing = f"nothing was acknowledged before the strike{f': {doubt}' if doubtful else ''}"
    yield not finding.acked_before_strike, "unknown", nothing
    window_s = promise.may_lose_s.get(destroyed)
    if window_s is None:
        yield doubtful, "unknown", doubt
        yield True, "no-promise", f"{counts}; nothing is promised when {destroyed.label} is destroyed"
        return
    yield finding.unavailable, "broken", details

    yield bool(finding.phantom), "broken", f"{counts}: {details}"
    damaged = bool(finding.torn or finding.corrupt)
    yield damaged and promise.is_atomic(destroyed), "broken", f"{counts}, where a put is all or nothing: {details}"
    hole = bool(finding.hole)
    yield hole and promise.is_ordered(destroyed), "broken", f"{counts}, {finding.hole} older than a survivor: {details}"

    gone_s, acked_s = finding.oldest_gone_s or 0.0, finding.oldest_acked_s or 0.0
    if window_s == 0:
        yield finding.gone > 0, "broken", f"{counts}: {details}"
        yield doubtful, "unknown", doubt
    else:
        older = f"{counts}, back to {gone_s:.3f} s before the strike, {window_s:g} s may be lost: {details}"
        yield finding.gone > 0 and gone_s > window_s, "broken", older
        yield doubtful, "unknown", doubt
        exercised = f"{WINDOW_NOT_EXERCISED}: no acknowledgement was older than {window_s:g} s at the strike"
        yield acked_s <= window_s, "unknown", exercised
        inside = f"{counts}, back to {gone_s:.3f} s before the strike, {window_s:g} s may be lost"
        yield finding.gone > 0, "within", inside
    yield True, "kept", counts


def _counts(finding: Finding) -> str:
    """What was found, in one phrase: ``2 lost, 1 torn of 40 acknowledged``."""
    if finding.unavailable:
        return finding.details[0]
    words: tuple[Kind, ...] = ("lost", "stale", "torn", "corrupt", "phantom", "resurrected")
    counted = [f"{getattr(finding, word)} {word}" for word in words if getattr(finding, word)]
    return f"{', '.join(counted) or 'nothing lost'} of {finding.acked} acknowledged"


def worst(verdicts: Iterable[Word]) -> Word:
    """The verdict of a cell from those of its trials; ``unknown`` decides only when no trial was judged."""
    judged = {verdict for verdict in verdicts if verdict != "unknown"}
    return next((word for word in WORST_FIRST if word in judged), "unknown")
