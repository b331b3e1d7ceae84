"""Behaviour by counting: how many flushes stand between one acknowledgement and the next, as the kernel saw them.

`count` looks at durabench's own writer and at the local server it writes to, `watch` at somebody's program.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from durabench import process, tracing
from durabench.machine import DRIVER
from durabench_backends.contract import METADATA, Check, Domain, Refused, Verifiable, Watchable
from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from durabench.tracing import Seen
    from durabench_backends.contract import Backend, Call, Fact, Goal, Promise

PUTS = 20
PUT_S = 4.0
"""After so many seconds no further put of ours begins: a flush may be slow."""
ANSWER_S = 6.0
"""Longest wait for the writer, to come up, to put and to remove its namespace again."""
WATCH_S = 600.0
"""Longest run of a watched program; then it is stopped, and what was seen until then stands."""
END_S = 5.0
"""How long a program that is stopped has to end by itself."""
SCRATCH = "durabench-trace-"
NAMESPACE = "durabench-count"
"""Ours in somebody's store: removed before, in case an earlier one was killed, and after."""
SYNCHRONOUS = frozenset({"O_SYNC", "O_DSYNC", "RWF_SYNC", "RWF_DSYNC"})
O_DSYNC = 0o10000
"""Part of O_SYNC too (open(2))."""
MEND = "durabench doctor looks for what swallows flushes (LD_PRELOAD, mount options); then ask what the server logs"


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


class NotCounted(process.HarnessError):
    """The writer did not do what was to be counted; the message says why."""


class MayNotPut(NotCounted):
    """The store refuses this login's put: nothing can be counted, and nothing it acknowledges is in question."""


def pages(prefix: str) -> dict[str, str]:
    """Id of every check made here → its page, for the backend whose ids begin with ``prefix``."""
    return {
        f"{prefix}.flushes": (
            f"Flushes by counting, with --probe: {PUTS} puts of ours, one after the other, while strace lists the "
            "writes and flushes (fsync, fdatasync, msync, O_DSYNC, O_SYNC) of the writer and of a server on this "
            "machine. A promise to lose nothing with the machine needs at least one flush between the begin of a "
            "put and its acknowledgement; none seen is a failure: the setting is not in force, or something "
            "swallows it (libeatmydata). Many flushes do not prove the drive. On a busy server a flush of somebody "
            "else may stand where ours is missing. A server answers more slowly for that second. With `verify URL "
            "-- CMD` your own program is traced instead, and how it writes takes the place of what the URL leaves "
            "open. It needs strace, and the right to trace the server: its own user with "
            "kernel.yama.ptrace_scope=0, or root. Source: fsync(2), ptrace(2), strace(1)."
        )
    }


def _id(backend: Backend) -> str:
    first = next(iter(getattr(backend, "pages", ())), type(backend).__name__.lower())
    return next(iter(pages(str(first).partition(".")[0])))


def count(name: str, url: str, backend: Backend, promise: Promise, goal: Goal) -> list[Check]:
    """One check, ``<prefix>.flushes``: puts of our own at ``url``, in a namespace of their own that is removed again,
    and the flushes seen for each; ``name`` is the registry's, ``promise`` the one in force. For ``--probe``.
    """
    identifier = _id(backend)
    pids = list(backend.writer_pids()) if isinstance(backend, Verifiable) else []
    needless = _needless(backend, pids, promise, goal)
    if needless is not None:
        return [Check(identifier, "skip", evidence=needless)]
    try:
        with _scratch() as scratch:
            return [_judged(identifier, backend, _counted(name, url, pids, scratch.path))]
    except tracing.NotAllowed as error:
        return [Check(identifier, "unknown", evidence=f"not counted: {error.why}", fix=error.fix)]
    except MayNotPut as error:
        fix = "probe with a login that may make a namespace (a table, a bucket, a key) of its own"
        return [Check(identifier, "skip", evidence=f"not counted: {error}", fix=fix)]
    except process.HarnessError as error:
        return [
            Check(identifier, "unknown", evidence=f"not counted: {error}", fix="ask again when it can be written to")
        ]


def _scratch() -> OwnFolder:
    """Where the tracer writes; of a look that was killed, the next one removes it."""
    return OwnFolder(Path(tempfile.gettempdir()), SCRATCH)


def _needless(backend: Backend, pids: Sequence[int], promise: Promise, goal: Goal) -> str | None:
    """Why there is nothing to count; None where there is."""
    if goal.survive < Domain.MACHINE:
        return f"nothing needs a flush to survive {goal.survive.label}"
    if promise.may_lose_s.get(Domain.MACHINE) != 0:
        return "no flush before the acknowledgement is promised: nothing to count"
    if not pids and not isinstance(backend, Watchable):
        return "the server is not on this machine, so it cannot be traced"
    return None


class Counted(NamedTuple):
    """Puts that were acknowledged, and all calls that were seen meanwhile."""

    windows: Sequence[tuple[int, int]]
    """When each put began and when its acknowledgement did, as calls are numbered."""
    seen: Sequence[Seen]
    synchronous: frozenset[str]
    """Files that a server had open for synchronous writing before it was traced."""
    uncountable: bool
    """A server has an io_uring open: what it does there is not seen."""


def _counted(name: str, url: str, pids: Sequence[int], scratch: Path) -> Counted:
    everyone = [*pids, *(child for pid in pids for child in process.descendants(pid))]
    paths = [_open_files(pid) for pid in everyone]
    trace = scratch / "trace"
    tracer = tracing.start(
        DRIVER.argv, trace, env=os.environ, cwd=scratch, log=scratch / "log", pids=everyone, piped=True
    )
    target = {"backend": name, "url": url}
    dropped = False
    try:
        pipe = str(Path(f"/proc/self/fd/{tracer.fileno()}").readlink())
        _drop(tracer, target)
        events = _put(tracer, target)
        _drop(tracer, target)
        dropped = True
    finally:
        tracing.let_go(tracer)
        if not dropped:
            _drop_elsewhere(target, scratch)
    _refuse_others(events)
    seen = tracing.read(trace, scratch)
    return Counted(
        _windows(trace, pipe, events),
        seen,
        frozenset(path for files in paths for path, synchronous in files if synchronous),
        any("io_uring" in path for files in paths for path, _ in files),
    )


def _open_files(pid: int) -> list[tuple[str, bool]]:
    """(path, opened for synchronous writing) of every descriptor of a process; those that may be seen."""
    found = []
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError, IndexError, ValueError):
                info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text("ascii")
                flags = int(info.partition("flags:")[2].split()[0], 8)
                found.append((str(descriptor.readlink()), bool(flags & O_DSYNC)))
    return found


def _drop(driver: process.Process, target: Mapping[str, Any], deadline_s: float = ANSWER_S) -> None:
    order = {"do": "drop", "target": target, "namespaces": [NAMESPACE], "deadline_s": deadline_s}
    answer = driver.ask(order, deadline_s)[-1]
    if answer["e"] == "failed":
        raise NotCounted(f"the namespace {NAMESPACE} could not be removed: {answer['why']}")


def _drop_elsewhere(target: Mapping[str, Any], scratch: Path) -> None:
    """The namespace again, after a writer that failed; the failure itself is what is told."""
    with suppress(process.HarnessError):
        driver = process.start(DRIVER.argv, env=os.environ, cwd=scratch, log=scratch / "drop.log", piped=True)
        try:
            _drop(driver, target, ANSWER_S / 2)
        finally:
            driver.close()


def _put(driver: process.Process, target: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of our puts, in lockstep: the next one begins when this side holds the acknowledgement."""
    driver.send(
        {
            "do": "write",
            "targets": {METADATA: {**target, "namespace": NAMESPACE}},
            "workload": "append",
            "writer": 0,
            "writers": 1,
            "seed": secrets.randbelow(1 << 31),
            "pace_s": 0,
            "limit": PUTS,
            "limit_s": PUT_S,
            "lockstep": True,
            "deadline_s": ANSWER_S / 2,
        }
    )
    end = time.monotonic() + ANSWER_S
    events: list[dict[str, Any]] = []
    while not (events and events[-1]["e"] in ("done", "failed")):
        arrived = driver.receive(end - time.monotonic())
        for event in arrived:
            events.append(event)
            if event["e"] in ("ok", "fail"):
                driver.send({})
        if not arrived and (time.monotonic() > end or not driver.alive()):
            raise NotCounted(driver.last_words(f"our writer was not done within {ANSWER_S:g} s"))
    return events


def _refuse_others(events: Iterable[Mapping[str, Any]]) -> None:
    for event in events:
        if event["e"] in ("fail", "info", "failed"):
            refused = event["why"].startswith(f"{Refused.__name__}: ")
            raise (MayNotPut if refused else NotCounted)(f"our own put failed: {event['why']}")


def _windows(trace: Path, pipe: str, events: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """When each put was armed and acknowledged: every event is one write of the driver's to ``pipe``."""
    told = tracing.writes_to(trace, pipe)
    # Before them come the answer to the order that removed the namespace, after them the one of the second removal.
    kinds = ["done", *(event["e"] for event in events), "done"]
    if len(told) != len(kinds):
        raise NotCounted(f"the trace has {len(told)} of the writer's {len(kinds)} events")
    moments = list(zip(kinds, told, strict=True))
    begun = [moment for kind, moment in moments if kind == "armed"]
    acknowledged = [moment for kind, moment in moments if kind == "ok"]
    return list(zip(begun, acknowledged, strict=True))


def _judged(identifier: str, backend: Backend, counted: Counted) -> Check:
    flushes = [_flushes(counted, *window) for window in counted.windows]
    without = sum(each == 0 for each in flushes)
    value = f"{len(flushes) - without} of {len(flushes)} puts flushed before their acknowledgement"
    evidence = (
        f"strace saw {sum(flushes)} flushes for {len(flushes)} puts of 2 KiB in a namespace of their own, "
        f"{NAMESPACE}, which was removed again"
    )
    loses = "what was acknowledged and not flushed, with the machine"
    if not flushes:
        return Check(identifier, "unknown", evidence=f"not counted: no put was acknowledged within {PUT_S:g} s")
    if without and counted.uncountable:
        why = f"not counted: the server uses io_uring, where flushes are not seen; {evidence}"
        return Check(identifier, "unknown", value, loses=loses, evidence=why)
    if without:
        return Check(identifier, "fail", value, "as counted", loses, MEND, evidence)
    if isinstance(backend, Watchable):
        # A flush was there; whether it was the right ones, the adapter knows (a file's without its directory's is not).
        facts = list(backend.watched([each.call for each in counted.seen if _inside(each, counted.windows)]))
        done = backend.promise([*backend.inspect(), *(fact for fact in facts if not fact.unread)])
        if any(fact.unread for fact in facts) or done.may_lose_s.get(Domain.MACHINE) != 0:
            said = "; ".join(fact.unread or f"{fact.id} is {fact.value}, {fact.origin}" for fact in facts)
            return Check(identifier, "fail", value, "as counted", loses, MEND, f"{evidence}; but {said}")
    return Check(identifier, "ok", value, "as counted", evidence=evidence)


def _flushes(counted: Counted, begun: int, acknowledged: int) -> int:
    """Flushes that began after the put did and were done before its acknowledgement."""
    synchronous = set(counted.synchronous)
    found = 0
    for seen in counted.seen:
        call = seen.call
        if call.kind == "open" and call.flags & SYNCHRONOUS:
            synchronous.add(call.path)
        if begun < seen.began and seen.ended < acknowledged:
            direct = call.kind == "write" and (call.path in synchronous or bool(call.flags & SYNCHRONOUS))
            found += call.kind == "flush" or direct
    return found


def _inside(seen: Seen, windows: Sequence[tuple[int, int]]) -> bool:
    """Whether a call belongs to the puts; what our writer does before the first and after the last one is no put."""
    return windows[0][0] < seen.began and seen.ended < windows[-1][1]


def watch(argv: Sequence[str], url: str, backend: Backend, goal: Goal, deadline_s: float = WATCH_S) -> Watched:
    """Run somebody's program to its end under a tracer, and say how it writes to what ``url`` names; of a server on
    this machine, how often it flushed meanwhile.

    What it prints goes to our stderr. HarnessError where it cannot be started or traced.
    """
    del url
    if shutil.which(argv[0]) is None:
        message = f"{argv[0]} is no program that can be run here"
        raise process.HarnessError(message)
    with _scratch() as scratch:
        with _beside(backend, scratch.path) as flushes:
            status, stopped_after_s, calls = _run(argv, scratch.path, deadline_s)
        ended = f"it ended with status {status}"
        if stopped_after_s is not None:
            ended = f"it was stopped after {stopped_after_s:g} s"
        evidence = f"your program, watched: {ended}"
        if not isinstance(backend, Watchable):
            return Watched(status, (), (_served(_id(backend), flushes(), goal, status, evidence),))
    facts = tuple(backend.watched(calls))
    return Watched(status, facts, (_told(_id(backend), calls, facts, status, evidence),))


def _run(argv: Sequence[str], scratch: Path, deadline_s: float) -> tuple[int, float | None, list[Call]]:
    """Exit status as a shell says it, after how many seconds it was stopped, and the calls that succeeded."""
    here, trace = Path.cwd(), scratch / "trace"
    stopped_after_s = None
    tracer = tracing.start(argv, trace, env=os.environ, cwd=here, log=scratch / "log", visible=True)
    try:
        code = tracer.wait(deadline_s)
    except process.Hung:
        stopped_after_s = deadline_s
        tracer.stop(END_S)
        code = tracer.wait(END_S)
    finally:
        tracing.let_go(tracer)
    calls = [seen.call for seen in tracing.read(trace, here)] if trace.exists() else []
    return (code if code >= 0 else 128 - code), stopped_after_s, calls


@contextmanager
def _beside(backend: Backend, scratch: Path) -> Iterator[Callable[[], int | None]]:
    """Holds a server on this machine meanwhile; then, how many flushes it made, or None where it could not be held."""
    pids = list(backend.writer_pids()) if isinstance(backend, Verifiable) else []
    everyone = [*pids, *(child for pid in pids for child in process.descendants(pid))]
    tracer, trace = None, scratch / "server"
    if everyone:
        with suppress(tracing.NotAllowed):  # the program is watched all the same, and the check says what is missing
            words: dict[str, Any] = {"env": os.environ, "cwd": scratch, "log": scratch / "server.log"}
            tracer = tracing.start(["cat"], trace, pids=everyone, piped=True, **words)
    try:
        yield lambda: None if tracer is None else _flushed(trace, scratch)
    finally:
        if tracer is not None:
            tracing.let_go(tracer)


def _flushed(trace: Path, scratch: Path) -> int:
    return sum(seen.call.kind == "flush" for seen in tracing.read(trace, scratch))


def _served(identifier: str, flushes: int | None, goal: Goal, status: int, evidence: str) -> Check:
    """Of a program that is only a client: the server flushes, and what its own session gave up is not seen. That was
    the question, so where the goal needs a flush before each acknowledgement, it stays open.
    """
    if status:
        return _ended_badly(identifier, None, evidence)
    seen = "the server could not be watched" if flushes is None else f"the server flushed {flushes} times meanwhile"
    told = f"{evidence}; {seen}; which belong to which acknowledgement is not seen"
    if goal.survive < Domain.MACHINE or goal.max_loss_s:
        return Check(identifier, "skip", origin="as watched", evidence=told)
    loses = "whatever your program's own session may have given up for speed, with the machine"
    fix = "see that your program sets no durability of its own, and ask with its login and --probe instead"
    return Check(identifier, "unknown", origin="as watched", loses=loses, fix=fix, evidence=told)


def _ended_badly(identifier: str, value: str | None, evidence: str) -> Check:
    loses = "perhaps more than was seen: the program did not end well"
    return Check(identifier, "warn", value, "as watched", loses, "let it end with status 0", evidence)


def _told(identifier: str, calls: Sequence[Call], facts: Sequence[Fact], status: int, evidence: str) -> Check:
    """What was watched, as a check: the facts decide what it means."""
    flushes = sum(call.kind == "flush" for call in calls)
    writes = sum(call.kind == "write" for call in calls)
    value = f"{flushes} flushes, {writes} writes to files"
    if status:
        return _ended_badly(identifier, value, evidence)
    if any(fact.unread for fact in facts):
        return Check(identifier, "skip", value, "as watched", evidence=f"{evidence}; {facts[0].unread}")
    return Check(identifier, "ok", value, "as watched", evidence=evidence)
