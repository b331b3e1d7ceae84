"""From which size on data belongs elsewhere, and what it saves to split it off: the command ``plan``."""

from durabench.plan.candidates import NothingMeets
from durabench.plan.planning import NoRoom, Planned, Question, plan
from durabench.plan.sizes import grid
from durabench.plan.trace import TraceError

__all__ = ["NoRoom", "NothingMeets", "Planned", "Question", "TraceError", "grid", "plan"]
