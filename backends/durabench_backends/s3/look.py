"""Reads somebody's bucket: who answers, versioning, rules, locks, checksums, uploads. Never a write.

What the keys may not read is told as unread, with the statement that grants it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from durabench_backends.contract import Fact
from durabench_backends.s3 import promises
from durabench_backends.s3.client import error_code
from durabench_backends.s3.errors import statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from durabench_backends.s3.client import Bucket, Where

ANSWER_S = 2.0
NONE = "none"
EXPIRES_CURRENT = "expires objects"
EXPIRES_OLDER = "expires older versions"
NOT_SUPPORTED = (405, 501)
ABSENT = ("NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError")
"""Codes of a bucket that has none of what was asked for."""


def answered(bucket: Bucket) -> Mapping[str, Any]:
    """The first object under the prefix, if any, and the headers of that answer."""
    answer: Mapping[str, Any] = bucket.client.list_objects_v2(
        Bucket=bucket.where.bucket, Prefix=bucket.where.prefix, MaxKeys=1
    )
    return answer


def document(endpoint: str, path: str) -> Mapping[str, Any]:
    """The JSON object that anybody gets under a path of the endpoint; empty for whatever is none."""
    import urllib3

    try:
        answer = urllib3.PoolManager(retries=False, timeout=ANSWER_S).request("GET", endpoint.rstrip("/") + path)
        found = json.loads(answer.data)
    except (urllib3.exceptions.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def mock_by_behaviour(endpoint: str) -> tuple[str, str]:
    """The mock that answers, and what says so; empty for none."""
    if document(endpoint, "/moto-api/data.json"):
        return promises.MOTO, "GET /moto-api/data.json"
    if "services" in document(endpoint, "/_localstack/health"):
        return promises.LOCALSTACK, "GET /_localstack/health"
    return "", ""


def facts(bucket: Bucket, first: Mapping[str, Any]) -> Iterator[Fact]:
    """What the bucket says of itself; ``first`` is what `answered` gave."""
    where = bucket.where
    asked: tuple[tuple[str, str, Callable[[], str]], ...] = (
        (promises.VERSIONING, "s3:GetBucketVersioning", bucket.versioning),
        (promises.LIFECYCLE, "s3:GetLifecycleConfiguration", lambda: _lifecycle(bucket)),
        (promises.OBJECT_LOCK, "s3:GetBucketObjectLockConfiguration", lambda: _object_lock(bucket)),
        (promises.UPLOADS, "s3:ListBucketMultipartUploads", lambda: _uploads(bucket)),
    )
    for name, action, ask in asked:
        yield _asked(name, action, ask, where)
    objects = first.get("Contents", ())
    if not objects:
        yield Fact(promises.CHECKSUMS, "", "", "there is no object under this prefix to ask for one")
        return
    key = str(objects[0]["Key"])
    yield _asked(promises.CHECKSUMS, "s3:GetObject", lambda: _checksums(bucket, key), where)


def _asked(name: str, action: str, ask: Callable[[], str], where: Where) -> Fact:
    """A fact, or why the answer was none."""
    from botocore.exceptions import ClientError
    from botocore.parsers import ResponseParserError

    try:
        return Fact(name, ask(), f"bucket {where.bucket}")
    except ResponseParserError:
        return Fact(name, "", "", "what the server answers is not S3's")
    except ClientError as error:
        status, code = error_code(error)
    if code in ABSENT:
        return Fact(name, NONE, f"bucket {where.bucket}")
    if status in NOT_SUPPORTED:
        return Fact(name, "", "", f"this server does not have it ({status} {code})")
    if status in (401, 403):
        return Fact(name, "", "", f"these keys may not read it ({status} {code}); {statement(action, where)}")
    return Fact(name, "", "", f"the server answers {status} {code}")


def _lifecycle(bucket: Bucket) -> str:
    """The rules that concern this prefix, each with what it does."""
    answer = bucket.client.get_bucket_lifecycle_configuration(Bucket=bucket.where.bucket)
    rules = [rule for rule in answer.get("Rules", ()) if _concerns(rule, bucket.where.prefix)]
    return "; ".join(does for rule in rules for does in _does(rule)) or NONE


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    narrowed = rule.get("Filter", {})
    own = str(narrowed.get("And", narrowed).get("Prefix") or rule.get("Prefix") or "")
    return rule.get("Status") == "Enabled" and (own.startswith(prefix) or prefix.startswith(own))


def _does(rule: Mapping[str, Any]) -> Iterator[str]:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration:
        yield f"{EXPIRES_CURRENT} after {expiration['Days']} days"
    if "Date" in expiration:
        yield f"{EXPIRES_CURRENT} on {expiration['Date']:%Y-%m-%d}"
    older = rule.get("NoncurrentVersionExpiration", {})
    if older:
        kept = older.get("NewerNoncurrentVersions")
        beyond = f", beyond the {kept} newest" if kept else ""
        yield f"{EXPIRES_OLDER} after {older.get('NoncurrentDays', 0)} days{beyond}"
    for move in rule.get("Transitions", ()):
        yield f"moves objects to {move.get('StorageClass')} after {move.get('Days', 0)} days"
    if "AbortIncompleteMultipartUpload" in rule:
        yield f"ends unfinished uploads after {rule['AbortIncompleteMultipartUpload'].get('DaysAfterInitiation')} days"


def _object_lock(bucket: Bucket) -> str:
    answer = bucket.client.get_object_lock_configuration(Bucket=bucket.where.bucket)
    found = answer.get("ObjectLockConfiguration", {})
    if found.get("ObjectLockEnabled") != "Enabled":
        return NONE
    retention = found.get("Rule", {}).get("DefaultRetention", {})
    if not retention:
        return "on, without a default retention"
    # Some servers tell the one that was not set, too.
    time = f"{retention['Years']} years" if retention.get("Years") else f"{retention.get('Days')} days"
    return f"on, {retention.get('Mode', '').lower()} for {time}"


def _uploads(bucket: Bucket) -> str:
    answer = bucket.client.list_multipart_uploads(Bucket=bucket.where.bucket, Prefix=bucket.where.prefix)
    return str(len(answer.get("Uploads", ()))) + (" or more" if answer.get("IsTruncated") else "")


def _checksums(bucket: Bucket, key: str) -> str:
    answer = bucket.client.head_object(Bucket=bucket.where.bucket, Key=key, ChecksumMode="ENABLED")
    told = [name.removeprefix("Checksum") for name in answer if name.startswith("Checksum") and name != "ChecksumType"]
    return ", ".join(told) or NONE
