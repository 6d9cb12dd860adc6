"""What an instance costs: by a file with its date, or by AWS's own price list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from sm.errors import StartError

FILE = Path(__file__).with_name("prices.json")
#: The price list is asked for in few Regions, whatever Region it is asked about.
HOME = "us-east-1"

#: USD of an instance and hour, by Region and instance type.
Price = Callable[[str, str], Decimal]


@dataclass(frozen=True)
class Prices:
    """Where prices come from, in words, and the prices."""

    source: str
    of: Price


def dated() -> Prices:
    """Those of the file."""
    found = json.loads(FILE.read_bytes())
    known = {(row["region"], row["instance"]): Decimal(row["price"]) for row in found["prices"]}

    def price(region: str, instance: str) -> Decimal:
        if (region, instance) not in known:
            raise StartError(
                f"the prices of {found['date']} have no {instance} in {region}. "
                'Ask AWS with --live, or say "price" in the plan.'
            )
        return known[region, instance]

    return Prices(f"prices written down on {found['date']}", price)


def live(session: Any) -> Prices:
    """Those of AWS's price list; the permission is ``pricing:GetProducts``."""
    from botocore.exceptions import BotoCoreError, ClientError

    from sm.tools.deploy import aws

    @cache
    def price(region: str, instance: str) -> Decimal:
        asked = {"regionCode": region, "instanceName": instance, "component": "Hosting"}
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in asked.items()]
        try:
            pages = session.client("pricing", region_name=HOME).get_paginator("get_products")
            rows = [
                json.loads(row)
                for page in pages.paginate(ServiceCode="AmazonSageMaker", Filters=filters)
                for row in page["PriceList"]
            ]
        except (ClientError, BotoCoreError) as error:
            raise StartError(
                f"{aws.explain(error, 'read the price list')} Without --live the file's prices hold."
            ) from None
        return hourly(rows, region, instance)

    return Prices("AWS's price list", price)


def hourly(rows: list[dict[str, Any]], region: str, instance: str) -> Decimal:
    """The price on demand of the one product that is an hour of a real-time endpoint's instance."""
    for row in rows:
        usage = row["product"]["attributes"].get("usagetype", "")
        # "USE1-Host:ml.g5.xlarge"; in us-east-1 some have no prefix. Asynchronous ones are "AsyncInf:".
        if not re.fullmatch(rf"(\w+-)?Host:{re.escape(instance)}", usage):
            continue
        for term in row["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                if "USD" in dimension["pricePerUnit"]:
                    return Decimal(dimension["pricePerUnit"]["USD"])
    raise StartError(f"AWS's price list has no {instance} for real-time inference in {region}.")
