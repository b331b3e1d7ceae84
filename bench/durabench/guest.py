"""The machine that can be reset: a guest on a power disk, and the places where its crash images are looked at.

Wraps `durabench_vm`, which knows nothing of stores: here a target becomes the content of a disk, its programs part of
the guest's root, and its daemons processes in the guest or on a mounted crash image.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import durabench
import durabench_backends
import durabench_vm as vm
from durabench import process
from durabench.machine import is_free
from durabench.process import HarnessError
from durabench.trial import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from durabench.ground import Ground
    from durabench.service import Target
    from durabench.trial import TrialPlan
    from durabench_backends.contract import Command
    from durabench_vm.channel import GuestProcess
    from durabench_vm.check import Lane, Place

DISK_BYTES = {"ext4": 256 << 20, "xfs": 384 << 20, "btrfs": 384 << 20}
"""Room for the server with the largest empty store and a few hundred checkpoints."""
UNIT_BYTES = {"ext4": 512, "xfs": 512, "btrfs": 4096}
"""The finest tearing that a file system is made for; btrfs has a superblock of 4 KiB."""
UNIT_OPTION = "unit="
IMPORTS_S = 60.0
SERVER_USER = "nobody"
STORES = "disk"
"""Folder of a machine's root whose content becomes the disk under test."""
WARM_UP = """import importlib, sys
sys.path[:0] = sys.argv[1].split(":")
for name in sys.argv[2:]: importlib.import_module(name)
"""
DRIVER = (sys.executable, "-S", "-m", "durabench.driver")
TO_STDERR = ("/bin/sh", "-c", 'exec "$@" 1>&2', "sh")


class NoMachine(RuntimeError):
    """There is no machine here that can be reset; the message is one line with the mend (*not run*)."""


def why_not() -> str | None:
    """Why no machine can be reset here, with the line that installs what is missing; None where one can."""
    missing = vm.doctor()
    return "; ".join(f"{one.what} not found ({one.why}): {one.install_line}" for one in missing) or None


def parse_filesystem(text: str | None) -> tuple[vm.Filesystem, int]:
    """A file system with its mount options and the unit at which its drive tears: ``ext4``, ``btrfs:unit=512``.
    ValueError.
    """
    found = vm.Filesystem.parse(text or "ext4")
    units = [option for option in found.options if option.startswith(UNIT_OPTION)]
    options = tuple(option for option in found.options if option not in units)
    unit_bytes = int(units[-1].removeprefix(UNIT_OPTION)) if units else UNIT_BYTES[found.name]
    return vm.Filesystem(found.name, options), unit_bytes


def default_lane() -> str:
    """The fastest that this user may use."""
    return "swap" if vm.HostPlace.lack() else "loop"


def is_heavy(targets: Iterable[Target]) -> bool:
    """Whether one of these is too slow under emulation: it then writes on this host, on a logged disk mounted by it."""
    return any(getattr(target.load()[0], "heavy", False) for target in targets)


def why_not_heavy(lane: str, filesystem: str) -> str | None:
    """Why a heavy server cannot have its power cut here; None where it can."""
    if lane != "loop":
        return f"too heavy for an emulated machine, which lane {lane} is; lane loop can do it"
    if parse_filesystem(filesystem)[0].name != "ext4":
        return "too heavy for an emulated machine; on this host on ext4 only, whose image takes its extended attributes"
    return vm.LoopDisk.lack()


@dataclass(frozen=True)
class Base:
    """A disk before the first put: its image, the folder of each namespace's store on it, the ports of its set-up."""

    image: Path
    folders: Mapping[str, str]
    ports: Mapping[str, int]


@dataclass
class Laboratory:
    """Templates, base images and lanes of a campaign; made once, closed with it."""

    ground: Ground
    say: Callable[[str], None]
    folder: vm.RunFolder = field(init=False)
    _templates: dict[tuple[str, int], vm.Template] = field(default_factory=dict)
    _bases: dict[tuple[Any, ...], Base] = field(default_factory=dict)
    _alone: dict[tuple[Target, ...], threading.Lock] = field(default_factory=dict)
    _lanes: dict[tuple[Any, ...], Lane] = field(default_factory=dict)
    undamaged: set[tuple[Any, ...]] = field(default_factory=set)
    """(lane, file system, targets) whose disk was seen to come up with nothing done to it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __post_init__(self) -> None:
        try:
            self.folder = vm.RunFolder()
        except vm.NoRoom as error:
            raise NoMachine(str(error)) from error

    def prepare(self, targets: Iterable[Target], filesystems: Iterable[str | None], workload: str) -> None:
        """Everything that is done once: kernel, root image with the targets' programs, booted and saved. NoMachine."""
        wanted = [target for target in targets if not is_heavy([target])]
        if not wanted:
            return
        spec = root_spec(wanted, workload)
        modules = sorted({module for target in wanted for module in client_modules(target)})
        path = driver_env(wanted, workload)["PYTHONPATH"]
        warm = ((*DRIVER[:2], "-c", WARM_UP, path, "durabench.driver", "sqlite3", *modules),)
        for text in dict.fromkeys(filesystems):
            filesystem, unit_bytes = parse_filesystem(text)
            try:
                self._templates[filesystem.name, unit_bytes] = vm.prepare(
                    spec,
                    vm.Filesystem(filesystem.name),
                    self.folder,
                    disk_bytes=DISK_BYTES[filesystem.name],
                    unit_bytes=unit_bytes,
                    warm=warm,
                    tell=self.say,
                )
            except (vm.MissingAsset, vm.GuestLost, OSError) as error:
                raise NoMachine(str(error)) from error

    def machine(self, plan: TrialPlan, disk: vm.PowerDisk) -> vm.Guest | vm.LoopDisk:
        """What a recording is made on: a guest, or this host with the logged disk mounted, where a server is too
        heavy.
        """
        if is_heavy(plan.targets.values()):
            return vm.LoopDisk(disk, self.folder)
        return self.template(plan.filesystem).restore(disk, self.folder)

    def template(self, text: str | None) -> vm.Template:
        """What guests for this file system are made from."""
        filesystem, unit_bytes = parse_filesystem(text)
        return self._templates[filesystem.name, unit_bytes]

    def base(self, targets: Mapping[str, Target], text: str | None, workload: str) -> Base:
        """The disk as it is before the first put: every target set up, made ready and stopped in order on this host.

        Made once per pair of targets and file system.
        """
        filesystem, unit_bytes = parse_filesystem(text)
        key = (*targets.values(), filesystem.name, unit_bytes)
        with self._lock:
            if key not in self._bases:
                image = self.folder.path / f"base-{len(self._bases)}.img"
                self._bases[key] = self._make_base(targets, filesystem, unit_bytes, workload, image)
            return self._bases[key]

    def _make_base(
        self, targets: Mapping[str, Target], filesystem: vm.Filesystem, unit_bytes: int, workload: str, image: Path
    ) -> Base:
        machine = self.ground.machine(list(targets.values()), workload)
        try:
            site = Site.set_up(machine, targets)
            machine.stop()
            vm.make_image(
                vm.Filesystem(filesystem.name),
                image,
                size_bytes=DISK_BYTES[filesystem.name],
                content=machine.root / STORES,
                unit_bytes=unit_bytes,
            )
        except OSError as error:
            raise HarnessError(str(error)) from error
        finally:
            machine.close()
        folders = {namespace: service.root.name for namespace, service in site.services.items()}
        return Base(image, folders, machine.ports_drawn)

    @contextmanager
    def alone(self, targets: Mapping[str, Target]) -> Iterator[None]:
        """Where a heavy server runs on this host with the ports of its set-up: one machine with them at a time."""
        if not is_heavy(targets.values()):
            yield
            return
        with self._lock:
            lock = self._alone.setdefault(tuple(targets.values()), threading.Lock())
        with lock:
            yield

    def lane(self, name: str, text: str | None) -> Lane:
        """This thread's own lane of that name."""
        key = (threading.get_ident(), name, text)
        with self._lock:
            if self._closed:
                message = "the campaign's machines are gone"
                raise NoMachine(message)
            if key not in self._lanes:
                if name == "loop":
                    if lack := vm.HostPlace.lack():
                        raise NoMachine(lack)
                    self._lanes[key] = vm.LoopLane(self.folder)
                else:
                    kind = vm.GuestLane if name == "guest" else vm.SwapLane
                    self._lanes[key] = kind(self.template(text), self.folder)
            return self._lanes[key]

    def close(self) -> None:
        """End all guests, unmount, remove all images."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
            self._lanes.clear()
        for lane in lanes:
            lane.close()
        self.folder.close()


@dataclass
class Placed:
    """A `Machine` on a guest or on a mounted crash image: daemons run in it, drivers where they must see its disk."""

    place: Place
    ground: Ground
    name: str
    root: Path = field(init=False)
    daemons: list[GuestProcess] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    """Those it begins with: of the set-up, where they are written on the disk."""
    roots: dict[int, Path] = field(default_factory=dict)
    """Where each daemon was started, by its number."""

    def __post_init__(self) -> None:
        self.root = Path(self.place.root)

    def port(self, name: str) -> int:
        """A free port of this host, which is free in a guest too; the same for the same name."""
        if name not in self.ports:
            self.ports[name] = self.ground.ports.draw()
        return self.ports[name]

    def address(self, port: int) -> tuple[str, int]:
        """Where this host reaches it."""
        return self.place.address(port)

    def send(self, root: Path, files: Mapping[str, bytes]) -> None:
        """Write files under ``root``."""
        if files:
            self.place.send({str(root / name): content for name, content in files.items()}, user=SERVER_USER)

    def start(self, command: Command, root: Path) -> GuestProcess:
        """Start a daemon in ``root``, without privileges."""
        env = {"LANG": "C.UTF-8", "HOME": str(root), "TMPDIR": str(root), **command.env}
        argv: list[str] = list(command.argv)
        user: str | None = SERVER_USER
        if not isinstance(self.place, vm.Guest):
            # On this host an installation may lie where that user cannot look: the same guard as for a server here.
            argv, user = [*process.guard(as_server=True, paths=[Path(command.argv[0])]), *argv], None
        # What a server says on its stdout is as much its last words as what it says on stderr.
        made = self.place.start([*TO_STDERR, *argv], env, command.stdin.decode(), user=user, cwd=str(root))
        self.daemons.append(made)
        self.roots[made.number] = root
        return made

    def dead_daemon(self, root: Path | None = None) -> str | None:
        """The last words of a daemon (of the one store in ``root``) that has ended; None while all live."""
        for daemon in self.daemons:
            if daemon.poll() is not None and root in (None, self.roots[daemon.number]):
                words = " | ".join([line for line in daemon.stderr_tail if line.strip()][-5:])
                return f"the server ended with {daemon.poll()}; last lines of its log: {words}"
        return None

    def ended_by(self, root: Path) -> int | None:
        """The signal from outside that ended a daemon of the store in ``root``."""
        dead = [daemon.poll() for daemon in self.daemons if self.roots[daemon.number] == root]
        return next((number for status in dead if status is not None and (number := process.sent(status))), None)

    def stranger(self) -> str | None:
        """Who keeps a daemon of ours that has ended from its port; None in a guest, whose network is its own."""
        if isinstance(self.place, vm.Guest) or self.dead_daemon() is None:
            return None
        roots = {self.roots[daemon.number].name for daemon in self.daemons if daemon.poll() is not None}
        taken = [port for name, port in self.ports.items() if name.partition("/")[0] in roots and not is_free(port)]
        return f"port {taken[0]} is answered by a process that is none of ours" if taken else None

    def facts(self) -> Mapping[str, object]:
        """The guest's, or the recovering kernel's."""
        return self.place.facts()


def rooms() -> list[Path]:
    """The folders that hold the packages a driver needs."""
    return [Path(package.__file__ or "").parent.parent for package in (durabench, durabench_backends)]


def driver_env(targets: Sequence[Target], workload: str) -> dict[str, str]:
    """Where a driver in the guest finds its modules; it runs without ``site``, which takes long under emulation."""
    places = [*rooms(), *(path.parent for path in _packages(targets, workload))]
    return {"PYTHONPATH": os.pathsep.join(str(place) for place in dict.fromkeys(places))}


def root_spec(targets: Sequence[Target], workload: str = "append") -> vm.RootSpec:
    """What a guest needs to run these targets: our two packages, their clients' modules, their servers' programs, and
    the module of a backend or a workload that is somebody's own.
    """
    trees = [room / name for room, name in zip(rooms(), ("durabench", "durabench_backends"), strict=True)]
    binaries: list[Path] = []
    for target in targets:
        found, setting = target.load()
        if setting is None:
            continue
        for command in found(setting, Path("/nonexistent"), lambda _name: 0).commands():
            if command.role == "daemon":
                program = Path(command.argv[0])
                binaries.append(program)
                trees += _around(program)
    trees += _packages(targets, workload)
    return vm.RootSpec(tuple(vm.Tree(path) for path in dict.fromkeys(trees)), tuple(dict.fromkeys(binaries)))


def _packages(targets: Sequence[Target], workload: str) -> list[Path]:
    """Folders and files of the modules that a driver imports from outside our rooms."""
    modules = {module for target in targets for module in client_modules(target)}
    named = (*(target.backend for target in targets), workload)
    own = {name.partition(":")[0] for name in named if ":" in name}
    return _packages_of(tuple(sorted(modules | own)), frozenset(own))


def client_modules(target: Target) -> Sequence[str]:
    """The modules of a target's client library."""
    found, _ = target.load()
    return tuple(getattr(found, "imports", ()))


def _around(program: Path) -> list[Path]:
    """The installation a program belongs to: the folder above its ``bin``, unless that is the whole system's."""
    above = program.parent.parent
    own = program.parent.name == "bin" and above not in (Path("/"), Path("/usr"), Path("/usr/local"), Path(sys.prefix))
    return [above] if own else []


@cache
def _packages_of(modules: tuple[str, ...], own: frozenset[str]) -> list[Path]:
    """The top-level packages and modules that importing these brings in: from where packages are installed, and, of
    somebody's ``own`` modules, from where they lie.
    """
    if not modules:
        return []
    code = (
        "import importlib,json,sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(json.dumps({n: m.__file__ for n, m in list(sys.modules.items()) if getattr(m,'__file__',None)}))"
    )
    files = json.loads(process.output([sys.executable, "-c", code, *modules], deadline_s=IMPORTS_S))
    found: set[Path] = set()
    for file in files.values():
        parts = Path(file).parts
        found |= {Path(*parts[: at + 2]) for at, part in enumerate(parts) if part in ("site-packages", "dist-packages")}
    beside = {_top(name.partition(".")[0], files).parent for name in own}
    tops = {_top(name, files) for name in files if "." not in name}
    return sorted(found | {path for path in tops if path.parent in beside})


def _top(name: str, files: Mapping[str, str]) -> Path:
    """The folder of a package, or the file of a module."""
    path = Path(files[name])
    return path.parent if path.name == "__init__.py" else path
