"""The command ``conform``: the conformance suite of the contract, on each setting of a backend, without pytest."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from durabench import schedule
from durabench.process import HarnessError
from durabench.service import running
from durabench_backends import conformance

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {"passed": "✓", "failed": "✕", "unknown": "?", "not offered": "–"}


def show(name: str, directory: Path | None, console: Console) -> int:
    """Run the suite on every setting that ``name`` names and print each check; 0 all passed, 1 one failed, 3 did not
    come up, or a check could not look at all that it must.
    """
    came_up, outcomes = True, set[str]()
    for target in schedule.targets_of(name):
        if target.url:
            message = "conform writes and drops; it runs on servers of ours only: give NAME or NAME:SETTING"
            raise schedule.UsageError(message)
        console.print(f"{target.label}", style="bold")
        with tempfile.TemporaryDirectory(prefix="durabench-conform-", dir=directory) as scratch:
            Path(scratch).chmod(0o755)  # servers run as another user
            try:
                with running(target.backend, target.setting, Path(scratch) / "root") as service:
                    results = conformance.run(service)
            except HarnessError as error:
                console.print(f"  does not come up: {error}", markup=False)
                came_up = False
                continue
        for result in results:
            reason = f": {result.reason}" if result.reason else ""
            console.print(
                f"  {MARKS[result.outcome]} {result.check.id}: {result.check.description}{reason}", markup=False
            )
        outcomes |= {result.outcome for result in results}
    if "failed" in outcomes:
        return 1
    return 0 if came_up and "unknown" not in outcomes else 3
