"""The program that carries out orders inside the machine: starts processes, mounts, writes files, forwards ports.

One file and the standard library only, since it is copied into the guest alone. It speaks JSON lines over one
descriptor: a request {"id", "do", …} is answered by {"id", "result"} or {"id", "error", "errno"}; processes report
by {"process", "out" | "err" | "exit"}. It runs as process 1 of the guest over a virtio-serial port, and on the host,
in a mount and process namespace of its own, over a socket. When the channel ends it ends, and all it started with it.

What waits (run, mount, unmount) waits in a thread of its own; what starts a process does so in the main thread, since
the kernel's "die with your parent" means the parent *thread*.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pwd
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GUEST_PLACE = "/run/durabench/agent.py"
MOUNT_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "sync": 16, "dirsync": 128, "noatime": 1024, "rw": 0}
BLKFLSBUF = 0x1261
AFTER_KILL_S = 1.0
KERNEL_THREAD = 0x00200000  # PF_KTHREAD
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LOOP_CLR_FD = 0x4C82, 0x4C0A, 0x4C01
LO_FLAGS_AUTOCLEAR = 4
LOOP_TRIES = 100
MS_REMOUNT, MS_BIND, MS_NOSYMFOLLOW = 32, 4096, 256
ST_NOSYMFOLLOW = 0x2000
OPENAT2 = 437
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8
SHARED_MEMORY = "/dev/shm"  # noqa: S108
BTRFS_IOC_FORGET_DEV = 0x50009405
RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
OUTPUT_BYTES = 1 << 20  # of one `run`; the rest is dropped, and said
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
libc = ctypes.CDLL(None, use_errno=True)


class Channel:
    """The line to the controller. `send` is whole and ordered, whichever thread calls it."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._lock = threading.Lock()
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]

    def receive(self) -> dict[str, Any] | None:
        """The next request; None when the controller is gone."""
        while b"\n" not in self._rest:
            data = os.read(self._fd, 1 << 16)
            if not data:
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


class Agent:
    """Answers requests until the channel ends. Each public method is one request; its keywords are the request's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._loops: dict[str, tuple[int, str]] = {}
        self._table = Table()
        self._started = False  # anything, since all was killed
        self._spared: set[int] = set()

    def serve(self) -> None:
        self._channel.send({"hello": {"kernel": os.uname().release, "python": sys.version.split()[0]}})
        while (request := self._channel.receive()) is not None:
            self._answer(request)

    def _answer(self, request: dict[str, Any]) -> None:
        number, verb = request.pop("id"), request.pop("do")
        with self._reporting(number):
            begin = getattr(self, verb)
            result = begin(**request)
            if callable(result):  # it goes on in the background
                threading.Thread(target=self._finish, args=(number, result), daemon=True).start()
            else:
                self._channel.send({"id": number, "result": result})

    def _finish(self, number: int, rest: Any) -> None:
        with self._reporting(number):
            self._channel.send({"id": number, "result": rest()})

    @contextlib.contextmanager
    def _reporting(self, number: int) -> Any:
        try:
            yield
        except OSError as error:
            self._channel.send({"id": number, "error": str(error), "errno": error.errno or errno.EIO})
        except Exception as error:
            self._channel.send({"id": number, "error": f"{type(error).__name__}: {error}", "errno": 0})

    # -- small requests ---------------------------------------------------------------------------------------------

    def ping(self) -> str:
        return "pong"

    def wake(self, now: float, entropy: str) -> None:
        """After a restore: set the clock, and make random numbers differ from those of every other restore."""
        if in_guest():  # never the clock of a host
            with contextlib.suppress(OSError):
                time.clock_settime(time.CLOCK_REALTIME, now)
        seed = base64.b64decode(entropy)
        with contextlib.suppress(OSError), Path("/dev/urandom").open("wb", buffering=0) as urandom:
            fcntl.ioctl(urandom, RNDADDENTROPY, struct.pack("ii", len(seed) * 8, len(seed)) + seed)
            fcntl.ioctl(urandom, RNDRESEEDCRNG)

    def send(self, files: dict[str, str], user: str | None = None, root: str | None = None) -> None:
        """Write files (path → base64), making their folders; with `root`, below that folder only. See `put`."""
        account = pwd.getpwnam(user) if user else None
        owner = (account.pw_uid, account.pw_gid) if account else None
        for path, content in files.items():
            name = os.path.relpath(path, root or "/")
            put(root or "/", name, base64.b64decode(content), owner, stay=root is not None)

    def fetch(self, path: str) -> str:
        """Read a file, in base64."""
        return base64.b64encode(Path(path).read_bytes()).decode()

    def listening(self, port: int) -> bool:
        """Whether somebody accepts connections at 127.0.0.1:port."""
        try:
            socket.create_connection(("127.0.0.1", port), 2).close()
        except OSError:
            return False
        return True

    def load(self, folder: str, order: list[str]) -> None:
        """Load kernel modules from files NAME.ko in `folder`."""
        for name in order:
            with Path(folder, name + ".ko").open("rb") as file:
                if libc.syscall(313, file.fileno(), b"", 0) and ctypes.get_errno() != errno.EEXIST:  # finit_module
                    _fail(name)

    # -- processes --------------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        process: int,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        user: str | None,
        stdin: str | None,
    ) -> int:
        """Start a process that reports its lines; gives its process id here. `stdin` None: left open for `write`."""
        started = self._popen(argv, env, cwd, user)
        self._processes[process] = started
        readers = [
            threading.Thread(target=self._report, args=(process, name, stream), daemon=True)
            for name, stream in (("out", started.stdout), ("err", started.stderr))
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=self._reap, args=(process, started, readers), daemon=True).start()
        if stdin is not None:
            threading.Thread(
                target=_feed, args=(started, stdin.encode("utf-8", "surrogateescape")), daemon=True
            ).start()
        return started.pid

    def write(self, process: int, data: str, close: bool) -> None:
        """Write to a process's standard input, and close it."""
        stdin = self._processes[process].stdin
        assert stdin is not None
        if data:
            stdin.write(data.encode("utf-8", "surrogateescape"))
            stdin.flush()
        if close:
            stdin.close()

    def signal(self, process: int, number: int, tree: bool) -> int:
        """Signal a process, or stop, list again and signal all its descendants; gives how many were signalled."""
        started = self._processes[process]
        if not tree:
            started.send_signal(number)
            return 1
        return self._table.signal_tree(started.pid, number)

    def kill_all(self, but: list[int]) -> int:
        """SIGKILL all of this machine's processes, also those that became daemons, except the trees of `but`."""
        if not self._started and self._spared <= set(but):  # nothing but what was spared before, and is again
            return 0
        self._started, self._spared = False, set(but)
        spared = {1, os.getpid()}
        for number in but:
            if number in self._processes:
                spared |= set(self._table.descendants(self._processes[number].pid))
        return _stop_and_signal(lambda: set(self._table.everything()) - spared, signal.SIGKILL)

    def run(
        self,
        *,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        user: str | None,
        stdin: str,
        deadline_s: float,
    ) -> Any:
        """Run to the end; gives status, out, err; status None where the deadline killed it."""
        started = self._popen(argv, env, cwd, user)

        def rest() -> dict[str, Any]:
            status: int | None
            try:
                out, err = started.communicate(stdin.encode("utf-8", "surrogateescape"), timeout=deadline_s)
                status = started.returncode
            except subprocess.TimeoutExpired:
                self._table.signal_tree(started.pid, signal.SIGKILL)
                out, err = _what_was_said(started)
                status = None
            return {"status": status, "out": _text(out), "err": _text(err)}

        return rest

    def _popen(self, argv: list[str], env: dict[str, str], cwd: str, user: str | None) -> subprocess.Popen[bytes]:
        who: dict[str, Any] = {}
        environment = dict(BASE_ENVIRONMENT)
        if user is not None:
            account = pwd.getpwnam(user)
            environment["HOME"] = account.pw_dir
            if os.geteuid() != account.pw_uid:
                who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        environment.update(env)
        pipe = subprocess.PIPE
        path = environment["PATH"]
        self._started = True
        program = shutil.which(argv[0], path=path) or argv[0]
        return subprocess.Popen(
            [program, *argv[1:]], stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=environment,
            start_new_session=True, **who,
        )  # fmt: skip

    def _report(self, process: int, name: str, stream: Any) -> None:
        for line in stream:
            self._channel.send({"process": process, name: line.decode("utf-8", "surrogateescape").rstrip("\n")})

    def _reap(self, process: int, started: subprocess.Popen[bytes], readers: list[threading.Thread]) -> None:
        status = started.wait()
        for reader in readers:
            reader.join(1.0)  # a grandchild may hold the pipes open: its lines may come later
        self._channel.send({"process": process, "exit": status})

    # -- file systems -----------------------------------------------------------------------------------------------

    def mount(self, source: str, target: str, kind: str, options: list[str], user: str | None) -> Any:
        """Mount a block device, or a regular file through a loop device, and give its root to `user`."""

        def rest() -> None:
            device = self._attach(source, target) if Path(source).is_file() else source
            try:
                if kind == "btrfs":
                    _forget_btrfs()
                # On a host, what an image holds must reach nothing of it: no device, no program of root's.
                flags = 0 if in_guest() else MOUNT_FLAGS["nodev"] | MOUNT_FLAGS["nosuid"]
                for option in options:
                    flags |= MOUNT_FLAGS.get(option, 0)
                data = ",".join(option for option in options if option not in MOUNT_FLAGS)
                Path(target).mkdir(parents=True, exist_ok=True)
                if libc.mount(device.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
                    _fail(f"mount {kind}")
                if not in_guest() and _leads_out(target):
                    _follow_no_links(target, flags)
            except BaseException:
                self._detach(target)
                raise
            if user is not None:
                account = pwd.getpwnam(user)
                os.chown(target, account.pw_uid, account.pw_gid, follow_symlinks=False)

        return rest

    def unmount(self, target: str, device: str | None, deadline_s: float) -> Any:
        """Unmount, drop the device's buffers, let the loop device go. Busy until the deadline: an error."""

        def rest() -> None:
            end = time.monotonic() + deadline_s
            while libc.umount2(target.encode(), 0):
                code = ctypes.get_errno()
                if code == errno.EINVAL:
                    break  # not mounted
                if code != errno.EBUSY or time.monotonic() > end:
                    raise OSError(code, f"umount {target}: {os.strerror(code)}")
                select.select([], [], [], 0.002)  # whoever was killed is still letting go of its files
            if device is not None:
                descriptor = os.open(device, os.O_RDONLY)
                fcntl.ioctl(descriptor, BLKFLSBUF)
                os.close(descriptor)
            self._detach(target)

        return rest

    def _attach(self, image: str, target: str) -> str:
        with open(image, "r+b", buffering=0) as backing:  # noqa: PTH123  unbuffered
            for _ in range(LOOP_TRIES):
                with open("/dev/loop-control", "r+b", buffering=0) as control:  # noqa: PTH123
                    number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
                device = f"/dev/loop{number}"
                if not Path(device).exists():
                    with contextlib.suppress(FileExistsError):
                        os.mknod(device, 0o60660, os.makedev(7, number))
                descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
                # struct loop_config: fd, block_size, loop_info64 (lo_flags at 52 of 232), reserved
                config = bytearray(304)
                struct.pack_into("=II", config, 0, backing.fileno(), 512)
                struct.pack_into("=I", config, 8 + 52, LO_FLAGS_AUTOCLEAR)
                try:
                    fcntl.ioctl(descriptor, LOOP_CONFIGURE, bytes(config))
                except OSError as error:
                    os.close(descriptor)
                    if error.errno == errno.EBUSY:  # somebody else was faster
                        continue
                    raise
                self._loops[target] = (descriptor, device)
                return device
        raise OSError(errno.EBUSY, "no loop device free")

    def _detach(self, target: str) -> None:
        held = self._loops.pop(target, None)
        if held is not None:
            with contextlib.suppress(OSError):
                fcntl.ioctl(held[0], LOOP_CLR_FD)
            os.close(held[0])

    # -- ports ------------------------------------------------------------------------------------------------------

    def forward(self, address: str, port: int) -> int:
        """Pass connections to `address`, at the port given back, on to 127.0.0.1:port.

        A server sees them come from its own machine: many trust nobody else.
        """
        listener = socket.socket()
        listener.bind((address, 0))
        listener.listen(16)
        threading.Thread(target=_forward, args=(listener, port), daemon=True).start()
        return int(listener.getsockname()[1])


def _fail(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


def _text(data: bytes) -> str:
    kept = data[:OUTPUT_BYTES].decode("utf-8", "surrogateescape")
    return kept if len(data) <= OUTPUT_BYTES else f"{kept}\n[{len(data) - OUTPUT_BYTES} more bytes dropped]"


def _what_was_said(started: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """The output of a killed process, without waiting for a daemon it left behind with the same pipes."""
    try:
        return started.communicate(timeout=AFTER_KILL_S)
    except subprocess.TimeoutExpired as held:
        return held.output or b"", held.stderr or b""


def _feed(started: subprocess.Popen[bytes], data: bytes) -> None:
    assert started.stdin is not None
    with contextlib.suppress(OSError):
        started.stdin.write(data)
        started.stdin.close()


def in_guest() -> bool:
    """Whether this machine is a guest: all of it may be lost."""
    return __file__ == GUEST_PLACE


def put(root: str, name: str, content: bytes, owner: tuple[int, int] | None, *, stay: bool = True) -> None:
    """Write a file at `name` below the folder `root`, in the place of whatever has that name; it and the folders made
    on the way are `owner`'s.

    Whoever writes below `root` too may have put anything there. So no link is followed, nothing that exists is opened
    for writing (it may be another file by a second name, a pipe, a device), and, with `stay`, no other mount entered.
    """
    *folders, last = name.split("/")
    if not last or {".", "..", ""} & {*folders, last}:
        raise PermissionError(errno.EPERM, "not the name of a file below " + root, name)
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=at)
                if owner:
                    os.chown(folder, *owner, dir_fd=at, follow_symlinks=False)
            above, at = at, _enter(at, folder, stay=stay)
            os.close(above)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=at)
        descriptor = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=at)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if owner:
                os.fchown(descriptor, *owner)
    finally:
        os.close(at)


def _enter(above: int, name: str, *, stay: bool) -> int:
    """Open a folder in an open one: never through a link and, with `stay`, never another mount (openat2(2))."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not stay:
        return os.open(name, flags, dir_fd=above)
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    how = struct.pack("=QQQ", flags, 0, resolve)
    found: int = libc.syscall(OPENAT2, above, os.fsencode(name), how, len(how))
    if found >= 0:
        return found
    code = ctypes.get_errno()
    if code not in {errno.ENOSYS, errno.EPERM}:  # EPERM: a container that does not know the call
        raise OSError(code, os.strerror(code), name)
    found = os.open(name, flags, dir_fd=above)
    if os.fstat(found).st_dev != os.fstat(above).st_dev:
        os.close(found)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return found


def _leads_out(root: str) -> bool:
    """Whether a link below `root` leads out of it: on a host that would be the host's."""
    inside = os.path.realpath(root)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118
            if os.path.islink(path) and os.path.commonpath([os.path.realpath(path), inside]) != inside:  # noqa: PTH114
                return True
    return False


def _follow_no_links(target: str, flags: int) -> None:
    """Let the kernel follow no link on this mount, whoever asks; OSError where it cannot (before Linux 5.10)."""
    flags |= MS_REMOUNT | MS_BIND | MS_NOSYMFOLLOW
    if libc.mount(None, target.encode(), None, ctypes.c_ulong(flags), None):
        _fail("mount nosymfollow")
    if not os.statvfs(target).f_flag & ST_NOSYMFOLLOW:
        libc.umount2(target.encode(), 0)
        raise OSError(errno.EPERM, "the image holds a link that leads out of it; this host needs Linux 5.10 for such")


def _shared_memory_of_its_own(keep: str) -> None:
    """An empty folder of shared memory for what runs here, which goes with it; `keep`, a folder in the host's, stays
    where it is.
    """
    if not os.path.isdir(SHARED_MEMORY):  # noqa: PTH112
        return
    kept = os.open(keep, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    below = os.path.commonpath([os.path.realpath(keep), SHARED_MEMORY]) == SHARED_MEMORY
    flags = ctypes.c_ulong(MOUNT_FLAGS["nosuid"] | MOUNT_FLAGS["nodev"])
    if libc.mount(b"tmpfs", SHARED_MEMORY.encode(), b"tmpfs", flags, b"mode=1777"):
        _fail("mount tmpfs")
    if below:
        os.makedirs(os.path.realpath(keep))  # noqa: PTH103
        source = f"/proc/self/fd/{kept}".encode()
        if libc.mount(source, os.path.realpath(keep).encode(), None, ctypes.c_ulong(MS_BIND), None):
            _fail("mount --bind")
    os.close(kept)


def _forget_btrfs() -> None:
    # The kernel remembers every btrfs it has seen by its id, and refuses an image with an older generation than that:
    # a crash state of an earlier position would "not mount" for no fault of its own.
    with contextlib.suppress(OSError), open("/dev/btrfs-control", "r+b", buffering=0) as control:  # noqa: PTH123
        fcntl.ioctl(control, BTRFS_IOC_FORGET_DEV, bytearray(4096))


class Table:
    """The machine's processes. Remembers which ids are the kernel's own: reading them all takes an emulator long."""

    def __init__(self) -> None:
        self._kernel: set[str] = set()

    def everything(self) -> dict[int, int]:
        """Process ids with their parents', without zombies and the kernel's own."""
        found: dict[int, int] = {}
        names = {name for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  no objects for names only
        self._kernel &= names
        for name in names - self._kernel:
            with contextlib.suppress(OSError, IndexError):
                fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[6]) & KERNEL_THREAD:
                    self._kernel.add(name)
                elif fields[0] not in {"Z", "X"}:
                    found[int(name)] = int(fields[1])
        return found

    def descendants(self, root: int) -> list[int]:
        """`root` and all that came of it."""
        children: dict[int, list[int]] = {}
        for pid, parent in self.everything().items():
            children.setdefault(parent, []).append(pid)
        found, todo = [], [root]
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo.extend(children.get(pid, ()))
        return found

    def signal_tree(self, root: int, number: int) -> int:
        """Stop a tree, list again, signal it; gives how many."""
        return _stop_and_signal(lambda: set(self.descendants(root)), number)


def _stop_and_signal(wanted: Callable[[], set[int]], number: int) -> int:
    """Stop all, list again until nobody new has appeared, then signal all."""
    stopped: set[int] = set()
    while new := wanted() - stopped:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new
    count = 0
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            count += 1
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)
    return count


def _forward(listener: socket.socket, port: int) -> None:
    while True:
        outer, _ = listener.accept()
        try:
            inner = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            outer.close()
            continue
        inner.settimeout(None)
        for source, target in ((outer, inner), (inner, outer)):
            threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _be_init() -> None:
    """As process 1: stay behind to reap orphans, and let a child be the agent."""
    child = os.fork()
    if child == 0:
        return
    while True:
        with contextlib.suppress(ChildProcessError, InterruptedError):
            pid, _ = os.wait()
            if pid == child:
                os._exit(0)


def main() -> None:
    """Serve over the descriptor given as the argument, or the guest's virtio-serial port named there. On a host a
    second one names the run folder, which stays in reach.
    """
    where = sys.argv[1]
    for folder in sys.argv[2:]:
        _shared_memory_of_its_own(folder)
    if os.getpid() == 1:
        _be_init()
    descriptor = int(where) if where.isdigit() else os.open(where, os.O_RDWR | os.O_CLOEXEC)
    os.set_inheritable(descriptor, False)  # noqa: FBT003
    Agent(Channel(descriptor)).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
