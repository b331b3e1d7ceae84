"""``pytest --durabench URL``: one test per check of a live deployment, beside a project's own tests.

Loaded by every pytest of an environment that has durabench, so nothing but pytest is imported before the option is
given.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STATUS_KEY = "durabench"
"""Marker of every item made here, for ``-m durabench``, and what is handed to a worker of pytest-xdist."""

Looked = list[tuple[str, list[tuple[str, str, str]]]]
"""Of each deployment its name, without secrets, and of each check its id, a word and what is said of it."""
LOOKED = pytest.StashKey[Looked]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durabench", "durabench: does a live deployment keep what it acknowledged?")
    group.addoption("--durabench", action="append", default=[], metavar="URL", help="Verify a deployment; repeatable.")
    group.addoption("--durabench-survive", default="drive", metavar="DOMAIN", help="client, server, machine or drive.")
    group.addoption("--durabench-max-loss", default="0", metavar="TIME", help="0, or 2s.")
    group.addoption("--durabench-probe", action="store_true", help="Prove it, in a namespace that is removed again.")
    group.addoption(
        "--durabench-ignore", action="append", default=[], metavar="ID=REASON", help="An accepted finding; repeatable."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{STATUS_KEY}: a check of a live deployment, made by --durabench URL")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, in the process that hands out the tests
def pytest_configure_node(node: Any) -> None:
    node.workerinput[STATUS_KEY] = _looked(node.config)


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, checks in _looked(config):
        items.extend(Deployment.from_parent(session, name=name, checks=checks).collect())


def _looked(config: pytest.Config) -> Looked:
    """What was seen of every deployment, which is looked at once: a worker gets what its controller saw.

    So a server is probed by one process alone, and all workers collect the same items.
    """
    if LOOKED not in config.stash:
        given = getattr(config, "workerinput", {}).get(STATUS_KEY)
        config.stash[LOOKED] = _look(config) if given is None else given
    return config.stash[LOOKED]


def _look(config: pytest.Config) -> Looked:
    urls: list[str] = config.getoption("--durabench")
    return [(name, _checks(config, url)) for name, url in zip(_names(urls), urls, strict=True)] if urls else []


def _names(urls: Sequence[str]) -> Iterator[str]:
    """Each URL without its secrets. Logins are secrets: what then looks like one before it is told by its number."""
    from durabench.redact import redact

    seen: Counter[str] = Counter()
    for url in urls:
        shown = redact(url)
        seen[shown] += 1
        yield shown if seen[shown] == 1 else f"{shown} #{seen[shown]}"


def _checks(config: pytest.Config, url: str) -> list[tuple[str, str, str]]:
    """Each check; the verdict too where no check says why it is not held."""
    from durabench import verify
    from durabench.cli.options import seconds
    from durabench.verify import layout
    from durabench_backends.registry import UnknownBackend

    asked = config.getoption
    try:
        goal = verify.goal(asked("--durabench-survive"), seconds(asked("--durabench-max-loss")))
        ignored = verify.ignored(asked("--durabench-ignore"))
        found = verify.verify(url, goal, probe=asked("--durabench-probe"), ignore=ignored)
    except (ValueError, UnknownBackend) as error:
        message = f"--durabench: {error}"
        raise pytest.UsageError(message) from None
    report = verify.clean(found)
    checks = [(check.id, layout.word(report, check), layout.message(report, check)) for check in report.checks]
    if report.verdict != "held" and not (report.deciding("fail") or report.deciding("unknown")):
        checks.append(("verdict", report.verdict, layout.answer(report)))
    return checks


class Deployment(pytest.Collector):
    """A deployment that was looked at, and what was seen."""

    def __init__(self, checks: Sequence[tuple[str, str, str]], **rest: Any) -> None:
        super().__init__(**rest)
        self.checks = checks

    def collect(self) -> Iterator[pytest.Item]:
        """An item per check."""
        for name, word, said in self.checks:
            yield CheckItem.from_parent(self, name=name, word=word, said=said)


class CheckItem(pytest.Item):
    """One check of a deployment, or the verdict itself."""

    def __init__(self, word: str, said: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.word, self.said = word, said
        self.add_marker(STATUS_KEY)

    def runtest(self) -> None:
        """Pass, warn, skip or fail as the check says."""
        if self.name == "verdict":
            pytest.fail(self.said, pytrace=False)
        if self.word == "ignored":
            pytest.xfail(self.said)
        if self.word == "skip":
            pytest.skip(self.said)
        if self.word == "warn":
            _warn(f"{self.name}: {self.said}")
        if self.word in ("fail", "unknown"):
            pytest.fail(f"{self.word}: {self.said}", pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where it stands: at a URL, in no file."""
        return self.parent.name if self.parent else "", None, self.name


class Doubtful(UserWarning):
    """A check that is worth knowing and changes nothing."""


def _warn(text: str) -> None:
    """Shown, unless it is filtered out; never an error, also where the project makes errors of warnings."""
    try:
        warnings.warn(Doubtful(text), stacklevel=1)
    except Doubtful:
        with warnings.catch_warnings():
            warnings.simplefilter("always", Doubtful)
            warnings.warn(Doubtful(text), stacklevel=1)
