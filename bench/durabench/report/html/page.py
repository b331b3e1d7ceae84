"""Makes the page: everything that stands in it, and the one file it becomes."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from durabench.fault import FAULTS
from durabench.output import replace_file
from durabench.redact import redact_all
from durabench.report import charts, layout
from durabench.report.charts import survival
from durabench.report.charts.survival import named
from durabench.report.html import constraints, drawing
from durabench.report.html.losses import Losses
from durabench.report.html.raw import Rows
from durabench.report.output import render as rendered
from durabench.results import distinct
from durabench.row import label as label_of
from durabench.row import loses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from durabench.report.charts import Material
    from durabench.report.html.losses import Group
    from durabench.report.layout import Grid, Json
    from durabench.results import Folder

_ROOM = "durabench.report.html"


@dataclass(frozen=True)
class _Read:
    """What was read from folders, in one pass over their rows."""

    material: Material
    losses: Sequence[Group]
    rows: Mapping[str, Any]


def write(document: Json, folders: Sequence[Folder], path: Path) -> None:
    """Write the page of a document and of the folders it was made of, as one file. OutputError where it cannot be."""
    replace_file(path, render(document, folders))


def render(document: Json, folders: Sequence[Folder]) -> str:
    """The page, as one HTML document that loads nothing."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    document = redact_all(dict(document))
    folders = distinct(folders)  # as the document has them
    read = _read(document, folders)
    script, style = (files(_ROOM).joinpath(name).read_text() for name in ("page.js", "page.css"))
    data = _data(document, read)
    # Autoescape everywhere: what a server says must not become a tag.
    environment = Environment(
        loader=PackageLoader(_ROOM, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark"] = lambda verdict: layout.MARKS.get(verdict, "?")
    return environment.get_template("page.html").render(
        script=_safe(script),
        script_hash=_sha256(script),
        style=_safe(style),
        data=_safe(_json(data)),
        **_parts(document, folders, read),
    )


def _read(document: Json, folders: Sequence[Folder]) -> _Read:
    gathering, losses, rows = charts.Gathering(), Losses(), Rows()
    for folder in folders:
        gathering.folder(folder)
        for trial in folder.each_trial():
            losses.trial(trial, folder)
            for row in trial:
                gathering.row(row, folder)
                rows.row(row, losing=loses(row) or row["verdict"] == "broken")
    material = gathering.material(document)
    return _Read(material, losses.groups(len(material.hosts) > 1), rows.compact())


def _data(document: Json, read: _Read) -> dict[str, Any]:
    """What the script works with."""
    return {
        "settings": constraints.settings(read.material),
        "domains": [domain["name"] for domain in constraints.domains(read.material)],
        "markdown": rendered(document, "markdown"),
        "trials": read.rows,
    }


def _parts(document: Json, folders: Sequence[Folder], read: _Read) -> dict[str, Any]:
    """What stands in the page, in its order."""
    drawn = charts.charts(read.material, without=[survival.NAME])
    settings = constraints.settings(read.material)
    return {
        "title": _title(document),
        "verdict": verdict(document),
        "pick": layout.pick_lines(document),
        "plans": [answer for plan in read.material.plans if (answer := _answer(plan))],
        "warnings": _warnings(document),
        "grids": _grids(document, settings, read.material),
        "matrix_sentence": survival.sentence(document),
        "matrix_measured": survival.MEASURED,
        "legend": layout.LEGEND,
        "goal": layout.goal_line(document),
        "domains": constraints.domains(read.material),
        "sizes": constraints.sizes(settings),
        "charts": [(chart, "" if chart.empty else drawing.inline(chart)) for chart in drawn],
        "findings": layout.findings(document),
        "not_judged": layout.not_judged(document),
        "losses": read.losses,
        "lost_trials": sum(group.total for group in read.losses),
        "environment": layout.header(document),
        "runs": [_run(run, folder) for run, folder in zip(document["runs"], folders, strict=True)],
        "settings": _settings(folders),
        "limits": limits(document),
        "rows": read.rows,
        "schema_version": document["schema_version"],
    }


def _title(document: Json) -> str:
    names = [run["name"] for run in document["runs"]]
    return f"durabench: {names[0]}" if len(names) == 1 else f"durabench: {len(names)} runs"


def verdict(document: Json) -> str:
    """The first sentence of the page: what was struck, what held, and what did not."""
    struck = [cell for cell in document["cells"] if cell["trials"] and cell["fault"] != "none"]
    if not struck:
        trials = sum(run["trials"] for run in document["runs"])
        recorded = f"{trials:,} trials were recorded" if trials else "No trial was recorded"
        return f"{recorded}: nothing was put through a fault, so nothing is known about what survives one."
    rated = [cell for cell in struck if cell["destroyed"] not in ("flushed", "at-rest")]
    broken = [f"{label_of(cell)} ({cell['fault']})" for cell in rated if cell["verdict"] == "broken"]
    faults = [name for name in FAULTS if any(cell["fault"] == name for cell in rated)]
    settings = {label_of(cell) for cell in rated}
    subject = f"Of {len(settings)} settings put through {named(faults) if faults else 'a fault'}"
    if not broken:
        return f"{subject}, none broke its promise{_still(rated)}{_unjudged(rated)}."
    count = len({label.rpartition(" (")[0] for label in broken})
    return f"{subject}, {count} broke {'its' if count == 1 else 'their'} promise: {named(broken)}{_unjudged(rated)}."


def _answer(plan: Json) -> str | None:
    """What a plan recommends."""
    answer = (plan.get("recommendation") or {}).get("answer")
    return None if answer is None else str(redact_all(answer)).rstrip(".")


def _unjudged(cells: Sequence[Json]) -> str:
    """What could not be told is said with what was."""
    doubted = sum(cell["verdict"] == "unknown" or cell["trials_unknown"] > 0 for cell in cells)
    return f"; {doubted} of {len(cells)} cells have trials that could not be judged" if doubted else ""


def _still(cells: Sequence[Json]) -> str:
    """A kept always carries its bound."""
    highs = [cell["loss_rate_high"] for cell in cells if cell["verdict"] == "kept" and cell["loss_rate_high"]]
    return f", with a loss rate of up to {100 * max(highs):.2g} % still possible" if highs else ""


def _warnings(document: Json) -> list[str]:
    """What a reader must know before believing a figure."""
    found = []
    for run in document["runs"]:
        name = run["name"]
        found += [f"{name} is not finished: what has no trial yet is shown as not run."] if not run["finished"] else []
        found += [f"{name} recorded no trial."] if not run["trials"] else []
        found += [f"{_many(run['dropped'], 'torn row')} of {name} dropped."] if run["dropped"] else []
        found += [f"{_many(run['repeated'], 'repeated row')} of {name} left out."] if run["repeated"] else []
        if run["without_history"]:
            what = f"{_many(run['without_history'], 'trial')} of {name} without a history"
            found.append(f"{what}: the verdict stands as recorded and cannot be judged again.")
        if run["recordings_not_kept"]:
            what = f"{_many(run['recordings_not_kept'], 'losing recording')} of {name} not kept"
            found.append(f"{what}: crash states of it cannot be rebuilt.")
        found += [f"{name}: {doubt}" for doubt in run["doubts"]]
    return found


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _grids(document: Json, settings: Sequence[Json], material: Material) -> list[tuple[Grid, list[int], list[int]]]:
    """Each table with, for every line, the number of its setting in the script's data, and over how many lines the
    name of the setting reaches: 0 where the line before has it.
    """
    numbers = {setting["label"]: number for number, setting in enumerate(settings)}
    hosts = list(dict.fromkeys((cell["host"], cell["workload"]) for cell in document["cells"]))
    found = []
    for (host, _), grid in zip(hosts, layout.grids(document), strict=True):
        lines = [
            material.place({"backend": line.backend, "setting": line.setting, "host": host}) for line in grid.lines
        ]
        spans = [span for _, group in groupby(lines) for span in (len(list(group)),)]
        starts = [at for span in spans for at in (span, *[0] * (span - 1))]
        found.append((grid, [numbers[label] for label in lines], starts))
    return found


def _run(run: Json, folder: Folder) -> dict[str, Any]:
    """How a run was made."""
    recorded = redact_all({name: folder.run.get(name) for name in ("command", "commit")})
    commit = recorded.get("commit") or {}
    return {
        **run,
        "path": str(folder.path),
        "command": " ".join(map(str, recorded.get("command") or ())),
        "commit": f"{commit.get('commit') or 'unknown'}{' with changes' if commit.get('dirty') else ''}",
    }


def _settings(folders: Sequence[Folder]) -> list[dict[str, Any]]:
    """Per setting what it promises and what was read back from it, of the first folder that has it."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        run = folder.run
        recorded = redact_all({name: run.get(name) for name in ("promises", "targets", "versions")})
        for label, promise in (recorded.get("promises") or {}).items():
            target = (recorded.get("targets") or {}).get(label) or {}
            facts = target.get("facts") or {}
            versions = (recorded.get("versions") or {}).get(label) or {}
            found.setdefault(
                label,
                {
                    "label": label,
                    "tier": promise.get("tier"),
                    "loses": {domain: _allowed(promise, domain) for domain in ("client", "server", "machine", "drive")},
                    "atomic": promise.get("atomic") or layout.DASH,
                    "ordered": promise.get("ordered") or layout.DASH,
                    "source": promise.get("source"),
                    "facts": [(name, fact.get("value"), fact.get("origin")) for name, fact in facts.items()],
                    "versions": list(versions.items()),
                    "why_not": target.get("why_not"),
                },
            )
    return list(found.values())


def _allowed(promise: Json, domain: str) -> str:
    """``0``, ``2 s``, or a dash for no promise."""
    seconds = (promise.get("may_lose_s") or {}).get(domain)
    return layout.DASH if seconds is None else f"{seconds:g}{' s' if seconds else ''}"


def limits(document: Json) -> list[str]:
    """What these results cannot say, as far as it depends on what was run."""
    cells = document["cells"]
    lanes = {cell["lane"] for cell in cells if cell["trials"]}
    found = [
        "One machine: no replication, no failover, no network partition. Kept is evidence with a bound, never a proof.",
    ]
    mocks = [label_of(cell) for cell in cells if cell["verdict"] == "not rated"]
    if mocks:
        found.append(f"Mocks have no disk and are not rated once their server would die: {named(mocks)}.")
    if lanes & {"guest", "swap"}:
        found.append(
            "Lanes guest and swap: a virtual machine booted by QEMU, emulated in software (TCG) where there is no KVM. "
            "It says what a setting loses, not what a drive does, and no latency comes from there."
        )
    if "loop" in lanes:
        found.append(
            "Lane loop: crash images of the power disk, mounted by this host's own kernel; servers run on this host."
        )
    if not lanes & {"guest", "swap", "loop"}:
        found.append(
            "No machine was reset and no power cut: the page cache survives all that was done here, so that a missing "
            "flush cannot be seen."
        )
    seen = {cell["fault"] for cell in cells if cell["trials"]} - {"none"}
    found += [f"{fault.name} cannot see {fault.cannot_see}." for fault in FAULTS.values() if fault.name in seen]
    if any(cell["recordings"] for cell in cells):
        found.append(
            "Crash states of one gap are one piece of evidence, and gaps of one recording may share their fate: beside "
            "the bound by telling gap (one in which a loss would show) stands the bound by recording."
        )
    return found


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _safe(text: str) -> Any:
    """Our own script, style and JSON are not escaped a second time."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
