"""Where a backend's name leads: one lazy line per backend, entry points of other packages, or ``package.module:Class``.

Nothing is imported before it is asked for, so that a missing extra costs only the backend that needs it.
"""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple, cast

from durabench_backends.locate import MissingExtra, library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench_backends.contract import Backend, Setting

GROUP = "durabench.backends"
"""Entry-point group for backends of other packages: name → class, one more name of the same class per URL scheme."""


class Line(NamedTuple):
    """One registered backend: where its class is, the extra that installs what it needs, its URL schemes."""

    target: str
    extra: str | None = None
    schemes: tuple[str, ...] = ()
    by_url_only: bool = False
    """Has no server of its own to run: serves URLs and is not listed."""
    url: str | None = None
    """How a person writes its URL."""
    part: str = ""
    """What such a URL is followed by to name a part of it, whose sizes are listed."""
    password: tuple[str, ...] = ()
    """Variables that its own client takes the password from, where a URL has none."""


BACKENDS: dict[str, Line] = {
    "memory": Line("durabench_backends.memory:Memory"),
    "files": Line("durabench_backends.files:Files", schemes=("file",), url="file:///dir?write=fsync-dir"),
    "sqlite": Line(
        "durabench_backends.sqlite:Sqlite",
        schemes=("sqlite",),
        url="sqlite:////abs.db?journal_mode=wal&synchronous=full",
        part="[#table]",
    ),
    "postgres": Line(
        "durabench_backends.postgres:Postgres",
        "postgres",
        ("postgresql", "postgres"),
        url="postgresql://…",
        part="[#table]",
        password=("PGPASSWORD",),
    ),
    "redis": Line(
        "durabench_backends.redis:Redis",
        "redis",
        ("redis", "rediss"),
        url="redis://…",
        part="[#prefix]",
        password=("REDISCLI_AUTH",),
    ),
    "valkey": Line(
        "durabench_backends.redis:Valkey",
        "redis",
        ("valkey", "valkeys"),
        url="valkey://…",
        part="[#prefix]",
        password=("VALKEYCLI_AUTH", "REDISCLI_AUTH"),
    ),
    "s3-swift": Line("durabench_backends.s3.swift:Swift", "s3"),
    "s3-seaweedfs": Line("durabench_backends.s3.seaweedfs:SeaweedFS", "s3"),
    "s3-moto": Line("durabench_backends.s3.moto:Moto", "s3"),
    "s3": Line(
        "durabench_backends.s3.anywhere:S3", "s3", ("s3",), by_url_only=True, url="s3://bucket/prefix?endpoint_url=…"
    ),
}


class UnknownBackend(LookupError):
    """No backend, setting or URL scheme of that name; the message offers the nearest ones."""


def names() -> list[str]:
    """Every backend that can be asked for by name, ours first, then those of other packages."""
    schemes = {scheme for line in BACKENDS.values() for scheme in line.schemes}
    others = sorted({point.name for point in entry_points(group=GROUP)} - set(BACKENDS) - schemes)
    return [*(name for name, line in BACKENDS.items() if not line.by_url_only), *others]


def url_forms(*, parts: bool = False) -> str:
    """How a person writes a URL of each backend that takes one, for help and errors; with ``parts`` as one whose sizes
    are listed, which takes no options.
    """
    lines = [line for line in BACKENDS.values() if line.url]
    return ", ".join(f"{line.url.partition('?')[0]}{line.part}" if parts else line.url for line in lines if line.url)


LONGEST_URL, LONGEST_NAME = 2048, 400


def password_variables(url: str) -> tuple[str, ...]:
    """The variables of the environment that the client of a URL's backend takes a password from."""
    line = BACKENDS.get(name_for_url(url))
    return line.password if line else ()


def nearest(word: str, known: Sequence[str]) -> str:
    """A clause that offers the nearest known names: ``did you mean a or b?``, else the whole list."""
    close = difflib.get_close_matches(word[:100], known, n=3, cutoff=0.5)  # of long words it would take minutes
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


def load(name: str) -> type[Backend]:
    """The class behind a registered name, an entry point or ``package.module:Class``.

    Raises UnknownBackend or MissingExtra, each with its mend.
    """
    if len(name) > LONGEST_NAME:
        message = f"a backend's name of {len(name):,} characters: there are none longer than {LONGEST_NAME}"
        raise UnknownBackend(message)
    if name in BACKENDS:
        line = BACKENDS[name]
        return _import(name, line.target, line.extra)
    if ":" in name:  # asked first: looking through the entry points of all packages takes a driver a tenth of a second
        return _import(name, name, None)
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _import(name, point.value, None)
    message = f"unknown backend {name!r}; {nearest(name, names())}"
    raise UnknownBackend(message)


def require(name: str) -> None:
    """MissingExtra, with the line that installs it, unless the client library of a backend is installed."""
    line = BACKENDS.get(name)
    if line is not None and line.extra is not None:
        for module in getattr(load(name), "imports", ()):
            library(module.partition(".")[0], name, line.extra)


def _import(name: str, target: str, extra: str | None) -> type[Backend]:
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        if extra is None or (error.name or "").startswith("durabench_backends"):
            message = f"backend {name!r} cannot be imported: {error}"
            raise UnknownBackend(message) from error
        message = f"{name} needs {error.name}: pip install 'durabench[{extra}]'"
        raise MissingExtra(message, name=error.name) from error
    except AttributeError as error:
        message = f"backend {name!r}: {error}"
        raise UnknownBackend(message) from error
    return cast("type[Backend]", found)


def setting_of(backend: type[Backend], name: str, setting: str) -> Setting:
    """The named setting of a backend; UnknownBackend offers the nearest."""
    for candidate in backend.settings:
        if candidate.name == setting:
            return candidate
    known = [candidate.name for candidate in backend.settings]
    message = f"unknown setting {setting!r} of {name}; {nearest(setting, known)}"
    raise UnknownBackend(message)


def name_for_url(url: str) -> str:
    """The name of the backend that a URL's scheme belongs to; UnknownBackend lists the known schemes."""
    if len(url) > LONGEST_URL:
        message = f"a URL of {len(url):,} characters: there are none longer than {LONGEST_URL:,}"
        raise UnknownBackend(message)
    scheme = url.partition("://")[0].lower()
    for name, line in BACKENDS.items():
        if scheme in line.schemes:
            return name
    for point in entry_points(group=GROUP):
        if point.name == scheme:
            return scheme
    known = sorted({scheme for line in BACKENDS.values() for scheme in line.schemes})
    message = f"unknown URL scheme {scheme!r}; {nearest(scheme, known)}"
    raise UnknownBackend(message)
