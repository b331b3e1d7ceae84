"""What a command keeps to itself: the secrets of its own arguments, in the list of processes and on its two streams."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


@contextmanager
def discreet() -> Iterator[None]:
    """Learn what arguments and environment give as secrets; meanwhile neither stream shows them, nor does a list of
    processes from here on.
    """
    from durabench import redact

    redact.learn(*sys.argv[1:])
    redact.learn_environment()
    hide_arguments()
    before = sys.stdout, sys.stderr
    sys.stdout = _Stream(before[0], redact.KNOWN.hidden_anywhere)
    sys.stderr = _Stream(before[1], redact.redact)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A text stream on which secrets are masked; in all else the one below."""

    def __init__(self, below: TextIO, hidden: Callable[[str], str]) -> None:
        self._below = below
        self._hidden = hidden

    def write(self, text: str) -> int:
        """Write ``text`` without its secrets; what is told is that all of it was written."""
        self._below.write(self._hidden(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def hide_arguments() -> None:
    """Overwrite the secrets in the memory that the kernel shows as this process's arguments. Until a command gets here,
    a list of processes has shown them: whoever cannot have that gives no secret as an argument.
    """
    from durabench import redact

    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        start = int(Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()[45])  # field 48, arg_start
    except (OSError, ValueError, IndexError):
        return  # no Linux, or no /proc
    arguments = shown.split(b"\0")
    plain = redact.redact_argv([one.decode("utf-8", "surrogateescape") for one in arguments])
    hidden = [one.encode("utf-8", "surrogateescape") for one in plain]
    if not start or hidden == arguments:
        return
    at = start
    for before, after in zip(arguments, hidden, strict=True):
        if before != after:
            ctypes.memmove(at, after[: len(before)].ljust(len(before), b"\0"), len(before))
        at += len(before) + 1
