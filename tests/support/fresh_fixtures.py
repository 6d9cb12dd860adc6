"""No test uses fixtures that a failed test may have broken: neither the next one nor its own next run."""

from __future__ import annotations

from collections.abc import Generator

import pytest

FAILED = pytest.StashKey[bool]()


class FreshFixtures:
    """A pytest plugin: after a failed test, its module's and its session's fixtures are made again when next used.

    CI runs a failed test again. Without this, the next run would have the same box as the first,
    with whatever the first has left there: a stopped process, callers that still call, a loaded model.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # A fixture that could not be made is not made again for each test of its module: that may take long.
        if report.when != "teardown":
            item.stash[FAILED] = report.failed and report.when == "call"
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        try:
            yield
        except Exception:
            item.stash[FAILED] = True
            raise
        finally:
            if item.stash.get(FAILED, False) and isinstance(item, pytest.Function):
                finish_fixtures(item)


def finish_fixtures(item: pytest.Function) -> None:
    """End the fixtures of ``item``, the last one first. pytest does the same when a fixture's parameter changes."""
    for name in reversed(item.fixturenames):
        for fixture in reversed(item._fixtureinfo.name2fixturedefs.get(name, ())):
            fixture.finish(item._request)
