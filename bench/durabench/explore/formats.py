"""An exploration as a table, JSON, JUnit XML, lines for a GitHub workflow, or Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from durabench import output
from durabench.explore.report import MENDS
from durabench.output import Output, escaped, pipes, replace_file
from durabench.redact import redact, redact_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench.explore.report import Finding, Report

SCHEMA_VERSION = 1
SIGNS = {"kept": "✓", "broken": "✕", "unknown": "?"}
SHOWN_LOSING = 5
PLACE = re.compile(r"(.+):(\d+)")


def document(report: Report) -> dict[str, Any]:
    """The JSON document."""
    made: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "program": report.program,
        "profile": report.profile,
        "evidence": "modelled",
        "verdict": report.verdict,
        "why": report.answer,
        "acknowledged": report.marks,
        "states": report.states,
        "losing": len(report.losing),
        "findings": [asdict(finding) for finding in report.findings],
        "losing_states": [asdict(lost) for lost in report.losing],
        "did": list(report.did),
        "notes": list(report.notes),
        "doubts": list(report.doubts),
        "kept_in": report.kept_in,
    }
    shown: dict[str, Any] = redact_all(made)
    return shown


def outputs(asked: Sequence[str]) -> list[Output]:
    """What ``--format`` asks for, of `FORMS`."""
    return output.outputs(asked, FORMS)


def render(report: Report, form: str) -> str:
    """The report in one of `FORMS`."""
    return FORMS[form](report)


def write(report: Report, asked: Sequence[Output]) -> None:
    """Write every output; what has no file goes to stdout."""
    for each in asked:
        if each.path is None:
            print(render(report, each.form), end="")
        else:
            replace_file(each.path, render(report, each.form))


def _clean(text: str) -> str:
    """Without secrets, and without what would steer a terminal."""
    kept = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    return redact(" ".join(kept.split()))


def _sentence(finding: Finding) -> str:
    where = f" ({finding.where})" if finding.where else ""
    needs = f"; needs {finding.needs} by somebody else on the file system" if finding.needs else ""
    return _clean(f"{finding.operation}{where}: {finding.missing} is missing: {MENDS[finding.missing]}{needs}")


def _table(report: Report) -> str:
    lines = [f"{SIGNS[report.verdict]} {report.program}", f"  {report.answer}", ""]
    lines += [f"  it did: {line}" for line in report.did]
    for finding in report.findings:
        lines += ["", f"  ✕ {finding.operation}  [{finding.missing}]"]
        if finding.where:
            lines.append(f"    at {finding.where}")
        lines.append(f"    {MENDS[finding.missing]}")
        needs = f", each of which needs {finding.needs}" if finding.needs else ""
        lines.append(f"    seen in {finding.states} losing states{needs}")
    if report.losing:
        lines.append("")
    for lost in report.losing[:SHOWN_LOSING]:
        lines.append(f"  state {lost.number}: power cut after call {lost.position}, kept: {lost.kind}: {lost.why}")
    if len(report.losing) > SHOWN_LOSING:
        lines.append(f"  … and {len(report.losing) - SHOWN_LOSING} more")
    lines += [f"  note: {note}" for note in report.notes]
    if report.kept_in:
        lines.append(f"  log and losing states: {report.kept_in}")
    lines.append(f"  modelled, profile {report.profile}: no device was cut")
    return "".join(f"{redact(_printable(line))}\n" for line in lines)


def _printable(line: str) -> str:
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


def _json(report: Report) -> str:
    return json.dumps(document(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _junit(report: Report) -> str:
    from xml.etree import ElementTree as ET

    suite = ET.Element("testsuite", name=f"durabench explore {_clean(report.program)}")
    for finding in report.findings:
        case = ET.SubElement(suite, "testcase", classname="durabench.explore", name=_clean(finding.id))
        ET.SubElement(case, "failure", message=_sentence(finding))
    case = ET.SubElement(suite, "testcase", classname="durabench.explore", name="verdict")
    if report.verdict == "broken" and not report.findings:
        ET.SubElement(case, "failure", message=_clean(report.answer))
    elif report.verdict == "unknown":
        ET.SubElement(case, "error", message=_clean(report.answer))
    else:
        ET.SubElement(case, "system-out").text = _clean(report.answer)
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        suite.set(name, str(len(list(suite.iter(tag)))))
    ET.indent(suite, " ")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'


def _github(report: Report) -> str:
    lines = []
    for finding in report.findings:
        place = PLACE.fullmatch(finding.where or "")
        at = {"file": place[1], "line": place[2]} if place else {}
        lines.append(_command("error", finding.id, _sentence(finding), at))
    level = "notice" if report.verdict == "kept" else "error"
    lines.append(_command(level, f"durabench explore: {report.verdict}", _clean(report.answer), {}))
    return "\n".join(lines) + "\n"


def _command(level: str, title: str, said: str, at: Mapping[str, str]) -> str:
    """A workflow command; a value must neither end its line nor its property."""

    def coded(text: str, signs: str) -> str:
        return "".join(f"%{ord(sign):02X}" if sign in signs else sign for sign in text)

    properties = {**at, "title": _clean(title)}
    written = ",".join(f"{name}={coded(value, '%:,' + chr(13) + chr(10))}" for name, value in properties.items())
    return f"::{level} {written}::{coded(said, '%' + chr(13) + chr(10))}"


def _markdown(report: Report) -> str:
    parts = [
        f"### {SIGNS[report.verdict]} {escaped(_clean(report.program))}",
        f"**{escaped(_clean(report.answer))}** (modelled, profile {report.profile})",
    ]
    if report.findings:
        names = ["operation", "missing", "where", "losing states", "what mends it"]
        rows = [
            pipes(
                [
                    escaped(_clean(finding.operation)),
                    finding.missing,
                    escaped(_clean(finding.where or "")),
                    str(finding.states),
                    escaped(MENDS[finding.missing]),
                ]
            )
            for finding in report.findings
        ]
        parts.append("\n".join([pipes(names), pipes(["---"] * len(names)), *rows]))
    return "\n\n".join(parts) + "\n"


FORMS: Mapping[str, Callable[[Report], str]] = {
    "table": _table,
    "json": _json,
    "junit": _junit,
    "github": _github,
    "markdown": _markdown,
}
