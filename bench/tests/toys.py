"""Backends with one oddity each, loaded as ``toys:Name`` with this folder on the import path."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from durabench_backends.contract import Command, Limit, NotReady, Refused
from durabench_backends.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from durabench_backends.contract import Fact, Store

SLEEPS = "import sys, time; print('still looking for my configuration', flush=True); time.sleep(600)"
ONCE = "test -e started && { echo 'the log is damaged, I will not start'; exit 1; }; touch started; exec sleep 600"
SLAIN = "test -e started && kill -9 $$; touch started; exec sleep 600"
LISTENS = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""


class Deaf(Files):
    """Files behind a server that never answers."""

    def commands(self) -> Sequence[Command]:
        return (Command("daemon", (sys.executable, "-c", SLEEPS)),)

    def create(self) -> None:
        raise NotReady("nobody answers")


class Stubborn(Files):
    """Files behind a server that does not start a second time."""

    def commands(self) -> Sequence[Command]:
        return (Command("daemon", ("/bin/sh", "-c", ONCE)),)

    def open(self, namespace: str) -> Store:
        marker = self._directory.parent / "puts"
        if marker.exists() and namespace.startswith("t") and (self._directory / namespace).exists():
            raise NotReady("connection refused")
        marker.touch()
        return super().open(namespace)


class Slain(Stubborn):
    """Files behind a server that is killed when it starts a second time, as a kernel does that is out of memory."""

    def commands(self) -> Sequence[Command]:
        return (Command("daemon", ("/bin/sh", "-c", SLAIN)),)


class Listening(Files):
    """Files behind a server that listens on its port and does nothing else."""

    def commands(self) -> Sequence[Command]:
        return (Command("daemon", (sys.executable, "-c", LISTENS, str(self._listening("main")))),)

    def __init__(self, setting, root, port) -> None:
        super().__init__(setting, root, port)
        self._listening = port

    def create(self) -> None:
        import socket

        try:
            socket.create_connection(("127.0.0.1", self._listening("main")), 1).close()
        except OSError as error:
            raise NotReady(str(error)) from None
        super().create()


class Undead(Listening):
    """A server that says it is the same after it was killed."""

    def identity(self) -> str:
        return "the one and only"


class Misled(Files):
    """In force is something else than was asked for."""

    def inspect(self) -> Iterable[Fact]:
        return [replace(f, value="in-place") if f.id == "files.write" else f for f in super().inspect()]


class Forgetful(Files):
    """Acknowledges and writes nothing: no use as a negative control."""

    def open(self, namespace: str) -> Store:
        found = super().open(namespace)
        found.put = lambda key, value: None  # type: ignore[method-assign]
        return found


class Refusing(Files):
    """Its client cannot be made."""

    def open(self, namespace: str) -> Store:
        message = f"password authentication failed for {namespace}"
        raise PermissionError(message)


class Failing(Files):
    """Its third put fails, and nobody knows how far it came."""

    def open(self, namespace: str) -> Store:
        found = super().open(namespace)
        put, asked = found.put, []

        def failing(key: str, value: bytes) -> None:
            asked.append(key)
            if len(asked) == 3:
                raise ConnectionResetError("connection reset by peer")
            put(key, value)

        found.put = failing  # type: ignore[method-assign]
        return found


class Suicidal(Files):
    """Its process ends in the second put."""

    def open(self, namespace: str) -> Store:
        import os

        found = super().open(namespace)
        put, asked = found.put, []

        def dying(key: str, value: bytes) -> None:
            asked.append(key)
            if len(asked) == 2:
                os._exit(9)
            put(key, value)

        found.put = dying  # type: ignore[method-assign]
        return found


class Narrow(Files):
    """Files that take no value above 8 KiB."""

    def open(self, namespace: str) -> Store:
        store = super().open(namespace)
        put = store.put

        def narrow(key: str, value: bytes) -> None:
            if len(value) > 8192:
                raise Refused("no more than 8 KiB, says the owner")
            put(key, value)

        store.put = narrow  # type: ignore[method-assign]
        return store


class Absent(Files):
    """Files that acknowledge a value and do not keep it, with nothing killed."""

    def open(self, namespace: str) -> Store:
        store = super().open(namespace)
        put = store.put

        def absent(key: str, value: bytes) -> None:
            if not key.startswith("value-0002"):
                put(key, value)

        store.put = absent  # type: ignore[method-assign]
        return store


class Bounded(Files):
    """Files with a documented limit of 8 KiB."""

    limit = Limit(8192, "the owner's manual")


class Steady(Files):
    """Files whose puts take 4 ms, whatever their size."""

    def open(self, namespace: str) -> Store:
        return _slowed(super().open(namespace), lambda value: 0.004)


class Growing(Files):
    """Files whose puts take 0.1 µs a byte."""

    def open(self, namespace: str) -> Store:
        return _slowed(super().open(namespace), lambda value: len(value) * 1e-7)


def _slowed(store: Store, by_s: Callable[[bytes], float]) -> Store:
    put = store.put

    def slow(key: str, value: bytes) -> None:
        time.sleep(by_s(value))
        put(key, value)

    store.put = slow  # type: ignore[method-assign]
    return store


class Closed(Listening):
    """Files that refuse every put for certain once nobody listens on the server's port."""

    def open(self, namespace: str) -> Store:
        import socket

        store = super().open(namespace)
        put, port = store.put, self._listening("main")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError as error:
            raise NotReady(str(error)) from None

        def closed(key: str, value: bytes) -> None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError as error:
                message = f"nothing was sent: {error}"
                raise Refused(message) from None
            put(key, value)

        store.put = closed  # type: ignore[method-assign]
        return store


class Quota(Files):
    """Files that take ten puts of a process and then no more."""

    takes = 10

    def open(self, namespace: str) -> Store:
        store = super().open(namespace)
        put, taken = store.put, []

        def full(key: str, value: bytes) -> None:
            if len(taken) >= self.takes and key != "ready":
                raise Refused("over quota")
            put(key, value)
            taken.append(key)

        store.put = full  # type: ignore[method-assign]
        return store


class Sated(Quota):
    """Files that take nothing."""

    takes = 0


class Stuck(Files):
    """Files whose fourth put never ends."""

    def open(self, namespace: str) -> Store:
        store = super().open(namespace)
        put, begun = store.put, []

        def stuck(key: str, value: bytes) -> None:
            begun.append(key)
            if len(begun) == 4:
                time.sleep(3600)
            put(key, value)

        store.put = stuck  # type: ignore[method-assign]
        return store


class Lingering(Listening):
    """A server that does not go when it is asked to."""

    def commands(self) -> Sequence[Command]:
        (command,) = super().commands()
        *argv, code, port = command.argv
        deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{code}"
        return (Command("daemon", (*argv, deaf, port)),)


class Mute(Files):
    """Once it was written to, it opens for nobody, and does not say so."""

    def open(self, namespace: str) -> Store:
        if namespace.startswith("t") and (self._directory / namespace).exists():
            time.sleep(3600)
        return super().open(namespace)


class Leaky(Files):
    """Forgets its first checkpoint, and hangs at the second one."""

    def open(self, namespace: str) -> Store:
        store = super().open(namespace)
        get = store.get

        def leaky(key: str) -> bytes | None:
            if key.endswith("000001"):
                time.sleep(3600)
            return None if key.endswith("000000") else get(key)

        store.get = leaky  # type: ignore[method-assign]
        return store
