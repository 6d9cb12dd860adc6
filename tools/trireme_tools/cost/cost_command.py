"""``sm cost``: a table of costs for each Region, from a plan: which models run where, and for how long."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from trireme_tools import charts
from trireme_tools.cost import prices
from trireme_tools.cost.prices import Price, Prices

PLAN_MEMBERS = {"regions", "days", "models", "shared"}
MODEL_MEMBERS = {"name", "instance", "count", "hours", "price"}


@dataclass(frozen=True)
class EndpointInstances:
    """Instances of one endpoint: ``hours`` a day, ``price`` in USD for an instance and hour, if given."""

    name: str
    instance: str
    count: int
    hours: Decimal
    price: Decimal | None


@dataclass(frozen=True)
class Plan:
    """A plan that gives prices has one Region."""

    regions: tuple[str, ...]
    #: Days of a month.
    days: int
    models: tuple[EndpointInstances, ...]
    shared: EndpointInstances


def read(file: Path) -> Plan:
    """Read the plan in ``file``. :class:`CommandError` names the wrong member."""
    try:
        document = json.loads(file.read_bytes(), parse_float=Decimal)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}.") from None
    try:
        return _plan(document)
    except ValueError as error:
        raise CommandError(
            f"{file}: {error}. There is an example in docs/deploy/invoke-and-cost.md."
        ) from None


def _plan(document: Any) -> Plan:
    _check(document, "the plan", PLAN_MEMBERS)
    models, regions = document.get("models"), document.get("regions")
    if not isinstance(models, list) or not models:
        raise ValueError("models is a list of one model at least")
    if not isinstance(regions, list) or not regions or not all(isinstance(entry, str) for entry in regions):
        raise ValueError("regions is a list of Regions, such as us-east-1")
    plan = Plan(
        tuple(regions),
        int(_number(document, "the plan", "days", 30, 1, 31)),
        tuple(_instances(model, f"models[{place}]") for place, model in enumerate(models)),
        _instances(document.get("shared"), "shared"),
    )
    if len(regions) > 1 and any(entry.price is not None for entry in (*plan.models, plan.shared)):
        raise ValueError("a plan for several Regions gives no price: it would be the same in all of them")
    return plan


def _instances(row: Any, place: str) -> EndpointInstances:
    _check(row, place, MODEL_MEMBERS)
    if not isinstance(row.get("instance"), str):
        raise ValueError(f"{place}.instance is an instance type, such as ml.g5.xlarge")
    return EndpointInstances(
        str(row.get("name", place)),
        row["instance"],
        int(_number(row, place, "count", 1, 1, 1000)),
        _number(row, place, "hours", 24, 0, 24),
        _number(row, place, "price", 0, 0, 10_000) if "price" in row else None,
    )


def _check(row: Any, place: str, members: set[str]) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{place} is an object")
    if foreign := sorted(row.keys() - members):
        raise ValueError(f"{place} has no member {foreign[0]!r}: it has {', '.join(sorted(members))}")


def _number(row: dict[str, Any], place: str, name: str, usual: int, low: int, high: int) -> Decimal:
    """Parse a number. A price may be a string: 0.736 is not a binary fraction."""
    raw = row.get(name, usual)
    try:
        value = Decimal("x" if isinstance(raw, bool) else str(raw))
        if low <= value <= high:
            return value
    except InvalidOperation:
        pass
    raise ValueError(f"{place}.{name} is {raw!r}: it is a number from {low} to {high}")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plan", type=Path, metavar="FILE", help="a JSON file with models, instances and hours (an example)"
    )
    command.add_argument(
        "--region",
        action="append",
        metavar="REGION",
        help="use this Region instead of the plan's; repeatable",
    )
    command.add_argument("--live", action="store_true", help="use today's prices from AWS's price list")
    command.add_argument("--profile", metavar="PROFILE", help="with --live: the AWS profile")
    command.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the costs")


#: Three models as they might be used; the inputs of docs/deploy/invoke-and-cost.md.
EXAMPLE = Path(__file__).with_name("example.json")


def run(options: argparse.Namespace) -> int:
    """Print the costs of the plan, with bars, and draw them with ``--plot``."""
    if options.plot:
        charts.check(options.plot)
    plan = read(options.plan or EXAMPLE)
    price_list = fetch_prices(options.profile) if options.live else choose(plan, prices.dated_prices())
    regions = tuple(options.region or plan.regions)
    lines = [
        line
        for region in regions
        for line in (*table(plan, region, price_list.of), "", *chart(costs_of(plan, region, price_list.of)))
    ]
    sys.stdout.write(f"USD a month of {plan.days} days, by {price_list.source}\n")
    charts.show(lines, sys.stdout)
    if options.plot:
        panels = {region: costs_of(plan, region, price_list.of) for region in regions}
        title = f"USD a month of {plan.days} days"
        charts.bars(
            options.plot,
            title,
            {name: {k: float(v) for k, v in rows.items()} for name, rows in panels.items()},
            "USD",
        )
    return 0


def fetch_prices(profile: str | None) -> Prices:
    """Fetch AWS's prices. boto3 is imported only for them."""
    from trireme_tools.deploy import aws

    return prices.live_prices(aws.session(prices.PRICE_LIST_REGION, profile))


def choose(plan: Plan, other: Prices) -> Prices:
    """Choose prices: the plan's own, in its Region, take precedence."""
    plan_prices = {
        machine.instance: machine.price
        for machine in (*plan.models, plan.shared)
        if machine.price is not None
    }
    if not plan_prices:
        return other

    def price(region: str, instance: str) -> Decimal:
        plan_price = plan_prices.get(instance) if region in plan.regions else None
        return other.of(region, instance) if plan_price is None else plan_price

    return Prices(f"the plan's own prices and {other.source}", price)


def table(plan: Plan, region: str, price: Price) -> Iterator[str]:
    """Yield the table for one Region, with the savings."""
    priced = [(instances, price(region, instances.instance)) for instances in (*plan.models, plan.shared)]
    costs = [month(instances, hour, plan.days) for instances, hour in priced]
    width = max(len(instances.name) for instances, _ in priced)
    rows = [_row(instances, hour, cost, width) for (instances, hour), cost in zip(priced, costs, strict=True)]
    separate, shared = cents(sum(costs[:-1], Decimal())), cents(costs[-1])
    yield ""
    yield f"{region}: each model on its own endpoint {separate:>10}"
    yield from rows[:-1]
    yield f"{region}: all on one shared endpoint     {shared:>10}"
    yield rows[-1]
    share = f" ({abs(separate - shared) / separate:.1%})" if separate else ""
    comparison = "saving" if shared <= separate else "the shared endpoint costs more by"
    yield f"{region}: {comparison} {abs(separate - shared)}{share}"


def costs_of(plan: Plan, region: str, price: Price) -> dict[str, Decimal]:
    """Return the month's cost of each model's endpoint, of all together, and of the shared one."""
    costs = {
        instances.name: month(instances, price(region, instances.instance), plan.days)
        for instances in plan.models
    }
    shared = month(plan.shared, price(region, plan.shared.instance), plan.days)
    return {**costs, "each on its own": sum(costs.values(), Decimal()), "all on one": shared}


def chart(costs: Mapping[str, Decimal]) -> Iterator[str]:
    """Yield a bar for each cost."""
    width, highest = max(map(len, costs)), max(costs.values()) or Decimal(1)
    for name, cost in costs.items():
        yield f"  {name:<{width}} {cents(cost):>10}  {charts.bar(float(cost), float(highest))}".rstrip()


def month(instances: EndpointInstances, hour: Decimal, days: int) -> Decimal:
    """Return USD for ``days`` days, not rounded."""
    return hour * instances.hours * days * instances.count


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal("0.01"), ROUND_HALF_UP)


def _row(instances: EndpointInstances, hour: Decimal, cost: Decimal, width: int) -> str:
    return (
        f"  {instances.name:<{width}}  {instances.count} × {instances.instance:<16} "
        f"{instances.hours.normalize():f} h a day at {hour.normalize():f}: {cents(cost)}"
    )
