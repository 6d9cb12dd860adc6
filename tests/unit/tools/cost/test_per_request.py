"""The cost of a million requests, from a rate and an hourly price."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sm.errors import CommandError
from trireme_tools.cost import prices
from trireme_tools.cost.prices import request_cost


def test_the_cost_of_a_million_requests_follows_from_rate_and_hourly_price() -> None:
    cost = request_cost("ml.m5.xlarge", "us-east-1", 100.0, prices.dated_prices().of)
    assert (cost.requests_per_hour, cost.hourly) == (360_000, Decimal("0.23"))
    assert cost.per_million == Decimal("0.64")


def test_the_error_for_an_instance_type_without_a_price_says_what_to_do() -> None:
    with pytest.raises(CommandError, match="--live"):
        request_cost("ml.none.xlarge", "us-east-1", 100.0, prices.dated_prices().of)
