"""The commands ``list`` and ``doctor``: what can be asked for, what this machine has, and the line that installs the
rest.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from durabench import fault as faults
from durabench import workload as workloads
from durabench_backends import registry
from durabench_backends.contract import RATED_DOMAINS, Setting
from durabench_backends.locate import MissingExtra, MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from durabench_backends.contract import Backend

TOOLS = {"setpriv": "apt-get install util-linux"}
"""Programs that trials need beside the servers → the line that installs them."""


def show(console: Console) -> None:
    """Print backends with settings, promises and tiers; faults; workloads; what is missing."""
    table = Table(
        "backend:setting",
        "tier",
        *(domain.label for domain in RATED_DOMAINS),
        "atomic to",
        "ordered to",
        box=None,
        pad_edge=False,
    )
    missing: list[str] = []
    for name in registry.names():
        try:
            found = registry.load(name)
        except MissingExtra as error:
            missing.append(str(error))
            continue
        missing += _missing_programs(name, found)
        for number, setting in enumerate(found.settings):
            table.add_row(*_cells(name, setting, is_default=number == 0))
    console.print(table)
    console.print("0 nothing lost · s at most so many seconds · – no promise · ★ the software's own default\n")
    for fault in faults.FAULTS.values():
        console.print(
            f"{fault.name:14} destroys {fault.destroys.label}: {fault.how}; does not see {fault.cannot_see}",
            markup=False,
        )
    console.print()
    for name in workloads.WORKLOADS:
        console.print(f"{name:14} {workloads.describe(name)}", markup=False)
    if missing:
        console.print("\nmissing here:")
        for line in dict.fromkeys(missing):
            console.print(f"  {line}", markup=False)


def _cells(name: str, setting: Setting, *, is_default: bool) -> Iterator[str]:
    promise = setting.promise
    yield f"{name}:{setting.name}{' ★' if is_default else ''}"
    yield promise.tier
    for domain in RATED_DOMAINS:
        may_lose_s = promise.may_lose_s.get(domain)
        yield "–" if may_lose_s is None else "0" if may_lose_s == 0 else f"{may_lose_s:g} s"
    for reach in (promise.atomic, promise.ordered):
        yield "–" if reach is None else reach.label


def _missing_programs(name: str, found: type[Backend]) -> Iterator[str]:
    for setting in found.settings:
        try:
            registry.require(name)
            found(setting, Path("/nonexistent"), lambda _name: 0).commands()
        except (MissingProgram, MissingExtra) as error:
            yield f"{name}: {error}"
            return


def doctor(console: Console) -> int:
    """Print each thing that trials need and whether it is here; 0 all of it, 3 something is missing."""
    found = [
        (f"{platform.system()} {platform.release()}", platform.system() == "Linux", "trials need Linux 5.3 or newer")
    ]
    found += [(tool, shutil.which(tool) is not None, install) for tool, install in TOOLS.items()]
    for name in registry.names():
        try:
            lines = list(_missing_programs(name, registry.load(name)))
        except MissingExtra as error:
            lines = [str(error)]
        found.append((f"backend {name}", not lines, "; ".join(lines)))
    for what, here, mend in found:
        console.print(f"{'✓' if here else '✕'} {what}{'' if here else f': {mend}'}", markup=False)
    return 0 if all(here for _, here, _ in found) else 3
