"""Moto: a mock of S3 whose objects live in the memory of its process; a control, never rated beyond the client."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from durabench_backends import locate
from durabench_backends.contract import Command, Fact, Promise, Setting
from durabench_backends.s3 import promises
from durabench_backends.s3.client import BUCKET, OFF, ON, SUSPENDED, Bucket, ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from durabench_backends.s3.client import S3Store


class Moto:
    """A moto server of ours; it writes nothing under ``root``."""

    mock: ClassVar[bool] = True
    imports: ClassVar[Sequence[str]] = ("durabench_backends.s3.model",)
    settings: ClassVar[Sequence[Setting]] = (
        Setting("unversioned", {"versioning": OFF}, promises.IN_MEMORY_MOTO),
        Setting("versioned", {"versioning": ON}, promises.IN_MEMORY_MOTO),
        Setting("suspended", {"versioning": SUSPENDED}, promises.IN_MEMORY_MOTO),
    )

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        """Remember where it lives; touches nothing."""
        del root
        self._versioning = setting.options["versioning"]
        self._port = port
        self._own: Bucket | None = None

    @property
    def _bucket(self) -> Bucket:
        if self._own is None:
            self._own = Bucket(ours(self._port("s3"), "mock", "mock"))
        return self._own

    @classmethod
    def from_url(cls, url: str) -> Moto:
        """Not this class: a URL is anybody's S3."""
        del cls, url
        message = "an s3:// URL is opened by the backend s3, whatever server it leads to"
        raise ValueError(message)

    def commands(self) -> Sequence[Command]:
        """The server, one process with threads."""
        locate.library("moto", "s3-moto", "s3")
        program = [sys.executable, "-I", "-m", "durabench_backends.s3.moto_daemon"]
        return (Command("daemon", [*program, str(self._port("s3"))]),)

    def create(self) -> None:
        """The bucket, with the setting's versioning."""
        self._bucket.create(self._versioning)

    def open(self, namespace: str) -> S3Store:
        """A store with `put_if_absent`, and with `versions` where the setting keeps them.

        After a restart there is no bucket, so it is made again: empty is what a mock is after a crash, not absent.
        """
        if not self._bucket.exists():
            self._bucket.create(self._versioning)
        return self._bucket.open(namespace, versioned=self._versioning == ON, conditional=True)

    def drop(self, namespace: str) -> None:
        """Objects, versions, markers and uploads of a namespace."""
        self._bucket.drop(self._bucket.prefix(namespace))

    def size_bytes(self) -> int:
        """The sizes of all objects: nothing is at rest anywhere."""
        return self._bucket.stored_bytes()

    def identity(self) -> str:
        """Process and time at which the server started, from its Server header."""
        return self._bucket.server().partition(" durabench/")[2]

    def inspect(self) -> Iterable[Fact]:
        """Its version and the versioning of the bucket."""
        return (
            Fact(promises.VENDOR, promises.MOTO, "Server header"),
            Fact(promises.VERSION, self._bucket.server().partition(" ")[0].partition("/")[2], "Server header"),
            Fact(promises.VERSIONING, self._bucket.versioning(), f"bucket {BUCKET}"),
        )

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to."""
        return promises.promise(facts)
