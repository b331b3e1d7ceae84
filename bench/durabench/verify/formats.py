"""A report as JSON, JUnit XML, lines for a GitHub workflow, Markdown or a table: every string redacted, every control
character shown as what it is.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench import output
from durabench.output import Output, OutputError, escaped, pipes, replace_file
from durabench.redact import redact, redact_all
from durabench.verify import layout
from durabench.verify.verdict import NEEDS_PROBE
from durabench_backends.contract import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench.verify.verdict import Report

SCHEMA_VERSION = 1
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def document(report: Report) -> dict[str, Any]:
    """The JSON document."""
    made: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "target": report.target,
        "goal": {"survive": report.goal.survive.label, "max_loss_s": report.goal.max_loss_s},
        "verdict": report.verdict,
        "why": layout.answer(report),
        "promise": None if report.promise is None else report.promise.as_json(),
        "checks": [{**asdict(check), "ignored": report.ignored.get(check.id)} for check in report.checks],
    }
    shown: dict[str, Any] = redact_all(made)
    return shown


def outputs(asked: Sequence[str]) -> list[Output]:
    """What ``--format`` asks for, of `FORMS`. OutputError: unknown, or two without a file."""
    return output.outputs(asked, FORMS)


def render(report: Report, form: str) -> str:
    """The report in one of `FORMS`. OutputError for another format."""
    if form not in FORMS:
        message = f"no format {form!r}; there are {', '.join(FORMS)}"
        raise OutputError(message)
    return FORMS[form](report if form == "json" else clean(report))


def write(report: Report, asked: Sequence[Output]) -> None:
    """Write every output; what has no file goes to stdout. In a GitHub workflow, ``github`` adds a summary, too.

    Where nothing could be looked at there is no table: the one line of `Report.unreached` says it all.
    """
    for each in asked:
        if each.path is not None:
            replace_file(each.path, render(report, each.form))
        elif each.form == "table" and report.unreached is None:
            from durabench.verify.table import show

            show(clean(report))
        elif each.form != "table":
            print(render(report, each.form), end="")
        if each.form == "github" and os.environ.get(STEP_SUMMARY):
            _summarise(Path(os.environ[STEP_SUMMARY]), render(report, "markdown"))


def clean(report: Report) -> Report:
    """The report as it may be shown: without secrets, and without what would steer a terminal or break a document."""
    each = [{name: _clean(value, name == "fix") for name, value in asdict(check).items()} for check in report.checks]
    return replace(
        report,
        target=_clean(report.target),
        checks=tuple(Check(**fields) for fields in redact_all(each)),
        ignored={one: _clean(reason) for one, reason in report.ignored.items()},
        unreached=_clean(report.unreached),
    )


def _clean(value: Any, lines: bool = False) -> Any:
    """``lines``: more than one are kept, since they are to be pasted."""
    if not isinstance(value, str):
        return value
    kept = "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in value)
    return redact(kept if lines else " ".join(kept.split()))


def _json(report: Report) -> str:
    return json.dumps(document(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _junit(report: Report) -> str:
    from xml.etree import ElementTree as ET

    suite = ET.Element("testsuite", name=f"durabench verify {report.target}")
    counts = dict.fromkeys(("failures", "errors", "skipped"), 0)

    def case(name: str, kind: str | None, said: str) -> None:
        made = ET.SubElement(suite, "testcase", classname="durabench.verify", name=name)
        if kind is None:
            ET.SubElement(made, "system-out").text = said
        else:
            counts[{"failure": "failures", "error": "errors", "skipped": "skipped"}[kind]] += 1
            ET.SubElement(made, kind, message=said)

    kinds = {"fail": "failure", "unknown": "error", "skip": "skipped", "ignored": "skipped"}
    for check in report.checks:
        case(check.id, kinds.get(layout.word(report, check)), layout.message(report, check))
    if not (report.deciding("fail") or report.deciding("unknown")) and report.verdict != "held":
        case("verdict", "failure" if report.verdict == "broken" else "error", layout.answer(report))
    suite.set("tests", str(len(suite.findall("testcase"))))
    for name, count in counts.items():
        suite.set(name, str(count))
    ET.indent(suite, " ")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'


def _github(report: Report) -> str:
    levels = {"fail": "error", "unknown": "error", "warn": "warning", "skip": "notice", "ignored": "notice"}
    lines = [
        _command(levels[word], check.id, layout.message(report, check))
        for check in report.checks
        if (word := layout.word(report, check)) in levels and check.evidence != NEEDS_PROBE
    ]
    level = "notice" if report.verdict == "held" else "error"
    lines.append(_command(level, f"durabench verify: {report.verdict}", f"{report.target}: {layout.answer(report)}"))
    return "\n".join(lines) + "\n"


def _command(level: str, title: str, said: str) -> str:
    """A workflow command; a value must neither end its line nor its property."""
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        title, said = title.replace(sign, code), said.replace(sign, code)
    for sign, code in ((":", "%3A"), (",", "%2C")):
        title = title.replace(sign, code)
    return f"::{level} title={title}::{said}"


def _summarise(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(text)
    except OSError as error:
        message = f"{path}, the step summary, cannot be written: {error.strerror}; unset {STEP_SUMMARY}"
        raise OutputError(message) from None


def _markdown(report: Report) -> str:
    names = ["", "check", "value", "origin", "what to know"]
    parts = [
        f"### {layout.VERDICT_SIGNS[report.verdict]} {escaped(report.target)}",
        f"**{escaped(layout.answer(report))}**",
        f"Goal: {escaped(layout.goal_line(report.goal))}",
    ]
    if report.checks:
        rows = [pipes(_cells(report, number)) for number in range(len(report.checks))]
        parts.append("\n".join([pipes(names), pipes(["---"] * len(names)), *rows]))
    parts += [escaped(said) for said in layout.losses(report)]
    parts += [f"Mend {escaped(one)}:\n\n{_fenced(fix)}" for one, fix in layout.lines_to_paste(report)]
    if report.promise is not None:
        parts.append(escaped(layout.promise_line(report.promise)))
    return "\n\n".join(parts) + "\n"


def _cells(report: Report, number: int) -> list[str]:
    check = report.checks[number]
    word = layout.word(report, check)
    said = "<br>".join(escaped(f"{what}: {text}") for what, text in layout.remarks(report, check))
    return [
        f"{layout.SIGNS[word]} {word}",
        escaped(check.id),
        escaped(layout.short(check) or check.value or ""),
        escaped(check.origin or ""),
        said,
    ]


def _fenced(fix: str) -> str:
    fence = "```"
    while fence in fix:
        fence += "`"
    return f"{fence}\n{fix}\n{fence}"


def _table(report: Report) -> str:
    from durabench.verify.table import text

    return text(report)


FORMS: Mapping[str, Callable[[Report], str]] = {
    "table": _table,
    "json": _json,
    "junit": _junit,
    "github": _github,
    "markdown": _markdown,
}
