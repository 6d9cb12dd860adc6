"""What requests cost on an instance that runs all the time."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from trireme_tools.cost.prices import Price

SECONDS_PER_HOUR = 3600
MILLION = 10**6


@dataclass(frozen=True)
class RequestCost:
    """``per_million`` in USD, at full load; ``hourly`` is the instance's price."""

    instance: str
    hourly: Decimal
    requests_per_hour: int
    per_million: Decimal


def request_cost(instance: str, region: str, rate: float, price: Price) -> RequestCost:
    """Return the cost on an instance that answers ``rate`` requests a second. :class:`CommandError` without
    a price.
    """
    hourly = price(region, instance)
    requests = int(rate * SECONDS_PER_HOUR)
    per_million = hourly * MILLION / requests if requests else Decimal(0)
    return RequestCost(instance, hourly, requests, per_million.quantize(Decimal("0.01")))
