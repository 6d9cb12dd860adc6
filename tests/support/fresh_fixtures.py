"""A pytest plugin that recreates shared fixtures after a failed test, which may have broken them."""

from __future__ import annotations

from collections.abc import Generator

import pytest

FAILED = pytest.StashKey[bool]()


class FreshFixtures:
    """After a failed test, its module's and session's fixtures are created again when next used.

    CI repeats a failed test. Without this plugin the second run would use the first run's box with whatever is
    left there: a stopped process, callers that still call, a loaded model.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # Only a failed call counts: creating a fixture that fails again for each test may take long.
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
    """Tear down the fixtures of ``item``, the last one first, as pytest does when a fixture's parameter changes."""
    for name in reversed(item.fixturenames):
        for fixture in reversed(item._fixtureinfo.name2fixturedefs.get(name, ())):
            fixture.finish(item._request)
