"""Every client of the box passes ``sm check-client``."""

from __future__ import annotations

import pytest

from sm.plugins.loading import discover
from sm.settings import HERE, Settings
from tests.support.check_client import check_client
from trireme_tools.prepare.demo import prepare


# test_faults.py holds each check, and a client's own tests hold its golden answer.
@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize("name", [source.name for source in discover((HERE / "clients",))])
def test_each_client_of_the_box_passes_every_check(name: str) -> None:
    prepare(Settings.read({}))
    report = check_client(HERE, name)
    assert report.status == 0, report.failed
    assert all(row["passed"] for row in report.report["checks"])
