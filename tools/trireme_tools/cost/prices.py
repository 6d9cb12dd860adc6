"""Prices of instances: from a file with a date, or from AWS's price list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from sm.errors import CommandError

FILE = Path(__file__).with_name("prices.json")
#: The price list is served in few Regions, for all Regions.
PRICE_LIST_REGION = "us-east-1"

#: USD of an instance and hour, by Region and instance type.
Price = Callable[[str, str], Decimal]


@dataclass(frozen=True)
class Prices:
    """Prices, and a description of their source."""

    source: str
    of: Price


def dated_prices() -> Prices:
    """Read the prices in the file."""
    document = json.loads(FILE.read_bytes())
    by_instance = {(row["region"], row["instance"]): Decimal(row["price"]) for row in document["prices"]}

    def price(region: str, instance: str) -> Decimal:
        if (region, instance) not in by_instance:
            raise CommandError(
                f"the prices of {document['date']} have no {instance} in {region}. "
                'Ask AWS with --live, or say "price" in the plan.'
            )
        return by_instance[region, instance]

    return Prices(f"prices written down on {document['date']}", price)


def live_prices(session: Any) -> Prices:
    """Read AWS's price list; needs the permission ``pricing:GetProducts``."""
    from botocore.exceptions import BotoCoreError, ClientError

    from trireme_tools import aws

    @cache
    def price(region: str, instance: str) -> Decimal:
        criteria = {"regionCode": region, "instanceName": instance, "component": "Hosting"}
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in criteria.items()]
        try:
            pages = session.client("pricing", region_name=PRICE_LIST_REGION).get_paginator("get_products")
            rows = [
                json.loads(row)
                for page in pages.paginate(ServiceCode="AmazonSageMaker", Filters=filters)
                for row in page["PriceList"]
            ]
        except (ClientError, BotoCoreError) as error:
            raise CommandError(
                f"{aws.explain(error, 'read the price list')} Without --live the file's prices hold."
            ) from None
        return hourly(rows, region, instance)

    return Prices("AWS's price list", price)


def hourly(rows: list[dict[str, Any]], region: str, instance: str) -> Decimal:
    """Return the on-demand price of an hour of a real-time endpoint's instance."""
    for row in rows:
        usage = row["product"]["attributes"].get("usagetype", "")
        # The usage type is "USE1-Host:ml.g5.xlarge", in us-east-1 sometimes without prefix; "AsyncInf:" for
        # asynchronous ones.
        if not re.fullmatch(rf"(\w+-)?Host:{re.escape(instance)}", usage):
            continue
        for term in row["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                if "USD" in dimension["pricePerUnit"]:
                    return Decimal(dimension["pricePerUnit"]["USD"])
    raise CommandError(f"AWS's price list has no {instance} for real-time inference in {region}.")


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
