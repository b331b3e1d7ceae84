"""What spoils numbers or hides losses is found before a campaign; two campaigns on one device are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from durabench import cli, device, doctor, inventory, tracing
from durabench.ground import Ground
from durabench_backends import mounts, place

# One campaign per device.


@pytest.fixture
def own_device(monkeypatch, request):
    """A device that only this test knows, whatever else runs here, and nobody's leave to share it."""
    monkeypatch.delenv(device.SHARE, raising=False)
    name = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setattr(device, "name_of", lambda directory: name)
    return name


def test_a_second_campaign_on_a_device_is_refused_until_the_first_is_done(tmp_path, own_device):
    first = Ground(tmp_path / "first", alone=True)
    assert device.holder(tmp_path) == os.getpid()
    with pytest.raises(device.Busy, match=rf"process {os.getpid()}\) works on .*--dir.*{device.SHARE}=1"):
        Ground(tmp_path / "second", alone=True)
    Ground(tmp_path / "beside").close()  # what measures nothing does not ask
    first.close()
    assert device.holder(tmp_path) is None
    Ground(tmp_path / "second", alone=True).close()


def test_a_person_may_share_a_device(tmp_path, own_device, monkeypatch):
    hold = device.Hold(tmp_path)
    monkeypatch.setenv(device.SHARE, "1")
    Ground(tmp_path / "second", alone=True).close()
    hold.close()


HOLDS = """
import os, sys, time
from pathlib import Path
from durabench import device
device.name_of = lambda directory: sys.argv[1]
hold = device.Hold(Path("/"))
print("holds", flush=True)
time.sleep(600)
"""


def test_a_campaign_that_is_killed_leaves_its_device_free(tmp_path, own_device):
    other = subprocess.Popen([sys.executable, "-c", HOLDS, own_device], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "holds\n"
        assert device.holder(tmp_path) == other.pid
        with pytest.raises(device.Busy, match=f"process {other.pid}"):
            device.Hold(tmp_path)
    finally:
        other.kill()
        other.wait()
    device.Hold(tmp_path).close()


def test_devices_are_told_apart():
    assert device.name_of(Path("/dev/shm")) != device.name_of(Path("/proc"))
    assert device.name_of(Path("/dev/shm/absent/folder")) == device.name_of(Path("/dev/shm"))


def test_run_and_plan_stop_with_one_line_where_another_campaign_works(toy_profile):
    env = {name: value for name, value in os.environ.items() if name != device.SHARE}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        hold = device.Hold(Path(folder))
        try:
            for words in (["run", "--profile", str(toy_profile())], ["plan", "--quick", "--backend", "files"]):
                argv = [sys.executable, "-m", "durabench", *words, "--dir", folder, "--out", f"{folder}/out"]
                done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
                assert done.returncode == 3, done.stderr
                assert done.stderr.count("\n") == 1
                assert f"process {os.getpid()}" in done.stderr
                assert os.listdir(folder) == []
        finally:
            hold.close()
        argv = [sys.executable, "-m", "durabench", "run", "--profile", str(toy_profile()), "--dir", folder]
        done = subprocess.run(
            [*argv, "--out", f"{folder}/out", "--backend", "files:rename", "--trials", "1"],
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert "another campaign" not in done.stderr
        machine = json.loads((Path(folder) / "out" / "run.json").read_text())["machine"]
        assert "shared" not in machine["device"]


# doctor.


def found(check, *arguments):
    (finding,) = check(*arguments)
    assert finding.said
    assert finding.state == "ok" or finding.fix
    return finding.state


@pytest.fixture
def machine(monkeypatch):
    """Makes files of /proc and /sys say something else."""
    real, made_up = mounts.read, {}
    monkeypatch.setattr(mounts, "read", lambda path: made_up.get(str(path), real(path)))
    return made_up


@pytest.fixture
def mounted(monkeypatch):
    """Makes every directory lie on a made-up mount and disk."""

    def make(filesystem="ext4", options="rw,relatime", **disk):
        words = {"name": "sdz1", "whole": "sdz", "write_cache": "write back"} | disk
        monkeypatch.setattr(mounts, "mount_of", lambda path: mounts.Mount("0:0", "/", filesystem, "/dev/sdz1", options))
        monkeypatch.setattr(mounts, "disk_of", lambda mount: mounts.Disk(**words))

    return make


def test_a_clock_that_is_slow_to_read(machine):
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    for source, state in (("tsc", "ok"), ("kvm-clock", "ok"), ("hpet", "spoils"), ("acpi_pm", "spoils")):
        machine[path] = source
        assert found(doctor._clock) == state


def test_laptop_mode(machine):
    for mode, state in (("0", "ok"), ("5", "spoils")):
        machine["/proc/sys/vm/laptop_mode"] = mode
        assert found(doctor._laptop_mode) == state


def test_a_quota_of_processor_time(machine):
    machine["/proc/self/cgroup"] = "0::/some/slice"
    for limit, state in (("max 100000", "ok"), ("50000 100000", "spoils")):
        machine["/sys/fs/cgroup/some/slice/cpu.max"] = limit
        assert found(doctor._quota) == state


def test_frequency_scaling(monkeypatch, machine, tmp_path):
    for number in range(2):
        (tmp_path / f"cpu{number}" / "cpufreq").mkdir(parents=True)
    monkeypatch.setattr(doctor, "PROCESSORS", tmp_path)
    for governors, state in ((("performance", "performance"), "ok"), (("performance", "powersave"), "spoils")):
        for number, governor in enumerate(governors):
            (tmp_path / f"cpu{number}" / "cpufreq" / "scaling_governor").write_text(governor + "\n")
        assert found(doctor._governor) == state


@pytest.mark.parametrize(
    "load, waited, state", [(0.0, "0.00", "ok"), (1000.0, "0.00", "spoils"), (0.0, "40.00", "spoils")]
)
def test_load(monkeypatch, machine, load, waited, state):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    machine["/proc/pressure/io"] = f"some avg10={waited} avg60=0.00 avg300=0.00 total=1"
    assert found(doctor._load) == state


@pytest.mark.parametrize("free, swapped, state", [(8, 0, "ok"), (0.1, 0, "spoils"), (8, 3, "spoils")])
def test_memory_and_swap(monkeypatch, free, swapped, state):
    memory = namedtuple("memory", "available")(int(free * (1 << 30)))  # noqa: PYI024
    swap = namedtuple("swap", "used total")(swapped << 30, 4 << 30)  # noqa: PYI024
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    assert found(doctor._memory) == state


def test_time_that_the_hypervisor_took(monkeypatch):
    for steal, state in ((0.5, "ok"), (30.0, "spoils")):
        times = namedtuple("times", "user idle steal")(10.0, 90.0, steal)  # noqa: PYI024
        monkeypatch.setattr(psutil, "cpu_times", lambda times=times: times)
        assert found(doctor._steal) == state


@pytest.mark.parametrize(
    "preloaded, everywhere, state",
    [
        ("", "", "ok"),
        ("/usr/lib/libeatmydata.so", "", "hides"),
        ("libjemalloc.so.2:/usr/lib/libeatmydata.so.1", "", "hides"),
        ("", "/usr/lib/x86_64-linux-gnu/libeatmydata.so", "hides"),
        ("libjemalloc.so.2", "", "spoils"),
    ],
)
def test_what_is_loaded_into_every_program(monkeypatch, machine, preloaded, everywhere, state):
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    machine["/etc/ld.so.preload"] = everywhere
    assert found(doctor._preload) == state


@pytest.mark.parametrize(
    "mount, filesystem, options",
    [
        ({}, "ok", "ok"),
        ({"filesystem": "tmpfs"}, "hides", "ok"),
        ({"filesystem": "overlay"}, "spoils", "ok"),
        ({"filesystem": "nfs4"}, "spoils", "ok"),
        ({"filesystem": "fuse.sshfs"}, "spoils", "ok"),
        ({"options": "rw,nobarrier"}, "ok", "hides"),
        ({"options": "rw,barrier=0"}, "ok", "hides"),
        ({"options": "rw,sync"}, "ok", "hides"),
    ],
)
def test_file_systems_and_mount_options(mounted, tmp_path, mount, filesystem, options):
    mounted(**mount)
    assert found(doctor._filesystem, tmp_path) == filesystem
    assert found(doctor._mount_options, tmp_path) == options


@pytest.mark.parametrize(
    "disk, state",
    [
        ({}, "ok"),
        ({"write_cache": "write through"}, "ok"),
        ({"write_cache": "write through", "whole": "vda"}, "hides"),
        ({"write_cache": "write back", "whole": "vda"}, "ok"),
        ({"write_cache": None}, "ok"),
    ],
)
def test_write_caches(mounted, tmp_path, disk, state):
    mounted(**disk)
    assert found(doctor._write_cache, tmp_path) == state


@pytest.mark.parametrize(
    "latencies_us, counted, state",
    [
        ([900] * 20, 20, "ok"),
        ([900] * 20, None, "ok"),
        ([1] * 20, None, "hides"),
        ([900] * 20, 0, "hides"),
        ([20] * 20, 20, "spoils"),
        ([900] * 15 + [9000] * 5, 20, "spoils"),
    ],
)
def test_flushes(monkeypatch, mounted, tmp_path, latencies_us, counted, state):
    mounted()
    monkeypatch.setattr(place, "measure", lambda folder: ([each * 1000 for each in latencies_us], counted))
    assert found(doctor._flush, tmp_path / "absent") == state
    assert list(tmp_path.iterdir()) == []


def test_room(monkeypatch, tmp_path):
    for free, state in ((1 << 40, "ok"), (1 << 20, "spoils")):
        usage = namedtuple("usage", "free")(free)  # noqa: PYI024
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, usage=usage: usage)
        assert found(doctor._room, tmp_path / "absent") == state


def test_another_campaign_on_the_device_is_told(tmp_path, own_device):
    assert found(doctor._campaign, tmp_path) == "ok"
    hold = device.Hold(tmp_path)
    assert found(doctor._campaign, tmp_path) == "missing"
    hold.close()


def test_missing_tools_and_rights(monkeypatch, machine):
    monkeypatch.setitem(inventory.TOOLS, "no-such-tool", "apt-get install it")
    assert "missing" in {finding.state for finding in doctor._programs()}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine["/proc/sys/kernel/yama/ptrace_scope"] = "1"
    assert found(doctor._tracing) == "spoils"
    machine["/proc/sys/kernel/yama/ptrace_scope"] = "0"
    assert found(doctor._tracing) == "ok"
    tracing._lack.cache_clear()
    monkeypatch.setattr(tracing, "STRACE", "no-such-tracer")
    assert found(doctor._tracing) == "spoils"
    tracing._lack.cache_clear()


def test_every_finding_has_its_mend_and_the_exit_status_is_theirs(tmp_path, monkeypatch, capsys, own_device):
    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["durabench", "doctor", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, capsys.readouterr().out

    findings = list(doctor.look(tmp_path))
    assert len({finding.what for finding in findings}) == len(findings)
    for finding in findings:
        assert finding.said
        assert finding.state == "ok" or finding.fix or finding.what.startswith("backend")
    assert list(tmp_path.iterdir()) == []
    status, out = typed("--dir", str(tmp_path))
    assert status == (3 if any(finding.state in ("hides", "missing") for finding in findings) else 0)
    assert "flush: " in out
    monkeypatch.setenv("LD_PRELOAD", "libeatmydata.so")
    status, out = typed("--dir", str(tmp_path))
    assert status == 3
    assert "✕ preloaded libraries: libeatmydata.so answers flushes without doing them; unset LD_PRELOAD" in out
