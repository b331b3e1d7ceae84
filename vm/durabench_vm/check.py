"""Checkers: mount a crash image, run a job on it, and say what came of it, in one of three lanes behind one call.

| lane  | where the image is mounted                               | needs  |
| ----- | -------------------------------------------------------- | ------ |
| guest | a guest of its own, restored for it: the evidence        | QEMU   |
| swap  | put under the disk of one running guest, state by state  | QEMU   |
| loop  | on this host, by its kernel, in a namespace of its own   | root   |

I/O errors, a file system that will not mount, a server that will not start, a job that crashes on what it reads or
does not answer are findings about the image. A missing image, a kernel without the file system, no free loop device, a
machine that was lost or a job that somebody ended are none (`Finding.of_image`): they say nothing of what it holds, and
nobody's store may be blamed for them. What a job raises otherwise is a fault of the job and goes through. Images are
changed by the check: hand in ones to throw away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from durabench_vm.assets import cache_folder, find_program, need_program
from durabench_vm.channel import AgentError, Channel, GuestLost
from durabench_vm.crash import CrashBuilder
from durabench_vm.powerdisk import PowerDisk
from durabench_vm.rundir import open_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from durabench_vm.channel import Completed, GuestProcess
    from durabench_vm.crash import CrashState
    from durabench_vm.filesystem import Filesystem
    from durabench_vm.guest import Guest, Template
    from durabench_vm.recording import Recording
    from durabench_vm.rundir import RunFolder

WILL_NOT_MOUNT: Final = "will not mount"
WILL_NOT_START: Final = "will not start"
IO_ERROR: Final = "i/o error"
GARBAGE: Final = "garbage"
JOB_CRASHED: Final = "job crashed"
JOB_FAILED: Final = "job failed"
NO_ANSWER: Final = "no answer"
MACHINE_LOST: Final = "machine lost"
HARNESS_FAILED: Final = "harness failed"
OF_IMAGE = frozenset({WILL_NOT_MOUNT, WILL_NOT_START, IO_ERROR, JOB_CRASHED, NO_ANSWER})
CRASHES = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
"""Signals that a program brings on itself; any other that ends it was sent, by a kernel out of memory, say."""
NOT_OF_IMAGE = frozenset({0, errno.EACCES, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENODEV,
                          errno.ENOMEM, errno.ENOTBLK, errno.ENXIO, errno.EPERM})  # fmt: skip
"""What a mount is refused for whatever the image holds; 0: it was not the kernel that refused."""
IO_WORDS = re.compile(r"\[Errno (5|61|74|117)\]|Input/output error|Structure needs cleaning|disk I/O error")
IO_CODES = {errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA}
MOUNT_S = 60.0
UNMOUNT_S = 5.0
BUSY_S = 0.2  # how long a lasting job may hold on to an image after its answer
JOB_S = 60.0
HELLO_S = 20.0
CLONED_BTRFS = (6, 7)  # from this kernel on, two images of one btrfs may be mounted at the same time


class WillNotStart(Exception):
    """Raised by a callable job: a server did not come up on this image."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of an image that gave no answer: `what` is one of this module's words, `detail` for people."""

    what: str
    detail: str

    @property
    def of_image(self) -> bool:
        """Whether the image may be what it comes from, as against the machine, its kernel, or the job itself."""
        return self.what in OF_IMAGE


@dataclass(frozen=True, slots=True)
class Checked:
    """A job's answer: its stdout read as JSON, or what the callable gave. `seconds` from mounting to the answer."""

    answer: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """A command run with the mounted image as its working folder (and `{root}` in argv and env replaced by it).

    Its stdout is one JSON document. A `lasting` job is one process for many images: it is started once, gets one line
    per image, the JSON object `request` with "root" added, and answers by one line, holding nothing open afterwards.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    user: str | None = None
    deadline_s: float = JOB_S
    lasting: bool = False
    request: Mapping[str, Any] = field(default_factory=dict)


class Place(Protocol):
    """A machine with the image mounted at `root`: start processes there, reach their ports. A Guest is one."""

    @property
    def root(self) -> str: ...

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        files: Mapping[str, bytes] | None = None,
        user: str | None = None,
        *,
        cwd: str = "/",
        on_line: Callable[[str], None] | None = None,
    ) -> GuestProcess: ...

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        user: str | None = None,
        *,
        cwd: str = "/",
        deadline_s: float = 60.0,
    ) -> Completed: ...

    def send(self, files: Mapping[str, bytes], *, user: str | None = None) -> None: ...

    def address(self, port: int) -> tuple[str, int]: ...

    def facts(self) -> Mapping[str, object]: ...


class Lane(Protocol):
    """One way to look at crash images. Not for several threads at once; make one per process."""

    name: str

    def check(
        self, image: Path, filesystem: Filesystem, job: Job | Callable[[Place], Any], *, user: str | None = None
    ) -> Checked | Finding:
        """Mount `image` (its top folder given to `user`), run the job, unmount. Always gives an outcome in time."""

    def facts(self) -> Mapping[str, object]:
        """What every result of this lane carries; `recovering_kernel` is the one that mounted the images."""

    def close(self) -> None:
        """End all that runs. May be called twice."""


def check_states(
    lane: Lane,
    recording: Recording,
    states: Iterable[CrashState],
    *,
    base_image: Path,
    filesystem: Filesystem,
    job_of: Callable[[CrashState], Job | Callable[[Place], Any]],
    folder: RunFolder,
    user: str | None = None,
) -> Iterator[tuple[CrashState, Checked | Finding]]:
    """Build and check many states of one recording, one by one; fastest in ascending position.

    `job_of` gives what to do with each, a Job with its own request, say. The images lie in `folder` for their moment.
    """
    name = f"{os.getpid()}-{time.monotonic_ns()}"
    image = folder.path / f"crash-{name}.img"
    with CrashBuilder(base_image, recording, folder.path / f"durable-{name}.img") as builder:
        try:
            for state in states:
                builder.build(state, image)
                yield state, lane.check(image, filesystem, job_of(state), user=user)
        finally:
            image.unlink(missing_ok=True)


class _Runner:
    """Carries out jobs on a place; keeps the lasting ones. What it gives is an outcome, whatever the image holds."""

    def __init__(self) -> None:
        self.lasting: dict[tuple[str, ...], GuestProcess] = {}

    def outcome(self, place: Place, job: Job | Callable[[Place], Any]) -> Checked | Finding:
        begin = time.monotonic()
        try:
            if isinstance(job, Job):
                found = self._ask_lasting(place, job) if job.lasting else _run(place, job)
                return found if isinstance(found, Finding) else Checked(found[0], time.monotonic() - begin)
            return Checked(job(place), time.monotonic() - begin)
        except WillNotStart as error:
            return Finding(WILL_NOT_START, str(error))
        except AgentError as error:
            if error.errno in IO_CODES:
                return Finding(IO_ERROR, str(error))
            raise

    def prepare(self, place: Place, job: Job | Callable[[Place], Any]) -> None:
        """Start a lasting job before the image is mounted, so that it holds nothing of it."""
        if isinstance(job, Job) and job.lasting:
            key = (*job.argv, job.user or "", *(f"{name}={value}" for name, value in sorted(job.env.items())))
            known = self.lasting.get(key)
            if known is None or known.poll() is not None:
                self.lasting[key] = place.start(job.argv, job.env, user=job.user)

    def leave(self, channel: Channel, umount: Callable[[float], None]) -> bool:
        """End what the job left running, and unmount. False: something still holds the file system; start over."""
        for spared, busy_s in ((tuple(self.lasting.values()), BUSY_S), ((), UNMOUNT_S)):
            with contextlib.suppress(AgentError, TimeoutError):
                channel.kill_all(spared)
                umount(busy_s)
                return True
            self.lasting.clear()  # it held a file open: a fresh one for the next image
        return False

    def _ask_lasting(self, place: Place, job: Job) -> tuple[Any] | Finding:
        key = (*job.argv, job.user or "", *(f"{name}={value}" for name, value in sorted(job.env.items())))
        process = self.lasting[key]
        if job.files:
            place.send(job.files, user=job.user)
        try:
            process.write_line(json.dumps({**job.request, "root": place.root}))
            line = process.read_line(job.deadline_s)
        except TimeoutError:
            del self.lasting[key]
            process.kill()
            return Finding(NO_ANSWER, f"no answer in {job.deadline_s:.0f} s")
        except AgentError:
            line = None  # it closed its stdin: it is ending
        if line is None:
            del self.lasting[key]
            return _failed(process.wait(), "\n".join(process.stderr_tail))
        return _parsed(line)


def _run(place: Place, job: Job) -> tuple[Any] | Finding:
    if job.files:
        place.send(job.files, user=job.user)

    def filled(text: str) -> str:
        return text.replace("{root}", place.root)

    done = place.run(
        [filled(word) for word in job.argv], {name: filled(value) for name, value in job.env.items()}, job.stdin,
        job.user, cwd=place.root, deadline_s=job.deadline_s,
    )  # fmt: skip
    if done.status is None:
        return Finding(NO_ANSWER, f"killed after {job.deadline_s:.0f} s; {_last(done.err)}")
    if done.status:
        return _failed(done.status, done.err)
    return _parsed(done.out)


def _failed(status: int, err: str) -> Finding:
    """A job that ended without an answer: by the kernel's word on the image, by a crash, by a signal from outside."""
    if status < 0:
        what = JOB_CRASHED if -status in CRASHES else HARNESS_FAILED
    else:
        what = IO_ERROR if IO_WORDS.search(err) else JOB_FAILED
    return Finding(what, f"ended with {status}; {_last(err)}")


def _not_mounted(error: AgentError, more: str = "") -> Finding:
    return Finding(HARNESS_FAILED if error.errno in NOT_OF_IMAGE else WILL_NOT_MOUNT, f"{error}{more}")


def _missing(image: Path) -> Finding | None:
    return None if image.is_file() else Finding(HARNESS_FAILED, f"there is no image {image.name}")


def _last(text: str) -> str:
    return text.strip()[-500:]


def _parsed(text: str) -> tuple[Any] | Finding:
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return Finding(GARBAGE, f"no JSON: {text[:200]!r}")


class GuestLane:
    """Each image in a guest of its own."""

    name = "guest"

    def __init__(self, template: Template, folder: RunFolder) -> None:
        self._template, self._folder = template, folder
        self._facts: Mapping[str, object] = {}

    def check(
        self, image: Path, filesystem: Filesystem, job: Job | Callable[[Place], Any], *, user: str | None = None
    ) -> Checked | Finding:
        """See Lane."""
        if missing := _missing(image):
            return missing
        with _crash_disk(image, self._template, self._folder) as disk:
            try:
                guest = self._template.restore(disk, self._folder)
            except GuestLost as error:
                return Finding(MACHINE_LOST, str(error))
            with guest:
                self._facts = guest.facts()
                runner = _Runner()
                try:
                    runner.prepare(guest, job)
                    guest.mount(filesystem, user=user)
                except AgentError as error:
                    return _not_mounted(error, f"; {_last(guest.console())}")
                except GuestLost as error:
                    return Finding(MACHINE_LOST, str(error))
                try:
                    return runner.outcome(guest, job)
                except GuestLost as error:
                    return Finding(MACHINE_LOST, str(error))

    def facts(self) -> Mapping[str, object]:
        """See Lane."""
        return {**self._facts, "lane": self.name, "recovering_kernel": self._template.kernel_version,
                "accelerator": self._template.accelerator}  # fmt: skip

    def close(self) -> None:
        """Nothing outlives a check."""


class SwapLane:
    """Many images under the disk of one running guest; a new guest where that one is lost."""

    name = "swap"

    def __init__(self, template: Template, folder: RunFolder) -> None:
        self._template, self._folder = template, folder
        self._log = folder.path / f"swap-{os.getpid()}-{time.monotonic_ns()}.log"
        self._disk: PowerDisk | None = None
        self._guest: Guest | None = None
        self._runner = _Runner()
        self._facts: Mapping[str, object] = {}

    def check(
        self, image: Path, filesystem: Filesystem, job: Job | Callable[[Place], Any], *, user: str | None = None
    ) -> Checked | Finding:
        """See Lane."""
        if missing := _missing(image):
            return missing
        try:
            guest = self._with(image)
            self._runner.prepare(guest, job)
            try:
                guest.mount(filesystem, user=user)
            except AgentError as error:
                guest.umount()  # drops what was read of the device
                return _not_mounted(error)
            try:
                return self._runner.outcome(guest, job)
            finally:
                self._leave(guest)
        except GuestLost as error:
            self.close()
            return Finding(MACHINE_LOST, str(error))

    def _with(self, image: Path) -> Guest:
        if self._disk is None or self._guest is None:
            self._disk = PowerDisk(image, self._log, unit_bytes=self._template.unit_bytes)
            self._guest = self._template.restore(self._disk, self._folder)
            self._facts = self._guest.facts()
        else:
            self._disk.swap(image)
        return self._guest

    def _leave(self, guest: Guest) -> None:
        if not self._runner.leave(guest.channel, guest.umount):
            self.close()

    def facts(self) -> Mapping[str, object]:
        """See Lane."""
        return {**self._facts, "lane": self.name, "recovering_kernel": self._template.kernel_version,
                "accelerator": self._template.accelerator}  # fmt: skip

    def close(self) -> None:
        """See Lane."""
        if self._guest is not None:
            self._guest.kill()
        if self._disk is not None:
            self._disk.close()
        self._disk = self._guest = None
        self._runner = _Runner()
        self._log.unlink(missing_ok=True)


class HostPlace:
    """This host seen through an agent in a mount, process and shared-memory namespace of its own. Needs root.

    Whatever runs in it ends, and whatever is mounted or shared in it goes, when it is closed or this process dies.
    An image's content reaches nothing of the host: no device, no set-user-id, no link that leads out of it.
    """

    def __init__(self, folder: RunFolder) -> None:
        lack = HostPlace.lack()
        if lack is not None:
            raise PermissionError(errno.EPERM, lack)
        self.root = str(folder.path / f"mounted-{os.getpid()}-{time.monotonic_ns()}")
        Path(self.root).mkdir()
        self._errors = Path(self.root + ".errors")
        ours, theirs = socket.socketpair()
        command = [
            need_program("unshare"), "--mount", "--propagation", "private", "--ipc", "--pid", "--fork",
            "--kill-child=KILL", "--mount-proc", sys.executable, "-S", "-E",
            str(Path(__file__).with_name("agent.py")), str(theirs.fileno()), str(folder.path),
        ]  # fmt: skip
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                start_new_session=True,  # Ctrl-C is for the one who asked, who ends this one in order
            )  # fmt: skip
        theirs.close()
        self.channel = Channel(ours, self._last_words)
        try:
            self.channel.hello(HELLO_S)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def lack() -> str | None:
        """Why this host cannot do it, in one line with the mend, or None."""
        if os.geteuid() != 0:
            return "mounting crash images on this host needs root: run as root, or use lane swap or guest"
        if not Path("/dev/loop-control").exists():
            return "no /dev/loop-control here: `modprobe loop`, or use lane swap or guest"
        if find_program("unshare") is None:
            return "no unshare here: install util-linux, or use lane swap or guest"
        return None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return self._errors.read_text(errors="replace")[-2000:]
        return ""

    def mount(
        self, source: str, filesystem: Filesystem, *, user: str | None = None, deadline_s: float = MOUNT_S
    ) -> None:
        """Mount an image file or a device at `root`. AgentError: it will not mount."""
        options = list(filesystem.options)
        if filesystem.name == "xfs":
            options.append("nouuid")  # all images of one base have one id, and several are mounted at a time
        self.channel.request(
            "mount", deadline_s, source=source, target=self.root, kind=filesystem.name, options=options, user=user
        )

    def umount(self, deadline_s: float = UNMOUNT_S) -> None:
        """Unmount. AgentError: busy."""
        self.channel.request("unmount", deadline_s + MOUNT_S, target=self.root, device=None, deadline_s=deadline_s)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        files: Mapping[str, bytes] | None = None,
        user: str | None = None,
        *,
        cwd: str = "/",
        on_line: Callable[[str], None] | None = None,
    ) -> GuestProcess:
        """As Guest.start."""
        if files:
            self.send(files, user=user)
        return self.channel.start(argv, env=env, stdin=stdin, cwd=cwd, user=user, on_line=on_line)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        user: str | None = None,
        *,
        cwd: str = "/",
        deadline_s: float = 60.0,
    ) -> Completed:
        """As Guest.run."""
        return self.channel.run(argv, env=env, stdin=stdin, cwd=cwd, user=user, deadline_s=deadline_s)

    def send(self, files: Mapping[str, bytes], *, user: str | None = None) -> None:
        """As Guest.send."""
        placed = {os.path.join(self.root, name): data for name, data in files.items()}  # noqa: PTH118
        self.channel.send(placed, user=user, root=self.root)

    def address(self, port: int) -> tuple[str, int]:
        """The same port: its network is this host's."""
        return "127.0.0.1", port

    def facts(self) -> Mapping[str, object]:
        """The kernel is this host's."""
        return {"lane": "loop", "recovering_kernel": os.uname().release, "kernel": os.uname().release}

    def close(self) -> None:
        """End all that runs and is mounted in it. May be called twice."""
        self.channel.close()
        try:
            self._process.wait(UNMOUNT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(UNMOUNT_S)
        with contextlib.suppress(OSError):
            Path(self.root).rmdir()
        self._errors.unlink(missing_ok=True)


class LoopLane:
    """Images mounted by this host's kernel through loop devices: the fastest lane, for root."""

    name = "loop"

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._place: HostPlace | None = None
        self._runner = _Runner()

    def check(
        self, image: Path, filesystem: Filesystem, job: Job | Callable[[Place], Any], *, user: str | None = None
    ) -> Checked | Finding:
        """See Lane."""
        if missing := _missing(image):
            return missing
        try:
            with _one_btrfs_at_a_time(filesystem):
                return self._check(image, filesystem, job, user)
        except GuestLost as error:
            self.close()
            return Finding(MACHINE_LOST, str(error))

    def _check(
        self, image: Path, filesystem: Filesystem, job: Job | Callable[[Place], Any], user: str | None
    ) -> Checked | Finding:
        if self._place is None:
            self._place = HostPlace(self._folder)
        place = self._place
        self._runner.prepare(place, job)
        try:
            place.mount(str(image), filesystem, user=user)
        except AgentError as error:
            return _not_mounted(error)
        try:
            return self._runner.outcome(place, job)
        finally:
            if not self._runner.leave(place.channel, place.umount):
                self.close()

    def facts(self) -> Mapping[str, object]:
        """See Lane."""
        return {"lane": self.name, "recovering_kernel": os.uname().release}

    def close(self) -> None:
        """See Lane."""
        if self._place is not None:
            self._place.close()
        self._place = None
        self._runner = _Runner()


@contextlib.contextmanager
def _crash_disk(image: Path, template: Template, folder: RunFolder) -> Iterator[PowerDisk]:
    log = folder.path / f"check-{os.getpid()}-{time.monotonic_ns()}.log"
    disk = PowerDisk(image, log, unit_bytes=template.unit_bytes)
    try:
        yield disk
    finally:
        disk.close()
        log.unlink(missing_ok=True)


@contextlib.contextmanager
def _one_btrfs_at_a_time(filesystem: Filesystem) -> Iterator[None]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if filesystem.name != "btrfs" or (found and (int(found[1]), int(found[2])) >= CLONED_BTRFS):
        yield
        return
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    lock = open_lock(cache / "btrfs.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
