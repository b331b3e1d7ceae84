"""What a program stores step by step: built-in traces, and the user's own from a file.

A step has metadata, put every time, and data, which is only new where it *changed*. Data that did not change is put
again by a program that writes whole checkpoints, and is not by one that splits them.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durabench import outside
from durabench.row import LARGEST
from durabench.workload import DATA_BYTES, DATA_EVERY_STEPS, METADATA_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

FIELDS = ("step", "metadata_bytes", "data_bytes", "changed")
YES, NO = ("true", "1", "yes"), ("false", "0", "no")
HEADLINE_DATA_BYTES = 16 << 20


class TraceError(ValueError):
    """A trace that cannot be read; the message names the line (exit 2)."""


@dataclass(frozen=True)
class Step:
    """Sizes of one step, in bytes, and whether its data is new."""

    metadata_bytes: int
    data_bytes: int
    changed: bool


@dataclass(frozen=True)
class Trace:
    """A program's steps, in order, under the name they are printed with."""

    name: str
    steps: Sequence[Step]

    def first(self, steps: int) -> Trace:
        """Its beginning."""
        return Trace(self.name, self.steps[:steps])

    @property
    def changes(self) -> int:
        """In how many steps the data is new."""
        return sum(step.changed for step in self.steps)

    @property
    def whole_bytes(self) -> int:
        """Payload of all steps where each is written whole."""
        return sum(step.metadata_bytes + step.data_bytes for step in self.steps)

    @property
    def split_bytes(self) -> int:
        """Payload of all steps where data is written only when it changed."""
        return sum(step.metadata_bytes + step.data_bytes * step.changed for step in self.steps)


def agent(steps: int) -> Trace:
    """The workload ``agent``: 2 KiB of metadata at every step, 1 MiB of data that changes in one step of five."""
    made = [Step(METADATA_BYTES, DATA_BYTES, step % DATA_EVERY_STEPS == 0) for step in range(steps)]
    return Trace("agent", made)


def once(steps: int) -> Trace:
    """2 KiB of metadata at every step, 16 MiB of data that are written once."""
    return Trace("once", [Step(METADATA_BYTES, HEADLINE_DATA_BYTES, step == 0) for step in range(steps)])


def growing(steps: int) -> Trace:
    """2 KiB of metadata at every step, data that grows by 16 KiB and so is always new: a history in one value."""
    return Trace("growing", [Step(METADATA_BYTES, 16384 * (step + 1), changed=True) for step in range(steps)])


BUILT_IN = {"agent": agent, "once": once, "growing": growing}


def read(path: Path) -> Trace:
    """A trace of a JSONL file (an object a line) or a CSV file (with a heading): step, metadata_bytes, data_bytes,
    changed. TraceError names the line and the field that is missing, negative or no number.
    """
    try:
        content = outside.text(path)
    except OSError as error:
        message = f"--trace {path}: {error.strerror}"
        raise TraceError(message) from None
    except ValueError as error:
        why = "no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        message = f"--trace {path}: {why}"
        raise TraceError(message) from None
    lines = _of_json(path, content) if content.lstrip().startswith("{") else _of_csv(path, content)
    steps = [_step(f"--trace {path}, line {number}", fields) for number, fields in lines]
    if not steps:
        message = f"--trace {path} has no steps"
        raise TraceError(message)
    return Trace(path.name, steps)


def _of_json(path: Path, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = outside.json_of(line.encode())
        except ValueError as error:
            message = f"--trace {path}, line {number}: no JSON object: {outside.wrong(error)}"
            raise TraceError(message) from None
        if not isinstance(fields, dict):
            message = f"--trace {path}, line {number}: no JSON object"
            raise TraceError(message)
        yield number, fields


def _of_csv(path: Path, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(content, newline=""))
    try:
        yield from _of_reader(path, reader)
    except csv.Error as error:
        message = f"--trace {path}, line {reader.line_num}: no CSV: {error}"
        raise TraceError(message) from None


def _of_reader(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    missing = [name for name in FIELDS if name not in (reader.fieldnames or ())]
    if missing:
        message = f"--trace {path}, line 1: the heading has no {', '.join(missing)} (it names {', '.join(FIELDS)})"
        raise TraceError(message)
    for fields in reader:
        yield reader.line_num, fields


def _step(where: str, fields: Mapping[str, Any]) -> Step:
    for name in FIELDS:
        if fields.get(name) in (None, ""):
            message = f"{where}: {name} is missing"
            raise TraceError(message)
    _number(where, "step", fields["step"])
    return Step(
        _number(where, "metadata_bytes", fields["metadata_bytes"]),
        _number(where, "data_bytes", fields["data_bytes"]),
        _truth(where, fields["changed"]),
    )


def _number(where: str, name: str, value: Any) -> int:
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not 0 <= number <= LARGEST:
        message = f"{where}: {name} is {outside.quoted(value)}, not a number of 0 or more"
        raise TraceError(message)
    return number


def _truth(where: str, value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in YES + NO:
        message = f"{where}: changed is {outside.quoted(value)}, not true or false"
        raise TraceError(message)
    return word in YES
