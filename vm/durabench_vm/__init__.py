"""A machine that can be reset: a guest on a power disk, crash states from its recording, checkers that look at them.

A tour, in the order a campaign uses it:

    with RunFolder() as folder:                         # images live here; gone afterwards, also after kill -9
        ext4 = Filesystem.parse("ext4:commit=1")
        spec = RootSpec(trees=(Tree(SITE_PACKAGES),), binaries=(SERVER,))
        template = prepare(spec, ext4, folder, tell=print)   # once: fetch, build, probe, boot, save the state
        base = base_image(ext4, template.cache)              # or make_image(ext4, path, content=DATA_FOLDER)

        live = folder.path / "live.img"                      # record: a run on the power disk
        copy_sparse(base, live)
        disk = PowerDisk(live, folder.path / "run.log")
        with template.restore(disk, folder) as guest:        # 0.3 s
            guest.mount(ext4, user="nobody")                 # at guest.root, "/disk"
            process = guest.start(argv, on_line=lambda line: disk.mark(json.loads(line)))
            ...
            guest.cut()                                      # or guest.reset(), process.signal(SIGKILL, tree=True)
        recording = disk.recording()                         # .acknowledged(p) .gaps() .unflushed(p) .save(path, base)

        states = sample_states(recording, 300, seed)         # unit_bytes=4096; lie_from=p: the lying drive
        lane = LoopLane(folder)                              # or SwapLane(template, folder), GuestLane(…)
        job = Job(argv, lasting=True)
        for state, outcome in check_states(lane, recording, states, base_image=base, filesystem=ext4,
                                           job_of=lambda state: job, folder=folder):
            ...                                              # Checked(answer, seconds) or Finding(what, detail)
        lane.close()

Marks: hand `on_line` to `start`; it is called in the thread that reads the line, so the acknowledgement enters the
log at the moment it is held. `disk.mark` gives None after the cut: that one was not promised. A driver that waits for
a word on stdin before its next put makes each gap as wide as it can be.

Where a server is too heavy for an emulated machine, and the caller is root: `with LoopDisk(disk, folder) as place:` is
used like a guest and records the same way, on this host's kernel.

A callable job gets a Place (root, start, run, send, address, facts): start a server on the image, wait for it with a
deadline, read; raise WillNotStart where it does not come up. Nothing here waits without a deadline: GuestLost says a
machine hangs or is gone, AgentError that a request failed in it, MissingAsset and NoRoom what is to be done.
"""

from durabench_vm.assets import (
    Assets,
    Missing,
    MissingAsset,
    cache_folder,
    doctor,
    find_or_fetch,
)
from durabench_vm.channel import AgentError, Channel, Completed, GuestLost, GuestProcess
from durabench_vm.check import (
    Checked,
    Finding,
    GuestLane,
    HostPlace,
    Job,
    Lane,
    LoopLane,
    Place,
    SwapLane,
    WillNotStart,
    check_states,
)
from durabench_vm.contents import Contents
from durabench_vm.crash import (
    CrashBuilder,
    CrashState,
    Mode,
    build,
    enumerate_states,
)
from durabench_vm.drawing import CLASSES, Draw, Drawn, draw_states, sample_states
from durabench_vm.filesystem import Filesystem, base_image, make_image
from durabench_vm.guest import Guest, Template, prepare
from durabench_vm.image import copy_sparse
from durabench_vm.loopdisk import LoopDisk
from durabench_vm.powerdisk import PowerDisk, PowerDiskError
from durabench_vm.recording import Entry, Gap, Kind, Recording, RecordingError
from durabench_vm.rootimage import RootSpec, Tree
from durabench_vm.rundir import NoRoom, OwnFolder, RunFolder, sweep

__all__ = [
    "CLASSES",
    "AgentError",
    "Assets",
    "Channel",
    "Checked",
    "Completed",
    "Contents",
    "CrashBuilder",
    "CrashState",
    "Draw",
    "Drawn",
    "Entry",
    "Filesystem",
    "Finding",
    "Gap",
    "Guest",
    "GuestLane",
    "GuestLost",
    "GuestProcess",
    "HostPlace",
    "Job",
    "Kind",
    "Lane",
    "LoopDisk",
    "LoopLane",
    "Missing",
    "MissingAsset",
    "Mode",
    "NoRoom",
    "OwnFolder",
    "Place",
    "PowerDisk",
    "PowerDiskError",
    "Recording",
    "RecordingError",
    "RootSpec",
    "RunFolder",
    "SwapLane",
    "Template",
    "Tree",
    "WillNotStart",
    "base_image",
    "build",
    "cache_folder",
    "check_states",
    "copy_sparse",
    "doctor",
    "draw_states",
    "enumerate_states",
    "find_or_fetch",
    "make_image",
    "prepare",
    "sample_states",
    "sweep",
]
