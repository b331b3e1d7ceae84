"""The fields of a result: name, type, unit and meaning, in the order in which they are written.

These tables are the public contract of the result files. What is written is checked against them, what is read passes a
reader that is made of them, and the tables in ``results/README.md`` are rendered from them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from durabench import outside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Row = dict[str, Any]
"""One line of trials.jsonl or floors.jsonl: a plain mapping of JSON values. Not measured is None, never 0."""

Type = Literal["integer", "number", "string", "boolean"]
LARGEST = (1 << 63) - 1
"""Of an integer."""
FARTHEST = 1e15
"""Of a number from 0: a thousand times the seconds since there are people."""
SIGNED = -LARGEST


@dataclass(frozen=True)
class Field:
    """One field: its JSON ``type``, its ``unit`` ("" for none) and what it means. ``required`` is never null.

    ``words``: where only these are possible. ``least``: of an integer or a number; `SIGNED` for a difference.
    """

    type: Type
    unit: str
    meaning: str
    required: bool = False
    words: Sequence[str] = ()
    least: int = 0

    @property
    def schema(self) -> Any:
        """The type that a value of it has."""
        if self.words:
            return Literal[tuple(self.words)]
        kinds: Mapping[Type, Any] = {
            "integer": Annotated[int, Meta(ge=self.least, le=LARGEST)],
            "number": Annotated[float, Meta(ge=max(self.least, -FARTHEST), le=FARTHEST)],
            "string": str,
            "boolean": bool,
        }
        return kinds[self.type]


VERDICTS = ("kept", "within", "no-promise", "unknown", "broken")
STRUCK = ("inside", "before", "after")
CONTROLS = ("negative", "positive", "detector")
DOMAINS = ("nothing", "client", "server", "machine", "drive", "flushed", "at-rest")

ROW: Mapping[str, Field] = {
    "trial": Field("integer", "", "number of the trial in the order of the plan", required=True),
    "attempt": Field(
        "integer", "", "1; more where a resumed run recorded again or a trial ran again", required=True, least=1
    ),
    "rows": Field(
        "integer", "rows", "how many this trial has; one with fewer is torn and dropped", required=True, least=1
    ),
    "backend": Field("string", "", "name of the backend", required=True),
    "setting": Field("string", "", "its durability setting; `live` for a URL", required=True),
    "url": Field("string", "", "where it is, secrets taken out; null where the setting is not `live`"),
    "tier": Field("string", "", "the promise in two letters: T3, T2 with its seconds, T1, T0", required=True),
    "namespace": Field("string", "", "metadata or data", required=True, words=("metadata", "data")),
    "workload": Field("string", "", "what the writers did", required=True),
    "writers": Field("integer", "", "how many writers"),
    "fault": Field("string", "", "what was done", required=True),
    "destroyed": Field(
        "string", "", "the domain: nothing, client, server, machine, drive, flushed, at-rest", words=DOMAINS
    ),
    "lane": Field("string", "", "where the evidence comes from: here, guest, swap, loop", required=True),
    "host": Field("string", "", "8 hex digits of the machine and the device under test", required=True),
    "driver": Field("string", "", "how the writing process came up: forked from a warm parent, or a fresh interpreter"),
    "seed": Field("integer", "", "the trial's own seed", required=True, least=SIGNED),
    "partner": Field("string", "", "backend:setting (and URL) of the other namespace, where it is another one"),
    "filesystem": Field("string", "", "file system under test, with its options, where the trial made it"),
    "mount": Field("string", "", "mount options of the directory under test"),
    "server_kill": Field("string", "", "tree, or main for the main process only"),
    "flush_delay_s": Field("number", "s", "by how much the power disk answered flushes late"),
    "started": Field("string", "UTC", "when the trial began"),
    "duration_s": Field("number", "s", "how long the whole trial took"),
    "victim": Field("integer", "", "sequence of the put that was to be struck"),
    "struck": Field("string", "", "where the strike fell: inside a put, before or after one", words=STRUCK),
    "usual_put_ns": Field("integer", "ns", "median put of a trial that was struck, beside others: not the device's"),
    "settle_s": Field("number", "s", "wait between the last acknowledgement and the strike"),
    "recording": Field("string", "", "which recording of the power disk the crash state is from"),
    "position": Field("integer", "", "at which entry of the recording the power was cut"),
    "gap": Field("integer", "", "how many changes of its namespace had been acknowledged there; the unit of a bound"),
    "telling": Field("boolean", "", "no flush that came after the last of them was answered: a loss of it would show"),
    "state": Field("string", "", "which of the unflushed writes were kept: class, seed, unit, and where lies begin"),
    "content": Field(
        "string", "", "16 hex digits that stand for the disk's content, the same in a run for the same one"
    ),
    "contents_of": Field("integer", "", "how many contents were legal where the recording was looked at, if counted"),
    "contents_bits": Field("integer", "", "if not: at least 2 to this power"),
    "acked": Field("integer", "puts", "puts and deletes that were acknowledged before the strike"),
    "in_doubt": Field("integer", "puts", "attempted, never acknowledged"),
    "lost": Field("integer", "keys", "acknowledged, then absent; in `versioned` settings versions of keys"),
    "torn": Field("integer", "keys", "present, but only partly what was put"),
    "corrupt": Field("integer", "keys", "present, but not what was put, or not to be read"),
    "damaged_acked": Field("integer", "keys", "how many of the torn and corrupt had been acknowledged"),
    "stale": Field("integer", "keys", "an overwritten key reads older than its last acknowledged value"),
    "phantom": Field("integer", "keys", "present, never attempted"),
    "resurrected": Field("integer", "keys", "deleted, acknowledged, and there again"),
    "hole": Field("integer", "keys", "lost, while a younger one survives: the loss is not a suffix"),
    "versions_lost": Field("integer", "versions", "older versions that vanished in `suspended` settings; not judged"),
    "dangling": Field("integer", "records", "metadata whose data is lost, torn or old (in the metadata row)"),
    "orphan": Field("integer", "values", "data without metadata: harmless, costs space (in the metadata row)"),
    "unavailable": Field("boolean", "", "the backend did not come up again by the deadline; what it lost is null"),
    "damage_seen": Field("string", "", "what a reader made of damage at rest: detected, repaired, refused, silent"),
    "loss_window_s": Field("number", "s", "from the earliest lost acknowledgement to the strike; null: nothing lost"),
    "recovery_s": Field("number", "s", "from the restart until it answered"),
    "put_p50_ns": Field("integer", "ns", "median put of this trial; null under faults"),
    "put_p99_ns": Field("integer", "ns", "99th percentile; null under 368 puts, and under faults"),
    "samples_at": Field("integer", "samples", "where this row's latencies begin in samples.i64"),
    "samples_n": Field("integer", "samples", "how many they are"),
    "size_bytes": Field("integer", "bytes", "at rest after the trial, less what an empty store takes", least=SIGNED),
    "payload_bytes": Field("integer", "bytes", "payload that was acknowledged"),
    "control": Field(
        "string",
        "",
        "negative, positive, detector: known beforehand; enters no cell",
        words=CONTROLS,
    ),
    "verdict": Field("string", "", "kept, within, no-promise, unknown, broken", required=True, words=VERDICTS),
    "why": Field("string", "", "one line: what decided"),
    "replay": Field("string", "", "the command that runs this trial again"),
}

FLOOR: Mapping[str, Field] = {
    "time": Field("string", "UTC", "when it was measured", required=True),
    "when": Field("string", "", "before, between or after the cells", required=True),
    "host": Field("string", "", "as in trials.jsonl", required=True),
    "size_bytes": Field("integer", "bytes", "how much was written before each flush", required=True, least=1),
    "n": Field("integer", "flushes", "how many flushes", required=True),
    "p50_ns": Field("integer", "ns", "median flush"),
    "p99_ns": Field("integer", "ns", "99th percentile; null under 368 flushes"),
    "samples_at": Field("integer", "samples", "where the latencies begin in samples.i64"),
    "samples_n": Field("integer", "samples", "how many they are"),
}

PLAN: Mapping[str, Field] = {
    "kind": Field("string", "", "sweep, cost or replay", required=True, words=("sweep", "cost", "replay")),
    "time": Field("string", "UTC", "when it ended", required=True),
    "round": Field("integer", "", "of its pass; trials of one round lie close together in time"),
    "stage": Field("string", "", "sweep: coarse or fine"),
    "backend": Field("string", "", "name of the backend; of a replay the metadata's", required=True),
    "setting": Field("string", "", "its durability setting; `live` for a URL", required=True),
    "url": Field("string", "", "as in trials.jsonl"),
    "tier": Field("string", "", "as in trials.jsonl", required=True),
    "data_backend": Field("string", "", "replay: name of the data's backend"),
    "data_setting": Field("string", "", "replay: its setting"),
    "data_url": Field("string", "", "replay: its URL, as in trials.jsonl"),
    "host": Field("string", "", "as in trials.jsonl", required=True),
    "payload": Field("string", "", "incompressible or compressible", required=True),
    "size_bytes": Field("integer", "bytes", "sweep, cost: size of each value", least=1),
    "trace": Field("string", "", "replay: whose steps"),
    "layout": Field("string", "", "replay: whole, split, or put_many"),
    "puts": Field("integer", "puts", "how many were acknowledged (replay: steps)", required=True),
    "payload_bytes": Field("integer", "bytes", "payload that was acknowledged"),
    "samples_at": Field("integer", "samples", "where the latencies of the puts (replay: steps) begin in samples.i64"),
    "samples_n": Field("integer", "samples", "how many they are"),
    "put_p50_ns": Field("integer", "ns", "median put (replay: step) of this trial"),
    "warm_at": Field("integer", "samples", "where the latencies of the warm reloads begin"),
    "warm_n": Field("integer", "samples", "how many they are"),
    "reload_warm_p50_ns": Field("integer", "ns", "median reload by a fresh process, page cache as it was left"),
    "reload_cold_ns": Field("integer", "ns", "one reload by a fresh process, page cache dropped"),
    "cold_why": Field("string", "", "why there is no cold reload"),
    "writer_bytes": Field("integer", "bytes", "written by the writing process and the servers during the puts"),
    "device_bytes": Field("integer", "bytes", "written by the block device, until nothing was owed to it"),
    "at_rest_bytes": Field("integer", "bytes", "at rest afterwards, less what an empty store takes", least=SIGNED),
    "share_half_bytes": Field(
        "integer", "bytes", "replay: of that the namespaces' own share, after half of the steps", least=SIGNED
    ),
    "share_bytes": Field("integer", "bytes", "replay: the same after all steps", least=SIGNED),
    "compacted_bytes": Field("integer", "bytes", "as at_rest_bytes, after a rewrite or vacuum", least=SIGNED),
    "compacted_how": Field("string", "", "what was done; null where the backend has nothing of the kind"),
    "unchanged_steps": Field("integer", "steps", "replay: without new data"),
    "unchanged_payload_bytes": Field("integer", "bytes", "median of these steps"),
    "unchanged_writer_bytes": Field("integer", "bytes", "the same"),
    "unchanged_device_bytes": Field("integer", "bytes", "the same; what the device wrote while the step lasted"),
    "unchanged_p50_ns": Field("integer", "ns", "the same"),
    "changed_steps": Field("integer", "steps", "replay: with new data"),
    "changed_payload_bytes": Field("integer", "bytes", "median of these steps"),
    "changed_writer_bytes": Field("integer", "bytes", "the same"),
    "changed_device_bytes": Field("integer", "bytes", "the same"),
    "changed_p50_ns": Field("integer", "ns", "the same"),
    "refused": Field("string", "", "why it ended early: what the backend said to the put that it did not take"),
    "duration_s": Field("number", "s", "how long the whole trial took"),
}


def label(row: Mapping[str, Any]) -> str:
    """What tells a setting, or somebody's backend, from others: ``backend:setting``, or ``backend:live (URL)``. Of a
    row, a cell, or a target of a plan; those of schemas 1 and 2 have no URL.
    """
    return f"{row['backend']}:{setting_label(row)}"


def names_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The names under which a person may know it, in a list of expectations, say: with its URL, and without."""
    return label(row), f"{row['backend']}:{row['setting']}"


def setting_label(row: Mapping[str, Any]) -> str:
    """The same without the backend."""
    where = row.get("url")
    return f"{row['setting']} ({where})" if where else str(row["setting"])


def loses(row: Mapping[str, Any]) -> bool:
    """Whether something acknowledged is gone in this trial: lost, stale, torn or corrupt, or a delete undone."""
    return any((row.get(name) or 0) > 0 for name in ("lost", "stale", "damaged_acked", "resurrected"))


class Schema:
    """Rows of a table, on their way to a file and back."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields
        members = [
            (name, what.schema) if what.required else (name, what.schema | None, None) for name, what in fields.items()
        ]
        self._struct = msgspec.defstruct("Row", members, kw_only=True)
        self._decoder = msgspec.json.Decoder(self._struct)
        self._encoder = msgspec.json.Encoder()

    def checked(self, row: Mapping[str, Any]) -> Row:
        """The row with every field of the table, in their order, what is missing as None.

        ValueError names a field that is not in the table, a value of another type, and a required one that is missing:
        all three are mistakes of the program that wrote it, not of its user.
        """
        unknown = [name for name in row if name not in self.fields]
        if unknown:
            message = f"no field of a result: {', '.join(unknown)} (durabench/row.py has the table)"
            raise ValueError(message)
        endless = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        if endless:
            message = f"{endless[0]} must be a finite number; what was not measured is None"
            raise ValueError(message)
        try:
            whole = {name: row.get(name) for name in self.fields}
            msgspec.convert(whole, self._struct)
        except msgspec.ValidationError as error:
            name, _, said = outside.wrong(error).partition(": ")
            message = f"{name} must be {self.fields[name].type}, this one is {row.get(name)!r}: {said}"
            raise ValueError(message) from None
        return whole

    def row(self, line: bytes) -> Row | None:
        """The row of a whole line, every field of the table in it; None where the line is torn: no JSON object.

        ValueError where it is one, and no row.
        """
        try:
            found = self._decoder.decode(line)
        except (ValueError, RecursionError):
            if not _is_object(line):
                return None
            outside.json_of(line)
            found = self._decoder.decode(line)  # raises again, now that the text is known to be good JSON
        if self._encoder.encode(found) != line.rstrip(b"\n"):  # else each name stands there once
            outside.json_of(line)
        row = msgspec.structs.asdict(found)
        return row if outside.plain(line) else dict(outside.shown(row))


def _is_object(line: bytes) -> bool:
    """Whether a line was once written whole as an object: of what is torn nobody can say what it was."""
    try:
        return isinstance(json.loads(line.decode()), dict)
    except RecursionError:
        return True
    except UnicodeDecodeError:
        return False
    except ValueError as error:
        return not isinstance(error, json.JSONDecodeError)  # such as an integer of 5,000 digits


ROWS, FLOORS, PLANS = Schema(ROW), Schema(FLOOR), Schema(PLAN)
"""Of trials.jsonl, floors.jsonl and plan.jsonl."""


def as_markdown(fields: Mapping[str, Field]) -> str:
    """The table of ``fields`` as it stands in results/README.md."""
    lines: Sequence[str] = [
        f"| `{name}` | {what.type}{'' if what.required else ', null'} | {what.unit} | {what.meaning} |"
        for name, what in fields.items()
    ]
    return "\n".join(["| field | type | unit | meaning |", "| --- | --- | --- | --- |", *lines]) + "\n"
