"""Odd requests in every form harm neither the box nor the next caller."""

from __future__ import annotations

from tests.support.boxes import RunningBox
from tests.support.faults.fuzz import Fuzz
from tests.support.faults.inputs import Sample

SEED, REQUESTS = 1, 400


def test_odd_requests_get_client_errors_and_harm_nobody(box: RunningBox, samples: list[Sample]) -> None:
    fuzz = Fuzz(box, samples, SEED, REQUESTS).run()
    assert not fuzz.misses(), fuzz.findings
    assert fuzz.golden["200"] == REQUESTS // 25
