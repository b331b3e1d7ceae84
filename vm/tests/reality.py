"""The model of ext4 held against ext4: a recorded writer stands still at a position, the device is copied as it is,
mounted, and what is there is looked up among the model's states. Needs root, for a loop device.

The copy is what a machine's reset leaves. Every second time somebody else first flushes a file of its own there, which
commits the journal for all.

    python vm/tests/reality.py CASES [OUTPUT.json]     so many cases over all writers
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from modelled import HEAD

from durabench_model.folder import copy_base
from durabench_model.log import Log
from durabench_model.rules import Model
from durabench_model.states import DRAWN, Class, Profile, State
from durabench_vm import copy_sparse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durabench_model.states import Tree

FROZEN = Path(__file__).with_name("programs") / "frozen.py"
IMAGE_MIB = 48
STOPS = 8
DRAWS = 900
DATABASE = """
import sqlite3
c = sqlite3.connect('t.db')
c.execute('pragma journal_mode={mode}')
c.execute('pragma synchronous={sync}')
c.execute('create table if not exists t(a, b)')
for i in range(12):
    c.execute('insert into t values(?, randomblob(3000))', (i,))
    c.commit()
"""
STEP = "for i in range(12):\n "
WRITERS = {
    "in place": STEP + "put('ck', b'%d' % (i % 10) * 5000)",
    "in place, fsync": STEP + "put('ck', b'%d' % (i % 10) * (3000 + 500 * i), sync=True)",
    "rename, new names": STEP + "put('t', b'x' * 700 * i); os.rename('t', f'ck{i}')",
    "rename over": STEP + "put('t', b'%d' % (i % 10) * 9000); os.rename('t', 'ck')",
    "fsync, rename": STEP + "put('t', b'%d' % (i % 10) * 9000, sync=True); os.rename('t', f'ck{i % 3}')",
    "fsync, rename, fsync of the folder": STEP
    + "put('t', b'y' * 6000, sync=True); os.rename('t', f'c{i}'); sync_dir()",
    "append": "put('log', b'')\n" + STEP + "put('log', b'%d' % (i % 10) * (1 + 777 * i), APPEND)",
    "append, fdatasync": (
        "put('log', b'', sync=True)\nfd = os.open('log', APPEND)\n"
        + STEP
        + "os.write(fd, b'%d' % (i % 10) * (300 + 1777 * (i % 4))); os.fdatasync(fd)"
    ),
    "overwrite": (
        "put('f', b'0' * 50000, sync=True)\nfd = os.open('f', OVER)\n"
        + STEP
        + "os.pwrite(fd, b'%d' % (i % 10) * 6000, 4096 * i); i % 4 or os.fdatasync(fd)"
    ),
    "folders, links and removals": (
        STEP + "os.mkdir(f'd{i}'); put(f'd{i}/f', b'z' * 5000, sync=i % 2 == 0); os.link(f'd{i}/f', f'l{i}')\n"
        " if i > 2: os.unlink(f'l{i - 2}'); os.unlink(f'd{i - 2}/f'); os.rmdir(f'd{i - 2}'); os.symlink('x', f's{i}')"
    ),
    "truncate and allocate": (
        "put('f', b'0' * 30000, sync=True)\nfd = os.open('f', OVER)\n"
        + STEP
        + "os.ftruncate(fd, 20000 - 1500 * i); os.posix_fallocate(fd, 20000, 9000); os.pwrite(fd, b'w' * 3000, 20000)"
    ),
    **{
        f"sqlite {mode} {sync}": DATABASE.format(mode=mode, sync=sync)
        for mode, sync in (("delete", "full"), ("delete", "off"), ("wal", "normal"), ("wal", "full"))
    },
}


def cases(writer: str, where: Path, seed: int, stops: int = STOPS) -> Iterator[str]:
    """What of the model each copy of one run was: a class, `drawn`, or `NOT FOUND`."""
    rng = Random(f"{writer}/{seed}")
    image, mount, base, log = where / "image", where / "mount", where / "base", where / "log"
    mount.mkdir(exist_ok=True)
    for each in (image, log):
        each.unlink(missing_ok=True)
    shutil.rmtree(base, ignore_errors=True)
    with image.open("wb") as file:
        file.truncate(IMAGE_MIB << 20)
    sh("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
    sh("mount", "-o", "loop", str(image), str(mount))
    try:
        root = mount / "root"
        root.mkdir()
        copy_base(root, base)
        sh("sync", "-f", str(mount))
        copies = list(frozen(writer, root, log, where, rng, stops))
    finally:
        sh("umount", str(mount))
    recorded = Log.load(log)
    for position, copy in copies:
        yield found(recorded, base, position, looked_at(copy, mount), rng)
        copy.unlink()


def frozen(writer: str, root: Path, log: Path, where: Path, rng: Random, stops: int) -> Iterator[tuple[int, Path]]:
    """The positions at which the writer stood, and copies of the device."""
    positions = sorted(rng.sample(range(3, 110), stops))
    program = [sys.executable, "-c", HEAD + WRITERS[writer]]
    command = [sys.executable, str(FROZEN), str(root), str(log), ",".join(map(str, positions)), *program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if rng.random() < 0.5:
                neighbour(root.parent, number)
            copy = where / f"copy-{number}"
            copy_sparse(where / "image", copy)
            yield int(line.split()[1]), copy
            process.stdin.write("go\n")
            process.stdin.flush()


def neighbour(mount: Path, number: int) -> None:
    """Somebody else flushes a file there."""
    fd = os.open(mount / f"neighbour-{number}", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    os.fsync(fd)
    os.close(fd)


def looked_at(copy: Path, mount: Path) -> dict[str, bytes | str]:
    """What is below the folder after the journal was recovered."""
    sh("mount", "-o", "loop", str(copy), str(mount))
    try:
        there: dict[str, bytes | str] = {}
        for folder, folders, files in os.walk(mount / "root"):
            for name in folders + files:
                path = Path(folder, name)
                mode = path.lstat().st_mode
                short = str(path.relative_to(mount / "root"))
                there[short] = (
                    "folder"
                    if stat.S_ISDIR(mode)
                    else f"-> {path.readlink()}"
                    if path.is_symlink()
                    else path.read_bytes()
                )
        return there
    finally:
        sh("umount", str(mount))


def found(log: Log, base: Path, position: int, real: dict[str, bytes | str], rng: Random) -> str:
    """Among which states it is. Files that are mapped are not compared: the log saw them at their flushes only."""
    model = Model(log, base, Profile.EXT4)
    for kind in (Class.NONE, Class.ALL, Class.NAMES):
        if same(model.build(State(position, kind)), real):
            return str(kind)
    for _ in range(DRAWS):
        if same(model.build(State(position, rng.choice(DRAWN), rng.getrandbits(32), 4096)), real):
            return "drawn"
    return "NOT FOUND"


def same(tree: Tree, real: dict[str, bytes | str]) -> bool:
    if set(tree.items) != set(real):
        return False
    for path, item in tree.items.items():
        if path.endswith("-shm"):
            continue
        if stat.S_ISDIR(item.mode) or item.target is not None:
            wanted: bytes | str = "folder" if item.target is None else f"-> {item.target}"
        else:
            wanted = item.content()
        if wanted != real[path]:
            return False
    return True


def sh(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    wanted, total = int(sys.argv[1]), 0
    counts: dict[str, Counter[str]] = {writer: Counter() for writer in WRITERS}
    seed = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        while total < wanted:
            seed += 1
            for writer, those in counts.items():
                made = Counter(cases(writer, Path(name), seed))
                those.update(made)
                total += made.total()
                if made["NOT FOUND"]:
                    print(f"{writer}, seed {seed}: {dict(made)}", flush=True)
    result = {
        "what": "copies of an ext4 while a recorded writer stood still, looked up in the model ext4-ordered",
        "kernel": platform.release(),
        "cases": total,
        "not_found": sum(those["NOT FOUND"] for those in counts.values()),
        "writers": {writer: dict(sorted(those.items())) for writer, those in counts.items()},
    }
    print(json.dumps(result, indent=1))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
