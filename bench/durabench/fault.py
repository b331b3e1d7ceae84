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
    """A way to die. ``recorded``: many crash states of one run on the power disk, so that bounds count gaps, not
    trials.

    ``late_flushes``: a kill on the power disk while it answers flushes late; it happens once a run, and counts as one.
    """

    name: str
    destroys: Domain
    how: str
    cannot_see: str
    needs_server: bool = False
    recorded: bool = False
    late_flushes: bool = False

    @property
    def needs_machine(self) -> bool:
        """Whether it needs the power disk, and so a machine that is ours alone."""
        return self.recorded or self.late_flushes


LATE_FLUSH_S = 4.0
"""By how much a slow drive answers flushes late, unless ``--flush-delay`` says otherwise."""

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
        Fault(
            "slow-drive",
            Domain.SERVER,
            f"kill-server while the power disk answers flushes late (--flush-delay, {LATE_FLUSH_S:g}s unless given)",
            "a missing fsync: the page cache survives",
            needs_server=True,
            late_flushes=True,
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
