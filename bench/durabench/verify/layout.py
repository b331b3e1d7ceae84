"""The words of a report: one sentence as the answer, what is lost, and the lines to paste. Shared by all formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends.contract import RATED_DOMAINS, Domain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durabench.verify.verdict import Report
    from durabench_backends.contract import Check, Goal, Promise

SIGNS: Mapping[str, str] = {"ok": "✓", "warn": "!", "fail": "✕", "unknown": "?", "skip": "–", "ignored": "·"}
VERDICT_SIGNS: Mapping[str, str] = {"held": "✓", "broken": "✕", "unknown": "?", "not rated": "·"}
WHEN: Mapping[Domain, str] = {
    Domain.CLIENT: "the writing process dies",
    Domain.SERVER: "the server dies",
    Domain.MACHINE: "the machine crashes",
    Domain.DRIVE: "the power fails",
}


def word(report: Report, check: Check) -> str:
    """The status of a check, or ``ignored`` where it would have counted otherwise."""
    return "ignored" if check in report.ignored_here else check.status


def goal_line(goal: Goal) -> str:
    """The goal as a person would say it, and as the command line does."""
    how_much = _at_most(goal.max_loss_s)
    asked = f"--survive {goal.survive.label} --max-loss {_time(goal.max_loss_s)}"
    return f"{how_much} may be lost when {WHEN[goal.survive]} ({asked})"


def answer(report: Report) -> str:
    """The verdict and why, in one sentence."""
    return f"{report.verdict}: {_reason(report)}{_accepted(report)}"


def losses(report: Report) -> list[str]:
    """What is lost, once each, of the checks that decided."""
    said = [check.loses for status in ("fail", "unknown") for check in report.deciding(status) if check.loses]
    return list(dict.fromkeys(said))


def lines_to_paste(report: Report) -> list[tuple[str, str]]:
    """(id, fix) of the checks that decided, worst first."""
    return [(check.id, check.fix) for status in ("fail", "unknown") for check in report.deciding(status) if check.fix]


def promise_line(promise: Promise) -> str:
    """The promise in force: its tier, and what may be lost per domain."""
    per_domain = ", ".join(f"{domain.label} {_bound(promise.may_lose_s.get(domain))}" for domain in RATED_DOMAINS)
    return f"promise in force: {promise.tier} ({per_domain}); {promise.source}"


def remarks(report: Report, check: Check) -> list[tuple[str, str]]:
    """What is said below a check: (what it is, the words). Nothing below one that is in order, but its evidence."""
    found = [("ignored", report.ignored[check.id])] if word(report, check) == "ignored" else []
    told = [("seen", check.evidence)]
    if check.status != "ok":
        told = [("loses", check.loses), *told]
    if check.status in ("warn", "skip") and check.fix:
        told.append(("fix" if check.status == "warn" else "to read it", check.fix))
    return [*found, *((what, said) for what, said in told if said)]


def message(report: Report, check: Check) -> str:
    """A check in one text, for formats that have no columns."""
    ignored = report.ignored.get(check.id) if word(report, check) == "ignored" else None
    parts = [
        f"ignored: {ignored}" if ignored else None,
        None if check.value is None else f"is {check.value}",
        f"set by {check.origin}" if check.origin else None,
        f"loses: {check.loses}" if check.loses else None,
        f"seen: {check.evidence}" if check.evidence else None,
        f"fix: {check.fix}" if check.fix else None,
    ]
    return "; ".join(part for part in parts if part) or check.status


def _reason(report: Report) -> str:
    if report.unreached is not None:
        return f"nothing could be looked at: {report.unreached}"
    if report.verdict == "not rated":
        return "this is a mock, which has no disk to keep anything on"
    when = WHEN[report.judged_by.survive]
    if report.verdict == "held":
        return f"{_at_most(report.judged_by.max_loss_s)} is lost when {when}"
    deciding = ", ".join(check.id for check in report.deciding("fail" if report.verdict == "broken" else "unknown"))
    if report.verdict == "broken":
        return (
            f"when {when}, {_promised(report)} may be lost, where {_at_most(report.judged_by.max_loss_s)} must be"
            + (f"; because of {deciding}" if deciding else "; no single check says why")
        )
    return f"whether {_at_most(report.judged_by.max_loss_s)} is lost when {when} hangs on {deciding}"


def _accepted(report: Report) -> str:
    ids = ", ".join(check.id for check in report.ignored_here)
    return f" (ignored, with a reason: {ids})" if ids else ""


def _promised(report: Report) -> str:
    """The worst that the promise allows in the goal's domains."""
    promise = report.promise
    if promise is None:
        return "anything"
    bounds = [promise.may_lose_s.get(domain) for domain in RATED_DOMAINS if domain <= report.judged_by.survive]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return "anything acknowledged"
    return _at_most(max(known)) if max(known) > report.judged_by.max_loss_s else "what was acknowledged"


def _at_most(seconds: float) -> str:
    return "nothing acknowledged" if seconds == 0 else f"at most the last {seconds:g} s"


def _bound(seconds: float | None) -> str:
    return "–" if seconds is None else _time(seconds)


def _time(seconds: float) -> str:
    return "0" if seconds == 0 else f"{seconds:g}s"
