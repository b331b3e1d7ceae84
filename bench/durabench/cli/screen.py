"""What a person sees while a command works, and how it ends: progress and the one line of an error, on stderr."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from rich.console import Console

BROKEN, USAGE, COULD_NOT_TELL, INTERRUPTED = 1, 2, 3, 130
"""Exit statuses beside 0, everything held."""
PROGRESS_EVERY_S = 5.0

talk = Console(stderr=True, highlight=False, soft_wrap=True)


def stop(message: str, status: int) -> NoReturn:
    """Leave with ``status`` and one line on stderr, whatever words of others are in the message."""
    from durabench.outside import shown

    print(f"durabench: {shown(message)}", file=sys.stderr)
    sys.exit(status)


class Progress:
    """One line that is rewritten on a terminal, a line every five seconds elsewhere; always on stderr."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def say(self, text: str) -> None:
        from durabench.redact import redact

        self._clear()
        talk.print(redact(text), markup=False)

    def __call__(self, done: int, broken: int, last: str) -> None:
        self.line(f"{time.monotonic() - self._began:5.0f} s  {done} trials, {broken} broken; last: {last}")

    def line(self, line: str) -> None:
        """Show one line, which the next one replaces; an empty one ends that."""
        from durabench.redact import redact

        now, line = time.monotonic(), redact(line)  # before it is cut: half a secret looks like none
        if not line:
            self._clear()
            return
        if talk.is_terminal:
            talk.file.write(f"\r\x1b[2K{line[: talk.width - 1]}")
            talk.file.flush()
        elif now - self._told >= PROGRESS_EVERY_S:
            self._told = now
            talk.print(line, markup=False)

    def _clear(self) -> None:
        if talk.is_terminal:
            talk.file.write("\r\x1b[2K")
