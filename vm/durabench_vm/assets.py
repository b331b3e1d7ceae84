"""Kernel, modules and busybox of the guest: taken from given paths, from the cache, or fetched by the package client.

Fetching downloads two packages of the distribution and unpacks them; nothing is installed, and root is not needed.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Iterable

KERNEL_PACKAGE = "linux-image-cloud-amd64"
BUSYBOX_PACKAGE = "busybox-static"
FETCH_S = 180
SYSTEM_PACKAGES = {  # program: (package, what it is for)
    "qemu-system-x86_64": ("qemu-system-x86", "the guest"),
    "qemu-img": ("qemu-utils", "images"),
    "mkfs.ext4": ("e2fsprogs", "the guest's root image, and ext4"),
    "mkfs.xfs": ("xfsprogs", "xfs"),
    "mkfs.btrfs": ("btrfs-progs", "btrfs"),
}
REQUIRED = ("qemu-system-x86_64", "mkfs.ext4")
INSTALL = "apt-get install -y --no-install-recommends"


class MissingAsset(Exception):
    """Something the guest needs is not here; the message is one line with the mend."""


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that is not here: what, what for, and the line that installs it."""

    what: str
    why: str
    install_line: str


@dataclass(frozen=True, slots=True)
class Assets:
    """What a guest boots from. `modules` is the folder of one kernel version, /lib/modules/VERSION."""

    kernel: Path
    modules: Path
    busybox: Path

    @property
    def version(self) -> str:
        """The kernel's version."""
        return self.modules.name

    def module_files(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """The modules `names` and all they need, in loading order, uncompressed. Names without a file are built in.

        Read from each file's own .modinfo: an unpacked package has no modules.dep.
        """
        files = {_stem(path): path for path in self.modules.rglob("*.ko*")}
        order: dict[str, bytes] = {}

        def visit(name: str) -> None:
            name = name.replace("-", "_")
            if name in order or name not in files:
                return
            order[name] = b""  # its place is taken now: dependencies may be circular through softdeps
            data = _uncompressed(files[name])
            del order[name]
            for found in re.findall(rb"\0depends=([^\0]*)\0", b"\0" + data):
                for needed in found.decode().split(","):
                    visit(needed)
            for found in re.findall(rb"\0softdep=pre: ([^\0]*)\0", b"\0" + data):
                for needed in found.decode().split():
                    visit(needed)
            order[name] = data

        for name in names:
            visit(name)
        return list(order.items())


def _stem(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _uncompressed(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        done = subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=False, timeout=FETCH_S)
        if done.returncode:
            message = f"{path} is packed with zstd: {INSTALL} zstd"
            raise MissingAsset(message)
        return done.stdout
    return data


def cache_folder() -> Path:
    """Where fetched and prepared things are kept: DURABENCH_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("DURABENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "durabench"


def find_or_fetch(cache: Path) -> Assets:
    """Give the guest's kernel, modules and busybox; MissingAsset, one line with the mend, where they cannot be had.

    DURABENCH_KERNEL (a vmlinuz) with DURABENCH_MODULES (/lib/modules/VERSION) and DURABENCH_BUSYBOX (a static one) come
    first, then `cache`, then `apt-get download` and `dpkg -x` into it.
    """
    folder = cache / "assets"
    kernel, modules = _given_kernel() or _cached_kernel(folder) or _fetch_kernel(folder)
    return Assets(kernel, modules, _given_busybox() or _cached_busybox(folder) or _fetch_busybox(folder))


def _given_kernel() -> tuple[Path, Path] | None:
    chosen = os.environ.get("DURABENCH_KERNEL")
    if not chosen:
        return None
    kernel = Path(chosen)
    modules = Path(
        os.environ.get("DURABENCH_MODULES")
        or kernel.parent.parent / "lib/modules" / kernel.name.removeprefix("vmlinuz-")
    )
    if not kernel.is_file() or not modules.is_dir():
        absent = kernel if not kernel.is_file() else modules
        message = (
            f"{absent}: not there; set DURABENCH_KERNEL to a vmlinuz and DURABENCH_MODULES to its /lib/modules folder"
        )
        raise MissingAsset(message)
    return kernel, modules


def _cached_kernel(folder: Path) -> tuple[Path, Path] | None:
    for kernel in sorted(folder.glob("kernel/boot/vmlinuz-*")):
        version = kernel.name.removeprefix("vmlinuz-")
        for modules in (folder / "kernel/lib/modules" / version, folder / "kernel/usr/lib/modules" / version):
            if modules.is_dir():
                return kernel, modules
    return None


def _fetch_kernel(folder: Path) -> tuple[Path, Path]:
    depends = _client("apt-cache", "depends", "--important", KERNEL_PACKAGE)
    found = re.search(r"Depends: (linux-image-\S+)", depends)
    if found is None:
        message = (
            f"no package {KERNEL_PACKAGE} here: run `apt-get update`, or set DURABENCH_KERNEL to a vmlinuz and"
            " DURABENCH_MODULES to its /lib/modules folder"
        )
        raise MissingAsset(message)
    _unpack(found[1], folder / "kernel")
    cached = _cached_kernel(folder)
    if cached is None:
        message = f"the package {found[1]} holds no kernel: set DURABENCH_KERNEL and DURABENCH_MODULES"
        raise MissingAsset(message)
    return cached


def _given_busybox() -> Path | None:
    chosen = os.environ.get("DURABENCH_BUSYBOX")
    if not chosen:
        return None
    if not os.access(chosen, os.X_OK):
        message = f"{chosen}: no program; set DURABENCH_BUSYBOX to a static busybox"
        raise MissingAsset(message)
    return Path(chosen)


def _cached_busybox(folder: Path) -> Path | None:
    for path in (folder / "busybox/bin/busybox", folder / "busybox/usr/bin/busybox"):
        if path.is_file():
            return path
    return None


def _fetch_busybox(folder: Path) -> Path:
    _unpack(BUSYBOX_PACKAGE, folder / "busybox")
    cached = _cached_busybox(folder)
    if cached is None:
        message = f"the package {BUSYBOX_PACKAGE} holds no busybox: set DURABENCH_BUSYBOX to a static one"
        raise MissingAsset(message)
    return cached


def _unpack(package: str, target: Path) -> None:
    """Download and unpack beside the target, then rename: a killed fetch leaves no half cache."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with OwnFolder(target.parent, "fetch-") as own:
        work = own.path
        _client("apt-get", "download", "-q", package, cwd=work)
        for archive in work.glob("*.deb"):
            _client("dpkg", "-x", str(archive), str(work / "tree"))
        if target.exists():
            shutil.rmtree(target)
        (work / "tree").rename(target)


def _client(*argv: str, cwd: Path | None = None) -> str:
    mend = "set DURABENCH_KERNEL, DURABENCH_MODULES and DURABENCH_BUSYBOX to files you have"
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except FileNotFoundError:
        message = f"no {argv[0]} here to fetch the guest's kernel with: {mend}"
        raise MissingAsset(message) from None
    except subprocess.TimeoutExpired:
        message = f"{' '.join(argv[:2])} took over {FETCH_S} s: try again, or {mend}"
        raise MissingAsset(message) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        message = f"{' '.join(argv[:2])} failed ({last}): run `apt-get update`, or {mend}"
        raise MissingAsset(message)
    return done.stdout


def find_program(name: str) -> str | None:
    """A program's path, also where the administrator's folders are not in PATH."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    return shutil.which(name, path=path)


def need_program(name: str) -> str:
    """A program's path; MissingAsset with the line that installs it."""
    found = find_program(name)
    if found is None:
        package = SYSTEM_PACKAGES.get(name, (name, ""))[0]
        message = f"no {name} here: {INSTALL} {package}"
        raise MissingAsset(message)
    return found


def doctor() -> list[Missing]:
    """What the machine still needs here, the same one line for all of it. Fetches nothing."""
    absent = {name: entry for name, entry in SYSTEM_PACKAGES.items() if find_program(name) is None}
    line = f"{INSTALL} {' '.join(sorted({package for package, _ in absent.values()}))}"
    return [Missing(name, f"needed for {why}", line) for name, (_, why) in absent.items()]
