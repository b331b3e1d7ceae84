"""The folder of one run: written so that a crash of durabench loses at most the trials in flight.

::

    results/local/2026-12-01T101500Z-<machine8>-<profile>/
      run.json       written once, before the first trial
      trials.jsonl   one row per trial and namespace, all rows of a trial in one write, then fsync
      floors.jsonl   one row per floor measurement
      samples.i64    latencies in ns, little-endian int64; a row has samples_at, samples_n
      histories/     <trial>.jsonl.gz, the controller's events
      recordings/    of losing trials
      done.json      written last; a folder that has it never changes again

A folder is written by one process at a time, from one thread. The lock is on the folder itself and dies with its
holder. What a reader finds torn at the end is dropped and counted, never fatal.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import sys
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench import outside, stored
from durabench.host import commit_facts, machine8, machine_facts, why_no_latency
from durabench.outside import Malformed
from durabench.redact import as_json_lines, redact, redact_all, redact_argv
from durabench.row import FLOOR, FLOORS, PLANS, ROW, ROWS, Row, Schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from durabench.history import Event

__all__ = [
    "FLOOR",
    "METHODOLOGY",
    "REFUSALS",
    "ROW",
    "SCHEMA_VERSION",
    "Busy",
    "Differs",
    "Finished",
    "Folder",
    "Malformed",
    "NewerSchema",
    "NotAFolder",
    "NotEmpty",
    "NotWritable",
    "ResultsFull",
    "Row",
    "Tally",
    "commit_facts",
    "distinct",
    "is_free",
    "machine8",
    "machine_facts",
    "member",
    "redact",
    "redact_all",
    "redact_argv",
    "runs_in",
    "why_no_latency",
]

SCHEMA_VERSION = 3
"""Of run.json, the rows and the JSON documents made of them. History (also in results/README.md):

1  2026-12  first
2  2026-12  run.json: ``plan`` names what many trials share once, in ``plan_shared``; ``methodology``
3  2026-12  ``url`` in rows and cells, and in the names of ``promises``, ``targets`` and ``versions``
"""
METHODOLOGY = 2
"""How trials are made and judged, where that changes what a result means; results before and after an entry are not
compared. Log (also in results/README.md):

1  2026-12  first
"""

MUST_AGREE = ("machine", "versions", "commit", "plan")
"""Members of run.json in which a resumed run must equal the one that was begun (of the machine: its id)."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAMPLE_BYTES = 8
_PART = ".part"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_S = 2.0
"""How long a resume waits: drivers of a run that was just killed hold the lock until they are gone."""


class NotAFolder(ValueError):
    """No results lie there (exit 2)."""


class NewerSchema(ValueError):
    """The results were written by a newer durabench (exit 2)."""


class NotEmpty(ValueError):
    """``--out`` names something that is already there (exit 2)."""


class NotWritable(RuntimeError):
    """The folder cannot be made (exit 2)."""


class Busy(RuntimeError):
    """Another process is writing to the folder (exit 2)."""


class Finished(ValueError):
    """The run is complete and its folder immutable (exit 2)."""


class Differs(ValueError):
    """A resume on another machine, other versions, another commit or another plan (exit 2)."""


class ResultsFull(RuntimeError):
    """The disk of the results is full (exit 3). What was written before is kept and readable."""


REFUSALS = (NotAFolder, Malformed, NewerSchema, NotEmpty, NotWritable, Busy, Finished, Differs)
"""What a command answers with one line and exit 2; every message names the mend."""


@dataclass
class Tally:
    """What became of the lines of trials.jsonl while they were read.

    ``dropped``: lines that are torn or belong to a trial that is not whole. ``repeated``: rows of trials that had been
    recorded before (the first recording counts). ``whole_bytes``: length of the file up to the last trial that is
    whole.
    """

    trials: int = 0
    dropped: int = 0
    repeated: int = 0
    whole_bytes: int = 0


@dataclass
class Folder:
    """The results of one run. `create`, `create_at` and `resume` give one to write to, `open` one to read."""

    path: Path
    forget: str = ""
    """A path of this machine that is not to be in what is written, such as the scratch directory: it becomes ``…``."""
    _lock: int | None = None
    _files: dict[str, int] = field(default_factory=dict)

    # ------------------------------------------------------------------ making

    @classmethod
    def create(cls, parent: Path, profile: str, host: str, *, now: datetime | None = None) -> Folder:
        """A new folder below ``parent`` that nobody else has: <time>-<host>-<profile>, with -2… where that is taken."""
        moment = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H%M%SZ")
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(profile).stem if profile.endswith(".toml") else profile) or "run"
        for number in range(1, 1000):
            path = parent / (f"{moment}-{host}-{plain}" + (f"-{number}" if number > 1 else ""))
            try:
                parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()
            except FileExistsError:
                if not parent.is_dir():
                    raise _not_writable(parent, "it is not a directory") from None
                continue
            except OSError as error:
                raise _not_writable(parent, error.strerror) from None
            return cls._claimed(path)
        raise _not_writable(parent, f"too many runs named {moment}-{host}-{plain}")

    @classmethod
    def create_at(cls, path: Path) -> Folder:
        """The folder ``path`` itself (``--out``): new, or an empty directory. NotEmpty, NotWritable otherwise."""
        if path.is_symlink():
            raise _not_writable(path, "it is a link: name the folder itself")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise _not_writable(path, "it is not a directory") from None
        except OSError as error:
            raise _not_writable(path, error.strerror) from None
        return cls._claimed(path)

    @classmethod
    def _claimed(cls, path: Path) -> Folder:
        folder = cls(path, _lock=_locked(path, 0.0))
        if not is_free(path):  # asked under the lock, so that of two creators one is refused
            folder.close()
            message = f"{path} is not empty; --out takes a new or empty folder, --resume goes on with an unfinished run"
            raise NotEmpty(message)
        _sync_directory(path.parent)
        return folder

    @classmethod
    def resume(cls, path: Path, run: Mapping[str, Any], *, patience_s: float = _LOCK_S) -> Folder:
        """The unfinished folder ``path``, to go on with the run that ``run`` describes as it would begin now.

        What is torn at the end of its files is cut off. Busy, Finished, Differs (names what differs), NotAFolder,
        NewerSchema.
        """
        begun = cls.open(path)
        folder = cls(path, _lock=_locked(path, patience_s))
        try:
            refuse_finished(begun)
            was = begun.run
            if "plan" in was:
                was["plan"] = begun.plan()
            _compare(path, was, outside.shown(json.loads(json.dumps(redact_all(dict(run))))))
            _cut_torn(begun)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> Folder:
        """An existing folder, for reading. NotAFolder, NewerSchema."""
        folder = cls(path)
        run = folder.run
        version = run["schema_version"]
        if version > SCHEMA_VERSION:
            wrote = run.get("durabench")
            needed = f"durabench {wrote} or newer, which wrote it" if wrote else "the durabench that wrote it, or newer"
            message = (
                f"{path} has schema {version} and needs {needed}; this one knows schemas up to "
                f"{SCHEMA_VERSION}: pip install --upgrade durabench"
            )
            raise NewerSchema(message)
        return folder

    # ------------------------------------------------------------------ writing

    def begin(self, run: Mapping[str, Any]) -> None:
        """Write run.json, once, before the first trial; adds ``schema_version``, ``methodology``, ``durabench`` and
        ``created``, takes secrets out.

        Members that are read again: ``plan`` (mappings with ``trial`` and ``seed``), ``machine`` (of `machine_facts`),
        ``versions``, ``commit``, ``command``, ``profile``, ``seed``, and ``cells``: every cell of the run, as
        a mapping of backend, setting, tier, namespace, workload, fault, lane, host, and, where it is known beforehand
        that none of its trials will be judged, ``verdict`` (`not rated`, `not run`, or the dash for what cannot happen
        here) and ``why``.
        """
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        numbers = {"schema_version": SCHEMA_VERSION, "methodology": METHODOLOGY, "durabench": _version()}
        self._write_once("run.json", {**numbers, "created": created, **_factored(run)})

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record one whole trial: all its rows in one write, on the disk when this returns.

        ``attempt`` is 1 where it is missing, ``rows`` is counted here. ValueError for a row that `row.ROW` does not
        allow, and for rows of more than one trial; ResultsFull when there is no room.
        """
        whole = [ROWS.checked({"attempt": 1, **row, "rows": len(rows)}) for row in rows]
        if len({(row["trial"], row["attempt"]) for row in whole}) != 1:
            message = "rows of exactly one trial are recorded at a time"
            raise ValueError(message)
        self._append("trials.jsonl", self._lines(whole))

    def append_floor(self, row: Mapping[str, Any]) -> None:
        """Record one floor measurement (`row.FLOOR`), on the disk when this returns."""
        self._append("floors.jsonl", self._lines([FLOORS.checked(row)]))

    def append_plan(self, row: Mapping[str, Any]) -> None:
        """Record one trial of a plan (`row.PLAN`), on the disk when this returns."""
        self._append("plan.jsonl", self._lines([PLANS.checked(row)]))

    def write_plan(self, document: Mapping[str, Any]) -> None:
        """Write plan.json, once, before done.json: what the rows add up to, and what is recommended."""
        self._write_once("plan.json", {"schema_version": SCHEMA_VERSION, **document})

    def append_samples(self, latencies_ns: Iterable[int]) -> tuple[int, int]:
        """Store latencies; returns ``(samples_at, samples_n)`` for the row they belong to, which is recorded after."""
        samples = array("q", (int(latency) for latency in latencies_ns))
        count = len(samples)
        if sys.byteorder == "big":
            samples.byteswap()
        end = self._append("samples.i64", samples.tobytes())
        return end // _SAMPLE_BYTES - count, count

    def write_history(self, trial: int, events: Iterable[Event], attempt: int = 1) -> Path:
        """Store the controller's events of a trial, before its rows; the same events give the same bytes.

        A history without rows is of a trial that never ended, and is replaced when that is run again.
        """
        path = self._history_path(trial, attempt)
        self._whole(path, gzip.compress(self._lines(events), 6, mtime=0))
        return path

    def has_recording(self, name: str) -> bool:
        """Whether the recording ``name`` is kept, so that its crash states can be rebuilt."""
        try:
            with outside.opened(self.path, f"recordings/{stored.file_name(name)}.gz"):
                return True
        except (OSError, ValueError):
            return False

    def finish(self, exit_status: int, **more: Any) -> None:
        """Write done.json, the last thing: from now on the folder never changes. Lets go of it.

        ``more``: such as ``not_run`` (cells as in run.json, with ``why``), ``stopped`` (one word: why cells without
        rows have none, such as budget or interrupted) and ``controls``.
        """
        counts = {"trials": sum(1 for _ in self.each_trial()), "floors": len(self.floors())}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        done = {"schema_version": SCHEMA_VERSION, "time": now, "exit_status": exit_status, "counts": counts, **more}
        self._write_once("done.json", done)
        self.close()

    def close(self) -> None:
        """Let go of the folder; idempotent. Without done.json it stays unfinished, and can be resumed."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ------------------------------------------------------------------ reading

    @property
    def run(self) -> dict[str, Any]:
        """run.json. NotAFolder where there is none."""
        return member(self.path, "run.json")

    @property
    def finished(self) -> bool:
        """Whether done.json is there."""
        return (self.path / "done.json").exists()

    @property
    def methodology(self) -> int:
        """Which entry of the methodology log it was made under."""
        return int(self.run.get("methodology", 1))

    @property
    def done(self) -> dict[str, Any] | None:
        """done.json; None while the run is unfinished."""
        return member(self.path, "done.json") if self.finished else None

    def trials(self) -> list[Row]:
        """The rows of every trial that is whole, in the order in which they ended."""
        return [row for trial in self.each_trial() for row in trial]

    def each_trial(self, tally: Tally | None = None) -> Iterator[list[Row]]:
        """The rows of one whole trial after the other, for runs too large to hold; counts up ``tally`` meanwhile."""
        return _whole_trials(self.path, Tally() if tally is None else tally)

    def floors(self) -> list[Row]:
        """The floor measurements, in order; a torn last one is dropped."""
        return _whole_lines(self.path, "floors.jsonl", FLOORS)[0]

    def plan_rows(self) -> list[Row]:
        """The trials of a plan, in order; a torn last one is dropped."""
        return _whole_lines(self.path, "plan.jsonl", PLANS)[0]

    @property
    def plan_document(self) -> dict[str, Any] | None:
        """plan.json; None where this is no plan, or one that has not ended."""
        return member(self.path, "plan.json") if (self.path / "plan.json").exists() else None

    @property
    def whole_plan(self) -> dict[str, Any] | None:
        """plan.json with all that is shown of a plan; None where there is none. NotAFolder where it lacks something."""
        plan = self.plan_document
        lacks = [name for name in ("machine", "seed", "goal", "floor") if plan is not None and plan[name] is None]
        if lacks:
            message = f"{self.path}/plan.json is not what durabench writes: it has no {lacks[0]}; {stored.MEND}"
            raise NotAFolder(message)
        return plan

    def samples(self, at: int | None, n: int | None) -> array[int]:
        """The latencies in ns that a row points to; empty where it has none, or where they are no longer there."""
        samples = array("q")
        if at is None or not n:
            return samples
        with suppress(FileNotFoundError), outside.opened(self.path, "samples.i64") as file:
            if (at + n) * _SAMPLE_BYTES > os.fstat(file.fileno()).st_size:
                return samples
            file.seek(at * _SAMPLE_BYTES)
            samples.frombytes(file.read(n * _SAMPLE_BYTES))
        if sys.byteorder == "big":
            samples.byteswap()
        if len(samples) and min(samples) < 0:
            message = f"{self.path / 'samples.i64'} is not what durabench writes: a latency below 0; {stored.MEND}"
            raise Malformed(message)
        return samples

    @staticmethod
    def history_name(row: Mapping[str, Any]) -> str:
        """Where in the folder the history of a row's trial stands."""
        trial, attempt = row["trial"], row["attempt"]
        return f"histories/{trial}.jsonl.gz" if attempt == 1 else f"histories/{trial}.{attempt}.jsonl.gz"

    def history(self, trial: int, attempt: int = 1) -> list[Event]:
        """The events of a trial. FileNotFoundError where they are gone (a machine that crashed may keep rows only).
        Malformed.
        """
        name = self.history_name({"trial": trial, "attempt": attempt})
        try:
            lines = outside.unpacked(self.path, name).splitlines()
        except EOFError:
            message = f"{self.path / name} is torn"
            raise FileNotFoundError(message) from None
        events = []
        for number, line in enumerate(lines, 1):
            try:
                events.append(stored.event(line))
            except ValueError as error:
                where = f"{self.path / name}, line {number}"
                message = f"{where} is not what durabench writes: {outside.wrong(error)}; {stored.MEND}"
                raise Malformed(message) from None
        return events

    def plan(self) -> list[Row]:
        """Every planned trial with all its members, in order, whatever schema it was written in."""
        run = self.run
        rows = []
        for row in run.get("plan", ()):
            shared = run["plan_shared"][row.pop("as")] if "as" in row else {}
            rows.append({**shared, **row})
        return rows

    def histories(self) -> set[str]:
        """The names (`history_name`) of the histories that are there, torn ones included."""
        return {f"histories/{path.name}" for path in self.path.glob("histories/*.jsonl.gz")}

    def remaining(self) -> list[int]:
        """Numbers of the planned trials that have no rows yet, in the plan's order."""
        ended = {rows[0]["trial"] for rows in self.each_trial()}
        return [trial["trial"] for trial in self.run.get("plan", ()) if trial["trial"] not in ended]

    # ------------------------------------------------------------------ inside

    def _history_path(self, trial: int, attempt: int) -> Path:
        return self.path / self.history_name({"trial": trial, "attempt": attempt})

    def _append(self, name: str, content: bytes) -> int:
        """Append and sync; all of it or, where there is no room, nothing. Returns the file's new length."""
        if self._lock is None:
            message = f"{self.path} is open for reading"
            raise RuntimeError(message)
        if not (self.path / "run.json").exists():
            message = "begin() comes before the first row: a trial without its plan cannot be judged"
            raise RuntimeError(message)
        if name not in self._files:
            self._files[name] = os.open(self.path / name, _APPEND, 0o644)
            _sync_directory(self.path)
        descriptor = self._files[name]
        before = os.fstat(descriptor).st_size
        try:
            _write(descriptor, content)
            os.fsync(descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(descriptor, before)
            raise self._full(error) from error
        return before + len(content)

    def _whole(self, path: Path, content: bytes, *, sync: bool = False) -> None:
        """A file that is there with all its bytes, or not at all."""
        part = path.with_name(f".{path.name}{_PART}")
        try:
            path.parent.mkdir(exist_ok=True)
            part.unlink(missing_ok=True)  # of a process that was killed: one at a time writes here
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                _write(descriptor, content)
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.replace(path)
            if sync:
                _sync_directory(path.parent)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise self._full(error) from error

    def _write_once(self, name: str, content: Mapping[str, Any]) -> None:
        if self._lock is None:
            message = f"{self.path} is open for reading"
            raise RuntimeError(message)
        path = self.path / name
        if path.exists():
            message = f"{path} is written once"
            raise RuntimeError(message)
        self._whole(path, self._forgotten(_document(redact_all(dict(content)))).encode(), sync=True)

    def _lines(self, rows: Iterable[Mapping[str, Any]]) -> bytes:
        return self._forgotten(as_json_lines(rows)).encode()

    def _forgotten(self, text: str) -> str:
        return text.replace(json.dumps(self.forget, ensure_ascii=False)[1:-1], "…") if self.forget else text

    def _full(self, error: OSError) -> Exception:
        if error.errno not in _NO_ROOM:
            return error
        kept = 0
        with suppress(Malformed):  # that there is no room is what must be told
            kept = sum(1 for _ in self.each_trial())
        said = f"no room left for the results ({error.strerror}): {kept} trials are kept in {self.path} and can be read"
        return ResultsFull(f"{said}; make room, then go on with --resume {self.path}")


def _version() -> str | None:
    """Of the installed package, a checkout's own included; None where it runs without being installed."""
    try:
        return metadata.version("durabench")
    except metadata.PackageNotFoundError:
        return None


def _factored(run: Mapping[str, Any]) -> dict[str, Any]:
    """run.json with a plan in which what many trials have in common is named once: each keeps its number and its seed,
    and says with ``as`` which of ``plan_shared`` has the rest. A plan of 30,000 trials would else be most of a run.
    """
    if "plan" not in run:
        return dict(run)
    shared: dict[str, int] = {}
    rows = []
    for trial in run["plan"]:
        rest = json.dumps({name: value for name, value in trial.items() if name not in ("trial", "seed")})
        number = shared.setdefault(rest, len(shared))
        rows.append({"trial": trial["trial"], "seed": trial["seed"], "as": number})
    return {**run, "plan_shared": [json.loads(rest) for rest in shared], "plan": rows}


def _document(content: Mapping[str, Any]) -> str:
    """JSON that a person can read and a diff can follow: a line per entry of a list of mappings."""
    write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    members = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n  " + ",\n  ".join(map(write.encode, value)) + "\n ]"
        else:
            text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).replace("\n", "\n ")
        members.append(f" {write.encode(name)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}\n"


def _locked(path: Path, patience_s: float) -> int:
    """A lock on the folder, held until the descriptor is closed or its process dies. Busy when another has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            # Not fcntl.lockf: that would be let go as soon as anything in this process opens and closes the file.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                message = f"another durabench is writing to {path}; wait until it has ended, or choose another folder"
                raise Busy(message) from None
            time.sleep(0.02)
        else:
            return descriptor


def is_free(path: Path) -> bool:
    """Whether a folder holds nothing, or what a run left that was killed while it wrote its very first file."""
    return all(entry.name == f".run.json{_PART}" for entry in path.iterdir())


def runs_in(paths: Iterable[Path]) -> list[Folder]:
    """The runs that ``paths`` name, for reading: result folders, and folders in which such lie side by side, as they do
    where runs of several hosts were copied together. NotAFolder, NewerSchema.
    """
    found = []
    for path in paths:
        inside = [] if (path / "run.json").exists() or not path.is_dir() else sorted(path.glob("*/run.json"))
        found += [Folder.open(each.parent) for each in inside] if inside else [Folder.open(path)]
    return found


def distinct(folders: Iterable[Folder]) -> list[Folder]:
    """Each run once: of copies of one run the one that knows most (finished, then the most trials), in its first place.

    A run is known by the bytes of its run.json, written once, with every seed and the moment of its beginning, and by
    its first row.
    """
    best: dict[bytes, tuple[bool, int, Folder]] = {}
    for folder in folders:
        rows = folder.path / "trials.jsonl"
        first = next((json.dumps(row) for row, _ in _lines_of(folder.path, "trials.jsonl", ROWS)), "")
        digest = hashlib.sha256(outside.content(folder.path, "run.json") + first.encode()).digest()
        knows = (folder.finished, rows.stat().st_size if rows.exists() else 0, folder)
        if digest not in best or knows[:2] > best[digest][:2]:
            best[digest] = knows
    return [folder for _, _, folder in best.values()]


def refuse_finished(folder: Folder) -> None:
    if folder.finished:
        message = f"{folder.path} is complete (it has done.json) and never changes again; start a new run"
        raise Finished(message)


def _cut_torn(folder: Folder) -> None:
    """Cut off what a crash left half-written, so that what is appended next stands on its own line."""
    tally = Tally()
    pointed = [_samples_end(row) for trial in folder.each_trial(tally) for row in trial]
    floors, floors_end = _whole_lines(folder.path, "floors.jsonl", FLOORS)
    pointed += map(_samples_end, floors)
    ends = {
        "trials.jsonl": tally.whole_bytes,
        "floors.jsonl": floors_end,
        "samples.i64": max(pointed, default=0) * _SAMPLE_BYTES,
    }
    for name, end in ends.items():
        path = folder.path / name
        if path.exists() and path.stat().st_size > end:
            os.truncate(path, end)
    for part in (*folder.path.glob(".*.json.*"), *folder.path.glob("histories/.*")):
        part.unlink()


def _compare(path: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Differs, naming every difference that makes the rows of two runs incomparable."""
    differences: list[str] = []
    for name in MUST_AGREE:
        old, new = begun.get(name), now.get(name)
        if name == "machine":  # the rest of it may change with a reboot
            old, new = ((facts or {}).get("id") for facts in (old, new))
        differences += _differences(name, old, new)
    if differences:
        shown = "; ".join(differences[:5]) + ("" if len(differences) <= 5 else f"; and {len(differences) - 5} more")
        message = f"{path} cannot be resumed here: {shown}. Start a new run, or go back to what it was begun with"
        raise Differs(message)


def _differences(name: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [line for key in keys for line in _differences(f"{name}.{key}", old.get(key), new.get(key))]
    if isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(zip(old, new, strict=False))
        first = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
        return [f"{name} differs from entry {first} on ({len(old)} entries, now {len(new)})"]
    return [f"{name} was {old}, is {new}"]


def member(path: Path, name: str) -> dict[str, Any]:
    """A document of the folder. NotAFolder says what is wrong."""
    if not path.exists():
        message = f"{path} does not exist; {stored.MEND}"
        raise NotAFolder(message)
    try:
        return stored.document(path, name)
    except (FileNotFoundError, NotADirectoryError):
        message = f"{path} has no {name}: not a results folder; {stored.MEND}"
        raise NotAFolder(message) from None
    except Malformed as error:
        raise NotAFolder(str(error)) from None
    except OSError as error:
        message = f"{path / name} cannot be read: {error.strerror}; {stored.MEND}"
        raise NotAFolder(message) from None


def _samples_end(row: Row) -> int:
    return (row["samples_at"] or 0) + (row["samples_n"] or 0) if row.get("samples_n") else 0


def _lines_of(path: Path, name: str, schema: Schema) -> Iterator[tuple[Row | None, int]]:
    """Each line of a file as a row, None where it is torn, with its length in bytes. Malformed."""
    with suppress(FileNotFoundError), outside.opened(path, name) as file:
        for number, line in enumerate(iter(partial(file.readline, outside.LINE_BYTES), b""), 1):
            try:
                yield schema.row(line) if line.endswith(b"\n") else None, len(line)
            except ValueError as error:
                message = f"{path / name}, line {number} is no row: {outside.wrong(error)}; {stored.MEND}"
                raise Malformed(message) from None


def _whole_lines(path: Path, name: str, schema: Schema) -> tuple[list[Row], int]:
    """The rows of all whole lines, and where the last of them ends."""
    rows: list[Row] = []
    at = whole = 0
    for row, length in _lines_of(path, name, schema):
        at += length
        if row is not None:
            rows.append(row)
            whole = at
    return rows, whole


def _whole_trials(path: Path, tally: Tally) -> Iterator[list[Row]]:
    """Trials are all or nothing: rows count only where their trial has as many as it says."""
    seen: set[int] = set()
    at = 0
    for key, lines in groupby(_lines_of(path, "trials.jsonl", ROWS), key=lambda line: _trial_of(line[0])):
        group = list(lines)
        at += sum(length for _, length in group)
        rows = [row for row, _ in group if row is not None]
        if key is None or len(rows) != rows[0]["rows"]:
            tally.dropped += len(group)
            continue
        tally.whole_bytes = at
        if key[0] in seen:  # a distributed executor ran it twice; taking the later would choose among outcomes
            tally.repeated += len(rows)
            continue
        seen.add(key[0])
        tally.trials += 1
        yield rows


def _trial_of(row: Row | None) -> tuple[int, int] | None:
    return None if row is None else (row["trial"], row["attempt"])


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_writable(path: Path, why: str | None) -> NotWritable:
    return NotWritable(f"no results folder can be made at {path}: {why}; choose another place with --out")
