"""A machine that can be reset: guest, power disk, crash states, checkers."""

from durabench_vm.crash import (
    CrashBuilder,
    CrashState,
    Mode,
    build,
    enumerate_states,
    sample_states,
)
from durabench_vm.powerdisk import PowerDisk, PowerDiskError
from durabench_vm.recording import Entry, Gap, Kind, Recording, RecordingError

__all__ = [
    "CrashBuilder",
    "CrashState",
    "Entry",
    "Gap",
    "Kind",
    "Mode",
    "PowerDisk",
    "PowerDiskError",
    "Recording",
    "RecordingError",
    "build",
    "enumerate_states",
    "sample_states",
]
