"""The plan: which models run where, and how many hours a day."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from sm.errors import CommandError

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
