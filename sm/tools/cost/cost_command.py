"""``sm cost``: the table, a Region at a time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from sm.tools.cost import hosting_plan as plans
from sm.tools.cost import prices
from sm.tools.cost.hosting_plan import Plan, Running
from sm.tools.cost.prices import Price, Prices

#: Three models as they might be used; the inputs of docs/deploy/invoke-and-cost.md.
EXAMPLE = Path(__file__).with_name("example.json")


def run(options: argparse.Namespace) -> int:
    """Show what the plan costs."""
    plan = plans.read(options.plan or EXAMPLE)
    known = asked(options.profile) if options.live else choose(plan, prices.dated())
    regions = tuple(options.region or plan.regions)
    lines = [line for region in regions for line in table(plan, region, known.of)]
    sys.stdout.write(f"USD a month of {plan.days} days, by {known.source}\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def asked(profile: str | None) -> Prices:
    """AWS's own. boto3 is loaded only for these."""
    from sm.tools.deploy import aws

    return prices.live(aws.session(prices.HOME, profile))


def choose(plan: Plan, other: Prices) -> Prices:
    """The plan's own prices, in its Region, before the others."""
    given = {one.instance: one.price for one in (*plan.models, plan.shared) if one.price is not None}
    if not given:
        return other

    def price(region: str, instance: str) -> Decimal:
        own = given.get(instance) if region in plan.regions else None
        return other.of(region, instance) if own is None else own

    return Prices(f"the plan's own prices and {other.source}", price)


def table(plan: Plan, region: str, price: Price) -> Iterator[str]:
    """What it costs in one Region, and what is saved."""
    priced = [(one, price(region, one.instance)) for one in (*plan.models, plan.shared)]
    costs = [month(one, hour, plan.days) for one, hour in priced]
    width = max(len(one.name) for one, _ in priced)
    rows = [_row(one, hour, cost, width) for (one, hour), cost in zip(priced, costs, strict=True)]
    apart, shared = cents(sum(costs[:-1], Decimal())), cents(costs[-1])
    yield ""
    yield f"{region}: each model on its own endpoint {apart:>10}"
    yield from rows[:-1]
    yield f"{region}: all on one shared endpoint     {shared:>10}"
    yield rows[-1]
    share = f" ({abs(apart - shared) / apart:.1%})" if apart else ""
    what = "saving" if shared <= apart else "the shared endpoint costs more by"
    yield f"{region}: {what} {abs(apart - shared)}{share}"


def month(one: Running, hour: Decimal, days: int) -> Decimal:
    """USD of ``days`` days, not rounded."""
    return hour * one.hours * days * one.count


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal("0.01"), ROUND_HALF_UP)


def _row(one: Running, hour: Decimal, cost: Decimal, width: int) -> str:
    return (
        f"  {one.name:<{width}}  {one.count} × {one.instance:<16} {one.hours.normalize():f} h a day"
        f" at {hour.normalize():f}: {cents(cost)}"
    )
