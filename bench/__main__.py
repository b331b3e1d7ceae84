"""``python3 bench COMMAND``: makes ``.venv`` at the first start, installs ``requirements.lock`` into it, hands over.

Standard library only, and no syntax newer than Python 3.6: an interpreter that is too old must still get far enough to
look for a newer one, or to say that there is none. All talk is on stderr, since stdout belongs to the command.

What can be relied on:

* The stamp is written last. A set-up that was killed at any point is seen by its missing stamp, and mended.
* One set-up at a time: the lock is held by the installer too, so that a killed start cannot leave two of them at work.
* The stamp names what the environment was made from; after a change of the lock or the project, that is done again.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import Dict, Iterator, List, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
OLDEST = (3, 11)
NAMES = ("python3.13", "python3.12", "python3.11", "python3.14")
"""Where else to look for an interpreter; 3.14 comes last because not every server has a wheel for it."""
STAMP = "durabench-stamp"
UNFINISHED = "durabench-unfinished"
DEADLINE_S = 1800.0
"""How long one step may take, and how long a start waits for the set-up of another one."""
COULD_NOT_TELL = 3
"""Exit status of a set-up that failed: nothing was tested, and the command line was not wrong."""
INTERRUPTED = 130

COMPILE = """
import compileall, re, sys
compileall.compile_dir(sys.argv[1], quiet=2, workers=2, rx=re.compile("/tests?/"))
"""
"""Fails for no file: a library may bring one that is no Python of this version. Their own tests are left out."""

ASSESS = """
import importlib.util, sys
able = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print("old" if sys.version_info < {} else "bare" if not able else "good")
print("%d.%d" % sys.version_info[:2])
print(getattr(sys, "_base_executable", None) or sys.executable)
print("with pip" if importlib.util.find_spec("pip") else "without pip")
""".format(OLDEST)
"""Asks an interpreter whether it is new enough and can make environments, and for the one behind it."""

NETWORK = re.compile(
    "NewConnectionError|name resolution|Name or service not known|Network is unreachable|No route to host|"
    "ConnectTimeout|ProxyError|Connection refused|Read timed out|Max retries exceeded"
)


class SetupFailed(Exception):
    """The environment could not be made; the message is one line and ends with the mend."""


def main() -> int:
    """Set up where that is needed, then become the command. Returns an exit status only where that failed."""
    if os.name != "posix":
        say("error: needs Linux; mend: run it there, or in a virtual machine or WSL")
        return COULD_NOT_TELL
    try:
        python = ready_interpreter()
        become(python, sys.argv[1:])
    except SetupFailed as failed:
        say("error: {}".format(failed))
        return COULD_NOT_TELL
    except KeyboardInterrupt:
        say("interrupted; the next start mends the set-up")
        return INTERRUPTED
    return COULD_NOT_TELL  # not reached: become() does not come back


def become(python: str, arguments: List[str]) -> None:
    """Replace this process: ``test`` is pytest over the three rooms, all else is durabench's own."""
    if arguments[:1] == ["test"]:
        os.chdir(ROOT)
        # With arguments of one's own pytest is left alone: -x, --pdb or a single file behave as usual.
        argv = [python, "-m", "pytest", *(arguments[1:] or ["-n", "3", "--dist", "loadfile"])]
    else:
        # -P: a file in the caller's directory must not stand in for a library of the same name.
        argv = [python, "-P", "-m", "durabench", *arguments]
    sys.stderr.flush()
    os.execve(python, argv, clean_environment(()))


def clean_environment(names: Tuple[str, ...]) -> Dict[str, str]:
    """This process's environment without the traces of another Python environment, and without ``names``."""
    return {
        k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", *names)
    }


def ready_interpreter() -> str:
    """Path of the interpreter of a finished environment, which is made or mended where there is none."""
    candidates = places()
    for directory in candidates:
        if is_ready(directory):
            return interpreter_of(directory)
    for directory in candidates:
        if is_writable(directory):
            with locked(directory + ".lock") as lock:
                if not is_ready(directory):  # another start may have done it while this one waited
                    set_up(directory, lock)
            return interpreter_of(directory)
    message = "may not write to {}; mend: set DURABENCH_VENV to a folder of your own"
    raise SetupFailed(message.format(" nor to ".join(candidates)))


def places() -> List[str]:
    """Where the environment may be, most wanted first: in the checkout, or in the user's cache if that is read-only."""
    chosen = os.environ.get("DURABENCH_VENV")
    if chosen:
        return [os.path.abspath(chosen)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = "venv-" + hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    return [os.path.join(ROOT, ".venv"), os.path.join(cache, "durabench", name)]


def is_writable(directory: str) -> bool:
    """Whether an environment can be made or mended there. Makes the folders above it."""
    above = os.path.dirname(directory)
    with contextlib.suppress(OSError):
        os.makedirs(above, exist_ok=True)
    return os.access(above, os.W_OK | os.X_OK) and (not os.path.exists(directory) or os.access(directory, os.W_OK))


def interpreter_of(directory: str) -> str:
    """Where an environment has its interpreter."""
    return os.path.join(directory, "bin", "python")


def is_ready(directory: str) -> bool:
    """Whether a set-up was finished there, and from the very files that lie here now. Costs three small reads."""
    return read(os.path.join(directory, STAMP)) == stamp(directory)


def stamp(directory: str) -> str:
    """What an environment was made from, one line for its libraries and one for the project.

    The interpreter in it is the one that the environment was made with, not the one that asks: two people with two
    interpreters share an environment instead of making it in turn. Its resolved path holds its version.
    """
    python = os.path.realpath(interpreter_of(directory))
    behind = python if os.access(python, os.X_OK) else "no interpreter"
    libraries = fingerprint([checksum("requirements.lock"), behind, directory])
    project = fingerprint([checksum("pyproject.toml"), ROOT])
    return "libraries {}\nproject {}\n".format(libraries, project)


def fingerprint(parts: List[str]) -> str:
    """One digest of several texts."""
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()


def checksum(name: str) -> str:
    """Digest of a file of the checkout."""
    try:
        with open(os.path.join(ROOT, name), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise SetupFailed("{}; mend: start from a complete checkout".format(error)) from None


def read(path: str) -> str:
    """A small file, or nothing where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def write(path: str, text: str) -> None:
    """A small file, there as a whole or not at all."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


@contextlib.contextmanager
def locked(path: str) -> Iterator[int]:
    """Hold the lock of a set-up, yield its descriptor; wait for whoever holds it, with a deadline."""
    import fcntl

    deadline = time.monotonic() + DEADLINE_S
    told = False
    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - only the opening may fail in this way
    except OSError as error:
        raise SetupFailed(
            "{}; mend: remove that file, or set DURABENCH_VENV to a folder of your own".format(error)
        ) from None
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:
                raise SetupFailed(
                    "{}: {}; mend: set DURABENCH_VENV to a folder on a local disk".format(path, error)
                ) from None
            if time.monotonic() > deadline:
                raise SetupFailed("another start holds {}; mend: end it, then start again".format(path))
            if not told:
                say("waiting for the set-up of another start")
                told = True
            time.sleep(0.2)
        yield file.fileno()


def set_up(directory: str, lock: int) -> None:
    """Make or mend the environment, then write its stamp. The lock is held by the caller."""
    began = time.monotonic()
    # Servers that run as another user must be able to read their programs, whatever the caller's umask.
    before = os.umask(0o022)
    try:
        was = read(os.path.join(directory, STAMP)).splitlines()
        with contextlib.suppress(OSError):
            os.remove(os.path.join(directory, STAMP))
        if was[:1] != stamp(directory).splitlines()[:1]:
            make(directory, lock)
            # The lock is complete: nothing to resolve. Compiling is half of the work, and pip uses one core for it.
            options = ["--require-hashes", "--no-deps", "--no-compile", "-r", os.path.join(ROOT, "requirements.lock")]
            pip(directory, lock, "the libraries of requirements.lock", options)
            say("  compiling")
            check([interpreter_of(directory), "-c", COMPILE, os.path.join(directory, "lib")], "compiling", lock, None)
        pip(directory, lock, "the project", ["--no-deps", "--no-build-isolation", "-e", ROOT])
        os.sync()  # a stamp that outlives what it vouches for would be our own kind of bug
        with contextlib.suppress(OSError):
            os.remove(os.path.join(directory, UNFINISHED))
        write(os.path.join(directory, STAMP), stamp(directory))
    except OSError as error:
        raise SetupFailed("{}; mend: make room or set DURABENCH_VENV to another folder".format(error)) from None
    finally:
        os.umask(before)
    say("ready after {:.0f} s".format(time.monotonic() - began))


def make(directory: str, lock: int) -> None:
    """Leave an environment with pip in it. What an interrupted set-up left is removed, what a person made is mended."""
    unfinished = os.path.join(directory, UNFINISHED)
    state, _, _, pip_there = assess(interpreter_of(directory))
    if state == "good" and pip_there and not os.path.exists(unfinished):
        say("setting up {} again, since it is not what requirements.lock says".format(directory))
        write(unfinished, "")
        return
    base = base_interpreter()
    say("setting up {} with {} (once, a minute or two)".format(directory, base))
    clear(directory)
    write(unfinished, "")
    check([base, "-m", "venv", directory], "python3 -m venv", lock, None)


def clear(directory: str) -> None:
    """Empty the folder of an environment; the mark of an unfinished set-up goes last. Any other folder is refused."""
    os.makedirs(directory, exist_ok=True)
    inside = sorted(os.listdir(directory), key=lambda name: name == UNFINISHED)
    if inside and not {UNFINISHED, "pyvenv.cfg"} & set(inside):
        raise SetupFailed(
            "{} is not an environment of Python; mend: move it away, or set DURABENCH_VENV".format(directory)
        )
    for name in inside:
        path = os.path.join(directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


def base_interpreter() -> str:
    """An interpreter that is new enough and can make environments: the one behind this process, or one on PATH."""
    bare = ""
    for path in [sys.executable, *filter(None, map(shutil.which, NAMES))]:
        state, version, base, _ = assess(path)
        if state == "good":
            return base
        if state == "bare":
            bare = bare or version
    if bare:
        message = "Python {0} has no venv or no ensurepip; mend: sudo apt-get install -y python{0}-venv"
        raise SetupFailed(message.format(bare))
    message = "needs Python {}.{} or newer, this is {}.{}; mend: sudo apt-get install -y python3.11 python3.11-venv"
    raise SetupFailed(message.format(*OLDEST + sys.version_info[:2]))


def assess(python: str) -> Tuple[str, str, str, bool]:
    """What an interpreter says of itself: good, bare, old or absent; version; the one behind it; whether it has pip."""
    try:
        asked = subprocess.run(
            [python, "-c", ASSESS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment(("PYTHONPATH",)),
            timeout=60,
            check=True,
        )
        state, version, base, pip_there = asked.stdout.decode().splitlines()
    except (OSError, ValueError, subprocess.SubprocessError):
        return "absent", "", "", False
    return state, version, base, pip_there == "with pip"


def pip(directory: str, lock: int, what: str, arguments: List[str]) -> None:
    """Install into the environment. The user's own pip configuration decides where from."""
    options = ["--no-input", "--disable-pip-version-check", "--no-user", "--progress-bar", "off"]
    argv = [interpreter_of(directory), "-m", "pip", "install", *options, *arguments]
    check(argv, "pip, installing {},".format(what), lock, Progress())


class Progress:
    """Turns pip's lines into a few of ours."""

    def __init__(self) -> None:
        self.collected = 0

    def __call__(self, line: str) -> None:
        words = line.split()
        if words[:1] == ["Collecting"]:
            self.collected += 1
            if self.collected % 20 == 1:
                say("  fetching {} …".format(words[1].split("==")[0]))
        if words[:2] == ["Installing", "collected"] and len(words) > 4:
            say("  installing {} packages".format(len(words) - 3))


def check(argv: List[str], what: str, lock: int, progress: "Progress | None") -> None:
    """Run one step to its end. Raises SetupFailed after its last lines where it failed, with what would mend it."""
    drop = (
        "PYTHONPATH",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_DRY_RUN",
        "PIP_NO_DEPS",
        "PIP_NO_BINARY",
    )
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=clean_environment(drop),
        pass_fds=(lock,),
    )
    watchdog = threading.Timer(DEADLINE_S, child.kill)
    watchdog.daemon = True
    watchdog.start()
    lines = []  # type: List[str]
    try:
        for raw in child.stdout or ():
            lines.append(raw.decode("utf-8", "replace").rstrip())
            if progress:
                progress(lines[-1])
        status = child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        watchdog.cancel()
    if status != 0:
        last = [line for line in lines if line.strip()][-5:]
        for line in last:
            say("  | {}".format(line))
        raise SetupFailed("{} ended with status {}; mend: {}".format(what, status, mend(lines)))


def mend(lines: List[str]) -> str:
    """What to do about a failed step, told from what it said."""
    said = "\n".join(lines)
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return "make room, or set DURABENCH_VENV to a folder on a larger disk"
    if "ensurepip" in said:
        return "sudo apt-get install -y python3-venv"
    if NETWORK.search(said):
        return "no connection to the package index; connect, or point pip at a mirror (PIP_INDEX_URL, PIP_FIND_LINKS)"
    if "DO NOT MATCH THE HASHES" in said:
        return "the index or mirror serves other files than requirements.lock names; use one that serves the originals"
    if "No matching distribution" in said:
        return "no such wheel for this machine or Python, or the index does not answer; try CPython 3.13 on x86-64"
    return "see the lines above, then start again"


def say(text: str) -> None:
    """A line for the person who waits, on stderr."""
    sys.stderr.write("durabench: {}\n".format(text))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
