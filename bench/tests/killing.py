"""Kills durabench itself at random moments, over commands and lanes, and looks for what it left.

`python bench/tests/killing.py --moments 300 --guests` is the long one, by hand; the test suite runs a short one. As
root it works in namespaces of its own, so that whatever is in them is ours. Each chain is one command on a disk of its
own: ended at a random moment by SIGKILL, SIGTERM or Ctrl-C (SIGINT to all of its process group), looked at after two
seconds, started again (a run with --resume), ended again …, and at last left to its end. Only runs, whose verdicts are
compared, are done once undisturbed before. Exit status 1 names every moment after which something was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from durabench.cli import ENDS_S
from durabench.results import Folder, is_free

COMMAND = [sys.executable, "-m", "durabench"]
MARK = "DURABENCH_KILLING"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
QUIET_S = 2.0
"""After so long nothing of what was ended may be left running."""
WHOLE_S = 900.0
"""A command that is left to its end takes no longer, however busy the machine is."""
KILLS = 3
"""In one chain."""
PROFILE = """
backends = ["files"]
faults = ["kill-client"]
workload = "append"
trials = 8
puts = 5
write_s = 0.1
at_once = 2
"""
POWER = """
[power]
faults = ["cut-power"]
backends = ["files"]
filesystems = ["ext4"]
trials = 4
recordings = 1
puts = 3
"""
HEAVY = """
from durabench_backends.files import Files

class Heavy(Files):
    heavy = True  # recorded on this host, so that the power pass needs no guest
    imports = ("heavyfiles",)
"""
HEAVY_CONTROLS = ("heavyfiles:Heavy:fsync-dir", "heavyfiles:Heavy:rename")


@dataclass(frozen=True)
class Scenario:
    """One command. ``line`` may name the chain's own folder as {top}, its profile, and a finished run as {done}."""

    name: str
    line: str
    lasts_s: float = 2.0
    """Within how long it is ended; of a run, as long as it took undisturbed."""
    answers: tuple[int, ...] = (0,)
    """Exit status of the undisturbed command."""
    weight: int = 1
    profile: str = "toy.toml"
    last: str = ""
    """The later start, where that is not the same command."""

    @property
    def resumes(self) -> bool:
        """Whether it goes on where it was ended, to the same verdicts."""
        return self.line.startswith("run ")


RUN = "run --profile {profile} --seed 5 --workload append --dir {top}/disk --out {top}/run"
CUT = f"{RUN} --fault cut-power --filesystem ext4"
REPLAY = "replay {done} 5 --dir {top}/disk"
HERE = (
    Scenario("run files", f"{RUN} --backend files:rename --fault kill-client --trials 12", weight=2),
    Scenario("run valkey", f"{RUN} --backend valkey:aof-always --fault kill-server --trials 2"),
    Scenario("run postgres", f"{RUN} --backend postgres:on --fault kill-server --trials 1"),
    Scenario("verify --probe", "verify file://{top}/disk?write=fsync-dir --probe", answers=(0, 3)),
    Scenario("conform files", "conform files:fsync-dir", lasts_s=3),
    Scenario("conform valkey", "conform valkey:aof-always", lasts_s=4),
    Scenario("replay", REPLAY),
    Scenario("judge", "judge {done}", lasts_s=1.5),
    Scenario("report", "report {done} --html {top}/page.html"),
    Scenario(
        "plan",
        "plan --quick --sizes 1KiB..16KiB --backend files:fsync-dir --backend valkey:aof-always --dir {top}/disk "
        "--out {top}/run",
        lasts_s=25,
        last=REPLAY,
    ),
)
LOOP = Scenario("run loop", f"{CUT} --backend heavyfiles:Heavy:rename --lane loop", weight=2, profile="loop.toml")
GUESTS = tuple(Scenario(f"run {lane}", f"{CUT} --backend files:rename --lane {lane}") for lane in ("swap", "guest"))


@dataclass
class Chain:
    """One command on a disk of its own, ended several times."""

    scenario: Scenario
    top: Path
    rng: random.Random
    kills: int
    usual_s: float
    done: Path | None = None
    told: list[str] = field(default_factory=list)
    ended_s: list[tuple[str, float]] = field(default_factory=list)
    """Of each moment its signal, and how long the command then took to end."""

    def __post_init__(self) -> None:
        for name in ("disk", "tmp", "vm"):
            (self.top / name).mkdir(parents=True)

    @property
    def env(self) -> dict[str, str]:
        """Whatever it starts is known by this."""
        folders = {"TMPDIR": self.top / "tmp", "DURABENCH_VM_RUN": self.top / "vm", MARK: self.top}
        return {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "DURABENCH_SHARED_DEVICE": "1"}

    def words(self, line: str) -> list[str]:
        """The command as it is given now."""
        run = self.top / "run"
        if self.scenario.resumes and (run / "run.json").exists():
            return ["run", "--resume", str(run)]
        if run.exists() and not is_free(run):
            shutil.rmtree(run)  # a plan has no --resume
        profile = self.top.parent / self.scenario.profile
        said = {"{top}": self.top, "{done}": self.done, "{profile}": profile}
        return [_filled(word, said) for word in line.split()]

    def start(self, line: str = "") -> subprocess.Popen[bytes]:
        argv = [*COMMAND, *self.words(line or self.scenario.line)]
        with (self.top / "said").open("a") as said:
            streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            return subprocess.Popen(argv, env=self.env, start_new_session=True, **streams)

    def run(self) -> Chain:
        """All its moments, then to the end."""
        for _ in range(self.kills):
            if self.scenario.resumes and (self.top / "run" / "done.json").exists():
                break
            self.kill(self.rng.choice(SIGNALS), self.rng.uniform(0, self.usual_s))
        self.finish()
        return self

    def kill(self, number: signal.Signals, after_s: float) -> None:
        """One moment."""
        before = self.rows()
        said = len((self.top / "said").read_text()) if (self.top / "said").exists() else 0
        running = self.start()
        what = f"{self.scenario.name}, {number.name} after {after_s:.2f} s"
        with suppress(subprocess.TimeoutExpired):
            running.wait(after_s)
        if running.poll() is None and number is signal.SIGINT:
            os.killpg(running.pid, number)
        running.send_signal(number)
        began = time.monotonic()
        try:
            status = running.wait(ENDS_S + QUIET_S)
        except subprocess.TimeoutExpired:
            self.say(what, f"still runs {ENDS_S + QUIET_S:g} s later")
            running.kill()
            return
        self.ended_s.append((number.name, time.monotonic() - began))
        words = (self.top / "said").read_text()[said:]
        begun = "Traceback" not in words or "durabench/" in words  # else Python was not yet at our first line
        # Killed by the signal: before durabench's own code was there to hear it, in an import.
        if begun and status not in (130, -number, *self.scenario.answers):
            self.say(what, f"ended with {status}")
        if begun and "Traceback" in words:
            self.say(what, "a traceback")
        end = time.monotonic() + QUIET_S
        while (left := self.alive()) and time.monotonic() < end:
            time.sleep(0.05)
        if left:
            self.say(what, f"left: {left}")
        if self.rows()[: len(before)] != before:
            self.say(what, "what had been recorded is no longer there")

    def finish(self) -> None:
        """The later start, to its end: nothing is left, the answer is the usual one."""
        finished = (self.top / "run" / "done.json").exists()
        if finished and any(any((self.top / name).iterdir()) for name in ("disk", "tmp", "vm")):
            (self.top / "run").rename(self.top / "ended")  # ended between its last word and tidying up
            finished = False
        if not finished:
            running = self.start(self.scenario.last)
            try:
                status = running.wait(WHOLE_S)
            except subprocess.TimeoutExpired:
                self.say(self.scenario.name, f"started again, it does not end in {WHOLE_S:g} s")
                running.kill()
                return
            if status not in self.scenario.answers:
                last = " | ".join((self.top / "said").read_text().strip().splitlines()[-4:])
                self.say(self.scenario.name, f"started again, it ended with {status}: {last}")
        for name in ("disk", "tmp", "vm"):
            if left := sorted(path.name for path in (self.top / name).iterdir() if not tried_by_python(path)):
                self.say(self.scenario.name, f"left in {name} by the end: {left}")
        if left := self.alive():
            self.say(self.scenario.name, f"left by the end: {left}")
        if self.scenario.resumes and (self.top / "run" / "run.json").exists():
            self.complete()

    def complete(self) -> None:
        """Every trial once, and no half file."""
        folder = Folder.open(self.top / "run")
        planned = {row["trial"] for row in folder.plan()}
        ended = [rows[0]["trial"] for rows in folder.each_trial()]
        if set(ended) != planned or len(ended) != len(planned):
            self.say(self.scenario.name, f"{len(ended)} of {len(planned)} trials at the end")
        if half := [path.name for path in folder.path.rglob("*") if path.name.endswith(".part")]:
            self.say(self.scenario.name, f"half files: {half}")

    def verdicts(self) -> dict[str, str]:
        """The worst verdict of each of its cells; of a plan and the like, none."""
        worst = ("broken", "unknown", "no-promise", "within", "kept")
        found: dict[str, str] = {}
        for row in self.rows():
            key = f"{row['backend']}:{row['setting']} {row['namespace']} {row['fault']} {row['control']}"
            found[key] = min(found.get(key, "kept"), row["verdict"], key=worst.index)
        return found

    def rows(self) -> list[dict]:
        """What is recorded; the folder must read at every moment."""
        if not self.scenario.resumes or not (self.top / "run" / "run.json").exists():
            return []
        try:
            return Folder.open(self.top / "run").trials()
        except Exception as error:
            self.say(self.scenario.name, f"the folder does not read: {error!r}")
            return []

    def say(self, what: str, wrong: str) -> None:
        self.told.append(f"{what}: {wrong} [{self.top}]")
        print(self.told[-1], flush=True)

    def alive(self) -> list[str]:
        """Processes, mounts and loop devices that are this chain's, by its folder."""
        mine, found = str(self.top).encode() + b"/", []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            with suppress(OSError):
                seen = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
                place = os.readlink(process / "cwd").encode()
                if mine in seen + b"/" or str(self.top).encode() + b"\0" in seen or (place + b"/").startswith(mine):
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if words:  # a zombie has none
                        found.append(f"process {process.name} ({words[:150]})")
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
        found += [f"mount {line.decode()}" for line in mounts if mine in line]
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with suppress(OSError):
                if mine in backing.read_bytes():
                    found.append(f"loop device {backing.parts[3]}")
        return found


def tried_by_python(path: Path) -> bool:
    """Whether it is what Python's own `tempfile` tries a temporary folder with, for the moment that it is there."""
    return path.is_file() and re.fullmatch("[a-z0-9_]{8}", path.name) is not None and path.stat().st_size <= len("blat")


def _filled(word: str, said: dict[str, Path | None]) -> str:
    for name, path in said.items():
        word = word.replace(name, str(path))
    return word


def prepare(top: Path) -> None:
    """The profile, and the backend of lane loop, which its readers find among installed packages."""
    shipped = (files("durabench") / "profiles" / "quick.toml").read_text()
    controls = shipped[shipped.index("[controls]") : shipped.index("[power]")]
    for name, (negative, positive) in {
        "toy.toml": ("files:fsync-dir", "files:rename"),
        "loop.toml": HEAVY_CONTROLS,
    }.items():
        ours = f'\n[power.controls]\nnegative = "{negative}"\npositive = "{positive}"\n'
        (top / name).write_text(f"{PROFILE}\n{controls}{POWER}{ours}")
    (top / "site-packages").mkdir()
    (top / "site-packages" / "heavyfiles.py").write_text(HEAVY)


def python_path(top: Path) -> str:
    """PYTHONPATH with the backend of `prepare` on it."""
    return os.pathsep.join([str(top / "site-packages"), os.environ.get("PYTHONPATH", "")])


def shared_memory() -> list[str]:
    """What lies in shared memory; of namespaces of our own, all of it is ours."""
    table = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [f"segment {line.split()[1]}" for line in table] + [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]


def digest(folder: Path) -> str:
    """Of every file of a folder."""
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        seen.update(f"{path} {path.stat().st_mtime_ns}".encode() + (path.read_bytes() if path.is_file() else b""))
    return seen.hexdigest()


def main() -> int:
    """Gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    parser.add_argument("--at-once", type=int, default=4, help="chains at a time")
    parser.add_argument("--guests", action="store_true", help="the lanes swap and guest too, which boot machines")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, as in a background
    rng = random.Random(asked.seed)
    top = Path(tempfile.mkdtemp(prefix="durabench-killing-"))
    top.chmod(0o755)
    prepare(top)
    os.environ["PYTHONPATH"] = python_path(top)
    root = os.geteuid() == 0
    loop = [LOOP] if root and os.access("/dev/fuse", os.W_OK) else []
    scenarios = [*HERE, *loop, *(GUESTS if asked.guests else ())]
    scenarios = [scenario for scenario in scenarios if asked.only in scenario.name]
    with ThreadPoolExecutor(asked.at_once) as pool:
        usual = undisturbed(scenarios, top, pool)
        wrong = [line for one in usual.values() for line in one.told]
        before = digest(top / "done")
        chains = planned(scenarios, usual, asked.moments, rng, top)
        for chain in pool.map(Chain.run, chains):
            name = chain.scenario.name
            if chain.scenario.resumes and (found := chain.verdicts()) != (expected := usual[name].verdicts()):
                chain.say(name, f"verdicts {found}, undisturbed {expected}")
            wrong += chain.told
    if digest(top / "done") != before:
        wrong.append("a finished run was changed")
    if root and (left := shared_memory()):
        wrong.append(f"left in shared memory: {left}")
    print(f"\nseed {asked.seed}", *table(chains), sep="\n")
    print(f"{sum(len(chain.ended_s) for chain in chains)} moments in {len(chains)} chains, {len(wrong)} wrong")
    print(*wrong, sep="\n")
    if not wrong:
        shutil.rmtree(top)
    return 1 if wrong else 0


def undisturbed(scenarios: list[Scenario], top: Path, pool: ThreadPoolExecutor) -> dict[str, Chain]:
    """Each run once, to its end: how long it takes, what it finds. The first of all is what other commands look at."""

    def one(scenario: Scenario) -> Chain:
        chain = Chain(scenario, top / f"usual-{scenario.name.replace(' ', '-')}", random.Random(0), 0, 0.0)
        began = time.monotonic()
        chain.finish()
        chain.usual_s = time.monotonic() - began
        return chain

    wanted = dict.fromkeys([HERE[0], *(scenario for scenario in scenarios if scenario.resumes)])
    found = {chain.scenario.name: chain for chain in pool.map(one, wanted)}
    shutil.copytree(top / "usual-run-files" / "run", top / "done")
    return found


def planned(
    scenarios: list[Scenario], usual: dict[str, Chain], moments: int, rng: random.Random, top: Path
) -> list[Chain]:
    """Chains of so many moments together."""
    names = [scenario for scenario in scenarios for _ in range(scenario.weight)]
    rng.shuffle(names)
    chains: list[Chain] = []
    while moments > 0:
        scenario = names[len(chains) % len(names)]
        lasts_s = usual[scenario.name].usual_s if scenario.resumes else scenario.lasts_s
        place, own = top / f"{len(chains)}", random.Random(rng.random())
        chains.append(Chain(scenario, place, own, min(KILLS, moments), lasts_s, top / "done"))
        moments -= KILLS
    return chains


def table(chains: list[Chain]) -> list[str]:
    """By scenario, how often it was ended and how long that took at most."""
    found = defaultdict(list)
    for chain in chains:
        found[chain.scenario.name] += chain.ended_s
    return [
        f"{name:16} {len(ends):4} moments, "
        + ", ".join(
            f"{number.name} at most {max((took for sent, took in ends if sent == number.name), default=0):.1f} s"
            for number in SIGNALS
        )
        for name, ends in sorted(found.items())
    ]


def apart() -> None:
    """Once more in namespaces of our own, where the caller may: what is in them is ours."""
    if os.geteuid() != 0 or os.environ.get(MARK):
        return
    os.environ[MARK] = "apart"
    shared = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    unshare = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"]
    os.execvp(unshare[0], [*unshare, "/bin/sh", "-c", shared, "sh", sys.executable, *sys.argv])


if __name__ == "__main__":
    apart()
    sys.exit(main())
