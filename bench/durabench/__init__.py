"""The harness: kills what was started, and tells which acknowledged checkpoints are gone. It knows the contract, never
a backend by name.
"""

from durabench_model import mark

__all__ = ["mark"]
