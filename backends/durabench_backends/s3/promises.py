"""What the vendors of S3 servers promise of an acknowledged PUT, from the facts that can be read of one.

Nobody promises that what is lost is a suffix: objects are independent of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench_backends.contract import RATED_DOMAINS, Domain, Fact, Promise

if TYPE_CHECKING:
    from collections.abc import Iterable

SWIFT, SEAWEEDFS, MOTO, AWS, R2, UNKNOWN = "swift", "seaweedfs", "moto", "aws", "r2", "unknown"
LOCALSTACK = "localstack"
MOCKS = (MOTO, LOCALSTACK)
"""Objects in the memory of a process."""

VENDOR = "s3.vendor"
VERSIONING = "s3.versioning"
SERVER = "s3.server"
VERSION = "s3.server_version"
FSYNC = "s3.fsync"
"""Of SeaweedFS, and told by its filer only."""
LIFECYCLE = "s3.lifecycle"
OBJECT_LOCK = "s3.object_lock"
CHECKSUMS = "s3.checksums"
UPLOADS = "s3.unfinished_uploads"
MOCK = "s3.mock"

_PROCESSES = {Domain.NOTHING: 0.0, Domain.CLIENT: 0.0, Domain.SERVER: 0.0}
_EVERYWHERE = {Domain.NOTHING: 0.0, **dict.fromkeys(RATED_DOMAINS, 0.0)}

SYNCED_SWIFT = Promise(
    _EVERYWHERE,
    Domain.DRIVE,
    None,
    "OpenStack Swift, swift/obj/diskfile.py, DiskFileWriter._finalize_put: fsync of the object's file, then "
    "swift/common/utils, link_fd_to_path: fsync of its folder, both before the reply; of the listings "
    "swift/common/db.py, put_record, says: deferred",
)
"""The object is synced, its line in the container's listing is appended to a file without: a GET is covered by more
than a listing is, and `versions` can only list."""

WRITTEN_SEAWEEDFS = Promise(
    _PROCESSES,
    Domain.DRIVE,
    None,
    "SeaweedFS, weed shell, fs.configure -h: -fsync “fsync for the writes”, off unless configured",
)
SYNCED_SEAWEEDFS = Promise(
    _EVERYWHERE,
    Domain.DRIVE,
    None,
    "SeaweedFS, weed shell, fs.configure -h: -fsync “fsync for the writes”; wiki, Path Specific Configuration: Fsync",
)
IN_MEMORY_MOTO = Promise(
    {Domain.CLIENT: 0.0},
    None,
    None,
    "Moto documentation, Non-Python SDKs / Server Mode: a mock for tests; its state is the server process's memory",
)
STORED_AWS = Promise(
    _EVERYWHERE,
    Domain.DRIVE,
    None,
    "Amazon S3 User Guide, Data protection: “PUT and PUT Object copy operations synchronously store your data across "
    "multiple facilities”; Amazon S3 data consistency model: “Updates to a single key are atomic”",
)
STORED_R2 = Promise(
    _EVERYWHERE,
    None,
    None,
    "Cloudflare R2 documentation, Reference, Durability, Synchronous writes: success is told only once data “has been "
    "persisted to disk”",
)
NOT_KNOWN = Promise(
    {Domain.CLIENT: 0.0},
    None,
    None,
    "an S3 service that could not be told by its address or answers: a 200 outlives the client that received it",
)


def promise(facts: Iterable[Fact]) -> Promise:
    """The promise that ``facts`` add up to; what is missing counts as the weakest it could be."""
    known = {fact.id: fact.value for fact in facts}
    vendor = known.get(VENDOR)
    if vendor == SEAWEEDFS:
        return SYNCED_SEAWEEDFS if known.get(FSYNC) == "true" else WRITTEN_SEAWEEDFS
    return {SWIFT: SYNCED_SWIFT, MOTO: IN_MEMORY_MOTO, AWS: STORED_AWS, R2: STORED_R2}.get(vendor or UNKNOWN, NOT_KNOWN)
