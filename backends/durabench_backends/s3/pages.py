"""A page for every check of S3: what it is, what is lost otherwise, how to mend it, and the source."""

from __future__ import annotations

PROBES = ("s3.conditional_writes", "s3.default_checksums", "s3.checksum_verified")
"""Checks that only writing can make."""

GUIDE = "Amazon S3 User Guide"

PAGES = {
    "s3.vendor": """Whose server it is, by its address or its answers, and so whose promise holds for an
acknowledged PUT: Amazon, R2 and Swift store it before the reply; SeaweedFS writes without a sync unless its filer
is told to.

Lost otherwise: of a server that could not be told, or that does not sync, what it acknowledged shortly before
its machine died.

Mend: for SeaweedFS `fs.configure -locationPrefix=/buckets/NAME -fsync=true -apply` in `weed shell` (only the
filer tells whether that is so, an S3 endpoint does not); for others ask the vendor, or let `durabench run` try
it.

Source: Amazon S3 User Guide, Data protection; Cloudflare R2, Durability; OpenStack Swift 2.38,
swift/obj/diskfile.py, _finalize_put; SeaweedFS 4.48, weed shell, fs.configure -h.""",
    "s3.versioning": f"""Whether the bucket keeps older versions of an object (GetBucketVersioning).

Lost otherwise: with versioning off or suspended an overwrite or a delete, by a bug or by a second writer, takes
the older checkpoint with it. A crash of the server takes nothing because of it, so this is a `warn`.

Mend: `aws s3api put-bucket-versioning --bucket NAME --versioning-configuration Status=Enabled`, then wait 15
minutes before the first put.

Source: {GUIDE}, Using versioning in S3 buckets; Enabling versioning: "wait for 15 minutes".""",
    "s3.lifecycle": f"""Whether a rule of the bucket expires what lies under this prefix
(GetBucketLifecycleConfiguration).

Lost otherwise: checkpoints older than the rule's days, without any crash; of noncurrent versions, the way back
after a bad overwrite. Rules that end unfinished uploads lose nothing that was acknowledged.

Mend: give the rule a prefix that leaves the checkpoints out, or as many days as they must live: `aws s3api
get-bucket-lifecycle-configuration --bucket NAME`, then put-bucket-lifecycle-configuration.

Source: {GUIDE}, Managing your storage lifecycle, Expiring objects.""",
    "s3.object_lock": f"""Whether versions are locked against deletion (GetObjectLockConfiguration), and for how
long.

Lost otherwise: nothing by a crash. With a default retention what was put cannot be removed before its time: the
probe then writes nothing.

Mend: none is needed; a lock is set when a bucket is made, or by `aws s3api put-object-lock-configuration
--bucket NAME --object-lock-configuration …`.

Source: {GUIDE}, Locking objects with Object Lock.""",
    "s3.checksums": f"""Whether the server tells a checksum of an object beside its ETag (HeadObject, checksum
mode), asked of one object under this prefix.

Lost otherwise: a reader cannot tell a damaged object from a whole one by what the server says; the ETag of a
multipart upload is no digest of its bytes.

Mend: put with ChecksumAlgorithm=CRC32, or keep a digest of the data in the metadata record.

Source: {GUIDE}, Checking object integrity for data at rest.""",
    "s3.unfinished_uploads": f"""How many multipart uploads under this prefix were begun and neither completed nor
aborted (ListMultipartUploads, first thousand).

Lost otherwise: nothing that was acknowledged: an upload is an object only once CompleteMultipartUpload has
answered. Their parts cost space for ever, and a writer that takes a part's answer for an acknowledgement has
lost them.

Mend: a lifecycle rule with AbortIncompleteMultipartUpload, or `aws s3api abort-multipart-upload`.

Source: {GUIDE}, Aborting a multipart upload.""",
    "s3.mock": """Whether it is a mock: moto or LocalStack, by the Server header, by /moto-api, or by
/_localstack/health.

Lost otherwise: everything, with the server's process: a mock keeps objects in memory. It is not rated (exit
status 3).

Mend: verify the endpoint that production uses.

Source: Moto documentation 5.2, Server Mode; LocalStack documentation, Persistence.""",
    "s3.conditional_writes": f"""Probe: whether a PUT with `If-None-Match: *` is refused where an object is, and has
one winner among eight at once.

Lost otherwise: two writers that take it for a guard overwrite each other's checkpoint. Swift answers 412 to the
second of two, and had two winners of sixteen at once.

Mend: one writer per key; or a server that is atomic here (Amazon, SeaweedFS).

Source: {GUIDE}, Conditional requests, Conditional writes; measured by the probe itself.""",
    "s3.default_checksums": """Probe: whether a PUT of a client with its own defaults is taken. Since boto3 1.36
every PUT carries a checksum, which servers that do not know it refuse with all kinds of errors.

Lost otherwise: nothing is acknowledged, so nothing is lost; but such a client cannot write at all.

Mend: AWS_REQUEST_CHECKSUM_CALCULATION=when_required and AWS_RESPONSE_CHECKSUM_VALIDATION=when_required, or the
same two options of botocore's Config.

Source: AWS SDKs and Tools Reference Guide, Data Integrity Protections for Amazon S3.""",
    "s3.checksum_verified": f"""Probe: whether a PUT whose checksum is not that of its bytes is refused.

Lost otherwise: what was damaged on the way is stored and acknowledged.

Mend: compare the ETag (the MD5 of a single PUT, where the server tells it) or a digest of your own after the
put.

Source: {GUIDE}, Checking object integrity for data uploads: "BadDigest".""",
}
