"""Takes passwords, keys and tokens out of whatever is written down or shown.

Rather too much than too little: a result is shared, a password must not be. Applied to every string of every result
file; error messages and command lines on their way to a terminal go through the same door.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"

_TELLTALE = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|signature|requirepass|masterauth"
    r"|api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key|account[_-]?key|key[_-]?id)"
)
# A word that names a secret: PGPASSWORD, AWS_TELLTALE_ACCESS_KEY, X-Amz-Signature, sslpassword, REDISCLI_AUTH.
_NAME = rf"(?:[\w.-]*{_TELLTALE}[\w-]*|[\w.-]*\bauth|\w+_auth)"
# What it is set to: quoted (with the escapes of a connection string), or up to a blank, quote, & or ;.
_VALUE = r"""(?:'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|[^\s'"&;]+)"""

# Userinfo reaches to the last @, since passwords that should have been escaped hold / ? # and @ themselves. Three
# slashes are a path on this host, which has no userinfo.
_USERINFO = re.compile(r"""(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?!/)(?:(?!://)[^\s'"<>])*@""")
_ASSIGNED = re.compile(rf"""(?P<name>{_NAME})(?P<sign>["']?\s*[=:]\s*|%3D){_VALUE}""", re.IGNORECASE)
_SPOKEN = re.compile(rf"(?P<name>(?:--?{_NAME}|\brequirepass|\bmasterauth)\s+)(?!-){_VALUE}", re.IGNORECASE)
_BEARER = re.compile(
    r"(?P<name>\b(?:Bearer|Basic|AWS4-HMAC-SHA256)\s+)[^\s'\",]+(?:,\s*\w+=[^\s'\",]+)*", re.IGNORECASE
)
_AWS_ID = re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")
_SUSPECT = (
    "://",
    "auth",
    "pass",
    "pwd",
    "secret",
    "token",
    "credential",
    "signature",
    "key",
    "bearer",
    "basic",
    "akia",
    "asia",
)
"""Where none of these is, in whatever case, no pattern matches. Plain words: many times faster than the patterns."""
_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_WHOLE_NAME = re.compile(_NAME, re.IGNORECASE)


def redact(text: str) -> str:
    """``text`` without what looks like a secret; each is replaced by ``***``. Idempotent."""
    if not _suspect(text):
        return text
    text = _USERINFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<name>{MASK}", text)
    text = _ASSIGNED.sub(rf"\g<name>\g<sign>{MASK}", text)
    text = _SPOKEN.sub(rf"\g<name>{MASK}", text)
    return _AWS_ID.sub(MASK, text)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets, also where option and value are two arguments."""
    shown: list[str] = []
    hidden = False
    for argument in argv:
        shown.append(MASK if hidden and not argument.startswith("-") else redact(argument))
        hidden = _OPTION.fullmatch(argument) is not None
    return shown


def redact_all(value: Any) -> Any:
    """A JSON value of which every string went through `redact`; what a telling name is set to is hidden whole."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        told = value.get("id")
        secret = isinstance(told, str) and _tells(told)
        return {name: _member(str(name), member, secret=secret) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(member, str) for member in value):
            return redact_argv(value)
        return [redact_all(member) for member in value]
    return value


def as_json_lines(values: Iterable[Any]) -> str:
    """Each value as one line of JSON after `redact_all`. NaN and infinities raise ValueError."""
    return "".join(_line(value) for value in values)


_WRITE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_PLAIN_NAMES = ('"key":', '"keys":')
"""Names that are nobody's secret and in every event. A string that holds one has its quotes escaped: no match."""


def _line(value: Any) -> str:
    """Most lines hold nothing suspect: one look at the whole line saves a look at each of its names and strings."""
    text = looked_at = _WRITE(value)
    for name in _PLAIN_NAMES:
        looked_at = looked_at.replace(name, "")
    return (_WRITE(redact_all(value)) if _suspect(looked_at) else text) + "\n"


def _member(name: str, member: Any, *, secret: bool) -> Any:
    if isinstance(member, str) and member and (_tells(name) or (secret and name == "value")):
        return MASK
    return redact_all(member)


def _tells(name: str) -> bool:
    return _suspect(name) and _WHOLE_NAME.fullmatch(name) is not None


def _suspect(text: str) -> bool:
    folded = text.casefold()  # not lower(): patterns that ignore case take a long s for an s
    return any(word in folded for word in _SUSPECT)
