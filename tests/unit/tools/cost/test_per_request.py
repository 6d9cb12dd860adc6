"""What a million requests cost, of a rate and an hourly price."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sm.errors import StartError
from sm.tools.cost import prices
from sm.tools.cost.per_request import request_cost


def test_a_million_requests_cost_their_share_of_the_hours() -> None:
    cost = request_cost("ml.m5.xlarge", "us-east-1", 100.0, prices.dated_prices().of)
    assert (cost.requests_per_hour, cost.hourly) == (360_000, Decimal("0.23"))
    assert cost.per_million == Decimal("0.64")


def test_a_type_without_a_price_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(StartError, match="--live"):
        request_cost("ml.none.xlarge", "us-east-1", 100.0, prices.dated_prices().of)
