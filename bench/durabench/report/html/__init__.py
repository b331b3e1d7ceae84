"""One page that a person reads, shows to others and trusts: the results of folders as a file that needs no network.

`write` makes it. The page answers in its first two sentences; what it says after them is where that comes from, down to
the rows and the command that replays each loss.
"""

from durabench.report.html.page import render, write

__all__ = ["render", "write"]
