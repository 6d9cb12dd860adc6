"""``sm cost`` computes costs to the cent from the dated prices, the plan's own or AWS's price list."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from tests.support.answering_server import server_with_fixed_response
from tests.support.sm_command import RunSm, sm
from trireme_tools.cost.prices import FILE, dated_prices

__all__ = ["sm"]

PLAN: dict[str, Any] = {
    "regions": ["us-east-1"],
    "models": [{"name": "one", "instance": "ml.m5.xlarge"}, {"name": "two", "instance": "ml.m5.xlarge"}],
    "shared": {"instance": "ml.g5.xlarge"},
}


def run_cost(sm: RunSm, folder: Path, plan: object, *arguments: str) -> Any:
    (folder / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return sm("cost", "--plan", "plan.json", *arguments)


def test_the_reference_systems_example_is_computed_to_the_cent(sm: RunSm) -> None:
    result = sm("cost")
    assert result.status == 0, result.err
    assert "each model on its own endpoint     971.52" in result.out
    assert "all on one shared endpoint         676.80" in result.out
    assert "saving 294.72 (30.3%)" in result.out


def test_the_table_has_bars_and_the_plot_is_written(sm: RunSm, tmp_path: Path) -> None:
    result = sm("cost", "--plot", "cost.svg")
    assert result.status == 0, result.err
    bars = {
        line.rpartition("  ")[0].strip(): line.count("█") for line in result.out.splitlines() if "█" in line
    }
    assert max(bars, key=bars.__getitem__).startswith("each on its own")
    assert "all on one" in (tmp_path / "cost.svg").read_text()


def test_a_model_that_runs_more_hours_on_more_instances_costs_more(sm: RunSm, tmp_path: Path) -> None:
    models = [{"name": "one", "instance": "ml.m5.xlarge", "count": 2, "hours": 7.5}]
    result = run_cost(sm, tmp_path, {**PLAN, "days": 31, "models": models})
    assert "own endpoint     106.95\n" in result.out  # 0.23 × 2 × 7.5 × 31


def test_each_region_has_its_own_table_and_prices(sm: RunSm, tmp_path: Path) -> None:
    plan = {
        "regions": ["us-east-1", "us-east-2"],
        "models": [{"instance": "ml.g4dn.2xlarge"}],
        "shared": {"instance": "ml.p3.2xlarge"},
    }
    result = run_cost(sm, tmp_path, plan)
    assert [line.partition(":")[0] for line in result.out.splitlines() if "own endpoint" in line] == [
        "us-east-1",
        "us-east-2",
    ]


def test_the_plans_prices_apply_to_its_own_region_only(sm: RunSm) -> None:
    result = sm("cost", "--region", "eu-west-1")
    assert result.status == 1
    assert "ml.g4dn.xlarge in eu-west-1" in result.err


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("{", "plan.json"),
        ([], "plan.json"),
        ({**PLAN, "models": []}, "models: "),
        ({**PLAN, "regions": "us-east-1"}, "regions: "),
        ({**PLAN, "model": 1}, "model: "),
        ({**PLAN, "shared": None}, "shared: "),
        ({**PLAN, "shared": {}}, "shared.instance: "),
        ({**PLAN, "models": [{"instance": "ml.m5.xlarge", "hours": 25}]}, "models.0.hours: "),
        ({**PLAN, "shared": {"instance": "x", "price": "cheap"}}, "shared.price: "),
        (
            {**PLAN, "regions": ["a", "b"], "shared": {"instance": "x", "price": 1}},
            "Regions",
        ),
    ],
)
def test_an_invalid_plan_is_an_error_with_the_place(
    sm: RunSm, tmp_path: Path, plan: object, sentence: str
) -> None:
    result = run_cost(sm, tmp_path, plan)
    assert (result.status, result.out) == (1, "")
    assert sentence in result.err


def test_every_price_has_a_source_and_the_file_has_a_date() -> None:
    price_file = json.loads(FILE.read_bytes())
    assert len(price_file["date"]) == 10
    for row in price_file["prices"]:
        assert row["source"] in price_file["sources"]
        assert dated_prices().of(row["region"], row["instance"]) > Decimal(0)
    rows = [(row["region"], row["instance"]) for row in price_file["prices"]]
    assert len(set(rows)) == len(rows)


def price_list_row(usage: str, price: str) -> str:
    """A row of AWS's price list, which is JSON in a string."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": price}, "beginRange": "0", "endRange": "Inf"}
    return json.dumps(
        {
            "product": {"productFamily": "ML Instance", "attributes": {"usagetype": usage}, "sku": "S"},
            "serviceCode": "AmazonSageMaker",
            "terms": {"OnDemand": {"S.T": {"priceDimensions": {"S.T.U": dimension}}}},
        }
    )


def price_list(*rows: str) -> Any:
    """A server that answers like AWS's price list, which moto lacks."""
    return server_with_fixed_response(200, {"FormatVersion": "aws_v1", "PriceList": rows})


def test_live_prices_are_those_of_real_time_endpoints(
    sm: RunSm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        price_list_row("EU-AsyncInf:ml.g5.xlarge", "9"),
        price_list_row("EU-Host:ml.g5.xlarge", "1.5"),
        price_list_row("EU-Train:ml.g5.xlarge", "8"),
    ]
    plan = {
        "regions": ["eu-west-1"],
        "models": [{"instance": "ml.g5.xlarge", "price": 7}] * 2,
        "shared": {"instance": "ml.g5.xlarge"},
    }
    with price_list(*rows) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        result = run_cost(sm, tmp_path, plan, "--live")
    assert result.status == 0, result.err
    assert "own endpoint    2160.00" in result.out
    assert "shared endpoint        1080.00" in result.out
    (request,) = server.request_bodies  # one request for the price that all need
    assert {row["Field"]: row["Value"] for row in json.loads(request)["Filters"]} == {
        "regionCode": "eu-west-1",
        "instanceName": "ml.g5.xlarge",
        "component": "Hosting",
    }


def test_a_price_that_aws_lacks_or_refuses_is_one_sentence(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with price_list(price_list_row("EU-Train:ml.g4dn.xlarge", "8")) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert "ml.g4dn.xlarge" in sm("cost", "--live").err
    with server_with_fixed_response(400, {"__type": "AccessDeniedException", "Message": "not you"}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        result = sm("cost", "--live")
    assert (result.status, "--live" in result.err) == (1, True)


def test_an_instance_without_a_price_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"ml\.x in us-east-1"):
        dated_prices().of("us-east-1", "ml.x")
