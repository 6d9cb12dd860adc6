"""Every client of the box passes ``sm check-client``."""

from __future__ import annotations

import pytest

from sm.plugins.loading import discover
from sm.settings import HERE, Settings
from tests.support.check_client import check_client
from trireme_tools.prepare.demo import prepare

#: In every run one of them, as test_faults.py holds each check and a client's own tests hold its golden answer.
CLIENTS = [
    pytest.param(source.name, marks=() if source.name == "bert_base" else pytest.mark.exhaustive)
    for source in discover((HERE / "clients",))
]


@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize("name", CLIENTS)
def test_each_client_of_the_box_passes_every_check(name: str) -> None:
    prepare(Settings.read({}))
    report = check_client(HERE, name)
    assert report.status == 0, report.failed
    assert all(row["passed"] for row in report.report["checks"])
