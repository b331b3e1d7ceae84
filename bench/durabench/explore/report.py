"""What an exploration found, and what that means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Missing = Literal["fsync-file", "fsync-directory", "fsync-parent", "order", "atomicity"]
MISSING: tuple[Missing, ...] = get_args(Missing)
Verdict = Literal["kept", "broken", "unknown"]
EXIT_STATUS: dict[Verdict, int] = {"kept": 0, "broken": 1, "unknown": 3}
MENDS: dict[Missing, str] = {
    "fsync-file": "flush the file before it is acknowledged: os.fsync(fd)",
    "fsync-directory": "flush the folder that holds the name: fd = os.open(folder, os.O_RDONLY); os.fsync(fd)",
    "fsync-parent": "flush the folder that the new folder is in, too",
    "order": "flush the file before it is renamed to its place",
    "atomicity": "write a new file, flush it, and rename it over the old one",
}


@dataclass(frozen=True)
class Finding:
    """An operation that was acknowledged and can be lost; `where` is FILE:LINE of a Python program, or None."""

    id: str
    operation: str
    path: str
    missing: Missing
    where: str | None
    states: int
    """How many of the losing states show it."""
    needs: str | None = None
    """`another commit`: only beside others who flush on the same file system, or after seconds."""


@dataclass(frozen=True)
class Losing:
    """A state that lost something acknowledged. Its number is its name: it can be laid again."""

    number: int
    position: int
    kind: str
    seed: int
    unit: int
    why: str
    needs: str | None = None


@dataclass(frozen=True)
class Report:
    """One exploration. It judges itself without looking again."""

    program: str
    profile: str
    states: int = 0
    losing: tuple[Losing, ...] = ()
    findings: tuple[Finding, ...] = ()
    marks: int = 0
    did: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why `kept` could not be said, were nothing lost."""
    kept_in: str | None = None
    checked: bool = field(default=False)

    @property
    def verdict(self) -> Verdict:
        """Evidence outweighs doubt."""
        if self.findings or self.losing:
            return "broken"
        return "unknown" if self.doubts else "kept"

    @property
    def exit_status(self) -> int:
        """0 nothing acknowledged can be lost, 1 something can, 3 could not tell."""
        return EXIT_STATUS[self.verdict]

    @property
    def answer(self) -> str:
        """The verdict in one sentence."""
        promised = f"{self.marks} acknowledgements" if self.marks else "the program's end"
        if self.verdict == "broken":
            return f"what {promised} promised can be lost: {len(self.losing)} of {self.states} modelled states lose"
        if self.verdict == "unknown":
            return f"could not tell: {'; '.join(self.doubts)}"
        return f"nothing that {promised} promised is lost in {self.states} modelled states (profile {self.profile})"
