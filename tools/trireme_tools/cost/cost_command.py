"""``sm cost``: a table of costs for each Region, from a plan: which models run where, and for how long."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError, model_validator

from sm.errors import CommandError
from trireme_tools import charts
from trireme_tools.cost import prices
from trireme_tools.cost.prices import Price, Prices


class EndpointInstances(BaseModel, extra="forbid"):
    """Instances of one endpoint: ``hours`` a day, ``price`` in USD for an instance and hour, if given."""

    name: str = ""
    instance: str
    count: int = Field(1, ge=1, le=1000)
    hours: Decimal = Field(Decimal(24), ge=0, le=24)
    price: Decimal | None = Field(None, ge=0, le=10_000)


class PricedPlan(BaseModel, extra="forbid"):
    """A plan that gives prices has one Region."""

    regions: tuple[str, ...] = Field(min_length=1)
    #: Days of a month.
    days: int = Field(30, ge=1, le=31)
    models: tuple[EndpointInstances, ...] = Field(min_length=1)
    shared: EndpointInstances
    #: The instances of one endpoint with a component for each model.
    components: tuple[EndpointInstances, ...] = ()

    @property
    def all(self) -> tuple[EndpointInstances, ...]:
        return (*self.models, self.shared, *self.components)

    @model_validator(mode="after")
    def complete(self) -> PricedPlan:
        """Name what has no name."""
        if len(self.regions) > 1 and any(row.price is not None for row in self.all):
            raise ValueError("a plan for several Regions gives no price: it would be the same in all of them")
        for place, model in enumerate(self.models):
            model.name = model.name or f"models[{place}]"
        self.shared.name = self.shared.name or "shared"
        for place, instances in enumerate(self.components, 1):
            instances.name = instances.name or f"instance {place}"
        return self


def read(file: Path) -> PricedPlan:
    """Read the plan in ``file``. :class:`CommandError` names the wrong member."""
    try:
        # A price may be a string: 0.736 is not a binary fraction.
        return PricedPlan.model_validate(json.loads(file.read_bytes(), parse_float=Decimal))
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CommandError(
            f"{file}: {place}{': ' if place else ''}{first['msg']}. "
            "There is an example in docs/deploy/invoke-and-cost.md."
        ) from None
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}.") from None


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
    title = f"USD a month of {plan.days} days"
    sys.stdout.write(f"{title}, by {price_list.source}\n")
    charts.show(lines, sys.stdout)
    if options.plot:
        costs = {region: costs_of(plan, region, price_list.of) for region in regions}
        charts.bars(options.plot, title, costs, "USD")
    return 0


def fetch_prices(profile: str | None) -> Prices:
    """Fetch AWS's prices. boto3 is imported only for them."""
    from trireme_tools import aws

    return prices.live_prices(aws.session(prices.PRICE_LIST_REGION, profile))


def choose(plan: PricedPlan, other: Prices) -> Prices:
    """Choose prices: the plan's own, in its Region, take precedence."""
    plan_prices = {machine.instance: machine.price for machine in plan.all if machine.price is not None}
    if not plan_prices:
        return other

    def price(region: str, instance: str) -> Decimal:
        plan_price = plan_prices.get(instance) if region in plan.regions else None
        return other.of(region, instance) if plan_price is None else plan_price

    return Prices(f"the plan's own prices and {other.source}", price)


def table(plan: PricedPlan, region: str, price: Price) -> Iterator[str]:
    """Yield the table for one Region, with the savings."""
    priced = [(instances, price(region, instances.instance)) for instances in plan.all]
    costs = [month(instances, hour, plan.days) for instances, hour in priced]
    width = max(len(instances.name) for instances, _ in priced)
    rows = [_row(instances, hour, cost, width) for (instances, hour), cost in zip(priced, costs, strict=True)]
    count = len(plan.models)
    separate, shared = cents(sum(costs[:count], Decimal())), cents(costs[count])
    yield ""
    yield f"{region}: each model on its own endpoint {separate:>10}"
    yield from rows[:count]
    if plan.components:
        yield f"{region}: a component for each model     {cents(sum(costs[count + 1 :], Decimal())):>10}"
        yield from rows[count + 1 :]
    yield f"{region}: all on one shared endpoint     {shared:>10}"
    yield rows[count]
    share = f" ({abs(separate - shared) / separate:.1%})" if separate else ""
    comparison = "saving" if shared <= separate else "the shared endpoint costs more by"
    yield f"{region}: {comparison} {abs(separate - shared)}{share}"


def costs_of(plan: PricedPlan, region: str, price: Price) -> dict[str, Decimal]:
    """Return the month's cost of each model's endpoint, of all together, of the components' and of the shared
    one.
    """
    costs = {
        instances.name: month(instances, price(region, instances.instance), plan.days)
        for instances in plan.models
    }
    shared = month(plan.shared, price(region, plan.shared.instance), plan.days)
    hosts = [month(host, price(region, host.instance), plan.days) for host in plan.components]
    components = {"as components": sum(hosts, Decimal())} if hosts else {}
    return {**costs, "each on its own": sum(costs.values(), Decimal()), **components, "all on one": shared}


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
