"""Every client that comes with the box keeps the contract that others are held to."""

from __future__ import annotations

import pytest

from sm.plugins.loading import discover
from sm.settings import HERE, Settings
from sm.tools.build.prepare import prepare
from tests.support.check_client import check

CLIENTS = [found.name for found in discover((HERE / "clients",))]


@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_of_the_box_passes(name: str) -> None:
    prepare(Settings.read({}))
    report = check(HERE, name)
    assert report.status == 0, report.failed
    assert all(row["passed"] for row in report.report["checks"])
