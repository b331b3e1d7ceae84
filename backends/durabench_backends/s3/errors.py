"""What went wrong with somebody's bucket, in one line that shows no secret, with the mend as a note.

NotReady where waiting may help, ValueError where it cannot.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from durabench_backends.contract import NotReady
from durabench_backends.s3.client import error_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from durabench_backends.s3.client import Where

KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
CHECKSUMS = (
    "the client library's default checksums are not understood there: set "
    "AWS_REQUEST_CHECKSUM_CALCULATION=when_required and AWS_RESPONSE_CHECKSUM_VALIDATION=when_required, or "
    "Config(request_checksum_calculation='when_required', response_checksum_validation='when_required')"
)

MENDS: Mapping[str, tuple[str, str]] = {
    "InvalidAccessKeyId": ("it does not know this access key", KEYS),
    "SignatureDoesNotMatch": ("wrong secret key", KEYS),
    "InvalidToken": ("wrong session token", "unset AWS_SESSION_TOKEN, or set the one that belongs to the key"),
    "ExpiredToken": ("the session token has expired", "log in again"),
    "RequestTimeTooSkewed": ("this machine's clock is too far off", "set the clock"),
    "NoSuchBucket": ("there is no such bucket", "correct the bucket's name, or the endpoint"),
    "AuthorizationHeaderMalformed": ("wrong region", "add ?region=… with the bucket's region"),
    "PermanentRedirect": ("the bucket is in another region", "add ?region=… with the bucket's region"),
    "InvalidBucketName": ("that is no bucket's name", "correct the bucket's name"),
}
"""S3's code → what it means here, and the mend."""


def statement(action: str, where: Where) -> str:
    """The statement of an IAM policy that grants an action on the bucket."""
    allow = {"Effect": "Allow", "Action": action, "Resource": f"arn:aws:s3:::{where.bucket}"}
    return json.dumps(allow)


@contextmanager
def told(where: Where) -> Iterator[None]:
    """Whatever the client library raises becomes one line and its mend."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        waits, what, mend = _answered(error, where)
    except BotoCoreError as error:
        waits, what, mend = _not_answered(error)
    else:
        return
    # Raised outside of the handlers: the original, whose frames hold keys, is no context of it.
    message = f"bucket {where.bucket}: {what}"
    failure: Exception = NotReady(message) if waits else ValueError(message)
    failure.add_note(mend)
    raise failure


def _answered(error: Any, where: Where) -> tuple[bool, str, str]:
    """Whether waiting may help, what it is, and the mend, of a refusal."""
    status, code = error_code(error)
    if status >= 500 and status != 501:
        return True, f"the server answers {status} {code}", "wait until it is up, or look into its log"
    if code in MENDS:
        what, mend = MENDS[code]
        region = error.response["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region")
        return False, f"{what} ({status} {code})", mend.replace("…", region) if region else mend
    if status in (401, 403):
        grant = f"grant it: {statement('s3:ListBucket', where)}"
        return False, f"these keys may not list it ({status} {code})", f"{KEYS} that may, or {grant}"
    if status == 400 and "https" in str(error).lower():
        return False, "TLS is spoken at this port", "write endpoint_url=https://…"
    return False, f"the server answers {status} {code}", "correct bucket and endpoint_url"


def _not_answered(error: Exception) -> tuple[bool, str, str]:
    """The same where no answer came."""
    from botocore import exceptions

    reach = "start the server, or correct endpoint_url"
    plain = "the certificate is not accepted", "AWS_CA_BUNDLE=/path/ca.pem names the authority"
    if isinstance(error, exceptions.SSLError):
        if "CERTIFICATE" in str(error).upper():
            return False, f"TLS refused: {plain[0]}", plain[1]
        return False, "TLS refused: no TLS is spoken at this port", "write endpoint_url=http://…"
    kinds: tuple[tuple[tuple[type[Exception], ...], tuple[bool, str, str]], ...] = (
        ((exceptions.NoCredentialsError, exceptions.PartialCredentialsError), (False, "no keys were found", KEYS)),
        ((exceptions.ProfileNotFound,), (False, "AWS_PROFILE names a profile that is not there", KEYS)),
        ((exceptions.NoRegionError,), (False, "no region was named", "add ?region=us-east-1")),
        ((exceptions.ConnectTimeoutError,), (True, "no connection in time", reach)),
        (
            (exceptions.ReadTimeoutError,),
            (True, "it takes the request and does not answer", "look into the server's log"),
        ),
        ((exceptions.EndpointConnectionError,), (True, "no connection", reach)),
        (
            (exceptions.ConnectionClosedError,),
            (True, "it closed the connection", "if TLS is spoken there, write https://"),
        ),
        ((exceptions.ParamValidationError,), (False, "that is no bucket's name", "correct the bucket's name")),
    )
    for classes, found in kinds:
        if isinstance(error, classes):
            return found
    return False, f"the client gave up: {type(error).__name__}", "correct endpoint_url, region and keys"


def rejects_checksums(error: Any) -> bool:
    """Whether a refusal is that of a server that does not know the checksums of newer clients."""
    status, code = error_code(error)
    return status in (400, 411, 501) and code not in MENDS
