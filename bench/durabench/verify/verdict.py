"""The judgement of a deployment: from its checks and its promise to held, broken, unknown or not rated. Pure.

First rule that fits: a mock is not rated; a check that fails breaks the goal; one that could not be read leaves it
unknown; a promise that does not meet the goal breaks it although no check said so; a watched program that failed
itself leaves it unknown; else it held. A check that was ignored, with a reason, does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from durabench_backends.contract import Check, Goal, Promise

Verdict = Literal["held", "broken", "unknown", "not rated"]
EXIT: Mapping[Verdict, int] = {"held": 0, "broken": 1, "unknown": 3, "not rated": 3}

NEEDS_PROBE = "needs --probe"
"""The evidence of a check that was skipped because nobody asked for a probe."""


@dataclass(frozen=True)
class Report:
    """What `verify` found out about one target.

    ``target`` is its URL without secrets, ``goal`` the one that was asked for and ``judged_by`` what that means here,
    ``ignored`` id → reason.
    ``unreached`` says, with its mend, why there was nothing to look at: then there are no checks and no promise.
    ``program_status`` is the exit status of a program that was watched.
    """

    target: str
    goal: Goal
    judged_by: Goal
    checks: Sequence[Check] = ()
    promise: Promise | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    mock: bool = False
    unreached: str | None = None
    program_status: int | None = None

    @property
    def verdict(self) -> Verdict:
        """The judgement, by the rules above."""
        rules: Sequence[tuple[Verdict, bool]] = (
            ("unknown", self.unreached is not None or self.promise is None),
            ("not rated", self.mock),
            ("broken", bool(self.deciding("fail"))),
            ("unknown", bool(self.deciding("unknown"))),
            ("broken", self.safety_net),
            ("unknown", bool(self.program_status)),
        )
        return next((verdict for verdict, fits in rules if fits), "held")

    @property
    def exit_status(self) -> int:
        """0 held, 1 broken, 3 could not tell."""
        return EXIT[self.verdict]

    @property
    def safety_net(self) -> bool:
        """Whether the promise misses the goal although no check fails or is unknown, ignored ones included."""
        if self.promise is None or any(check.status in ("fail", "unknown") for check in self.checks):
            return False
        return not self.judged_by.is_met_by(self.promise)

    def deciding(self, status: str) -> list[Check]:
        """The checks of a status that were not ignored."""
        return [check for check in self.checks if check.status == status and check.id not in self.ignored]

    @property
    def ignored_here(self) -> list[Check]:
        """Ignored checks that would have counted otherwise."""
        return [check for check in self.checks if check.id in self.ignored and check.status in ("fail", "unknown")]
