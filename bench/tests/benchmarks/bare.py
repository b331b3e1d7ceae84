"""Bare loops, in a process of their own: what a client does without a suite around it. The benchmarks divide by them.

Run as a program, with a JSON object in argv[1]; it uses clients as their own documentation does and nothing of
durabench:

- ``{"loop": "puts", …}``: for every line ``[namespace, puts]`` on stdin a line with the latencies in ns.
- ``{"loop": "kill-client", …}``: writers are killed after so many acknowledged puts, a reader looks for the last one.
- ``{"loop": "kill-server", …}``: a server is killed with its tree, started again, and asked for the last put.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE_BYTES = 2048
PUTS = (1, 39)
"""Acknowledged puts before the kill; the suite's victim is put 2 to 40."""


@dataclass(frozen=True)
class Opened:
    put: Callable[[int, bytes], object]
    newest: Callable[[], int]
    """The number of the newest put; 0 for none."""
    close: Callable[[], object]


def open_files(place, namespace, *, write):
    directory = os.path.join(place, f"bare-{namespace}")
    os.makedirs(directory, exist_ok=True)
    temporary = os.path.join(directory, ".new")

    def put(number, value):
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, value)
        if write in ("fsync-file", "fsync-dir"):
            os.fsync(file)
        os.close(file)
        os.rename(temporary, os.path.join(directory, f"step-{number:06d}"))
        if write == "fsync-dir":
            folder = os.open(directory, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def put_in_place(number, value):
        file = os.open(os.path.join(directory, f"step-{number:06d}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, value)
        os.close(file)

    def newest():
        steps = sorted((name for name in os.listdir(directory) if name.startswith("step-")), reverse=True)
        found = (_number(Path(directory, name).read_bytes()) for name in steps)
        return next((number for number in found if number >= 0), 0)  # a put in place may have been torn

    return Opened(put_in_place if write == "in-place" else put, newest, lambda: None)


def open_sqlite(place, namespace, *, journal_mode, synchronous):
    import sqlite3

    database = sqlite3.connect(os.path.join(place, "bare.db"), isolation_level=None)
    database.execute(f"pragma journal_mode={journal_mode}")
    database.execute(f"pragma synchronous={synchronous}")
    database.execute(f"create table if not exists {namespace}(key text primary key, value blob)")
    statement = f"insert into {namespace} values(?, ?)"

    def newest():
        row = database.execute(f"select value from {namespace} order by key desc limit 1").fetchone()
        return _number(row[0]) if row else 0

    return Opened(
        lambda number, value: database.execute(statement, (f"step-{number:06d}", value)), newest, database.close
    )


def open_postgres(place, namespace):
    import psycopg

    connection = psycopg.connect(f"host=127.0.0.1 port={place} user=postgres dbname=postgres", autocommit=True)
    connection.execute(f"create table if not exists {namespace}(key text primary key, value bytea)")
    statement = f"insert into {namespace} values(%s, %b)"

    def newest():
        row = connection.execute(f"select value from {namespace} order by key desc limit 1", binary=True).fetchone()
        return _number(row[0]) if row else 0

    return Opened(
        lambda number, value: connection.execute(statement, (f"step-{number:06d}", value)), newest, connection.close
    )


def open_redis(place, namespace):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis(port=place, retry=Retry(NoBackoff(), 0))
    client.ping()

    def newest():
        keys = list(client.scan_iter(match=f"{namespace}:*", count=10000))
        return _number(client.get(max(keys))) if keys else 0

    return Opened(lambda number, value: client.set(f"{namespace}:step-{number:06d}", value), newest, client.close)


CLIENTS = {"files": open_files, "sqlite": open_sqlite, "postgres": open_postgres, "redis": open_redis}
IMPORTS = {"files": (), "sqlite": ("sqlite3",), "postgres": ("psycopg",), "redis": ("redis",)}


def payload(number):
    return struct.pack("<Q", number) + os.urandom(SIZE_BYTES - 8)


def _number(value):
    return struct.unpack("<Q", value[:8])[0] if len(value) == SIZE_BYTES else -1


# --- puts


def puts(asked):
    for line in sys.stdin:
        namespace, count = json.loads(line)
        store = CLIENTS[asked["client"]](asked["place"], namespace, **asked["options"])
        taken = []
        for number in range(1, count + 1):
            value = payload(number)
            start = time.perf_counter_ns()
            store.put(number, value)
            taken.append(time.perf_counter_ns() - start)
        store.close()
        print(json.dumps(taken), flush=True)


# --- kill-client


def child(asked, role, namespace):
    store = CLIENTS[asked["client"]](asked["place"], namespace, **asked["options"])
    if role == "write":
        number = 0
        while True:
            number += 1
            store.put(number, payload(number))
            os.write(1, struct.pack("<Q", number))
    os.write(1, struct.pack("<q", store.newest()))
    os._exit(0)


def forks(asked):
    """A single-threaded parent of its own, warmed and never connected; its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in IMPORTS[asked["client"]]:
        __import__(name)
    gc.collect()
    gc.freeze()
    while True:
        message, fds, _, _ = socket.recv_fds(theirs, 200, 1)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(fds[0], 1)
                os.close(fds[0])
                theirs.close()
                child(asked, *message.decode().split())
            finally:
                os._exit(1)
        os.close(fds[0])
        theirs.send(pid.to_bytes(4, "little"))


def start_child(asked, control, role, namespace):
    inlet, outlet = os.pipe()
    if control is not None:
        socket.send_fds(control, [f"{role} {namespace}".encode()], [outlet])
        pid = int.from_bytes(control.recv(4), "little")
    else:
        argv = [sys.executable, "-I", __file__, json.dumps({**asked, "loop": "child", "role": [role, namespace]})]
        pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, outlet, 1)])
    os.close(outlet)
    return pid, inlet


def kill_clients(asked, worker):
    """Trials until the time is over: (how many, lost, seconds)."""
    control = forks(asked) if asked["how"] == "forked" else None
    rng = random.Random(worker)
    trials = lost = 0
    began = time.monotonic()
    while time.monotonic() - began < asked["seconds"]:
        namespace = f"{asked['prefix']}_{worker}_{trials}"
        pid, inlet = start_child(asked, control, "write", namespace)
        wanted, acknowledged = rng.randint(*PUTS), 0
        while acknowledged < wanted:
            some = os.read(inlet, 4096)
            if not some:
                raise SystemExit("the writer died")
            acknowledged += len(some) // 8
        until = time.perf_counter() + rng.random() * 1e-3
        while time.perf_counter() < until:
            pass
        os.kill(pid, signal.SIGKILL)
        while some := os.read(inlet, 65536):
            acknowledged += len(some) // 8
        os.close(inlet)
        if control is None:
            os.waitpid(pid, 0)
        pid, inlet = start_child(asked, control, "read", namespace)
        newest = struct.unpack("<q", os.read(inlet, 8))[0]
        os.read(inlet, 1)
        os.close(inlet)
        if control is None:
            os.waitpid(pid, 0)
        lost += newest < acknowledged
        trials += 1
    return trials, lost, time.monotonic() - began


# --- kill-server


def tree(pid):
    found = [pid]
    with suppress(FileNotFoundError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += tree(int(word))
    return found


def alive(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def kill_servers(asked, worker):
    """Trials until the time is over, each worker with a server of its own: (how many, lost, seconds)."""
    server = asked["servers"][worker]

    def start():
        with open(server["log"], "ab") as log:
            return subprocess.Popen(
                server["argv"],
                cwd=server["cwd"],
                env=server["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def connect(namespace):
        end = time.monotonic() + 30
        while True:
            try:
                return CLIENTS[asked["client"]](server["place"], namespace, **asked["options"])
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.002)

    rng = random.Random(worker)
    trials = lost = 0
    process = start()
    try:
        store = connect("warm")
        began = time.monotonic()
        while time.monotonic() - began < asked["seconds"]:
            store.close()
            namespace = f"{asked['prefix']}_{worker}_{trials}"
            store = connect(namespace)
            number = 0
            for number in range(1, rng.randint(*PUTS) + 1):
                store.put(number, payload(number))
            members = tree(process.pid)
            for pid in members:
                os.kill(pid, signal.SIGSTOP)
            members = [*members, *(pid for pid in tree(process.pid) if pid not in members)]
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            while any(alive(pid) for pid in members[1:]):
                time.sleep(0.0005)
            process = start()
            store = connect(namespace)
            lost += store.newest() < number
            trials += 1
        return trials, lost, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGINT)  # in order: a killed server leaves shared memory
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def at_once(asked, loop):
    """The loop in so many processes; their sum: trials, lost, seconds, and the rate a minute."""
    workers = []
    for worker in range(asked["at_once"]):
        inlet, outlet = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(outlet, json.dumps(loop(asked, worker)).encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(outlet)
        workers.append((pid, inlet))
    found = []
    for pid, inlet in workers:
        found.append(json.loads(os.read(inlet, 300)))
        os.waitpid(pid, 0)
    rate = 60 * sum(trials / seconds for trials, _, seconds in found)
    print(json.dumps({"trials": sum(f[0] for f in found), "lost": sum(f[1] for f in found), "per_minute": rate}))


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    if order["loop"] == "child":
        child(order, *order["role"])
    elif order["loop"] == "puts":
        puts(order)
    else:
        at_once(order, kill_clients if order["loop"] == "kill-client" else kill_servers)
