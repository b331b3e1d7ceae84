"""Asks again for what no result holds: the passwords of URLs, for a run that is resumed and a trial that is replayed.

Looked for in this order: the same URL given again, a password file, the variables that the URL's own client takes its
password from, and, where somebody sits there, the terminal.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from durabench import redact
from durabench.redact import MASK, learn, shown
from durabench_backends import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from durabench.service import Target

_PASSWORD = re.compile(rf"(?<=:){re.escape(MASK)}(?=@)|(?<=[?&]password=){re.escape(MASK)}(?=[&#]|$)")
"""Where a password stood: of a login, or of a query."""


class NoLogin(ValueError):
    """A URL's secrets cannot be had again; the message names the ways to give them (exit 2)."""


class Logins:
    """Whoever was told a secret once is not asked again. ``given``: URLs as a person gives them again."""

    def __init__(self, given: Iterable[str] = (), password_file: Path | None = None) -> None:
        given = [one for one in given if "://" in one]
        learn(*given)
        self._given = {shown(one): one for one in given}
        self._file = password_file

    def of(self, recorded: str) -> str:
        """The URL that is recorded as ``recorded``, with its secrets. NoLogin; also where a URL was given that is none
        of those that are recorded.
        """
        if recorded in self._given:
            return self._given[recorded]
        if MASK not in recorded:
            return recorded
        if recorded.count(MASK) > 1 or not _PASSWORD.search(recorded):
            raise NoLogin(f"{recorded}: its login was not recorded: give this URL again, whole, with --backend")
        password = self._password(recorded)
        redact.KNOWN.add([password])
        url = _PASSWORD.sub(lambda _: quote(password, safe=""), recorded)
        learn(url)
        self._given[recorded] = url
        return url

    def all_of(self, recorded: Sequence[str]) -> tuple[str, ...]:
        """The same of names and URLs; a name stays as it is."""
        return tuple(self.of(one) if "://" in one else one for one in recorded)

    def refuse_others(self, recorded: Iterable[str]) -> None:
        """NoLogin if a URL was given that is none of these."""
        known = list(dict.fromkeys(one for one in recorded if "://" in one))
        for one in self._given:
            if one not in known:
                raise NoLogin(f"{one} is no URL of that run; it has {', '.join(known) or 'none'}")

    def _password(self, recorded: str) -> str:
        if self._file is not None:
            return _read(self._file)
        variables = registry.password_variables(recorded)
        for name in variables:
            if found := os.environ.get(name):
                return found
        if sys.stdin.isatty() and sys.stderr.isatty():
            return getpass.getpass(f"Password of {recorded}: ", stream=sys.stderr)
        ways = " or ".join(["--password-file FILE", *variables])
        raise NoLogin(f"{recorded}: its password was not recorded: give it by {ways}, or the URL again with --backend")


def recorded_as(target: Target, logins: Logins) -> Target:
    """A target of a recorded plan, as it can be connected to."""
    return target if target.url is None else type(target)(target.backend, target.setting, logins.of(target.url))


def _read(path: Path) -> str:
    """The first line of a password file. NoLogin."""
    try:
        line = redact.begin_of(path).decode().splitlines()[:1]
    except OSError as error:
        raise NoLogin(f"--password-file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoLogin(f"--password-file {path} is not UTF-8") from None
    if not line or not line[0]:
        raise NoLogin(f"--password-file {path} has no password in its first line")
    return line[0]
