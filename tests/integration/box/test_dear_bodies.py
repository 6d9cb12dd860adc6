"""No body costs much more than its size: for each payload type, parameter and route, whatever it repeats."""

from __future__ import annotations

import pytest

from tests.support.dear_bodies import MEBIBYTES, MIB, MILLISECONDS, Cost, costs

#: Other processes make the same work longer: a case that is dear in the first turn has others, and room. On a slow
#: machine a body that is dear to read may cost a part of that more.
TURNS, SLACK, OF_READING = 8, 1.6, 0.6


def dear_ones(only: str = "") -> list[Cost]:
    found = [*costs(MIB, only, TURNS)]
    assert len(found) > (0 if only else 10_000)
    return [cost for cost in found if is_beyond(cost)]


def is_beyond(cost: Cost) -> bool:
    most = max(SLACK * MILLISECONDS, OF_READING * cost.reading)
    return cost.beyond_reading > most or cost.mebibytes > MEBIBYTES


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
