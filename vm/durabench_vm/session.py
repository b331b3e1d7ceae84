"""A machine for a person: up, reset, cut, down and shell, on the same guest as the suite.

`up` leaves a process in the background that holds the guest and its power disk; the other commands talk to it over a
socket in its run folder. What runs in the machine comes from a file of commands (see `Commands`) or from the command
line. After `cut` the machine is off, and the disk holds what a drive could have kept; `up` starts it on that.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durabench_vm.assets import MissingAsset, cache_folder, doctor, find_program
from durabench_vm.channel import AgentError, GuestLost
from durabench_vm.crash import CrashState, Mode, build
from durabench_vm.filesystem import Filesystem, base_image
from durabench_vm.guest import prepare
from durabench_vm.image import copy_sparse
from durabench_vm.powerdisk import PowerDisk
from durabench_vm.qemu import QMPError
from durabench_vm.rootimage import RootSpec, Tree
from durabench_vm.rundir import NoRoom, RunFolder, start_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from durabench_vm.guest import Guest, Template

READY_S = 60.0
PREPARE_S = 300.0
POLL_S = 0.1
_OF_A_DRAW = {Mode.MASK, Mode.CONTENT, Mode.IN_FLIGHT}
"""Modes that name a state by number or in the middle of a write: nothing to choose by hand."""
TROUBLE = (MissingAsset, NoRoom, GuestLost, AgentError, QMPError, OSError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class Order:
    """One command in the machine. `files` (name → content) are written under the disk's root before it starts."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Commands:
    """What a machine holds and runs: as JSON, the same fields; contents of files in base64.

    `setup` runs once, to the end, on the fresh disk; `daemons` start after it and at every later `up` and `reset`.
    In argv, env and stdin `{root}` is the disk's mount point. `forward` are ports of the machine to be reached from
    here, and waited for; in `say`, lines for the person, `{PORT}` is where that port is reached, as HOST:PORT.
    """

    trees: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()
    setup: tuple[Order, ...] = ()
    daemons: tuple[Order, ...] = ()
    forward: tuple[int, ...] = ()
    say: tuple[str, ...] = ()
    filesystem: str = "ext4"
    size_mib: int = 0
    unit_bytes: int = 512
    user: str | None = None

    @classmethod
    def read(cls, text: str) -> Commands:
        """Read them from JSON. ValueError where it is not of this form."""
        try:
            raw: dict[str, Any] = json.loads(text)
            for name in ("setup", "daemons"):
                raw[name] = tuple(_order(entry) for entry in raw.get(name, ()))
            for name in ("trees", "binaries", "forward", "say"):
                raw[name] = tuple(raw.get(name, ()))
            return cls(**raw)
        except (TypeError, AttributeError, KeyError) as error:
            message = f"not a file of commands: {error}"
            raise ValueError(message) from None

    def write(self) -> str:
        """As `read` reads it."""

        def plain(value: object) -> str:
            assert isinstance(value, bytes)
            return base64.b64encode(value).decode()

        return json.dumps(asdict(self), default=plain)


def _order(raw: Mapping[str, Any]) -> Order:
    files = {name: base64.b64decode(content) for name, content in raw.get("files", {}).items()}
    return Order(tuple(raw["argv"]), raw.get("env", {}), raw.get("stdin", ""), files, raw.get("user"))


# -- the process in the background --------------------------------------------------------------------------------


class Machine:
    """The guest of one session, and the disk that outlives it."""

    def __init__(self, commands: Commands, folder: RunFolder, tell: Callable[[str], None]) -> None:
        self.commands, self.folder = commands, folder
        self.filesystem = Filesystem.parse(commands.filesystem)
        size = commands.size_mib << 20 or None
        spec = RootSpec(
            trees=tuple(Tree(Path(path)) for path in commands.trees),
            binaries=tuple(Path(path) for path in commands.binaries),
        )
        self.template: Template = prepare(
            spec, self.filesystem, folder, disk_bytes=size, unit_bytes=commands.unit_bytes, tell=tell
        )
        self.content = folder.path / "content.img"
        base = base_image(
            self.filesystem, cache_folder(), size_bytes=self.template.disk_bytes, unit_bytes=commands.unit_bytes
        )
        copy_sparse(base, self.content)
        self.fresh = True
        self.guest: Guest | None = None
        self.disk: PowerDisk | None = None
        self.live = folder.path / "live.img"

    def up(self, tell: Callable[[str], None]) -> None:
        """Start the machine on what its disk holds, and the daemons in it."""
        if self.guest is not None:
            tell("it is up already")
            return
        copy_sparse(self.content, self.live)
        self.disk = PowerDisk(self.live, self.folder.path / "session.log", unit_bytes=self.commands.unit_bytes)
        self.guest = self.template.restore(self.disk, self.folder)
        facts = self.guest.facts()
        tell(f"up in {self.guest.boot_s:.1f} s: kernel {facts['kernel']}, {facts['accelerator']}, QEMU {facts['qemu']}")
        self._bring_up(self.guest, tell)

    def _bring_up(self, guest: Guest, tell: Callable[[str], None]) -> None:
        try:
            guest.mount(self.filesystem, user=self.commands.user)
        except AgentError as error:
            tell(f"the disk will not mount: {error}")
            return
        tell(f"{self.filesystem} on {guest.root}")
        if self.fresh:
            for order in self.commands.setup:
                self._set_up(guest, order)
        self.fresh = False
        for order in self.commands.daemons:
            self._start(guest, order, tell)
        for port in self.commands.forward:
            _wait_listening(guest, port, tell)
        where = {str(port): "{}:{}".format(*guest.address(port)) for port in self.commands.forward}
        for line in self.commands.say or tuple(f"port {port} is at {{{port}}}" for port in self.commands.forward):
            for number, place in where.items():
                line = line.replace(f"{{{number}}}", place)  # noqa: PLW2901  one port after the other
            tell(line)

    def _set_up(self, guest: Guest, order: Order) -> None:
        guest.send(order.files, user=order.user)
        argv = [word.replace("{root}", guest.root) for word in order.argv]
        done = guest.run(argv, _filled(order.env, guest.root), order.stdin, order.user, cwd=guest.root)
        if done.status != 0:
            message = f"{shlex.join(argv)} failed: {(done.err or done.out).strip()[-300:]}"
            raise OSError(message)

    def _start(self, guest: Guest, order: Order, tell: Callable[[str], None]) -> None:
        argv = [word.replace("{root}", guest.root) for word in order.argv]
        guest.start(
            argv, _filled(order.env, guest.root), order.stdin or None, order.files, order.user, cwd=guest.root,
            on_line=_log_to(self.folder.path / "daemons.out"),
        )  # fmt: skip
        tell(f"started {shlex.join(argv)}")

    def reset(self, tell: Callable[[str], None]) -> None:
        """Press the reset button, and bring the daemons up again."""
        guest = self._running()
        begin = time.monotonic()
        guest.reset()
        tell(f"reset; booted again in {time.monotonic() - begin:.1f} s: memory is gone, completed writes are there")
        self._bring_up(guest, tell)

    def cut(self, tell: Callable[[str], None], *, mode: str, seed: int, lie: bool) -> None:
        """Cut the power. The disk then holds what a drive could have kept, by mode and seed."""
        guest, disk = self._running(), self.disk
        assert disk is not None
        position = guest.cut()
        recording = disk.recording()
        state = CrashState(position, Mode(mode), seed, disk.unit_bytes, 0 if lie else None)
        lost = len(recording.unflushed(position, state.lie_from))
        left = self.folder.path / "left.img"
        build(self.content, recording, state, left)
        left.replace(self.content)
        recording.close()
        disk.close()
        self.guest = self.disk = None
        tell(
            f"power cut after {position} writes and flushes; {lost} of them were unflushed, kept by mode {mode}"
            f" (seed {seed}){'; every flush had been a lie' if lie else ''}"
        )

    def _running(self) -> Guest:
        if self.guest is None:
            message = "the machine is off: vm/up starts it on what its disk holds"
            raise ValueError(message)
        return self.guest

    def shell(self, reader: Iterator[str], tell: Callable[[str], None]) -> None:
        """Pass lines to a shell in the machine, and its output back."""
        guest = self._running()
        process = guest.start(["sh"], cwd=guest.root, on_line=tell)
        process.write_line("exec 2>&1")
        with contextlib.suppress(AgentError, OSError):
            for line in reader:
                process.write_line(line.rstrip("\n"))
            process.close_stdin()
        with contextlib.suppress(TimeoutError):
            process.wait(5.0)

    def close(self) -> None:
        """Off, for good."""
        if self.guest is not None:
            self.guest.kill()
        if self.disk is not None:
            self.disk.close()


def _filled(env: Mapping[str, str], root: str) -> dict[str, str]:
    return {name: value.replace("{root}", root) for name, value in env.items()}


def _log_to(path: Path) -> Callable[[str], None]:
    def write(line: str) -> None:
        with path.open("a") as file:
            file.write(line + "\n")

    return write


def _wait_listening(guest: Guest, port: int, tell: Callable[[str], None]) -> None:
    end = time.monotonic() + READY_S
    while not guest.channel.request("listening", port=port):
        if time.monotonic() > end:
            tell(f"nobody listens at port {port} after {READY_S:.0f} s: look with vm/shell")
            return
        time.sleep(POLL_S)


def serve(commands: Commands, place: Path) -> None:
    """Be the process in the background: until `down`, or until the machine cannot be made."""
    with RunFolder() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = folder.path / "session"
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(4)
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(".part")
        part.write_text(json.dumps({"pid": os.getpid(), "start": start_time(os.getpid()), "socket": str(path)}))
        part.replace(place)
        try:
            _serve(commands, folder, listener)
        finally:
            place.unlink(missing_ok=True)


def _serve(commands: Commands, folder: RunFolder, listener: socket.socket) -> None:
    machine: Machine | None = None
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while not ending.is_set():
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as stream:

                def tell(line: str, stream: Any = stream) -> None:
                    stream.write(json.dumps({"say": line}) + "\n")
                    stream.flush()

                try:
                    request = json.loads(stream.readline())
                    verb = request.pop("do")
                    if verb == "up" and machine is None:
                        machine = Machine(commands, folder, tell)
                    if verb == "down":
                        ending.set()
                    elif machine is not None:
                        arguments = {"reader": iter(stream.readline, "")} if verb == "shell" else request
                        getattr(machine, verb)(tell=tell, **arguments)
                    end: dict[str, Any] = {"done": 0}
                except TROUBLE as error:
                    end = {"done": 1, "say": str(error)}
                    if machine is None:
                        ending.set()
                with contextlib.suppress(OSError, ValueError):
                    stream.write(json.dumps(end) + "\n")
                    stream.flush()
    finally:
        if machine is not None:
            machine.close()


# -- the commands ---------------------------------------------------------------------------------------------------


def _place(name: str) -> Path:
    return cache_folder() / "sessions" / f"{name}.json"


def _running(place: Path) -> Path | None:
    """The socket of the session, or None where it is not there any more."""
    try:
        known = json.loads(place.read_text())
    except (OSError, ValueError):
        return None
    if start_time(known["pid"]) != known["start"]:
        place.unlink(missing_ok=True)
        return None
    return Path(known["socket"])


def _talk(path: Path, request: Mapping[str, Any], deadline_s: float, lines: Iterator[str] | None = None) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline_s)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        if lines is not None:
            threading.Thread(target=_send_lines, args=(connection, lines), daemon=True).start()
            connection.settimeout(None)  # a person may think as long as they like
        with connection.makefile("r") as stream:
            for line in stream:
                message = json.loads(line)
                if "say" in message:
                    print(message["say"], flush=True, file=sys.stderr if message.get("done") else sys.stdout)
                if "done" in message:
                    return int(message["done"])
    print("the machine's process ended", file=sys.stderr)
    return 3


def _send_lines(connection: socket.socket, lines: Iterator[str]) -> None:
    with contextlib.suppress(OSError):
        for line in lines:
            connection.sendall(line.encode())
        connection.shutdown(socket.SHUT_WR)


def up(commands: Commands | None, name: str = "default") -> int:
    """Bring a machine up, or up again after a cut; gives an exit status. What it says goes to stdout.

    `commands` are for a new machine; None: whatever is there, else an empty one.
    """
    place = _place(name)
    path = _running(place)
    if path is not None:
        if commands is not None:
            print("a machine is there already: vm/down ends it; started again as it was made", file=sys.stderr)
        return _talk(path, {"do": "up"}, PREPARE_S)
    for lack in doctor():
        if lack.what in {"qemu-system-x86_64", "mkfs.ext4"}:
            print(f"no {lack.what} here: {lack.install_line}", file=sys.stderr)
            return 3
    log = cache_folder() / "sessions" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[1]))
    with log.open("wb") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", "durabench_vm.session", "serve", "--name", name],
            stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True,
        )  # fmt: skip
    assert started.stdin is not None
    with started.stdin as stdin:
        stdin.write((commands or Commands()).write().encode())
    end = time.monotonic() + READY_S
    while (path := _running(place)) is None:
        if started.poll() is not None or time.monotonic() > end:
            print(log.read_text()[-1000:].strip().rpartition("\n")[2], file=sys.stderr)
            return 3
        time.sleep(0.02)
    return _talk(path, {"do": "up"}, PREPARE_S)


def _tell_session(name: str, request: Mapping[str, Any], lines: Iterator[str] | None = None) -> int:
    path = _running(_place(name))
    if path is None:
        print("no machine is up: vm/up starts one", file=sys.stderr)
        return 3
    return _talk(path, request, PREPARE_S, lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vm", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, about: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about, prog=f"vm/{name}")
        made.add_argument("--name", default="default", help="which machine, where there are several")
        return made

    made = verb("up", "Bring a machine up with a power disk, or up again, after a cut, on what its disk holds.")
    made.add_argument("--commands", type=Path, metavar="FILE", help="a JSON file that says what it holds and runs")
    made.add_argument("--daemon", action="append", default=[], metavar="'ARGV…'",
                      help="a server to run in it; {root} is the disk's mount point; may be repeated")  # fmt: skip
    made.add_argument("--forward", action="append", default=[], type=int, metavar="PORT",
                      help="a port of it to be reached from here, and to wait for; may be repeated")  # fmt: skip
    made.add_argument("--tree", action="append", default=[], metavar="PATH", help="a folder to have in it, read-only")
    made.add_argument("--user", metavar="NAME", help="whom daemons run as, and who owns the disk (root or nobody)")
    made.add_argument("--filesystem", default="ext4", metavar="FS[:OPTIONS]", help="ext4, xfs or btrfs")
    made.add_argument("--size", type=int, default=0, metavar="MIB", help="of the disk under test")
    made.add_argument("--unit", type=int, default=512, choices=(512, 4096), help="what its drive writes whole")
    verb("reset", "Press the reset button: memory is lost, every completed write stays. Daemons are started again.")
    made = verb("cut", "Cut the power: memory is lost, and any part of the unflushed writes. vm/up starts it again.")
    made.add_argument("--mode", default="drop", choices=[m.value for m in Mode if m not in _OF_A_DRAW],
                      help="which unflushed writes the drive kept")  # fmt: skip
    made.add_argument("--seed", type=int, default=0, help="which of them, where the mode leaves a choice")
    made.add_argument("--lie", action="store_true", help="the drive never did a flush that it acknowledged")
    verb("down", "End the machine and remove all it kept.")
    verb("shell", "A shell in the machine: lines from stdin, or from the keyboard; its disk is the current folder.")
    verbs.add_parser("serve").add_argument("--name", default="default")
    return parser


def _commands(chosen: argparse.Namespace) -> Commands | None:
    if chosen.commands is not None:
        return Commands.read(chosen.commands.read_text())
    if not (chosen.daemon or chosen.forward or chosen.tree or chosen.size or chosen.filesystem != "ext4"):
        return None
    daemons, binaries = [], []
    for line in chosen.daemon:
        argv = shlex.split(line)
        program = find_program(argv[0])
        if program is not None:
            binaries.append(program)
            argv[0] = program
        daemons.append(Order(tuple(argv), user=chosen.user))
    return Commands(
        trees=tuple(chosen.tree), binaries=tuple(binaries), daemons=tuple(daemons), forward=tuple(chosen.forward),
        filesystem=chosen.filesystem, size_mib=chosen.size, unit_bytes=chosen.unit, user=chosen.user,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911  one for each command
    """One command; gives the exit status: 0 done, 1 refused, 2 usage, 3 not possible here."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.verb == "serve":
            serve(Commands.read(sys.stdin.read()), _place(chosen.name))
            return 0
        if chosen.verb == "up":
            return up(_commands(chosen), chosen.name)
        if chosen.verb == "cut":
            request = {"do": "cut", "mode": chosen.mode, "seed": chosen.seed, "lie": chosen.lie}
            return _tell_session(chosen.name, request)
        if chosen.verb == "shell":
            return _tell_session(chosen.name, {"do": "shell"}, _keyboard())
        return _tell_session(chosen.name, {"do": chosen.verb})
    except KeyboardInterrupt:
        return 130
    except TROUBLE as error:
        print(error, file=sys.stderr)
        return 3


def _keyboard() -> Iterator[str]:
    """Lines of stdin; with a prompt where a person types them."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with contextlib.suppress(EOFError):
        while True:
            yield input("guest> ") + "\n"


if __name__ == "__main__":
    sys.exit(main())
