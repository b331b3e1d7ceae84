"""What the host lends: programs, images, run folders."""

from __future__ import annotations

import json
import os
import shutil
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
        reused = tmp_path / "durabench-vm-reused"  # the id lives, but it is another process
        shutil.copytree(living.path, reused)
        (reused / "owner.json").write_text(json.dumps({"pid": os.getpid(), "start": "1"}))
        assert sweep(tmp_path) == [reused]
        assert living.path.exists()
    assert not living.path.exists()


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
