"""OpenStack Swift with its S3 API: one disk, one replica, four servers; every object is synced before the reply.

Put together from the wheel `swift`, as an installation of one machine is: proxy, account, container and object server,
each one process, with the pipeline of the S3 API's own documentation. Nothing listens beyond 127.0.0.1.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from durabench_backends import embedded, locate
from durabench_backends.contract import Command, Fact, NotReady, Promise, Setting
from durabench_backends.s3 import promises
from durabench_backends.s3.client import BUCKET, OFF, ON, Bucket, ours
from durabench_backends.s3.http import answered, get_json
from durabench_backends.s3.swift_daemon import DEVICES, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from durabench_backends.s3.client import S3Store

ACCESS_KEY, SECRET_KEY = "test:admin", "not-a-secret"  # of a server that only this machine reaches
SERVERS = ("proxy", *KINDS)
PIPELINE = (
    *("catch_errors", "gatekeeper", "healthcheck", "proxy_logging", "listing_formats", "s3api", "tempauth"),
    *("copy", "slo", "dlo", "versioned_writes", "symlink"),
)
"""That of Swift's proxy-server.conf-sample as far as the S3 API needs it; no cache, as there is no memcached."""
ENVIRONMENT = {"EVENTLET_NO_GREENDNS": "yes"}
"""No names are looked up, and importing what would look them up takes a third of the start."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "proxy-server": {"account_autocreate": "true"},
    "tempauth": {"user_test_admin": f"{SECRET_KEY} .admin"},
    "versioned_writes": {"allow_object_versioning": "true"},
}


class Swift:
    """A Swift of ours under ``root``."""

    imports: ClassVar[Sequence[str]] = ("durabench_backends.s3.model",)
    heavy: ClassVar[bool] = True
    settings: ClassVar[Sequence[Setting]] = (
        Setting("unversioned", {"versioning": OFF}, promises.SYNCED_SWIFT),
        Setting("versioned", {"versioning": ON}, promises.SYNCED_SWIFT),
    )

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        """Remember where it lives; touches nothing."""
        self._versioning = setting.options["versioning"]
        self._root = root.absolute()
        self._port = port
        self._own: Bucket | None = None

    @property
    def _bucket(self) -> Bucket:
        if self._own is None:
            self._own = Bucket(ours(self._port("proxy"), ACCESS_KEY, SECRET_KEY))
        return self._own

    @classmethod
    def from_url(cls, url: str) -> Swift:
        """Not this class: a URL is anybody's S3."""
        del cls, url
        message = "an s3:// URL is opened by the backend s3, whatever server it leads to"
        raise ValueError(message)

    def commands(self) -> Sequence[Command]:
        """Rings, then the four servers, children of the proxy."""
        locate.library("swift", "s3-swift", "s3")
        ports = [str(self._port(kind)) for kind in KINDS]
        return (
            Command("setup", _python("rings", *ports), ENVIRONMENT, files=self._files()),
            Command("daemon", _python("serve", str(self._root)), ENVIRONMENT),
        )

    def _files(self) -> Mapping[str, bytes]:
        """The configuration of the cluster and of each server."""
        hashing = {"swift-hash": {"swift_hash_path_prefix": BUCKET, "swift_hash_path_suffix": BUCKET}}
        files = {"swift.conf": _ini(hashing)}
        for server in SERVERS:
            own = f"{server}-server"
            filters = PIPELINE if server == "proxy" else ("healthcheck",)
            sections = {
                "DEFAULT": self._defaults(server),
                "pipeline:main": {"pipeline": " ".join([*filters, own])},
                f"app:{own}": {"use": f"egg:swift#{server}", **OPTIONS.get(own, {})},
            }
            sections |= {f"filter:{name}": {"use": f"egg:swift#{name}", **OPTIONS.get(name, {})} for name in filters}
            files[f"{own}.conf"] = _ini(sections)
        return files

    def _defaults(self, server: str) -> dict[str, str]:
        return {
            "bind_ip": "127.0.0.1",
            "bind_port": str(self._port(server)),
            "workers": "0",  # one process, in the foreground
            "swift_dir": str(self._root),
            "devices": str(self._root / DEVICES),
            "mount_check": "false",  # the device is a folder
            "log_level": "WARNING",
            "log_udp_host": "127.0.0.1",  # or it logs to the system's log; nobody listens here
            "log_udp_port": str(self._port("nobody")),
        }

    def create(self) -> None:
        """The bucket, with the setting's versioning."""
        self._answering()
        self._bucket.create(self._versioning)

    def _answering(self) -> None:
        """NotReady until all four answer: a proxy without its storage is up and refuses."""
        for server in SERVERS:
            answered(self._port(server), "/healthcheck")

    def open(self, namespace: str) -> S3Store:
        """A store with `versions` where the setting keeps them. Swift's If-None-Match is not atomic and not offered."""
        self._answering()
        return self._bucket.open(namespace, versioned=self._versioning == ON, conditional=False)

    def drop(self, namespace: str) -> None:
        """Objects, versions, markers and uploads of a namespace."""
        self._bucket.drop(self._bucket.prefix(namespace))

    def size_bytes(self) -> int:
        """All that is allocated under ``root``."""
        return embedded.allocated_bytes([self._root])

    def identity(self) -> str:
        """Process and time at which the proxy started, as it tells with its other capabilities."""
        return str(self._info("durabench")["start"])

    def _info(self, section: str) -> Mapping[str, object]:
        sections = get_json(self._port("proxy"), "/info")
        if section not in sections:
            message = "the Swift that answers is not the one that was started"
            raise NotReady(message)
        found: Mapping[str, object] = sections[section]
        return found

    def inspect(self) -> Iterable[Fact]:
        """Its version and the versioning of the bucket."""
        version = str(self._info("swift")["version"])
        return (
            Fact(promises.VENDOR, promises.SWIFT, "GET /info"),
            Fact(promises.VERSION, version, "GET /info"),
            Fact(promises.VERSIONING, self._bucket.versioning(), f"bucket {BUCKET}"),
        )

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to."""
        return promises.promise(facts)


def _python(*words: str) -> list[str]:
    """A program of `swift_daemon` under this interpreter, which sees nothing of the caller's environment."""
    return [sys.executable, "-I", "-m", "durabench_backends.s3.swift_daemon", *words]


def _ini(sections: Mapping[str, Mapping[str, str]]) -> bytes:
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in values.items()), ""]
    return "\n".join(lines).encode()
