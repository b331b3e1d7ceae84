"""File systems of the disk under test: their names and options, and images made without root."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from durabench_vm.assets import need_program
from durabench_vm.rundir import OwnFolder

if TYPE_CHECKING:
    from typing import Self

MIB = 1 << 20
SIZES = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 160 * MIB}  # the smallest that each is happy with
PROGRAMS = {"ext4": "mkfs.ext4", "xfs": "mkfs.xfs", "btrfs": "mkfs.btrfs"}
MKFS_S = 120
OPTION = re.compile(r"[A-Za-z0-9_.-]+(=[A-Za-z0-9_.:-]*)?")


@dataclass(frozen=True, slots=True)
class Filesystem:
    """One of ext4, xfs, btrfs with mount options, written `ext4:noauto_da_alloc,commit=1`."""

    name: str
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME[:OPTION,…]`. ValueError for a name that is not one of the three, and for what is no option."""
        name, _, options = text.partition(":")
        if name not in SIZES:
            message = f"no file system {name!r}: one of {', '.join(SIZES)}"
            raise ValueError(message)
        found = tuple(option for option in options.split(",") if option)
        if wrong := [option for option in found if not OPTION.fullmatch(option)]:
            message = f"no mount option {wrong[0]!r}: a word, or a word=value without a path"
            raise ValueError(message)
        return cls(name, found)

    def __str__(self) -> str:
        """As `parse` reads it."""
        return self.name + (":" + ",".join(self.options) if self.options else "")


def make_image(
    filesystem: Filesystem, image: Path, *, size_bytes: int | None = None, content: Path | None = None,
    unit_bytes: int = 512,
) -> None:  # fmt: skip
    """Make a formatted image, filled from the folder `content` with its owners. No root needed.

    `unit_bytes` is the sector of the disk it will lie on. OSError with mkfs's last words where it fails.
    """
    size = size_bytes or SIZES[filesystem.name]
    program = need_program(PROGRAMS[filesystem.name])
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(size)
    with OwnFolder(image.parent, "mkfs-") as scratch:
        done = subprocess.run(
            [program, *_arguments(filesystem.name, content, unit_bytes, scratch.path), str(image)],
            capture_output=True, text=True, check=False, timeout=MKFS_S,
        )  # fmt: skip
    if done.returncode:
        image.unlink(missing_ok=True)
        message = f"{PROGRAMS[filesystem.name]} failed: {(done.stderr or done.stdout).strip()[-300:]}"
        raise OSError(message)


def _arguments(name: str, content: Path | None, unit_bytes: int, scratch: Path) -> list[str]:
    if name == "ext4":
        # A small disk gets a small journal by default; mke2fs would also ask before formatting a whole file.
        return ["-q", "-F", "-b", "4096", "-E", "root_owner=0:0", *(["-d", str(content)] if content else [])]
    if name == "btrfs":
        return ["-q", "-f", *(["--rootdir", str(content)] if content else [])]
    arguments = ["-q", "-f", "-s", f"size={unit_bytes}"]
    if content:
        protofile = scratch / "protofile"
        protofile.write_text(_protofile(content))
        arguments += ["-p", str(protofile)]
    return arguments


def _protofile(content: Path) -> str:
    """The content as mkfs.xfs reads it. Its format knows no blanks in names: such a file is an OSError."""
    lines = ["/dummy", "0 0", _line("d", content)]

    def add(folder: Path, depth: int) -> None:
        for entry in sorted(folder.iterdir()):
            leads_to = str(entry.readlink()) if entry.is_symlink() else ""
            if any(blank in f"{entry}{leads_to}" for blank in " \t\n") or entry.name == "$":
                message = f"{str(entry)!r}: a name with blanks cannot be put into an xfs image without mounting it"
                raise OSError(message)
            indent = " " * depth
            if leads_to:
                lines.append(f"{indent}{entry.name} l--777 0 0 {leads_to}")
            elif entry.is_dir():
                lines.append(f"{indent}{entry.name} {_line('d', entry)}")
                add(entry, depth + 1)
                lines.append(f"{indent}$")
            elif entry.is_file():
                lines.append(f"{indent}{entry.name} {_line('-', entry)} {entry}")

    add(content, 1)
    return "\n".join([*lines, "$", ""])


def _line(kind: str, path: Path) -> str:
    known = path.stat()
    return f"{kind}--{known.st_mode & 0o777:03o} {known.st_uid} {known.st_gid}"


def base_image(filesystem: Filesystem, cache: Path, *, size_bytes: int | None = None, unit_bytes: int = 512) -> Path:
    """An empty formatted image from the cache; made once for a name, size, unit and mkfs. Never written to: copy it."""
    program = need_program(PROGRAMS[filesystem.name])
    size = size_bytes or SIZES[filesystem.name]
    stamp = Path(program).stat()
    text = f"{filesystem.name} {size} {unit_bytes} {stamp.st_size} {stamp.st_mtime_ns}"
    folder = cache / "base"
    image = folder / f"{filesystem.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.img"
    if not image.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with OwnFolder(folder, "base-") as scratch:
            made = scratch.path / "image"
            make_image(filesystem, made, size_bytes=size, unit_bytes=unit_bytes)
            made.replace(image)
    return image
