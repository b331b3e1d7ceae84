"""What the host lends: programs, images, run folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durabench_vm import (
    Filesystem,
    LoopDisk,
    LoopLane,
    MissingAsset,
    NoRoom,
    PowerDisk,
    RootSpec,
    RunFolder,
    base_image,
    cache_folder,
    copy_sparse,
    doctor,
    find_or_fetch,
    make_image,
    prepare,
    sweep,
)

from durabench_vm import Checked, Job  # isort: skip
from durabench_vm.rundir import open_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from durabench_vm import Guest, Template

PROGRAMS = Path(__file__).with_name("programs")
ROOM = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["ext4", "xfs", "btrfs"])
def test_images_are_made_and_filled_without_mounting(
    name: str, tmp_path: Path, folder: RunFolder, template_of: Callable[[str], Template]
) -> None:
    content = tmp_path / "content"
    (content / "sub/empty").mkdir(parents=True)
    (content / "sub/file").write_bytes(b"hello" * 1000)
    (content / "sub/file").chmod(0o640)
    image = folder.path / "filled.img"
    template = template_of(name)
    make_image(Filesystem.parse(name), image, content=content)
    disk = PowerDisk(image, folder.path / "filled.log")
    with template.restore(disk, folder) as guest:
        guest.mount(Filesystem.parse(name))
        assert guest.channel.fetch("/disk/sub/file") == b"hello" * 1000
        assert "640" in guest.run(["stat", "-c", "%a %n", "/disk/sub/file"]).out
        assert guest.run(["ls", "/disk/sub"]).out.split() == ["empty", "file"]
    disk.close()


def test_file_systems_are_read_from_words() -> None:
    text = "ext4:noauto_da_alloc,commit=1"
    assert Filesystem.parse(text).options == ("noauto_da_alloc", "commit=1")
    assert str(Filesystem.parse(text)) == text
    with pytest.raises(ValueError, match="one of ext4, xfs, btrfs"):
        Filesystem.parse("fat")


def test_a_base_image_is_kept(tmp_path: Path) -> None:
    first = base_image(Filesystem.parse("ext4"), tmp_path)
    made = first.stat().st_mtime_ns
    assert base_image(Filesystem.parse("ext4"), tmp_path) == first
    assert first.stat().st_mtime_ns == made


def test_what_is_missing_is_said_in_one_line_with_the_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: RunFolder
) -> None:
    monkeypatch.setattr("durabench_vm.assets.find_program", lambda _: None)
    lines = {lack.install_line for lack in doctor()}
    assert len(lines) == 1
    assert "apt-get install" in (line := lines.pop())
    assert "qemu-system-x86" in line
    with pytest.raises(MissingAsset, match="apt-get install"):
        prepare(RootSpec(), Filesystem.parse("ext4"), folder)
    monkeypatch.undo()
    assert doctor() == []
    monkeypatch.setenv("DURABENCH_KERNEL", str(tmp_path / "none"))
    with pytest.raises(MissingAsset, match="DURABENCH_KERNEL"):
        find_or_fetch(tmp_path)


def test_a_kernel_can_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = find_or_fetch(cache_folder())
    monkeypatch.setenv("DURABENCH_KERNEL", str(known.kernel))
    monkeypatch.setenv("DURABENCH_MODULES", str(known.modules))
    monkeypatch.setenv("DURABENCH_BUSYBOX", str(known.busybox))
    monkeypatch.setenv("PATH", str(tmp_path))  # nothing can be fetched
    assert find_or_fetch(tmp_path) == known


def test_modules_come_in_loading_order() -> None:
    names = [name for name, _ in find_or_fetch(cache_folder()).module_files(["btrfs", "virtio_blk"])]
    assert names.index("raid6_pq") < names.index("btrfs")
    assert len(names) == len(set(names))


def test_run_folders_of_the_dead_are_swept_and_of_the_living_are_not(tmp_path: Path) -> None:
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOM)!r})\n"
        "from pathlib import Path; from durabench_vm import RunFolder\n"
        f"print(RunFolder(Path({str(tmp_path)!r})).path); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    dead = Path(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    )
    assert dead.is_dir()
    with RunFolder(tmp_path) as living:  # sweeps
        assert not dead.exists()
        assert sweep(tmp_path) == []
        assert living.path.exists()
    assert not living.path.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_one_that_lives_in_another_namespace_of_processes_stays(tmp_path: Path) -> None:
    """Its process id means nothing here, or another process. As root; others make a namespace of users for it."""
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOM)!r})\n"
        "from pathlib import Path; from durabench_vm import RunFolder\n"
        f"folder = RunFolder(Path({str(tmp_path)!r}))\n"
        "print(os.getpid(), flush=True); sys.stdin.read(); os.kill(os.getpid(), 9)"
    )
    apart = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-current-user"]), "--pid", "--fork", "--"]
    living = subprocess.Popen(
        [*apart, sys.executable, "-c", f"import subprocess,sys; subprocess.run([sys.executable, '-c', {code!r}])"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert living.stdin
    assert living.stdout
    assert int(living.stdout.readline()) < os.getpid()
    (folder,) = tmp_path.iterdir()
    assert sweep(tmp_path) == []
    living.stdin.close()
    living.wait(20)
    assert sweep(tmp_path) == [folder]


def test_a_sweep_takes_nothing_that_is_not_ours(tmp_path: Path) -> None:
    """Other names, a folder without a lock, a link, a lock that is a link or a pipe, a folder with a mount in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").touch()
    parent = tmp_path / "shared"
    parent.mkdir()
    for name in ("notes-x", "99999999-1", "ABCDEFGH", "abcdefghi", ".abcdefgh"):
        (parent / f"durabench-vm-{name}").mkdir()
        (parent / f"durabench-vm-{name}" / "lock").touch()
    (parent / "durabench-vm-nolock__").mkdir()
    (parent / "durabench-vm-nolock__" / "mine").touch()
    (parent / "durabench-vm-alink___").symlink_to(outside)
    (parent / "durabench-vm-afile___").touch()
    for name in ("locklink", "lockpipe", "lockhard", "lockdir_"):
        (parent / f"durabench-vm-{name}").mkdir()
    (parent / "durabench-vm-locklink/lock").symlink_to(outside / "lock")
    os.mkfifo(parent / "durabench-vm-lockpipe/lock")
    (parent / "durabench-vm-lockhard/lock").hardlink_to(outside / "lock")
    (parent / "durabench-vm-lockdir_/lock").mkdir()
    before = sorted(parent.rglob("*"))
    assert sweep(parent) == []
    assert sorted(parent.rglob("*")) == before
    assert [path.name for path in outside.iterdir()] == ["lock"]


def test_what_somebody_put_into_a_folder_of_ours_goes_with_it_and_nothing_beyond(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("kept")
    (tmp_path / "shared").mkdir()
    made = RunFolder(tmp_path / "shared")
    (made.path / "link").symlink_to(victim)
    (made.path / "hard").hardlink_to(victim / "kept")
    os.mkfifo(made.path / "a pipe\nwith a line of its own")
    deep = made.path / "deep"
    for _ in range(20):
        deep.mkdir()
        deep /= "deep"
    made.close()
    assert list((tmp_path / "shared").iterdir()) == []
    assert [(path.name, path.read_text()) for path in victim.iterdir()] == [("kept", "kept")]


def test_a_folder_in_which_something_is_mounted_stays(tmp_path: Path) -> None:
    """Removing it would remove what is mounted there: of somebody else. As root; the mount is in its own namespace."""
    if os.geteuid() != 0:
        return
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/kept").touch()
    (tmp_path / "shared").mkdir()
    code = (
        f"import os, subprocess, sys; sys.path.insert(0, {str(ROOM)!r})\n"
        "from pathlib import Path; from durabench_vm import RunFolder, sweep\n"
        "made = RunFolder(Path('shared')); inside = made.path / 'in side'; inside.mkdir()\n"
        "subprocess.run(['mount', '--bind', 'victim', inside], check=True)\n"
        "made.close(); print(sweep(Path('shared')), *os.listdir(inside)); subprocess.run(['umount', inside])\n"
        "print(len(sweep(Path('shared'))))"
    )
    said = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == ["[] kept", "1"]
    assert (tmp_path / "victim/kept").exists()


def test_a_lock_in_a_shared_folder_is_no_way_to_a_file_of_ours(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "hard").hardlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "hard", "pipe"):
        with pytest.raises(OSError, match="not a lock of our own"):
            open_lock(tmp_path / name)
    os.close(open_lock(tmp_path / "new"))
    os.close(open_lock(tmp_path / "new"))
    assert victim.read_text() == "mine"


def test_no_room_is_one_line_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="make room, or set DURABENCH_VM_RUN"):
        RunFolder(tmp_path, need_bytes=1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_a_loop_disk_records_like_a_guest(folder: RunFolder) -> None:
    """As root; elsewhere it says what is missing."""
    lack = LoopDisk.lack()
    if lack is not None:
        assert "root" in lack or "fuse" in lack
        return
    ext4 = Filesystem.parse("ext4")
    live = folder.path / "loopdisk.img"
    copy_sparse(base_image(ext4, cache_folder()), live)
    disk = PowerDisk(live, folder.path / "loopdisk.log")
    with LoopDisk(disk, folder) as place:
        place.mount(ext4)
        process = place.start(
            [sys.executable, str(PROGRAMS / "writer.py"), place.root, "3"],
            on_line=lambda line: disk.mark(json.loads(line)) if line.startswith("[") else None,
        )
        assert process.read_line() == "ready", list(process.stderr_tail)
        for _ in range(12):
            process.write_line("go")
            assert process.read_line()
        place.cut()
        assert disk.mark("late") is None
    recording = disk.recording()
    acknowledged = dict(recording.acknowledged(len(recording)))
    assert acknowledged == {"right": 3, "no_folder_sync": 3, "no_sync": 3, "wal": 3}
    disk.close()
    lane = LoopLane(folder)
    job = Job((sys.executable, str(PROGRAMS / "reader.py")), lasting=True)
    from durabench_vm import CrashState, Mode, build

    build(base_image(ext4, cache_folder()), recording, CrashState(len(recording), Mode.DROP), live)
    outcome = lane.check(live, ext4, job)
    lane.close()
    assert isinstance(outcome, Checked)
    assert outcome.answer["right"] == outcome.answer["wal"] == 3
    assert outcome.answer["no_sync"] == 0


def vm(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOM / words[0]), *words[1:]], input=stdin, capture_output=True, text=True, check=False, timeout=290
    )


@pytest.mark.parametrize("verb", ["up", "reset", "cut", "down", "shell"])
def test_each_script_explains_itself(verb: str) -> None:
    done = vm(verb, "--help")
    assert done.returncode == 0
    assert f"usage: vm/{verb}" in done.stdout


def test_a_persons_session(template_of: Callable[[str], Template], guest_on: Callable[..., Guest]) -> None:
    """Up with a server, write, cut, up again, look, down: nothing is left."""
    name = f"test-{os.getpid()}"
    server = f"{sys.executable} -m http.server 8000 --bind 127.0.0.1 --directory {{root}}"
    try:
        up = vm("up", "--name", name, "--daemon", server, "--forward", "8000")
        assert up.returncode == 0, up.stderr
        assert "port 8000 is at 127.0.0.1:" in up.stdout
        write = vm("shell", "--name", name, stdin="echo safe > safe; sync; echo lost > lost; ls\n")
        assert write.stdout.split() == ["lost", "lost+found", "safe"]
        cut = vm("cut", "--name", name)
        assert "power cut after" in cut.stdout
        assert vm("shell", "--name", name, stdin="ls\n").returncode != 0
        again = vm("up", "--name", name)
        assert again.returncode == 0, again.stderr
        look = vm("shell", "--name", name, stdin="cat safe; ls lost\n")
        assert look.stdout.split()[0] == "safe"
        assert "No such file" in look.stdout
    finally:
        down = vm("down", "--name", name)
    assert down.returncode == 0
    assert "no machine is up" in vm("shell", "--name", name).stderr
    begin = time.monotonic()
    while (cache_folder() / "sessions" / f"{name}.json").exists():
        assert time.monotonic() - begin < 20
        time.sleep(0.05)
