"""``sm cost`` gives the monthly costs that the reference system prints for three models."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.sm_command import RunSm, sm

__all__ = ["sm"]

#: Hours a day of each model, and its USD a month, in the reference's order.
HOURS_PER_DAY, MONTHLY_COSTS = (24, 8, 12), ("529.92", "176.64", "264.96")


def costs_by_hours(out: str) -> list[tuple[int, str]]:
    """Hours and cost of each model, without the row of the shared endpoint."""
    own_endpoints = out.partition("all on one shared endpoint")[0]
    return [
        (int(hours), cost)
        for hours, cost in re.findall(r" (\d+) h a day at 0\.736: ([\d.]+)\n", own_endpoints)
    ]


def test_the_three_costs_are_those_that_the_reference_prints(sm: RunSm) -> None:
    command = sm("cost")
    assert command.status == 0, command.err
    assert costs_by_hours(command.out) == list(zip(HOURS_PER_DAY, MONTHLY_COSTS, strict=True))
    assert "each model on its own endpoint     971.52\n" in command.out


def test_a_plan_with_the_references_inputs_gives_the_same_costs(sm: RunSm, tmp_path: Path) -> None:
    """Instance, price and days are those in docs/deploy/invoke-and-cost.md."""
    models = [{"instance": "ml.g4dn.xlarge", "hours": hours, "price": "0.736"} for hours in HOURS_PER_DAY]
    plan = {"regions": ["us-east-1"], "days": 30, "models": models, "shared": models[0]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert costs_by_hours(sm("cost", "--plan", "plan.json").out) == list(
        zip(HOURS_PER_DAY, MONTHLY_COSTS, strict=True)
    )
