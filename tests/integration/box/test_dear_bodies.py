"""No body costs much more than its size: for each payload type, parameter and route, whatever it repeats."""

from __future__ import annotations

import pytest

from tests.support.dear_bodies import MIB, Cost, costs

#: For each MiB of a body, besides what the parser takes. Before, a list of wrong items took 3,200 ms and 548 MiB.
MILLISECONDS, MEBIBYTES = 25.0, 40.0
#: What the parser itself takes for a MiB of nothing but brackets.
BRACKETS_MEBIBYTES = 66.0
#: A busy machine makes the same work longer.
SLACK = 2.0


def is_dear(cost: Cost) -> bool:
    most = BRACKETS_MEBIBYTES if "levels" in cost.case.value else MEBIBYTES
    return cost.milliseconds > SLACK * (MILLISECONDS + cost.reading) or cost.mebibytes > most


@pytest.mark.parametrize(
    "part", ["/v1/rerank", "modelname=TextPayload", pytest.param("/v2/models", marks=pytest.mark.exhaustive)]
)
def test_wrong_bodies_of_routes_and_payloads_are_cheap(part: str) -> None:
    found = [*costs(MIB, part)]
    assert found
    assert not [cost for cost in found if is_dear(cost)]


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_wrong_bodies_of_every_payload_and_parameter_are_cheap() -> None:
    found = [*costs(MIB)]
    assert len(found) > 1000
    assert not [cost for cost in found if is_dear(cost)]
