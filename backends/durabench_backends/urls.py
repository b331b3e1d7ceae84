"""A URL as a person writes it: where its login ends, and the same with that login escaped, for any client to read.

Passwords are pasted into URLs as they are. One with ``@``, ``/``, ``#`` or a blank in it is no URL by the letter; what
was meant can be told all the same, since a host has none of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# What may follow a login: hosts and ports, a path, members of a query that look like some, the name of a part; or, once
# one of the members is a secret itself, anything. Where something else follows the first @, that was in the password.
_HOST = r"(?:[\w.%~-]*|\[[\w.:%]*\])(?::\d*)?"
_TO_THE_END = r"(?:[\w.-]+=[^&#\s]*&)*[\w.-]*(?i:pass|pwd|secret|token|key)[\w-]*=.*"
_AFTER_LOGIN = re.compile(
    rf"{_HOST}(?:,{_HOST})*(?:/[^?#@\s]*)?(?:\?(?:{_TO_THE_END}|(?:[a-z_]{{2,}}=[^&#\s]*(?:&|(?=#)|$))*))?(?:#[\w.:/*-]*)?",
    re.DOTALL,
)
_UNESCAPED = re.compile(r"%(?![0-9A-Fa-f]{2})|[^\w.~!$&'()*+,;=:%-]|[^\x00-\x7f]")


class Url(NamedTuple):
    """The parts of a URL, each as it is written; ``user`` and ``password`` are None where there is none."""

    scheme: str
    user: str | None
    password: str | None
    rest: str

    def __str__(self) -> str:
        colon = "" if self.password is None else f":{self.password}"
        login = "" if self.user is None else f"{self.user}{colon}@"
        return f"{self.scheme}://{login}{self.rest}"


def split(url: str) -> Url | None:
    """The parts of ``url``, its login as wide as it may have been meant; None for what is no URL."""
    begin = _SCHEME.match(url)
    if begin is None:
        return None
    scheme, rest = begin[0][:-3], url[begin.end() :]
    at = _end_of_login(rest)
    if at < 0:
        return Url(scheme, None, None, rest)
    user, colon, password = rest[:at].partition(":")
    return Url(scheme, user, password if colon else None, rest[at + 1 :])


def escaped(url: str) -> str:
    """``url`` with what is not allowed in its user and password percent-encoded; one that is right stays as it is."""
    parts = split(url)
    if parts is None or parts.user is None:
        return url
    password = None if parts.password is None else _escaped(parts.password)
    return str(parts._replace(user=_escaped(parts.user), password=password))


def _end_of_login(rest: str) -> int:
    """Where the @ after the login is; -1 without one. Three slashes are a path on this host, which has none."""
    if rest.startswith("/"):
        return -1
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    at = authority.rfind("@")
    return at if _AFTER_LOGIN.fullmatch(rest, at + 1) else rest.rfind("@")


def _escaped(text: str) -> str:
    return _UNESCAPED.sub(lambda found: quote(found[0].encode("utf-8", "surrogateescape"), safe=""), text)
