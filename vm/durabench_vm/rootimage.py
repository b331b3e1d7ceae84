"""The guest's root image: this host's own interpreter, packages and server binaries, with the libraries they need.

The very same binaries as on the host, no distribution to install, no root, no registry: copies of the files, the `ldd`
closure of everything executable, and `mke2fs -d`. The image is kept under a key of what went into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_vm.assets import need_program
from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from durabench_vm.assets import Assets

FORMAT = 3  # of this module's output: part of the key
TOOL_S = 120
SKIPPED = r"/(test|tests|idlelib|lib2to3|ensurepip|tkinter|turtledemo|config-3[^/]*|pip|setuptools)(/|$)|\.a$"
STALE_S = 14 * 86400
ACCOUNTS = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n"
GROUP = "root:x:0:\nnogroup:x:65534:\nnobody:x:65534:\n"
FOLDERS = [
    "bin",
    "sbin",
    "etc",
    "tmp",
    "run",
    "mnt",
    "proc",
    "sys",
    "dev",
    "var/lib",
    "var/run",
    "var/tmp",
    "root",
    "home",
    "disk",
    "lib64",
]
LOCALES = ("/usr/lib/locale/C.utf8", "/usr/share/zoneinfo/UTC", "/usr/share/zoneinfo/Etc/UTC")


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder that goes into the image at its own path, without what matches `skip` (a regular expression)."""

    path: Path
    skip: str = SKIPPED


@dataclass(frozen=True, slots=True)
class RootSpec:
    """What the guest needs besides the interpreter: folders of packages, programs, and small files (path → content).

    `python` is the interpreter, by its path in a virtual environment; its base installation comes by itself. An ELF
    file among `trees` and `binaries` brings the libraries it is linked to.
    """

    trees: tuple[Tree, ...] = ()
    binaries: tuple[Path, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    python: Path = Path(sys.executable)


def build_root(spec: RootSpec, assets: Assets, cache: Path) -> Path:
    """Give the root image for `spec`, from the cache where nothing in it has changed."""
    mkfs = need_program("mkfs.ext4")
    sources = dict(_sources(spec))
    key = _key(spec, sources, assets)
    folder = cache / "root"
    image = folder / f"{key}.img"
    if image.exists():
        os.utime(image)
        return image
    folder.mkdir(parents=True, exist_ok=True)
    with OwnFolder(folder, "build-") as own:
        tree = own.path / "tree"
        tree.mkdir()
        _copy(tree, sources)
        _fill(tree, spec, assets)
        _compile(tree, spec)
        made = own.path / "image"
        _make_image(mkfs, tree, made)
        made.replace(image)
    _forget_old(folder, image)
    return image


def _forget_old(folder: Path, newest: Path) -> None:
    newest_s = newest.stat().st_mtime
    for image in folder.glob("*.img"):
        if newest_s - image.stat().st_mtime > STALE_S:
            image.unlink(missing_ok=True)


def _sources(spec: RootSpec) -> Iterator[tuple[str, Path]]:
    """(path in the image, file on the host), libraries not yet included."""
    base = Path(sys.base_prefix)
    standard = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    real = Path(os.path.realpath(spec.python))
    yield str(real), real
    for library in (base / "lib").glob("libpython3*.so*"):
        yield str(library), library
    for tree in (Tree(standard, SKIPPED + "|/site-packages/"), *spec.trees):
        yield from _walk(tree)
    for binary in spec.binaries:
        yield str(binary), binary
    for place in LOCALES:
        if Path(place).is_dir():
            yield from _walk(Tree(Path(place)))
        elif Path(place).is_file():
            yield place, Path(place)


def _walk(tree: Tree) -> Iterator[tuple[str, Path]]:
    skip = re.compile(tree.skip)
    if tree.path.is_file():
        yield str(tree.path), tree.path
        return
    for folder, folders, files in os.walk(tree.path):
        folders[:] = sorted(name for name in folders if not skip.search(f"{folder}/{name}"))
        for name in sorted(files):
            path = Path(folder, name)
            if not skip.search(str(path)) and path.is_file() and os.access(path, os.R_OK):
                yield str(path), path


def _key(spec: RootSpec, sources: Mapping[str, Path], assets: Assets) -> str:
    digest = hashlib.sha256(f"{FORMAT} {sys.version} {spec.python}".encode())
    for name, path in sorted(sources.items()):
        if "__pycache__" not in name:  # made anew whenever an interpreter runs; the sources are what counts
            known = path.stat()
            digest.update(f"{name} {known.st_size} {known.st_mtime_ns} {known.st_mode}\n".encode())
    for name, content in sorted(spec.files.items()):
        digest.update(name.encode() + content)
    digest.update(assets.busybox.read_bytes())
    return digest.hexdigest()[:24]


def _copy(tree: Path, sources: Mapping[str, Path]) -> None:
    copied: set[str] = set()
    elf: list[Path] = []
    for name, path in sources.items():
        _copy_one(tree, name, path, copied)
        if ".so" in path.name or os.access(path, os.X_OK):
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    elf.append(path)
    for name in _libraries(elf):
        _copy_one(tree, name, Path(name), copied)


def _copy_one(tree: Path, name: str, source: Path, copied: set[str]) -> None:
    # Copied by its real place too: a library found through a linked folder is looked for in both.
    for place in {name, os.path.realpath(os.path.dirname(name)) + "/" + os.path.basename(name)}:  # noqa: PTH119, PTH120
        if place not in copied:
            copied.add(place)
            target = tree / place.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _libraries(files: Iterable[Path]) -> set[str]:
    """What `ldd` says the files are linked to. It answers for many files at once."""
    names = [str(path) for path in files]
    found: set[str] = set()
    for at in range(0, len(names), 100):
        done = subprocess.run(
            ["ldd", *names[at : at + 100]], capture_output=True, text=True, check=False, timeout=TOOL_S
        )
        found.update(re.findall(r"(/\S+) \(0x", done.stdout))
    return found


def _fill(tree: Path, spec: RootSpec, assets: Assets) -> None:
    for name in FOLDERS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "etc/passwd").write_text(ACCOUNTS)
    (tree / "etc/group").write_text(GROUP)
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (tree / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    busybox = tree / "bin/busybox"
    shutil.copy2(assets.busybox, busybox)
    busybox.chmod(0o755)
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=TOOL_S)
    for applet in listed.stdout.split():
        link = tree / "bin" / applet
        if not link.exists() and not link.is_symlink():
            link.symlink_to("busybox")
    _virtual_environment(tree, spec)
    for name, content in spec.files.items():
        target = tree / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _virtual_environment(tree: Path, spec: RootSpec) -> None:
    """Where the interpreter is a link in a virtual environment, make the same link and pyvenv.cfg."""
    real = os.path.realpath(spec.python)
    if str(spec.python) == real:
        return
    link = tree / str(spec.python).lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists() and not link.is_symlink():
        link.symlink_to(real)
    settings = spec.python.parent.parent / "pyvenv.cfg"
    if settings.is_file():
        shutil.copy2(settings, link.parent.parent / "pyvenv.cfg")


def _compile(tree: Path, spec: RootSpec) -> None:
    """Compile what has no bytecode yet: an emulated processor takes long over it, at every start anew."""
    for folder in [sysconfig.get_path("stdlib"), *(str(entry.path) for entry in spec.trees if entry.path.is_dir())]:
        target = tree / folder.lstrip("/")
        if target.is_dir():
            subprocess.run(
                [sys.executable, "-m", "compileall", "-q", "-j0", "-s", str(tree), str(target)],
                check=False,
                capture_output=True,
                timeout=TOOL_S,
            )


def _make_image(mkfs: str, tree: Path, image: Path) -> None:
    size = sum(4096 + (entry.lstat().st_size + 4095) // 4096 * 4096 for entry in tree.rglob("*"))
    with image.open("wb") as file:
        file.truncate((size * 11 // 10 + (32 << 20)) & ~4095)
    done = subprocess.run(
        [mkfs, "-q", "-F", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0", "-d", str(tree), str(image)],
        capture_output=True, text=True, check=False, timeout=TOOL_S,
    )  # fmt: skip
    if done.returncode:
        message = f"mkfs.ext4 of the guest's root failed: {done.stderr.strip()[-300:]}"
        raise OSError(message)
