"""Somebody's bucket at ``s3://bucket/prefix?endpoint_url=…``: any S3, told by its address and by what it answers.

Credentials, region, profile and endpoint come from where the AWS command line takes them. Without an endpoint it is
Amazon's own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from durabench_backends import locate
from durabench_backends.contract import Check, Command, Fact, Goal, Limit, Promise, Setting
from durabench_backends.s3 import look, promises
from durabench_backends.s3.client import ON, Bucket, Where, error_code
from durabench_backends.s3.errors import told
from durabench_backends.s3.pages import PAGES, PROBES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from durabench_backends.s3.client import S3Store

ASK_S = 5.0
"""Longest wait for an answer that is only looked at."""
FORM = "s3://bucket/prefix?endpoint_url=https://host:port"
PARAMETERS = {"endpoint_url": "endpoint_url", "region": "region_name"}
"""What a URL may say, and what the client library calls it."""
AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
CLOUDFLARE = (".r2.cloudflarestorage.com",)
SERVERS = {"seaweedfs": promises.SEAWEEDFS, "moto": promises.MOTO}
"""How the Server header begins, and who says so. Nobody is Amazon by a header: that is the address's to say."""
CONDITIONAL = (promises.AWS, promises.SEAWEEDFS, promises.MOTO)
"""Whose PUT with If-None-Match has one winner."""


class S3:
    """A bucket of somebody's; nothing is started, and nothing outside of its namespaces is written."""

    imports: ClassVar[Sequence[str]] = ("durabench_backends.s3.model",)
    settings: ClassVar[Sequence[Setting]] = ()
    pages: ClassVar[Mapping[str, str]] = PAGES
    probes: ClassVar[Sequence[str]] = PROBES
    limit: ClassVar[Limit] = Limit(
        5 << 30, 'Amazon S3 User Guide: "With a single PUT operation, you can upload a single object up to 5 GB"'
    )
    mock: bool = False
    """Whether a mock answers; known once `inspect` was called."""

    def __init__(self, setting: Setting, root: Path, port: Callable[[str], int]) -> None:
        """Not without a URL: there is no server of this name to start."""
        del setting, root, port
        message = f"s3 is opened by a URL, {FORM}; servers to start are s3-swift, s3-seaweedfs and s3-moto"
        raise ValueError(message)

    @classmethod
    def from_url(cls, url: str) -> S3:
        """The bucket at ``url``; ValueError names what is wrong without showing it, as it may hold a secret."""
        made = cls.__new__(cls)
        where = _where(url)
        made._bucket, made._asked = Bucket(where), Bucket(where, ASK_S)  # noqa: SLF001 - its own
        return made

    _bucket: Bucket
    _asked: Bucket

    def commands(self) -> Sequence[Command]:
        """Nothing."""
        return ()

    def create(self) -> None:
        """Nothing: somebody's bucket exists, or it is an error to say so."""
        self._bucket.head()

    def open(self, namespace: str) -> S3Store:
        """A store with what this server offers under the bucket's versioning."""
        versioned = self._versioning() == ON
        return self._bucket.open(namespace, versioned=versioned, conditional=self._vendor()[0] in CONDITIONAL)

    def drop(self, namespace: str) -> None:
        """Objects, versions, markers and uploads of a namespace."""
        self._bucket.drop(self._bucket.prefix(namespace))

    def size_bytes(self) -> int:
        """The sizes of all objects under the prefix, every version counted."""
        return self._bucket.stored_bytes(self._bucket.where.prefix)

    def sizes_bytes(self, within: str) -> Iterable[int]:
        """Of every object under the URL's prefix whose name goes on with ``within``."""
        return self._bucket.sizes_bytes(self._bucket.where.prefix + within)

    def identity(self) -> str:
        """Its address: a service tells nobody when it was started, and it is not ours to restart."""
        return str(self._bucket.client.meta.endpoint_url)

    def _vendor(self, header: str | None = None) -> tuple[str, str]:
        """Who it is, and what says so; ``header`` is its Server header where that is known."""
        host = urlsplit(self.identity()).hostname or ""
        if host.endswith(AMAZON):
            return promises.AWS, "endpoint"
        if host.endswith(CLOUDFLARE):
            return promises.R2, "endpoint"
        header = self._bucket.server() if header is None else header
        for beginning, vendor in SERVERS.items():
            if header.lower().startswith(beginning):
                return vendor, "Server header"
        if self._swift_version():
            return promises.SWIFT, "GET /info"
        mock, origin = look.mock_by_behaviour(self.identity())
        if mock:
            return mock, origin
        return promises.UNKNOWN, "neither endpoint nor Server header nor GET /info"

    def _swift_version(self) -> str:
        """What Swift tells everybody under /info; empty for whatever is not Swift."""
        section = look.document(self.identity(), "/info").get("swift")
        return str(section.get("version", "")) if isinstance(section, dict) else ""

    def _versioning(self) -> str:
        """As the bucket says; empty where that may not be read."""
        from botocore.exceptions import ClientError

        try:
            return self._bucket.versioning()
        except ClientError as error:
            if error_code(error)[0] not in (403, 405, 501):
                raise
            return ""

    def inspect(self) -> Iterable[Fact]:
        """Who it is, where, and what the bucket says of itself; what may not be read says so."""
        with told(self._asked.where):
            first = look.answered(self._asked)
            header = str(first["ResponseMetadata"]["HTTPHeaders"].get("server", ""))
            vendor, origin = self._vendor(header)
            self.mock = vendor in promises.MOCKS
            facts = [
                Fact(promises.VENDOR, vendor, origin),
                Fact("s3.endpoint", self.identity(), "client"),
                Fact(promises.MOCK, vendor if self.mock else "no", origin),
                *look.facts(self._asked, first),
            ]
        if header:
            facts.append(Fact(promises.SERVER, header, "Server header"))
        if vendor == promises.SEAWEEDFS:
            facts.append(Fact(promises.FSYNC, "", "", "only its filer tells (weed shell, fs.configure)"))
        return facts

    @staticmethod
    def checks(facts: Iterable[Fact], goal: Goal) -> Iterable[Check]:
        """What ``facts`` mean for ``goal``."""
        from durabench_backends.s3 import checks

        return checks.checks(tuple(facts), goal)

    def probe(self, goal: Goal) -> Iterable[Check]:
        """Whether conditional puts, default checksums and wrong ones are taken: by about a dozen small objects."""
        from durabench_backends.s3 import probe

        del goal  # none of this decides what is lost
        facts = tuple(self.inspect())
        with told(self._asked.where):
            return probe.probe(self._bucket, self._bucket.with_defaults, facts)

    def writer_pids(self) -> Sequence[int]:
        """None: a service does not tell which of its processes writes."""
        return ()

    @staticmethod
    def promise(facts: Iterable[Fact]) -> Promise:
        """The promise that ``facts`` add up to."""
        return promises.promise(facts)


def _where(url: str) -> Where:
    locate.library("botocore", "s3", "s3")
    try:
        parts = urlsplit(url)
        userinfo, _, bucket = parts.netloc.rpartition("@")
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        message = f"not a URL that can be read; it has the form {FORM}"
        raise ValueError(message) from None
    if userinfo:
        message = "keys do not belong into a URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise ValueError(message)
    unknown = sorted(set(parameters) - set(PARAMETERS))
    if parts.scheme != "s3" or not bucket or unknown or parts.fragment:
        plain = [name if re.fullmatch(r"[A-Za-z_]{1,32}", name) else "…" for name in unknown]  # or a piece of a secret
        what = f"; it may not say {', '.join(plain)}, only {', '.join(PARAMETERS)}" if unknown else ""
        message = f"not a bucket's URL; it has the form {FORM}{what}"
        raise ValueError(message)
    endpoint = parameters.get("endpoint_url")
    if endpoint is not None and not _is_plain(endpoint):
        message = "endpoint_url must be http:// or https:// and a host, without user or query"
        raise ValueError(message)
    prefix = unquote(parts.path).strip("/")
    options = {PARAMETERS[name]: value for name, value in parameters.items()}
    return Where(bucket, f"{prefix}/" if prefix else "", options, "path" if endpoint else "auto")


def _is_plain(endpoint: str) -> bool:
    """Whether it is an address and nothing that could hold a secret."""
    try:
        parts = urlsplit(endpoint)
        port_is_number = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and port_is_number
    return is_address and not (parts.username or parts.query)
