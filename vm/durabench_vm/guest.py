"""The guest: a real kernel on a power disk, booted once, restored in a third of a second, reset or cut at any moment.

`prepare` does what is done once: assets, root image, which accelerator really works, the saved state. A `Template`
then makes any number of guests, one per power disk. The disk under test is /dev/vdb in the guest, mounted at /disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from durabench_vm import initramfs
from durabench_vm.assets import cache_folder, find_or_fetch
from durabench_vm.channel import Channel, GuestLost
from durabench_vm.filesystem import SIZES, Filesystem
from durabench_vm.powerdisk import PowerDisk
from durabench_vm.qemu import ACCELERATORS, Qemu, QMPError, kvm_may_work, version
from durabench_vm.rootimage import RootSpec, build_root
from durabench_vm.rundir import OwnFolder, open_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from durabench_vm.assets import Assets
    from durabench_vm.channel import Completed, GuestProcess
    from durabench_vm.rundir import RunFolder

DEVICE: Final = "/dev/vdb"
ROOT: Final = "/disk"
BOOT_S = 240.0
KVM_PROBE_S = 12.0
RESTORE_S = 60.0
MOUNT_S = 60.0
UNMOUNT_S = 5.0
STALE_STATE_S = 14 * 86400
PORTS = (15000, 30000)
PORT_TRIES = 50
# nokaslr and mitigations=off make the emulated boot shorter. A panic asks for a reboot at once, and QEMU ends on that
# (`-action`): a dead kernel is noticed when it dies, not at a deadline.
# Expedited grace periods make a mount ten times shorter; none of this touches when data goes to the disk.
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on"
    " cryptomgr.notests rcupdate.rcu_expedited=1 audit=0 apparmor=0"
)


@dataclass(frozen=True, slots=True)
class Template:
    """All that a guest is made from; made by `prepare`. Only paths and numbers: it can be sent to other processes."""

    kernel: Path
    initrd: Path
    root_image: Path
    kernel_version: str
    accelerator: str
    qemu_version: str
    filesystem: str
    disk_bytes: int
    unit_bytes: int
    memory_mib: int
    warm: tuple[tuple[str, ...], ...]
    cache: Path

    def key(self) -> str:
        """What a saved state is bound to: all that QEMU and the kernel were told."""
        stamp = [
            f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in (self.kernel, self.root_image)
        ]
        digest = hashlib.sha256(self.initrd.read_bytes())
        digest.update(json.dumps([*stamp, *self._words()]).encode())
        return digest.hexdigest()[:24]

    def _words(self) -> list[object]:
        return [
            self.accelerator, self.qemu_version, self.filesystem, self.disk_bytes, self.unit_bytes, self.memory_mib,
            self.warm, KERNEL_LINE,
        ]  # fmt: skip

    @property
    def state(self) -> Path:
        """Where the saved state is, or will be."""
        return self.cache / "state" / f"{self.key()}.state"

    def boot(self, disk: PowerDisk, folder: RunFolder, *, deadline_s: float = BOOT_S) -> Guest:
        """Boot a guest from cold on `disk`. GuestLost where it does not come up."""
        return Guest(self, disk, folder, deadline_s=deadline_s, state=None)

    def restore(self, disk: PowerDisk, folder: RunFolder) -> Guest:
        """Give a guest on `disk` from the saved state, saving one first where there is none that QEMU still takes."""
        state = self.state
        with _locked(state):
            if not state.exists():
                _save_state(self, folder, state)
        os.utime(state)
        try:
            return Guest(self, disk, folder, deadline_s=RESTORE_S, state=state)
        except (GuestLost, QMPError):
            state.unlink(missing_ok=True)  # made by something else than we thought: once more, from cold
        with _locked(state):
            _save_state(self, folder, state)
        return Guest(self, disk, folder, deadline_s=RESTORE_S, state=state)


class Guest:
    """One running machine on one power disk. Made by a Template; ended by `kill` (or the end of a `with`)."""

    root = ROOT

    def __init__(
        self, template: Template, disk: PowerDisk, folder: RunFolder, *, deadline_s: float, state: Path | None
    ) -> None:
        if (disk.size_bytes, disk.unit_bytes) != (template.disk_bytes, template.unit_bytes):
            message = (
                f"the template is for a disk of {template.disk_bytes} bytes in units of {template.unit_bytes},"
                f" not of {disk.size_bytes} in {disk.unit_bytes}"
            )
            raise ValueError(message)
        self.template, self.disk = template, disk
        begin = time.monotonic()
        ours, theirs = socket.socketpair()
        nbd = disk.connect()
        arguments = _arguments(template, control=theirs.fileno(), nbd=nbd.fileno(), incoming=state is not None)
        name = f"guest-{time.monotonic_ns()}"
        try:
            self._qemu = Qemu(arguments, folder, name, (theirs, nbd))
        except BaseException:
            ours.close()
            raise
        self.channel = Channel(ours, self._qemu.last_words)
        self._forwarded: dict[int, int] = {}
        try:
            if state is None:
                self.greeting = self.channel.hello(deadline_s)
            else:
                self._take_state(state, deadline_s)
            self.channel.wake()
        except BaseException:
            self.kill()
            raise
        self.boot_s = time.monotonic() - begin
        self.restored = state is not None

    def _take_state(self, state: Path, deadline_s: float) -> None:
        with state.open("rb") as file:
            self._qemu.qmp.command("getfd", fd=file.fileno(), fdname="state")
            self._qemu.qmp.command("migrate-incoming", uri="fd:state")
        self._wait_migrated(deadline_s)
        self._qemu.qmp.command("cont")
        self.channel.request("ping", deadline_s)

    def _wait_migrated(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while True:
            status = (self._qemu.qmp.command("query-migrate") or {}).get("status")
            if status == "completed":
                return
            if status == "failed" or time.monotonic() > end:
                raise self.channel.lost(f"the saved state was not taken ({status})")
            time.sleep(0.005)

    # -- inside ---------------------------------------------------------------------------------------------------

    def mount(self, filesystem: Filesystem, *, user: str | None = None, deadline_s: float = MOUNT_S) -> None:
        """Mount the disk at `root` and give its top folder to `user`. AgentError: it will not mount."""
        self.channel.request(
            "mount", deadline_s, source=DEVICE, target=ROOT, kind=filesystem.name, options=list(filesystem.options),
            user=user,
        )  # fmt: skip

    def umount(self, deadline_s: float = UNMOUNT_S) -> None:
        """Unmount the disk and drop its buffers. AgentError: busy."""
        self.channel.request("unmount", deadline_s + MOUNT_S, target=ROOT, device=DEVICE, deadline_s=deadline_s)

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
        """Write `files` (a relative name goes under `root`) and start a process; see Channel.start."""
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
        """Run a command to its end; see Channel.run."""
        return self.channel.run(argv, env=env, stdin=stdin, cwd=cwd, user=user, deadline_s=deadline_s)

    def send(self, files: Mapping[str, bytes], *, user: str | None = None) -> None:
        """Write files; a relative name goes under `root`."""
        self.channel.send({os.path.join(ROOT, name): data for name, data in files.items()}, user=user)  # noqa: PTH118

    def address(self, port: int) -> tuple[str, int]:
        """Where on this host the guest's `port` is reached; a server there sees connections from its own loopback."""
        if port not in self._forwarded:
            self._forwarded[port] = self._forward(self.channel.request("forward", address="10.0.2.15", port=port))
        return "127.0.0.1", self._forwarded[port]

    def _forward(self, port: int) -> int:
        drawn = random.Random()
        for _ in range(PORT_TRIES):
            here = drawn.randrange(*PORTS)
            line = f"hostfwd_add net tcp:127.0.0.1:{here}-10.0.2.15:{port}"
            if not self._qemu.qmp.monitor(line):
                return here
        message = f"no free port found on this host for the guest's {port}"
        raise OSError(message)

    # -- outside --------------------------------------------------------------------------------------------------

    def reset(self, deadline_s: float = BOOT_S) -> None:
        """Press the reset button: memory is gone, completed writes stay. Returns when the guest is up again, unmounted.

        Every process of before is gone; their `wait` raises GuestLost.
        """
        self.channel.restarted()
        self._forwarded.clear()
        self._qemu.qmp.command("set-action", reboot="reset")
        self._qemu.qmp.command("system_reset")
        self.greeting = self.channel.hello(deadline_s)
        self._qemu.qmp.command("set-action", reboot="shutdown")
        self.channel.wake()
        self._load_modules()

    def cut(self) -> int:
        """Cut the power: the disk first, then the machine. Gives the position at which it happened."""
        position = self.disk.cut()
        self.kill()
        return position

    def kill(self) -> None:
        """SIGKILL the machine and reap it. The disk stays as it is. May be called twice."""
        self.channel.close()
        self._qemu.kill()

    @property
    def pid(self) -> int:
        """The emulator's process id."""
        return self._qemu.pid

    def rss_bytes(self) -> int:
        """The emulator's resident memory."""
        return self._qemu.rss_bytes()

    def console(self) -> str:
        """The end of what the guest's kernel said."""
        return self._qemu.last_words()

    def facts(self) -> Mapping[str, object]:
        """What every result of this machine carries."""
        return {
            "lane": "guest",
            "accelerator": self.template.accelerator,
            "qemu": self.template.qemu_version,
            "kernel": self.template.kernel_version,
            "recovering_kernel": self.template.kernel_version,
            "filesystem": self.template.filesystem,
            "memory_mib": self.template.memory_mib,
            "disk_bytes": self.disk.size_bytes,
            "unit_bytes": self.disk.unit_bytes,
            "flush_delay_s": self.disk.flush_delay_s,
            "restored": self.restored,
            "boot_s": round(self.boot_s, 3),
        }

    def _load_modules(self) -> None:
        names = (self.template.initrd.parent / f"{self.template.initrd.name}.{self.template.filesystem}").read_text()
        self.channel.request("load", MOUNT_S, folder=initramfs.MODULE_FOLDER, order=names.split())

    def __enter__(self) -> Self:
        """Be killed at the end of a `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill."""
        self.kill()


def prepare(
    root: RootSpec,
    filesystem: Filesystem,
    folder: RunFolder,
    *,
    cache: Path | None = None,
    disk_bytes: int | None = None,
    unit_bytes: int = 512,
    memory_mib: int = 512,
    warm: Sequence[Sequence[str]] = (),
    accelerator: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Template:
    """Make all that guests need: assets, root image, initramfs; find the accelerator; save the booted state.

    `warm` commands run once before the state is saved, so that what they read is in the guest's memory ever after.
    `tell` hears one line per long step. MissingAsset, OSError, GuestLost: one line with the mend.
    """
    cache = cache_folder() if cache is None else cache
    cache.mkdir(parents=True, exist_ok=True)
    tell("guest: kernel and tools")
    assets = find_or_fetch(cache)
    tell("guest: root image")
    with _locked(cache / "root" / "build"):
        image = build_root(root, assets, cache)
    initrd = _initrd(assets, root, filesystem.name, cache)
    words = {
        "kernel": assets.kernel, "initrd": initrd, "root_image": image, "kernel_version": assets.version,
        "qemu_version": version(), "filesystem": filesystem.name,
        "disk_bytes": disk_bytes or SIZES[filesystem.name], "unit_bytes": unit_bytes, "memory_mib": memory_mib,
        "warm": tuple(tuple(entry) for entry in warm), "cache": cache,
    }  # fmt: skip
    found = accelerator or _working_accelerator(words, folder, tell)
    template = Template(accelerator=found, **words)  # type: ignore[arg-type]
    state = template.state
    with _locked(state):
        if not state.exists():
            tell(f"guest: booting once under {found} and saving the state")
            _save_state(template, folder, state)
    return template


def _initrd(assets: Assets, root: RootSpec, filesystem: str, cache: Path) -> Path:
    agent = Path(__file__).with_name("agent.py").read_bytes()
    python = os.path.realpath(root.python)
    modules = assets.module_files((*initramfs.CORE_MODULES, *SIZES))
    data = initramfs.build(assets, agent, python, tuple(SIZES))
    path = cache / "initrd" / f"{hashlib.sha256(data).hexdigest()[:24]}.cpio"
    order = path.with_name(f"{path.name}.{filesystem}")
    del modules
    if not path.exists() or not order.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
        _replace(order, "\n".join(name for name, _ in assets.module_files((filesystem,))).encode())
    return path


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def _working_accelerator(words: Mapping[str, Any], folder: RunFolder, tell: Callable[[str], None]) -> str:
    """KVM only where a boot under it succeeded within a deadline: an openable /dev/kvm proves nothing."""
    if not kvm_may_work():
        return "tcg"
    about = json.dumps([words["qemu_version"], words["kernel_version"], list(os.uname()), _processor()])
    cache: Path = words["cache"]
    verdict = cache / f"accelerator-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    if verdict.exists():
        return verdict.read_text()
    tell(f"guest: trying KVM for at most {KVM_PROBE_S:.0f} s")
    template = Template(accelerator="kvm", **words)
    found = "kvm"
    with _scratch_disk(template, folder) as disk:
        try:
            template.boot(disk, folder, deadline_s=KVM_PROBE_S).kill()
        except (GuestLost, QMPError):
            found = "tcg"
    _replace(verdict, found.encode())
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line
    return ""


def _save_state(template: Template, folder: RunFolder, state: Path) -> None:
    """Boot, warm up, leave nothing of the disk in memory, stop, and write the machine's state."""
    state.parent.mkdir(parents=True, exist_ok=True)
    with _scratch_disk(template, folder) as disk, template.boot(disk, folder) as guest:
        guest._load_modules()  # noqa: SLF001
        for argv in template.warm:
            done = guest.run(argv, deadline_s=BOOT_S)
            if done.status != 0:
                message = f"warming up with {argv[0]} failed in the guest: {done.err.strip()[-300:] or done.out[-300:]}"
                raise GuestLost(message)
        guest.channel.request("unmount", target=ROOT, device=DEVICE, deadline_s=1.0)  # drops the device's buffers
        qmp = guest._qemu.qmp  # noqa: SLF001
        qmp.command("stop")
        with OwnFolder(state.parent, "save-") as own:
            part = own.path / state.name
            with part.open("wb") as file:
                qmp.command("getfd", fd=file.fileno(), fdname="state")
                qmp.command("migrate", uri="fd:state")
                guest._wait_migrated(RESTORE_S)  # noqa: SLF001
            part.replace(state)
    for old in state.parent.glob("*.state"):
        if time.time() - old.stat().st_mtime > STALE_STATE_S:
            old.unlink(missing_ok=True)


@contextlib.contextmanager
def _scratch_disk(template: Template, folder: RunFolder) -> Iterator[PowerDisk]:
    image = folder.path / f"scratch-{time.monotonic_ns()}.img"
    log = image.with_suffix(".log")
    with image.open("wb") as file:
        file.truncate(template.disk_bytes)
    disk = PowerDisk(image, log, unit_bytes=template.unit_bytes)
    try:
        yield disk
    finally:
        disk.close()
        image.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time makes `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open_lock(path.with_name(path.name + ".lock"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _arguments(template: Template, *, control: int, nbd: int, incoming: bool) -> list[str]:
    accelerator, processor = ACCELERATORS[template.accelerator]
    root = {"driver": "raw", "node-name": "root", "read-only": True,
            "file": {"driver": "file", "filename": str(template.root_image), "read-only": True}}  # fmt: skip
    data = {"driver": "nbd", "node-name": "data", "server": {"type": "fd", "str": str(nbd)}}
    unit = template.unit_bytes
    return [
        "-M", "pc", "-accel", accelerator, "-cpu", processor, "-m", str(template.memory_mib), "-smp", "1",
        "-action", "reboot=shutdown",
        "-kernel", str(template.kernel), "-initrd", str(template.initrd), "-append", KERNEL_LINE,
        "-device", "virtio-serial-pci", "-chardev", f"socket,id=control,fd={control}",
        "-device", f"virtserialport,chardev=control,name={initramfs.PORT}",
        "-blockdev", json.dumps(root), "-device", "virtio-blk-pci,drive=root",
        "-blockdev", json.dumps(data),
        "-device", f"virtio-blk-pci,drive=data,write-cache=on,logical_block_size={unit},physical_block_size={unit}",
        "-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile=",
        *(["-incoming", "defer"] if incoming else []),
    ]  # fmt: skip
