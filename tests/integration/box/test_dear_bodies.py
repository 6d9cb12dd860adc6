"""No body costs much more than its size: for each payload type, parameter and route, whatever it repeats."""

from __future__ import annotations

import pytest

from tests.support.dear_bodies import MEBIBYTES, MIB, MILLISECONDS, Cost, costs

#: Other processes make the same work longer: a case that is dear in the first turn has others, and room.
TURNS, SLACK = 8, 1.6


def dear_ones(only: str = "") -> list[Cost]:
    found = [*costs(MIB, only, TURNS)]
    assert len(found) > (0 if only else 10_000)
    most = SLACK * MILLISECONDS
    return [cost for cost in found if cost.beyond_reading > most or cost.mebibytes > MEBIBYTES]


@pytest.mark.parametrize(
    "part",
    ["'/v1/rerank'", "modelname=TextPayload', content_type='application/json'", "bidirectional", "'/models'"],
)
def test_wrong_bodies_of_routes_and_payloads_are_cheap(part: str) -> None:
    assert not dear_ones(part)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_wrong_bodies_of_every_payload_parameter_and_route_are_cheap() -> None:
    assert not dear_ones()
