"""Many mixed requests are answered right, and leak nothing."""

from __future__ import annotations

from tests.support.boxes import RunningBox
from tests.support.faults.boxes import ECHO
from tests.support.faults.inputs import Sample
from tests.support.faults.soak import soak

REQUESTS = 1000
#: Requests for the quickest model per request for another, so that the test ends within a minute.
QUICK_SHARE = 4


def test_mixed_requests_are_right_and_memory_and_descriptors_level_off(
    box: RunningBox, samples: list[Sample]
) -> None:
    quick = [sample for sample in samples if sample.model == ECHO]
    result = soak(box, [*samples, *quick * (QUICK_SHARE - 1)], REQUESTS, seed=1)
    assert result.outcomes == {"200": REQUESTS}, result.details
    assert not result.misses(), result.markdown()
