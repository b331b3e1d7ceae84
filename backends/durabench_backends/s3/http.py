"""What a server of ours says of itself over plain HTTP, beside S3: one attempt, NotReady where nobody answers."""

from __future__ import annotations

import http.client
import json
from typing import Any

from durabench_backends.contract import NotReady
from durabench_backends.s3.client import CONNECT_TIMEOUT_S


def found(port: int, path: str) -> bytes | None:
    """The body of ``GET path`` on 127.0.0.1, None for a 404; NotReady where the server does not answer yet.

    Not by urllib, which would ask a proxy of the environment for this machine's own servers.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CONNECT_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        passing = type(error).__name__
    else:
        if answer.status == 200:
            return body
        if answer.status == 404:
            return None
        passing = f"{path} answers {answer.status}"
    finally:
        connection.close()
    message = f"S3 is not ready: {passing}"
    raise NotReady(message)


def answered(port: int, path: str) -> bytes:
    """The same; NotReady for a 404 too."""
    body = found(port, path)
    if body is None:
        message = f"S3 is not ready: {path} is not there"
        raise NotReady(message)
    return body


def get_json(port: int, path: str) -> Any:
    """A document of JSON."""
    return json.loads(answered(port, path))
