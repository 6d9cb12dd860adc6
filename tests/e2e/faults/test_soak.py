"""Many mixed requests are answered right, and leave nothing behind."""

from __future__ import annotations

from collections import Counter

from tests.support.boxes import RunningBox
from tests.support.faults.boxes import ECHO
from tests.support.faults.inputs import Sample
from tests.support.faults.soak import Soak, Usage, soak

REQUESTS = 1000
#: Requests for the quickest model for one of each other: it is to be over in a minute.
QUICK_SHARE = 4


def test_mixed_requests_are_right_and_what_the_box_holds_comes_to_rest(
    box: RunningBox, samples: list[Sample]
) -> None:
    quick = [sample for sample in samples if sample.model == ECHO]
    done = soak(box, [*samples, *quick * (QUICK_SHARE - 1)], REQUESTS, seed=1)
    assert done.outcomes == {"200": REQUESTS}, done.details
    assert not done.misses(), done.markdown()


def test_growth_after_three_quarters_misses_the_goal() -> None:
    calm = Usage(100 * 2**20, 50)

    def ended(usage: Usage, files: int) -> Soak:
        return Soak(
            Counter({"200": 9}),
            1.0,
            "200",
            {"start": {"nginx": calm}, "third quarter": {"nginx": calm}, "end": {"nginx": usage}},
            {"start": 5, "third quarter": 5, "end": files},
            (),
        )

    assert ended(calm, 5).misses() == []
    assert ended(Usage(200 * 2**20, 50), 5).misses() == ["100 MiB more at the end than after three quarters"]
    assert ended(Usage(calm.bytes, 90), 5).misses() == [
        "40 descriptors more at the end than after three quarters"
    ]
    assert ended(calm, 15).misses() == ["files in /dev/shm: {'start': 5, 'third quarter': 5, 'end': 15}"]
