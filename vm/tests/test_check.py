"""Lanes: damaged images, failing jobs and stubborn ones are findings, and the lane goes on."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from durabench_vm import (
    AgentError,
    Checked,
    Filesystem,
    Finding,
    GuestLane,
    HostPlace,
    Job,
    Lane,
    LoopLane,
    Place,
    RunFolder,
    SwapLane,
    WillNotStart,
    base_image,
    cache_folder,
    check,
    copy_sparse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from durabench_vm import Template

EXT4 = Filesystem.parse("ext4")
LIST = Job((sys.executable, "-c", "import json, os; print(json.dumps(os.listdir('{root}')))"))


def job(code: str, **options: Any) -> Job:
    return Job((sys.executable, "-c", code), **options)


@pytest.fixture(params=["loop", "swap"])
def lane(request: pytest.FixtureRequest, folder: RunFolder, template_of: Callable[[str], Template]) -> Iterator[Lane]:
    """A lane; `loop` needs root, and is replaced by its absence being said."""
    if request.param == "loop" and os.geteuid() != 0:
        assert "root" in (HostPlace.lack() or "")
        with pytest.raises(PermissionError, match="root"):
            HostPlace(folder)
        made: Lane = SwapLane(template_of("ext4"), folder)
    else:
        made = LoopLane(folder) if request.param == "loop" else SwapLane(template_of("ext4"), folder)
    yield made
    made.close()


@pytest.fixture
def image(folder: RunFolder) -> Callable[[], Path]:
    """A fresh ext4 image."""

    def give() -> Path:
        path = folder.path / "check.img"
        copy_sparse(base_image(EXT4, cache_folder()), path)
        return path

    return give


def test_bad_luck_is_a_finding_and_the_lane_goes_on(lane: Lane, image: Callable[[], Path]) -> None:
    def what(todo: Job | Callable[[Place], Any], path: Path | None = None) -> str:
        outcome = lane.check(path or image(), EXT4, todo)
        assert isinstance(outcome, Finding), outcome
        return outcome.what

    empty = image()
    with empty.open("r+b") as file:
        file.write(bytes(1 << 20))
    assert what(LIST, empty) == "will not mount"
    assert what(job("print('not json')")) == "garbage"
    assert what(job("raise SystemExit(3)")) == "job failed"
    assert what(job("import os; raise OSError(5, os.strerror(5))")) == "i/o error"
    assert what(job("import time; time.sleep(1000)", deadline_s=2.0)) == "no answer"
    assert what(job("import time; input(); time.sleep(1000)", deadline_s=2.0, lasting=True)) == "no answer"

    def no_server(_: Place) -> None:
        raise WillNotStart("it said so")

    assert what(no_server) == "will not start"
    answered = lane.check(image(), EXT4, LIST)
    assert isinstance(answered, Checked)
    assert answered.answer == ["lost+found"]


@pytest.mark.parametrize("lasting", [False, True])
def test_what_is_not_the_image_s_is_told_from_what_is(lane: Lane, image: Callable[[], Path], *, lasting: bool) -> None:
    def found(code: str) -> tuple[str, bool]:
        outcome = lane.check(image(), EXT4, job(f"import os\n{'input()' * lasting}\n{code}", lasting=lasting))
        assert isinstance(outcome, Finding), outcome
        return outcome.what, outcome.of_image

    assert found("os.kill(os.getpid(), 9)") == ("harness failed", False), "as a kernel does that is out of memory"
    assert found("os.kill(os.getpid(), 15)") == ("harness failed", False)
    assert found("os.kill(os.getpid(), 11)") == ("job crashed", True)
    assert found("raise ImportError") == ("job failed", False)
    assert found("raise OSError(117, os.strerror(117))") == ("i/o error", True)


def test_a_machine_without_the_image_or_the_file_system_convicts_nobody(
    lane: Lane, image: Callable[[], Path], folder: RunFolder
) -> None:
    for path, filesystem in ((folder.path / "never-built.img", EXT4), (image(), Filesystem("f2fs"))):
        outcome = lane.check(path, filesystem, LIST)
        assert isinstance(outcome, Finding)
        assert (outcome.what, outcome.of_image) == ("harness failed", False), outcome
    assert isinstance(lane.check(image(), EXT4, LIST), Checked)


@pytest.mark.parametrize(
    "code, of_image", [(errno.EUCLEAN, True), (errno.EINVAL, True), (errno.EIO, True), (errno.EBUSY, False), (0, False)]
)
def test_a_mount_is_refused_for_the_image_or_for_the_machine(code: int, *, of_image: bool) -> None:
    assert check._not_mounted(AgentError("no loop device free", code)).of_image == of_image


def test_what_a_job_leaves_open_or_running_does_not_reach_the_next_image(lane: Lane, image: Callable[[], Path]) -> None:
    code = "import json, os; open('{root}/mark', 'x'); print(json.dumps(os.listdir('{root}')))"
    holder = job(code.replace("print", "os.fork() or os.execlp('sleep', 'sleep', '1000')\nprint"), deadline_s=4.0)
    for _ in range(2):
        outcome = lane.check(image(), EXT4, holder)
        assert isinstance(outcome, Finding)  # its output is held open, too
        assert outcome.what == "no answer"
    lasting = job(
        "import json, sys\nkept = []\nfor line in sys.stdin:\n root = json.loads(line)['root']\n"
        " kept.append(open(root + '/open', 'x')); print(json.dumps([1]), flush=True)",
        lasting=True,
    )
    for _ in range(3):
        outcome = lane.check(image(), EXT4, lasting)
        assert isinstance(outcome, Checked), outcome
    assert isinstance(lane.check(image(), EXT4, LIST), Checked)


def test_a_lasting_job_gets_its_request_and_is_one_process(lane: Lane, image: Callable[[], Path]) -> None:
    code = "import json, os, sys\nfor l in sys.stdin: print(json.dumps([os.getpid(), json.loads(l)['n']]), flush=True)"
    answers = []
    for number in range(3):
        outcome = lane.check(image(), EXT4, job(code, lasting=True, request={"n": number}))
        assert isinstance(outcome, Checked)
        answers.append(outcome.answer)
    assert [number for _, number in answers] == [0, 1, 2]
    assert len({process for process, _ in answers}) == 1


def test_a_callable_gets_a_place_with_servers(lane: Lane, image: Callable[[], Path]) -> None:
    def serve(place: Place) -> str:
        code = "echo $(id -u) $(cat conf); read word"
        server = place.start(["sh", "-c", code], files={"conf": b"hello"}, user="nobody", cwd=place.root)
        line = server.read_line()
        assert line is not None, list(server.stderr_tail)
        return line

    outcome = lane.check(image(), EXT4, serve, user="nobody")
    assert isinstance(outcome, Checked)
    assert outcome.answer == "65534 hello"


def test_the_guest_lane_takes_one_guest_for_each_image(
    folder: RunFolder, template_of: Callable[[str], Template], image: Callable[[], Path]
) -> None:
    lane = GuestLane(template_of("ext4"), folder)
    good = lane.check(image(), EXT4, LIST)
    assert isinstance(good, Checked)
    damaged = image()
    with damaged.open("r+b") as file:
        file.write(bytes(1 << 20))
    bad = lane.check(damaged, EXT4, LIST)
    assert isinstance(bad, Finding)
    assert bad.what == "will not mount"
    panic = lane.check(image(), EXT4, job("open('/proc/sysrq-trigger', 'w').write('c')"))
    assert isinstance(panic, Finding)
    assert panic.what == "machine lost"
