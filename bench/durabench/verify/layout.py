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
    asked = f"--survive {goal.survive.label} --max-loss {_time(goal.max_loss_s)}"
    return f"lose {_at_most(goal)} when {WHEN[goal.survive]} ({asked})"


def answer(report: Report) -> str:
    """The verdict and why, in one sentence."""
    return f"{report.verdict}: {_reason(report)}"


def losses(report: Report) -> list[str]:
    """What is lost, of the checks that decided, worst first; said once, with every check that says so."""
    by_loss: dict[str, list[str]] = {}
    for check in (*report.deciding("fail"), *report.deciding("unknown")):
        if check.loses:
            by_loss.setdefault(check.loses, []).append(check.id)
    return [f"{', '.join(ids)} loses: {loses}" for loses, ids in by_loss.items()]


def lines_to_paste(report: Report) -> list[tuple[str, str]]:
    """(id, fix) of the checks that decided, worst first."""
    return [(check.id, check.fix) for status in ("fail", "unknown") for check in report.deciding(status) if check.fix]


def promise_line(promise: Promise) -> str:
    """The promise in force: its tier, and what may be lost per domain."""
    per_domain = ", ".join(f"{domain.label} {_bound(promise.may_lose_s.get(domain))}" for domain in RATED_DOMAINS)
    return f"promise in force: {promise.tier} ({per_domain}); {promise.source}"


def short(check: Check) -> str | None:
    """What stands in the place of a value that was not read."""
    return check.evidence if check.value is None and check.status == "skip" else None


def remarks(report: Report, check: Check) -> list[tuple[str, str]]:
    """What is said below a check: (what it is, the words). What a deciding one loses and how it is mended stands below
    the answer.
    """
    found = [("ignored", report.ignored[check.id])] if word(report, check) == "ignored" else []
    told: list[tuple[str, str | None]] = [("seen", None if short(check) else check.evidence)]
    if check.status != "ok" and word(report, check) not in ("fail", "unknown"):
        told.insert(0, ("loses", check.loses))
    if check.status in ("warn", "skip"):
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
        f"fix: {' '.join(check.fix.split())}" if check.fix else None,
    ]
    return "; ".join(part for part in parts if part) or check.status


def _reason(report: Report) -> str:
    if report.unreached is not None:
        return f"nothing could be looked at: {report.unreached}"
    if report.verdict == "not rated":
        return "this is a mock, which has no disk to keep anything on"
    when, goal = WHEN[report.judged_by.survive], _at_most(report.judged_by)
    if report.verdict == "held":
        ignored = ", ".join(check.id for check in report.ignored_here)
        promised = f"when {when}, what this login writes is promised to lose {goal}"
        return f"nothing stands against it but what is ignored: {ignored}" if ignored else promised
    deciding = ", ".join(check.id for check in report.deciding("fail" if report.verdict == "broken" else "unknown"))
    if report.verdict == "broken":
        because = f"because of {deciding}" if deciding else "by its promise alone: no check says why"
        return f"when {when}, {_allowed(report)} may be lost, and the goal is to lose {goal}; {because}"
    failed = f"the program that was watched failed itself, with exit status {report.program_status}"
    return f"whether it loses {goal} when {when} hangs on what could not be told: {deciding}" if deciding else failed


def _allowed(report: Report) -> str:
    """The worst that the promise allows in the goal's domains."""
    promise, goal = report.promise, report.judged_by
    may_lose_s = promise.may_lose_s if promise else {}
    bounds = [may_lose_s.get(domain) for domain in RATED_DOMAINS if domain <= goal.survive]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return "anything acknowledged"
    return f"the last {max(known):g} s" if max(known) > goal.max_loss_s else "something acknowledged"


def _at_most(goal: Goal) -> str:
    return "nothing acknowledged" if goal.max_loss_s == 0 else f"at most the last {goal.max_loss_s:g} s"


def _bound(seconds: float | None) -> str:
    return "–" if seconds is None else _time(seconds)


def _time(seconds: float) -> str:
    return "0" if seconds == 0 else f"{seconds:g}s"
