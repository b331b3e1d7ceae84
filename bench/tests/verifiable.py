"""A deployment that is whatever its URL says, loaded as ``verifiable:Toy`` with this folder on the import path.

``toy://host/?flush=on|off|unread&look=…&probe=…&mock=yes&warn=yes``: ``flush`` is what the promise depends on, ``look``
and ``probe`` say how looking and probing go.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl, urlsplit

from durabench_backends.contract import Check, Command, Domain, Fact, NotReady, Promise, Setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from durabench_backends.contract import Goal

CONF = "/etc/toy.conf:7"
LATE = Promise({Domain.CLIENT: 0.0, Domain.SERVER: 0.5, Domain.MACHINE: 0.5, Domain.DRIVE: 0.5}, None, None, "toy §2")
SAFE = Promise(dict.fromkeys(LATE.may_lose_s, 0.0), Domain.DRIVE, Domain.DRIVE, "toy §1")
NONE = Promise({Domain.CLIENT: 0.0}, None, None, "toy §3")
BY_FLUSH = {"on": SAFE, "late": LATE, "off": NONE}


def note(what: str) -> None:
    """Add a line to the file that ``TOY_LOG`` names, if it names one: who counts looks reads it."""
    if "TOY_LOG" in os.environ:
        with Path(os.environ["TOY_LOG"]).open("a") as log:
            log.write(f"{what}\n")


class Toy:
    settings: ClassVar[Sequence[Setting]] = (Setting("shipped", {}, SAFE),)
    pages: ClassVar[Mapping[str, str]] = {
        "toy.flush": "Whether a put is flushed before it is acknowledged.\n\nSource: toy §1.",
        "toy.cache": "Whether the cache is safe.",
        "toy.mock": "Whether there is a disk.",
        "toy.proved": "Whether a flush was seen.",
        "toy.conditional": "Whether a conditional write has one winner.",
    }
    probes: ClassVar[Sequence[str]] = ("toy.proved", "toy.conditional")

    def __init__(self, setting, root, port) -> None:
        self.said: dict[str, str] = {}
        self.login = ""

    @classmethod
    def from_url(cls, url: str) -> Toy:
        made = cls(cls.settings[0], None, None)
        made.login = urlsplit(url).netloc
        made.said = dict(parse_qsl(urlsplit(url).query))
        if made.said.get("flush", "on") not in (*BY_FLUSH, "unread"):
            raise ValueError("flush is on, late, off or unread")
        return made

    def commands(self) -> Sequence[Command]:
        return (Command("daemon", ("/bin/true",)),)

    def inspect(self) -> Iterable[Fact]:
        note("inspect")
        look = self.said.get("look", "")
        if look in LOOKS:
            raise LOOKS[look]
        if look == "noted":
            error = ConnectionError("database box does not exist")
            error.add_note("create it: createbox box")
            raise error
        if look == "hang":
            time.sleep(60)
        flush = self.said.get("flush", "on")
        yield Fact("toy.flush", "", "", "GRANT look") if flush == "unread" else Fact("toy.flush", flush, CONF)
        yield Fact("toy.warn", self.said.get("warn", "no"), CONF)
        yield Fact("toy.mock", self.said.get("mock", "no"), "")
        yield Fact("toy.login", self.login, "")

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        flush = next((fact.value for fact in facts if fact.id == "toy.flush"), "")
        return BY_FLUSH.get(flush, NONE)

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        by_id = {fact.id: fact for fact in facts}
        flush, met = by_id["toy.flush"], goal.is_met_by(Toy.promise(by_id.values()))
        loses, fix = "whatever was acknowledged last", "toyctl set flush on"
        if met:
            yield Check("toy.flush", "ok", flush.value, flush.origin)
        elif flush.unread:
            yield Check("toy.flush", "unknown", loses=loses, fix=flush.unread)
        else:
            yield Check("toy.flush", "fail", flush.value, flush.origin, loses, fix)
        if by_id["toy.warn"].value == "yes":
            yield Check("toy.cache", "warn", "write back", "the drive", "nothing, but look", "hdparm -W0", "lsblk")
        else:
            login = by_id.get("toy.login", by_id["toy.flush"]).value
            yield Check("toy.cache", "skip", fix="GRANT peek", evidence=f"not readable by {login}")
        if by_id["toy.mock"].value == "yes":
            yield Check("toy.mock", "fail", "yes", "Server header")

    def probe(self, goal: Goal) -> Iterable[Check]:
        note("probe")
        how = self.said.get("probe", "")
        yield Check("toy.proved", "fail" if how == "lost" else "ok", evidence="wrote 4 KiB in durabench-1, removed")
        if how == "hang":
            time.sleep(60)
        if how == "dies":
            raise ConnectionResetError("reset by peer, password=opensesame")
        yield Check("toy.conditional", "ok", evidence="wrote 2 objects, removed")

    def writer_pids(self) -> Sequence[int]:
        return ()


class Embedded(Toy):
    """Without a server; its promise says nothing about one."""

    settings = (Setting("shipped", {}, NONE),)

    def commands(self) -> Sequence[Command]:
        return ()


class Silent(Toy):
    """Breaks the contract: never says why its promise does not meet a goal."""

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        return [Check("toy.flush", "ok"), Check("toy.cache", "warn")]


@dataclass
class Plain:
    """A backend without checks."""

    said: str
    settings: ClassVar[Sequence[Setting]] = ()

    @classmethod
    def from_url(cls, url: str) -> Plain:
        return cls(url.rpartition("=")[2])

    def inspect(self) -> Iterable[Fact]:
        return [Fact("toy.flush", self.said, CONF)]

    promise = staticmethod(Toy.promise)


LOOKS: Mapping[str, Exception] = {
    "refused": NotReady("toy at host:1 is not ready: connection refused"),
    "password": PermissionError("password authentication failed for user me"),
    "quotes": PermissionError("cannot log in with opensesame at toy://me:opensesame@host/"),
    "tls": ConnectionError("SSL: wrong version number"),
    "absent": FileNotFoundError("/var/lib/toy does not exist"),
    "lines": RuntimeError("first line.\nsecond line\n"),
    "value": ValueError("what the server said is no number"),
    "exit": SystemExit(0),
}
