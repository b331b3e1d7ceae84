"""The guest: what it does with processes, what a reset and a cut leave, and what happens when it is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durabench_vm import (
    AgentError,
    CrashState,
    Filesystem,
    GuestLost,
    Mode,
    PowerDiskError,
    RunFolder,
    base_image,
    build,
    cache_folder,
    sweep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from durabench_vm import Guest, Template

EXT4 = Filesystem.parse("ext4")
ROOM = Path(__file__).parents[1]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_processes_speak_in_lines_die_by_signals_and_are_reaped(guest_on: Callable[..., Guest]) -> None:
    guest = guest_on()
    echo = guest.start(python("for line in open(0): print('<', line.strip(), flush=True)"))
    echo.write_line("one")
    echo.write_line("zwö")
    assert [echo.read_line(), echo.read_line()] == ["< one", "< zwö"]
    echo.close_stdin()
    assert echo.wait() == 0
    assert echo.read_line() is None
    tree = guest.start(["sh", "-c", "sleep 1000 & sleep 1000"])
    assert tree.signal(signal.SIGKILL, tree=True) >= 2
    assert tree.wait() == -signal.SIGKILL
    assert "sleep" not in guest.run(["ps"]).out
    with pytest.raises(TimeoutError):
        guest.start(["sleep", "1000"]).wait(0.2)
    assert guest.run(["sleep", "1000"], deadline_s=0.5).status is None


def test_files_users_and_the_environment(guest_on: Callable[..., Guest]) -> None:
    guest = guest_on()
    code = "import os, sys; print(os.getuid(), os.getcwd(), os.environ['WORD'], sys.stdin.read()); open('mine', 'w')"
    guest.umount()
    guest.mount(EXT4, user="nobody")
    process = guest.start(
        python(code), {"WORD": "w"}, stdin="in", files={"etc/conf": b"\0\xff"}, user="nobody", cwd=guest.root
    )
    assert process.read_line() == "65534 /disk w in", list(process.stderr_tail)
    assert process.wait() == 0
    assert guest.channel.fetch("/disk/etc/conf") == b"\0\xff"
    with pytest.raises(AgentError):
        guest.start(["no-such-program"])


def test_a_server_bound_to_loopback_is_reached_from_here(guest_on: Callable[..., Guest]) -> None:
    guest = guest_on()
    server = guest.start(
        python(
            "import socket; s = socket.create_server(('127.0.0.1', 7000)); print('up', flush=True)\n"
            "while True:\n c, who = s.accept(); c.sendall(who[0].encode()); c.close()"
        )
    )
    assert server.read_line() == "up", list(server.stderr_tail)
    for _ in range(2):
        with socket.create_connection(guest.address(7000), 20) as connection:
            assert connection.recv(100) == b"127.0.0.1"


def test_restored_guests_do_not_share_randomness_or_a_stale_clock(guest_on: Callable[..., Guest]) -> None:
    code = "import os, time, uuid; print(os.urandom(8).hex(), uuid.uuid4(), time.time())"
    one, two = (guest_on().run(python(code)).out.split() for _ in range(2))
    assert one[0] != two[0]
    assert one[1] != two[1]
    assert abs(float(two[2]) - time.time()) < 60


def test_a_reset_loses_memory_and_keeps_completed_writes(guest_on: Callable[..., Guest]) -> None:
    guest = guest_on()
    before = guest.run(["cat", "/proc/sys/kernel/random/boot_id"]).out
    sleeper = guest.start(["sleep", "1000"])
    guest.run(python("import os; f = open('/disk/kept', 'w'); f.write('x'); f.flush(); os.fsync(f.fileno())"))
    guest.run(python("open('/disk/lost', 'w').write('x')"))
    guest.reset()
    with pytest.raises(GuestLost):
        sleeper.wait(1)
    assert guest.run(["cat", "/proc/sys/kernel/random/boot_id"]).out != before
    guest.mount(EXT4)
    found = guest.run(["ls", "/disk"]).out.split()
    assert "kept" in found
    assert "lost" not in found


def test_a_cut_loses_what_was_not_flushed_in_the_drive(
    guest_on: Callable[..., Guest], folder: RunFolder, template_of: Callable[[str], Template]
) -> None:
    """Written straight to the device: completed, and still only in the drive's cache."""
    guest = guest_on()
    guest.umount()
    write = "import os; f = os.open('/dev/vdb', os.O_RDWR | os.O_DIRECT); import mmap; m = mmap.mmap(-1, 4096)\n"
    assert guest.run(python(write + "m.write(b'A' * 4096); os.pwrite(f, m, 1 << 20); os.fsync(f)")).status == 0
    assert guest.run(python(write + "m.write(b'B' * 4096); os.pwrite(f, m, 1 << 20)")).status == 0
    position = guest.cut()
    recording = guest.disk.recording()
    base = base_image(EXT4, cache_folder())
    for mode, byte in ((Mode.DROP, b"A"), (Mode.ALL, b"B")):
        build(base, recording, CrashState(position, mode), folder.path / "out.img")
        with (folder.path / "out.img").open("rb") as image:
            image.seek(1 << 20)
            assert image.read(4096) == byte * 4096


def test_a_slow_drive_answers_flushes_late(guest_on: Callable[..., Guest]) -> None:
    guest = guest_on(flush_delay_s=1.0)
    code = "import os, time; f = open('/disk/x', 'w'); f.write('x'); f.flush(); t = time.monotonic()\n"
    took = guest.run(python(code + "os.fsync(f.fileno()); print(time.monotonic() - t)")).out
    assert float(took) >= 1.0
    assert guest.facts()["flush_delay_s"] == 1.0


def test_a_dead_kernel_and_a_hung_machine_are_lost_with_their_last_words(guest_on: Callable[..., Guest]) -> None:
    dead = guest_on()
    with pytest.raises(GuestLost, match=r"sysrq|panic"):
        dead.run(["sh", "-c", "echo c > /proc/sysrq-trigger"], deadline_s=30)
    hung = guest_on()
    os.kill(hung.pid, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(GuestLost, match="no answer to 'ping'"):
        hung.channel.request("ping", 1.0)
    assert time.monotonic() - begin < 30  # a deadline, not a measure
    os.kill(hung.pid, signal.SIGCONT)


def test_a_mark_that_cannot_be_trusted_stops_the_run(guest_on: Callable[..., Guest]) -> None:
    guest = guest_on()

    def refuse(_: str) -> None:
        raise PowerDiskError("the log is full")

    process = guest.start(["echo", "ok"], on_line=refuse)
    process.wait()
    with pytest.raises(PowerDiskError, match="full"):
        process.read_line()


def test_nothing_outlives_a_killed_owner(folder: RunFolder, template_of: Callable[[str], Template]) -> None:
    template_of("ext4")
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOM)!r})
from durabench_vm import *
folder = RunFolder()
ext4 = Filesystem.parse("ext4")
template = prepare(RootSpec(), ext4, folder, warm=[[sys.executable, "-c", "import sqlite3, json"]])
copy_sparse(base_image(ext4, cache_folder()), folder.path / "live.img")
guest = template.restore(PowerDisk(folder.path / "live.img", folder.path / "log"), folder)
print(guest.pid, folder.path, flush=True)
time.sleep(1000)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, path = owner.stdout.readline().split()
    assert Path(path, "live.img").exists()
    owner.kill()
    owner.wait(10)
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
    assert Path(path) in sweep(Path(path).parent)
    assert not Path(path).exists()


def test_a_saved_state_that_qemu_does_not_take_is_made_anew(
    guest_on: Callable[..., Guest], template_of: Callable[[str], Template]
) -> None:
    template = template_of("ext4")
    template.state.write_bytes(b"not a state")
    assert guest_on().run(["true"]).status == 0
    assert template.state.stat().st_size > 1 << 20
