"""Takes passwords, keys and tokens out of whatever is written down or shown.

Rather too much than too little: a result is shared, a password must not be. Applied to every string of every result
file; error messages and command lines on their way to a terminal go through the same door.

Three ways, one after the other. A URL is taken apart (`shown`). What this process has been given as a secret (`learn`)
is looked for as it is, in every form that it may be quoted in. What only looks like a secret is found by its name.
"""

from __future__ import annotations

import configparser
import errno
import html
import json
import os
import re
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit
from xml.sax.saxutils import quoteattr

from durabench_backends import registry, urls

MASK = "***"
SHORTEST_IN_URL, SHORTEST_IN_ENVIRONMENT = 4, 8
"""A shorter secret is not looked for as it is: it would be found everywhere."""

_TELLTALE = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|signature|requirepass|masterauth"
    r"|api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key|account[_-]?key|key[_-]?id)"
)
# A word that names a secret: PGPASSWORD, AWS_TELLTALE_ACCESS_KEY, X-Amz-Signature, sslpassword, REDISCLI_AUTH.
_NAME = rf"(?:[\w.-]*{_TELLTALE}[\w-]*|[\w.-]*\bauth|\w+_auth)"
# What it is set to: quoted whole (with the escapes of a connection string), or up to a blank or &.
_END = r"(?=[\s&,;:)}\]]|$)"
_VALUE = rf"""(?:'(?:\\.|[^'\\])*(?:'{_END}|$)|"(?:\\.|[^"\\])*(?:"{_END}|$)|[^\s&]+)"""

# Userinfo reaches to the last @, since passwords that should have been escaped hold / ? # and @ themselves. Three
# slashes are a path on this host, which has no userinfo. A login whose password is hidden already may name its user.
_HIDDEN_LOGIN = r"[\w.-]*:\*\*\*@(?!\S*@)"
_USERINFO = re.compile(rf"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?!/)(?!{_HIDDEN_LOGIN})(?:(?!://)\S)*@")
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
_PLAIN_USER = re.compile(r"[\w.-]{0,63}")
_PLAIN_MEMBER = re.compile(r"[a-z_]{2,}=[\w.:/%+,~-]*(?:#[\w.:/*-]*)?")
"""A member of a query that can be no piece of a secret before it that should have been escaped."""
_OURS = frozenset(
    {
        *("e", "ns", "key", "keys", "verb", "sha256", "id"),
        *("backend", "setting", "tier", "namespace", "workload", "fault", "destroyed", "lane", "host", "driver"),
        *("filesystem", "server_kill", "struck", "recording", "state", "control", "verdict", "kind", "layout"),
    }
)
"""Members that hold words of ours, and are read again: no password is in them, though one may be such a word."""


# ------------------------------------------------------------------------------------------------ what is known


class Known:
    """The secrets that this process was given. It only grows: whatever was a secret once is one to the end."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._found = self._found_anywhere = re.compile(r"(?!)")

    def add(self, secrets: Iterable[str]) -> None:
        """Hide these from now on, as they are and in every form in which they may be quoted."""
        new = {secret for secret in secrets if len(secret) >= SHORTEST_IN_URL} - self._secrets - _words()
        if new:
            self._secrets |= new
            self._found = _any_of(self._secrets)
            self._found_anywhere = _any_of(one for one in self._secrets if len(one) >= SHORTEST_IN_ENVIRONMENT)

    def hidden(self, text: str) -> str:
        """``text`` without them."""
        return self._found.sub(MASK, text)

    def hidden_anywhere(self, text: str) -> str:
        """The same for text in which words of ours stand beside others: short secrets, which may be such, stay."""
        return self._found_anywhere.sub(MASK, text)

    def within(self, text: str) -> bool:
        """Whether one of them is in ``text``."""
        return self._found.search(text) is not None


KNOWN = Known()
"""Of this process. The one thing here that changes: a secret must be hidden by whoever writes next, wherever it is."""


def learn(*texts: str) -> None:
    """Hide from now on what these URLs, or options set to one, give as a secret."""
    for text in texts:
        begin = re.search(r"[A-Za-z][A-Za-z0-9+.-]*://", text)
        if begin:
            KNOWN.add(secrets_of(text[begin.start() :]))


def learn_environment() -> None:
    """Hide from now on what the environment gives as a secret, and the files that clients take passwords from."""
    given = dict(os.environ)
    learn(*(value for value in given.values() if "://" in value))
    KNOWN.add(value for name, value in given.items() if _tells(name) and _is_secret(value))
    KNOWN.add(value for value in _in_password_files(given) if _is_secret(value))


def secrets_of(url: str) -> frozenset[str]:
    """What a URL gives as a secret, as it is written and as it is read, in every way in which it may be read. A word
    that the URL shows anyway is none.
    """
    parts = urls.split(url)
    if parts is None:
        return frozenset()
    found = {parts.password or ""} | _by_the_letter(url)
    query = parts.rest.partition("?")[2]
    members = query.split("&")
    for number, member in enumerate(members):
        name, sign, value = member.partition("=")
        if sign and _tells(unquote(name)):
            found |= {value, value.partition("#")[0]}
            if not all(map(_PLAIN_MEMBER.fullmatch, members[number + 1 :])):  # it holds & itself
                found.add("&".join([value, *members[number + 1 :]]))
        elif "://" in unquote(value):
            found |= secrets_of(unquote(value))
    found |= {unquote(one) for one in found} | {unquote_plus(one) for one in found}
    return frozenset(found) - {"", *re.split(r"[/:,?#]", unquote(parts.rest.partition("?")[0]))}


def _by_the_letter(url: str) -> set[str]:
    """The password that a client reads which knows the letter of a URL only."""
    try:
        return {urlsplit(url).password or ""}
    except ValueError:
        return set()


def _is_secret(value: str) -> bool:
    """PWD, PGPASSFILE and the like are paths: to hide them would hide what is looked at."""
    try:
        return len(value) >= SHORTEST_IN_ENVIRONMENT and not Path(value).exists()
    except (OSError, ValueError):
        return True


def _in_password_files(given: Mapping[str, str]) -> Iterable[str]:
    """The passwords in the files that libpq and the AWS clients read by themselves."""
    home = Path(given.get("HOME", "/nonexistent"))
    for line in _lines(Path(given.get("PGPASSFILE") or home / ".pgpass")):
        if not line.startswith("#"):
            yield re.sub(r"\\(.)", r"\1", re.split(r"(?<!\\):", line, maxsplit=4)[-1])
    for name, usual in (
        ("PGSERVICEFILE", ".pg_service.conf"),
        ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
        ("AWS_CONFIG_FILE", ".aws/config"),
    ):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string("\n".join(_lines(Path(given.get(name) or home / usual))))
        except configparser.Error:
            continue
        yield from (value for section in parser.sections() for key, value in parser.items(section) if _tells(key))


FILE_MAX_BYTES = 1 << 18


def begin_of(path: Path) -> bytes:
    """What a file of usual size holds. OSError, also for what is no regular file: a pipe may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return os.read(descriptor, FILE_MAX_BYTES)
    finally:
        os.close(descriptor)


def _lines(path: Path) -> list[str]:
    """The lines of a file; none of what cannot be read."""
    try:
        return begin_of(path).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _words() -> frozenset[str]:
    """Names of backends and schemes: they stand everywhere, and as a password are no secret to anybody."""
    schemes = (scheme for line in registry.BACKENDS.values() for scheme in line.schemes)
    return frozenset({*registry.BACKENDS, *schemes, "durabench", "localhost", "password"})


def _any_of(secrets: Iterable[str]) -> re.Pattern[str]:
    """Whatever of these is found first, the longest before its pieces."""
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST_IN_URL}
    return re.compile("|".join(map(re.escape, sorted(forms, key=lambda form: (-len(form), form)))) or "(?!)")


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as URLs, JSON, HTML, XML, Python, shells, libpq, Markdown and GitHub's logs quote it."""
    plain = {secret, " ".join(secret.split())}
    found = set(plain)
    for one in plain:
        raw = one.encode("utf-8", "surrogateescape")
        encoded = {quote(raw, safe=safe) for safe in ("", "/", "!$&'()*+,;=", "!$&'()*+,;=:@/?")} | {quote_plus(raw)}
        encoded.add(urls.escaped(f"x://:{one}@")[len("x://:") : -1])
        found |= encoded | {re.sub("%[0-9A-F]{2}", lambda hexed: hexed[0].lower(), form) for form in encoded}
        found |= {html.escape(one), html.escape(one, quote=False), html.escape(one).replace("&#x27;", "&#39;")}
        found |= {html.escape(one, quote=False).replace('"', "&quot;"), quoteattr(one)[1:-1], repr(raw)[2:-1]}
        found |= {repr(one)[1:-1], ascii(one)[1:-1], shlex.quote(one), shlex.quote(one)[1:-1]}
        found |= {one.replace("\\", "\\\\").replace("'", "\\'"), one.replace("'", "''"), one.replace("|", "\\|")}
        found.add(one.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
        quoted = {json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1]}
        found |= quoted | {json.dumps(form)[1:-1] for form in quoted} | {html.escape(form) for form in quoted}
    return found


# ------------------------------------------------------------------------------------------------- what is shown


def shown(url: str, *, user: bool = True) -> str:
    """A URL without its secrets, by its parts: ``redis://ann:***@host/0``, or without its ``user`` ``redis://***@…``.

    Two URLs that differ in nothing else read alike. What is no URL goes through `redact`.
    """
    parts = urls.split(url)
    if parts is None:
        return redact(url)
    login = ""
    if parts.user is not None:
        named = user and parts.password is not None and _PLAIN_USER.fullmatch(parts.user)
        login = f"{parts.user}:{MASK}@" if named else f"{MASK}@"
    return f"{parts.scheme}://{login}{_shown_rest(parts.rest)}"


def _shown_rest(rest: str) -> str:
    """Host, path and query; from a secret on that was not escaped, nothing that may be a piece of it."""
    head, mark, query = rest.partition("?")
    members = query.split("&")
    told = []
    for number, member in enumerate(members):
        name, sign, value = member.partition("=")
        if sign and _tells(unquote(name)):
            told.append(f"{name}={MASK}")
            if not all(map(_PLAIN_MEMBER.fullmatch, members[number + 1 :])):
                break
        elif "://" in unquote(value) and shown(unquote(value)) != unquote(value):
            told.append(f"{name}={shown(unquote(value), user=False)}")
        else:
            told.append(redact(member))
    return head + mark + "&".join(told)


def redact(text: str) -> str:
    """``text`` without what is known to be a secret or looks like one; each is replaced by ``***``. Idempotent."""
    return _by_name(KNOWN.hidden(text))


def _by_name(text: str) -> str:
    if not _suspect(text):
        return text
    text = _USERINFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<name>{MASK}", text)
    text = _ASSIGNED.sub(rf"\g<name>\g<sign>{MASK}", text)
    text = _SPOKEN.sub(rf"\g<name>{MASK}", text)
    return _AWS_ID.sub(MASK, text)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets, also where option and value are two arguments."""
    told: list[str] = []
    hidden = False
    for argument in argv:
        told.append(MASK if hidden and not argument.startswith("-") else _argument(argument))
        hidden = _OPTION.fullmatch(argument) is not None
    return told


def _argument(argument: str) -> str:
    """An argument, or an option with its value, that is a URL is one from its begin to its end, whatever is in it."""
    option, sign, value = argument.partition("=")
    if sign and option.startswith("-") and urls.split(value):
        return f"{option}={redact(shown(value, user=False))}"
    hidden = urls.split(argument) and shown(argument) != argument
    return redact(shown(argument, user=False) if hidden else argument)


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
    return (_WRITE(redact_all(value)) if _suspect(looked_at) or KNOWN.within(text) else text) + "\n"


def _member(name: str, member: Any, *, secret: bool) -> Any:
    if isinstance(member, str) and member and (_tells(name) or (secret and name == "value")):
        return MASK
    if name in _OURS:
        return _ours(member)
    return redact_all(member)


def _ours(member: Any) -> Any:
    if isinstance(member, str):
        return _by_name(member)
    return [_ours(each) for each in member] if isinstance(member, (list, tuple)) else redact_all(member)


def _tells(name: str) -> bool:
    return _suspect(name) and _WHOLE_NAME.fullmatch(name) is not None


def _suspect(text: str) -> bool:
    folded = text.casefold()  # not lower(): patterns that ignore case take a long s for an s
    return any(word in folded for word in _SUSPECT)
