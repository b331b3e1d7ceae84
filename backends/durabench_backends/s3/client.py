"""The client of every S3 server: one bucket, a prefix per namespace, one request per put.

Versioning is a property of a whole bucket and namespaces are made for every trial, hence one bucket and prefixes. Keys
are escaped so that no server has anything to normalise: what comes back is what was put.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from durabench_backends import locate
from durabench_backends.contract import NotReady, Refused, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FORBIDDEN = 403
CONNECT_TIMEOUT_S = 2
READ_TIMEOUT_S = 30
DELETE_BATCH = 1000
"""As many objects as one request may delete (Amazon S3 API Reference, DeleteObjects)."""
SEGMENT = 180
"""Longest piece of an object key between two slashes: servers that keep objects in folders end at 255 bytes."""

BUCKET = "durabench"
"""The bucket of a server of ours."""
OFF, ON, SUSPENDED = "Off", "Enabled", "Suspended"
"""The versioning of a bucket; S3 itself has no word for a bucket that never had any."""


@dataclass(frozen=True)
class Where:
    """A bucket, where it is, and as whom it is asked. Without keys those of the environment are used."""

    bucket: str
    prefix: str = ""
    """Before every object key; empty, or ends with a slash."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """``endpoint_url``, ``region_name`` and keys, as the client library names them; not shown, for the secret in it."""
    addressing_style: str = "path"
    ours: bool = False
    """A server of ours is reached whatever profiles, proxies and endpoints the environment names."""


def ours(port: int, access_key: str, secret_key: str) -> Where:
    """The bucket of a server of ours on this machine."""
    options = {
        "endpoint_url": f"http://127.0.0.1:{port}",
        "region_name": "us-east-1",
        "aws_access_key_id": access_key,
        "aws_secret_access_key": secret_key,
    }
    return Where(BUCKET, options=options, ours=True)


def escape(name: str) -> str:
    """``name`` in letters, digits and ``-`` alone, everything else as ``_XX`` per byte; injective.

    Without dots, slashes, percent signs or non-ASCII letters no server has a reason to decode, fold or reserve it.
    """
    return re.sub(rb"[^A-Za-z0-9-]", lambda match: b"_%02X" % match[0][0], name.encode()).decode()


def unescape(escaped: str) -> str:
    """What `escape` was given; ValueError for what it never returns."""
    name = re.sub(rb"_([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), escaped.encode()).decode()
    if escape(name) != escaped:
        message = f"{escaped!r} is no key of ours"
        raise ValueError(message)
    return name


def object_name(key: str) -> str:
    """The last part of the object key for ``key``, in pieces of at most `SEGMENT` letters.

    A piece that more follow ends with a dot, which no last piece has: an object is then never where a folder must be.
    """
    escaped = escape(key)
    pieces = [escaped[start : start + SEGMENT] for start in range(0, len(escaped), SEGMENT)]
    return "./".join(pieces)


def key_of(name: str) -> str:
    """The key that `object_name` was given."""
    key = unescape(name.replace("./", ""))
    if object_name(key) != name:
        message = f"{name!r} is no key of ours"
        raise ValueError(message)
    return key


def error_code(error: Any) -> tuple[int, str]:
    """The HTTP status and the S3 code of a ClientError; some servers answer HEAD with the bare status for a code."""
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def coming_up(*, ours: bool = False) -> Iterator[None]:
    """NotReady for a server that does not answer, or that says it cannot yet; anything else is raised as it is. One of
    ours refuses our keys only as long as it has not read them.
    """
    from botocore.exceptions import ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as NoConnection

    try:
        yield
    except (HTTPClientError, NoConnection) as error:
        passing = type(error).__name__
    except ClientError as error:
        status, code = error_code(error)
        keys_unread = ours and status == FORBIDDEN
        if (status < 500 or status == 501) and not keys_unread:  # what it does not have, it will not have later either
            raise
        passing = f"{status} {code}"
    else:
        return
    message = f"S3 is not ready: {passing}"
    raise NotReady(message)


@contextmanager
def sent() -> Iterator[None]:
    """Refused where no connection came about: a request that was never sent certainly did nothing."""
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

    try:
        yield
    except (EndpointConnectionError, ConnectTimeoutError) as error:
        refused = f"no connection: {type(error).__name__}"
    else:
        return
    raise Refused(refused)


class Bucket:
    """One bucket and what is asked of it as a whole. Makes its client when first asked, and keeps it."""

    def __init__(self, where: Where, read_timeout_s: float = READ_TIMEOUT_S) -> None:
        self.where = where
        self._read_timeout_s = read_timeout_s
        self._begun = False

    @cached_property
    def client(self) -> Any:
        """The client: one attempt per request, and every wait has an end."""
        locate.library("botocore", "s3", "s3")
        from durabench_backends.s3 import model

        config = {
            "retries": {"total_max_attempts": 1},  # a put that is sent again blurs what was acknowledged
            "s3": {"addressing_style": self.where.addressing_style},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": self._read_timeout_s,
            "proxies": {} if self.where.ours else None,
        }
        return model.client(config, self.where.options, from_environment=not self.where.ours)

    def with_defaults(self) -> Any:
        """A client as a program has it that sets nothing but timeouts: with the checksums of its library."""
        from durabench_backends.s3 import model

        config = {
            "retries": {"total_max_attempts": 1},
            "s3": {"addressing_style": self.where.addressing_style},
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": self._read_timeout_s,
            "proxies": {} if self.where.ours else None,
        }
        return model.client(config, self.where.options, from_environment=not self.where.ours)

    def head(self) -> Mapping[str, str]:
        """The headers that come with the bucket's existence; NotReady while the server comes up."""
        with coming_up(ours=self.where.ours):
            answer = self.client.head_bucket(Bucket=self.where.bucket)
        headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
        return headers

    def server(self) -> str:
        """The Server header, which comes with a refusal too; empty where there is none. NotReady while it comes up."""
        from botocore.exceptions import ClientError

        try:
            headers = self.head()
        except ClientError as error:
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return headers.get("server", "")

    def exists(self) -> bool:
        """Whether the bucket is there."""
        from botocore.exceptions import ClientError

        try:
            self.head()
        except ClientError as error:
            if error_code(error)[0] != 404:
                raise
            return False
        return True

    def create(self, versioning: str) -> None:
        """Make the bucket with versioning off, on or suspended (on first, then suspended) and read that back.

        Refused when it exists. An attempt that ended with NotReady is taken up where it ended.
        """
        bucket = self.where.bucket
        if self.exists() and not self._begun:
            message = f"bucket {bucket} has been created before"
            raise Refused(message)
        with coming_up():
            if not self._begun:
                self._begun = True
                self.client.create_bucket(Bucket=bucket)
            for status in {OFF: (), ON: (ON,), SUSPENDED: (ON, SUSPENDED)}[versioning]:
                self.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
        found = self.versioning()
        if found != versioning:
            message = f"bucket {bucket}: versioning was set to {versioning} and is {found}"
            raise RuntimeError(message)
        self._begun = False

    def versioning(self) -> str:
        """`OFF`, `ON` or `SUSPENDED`, as the bucket says."""
        with coming_up():
            return str(self.client.get_bucket_versioning(Bucket=self.where.bucket).get("Status", OFF))

    def prefix(self, namespace: str) -> str:
        """What every object key of a namespace begins with."""
        return f"{self.where.prefix}{escape(namespace)}/"

    def pages(self, operation: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """Every page of a listing."""
        return iter(self.client.get_paginator(operation).paginate(Bucket=self.where.bucket, **arguments))

    def drop(self, prefix: str) -> None:
        """Remove every object, version, marker and unfinished upload under ``prefix``; RuntimeError if any stays."""
        from botocore.exceptions import ClientError

        with coming_up():
            try:
                self._delete(self.listed(prefix))
                self._abort_uploads(prefix)
                left = self.listed(prefix)
            except ClientError as error:
                if error_code(error)[1] != "NoSuchBucket":
                    raise
                return
            if left:
                self._delete_by_overwriting(left)
                left = self.listed(prefix)
        if left:
            message = f"{len(left)} versions under {prefix} are still listed after they were deleted"
            raise RuntimeError(message)

    def listed(self, prefix: str) -> list[Mapping[str, str]]:
        """Key and version id of every version and delete marker."""
        return [
            {"Key": each["Key"], "VersionId": each["VersionId"]}
            for page in self.pages("list_object_versions", Prefix=prefix)
            for each in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
        ]

    def _delete(self, versions: Sequence[Mapping[str, str]]) -> None:
        for start in range(0, len(versions), DELETE_BATCH):
            batch = {"Objects": versions[start : start + DELETE_BATCH], "Quiet": True}
            for error in self._delete_batch(batch).get("Errors", ()):
                message = f"{error.get('Key')} could not be deleted: {error.get('Code')}"
                raise RuntimeError(message)

    def _delete_batch(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """One request; or one per object, where the server refuses the checksum that many at once must have."""
        from botocore.exceptions import ClientError

        try:
            answer: Mapping[str, Any] = self.client.delete_objects(Bucket=self.where.bucket, Delete=batch)
        except ClientError as error:
            if error_code(error)[0] not in (400, 411, 501):
                raise
        else:
            return answer
        for version in batch["Objects"]:
            self.client.delete_object(Bucket=self.where.bucket, **version)
        return {}

    def _delete_by_overwriting(self, versions: Iterable[Mapping[str, str]]) -> None:
        """Where versioning is suspended, SeaweedFS answers the delete of a delete marker by making another."""
        for version in versions:
            if version["VersionId"] == "null":
                self.client.put_object(Bucket=self.where.bucket, Key=version["Key"], Body=b"")
                self.client.delete_object(Bucket=self.where.bucket, **version)

    def _abort_uploads(self, prefix: str) -> None:
        for page in list(self.pages("list_multipart_uploads", Prefix=prefix)):
            for upload in page.get("Uploads", ()):
                names = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                self.client.abort_multipart_upload(Bucket=self.where.bucket, **names)

    def stored_bytes(self, prefix: str = "") -> int:
        """The sizes of all objects under ``prefix``, every version counted, as the server tells them."""
        with coming_up():
            pages = self.pages("list_object_versions", Prefix=prefix)
            return sum(int(version["Size"]) for page in pages for version in page.get("Versions", ()))

    def sizes_bytes(self, prefix: str) -> Iterator[int]:
        """The size of every object under ``prefix``, its newest version only."""
        with coming_up():
            for page in self.pages("list_objects_v2", Prefix=prefix):
                yield from (int(each["Size"]) for each in page.get("Contents", ()))

    def open(self, namespace: str, *, versioned: bool, conditional: bool) -> S3Store:
        """A store for a namespace, once the bucket answers. NotReady before that."""
        self.head()
        return S3Store(self, namespace, versioned=versioned, conditional=conditional)


class S3Store:
    """One namespace of a bucket; `versions` and `put_if_absent` are there only where server and setting offer them."""

    versions: Callable[[str], Iterable[tuple[str, bytes]]]
    put_if_absent: Callable[[str, bytes], bool]

    def __init__(self, bucket: Bucket, namespace: str, *, versioned: bool, conditional: bool) -> None:
        self._bucket = bucket
        self._prefix = bucket.prefix(namespace)
        self._client = bucket.client
        if versioned:
            self.versions = self._versions
        if conditional:
            self.put_if_absent = self._put_if_absent

    def _name(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self._bucket.where.bucket, "Key": self._prefix + object_name(key)}

    def put(self, key: str, value: bytes) -> None:
        """One PUT; returns when the server has answered 200."""
        name = self._name(key)
        with sent():
            self._client.put_object(**name, Body=value)

    def _put_if_absent(self, key: str, value: bytes) -> bool:
        """One PUT with ``If-None-Match: *``; False when the server answers that the precondition failed."""
        from botocore.exceptions import ClientError

        name = self._name(key)
        with sent():
            try:
                self._client.put_object(**name, Body=value, IfNoneMatch="*")
            except ClientError as error:
                if error_code(error)[0] != 412:
                    raise
                return False
        return True

    def get(self, key: str) -> bytes | None:
        """The object; None only where the server says that there is no such key."""
        return self._read(**self._name(key))

    def _read(self, **name: str) -> bytes | None:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(**name)
        except ClientError as error:
            if error_code(error) != (404, "NoSuchKey"):
                raise
            return None
        value: bytes = answer["Body"].read()
        return value

    def delete(self, key: str) -> None:
        """One DELETE; where versions are kept, it leaves a delete marker."""
        name = self._name(key)
        with sent():
            self._client.delete_object(**name)

    def keys(self) -> Iterable[str]:
        """As the server lists them."""
        for page in self._bucket.pages("list_objects_v2", Prefix=self._prefix):
            for each in page.get("Contents", ()):
                yield key_of(each["Key"].removeprefix(self._prefix))

    def _versions(self, key: str) -> Iterable[tuple[str, bytes]]:
        """Every version in the order of the listing, newest first, each read by its id; delete markers are left out."""
        name = self._name(key)
        for page in self._bucket.pages("list_object_versions", Prefix=name["Key"]):
            for each in page.get("Versions", ()):
                if each["Key"] == name["Key"]:
                    version = str(each["VersionId"])
                    value = self._read(**name, VersionId=version)
                    if value is None:
                        message = f"version {version} of {key!r} is listed and cannot be read"
                        raise LookupError(message)
                    yield version, value

    def size_bytes(self) -> int:
        """The sizes of this namespace's objects, every version counted."""
        return self._bucket.stored_bytes(self._prefix)

    def close(self) -> None:
        """Nothing: the connection belongs to the backend, whose other stores use it too."""
