"""The power disk as its clients see it, and what its log says afterwards."""

from __future__ import annotations

import errno
import gzip
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from nbd_client import FLUSH, TRIM, WRITE, WRITE_ZEROES, Client

from durabench_vm import Kind, PowerDisk, Recording

if TYPE_CHECKING:
    from pathlib import Path


def test_reads_back_what_was_written_and_logs_it_in_order(disk: PowerDisk) -> None:
    client = Client(disk.connect())
    assert client.size_bytes == disk.size_bytes == 64 * 512
    client.write(512, b"a" * 1024)
    client.write(2048, b"b" * 512, fua=True)
    assert disk.mark({"put": 1}) == 3
    client.flush()
    assert client.call(WRITE_ZEROES, 512, 512) == 0
    assert client.call(TRIM, 4096, 4096) == 0
    assert client.read(0, 2560) == bytes(1024) + b"a" * 512 + bytes(512) + b"b" * 512
    recording = disk.recording()
    assert [entry.kind for entry in recording.entries] == [
        Kind.WRITE, Kind.WRITE, Kind.MARK, Kind.FLUSH, Kind.ZERO, Kind.TRIM,
    ]  # fmt: skip
    assert [entry.fua for entry in recording.entries[:2]] == [False, True]
    assert bytes(recording.data(recording.entries[0])) == b"a" * 1024
    assert recording.entries[3].covers == 3
    times = [entry.time_ns for entry in recording.entries]
    assert times == sorted(times)


def test_a_request_outside_of_the_disk_is_an_error_and_not_logged(disk: PowerDisk) -> None:
    client = Client(disk.connect())
    assert client.call(WRITE, disk.size_bytes - 512, data=bytes(1024)) == errno.EINVAL
    client.write(0, b"x" * 512)  # the connection lives on
    assert len(disk.recording()) == 1


def test_a_late_flush_covers_only_what_was_complete_when_it_was_received(disk: PowerDisk) -> None:
    disk.flush_delay_s = 0.3
    client = Client(disk.connect())
    client.write(0, b"a" * 512)
    flush = client.send(FLUSH)
    late = client.send(WRITE, 512, data=b"b" * 512)
    assert client.answer() == (late, 0)  # other requests go on while the flush waits
    assert client.answer() == (flush, 0)
    recording = disk.recording()
    assert [entry.kind for entry in recording.entries] == [Kind.WRITE, Kind.WRITE, Kind.FLUSH]
    assert recording.unflushed(2) == (0, 1)  # received, but not answered: nothing is promised yet
    assert recording.unflushed(3) == (1,)


def test_nothing_is_written_logged_or_promised_after_the_cut(disk: PowerDisk) -> None:
    client = Client(disk.connect())
    client.write(0, b"a" * 512)
    assert disk.cut() == 1
    assert client.call(WRITE, 0, data=b"b" * 512) == errno.EIO
    assert client.call(FLUSH) == errno.EIO
    assert disk.mark("too late") is None
    assert len(disk.recording()) == 1
    assert disk.image.read_bytes()[:512] == b"a" * 512


def test_marks_and_writes_of_many_threads_share_one_order(disk: PowerDisk) -> None:
    """A mark set after a write returned stands after it, whoever else writes meanwhile."""

    def put(lane: int) -> None:
        client = Client(disk.connect())
        for number in range(50):
            client.write(lane * 4096, bytes([lane + 1]) * 256 + bytes([number + 1]) * 256)
            disk.mark([lane, number])
        client.close()

    threads = [threading.Thread(target=put, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    recording = disk.recording()
    assert len(recording) == 400
    written = [-1] * 4
    for entry in recording.entries:
        if entry.kind is Kind.WRITE:
            data = recording.data(entry)
            written[data[0] - 1] = data[511] - 1
        else:
            lane, number = entry.mark
            assert written[lane] == number


def test_a_recording_survives_saving_with_its_base_and_a_torn_tail(disk: PowerDisk, tmp_path: Path) -> None:
    base = tmp_path / "base.img"
    disk.write(0, b"before")
    disk.swap(disk.image)
    shutil.copy(disk.image, base)
    client = Client(disk.connect())
    client.write(512, b"a" * 512)
    disk.mark("one")
    client.flush()
    client.write(1024, b"b" * 512)
    before = disk.recording()
    before.save(tmp_path / "saved.gz", base=base)
    after = Recording.load(tmp_path / "saved.gz")
    assert after.has_base
    assert not before.has_base
    assert [(e.kind, e.time_ns, e.offset, e.length, e.covers, e.mark) for e in after.entries] == [
        (e.kind, e.time_ns, e.offset, e.length, e.covers, e.mark) for e in before.entries
    ]
    assert [bytes(after.data(e)) for e in after.entries] == [bytes(before.data(e)) for e in before.entries]
    after.write_base(tmp_path / "rebuilt.img")
    assert (tmp_path / "rebuilt.img").read_bytes() == base.read_bytes()
    plain = gzip.decompress((tmp_path / "saved.gz").read_bytes())
    (tmp_path / "torn").write_bytes(plain[:-100])  # the controller died inside its last write
    assert len(Recording.load(tmp_path / "torn")) == 3


def test_acknowledged_and_gaps_follow_the_marks(disk: PowerDisk) -> None:
    for number in range(3):
        disk.write(0, bytes(512))
        disk.mark(number)
    disk.write(0, bytes(512))
    recording = disk.recording()
    assert [recording.acknowledged(p) for p in (0, 1, 2, 4, 7)] == [(), (), (0,), (0, 1), (0, 1, 2)]
    assert [(g.number, g.first, g.last) for g in recording.gaps()] == [(0, 0, 1), (1, 2, 3), (2, 4, 5), (3, 6, 7)]
    assert [(g.number, g.first, g.last) for g in recording.gaps(3, 4)] == [(1, 3, 3), (2, 4, 4)]
    assert all(recording.gap(p) == g.number for g in recording.gaps() for p in range(g.first, g.last + 1))


def test_qemu_speaks_to_it(disk: PowerDisk, tmp_path: Path) -> None:
    """The protocol by the client it is made for: QEMU's own block layer, over a path."""
    disk.listen(tmp_path / "nbd")
    done = subprocess.run(
        ["qemu-io", "-f", "raw", "-t", "writeback", f"nbd+unix:///?socket={tmp_path}/nbd",
         "-c", "write -P 7 512 1024", "-c", "flush", "-c", "write -f -P 9 4096 512", "-c", "write -z 512 512",
         "-c", "read -P 7 1024 512", "-c", "read -P 0 512 512"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verification failed" not in done.stdout
    kinds = [(e.kind, e.fua) for e in disk.recording().entries]
    assert kinds[:4] == [(Kind.WRITE, False), (Kind.FLUSH, False), (Kind.WRITE, True), (Kind.ZERO, False)]


@pytest.mark.parametrize("size", [0, 1000])
def test_a_disk_of_an_odd_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "odd").write_bytes(bytes(size))
    with pytest.raises(Exception, match="multiple of 4096"):
        PowerDisk(tmp_path / "odd", tmp_path / "log")
