"""``pytest --durabench URL``: one test per check of a live deployment, beside a project's own tests; and the fixture
`durable`, which with ``--durabench-explore`` lets a test fail whose save a power cut may take.

Loaded by every pytest of an environment that has durabench, so nothing but pytest is imported before the option is
given.
"""

from __future__ import annotations

import warnings
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from durabench.verify import Report
    from durabench_backends.contract import Check

STATUS_KEY = "durabench"
"""Marker of every item made here, for ``-m durabench``."""


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


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for url in config.getoption("--durabench"):
        items.extend(Deployment.from_parent(session, name=_shown(url), url=url).collect())


def _shown(url: str) -> str:
    from durabench.redact import redact

    return redact(url)


class Deployment(pytest.Collector):
    """A deployment that is looked at once, when its checks are collected."""

    def __init__(self, url: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.url = url

    def collect(self) -> Iterator[pytest.Item]:
        """An item per check; one for the verdict where no check says why it is not held."""
        report = self._report()
        for check in report.checks:
            yield CheckItem.from_parent(self, name=check.id, report=report, check=check)
        if report.verdict != "held" and not (report.deciding("fail") or report.deciding("unknown")):
            yield CheckItem.from_parent(self, name="verdict", report=report, check=None)

    def _report(self) -> Report:
        from durabench import verify
        from durabench.cli.options import seconds
        from durabench_backends.registry import UnknownBackend

        asked = self.config.getoption
        try:
            goal = verify.goal(asked("--durabench-survive"), seconds(asked("--durabench-max-loss")))
            ignored = verify.ignored(asked("--durabench-ignore"))
            found = verify.verify(self.url, goal, probe=asked("--durabench-probe"), ignore=ignored)
        except (ValueError, UnknownBackend) as error:
            message = f"--durabench: {error}"
            raise pytest.UsageError(message) from None
        return verify.clean(found)


class CheckItem(pytest.Item):
    """One check of a report; None is the verdict itself."""

    def __init__(self, report: Report, check: Check | None, **rest: Any) -> None:
        super().__init__(**rest)
        self.report, self.check = report, check
        self.add_marker(STATUS_KEY)

    def runtest(self) -> None:
        """Pass, warn, skip or fail as the check says."""
        from durabench.verify import layout

        if self.check is None:
            pytest.fail(layout.answer(self.report), pytrace=False)
        said = layout.message(self.report, self.check)
        word = layout.word(self.report, self.check)
        if word == "ignored":
            pytest.xfail(said)
        if word == "skip":
            pytest.skip(said)
        if word == "warn":
            warnings.warn(Doubtful(f"{self.check.id}: {said}"), stacklevel=1)
        if word in ("fail", "unknown"):
            pytest.fail(f"{word}: {said}", pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where it stands: at a URL, in no file."""
        return self.parent.name if self.parent else "", None, self.name


class Doubtful(UserWarning):
    """A check that is worth knowing and changes nothing."""
