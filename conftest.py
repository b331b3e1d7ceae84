"""In CI a skipped test is a failed one: what tests need is installed there, so a missing thing must not pass unseen.
Campaigns of several tests share the device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# Tests run campaigns side by side, and none of them believes a latency; the lock has tests of its own.
os.environ.setdefault("DURABENCH_SHARED_DEVICE", "1")

IN_CI = os.environ.get("CI") == "true"


def failed_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps its reason; an expected failure stays what it is."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    failed_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    failed_if_skipped(report)
    return report
