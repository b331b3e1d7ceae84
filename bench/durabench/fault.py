"""The faults: what each destroys, where it can happen, and what it needs to be judged.

A fault names what it destroys; the machine knows how. What a fault cannot see is said, not guessed: a killed process
leaves the page cache alone, so it cannot tell a missing fsync.
"""

from __future__ import annotations

from dataclasses import dataclass

from durabench_backends.contract import Domain
from durabench_backends.registry import nearest


@dataclass(frozen=True)
class Fault:
    """A way to die. ``recorded``: needs the power disk, its bounds count gaps instead of trials."""

    name: str
    destroys: Domain
    how: str
    cannot_see: str
    needs_server: bool = False
    recorded: bool = False


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "none", Domain.NOTHING, "an orderly stop; the negative control, and where latency comes from", "any crash"
        ),
        Fault(
            "kill-client",
            Domain.CLIENT,
            "SIGKILL of the writer inside a put",
            "a missing fsync: the page cache survives",
        ),
        Fault(
            "kill-server",
            Domain.SERVER,
            "SIGSTOP, list again, SIGKILL the whole server process tree",
            "a missing fsync: the page cache survives",
            needs_server=True,
        ),
        Fault(
            "reset-machine",
            Domain.MACHINE,
            "hard reset of a virtual machine: its memory is gone",
            "the drive's write cache",
            recorded=True,
        ),
        Fault(
            "cut-power",
            Domain.DRIVE,
            "the power disk forgets any legal part of its unflushed writes",
            "a drive's firmware",
            recorded=True,
        ),
        Fault(
            "lying-drive",
            Domain.FLUSHED,
            "the same recording read again as if flushes had not been done",
            "nothing it should keep",
            recorded=True,
        ),
    )
}


class UnknownFault(LookupError):
    """No fault of that name."""


def load(name: str) -> Fault:
    """The fault of a name; UnknownFault offers the nearest."""
    if name in FAULTS:
        return FAULTS[name]
    message = f"unknown fault {name!r}; {nearest(name, list(FAULTS))}"
    raise UnknownFault(message)
