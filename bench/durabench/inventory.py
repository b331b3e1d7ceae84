"""The command ``list``: what can be asked for, what is missing here, and the line that installs it."""

from __future__ import annotations

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
        missing += lacks(name)
        try:
            found = registry.load(name)
        except MissingExtra:
            continue
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


def lacks(name: str) -> list[str]:
    """What a backend needs and is not here, each with the line that installs it."""
    try:
        return list(_missing_programs(name, registry.load(name)))
    except MissingExtra as error:
        return [str(error)]
