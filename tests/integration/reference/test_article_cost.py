"""The monthly costs that the reference system prints for three models, from the inputs it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.sm_command import RunSm, sm

__all__ = ["sm"]

#: Hours a day of each model, and USD a month, in the reference's order.
HOURS, SUMS = (24, 8, 12), ("529.92", "176.64", "264.96")


def sums_by_hours(out: str) -> list[tuple[int, str]]:
    """Each model's row, without the shared endpoint's."""
    apart = out.partition("all on one shared endpoint")[0]
    return [(int(hours), cost) for hours, cost in re.findall(r" (\d+) h a day at 0\.736: ([\d.]+)\n", apart)]


def test_the_three_sums_are_those_of_the_reference_by_its_inputs(sm: RunSm) -> None:
    said = sm("cost")
    assert said.status == 0, said.err
    assert sums_by_hours(said.out) == list(zip(HOURS, SUMS, strict=True))
    assert "each model on its own endpoint     971.52\n" in said.out


def test_a_plan_with_those_inputs_alone_gives_the_same_sums(sm: RunSm, tmp_path: Path) -> None:
    """Instance, price and days are what docs/deploy/invoke-and-cost.md says they are."""
    models = [{"instance": "ml.g4dn.xlarge", "hours": hours, "price": "0.736"} for hours in HOURS]
    plan = {"regions": ["us-east-1"], "days": 30, "models": models, "shared": models[0]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert sums_by_hours(sm("cost", "--plan", "plan.json").out) == list(zip(HOURS, SUMS, strict=True))
