"""The harness: kills what was started, and tells which acknowledged checkpoints are gone. It knows the contract, never
a backend by name.
"""

from __future__ import annotations

__all__ = ["mark"]


def mark(value: object = None) -> None:
    """Acknowledge, in a program that `durabench explore` records: what was written before this call must survive.
    Nothing happens where nobody records. ``value`` is anything that JSON can hold; TypeError otherwise.
    """
    from durabench_model import mark as acknowledge  # a driver in a guest has the harness, and not the model

    acknowledge(value)
