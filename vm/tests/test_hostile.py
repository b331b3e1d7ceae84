"""What an enemy may have put into a crash image or a store's folder reaches nothing of this host."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durabench_vm import Filesystem, HostPlace, LoopLane, RunFolder, base_image, cache_folder, copy_sparse, make_image
from durabench_vm.agent import Agent, Channel, put

if TYPE_CHECKING:
    from collections.abc import Iterator

EXT4 = Filesystem.parse("ext4")
SHM_CREATE = "import ctypes, time; print(ctypes.CDLL(None).shmget(0, 56, 0o1600), flush=True); time.sleep(60)"


def segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that must stay as it is."""
    path = tmp_path / "victim"
    path.write_text("mine")
    path.chmod(0o640)
    before = path.stat()
    yield path
    after = path.stat()
    assert path.read_text() == "mine"
    assert (after.st_uid, after.st_mode, after.st_ino) == (before.st_uid, before.st_mode, before.st_ino)


@pytest.fixture
def place(folder: RunFolder) -> Iterator[HostPlace | None]:
    """This host in a namespace; None, with the reason checked, where the caller is not root."""
    if os.geteuid() != 0:
        assert "root" in (HostPlace.lack() or "")
        yield None
        return
    made = HostPlace(folder)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["link", "dangling", "hard", "pipe", "folder link"])
def test_what_is_sent_replaces_what_an_enemy_left_under_the_name(kind: str, tmp_path: Path, victim: Path) -> None:
    store = tmp_path / "store"
    (store / "sub").mkdir(parents=True)
    target = store / "sub" / "server.conf"
    if kind == "hard":
        target.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder link":
        (store / "sub").rmdir()
        (tmp_path / "elsewhere").mkdir()
        (store / "sub").symlink_to(tmp_path / "elsewhere")
    else:
        target.symlink_to(victim if kind == "link" else tmp_path / "made through it")
    files = {str(target): base64.b64encode(b"ours").decode()}
    agent = Agent(Channel(-1))
    if kind == "folder link":
        with pytest.raises(OSError, match="sub"):
            agent.send(files, user="nobody", root=str(store))
        assert list((tmp_path / "elsewhere").iterdir()) == []
        return
    if os.geteuid() == 0:
        agent.send(files, user="nobody", root=str(store))
        assert target.stat().st_uid == 65534
    else:
        agent.send(files, root=str(store))
    assert target.read_bytes() == b"ours"
    assert stat.S_ISREG(target.lstat().st_mode)
    assert not (tmp_path / "made through it").exists()


@pytest.mark.parametrize("name", ["../out", "/etc/out", "sub/../../out", "sub/", ".", ""])
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(OSError, match="not the name of a file"):
        put(str(tmp_path / "store"), name, b"", None)
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


def test_a_mount_in_a_store_is_not_entered(tmp_path: Path, victim: Path) -> None:
    """As root, in a namespace of its own: a folder of the host bound into the store."""
    if os.geteuid() != 0:
        return
    (tmp_path / "store/sub").mkdir(parents=True)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import subprocess; from durabench_vm.agent import put\n"
        f"subprocess.run(['mount', '--bind', {str(tmp_path)!r}, 'store/sub'], check=True)\n"
        "try: put('store', 'sub/victim', b'ours', (65534, 65534))\n"
        "except OSError as error: print(error.strerror)"
    )
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Invalid cross-device link\n"


def image_with(folder: RunFolder, content: Path) -> Path:
    path = folder.path / f"hostile-{time.monotonic_ns()}.img"
    make_image(EXT4, path, content=content)
    return path


def test_a_mounted_image_gives_no_way_to_the_host(
    place: HostPlace | None, folder: RunFolder, tmp_path: Path, victim: Path
) -> None:
    """Through a link, relative or absolute, a device, or a program of root's: by us as root, or by a server."""
    if place is None:
        return
    content = tmp_path / "content"
    (content / "store").mkdir(parents=True)
    (content / "store/absolute").symlink_to(victim)
    (content / "store/relative").symlink_to("../" * 20 + str(victim).lstrip("/"))
    (content / "store/out").symlink_to("/")
    os.mknod(content / "store/device", 0o60666, os.makedev(7, 0))
    (content / "store/root").write_bytes(Path("/bin/true").read_bytes())
    (content / "store/root").chmod(0o4755)
    image = image_with(folder, content)
    place.mount(str(image), EXT4, user="nobody")
    for name in ("absolute", "relative", f"out{victim}", "device"):
        done = place.run([sys.executable, "-c", f"open('store/{name}', 'r+b').write(b'x')"], cwd=place.root)
        assert done.status == 1, name
        assert any(word in done.err for word in ("Too many levels of symbolic links", "Permission denied")), done.err
    place.send({"store/absolute": b"ours"}, user="nobody")
    place.umount()
    image.unlink()


def test_links_that_stay_within_an_image_are_followed(
    place: HostPlace | None, folder: RunFolder, tmp_path: Path
) -> None:
    """A store may have such, and must find its data."""
    if place is None:
        return
    content = tmp_path / "content"
    (content / "store/a/b").mkdir(parents=True)
    (content / "store/data").write_text("data")
    (content / "store/a/b/link").symlink_to("../../data")
    image = image_with(folder, content)
    place.mount(str(image), EXT4)
    assert place.run(["cat", "store/a/b/link"], cwd=place.root).out == "data"
    place.umount()
    image.unlink()


def test_shared_memory_of_what_is_killed_does_not_stay(place: HostPlace | None, folder: RunFolder) -> None:
    if place is None:
        return
    before, shared = segments(), set(os.listdir("/dev/shm"))
    code = f"open('/dev/shm/PostgreSQL.{os.getpid()}', 'w').write('x'); {SHM_CREATE}"
    for _ in range(3):
        process = place.start([sys.executable, "-c", code])
        assert process.read_line(20) is not None, list(process.stderr_tail)
        place.channel.kill_all()
    place.close()
    assert segments() <= before
    assert f"PostgreSQL.{os.getpid()}" not in set(os.listdir("/dev/shm")) - shared


def test_a_lane_finds_its_images_beside_shared_memory_of_its_own(folder: RunFolder) -> None:
    """The run folder may lie in the host's shared memory, which a lane does not see; its images it does."""
    if os.geteuid() != 0:
        return
    with RunFolder(Path("/dev/shm"), need_bytes=1) as own:
        image = own.path / "image"
        copy_sparse(base_image(EXT4, cache_folder()), image)
        lane = LoopLane(own)
        from durabench_vm import Checked, Job

        found = lane.check(image, EXT4, Job((sys.executable, "-c", "print(1)")))
        lane.close()
    assert isinstance(found, Checked), found
    assert not own.path.exists()
