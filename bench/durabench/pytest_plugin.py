"""``pytest --durabench URL``: one test per check of a live deployment, beside a project's own tests; and the fixture
`durable`, which with ``--durabench-explore`` lets a test fail whose save a power cut may take.

Loaded by every pytest of an environment that has durabench, so nothing but pytest is imported before the option is
given.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

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
    group.addoption("--durabench-explore", action="store_true", help="Explore what is called with `durable`.")
    group.addoption("--durabench-profile", default="posix", metavar="PROFILE", help="posix or ext4-ordered.")
    group.addoption(
        "--durabench-ignore", action="append", default=[], metavar="ID=REASON", help="An accepted finding; repeatable."
    )


@pytest.fixture
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Call a function that returns when it has saved below ``tmp_path``; the test fails if a power cut may take it.

    ``durable(save, tmp_path / "checkpoint", value)``. Without ``--durabench-explore`` it is only called. With it, it
    runs in a fork whose file calls are recorded: what it does elsewhere is not seen, and nothing of it comes back.
    """

    def call(function: Callable[..., object], *arguments: Any, **options: Any) -> None:
        __tracebackhide__ = True
        if not request.config.getoption("--durabench-explore"):
            function(*arguments, **options)
            return
        from durabench import explore

        profile = request.config.getoption("--durabench-profile")
        called = update_wrapper(partial(function, *arguments, **options), function)
        try:
            report = explore.explore_function(called, tmp_path, profile=profile)
        except (explore.UsageError, explore.CannotRecord) as error:
            pytest.fail(f"durabench: {error}", pytrace=False)
        if report.verdict != "kept":
            pytest.fail(explore.render(report, "table"), pytrace=False)

    return call


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{STATUS_KEY}: a check of a live deployment, made by --durabench URL")
    if config.getoption("--durabench"):
        from durabench import redact
        from durabench.cli.discreet import hide_arguments

        redact.learn(*config.getoption("--durabench"))
        redact.learn_environment()
        hide_arguments()


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
    from durabench.redact import shown

    seen: Counter[str] = Counter()
    for url in urls:
        name = shown(url, user=False)
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} #{seen[name]}"


def _checks(config: pytest.Config, url: str) -> list[tuple[str, str, str]]:
    """Each check; the verdict too where no check says why it is not held."""
    from durabench import verify
    from durabench.cli.options import seconds
    from durabench.redact import redact
    from durabench.verify import layout
    from durabench_backends.registry import UnknownBackend

    asked = config.getoption
    try:
        goal = verify.goal(asked("--durabench-survive"), seconds(asked("--durabench-max-loss")))
        ignored = verify.ignored(asked("--durabench-ignore"))
        found = verify.verify(url, goal, probe=asked("--durabench-probe"), ignore=ignored)
    except (ValueError, UnknownBackend) as error:
        message = f"--durabench: {redact(str(error))}"
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
