"""As root, over a tree that an enemy made: nothing outside our own folders is opened for writing, changed or removed.

Every call is traced. Elsewhere than as root nothing of anybody else's could be changed, and the test says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))
import killing  # noqa: E402  beside this file; importlib mode adds no path

CHANGES = (
    *("open", "openat", "openat2", "creat", "truncate", "ftruncate", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"),
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat"),
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utimensat", "utime", "utimes"),
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr"),
)
OPENED = re.compile(r"(?:open|openat|openat2|creat)\(.* = \d+<(.*)>$")
PLACE = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
OPEN_FILE = re.compile(r"\w+\(\d+<([^>]*)>")
KINDS = r"\.durabench-run|\.durabench-doctor|\.durabench-probe|durabench-vm|durabench-conform|durabench-trace"
SYSTEM = re.compile(
    r"/dev/(null|tty|urandom|fuse|loop[-\w]*|btrfs-control)$|/proc/|/dev/shm/|/memfd:|(pipe|socket|anon_inode):"
    r"|/.*/__pycache__(/|$)"  # beside a module that was changed since it was last imported
)
ENEMY = "aaaaaaaa"
NOBODY = 65534


def tree_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that can be seen of a tree."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        known = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (known.st_mode, known.st_uid, known.st_nlink, known.st_ino, known.st_mtime_ns, content)
    return found


@pytest.fixture
def shared(tmp_path):
    """A folder that everybody writes to, as an enemy prepared it, and beside it what must stay as it is."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "passwords").write_text("root:…")
    (victim / "lock").touch()
    (victim / "flush").touch()
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    for kind in KINDS.replace("\\", "").split("|"):
        (folder / f"{kind}-{ENEMY}").symlink_to(victim)
        own = folder / f"{kind}-bbbbbbbb"
        own.mkdir()
        (own / "lock").hardlink_to(victim / "lock")
        (own / "link").symlink_to(victim)
        os.chown(own, NOBODY, NOBODY)
        planted = folder / f"{kind}-cccccccc"  # moved here from where it was ours
        planted.mkdir()
        (planted / "lock").symlink_to(victim / "lock")
        os.mkfifo(folder / f"{kind}-dddddddd")
        (folder / f"{kind}-eeeeeee\nof two lines").mkdir()
        (folder / f"{kind}-{os.getpid()}-1").mkdir()
        mounted = folder / f"{kind}-ffffffff"
        (mounted / "inside").mkdir(parents=True)
        (mounted / "lock").touch()  # free and of our own user: only the mount in it keeps it
    for name in ("durabench-btrfs.lock", "page.html.part", ".page.html.durabench", "run", "durabench.log"):
        (folder / name).symlink_to(victim / "passwords")
    os.mknod(folder / "device", 0o60666, os.makedev(7, 0))
    return folder


def traced(words, shared, tmp_path):
    """Runs a command with every change traced, in a namespace where the enemy's mounts are; (status, what it said)."""
    env = {**os.environ, "TMPDIR": str(shared), "DURABENCH_VM_RUN": str(shared), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"DURABENCH_SHARED_DEVICE": "1", "PYTHONPATH": killing.python_path(tmp_path)}
    mounts = "".join(f'mount --bind "$1" "$2"/{kind}-ffffffff/inside; ' for kind in KINDS.replace("\\", "").split("|"))
    apart = ["unshare", "--mount", "/bin/sh", "-ec", f'{mounts} shift 2; exec "$@"', "sh", tmp_path / "victim", shared]
    trace = tmp_path / "traces"
    trace.mkdir(exist_ok=True)
    tracer = ["strace", "-ff", "-qq", "-y", "-s", "4096", "--seccomp-bpf", "-f", "-o", trace / "of"]
    argv = [*apart, *tracer, "-e", f"trace={','.join('?' + name for name in CHANGES)}", *killing.COMMAND, *words]
    done = subprocess.run(list(map(str, argv)), env=env, capture_output=True, text=True, check=False, timeout=280)
    return done.returncode, done.stdout + done.stderr


def changed(traces: Path) -> set[str]:
    """Every path that was opened for writing, changed, made or removed, where that succeeded."""
    found = set()
    for file in traces.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            name, _, rest = line.partition("(")
            if name not in CHANGES or " = -1 " in rest or rest.endswith("= ?"):
                continue
            if opened := OPENED.match(line):
                if re.search(r"O_WRONLY|O_RDWR|O_TRUNC|O_CREAT", line) and "O_PATH" not in line:
                    found.add(opened[1])
            elif places := PLACE.findall(rest):
                for folder, path in places if "rename" in name or "link" in name else places[:1]:
                    if not folder and not path.startswith("/"):
                        continue  # a server, no longer root, in its own working directory
                    whole = Path(folder, path)
                    follows = name in ("chmod", "chown", "truncate", "utime", "utimes", "setxattr")
                    found.add(os.path.realpath(whole) if follows else f"{os.path.realpath(whole.parent)}/{whole.name}")
            elif open_file := OPEN_FILE.match(line):
                found.add(open_file[1])
    return {path.removesuffix("(deleted)") for path in found}


COMMANDS = {
    "run": "run --profile {top}/toy.toml --backend files:rename --backend valkey:aof-always --fault kill-server "
    "--fault kill-client --trials 1 --dir {shared} --out {shared}/new",
    "run loop": "run --profile {top}/loop.toml --backend heavyfiles:Heavy:rename --fault cut-power --filesystem ext4 "
    "--workload append --trials 2 --dir {shared} --out {shared}/new",
    "verify": "verify file://{shared}?write=fsync-dir --probe",
    "conform": "conform files:fsync-dir",
    "doctor": "doctor --dir {shared}",
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_nothing_of_anybody_elses_is_changed(command, shared, tmp_path):
    if os.geteuid() != 0:
        assert not os.access("/etc/shadow", os.W_OK)
        return
    assert shutil.which("strace")
    killing.prepare(tmp_path)
    before = tree_of(tmp_path / "victim"), tree_of(shared)
    words = COMMANDS[command].format(top=tmp_path, shared=shared).split()
    status, said = traced(words, shared, tmp_path)
    assert status in (0, 1, 3), said
    assert "Traceback" not in said
    assert tree_of(tmp_path / "victim") == before[0]
    after = tree_of(shared)
    left = {path: seen for path, seen in after.items() if not path.startswith(f"{shared}/new") and path != str(shared)}
    assert left == {path: seen for path, seen in before[1].items() if path != str(shared)}
    ours = re.compile(
        rf"{re.escape(str(shared))}/(({KINDS})-(?!([a-f])\3{{7}})[a-z0-9_]{{8}}(/|$)"
        rf"|[a-z0-9_]{{8}}$|new(/|$)|({KINDS})-ffffffff/lock$)"
        rf"|{re.escape(str(Path.home()))}/.cache/durabench/"
    )
    assert {path for path in changed(tmp_path / "traces") if not ours.match(path) and not SYSTEM.match(path)} == set()


def test_a_folder_for_results_that_is_a_link_is_refused(shared, tmp_path):
    killing.prepare(tmp_path)
    for out in (shared / "run", shared / f".durabench-run-{ENEMY}"):
        words = ["run", "--profile", tmp_path / "toy.toml", "--dir", tmp_path / "disk", "--out", out]
        done = subprocess.run(
            list(map(str, [*killing.COMMAND, *words])), capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 2, done.stderr
        assert str(out) in done.stderr.splitlines()[-1]
