"""``sm cost`` computes costs to the cent from the dated prices, the plan's own or AWS's price list."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from tests.support.http_server import server_with_fixed_response
from tests.support.sm_command import RunSm
from trireme_tools.cost.prices import FILE, dated_prices

PLAN: dict[str, Any] = {
    "regions": ["us-east-1"],
    "models": [{"name": "one", "instance": "ml.m5.xlarge"}, {"name": "two", "instance": "ml.m5.xlarge"}],
    "shared": {"instance": "ml.g5.xlarge"},
}


def run_cost(sm: RunSm, folder: Path, plan: object, *arguments: str) -> Any:
    (folder / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return sm("cost", "--plan", "plan.json", *arguments)


def sums(out: str) -> list[Decimal]:
    """The sums of the printed table: each model on its own endpoint, and all on a shared one."""
    return [Decimal(found) for found in re.findall(r" endpoint +([\d.]+)$", out, re.MULTILINE)]


def test_the_reference_systems_example_is_computed_to_the_cent(sm: RunSm, tmp_path: Path) -> None:
    result = sm("cost", "--plot", "cost.svg")
    assert (result.status, sums(result.out)) == (0, [Decimal("971.52"), Decimal("676.80")]), result.err
    assert "<svg" in (tmp_path / "cost.svg").read_text()


def test_a_model_that_runs_more_hours_on_more_instances_costs_more(sm: RunSm, tmp_path: Path) -> None:
    models = [{"name": "one", "instance": "ml.m5.xlarge", "count": 2, "hours": 7.5}]
    result = run_cost(sm, tmp_path, {**PLAN, "days": 31, "models": models})
    assert sums(result.out)[0] == Decimal("106.95")  # 0.23 × 2 × 7.5 × 31


def test_each_region_has_its_own_sums_and_the_plans_prices_apply_to_its_own_only(
    sm: RunSm, tmp_path: Path
) -> None:
    regions = ["us-east-1", "us-east-2"]
    models, shared = [{"instance": "ml.g4dn.2xlarge"}], {"instance": "ml.p3.2xlarge"}
    result = run_cost(sm, tmp_path, {"regions": regions, "models": models, "shared": shared})
    assert len(sums(result.out)) == 4
    result = sm("cost", "--region", "eu-west-1")
    assert (result.status, "ml.g4dn.xlarge in eu-west-1" in result.err) == (1, True)


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
        ({**PLAN, "regions": ["a", "b"], "shared": {"instance": "x", "price": 1}}, "Regions"),
    ],
)
def test_an_invalid_plan_is_an_error_with_the_place(
    sm: RunSm, tmp_path: Path, plan: object, sentence: str
) -> None:
    result = run_cost(sm, tmp_path, plan)
    assert (result.status, result.out, sentence in result.err) == (1, "", True)


def test_every_price_has_a_source_and_an_instance_without_a_price_is_an_error() -> None:
    price_file = json.loads(FILE.read_bytes())
    assert len(price_file["date"]) == 10
    rows = {(row["region"], row["instance"]): row["source"] for row in price_file["prices"]}
    assert len(rows) == len(price_file["prices"])
    assert set(rows.values()) <= set(price_file["sources"])
    assert all(dated_prices().of(*row) > Decimal(0) for row in rows)
    with pytest.raises(CommandError):
        dated_prices().of("us-east-1", "ml.x")


def price_list(instance: str = "ml.g5.xlarge", **prices: str) -> Any:
    """A server that answers like AWS's price list, which moto lacks, with the prices by the kind of use."""

    def row(usage: str, price: str) -> str:
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": price}, "beginRange": "0", "endRange": "Inf"}
        product = {"productFamily": "ML Instance", "attributes": {"usagetype": usage}, "sku": "S"}
        terms = {"OnDemand": {"S.T": {"priceDimensions": {"S.T.U": dimension}}}}
        return json.dumps({"product": product, "serviceCode": "AmazonSageMaker", "terms": terms})

    rows = [row(f"{kind}:{instance}", price) for kind, price in prices.items()]
    return server_with_fixed_response(200, {"FormatVersion": "aws_v1", "PriceList": rows})


def test_live_prices_are_those_of_real_time_endpoints(
    sm: RunSm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"EU-AsyncInf": "9", "EU-Host": "1.5", "EU-Train": "8"}
    models = [{"instance": "ml.g5.xlarge", "price": 7}] * 2
    plan = {"regions": ["eu-west-1"], "models": models, "shared": {"instance": "ml.g5.xlarge"}}
    with price_list(**kinds) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        result = run_cost(sm, tmp_path, plan, "--live")
    assert (result.status, sums(result.out)) == (0, [Decimal(2160), Decimal(1080)]), result.err
    (request,) = server.request_bodies  # one request for the price that all need
    assert {row["Field"]: row["Value"] for row in json.loads(request)["Filters"]} == {
        "regionCode": "eu-west-1",
        "instanceName": "ml.g5.xlarge",
        "component": "Hosting",
    }


def test_a_price_that_aws_lacks_or_refuses_is_one_sentence(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = {"__type": "AccessDeniedException", "Message": "not you"}
    for aws, named in (
        (price_list("ml.g4dn.xlarge", **{"EU-Train": "8"}), "ml.g4dn.xlarge"),
        (server_with_fixed_response(400, refusal), "--live"),
    ):
        with aws as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
            result = sm("cost", "--live")
        assert (result.status, named in result.err) == (1, True)
