"""What only a server's own machine knows of it: its process, the mount below its folder, its written configuration.

Read from /proc as whoever asks. A port on loopback may be forwarded from a container or through a tunnel, so a process
counts as the server only where name, listening socket and age agree.
"""

from __future__ import annotations

import glob
import ipaddress
import os
import re
import shlex
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from durabench_backends.embedded import start_time
from durabench_backends.redis.promises import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

AGE_SLACK_S = 5.0
"""How far the server's own uptime, of whole seconds and of a clock that may be set, may be from its process's age."""
LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""
UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1 << 10, "m": 10**6, "mb": 1 << 20, "g": 10**9, "gb": 1 << 30}
"""As redis.conf explains them."""
INCLUDES_MAX = 10
"""Deepest include: a file may include itself."""


class Written(NamedTuple):
    """One parameter of a configuration file, and where it stands."""

    value: str
    where: str


def server_pid(at: Mapping[str, Any], info: Mapping[str, str]) -> int | None:
    """The server's process on this machine; None where it is elsewhere, or it cannot be told."""
    told = info.get("process_id", "")
    path = at.get("path")
    if not told.isdigit() or not (path or _is_loopback(str(at.get("host", "localhost")))):
        return None
    pid = int(told)
    sockets = _unix_sockets(str(path)) if path else _tcp_sockets(int(at.get("port", 6379)))
    name = _read(f"/proc/{pid}/comm")
    if not name.startswith(("redis", "valkey")) or not _has_one(pid, sockets) or not _is_of_age(pid, info):
        return None
    return pid


def _is_loopback(host: str) -> bool:
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(address)).is_loopback for address in found)


def _read(path: str) -> str:
    """What the file says; empty where it cannot be read."""
    try:
        return Path(path).read_text("utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _tcp_sockets(port: int) -> dict[str, str]:
    """Inode → user id of the sockets that listen on a port."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in _read(f"/proc/net/{name}").splitlines()[1:]]
    return {row[9]: row[7] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port}


def _unix_sockets(path: str) -> dict[str, str]:
    rows = [line.split() for line in _read("/proc/net/unix").splitlines()[1:]]
    return {row[6]: "" for row in rows if row[-1] == path}


def _has_one(pid: int, sockets: Mapping[str, str]) -> bool:
    """Whether a socket is the process's; where its files may not be listed, whether both are the same user's."""
    try:
        entries = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except PermissionError:
        return str(Path(f"/proc/{pid}").stat().st_uid) in sockets.values()
    except OSError:
        return False
    return any(f"socket:[{inode}]" in entries for inode in sockets)


def _is_of_age(pid: int, info: Mapping[str, str]) -> bool:
    started = start_time(pid)
    told = info.get("uptime_in_seconds", "")
    if started is None or not told.isdigit():
        return False
    age_s = float(_read("/proc/uptime").split()[0]) - int(started) / os.sysconf("SC_CLK_TCK")
    return abs(age_s - int(told)) <= AGE_SLACK_S


def written(pid: int, file: str) -> dict[str, Written]:
    """What the configuration file of a server here says of what decides a promise; the last line of each wins.

    PermissionError or FileNotFoundError where it, or a file that it includes, cannot be read.
    """
    return dict(_lines(Path(f"/proc/{pid}/root"), Path(f"/proc/{pid}/cwd"), file, 0))


def _lines(root: Path, folder: Path, file: str, depth: int) -> Iterator[tuple[str, Written]]:
    # Through /proc, as the server sees it: a container has files of its own under the same names.
    path = root / file.lstrip("/") if file.startswith("/") else folder / file
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        words = _words(line)
        if len(words) < 2:
            continue
        name = words[0].lower()
        if name == "include" and depth < INCLUDES_MAX:
            for included in _included(root, folder, words[1]):
                yield from _lines(root, folder, included, depth + 1)
        elif name in SHIPPED and name != "save":
            yield name, Written(_normal(name, words[1]), f"{file}:{number}")


def _included(root: Path, folder: Path, pattern: str) -> list[str]:
    """The files that an include names; one without wildcards that is not there is an error where it is read."""
    if not glob.has_magic(pattern):
        return [pattern]
    base = root if pattern.startswith("/") else folder
    names = sorted(str(path.relative_to(base)) for path in base.glob(pattern.lstrip("/")))
    return [f"/{each}" if pattern.startswith("/") else each for each in names]


def _words(line: str) -> list[str]:
    if line.lstrip().startswith("#"):
        return []
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _normal(name: str, value: str) -> str:
    """A value as CONFIG GET tells it."""
    value = value.lower()
    amount = re.fullmatch(r"(\d+)([a-z]*)", value)
    if name == "maxmemory" and amount and amount[2] in UNITS:
        return str(int(amount[1]) * UNITS[amount[2]])
    return value


def was_edited(pid: int, file: str, info: Mapping[str, str]) -> bool:
    """Whether the configuration file is younger than the server's start."""
    started = time.time() - int(info["uptime_in_seconds"])
    return (Path(f"/proc/{pid}/root") / file.lstrip("/")).stat().st_mtime > started + 1
