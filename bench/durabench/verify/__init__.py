"""Whether a live deployment keeps what its owner thinks it keeps: reads the settings in force through one login, asks
the adapter what they mean for a goal, and with leave proves it by behaviour.

`verify` looks and gives a `Report`, which judges itself without looking again; `write` shows it in any format; `page`
explains one check.
"""

from durabench.verify.asked import UsageError, goal, ignored
from durabench.verify.formats import FORMS, clean, document, outputs, render, write
from durabench.verify.look import verify
from durabench.verify.pages import UnknownCheck, page
from durabench.verify.verdict import Report, Verdict

__all__ = [
    "FORMS",
    "Report",
    "UnknownCheck",
    "UsageError",
    "Verdict",
    "clean",
    "document",
    "goal",
    "ignored",
    "outputs",
    "page",
    "render",
    "verify",
    "write",
]
