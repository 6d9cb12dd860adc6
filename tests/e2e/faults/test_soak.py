"""Many mixed requests are answered right, and leak nothing."""

from __future__ import annotations

from collections import Counter

from tests.support.boxes import RunningBox
from tests.support.faults.boxes import ECHO
from tests.support.faults.inputs import Sample
from tests.support.faults.soak import Soak, Usage, soak

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


def test_growth_in_the_last_quarter_misses_the_goal() -> None:
    usage_before = Usage(100 * 2**20, 50)

    def soak_that_ended_with(usage: Usage, files: int) -> Soak:
        return Soak(
            Counter({"200": 9}),
            1.0,
            "200",
            {
                "start": {"nginx": usage_before},
                "third quarter": {"nginx": usage_before},
                "end": {"nginx": usage},
            },
            {"start": 5, "third quarter": 5, "end": files},
            (),
        )

    assert soak_that_ended_with(usage_before, 5).misses() == []
    assert soak_that_ended_with(Usage(200 * 2**20, 50), 5).misses() == [
        "100 MiB more at the end than after three quarters"
    ]
    assert soak_that_ended_with(Usage(usage_before.bytes, 90), 5).misses() == [
        "40 descriptors more at the end than after three quarters"
    ]
    assert soak_that_ended_with(usage_before, 15).misses() == [
        "files in /dev/shm: {'start': 5, 'third quarter': 5, 'end': 15}"
    ]
