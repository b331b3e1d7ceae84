"""What the facts of a bucket mean for a goal: one check per id, pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends.contract import Check, Domain
from durabench_backends.s3 import promises
from durabench_backends.s3.client import OFF, ON, SUSPENDED
from durabench_backends.s3.look import EXPIRES_CURRENT, EXPIRES_OLDER, NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from durabench_backends.contract import Fact, Goal, Status


def checks(facts: Sequence[Fact], goal: Goal) -> Iterator[Check]:
    """One check per id, none of those that need a probe."""
    known = {fact.id: fact for fact in facts}
    mock = known.get(promises.MOCK)
    is_mock = mock is not None and mock.value not in ("", "no")
    yield _vendor(known, goal, met=goal.is_met_by(promises.promise(facts)), mock=is_mock)
    yield _versioning(known)
    yield _lifecycle(known)
    yield _plain(known, promises.OBJECT_LOCK)
    yield _checksums(known)
    yield _uploads(known)
    yield _mock(mock, goal, mock=is_mock)


def _vendor(known: Mapping[str, Fact], goal: Goal, *, met: bool, mock: bool) -> Check:
    """The promise rests on who it is, and of SeaweedFS on whether its filer syncs."""
    fact, fsync = known.get(promises.VENDOR), known.get(promises.FSYNC)
    value, origin = (fact.value, fact.origin) if fact else (promises.UNKNOWN, "")
    if met or mock:
        return Check(promises.VENDOR, "ok", value, origin or None)
    loses = f"what was acknowledged shortly before the {goal.survive.label} died"
    if value != promises.SEAWEEDFS:
        fix = "ask its vendor whether a PUT is on the drive before the reply; durabench run --backend URL tries it"
        evidence = "an S3 service that could not be told: nothing is known of what it does before its reply"
        return Check(promises.VENDOR, "unknown", value, origin or None, loses, fix, evidence)
    fix = "echo 'fs.configure -locationPrefix=/buckets/ -fsync=true -apply' | weed shell"
    told = fsync is not None and bool(fsync.value)
    status: Status = "fail" if told else "unknown"
    evidence = "its filer does not sync" if told else "whether its filer syncs (fs.configure), S3 does not tell"
    return Check(promises.VENDOR, status, value, origin or None, loses, fix, evidence)


def _not_read(fact: Fact | None, name: str) -> Check:
    why, _, line = (fact.unread if fact else "").partition("; ")
    return Check(name, "skip", fix=line or None, evidence=why or "not read")


def _plain(known: Mapping[str, Fact], name: str) -> Check:
    """A check that is never worse than ok."""
    fact = known.get(name)
    if fact is None or not fact.value:
        return _not_read(fact, name)
    return Check(name, "ok", fact.value, fact.origin)


def _versioning(known: Mapping[str, Fact]) -> Check:
    found = _plain(known, promises.VERSIONING)
    if found.value in (None, ON):
        return found
    what = {OFF: "it never was enabled", SUSPENDED: "older versions stay, new overwrites replace"}
    return Check(
        found.id,
        "warn",
        found.value,
        found.origin,
        "the older checkpoint, by an overwrite or a delete",
        "aws s3api put-bucket-versioning --bucket NAME --versioning-configuration Status=Enabled".replace(
            "NAME", (found.origin or "").removeprefix("bucket ")
        ),
        what.get(found.value or ""),
    )


def _lifecycle(known: Mapping[str, Fact]) -> Check:
    found = _plain(known, promises.LIFECYCLE)
    told = found.value or ""
    if EXPIRES_CURRENT in told:
        loses = "checkpoints older than that, without any crash"
    elif EXPIRES_OLDER in told:
        loses = "older versions after that time, and with them the way back after a bad overwrite"
    else:
        return found
    fix = "give the rule a prefix that leaves the checkpoints out, or as many days as they must live"
    return Check(found.id, "warn", found.value, found.origin, loses, fix)


def _checksums(known: Mapping[str, Fact]) -> Check:
    found = _plain(known, promises.CHECKSUMS)
    if found.value != NONE:
        return found
    loses = "a damaged object cannot be told from a whole one by what the server says"
    fix = "put with ChecksumAlgorithm=CRC32, or keep a digest in the metadata record"
    return Check(found.id, "warn", found.value, found.origin, loses, fix, "of one object: an ETag, no checksum")


def _uploads(known: Mapping[str, Fact]) -> Check:
    found = _plain(known, promises.UPLOADS)
    if found.value in (None, "0"):
        return found
    loses = "their space, for ever; nothing of them is an object yet"
    fix = "a lifecycle rule with AbortIncompleteMultipartUpload, or aws s3api abort-multipart-upload"
    return Check(found.id, "warn", found.value, found.origin, loses, fix)


def _mock(fact: Fact | None, goal: Goal, *, mock: bool) -> Check:
    if fact is None or not mock:
        return _plain({} if fact is None else {promises.MOCK: fact}, promises.MOCK)
    status: Status = "unknown" if goal.survive > Domain.CLIENT else "warn"
    loses = "everything, with the server's process: it keeps objects in memory"
    return Check(promises.MOCK, status, fact.value, fact.origin, loses, "verify the endpoint that production uses")
