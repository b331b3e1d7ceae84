"""Asks a bucket by writing: are conditional puts honoured, default checksums taken, wrong ones refused.

In a namespace of its own, always the same one, so that what a killed probe left is removed by the next.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from durabench_backends.contract import Check
from durabench_backends.s3 import promises
from durabench_backends.s3.client import error_code
from durabench_backends.s3.errors import CHECKSUMS, rejects_checksums
from durabench_backends.s3.pages import PROBES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durabench_backends.contract import Fact
    from durabench_backends.s3.client import Bucket

NAMESPACE = "durabench-probe"
VALUE = b"x" * 512
WRITERS = 8
WRONG_CRC32 = "AAAAAA=="
"""The checksum of nothing at all."""


class Probed:
    """A bucket under test, and how much was written to it."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.prefix = bucket.prefix(NAMESPACE)
        self.puts = 0

    def name(self) -> str:
        """A key of the probe's that nobody used before."""
        return self.prefix + secrets.token_hex(8)

    def put(self, key: str, client: Any = None, **conditions: str) -> tuple[int, str] | None:
        """One PUT; None where it was taken, else status and code of the refusal."""
        from botocore.exceptions import ClientError

        try:
            (client or self.bucket.client).put_object(
                Bucket=self.bucket.where.bucket, Key=key, Body=VALUE, **conditions
            )
        except ClientError as error:
            return error_code(error)
        self.puts += 1
        return None


def probe(bucket: Bucket, with_defaults: Callable[[], Any], facts: Sequence[Fact]) -> list[Check]:
    """The checks of `pages.PROBES`; the namespace is gone afterwards, versions and markers too.

    ``with_defaults`` makes a client as a program that sets nothing would.
    """
    lock = next((fact.value for fact in facts if fact.id == promises.OBJECT_LOCK), "")
    if " for " in lock:
        why = f"object lock is {lock}: what a probe writes could not be removed again"
        return [Check(name, "skip", evidence=why) for name in PROBES]
    probed = Probed(bucket)
    left = len(bucket.listed(probed.prefix))
    bucket.drop(probed.prefix)
    refusal = probed.put(probed.name())
    if refusal is not None:
        what = f"the probe could not write: {refusal[0]} {refusal[1]}"
        needs = f"s3:PutObject and s3:DeleteObject on {bucket.where.bucket}/{probed.prefix}*"
        return [Check(name, "skip", fix=f"grant {needs}", evidence=what) for name in PROBES]
    try:
        found = [_conditional(probed), _default_checksums(probed, with_defaults), _verified(probed)]
    finally:
        bucket.drop(probed.prefix)
    wrote = f"wrote {probed.puts * len(VALUE)} bytes in {probed.puts} puts, removed again"
    wrote += f"; removed {left} versions that an earlier probe had left" if left else ""
    return [_with_evidence(check, wrote) for check in found]


def _with_evidence(check: Check, wrote: str) -> Check:
    fields: Mapping[str, Any] = vars(check)
    return Check(**{**fields, "evidence": f"{check.evidence}; {wrote}"})


def _conditional(probed: Probed) -> Check:
    """One key put twice, another by several at once."""
    name, key = "s3.conditional_writes", probed.name()
    loses = "of two writers that take it for a guard, one's checkpoint"
    fix = "one writer per key, or a server whose conditional put is atomic"
    first, second = probed.put(key, IfNoneMatch="*"), probed.put(key, IfNoneMatch="*")
    if first is not None:
        evidence = f"If-None-Match is refused: {first[0]} {first[1]}"
        return Check(name, "warn", "refused", "measured here", loses, fix, evidence)
    if second is None:
        evidence = "the second put of a key with If-None-Match: * was taken"
        return Check(name, "warn", "ignored", "measured here", loses, fix, evidence)
    key = probed.name()
    with ThreadPoolExecutor(WRITERS) as pool:
        winners = [pool.submit(probed.put, key, IfNoneMatch="*") for _ in range(WRITERS)]
        won = sum(winner.result() is None for winner in winners)
    value = f"{won} of {WRITERS} at once won"
    if won == 1:
        return Check(name, "ok", value, "measured here", evidence=f"the second put is refused: {second[0]}")
    return Check(name, "warn", value, "measured here", loses, fix, "one put refused, several at once not told apart")


def _default_checksums(probed: Probed, with_defaults: Callable[[], Any]) -> Check:
    """A PUT as a program that sets nothing would send it."""
    from botocore.exceptions import BotoCoreError, ClientError

    name, client = "s3.default_checksums", with_defaults()
    setting = str(client.meta.config.request_checksum_calculation)
    try:
        client.put_object(Bucket=probed.bucket.where.bucket, Key=probed.name(), Body=VALUE)
    except ClientError as error:
        status, code = error_code(error)
        said = f"request_checksum_calculation={setting}: {status} {code}; without checksums the same put is taken"
        fix = CHECKSUMS if rejects_checksums(error) or setting == "when_supported" else None
    except BotoCoreError as error:
        said, fix = f"request_checksum_calculation={setting}: {type(error).__name__}", CHECKSUMS
    else:
        probed.puts += 1
        return Check(name, "ok", "taken", f"request_checksum_calculation={setting}", evidence="a put with defaults")
    loses = "nothing, but a client with its own defaults cannot write here"
    return Check(name, "warn", "rejected", f"request_checksum_calculation={setting}", loses, fix, said)


def _verified(probed: Probed) -> Check:
    """A PUT with a checksum that is not that of its bytes."""
    name = "s3.checksum_verified"
    refusal = probed.put(probed.name(), ChecksumCRC32=WRONG_CRC32)
    if refusal is not None:
        return Check(name, "ok", "refused", "measured here", evidence=f"{refusal[0]} {refusal[1]}")
    loses = "what was damaged on the way is stored and acknowledged"
    fix = "compare a digest of your own after the put, or the ETag of a single PUT"
    return Check(name, "warn", "taken", "measured here", loses, fix, "a put with a wrong CRC32 was acknowledged")
