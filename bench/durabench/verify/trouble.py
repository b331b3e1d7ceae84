"""Why there was nothing to look at, in one line: the redacted URL, what was said, and the mend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from durabench.redact import redact, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


class Mend(NamedTuple):
    """Kinds of an error by the names of its classes, words in what it says, and what mends it."""

    kinds: Sequence[str]
    words: str
    mend: str


MENDS = (
    Mend(("MissingExtra", "MissingProgram"), r"$^", "then ask again"),
    Mend(("SSLError",), r"\bssl|\btls\b|certificate", "use the scheme or option that agrees with the server about TLS"),
    Mend(
        ("PermissionError",),
        r"password|authenticat|wrongpass|noauth|noperm|denied|forbidden|credential|signature",
        "give a login that may connect and read, by environment or password file",
    ),
    Mend(("FileNotFoundError", "NotADirectoryError"), r"does not exist|no such|nosuch", "name one that exists"),
    Mend((), r"is a (?:directory|file), not a|is not a SQLite database", "name one that is"),
    Mend(
        ("NotReady", "ConnectionError", "TimeoutError"),
        r"resolve|refused|timed out|timeout|could not connect|unreachable",
        "start the server, or correct host, port and TLS",
    ),
)


def line(url: str, error: Exception) -> str:
    """The one line about an error that ended a look."""
    return f"{shown(url, user=False)}: {said(error)}; {_mend(error)}"


def said(error: Exception) -> str:
    """What an error says, on one line."""
    lines = [" ".join(part.split()) for part in str(error).splitlines() if part.strip()]
    return redact("; ".join(lines)).rstrip(".;") if lines else type(error).__name__


def _mend(error: Exception) -> str:
    """The adapter's own words where it gave some (``error.add_note``), else by what was said and by the kind."""
    notes: Any = getattr(error, "__notes__", ())
    if notes:
        return redact(" ".join(str(notes[0]).split()))
    names = {kind.__name__ for kind in type(error).__mro__}
    kinds = [mend for mend in MENDS if names & set(mend.kinds)]
    spoken = [mend for mend in MENDS if re.search(mend.words, str(error), re.IGNORECASE)]
    both = [mend for mend in spoken if mend in kinds]
    return next((one.mend for one in (*both, *spoken, *kinds)), "mend that and ask again")
