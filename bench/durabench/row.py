"""The fields of a result: name, type, unit and meaning, in the order in which they are written.

These tables are the public contract of the result files. What is written is checked against them, and the tables in
``results/README.md`` are rendered from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Row = dict[str, Any]
"""One line of trials.jsonl or floors.jsonl: a plain mapping of JSON values. Not measured is None, never 0."""

Type = Literal["integer", "number", "string", "boolean"]


@dataclass(frozen=True)
class Field:
    """One field: its JSON ``type``, its ``unit`` ("" for none) and what it means. ``required`` is never null."""

    type: Type
    unit: str
    meaning: str
    required: bool = False


ROW: Mapping[str, Field] = {
    "trial": Field("integer", "", "number of the trial in the order of the plan", required=True),
    "attempt": Field(
        "integer", "", "1; more where a resumed run recorded again, or an executor ran the trial again", required=True
    ),
    "rows": Field("integer", "rows", "how many this trial has; one with fewer is torn and dropped", required=True),
    "backend": Field("string", "", "name of the backend", required=True),
    "setting": Field("string", "", "its durability setting; `live` for a URL", required=True),
    "url": Field("string", "", "where it is, secrets taken out; null where the setting is not `live`"),
    "tier": Field("string", "", "the promise in two letters: T3, T2 with its seconds, T1, T0", required=True),
    "namespace": Field("string", "", "metadata or data", required=True),
    "workload": Field("string", "", "what the writers did", required=True),
    "writers": Field("integer", "", "how many writers"),
    "fault": Field("string", "", "what was done", required=True),
    "destroyed": Field("string", "", "the domain: nothing, client, server, machine, drive, flushed, at-rest"),
    "lane": Field("string", "", "where the evidence comes from: here, guest, swap, loop", required=True),
    "host": Field("string", "", "8 hex digits of the machine and the device under test", required=True),
    "driver": Field("string", "", "how the writing process came up: forked from a warm parent, or a fresh interpreter"),
    "seed": Field("integer", "", "the trial's own seed", required=True),
    "partner": Field("string", "", "backend:setting (and URL) of the other namespace, where it is another one"),
    "filesystem": Field("string", "", "file system under test, with its options, where the trial made it"),
    "mount": Field("string", "", "mount options of the directory under test"),
    "server_kill": Field("string", "", "tree, or main for the main process only"),
    "flush_delay_s": Field("number", "s", "by how much the power disk answered flushes late"),
    "started": Field("string", "UTC", "when the trial began"),
    "duration_s": Field("number", "s", "how long the whole trial took"),
    "victim": Field("integer", "", "sequence of the put that was to be struck"),
    "struck": Field("string", "", "where the strike fell: inside a put, before or after one"),
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
    "size_bytes": Field("integer", "bytes", "at rest after the trial, less what an empty store takes"),
    "payload_bytes": Field("integer", "bytes", "payload that was acknowledged"),
    "control": Field("string", "", "negative, positive, detector: known beforehand; enters no cell"),
    "verdict": Field("string", "", "kept, within, no-promise, unknown, broken", required=True),
    "why": Field("string", "", "one line: what decided"),
    "replay": Field("string", "", "the command that runs this trial again"),
}

FLOOR: Mapping[str, Field] = {
    "time": Field("string", "UTC", "when it was measured", required=True),
    "when": Field("string", "", "before, between or after the cells", required=True),
    "host": Field("string", "", "as in trials.jsonl", required=True),
    "size_bytes": Field("integer", "bytes", "how much was written before each flush", required=True),
    "n": Field("integer", "flushes", "how many flushes", required=True),
    "p50_ns": Field("integer", "ns", "median flush"),
    "p99_ns": Field("integer", "ns", "99th percentile; null under 368 flushes"),
    "samples_at": Field("integer", "samples", "where the latencies begin in samples.i64"),
    "samples_n": Field("integer", "samples", "how many they are"),
}

PLAN: Mapping[str, Field] = {
    "kind": Field("string", "", "sweep, cost or replay", required=True),
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
    "size_bytes": Field("integer", "bytes", "sweep, cost: size of each value"),
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
    "at_rest_bytes": Field("integer", "bytes", "at rest afterwards, less what an empty store takes"),
    "share_half_bytes": Field("integer", "bytes", "replay: of that the namespaces' own share, after half of the steps"),
    "share_bytes": Field("integer", "bytes", "replay: the same after all steps"),
    "compacted_bytes": Field("integer", "bytes", "as at_rest_bytes, after a rewrite or vacuum"),
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


_PYTHON: Mapping[Type, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
}


def loses(row: Mapping[str, Any]) -> bool:
    """Whether something acknowledged is gone in this trial: lost, stale, torn or corrupt, or a delete undone."""
    return any((row.get(name) or 0) > 0 for name in ("lost", "stale", "damaged_acked", "resurrected"))


def checked(row: Mapping[str, Any], fields: Mapping[str, Field]) -> Row:
    """The row with every field of ``fields``, in their order, what is missing as None.

    ValueError names a field that is not in the table, a value of another type, and a required one that is missing: all
    three are mistakes of the program that wrote it, not of its user.
    """
    unknown = [name for name in row if name not in fields]
    if unknown:
        message = f"no field of a result: {', '.join(unknown)} (durabench/row.py has the table)"
        raise ValueError(message)
    for name, what in fields.items():
        value = row.get(name)
        if value is None and not what.required:
            continue
        # bool is an int to Python, not to a reader of the file.
        if isinstance(value, bool) != (what.type == "boolean") or not isinstance(value, _PYTHON[what.type]):
            message = f"{name} must be {what.type}, this one is {value!r}"
            raise ValueError(message)
        if isinstance(value, float) and (not math.isfinite(value)):
            message = f"{name} must be a finite number; what was not measured is None"
            raise ValueError(message)
    return {name: row.get(name) for name in fields}


def as_markdown(fields: Mapping[str, Field]) -> str:
    """The table of ``fields`` as it stands in results/README.md."""
    lines: Sequence[str] = [
        f"| `{name}` | {what.type}{'' if what.required else ', null'} | {what.unit} | {what.meaning} |"
        for name, what in fields.items()
    ]
    return "\n".join(["| field | type | unit | meaning |", "| --- | --- | --- | --- |", *lines]) + "\n"
