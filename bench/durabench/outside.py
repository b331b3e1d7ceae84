"""The doors for files that somebody else may have made: opened without following a link, read with a limit, and taken
for JSON only where that can be read in one way. What they hold is the matter of `stored`.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENT_BYTES = 256 << 20
"""The largest JSON document that is read: run.json of 100,000 trials is a fortieth of it."""
LINE_BYTES = 1 << 20
"""The longest line of a file of rows."""
HISTORY_BYTES = 128 << 20
"""The largest history, unpacked."""
_CHUNK_BYTES = 1 << 20
LONGEST = 4096
"""So many signs of a word are taken from a file; what is longer is no word of ours, and is cut."""
_SAID = 120
"""So much of what is wrong is quoted in a message."""

# What moves a cursor, ends a line or turns the direction of writing; and what is no text: half of a surrogate pair.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_ESCAPES = re.compile(rb"\\[^\"\\/]")
"""In JSON text: an escape of anything but a quote or a stroke."""
_LONG = re.compile(rb'"[^"]{4096}')
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
"""In JSON text: half of a pair, which may be without the other."""


class Malformed(ValueError):
    """A file that is not what durabench writes; the message says which, where, and the mend (exit 2)."""


def text(path: Path) -> str:
    """The UTF-8 text of a file that a person named, such as a profile. OSError, UnicodeDecodeError, Malformed."""
    with path.open("rb") as file:
        content = file.read(DOCUMENT_BYTES + 1)
    if len(content) > DOCUMENT_BYTES:
        message = f"{path} is larger than {DOCUMENT_BYTES >> 20} MiB: give the file that was meant"
        raise Malformed(message)
    return content.decode("utf-8")


def toml(path: Path) -> dict[str, Any]:
    """What a TOML file says that a person named. OSError; ValueError says what is wrong with it."""
    try:
        return tomllib.loads(text(path))
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None


@contextmanager
def opened(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """The regular file ``name`` (``histories/7.jsonl.gz``) inside ``folder``, to be read; never what a link below the
    folder leads to, and never a device or a pipe. FileNotFoundError, Malformed, OSError.
    """
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, last = name.split("/")
        for parent in parents:
            below = _open(parent, os.O_DIRECTORY, at, folder / name)
            os.close(at)
            at = below
        descriptor = _open(last, os.O_NONBLOCK, at, folder / name)
    finally:
        os.close(at)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            _refuse(folder / name, "is no file: results are plain files in their folder")
        yield file


def _open(name: str, flags: int, at: int, path: Path) -> int:
    if name in ("", ".", "..") or "\0" in name:
        _refuse(path, "is no name of a file in that folder")
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=at)
    except FileNotFoundError:
        raise
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            _refuse(path, "is a link, or lies behind one: copy what it leads to into the folder")
        raise


def content(folder: Path, name: str, limit_bytes: int = DOCUMENT_BYTES) -> bytes:
    """All bytes of a file of the folder. FileNotFoundError, Malformed, OSError."""
    with opened(folder, name) as file:
        found = file.read(limit_bytes + 1)
    if len(found) > limit_bytes:
        _refuse(folder / name, f"is larger than {limit_bytes >> 20} MiB: durabench writes no such file")
    return found


def unpacked(folder: Path, name: str, limit_bytes: int = HISTORY_BYTES) -> bytes:
    """What a gzip file of the folder holds. EOFError where it is torn; FileNotFoundError, Malformed, OSError."""
    packed = content(folder, name, limit_bytes)
    found = bytearray()
    while packed:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            found += member.decompress(packed, limit_bytes + 1 - len(found))
        except zlib.error as error:
            raise EOFError(str(error)) from None
        if len(found) > limit_bytes:
            _refuse(folder / name, f"unpacks to more than {limit_bytes >> 20} MiB: durabench writes no such file")
        if not member.eof:
            raise EOFError(name)
        packed = member.unused_data
    if not found:
        raise EOFError(name)
    return bytes(found)


def json_of(raw: bytes) -> Any:
    """The value of a JSON text that every reader reads alike: UTF-8, no name twice, no NaN, nothing too deep or too
    long to hold. ValueError says what is wrong.
    """
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_members, parse_constant=_no_number)
        if _HALVES.search(raw):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None
    except UnicodeError:
        message = "no UTF-8 text"
        raise ValueError(message) from None
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        message = f"{quoted(next(name for name in names if names.count(name) > 1))} stands there twice"
        raise ValueError(message)
    return found


def _no_number(word: str) -> NoReturn:
    message = f"{word} is no number of JSON"
    raise ValueError(message)


def plain(raw: bytes) -> bool:
    """Whether nothing in a JSON text needs `shown`: a quick look, that may say no for nothing."""
    if _ESCAPES.search(raw) or _LONG.search(raw):
        return False
    return raw.isascii() or _UNSEEN.search(raw.decode(errors="replace")) is None


def shown(value: Any) -> Any:
    r"""A JSON value of which every string is one line that can be shown: what would steer a terminal, break a line or
    hide what follows it is spelled out (``\x1b``), and what is longer than any word of ours is cut.
    """
    if isinstance(value, str):
        return _UNSEEN.sub(_spelled, value if len(value) <= LONGEST else f"{value[:LONGEST]}…")
    if isinstance(value, dict):
        return {shown(name): shown(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shown(member) for member in value]
    return value


def _spelled(sign: re.Match[str]) -> str:
    number = ord(sign[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def quoted(what: object) -> str:
    """A word of others in a message of ours: one line, shortened."""
    said = shown(str(what))
    said = said if len(said) <= _SAID else f"{said[:_SAID]}…"
    return repr(said) if isinstance(what, str) else str(said)


def wrong(error: Exception) -> str:
    """What is wrong with a value, in one line and in JSON's words."""
    said = str(error).partition("\n")[0]
    if isinstance(error, msgspec.ValidationError):
        what, _, where = said.partition(" - at `$")
        said = f"{where.rstrip('`').lstrip('.') or 'it'}: {what[:1].lower()}{what[1:]}"
    return str(shown(said[:300]))


def _refuse(path: Path, why: str) -> NoReturn:
    message = f"{shown(str(path))} {why}"
    raise Malformed(message)
