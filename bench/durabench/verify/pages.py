"""The page of every check: what it is, what is lost otherwise, how to mend it, and who says so."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from durabench_backends import registry
from durabench_backends.locate import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durabench_backends.contract import Backend

PAGE_WIDTH = 100


class UnknownCheck(LookupError):
    """No check of that id; the message offers the nearest ones."""


def prefix_of(backend: type[Backend] | Backend) -> str:
    """What the ids of a backend's checks begin with; empty where it has none."""
    return next(iter(getattr(backend, "pages", ())), "").partition(".")[0]


def pages_of(backend: type[Backend]) -> dict[str, str]:
    """Id → page of every check that a backend's deployments can get."""
    own: Mapping[str, str] = getattr(backend, "pages", {})
    if not own:
        return {}
    from durabench import counting

    return {**own, **counting.pages(prefix_of(backend))}


def ids_of(backend: type[Backend]) -> list[str]:
    """The ids of those checks."""
    return list(pages_of(backend))


def page(asked: str, backend: type[Backend] | None = None) -> str:
    """The page of a check, of one backend or of whichever has it. UnknownCheck names the nearest ids."""
    known: dict[str, str] = {}
    for one in [backend] if backend is not None else _installed():
        known = {**pages_of(one), **known}
    if asked not in known:
        message = f"no check {asked!r}; {registry.nearest(asked, sorted(known))}"
        raise UnknownCheck(message)
    return f"{asked}\n\n{_wrapped(known[asked].strip())}\n"


def _wrapped(text: str) -> str:
    """Paragraphs wrapped between words, whatever lines they were written in."""
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return "\n\n".join(
        textwrap.fill(part, PAGE_WIDTH, break_long_words=False, break_on_hyphens=False) for part in paragraphs
    )


def _installed() -> list[type[Backend]]:
    """Every backend whose module can be imported here; what is missing has no page to show."""
    found = []
    for name in (*registry.BACKENDS, *registry.names()):
        try:
            found.append(registry.load(name))
        except (MissingExtra, registry.UnknownBackend):
            continue
    return list(dict.fromkeys(found))
