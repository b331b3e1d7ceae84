"""Small sabotages of the decisive code, and the tests that must notice them: a mutation test of the harness.

    python bench/tests/sabotage.py [--only N …] [--jobs 2]

Each row changes one place of a copy of the three packages; the checkout itself is never touched. A hand-made table
rather than mutmut or cosmic-ray: those make thousands of changes, most of them to words and messages, and run the whole
suite for each; here each row is a mistake somebody could make that would print a wrong word, and runs in seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bench/durabench", "backends/durabench_backends", "vm/durabench_vm")
LONGEST_S = 300
"""A sabotage that hangs its tests is noticed, too."""


@dataclass(frozen=True)
class Sabotage:
    """What is changed, and which tests should fail. ``survives``: why none does, where that is known and accepted."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def source(self) -> str:
        """The file as it is."""
        return (ROOT / self.file).read_text()


def of(file: str, tests: str, *changes: tuple[str, str]) -> list[Sabotage]:
    """Rows of one file under one set of tests: names of test modules, of bench unless a room is given."""
    found = []
    for name in tests.split():
        module, sign, test = name.partition("::")
        found.append(name if "/" in name else f"bench/tests/test_{module}.py{sign}{test}")
    return [Sabotage(file, old, new, tuple(found)) for old, new in changes]


CHECKER, RECORDED, REPORT = "bench/durabench/checker.py", "bench/durabench/recorded.py", "bench/durabench/report/"
STATES = "vm/tests/test_crash.py vm/tests/test_drawing.py vm/tests/test_toys.py"

TABLE: list[Sabotage] = [
    # What a history means.
    *of(
        CHECKER,
        "verdicts",
        ("< newest[wrong.gone.writer]", "<= newest[wrong.gone.writer]"),
        ("while sum(_proves_a_delete(", "if sum(_proves_a_delete("),
        ('yield forgot, "broken"', 'yield False, "broken"'),
        ("(not in_peace_s or finding.in_peace_s > in_peace_s)", "not in_peace_s"),
        ('yield finding.unavailable, "broken"', 'yield False, "broken"'),
        ('yield bool(finding.phantom), "broken"', 'yield False, "broken"'),
        ("yield damaged and promise.is_atomic(destroyed)", "yield damaged"),
        ("yield hole and promise.is_ordered(destroyed)", "yield hole"),
        ("finding.gone > 0 and gone_s > window_s", "finding.gone > 0 and gone_s >= window_s"),
        ("yield acked_s <= window_s", "yield acked_s < window_s"),
        ('yield bool(voids), "unknown"', 'yield False, "unknown"'),
        (
            'f"{counts}: {details}"\n        yield doubtful, "unknown", doubt\n',
            'f"{counts}: {details}"\n',
        ),
        ("may = may or attempt.op.verb", "may = attempt.op.verb"),
        ("            self.doubts = []", "            pass"),
        ("read = attempted[-1]", "read = attempted[0]"),
        ("return zeros or any(", "return any("),
        ("who == {payload.FOREIGN} and not", "who == set() and not"),
        ("if (self.value is not None) != self.listed:", "if self.value is None and self.listed:"),
        ("if attempts and listed is None:", "if False:"),
        ("if any(reading != found[0] for reading in found[1:])", "if False"),
        ("return key.current.op.sequence < sequence", "return False"),
        ("if wrong.kind not in _LOSSES or self.last_sequence in kept]", "]"),
        ("+ (self.resurrected or 0)", ""),
        ("if a.op.sequence < found.sequence]", "]"),
        ("reading.namespace != namespace or reading.error is not None or", "reading.namespace != namespace or"),
        ("(other.key, other.kind) == (wrong.key, wrong.kind)", "other.key == wrong.key"),
        ("hole=known(_holes(seen, after))", "hole=known(_holes(seen, wrongs))"),
        ('if verdict != "unknown"}', "}"),
        ("unavailable = down is not None and not seen.complete", "unavailable = down is not None"),
        ("promise.may_lose_s.get(destroyed)\n", "promise.may_lose_s.get(destroyed, 0.0)\n"),
    ),
    *of(
        CHECKER, "verdicts oracle", ("_acknowledged_ns(a) < strike_ns for a", "_acknowledged_ns(a) <= strike_ns for a")
    ),
    *of(
        "bench/durabench/history.py",
        "history verdicts recorded",
        ('armed["w"], "fail", armed["t"])', 'armed["w"], "info", armed["t"])'),
        ('a.outcome == "ok" and a.op.verb != "get"]', 'a.outcome == "ok"]'),
        ('event.get("voids", True)', 'event.get("voids", False)'),
        ("(METADATA, DATA)), event", "(METADATA,)), event"),
        ('armed["w"], "ok", armed["t"], answer["t"]', 'armed["w"], "ok", armed["t"], armed["t"]'),
    ),
    *of(
        "bench/durabench/payload.py",
        "payload checker",
        ("ours = magic == _MAGIC and owner == whose", "ours = magic == _MAGIC"),
        ("if ours and number * BLOCK_BYTES == start else None", "if ours else None"),
    ),
    *of(
        "bench/durabench/judgement.py",
        "controls::test_what_a_control_must_show judgement",
        ('all(row["verdict"] == "kept" for row', 'any(row["verdict"] != "broken" for row'),
        ('any(loses(row) or row["unavailable"] for', 'all(not loses(row) or row["unavailable"] for'),
        ('any(row["lost"] and row["corrupt"]', 'any(row["lost"] or row["corrupt"]'),
        ("history, namespace, versions_promised=held.versions)", "history, namespace)"),
        ("if history.of(namespace) or namespace == METADATA", "if namespace == METADATA"),
        ("held.promise, destroyed)", "held.promise, Domain.CLIENT)"),
    ),
    # What a recording may have left.
    *of(
        RECORDED,
        "recorded",
        ('or (event["e"] == "armed" and event["w"] not in held)', 'or event["e"] == "armed"'),
        (
            'for event in recorded.events if event["e"] == "fail"}',
            'for event in recorded.events if event["e"] == "no"}',
        ),
        ('if any(last["identity"][name] == before', 'if all(last["identity"][name] != before'),
        ('if last["ours"] else down]', "if False else down]"),
        ("plan, image, lane, laboratory).values():", "plan, image, lane, laboratory) and ():"),
        ("guilty = [name for name in names if name not in fails]", "guilty = names"),
        ("if found.of_image else _doubt(why)]", "if True else _doubt(why)]"),
        (
            '            if why:\n                found[why] = {"e": "doubt"',
            '            if False:\n                found[why] = {"e": "doubt"',
        ),
        ('"t": event["t"], "why": why, "voids": True}', '"t": event["t"], "why": why, "voids": False}'),
        ("recorded.recording.entries[position - 1].time_ns", "recorded.recording.entries[0].time_ns"),
    ),
    *of(
        RECORDED,
        "crash_states",
        ("telling=index >= durable", "telling=True"),
        ('and armed[mark]["verb"] != "get"]', "]"),
        ("last if members[0].settle_s else first, last)", "first, last)"),
        ("lie_from=first if destroys is Domain.FLUSHED else None", "lie_from=None"),
        ("(vm.Mode.ALL,) if destroys is Domain.MACHINE", "(vm.Mode.DROP,) if destroys is Domain.MACHINE"),
        ("        missing.discard(namespace)", "        missing.clear()"),
        ("if index < position:\n            gap", "if index <= position:\n            gap"),
    ),
    *of(
        "vm/durabench_vm/recording.py",
        STATES + " vm/tests/test_powerdisk.py",
        ("bisect.bisect_left(self._flushes, end)", "bisect.bisect_right(self._flushes, end)"),
        ("min(position, lie_from)", "position"),
        ("not (entry.fua and (lie_from is None or index < lie_from))", "not entry.fua"),
        (
            "self._marks[: bisect.bisect_left(self._marks, position)]",
            "self._marks[: bisect.bisect_right(self._marks, position)]",
        ),
    ),
    *of(
        "vm/durabench_vm/crash.py",
        STATES,
        ("        elif entry.changes:\n            result", "        elif False:\n            result"),
        ("return position if entry.changes and entry.fua else None", "return None"),
        (
            "every[:cut] if state.mode is Mode.TORN_HEAD else every[cut:]",
            "every[cut:] if state.mode is Mode.TORN_HEAD else every[:cut]",
        ),
        ("begin = rng.randint(1, max(1, count - 1))", "begin = rng.randint(0, 0)"),
        ("is not (state.mode is Mode.HOLE)", "is not False"),
        ("if state.unit_bytes <= 0 or state.unit_bytes % recording.unit_bytes:", "if False:"),
        ("if self._fd < 0 or position < self._at:", "if self._fd < 0:"),
        ("        end = rng.randint(0, count)", "        end = 0"),
        ("every[:begin] + every[rng.randint(begin + 1, len(every) - 1) :]", "every[:begin]"),
    ),
    *of(
        "vm/durabench_vm/drawing.py",
        STATES,
        ("if content not in pool.seen and self._is_proper(state):", "if self._is_proper(state):"),
        ("        return any(kept) and not all(kept)", "        return True"),
        ("durable < gap.first)", "True)"),
        ("(pool.times[mode], mode in _ANY, self.times[mode], self.rng.random())", "self.rng.random()"),
        ("for pool in _in_turn([rng.sample(some, len(some)) for some in pools]):", "for pool in _in_turn(pools[:1]):"),
        ("if position == gap.last or is_flight or", "if position == gap.last or"),
    ),
    *of(
        "vm/durabench_vm/contents.py",
        STATES,
        ("bisect.bisect_left(indices, durable)", "bisect.bisect_right(indices, durable)"),
        ("return (self._sums[durable] + changed) % _MODULUS", "return changed % _MODULUS"),
    ),
    # What is said of it.
    *of(
        "bench/durabench/redact.py",
        "results::test_secrets_are_taken_out results::test_what_is_no_secret_stays secrets",
        ("text = _USERINFO.sub(", "text = re.compile('(?!)(?P<scheme>)').sub("),
        ("text = _BEARER.sub(", "text = re.compile('(?!)(?P<name>)').sub("),
        ("return _AWS_ID.sub(MASK, text)", "return text"),
        ("return _by_name(KNOWN.hidden(text))", "return _by_name(text)"),
        ("hidden = _OPTION.fullmatch(argument) is not None", "hidden = False"),
        ("|credentials?|signature|", "|credentials?|"),
        ("found |= {html.escape(one), html", "found |= {html"),
        ("            if not all(map(_PLAIN_MEMBER.fullmatch, members[number + 1 :])):\n                break\n", ""),
        ("return frozenset({*registry.BACKENDS, *schemes,", "return frozenset({*schemes,"),
        ("sorted(forms, key=lambda form: (-len(form), form))", "sorted(forms, key=lambda form: (len(form), form))"),
    ),
    *of(
        REPORT + "pick.py",
        "pick",
        ("any(cell.tier == DURABLE for cell in mine)}", "mine}"),
        ("kept = {label: mine for label, mine in durable.items() if against[label] is None}", "kept = durable"),
        ("if value - best_ms <= (floor_moved_ms or 0.0))", "if value <= best_ms)"),
        ('if cell.verdict == "kept"} if cut else None', "} if cut else None"),
        ("        if cell.tier != DURABLE:", "        if False:"),
        ("    if len(timed) > 1:\n", "    if False:\n"),
        ("(reset and cell.namespace in survived)", "reset"),
        ("best_ms, best = timed[0]", "best_ms, best = timed[-1]"),
    ),
    *of(
        REPORT + "cells.py",
        "report crash_states",
        ('if verdict in seen and verdict != "unknown"]', "if verdict in seen]"),
        ('        if row.get("control") is not None:\n            continue\n', ""),
        ('return row["verdict"] != "unknown" and row', "return row"),
        ("if cell.gaps == 0 and cell.verdict in", "if False and cell.verdict in"),
        ("if 2 * cell.struck_inside >= judged:", "if cell.struck_inside:"),
        ('if row.get("telling") is not False]', "]"),
        ('if not any(row.get("telling") is False and loses(row) for row in members):', "if True:"),
        ('gaps.add(row["gap"])', "gaps.add(len(gaps))"),
        ("low, high = loss_rate(losing, of)", "low, high = loss_rate(losing, len(counted))"),
        ("    if not against:\n        return cell\n", "    return cell\n"),
        ("low, high = loss_rate(losing, len(told))", "low, high = loss_rate(0, len(told))"),
    ),
    *of(
        REPORT + "document.py",
        "report",
        (
            'cell["verdict"] == "broken" and cell["expected"] is None for',
            'cell["verdict"] == "broken" and cell["by_name"] for',
        ),
        ('(cell["verdict"] == "not run" and cell["by_name"])', "False"),
        ("return COULD_NOT_TELL if untold or doubts else HELD", "return COULD_NOT_TELL if untold else HELD"),
    ),
    *of(
        REPORT + "compare.py",
        "compare",
        ('(self.a is None or self.a["verdict"] != "broken")', '(self.a is not None and self.a["verdict"] != "broken")'),
        ('or self.b["expected"] is not None:', "or False:"),
        ('return self.change in ("untold", "refused") or gone', "return gone"),
        ("or any(one.newly_broken for one in pairs)", "or False"),
        (
            'return COULD_NOT_TELL if untold or any(gate["untold"] for gate in told) else HELD',
            "return COULD_NOT_TELL if untold else HELD",
        ),
        ("or bool(new_doubts(made))", "or False"),
        ("    if a.methodology != b.methodology:", "    if False:"),
        ("    if worse < 0:", "    if worse > 99:"),
    ),
    *of(
        "bench/durabench/statistics.py",
        "statistics",
        ("return 0.0, 1 - TAIL ** (1 / trials)", "return 0.0, 1 - (2 * TAIL) ** (1 / trials)"),
        ("betaincinv(losing, trials - losing + 1, TAIL)", "betaincinv(losing + 1, trials - losing, TAIL)"),
    ),
    # What is tried, and what a driver tells.
    *of(
        "bench/durabench/schedule.py",
        "schedule",
        ("WINDOWS_SPANNED * window_s", "window_s / 2"),
        ("max(windows, default=0.0)", "min(windows, default=0.0)"),
        ('getattr(backend, "mock", False)', "False"),
        ("fault.name not in URL_FAULTS:", "False:"),
        ("live = [cell for cell in found if cell.verdict is None]", "live = list(found)"),
        ('seed=Random(f"{asked.seed}/{number}")', 'seed=Random(f"{asked.seed}/0")'),
        ("members.sort(key=lambda plan: faults.load(plan.fault).destroys is not Domain.NOTHING)", "pass"),
        ("if seen.setdefault(target.label, target) != target:", "if False:"),
    ),
    *of(
        "bench/durabench/driver.py",
        "driver",
        ("isinstance(error, MemoryError | ImportError) or", "isinstance(error, ImportError) or"),
        ("isinstance(error, OSError) and error.errno in LACKS", "False"),
        ('or isinstance(error, NotReady | ConnectionError) or "Timeout"', 'or "Timeout"'),
        (
            'tell({"e": "down", "ns": names, "why": _why(error)})',
            'tell({"e": "down", "ns": [*order["targets"]], "why": _why(error)})',
        ),
        ("    for key in sorted({*listed, *asked}):", "    for key in listed:"),
        (
            "            return _until_ready(partial(self._afresh, ask), max(0.0, self._end - time.monotonic()))",
            "            raise",
        ),
        ("        tell_found(heard.read)", "        pass"),
        ("    if op.key in read:", "    if read.get(op.key):"),
    ),
]


class Overlay:
    """A copy of the packages that comes before the checkout's on the import path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, tests: tuple[str, ...]) -> int:
        """pytest's exit status; 1 where the tests hang."""
        first = os.pathsep.join(str((self.folder / package).parent) for package in PACKAGES)
        env = {**os.environ, "PYTHONPATH": first, "PYTHONDONTWRITEBYTECODE": "1", "DURABENCH_SHARED_DEVICE": "1"}
        env |= {"HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"), "CI": ""}
        argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
        with (self.folder / "said").open("w") as said:
            try:
                done = subprocess.run(argv, cwd=ROOT, env=env, stdout=said, stderr=said, timeout=LONGEST_S, check=False)
            except subprocess.TimeoutExpired:
                return 1
        return done.returncode

    def under(self, row: Sabotage) -> int:
        """The exit status of a row's tests with it in force."""
        changed = self.folder / row.file
        changed.write_text(row.source.replace(row.old, row.new))
        try:
            return self.run(row.tests)
        finally:
            changed.write_text(row.source)


def outcome(row: Sabotage) -> str:
    """``caught``, ``survived``, or that the row is no sabotage at all."""
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        overlay = Overlay(Path(folder))
        status = overlay.under(row)
        said = (Path(folder) / "said").read_text().strip().splitlines()[-1:]
    return {0: "survived", 1: "caught"}.get(status, f"no sabotage, pytest ended with {status}: {said}")


def main() -> int:
    """Run the table; 1 where a row survives that nobody accepted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="rows, counted from 0")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    asked = parser.parse_args()
    numbers = asked.only or range(len(TABLE))
    tests = tuple(sorted({test for number in numbers for test in TABLE[number].tests}))
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        overlay = Overlay(Path(folder))
        if overlay.run(tests) != 0:
            print((Path(folder) / "said").read_text())
            print("the tests fail without any sabotage", file=sys.stderr)
            return 2
    wrong = caught = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = pool.map(outcome, [TABLE[number] for number in numbers])
        for number, said in zip(numbers, found, strict=True):
            row = TABLE[number]
            caught += said == "caught"
            wrong += said != "caught" and not (said == "survived" and row.survives)
            why = f" ({row.survives})" if said == "survived" and row.survives else ""
            print(f"{number:3} {said}{why}: {row.file}: {' '.join(row.old.split())[:80]}", flush=True)
    print(f"{caught} of {len(numbers)} caught")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
