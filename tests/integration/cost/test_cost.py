"""``sm cost``: to the cent, by the file's prices, the plan's, or AWS's price list."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sm.errors import StartError
from sm.settings import HERE
from sm.tools import plots
from sm.tools.cost.prices import FILE, dated_prices
from tests.support.answering_server import answering
from tests.support.sm_command import RunSm, sm

__all__ = ["sm"]

PLAN: dict[str, Any] = {
    "regions": ["us-east-1"],
    "models": [{"name": "one", "instance": "ml.m5.xlarge"}, {"name": "two", "instance": "ml.m5.xlarge"}],
    "shared": {"instance": "ml.g5.xlarge"},
}


def run_cost(sm: RunSm, folder: Path, plan: object, *words: str) -> Any:
    (folder / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return sm("cost", "--plan", "plan.json", *words)


def test_the_references_example_comes_out_to_the_cent(sm: RunSm) -> None:
    said = sm("cost")
    assert said.status == 0, said.err
    assert "each model on its own endpoint     971.52" in said.out
    assert "all on one shared endpoint         676.80" in said.out
    assert "saving 294.72 (30.3%)" in said.out


def test_every_cost_has_a_bar_and_a_plot(sm: RunSm, tmp_path: Path) -> None:
    said = sm("cost", "--plot", "cost.svg")
    assert said.status == 0, said.err
    bars = {
        line.rpartition("  ")[0].strip(): line.count("█") for line in said.out.splitlines() if "█" in line
    }
    assert max(bars, key=bars.__getitem__).startswith("each on its own")
    assert "all on one" in (tmp_path / "cost.svg").read_text()


@pytest.mark.parametrize(
    ("file", "sentence"), [("cost.png", "is no SVG file"), ("none/cost.svg", "there is no folder none")]
)
def test_a_plot_that_cannot_be_drawn_is_said_first(sm: RunSm, file: str, sentence: str) -> None:
    said = sm("cost", "--plot", file)
    assert (said.status, said.out) == (1, "")
    assert sentence in said.err


def test_without_matplotlib_the_command_to_install_it_is_named(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _name: None)
    said = sm("cost", "--plot", "cost.svg")
    assert said.err == "sm: --plot needs matplotlib: pip install 'trireme-serving[tune]'\n"


def test_a_model_that_runs_more_hours_on_more_instances_costs_more(sm: RunSm, tmp_path: Path) -> None:
    models = [{"name": "one", "instance": "ml.m5.xlarge", "count": 2, "hours": 7.5}]
    said = run_cost(sm, tmp_path, {**PLAN, "days": 31, "models": models})
    assert "own endpoint     106.95\n" in said.out  # 0.23 × 2 × 7.5 × 31


def test_a_shared_endpoint_that_costs_more_is_no_saving(sm: RunSm, tmp_path: Path) -> None:
    said = run_cost(sm, tmp_path, PLAN)
    assert "the shared endpoint costs more by 682.85 (206.2%)" in said.out


def test_each_region_has_its_own_table_and_prices(sm: RunSm, tmp_path: Path) -> None:
    plan = {
        "regions": ["us-east-1", "us-east-2"],
        "models": [{"instance": "ml.g4dn.2xlarge"}],
        "shared": {"instance": "ml.p3.2xlarge"},
    }
    said = run_cost(sm, tmp_path, plan)
    assert [line.partition(":")[0] for line in said.out.splitlines() if "own endpoint" in line] == [
        "us-east-1",
        "us-east-2",
    ]


def test_the_plans_prices_are_for_its_own_region_only(sm: RunSm) -> None:
    said = sm("cost", "--region", "eu-west-1")
    assert said.status == 1
    assert "have no ml.g4dn.xlarge in eu-west-1. Ask AWS with --live" in said.err


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("{", "plan.json is not JSON: "),
        ([], "the plan is an object"),
        ({**PLAN, "models": []}, "models is a list of one model at least"),
        ({**PLAN, "regions": "us-east-1"}, "regions is a list of Regions"),
        ({**PLAN, "model": 1}, "the plan has no member 'model'"),
        ({**PLAN, "shared": None}, "shared is an object"),
        ({**PLAN, "shared": {}}, "shared.instance is an instance type"),
        ({**PLAN, "models": [{"instance": "ml.m5.xlarge", "hours": 25}]}, "models[0].hours is 25: "),
        ({**PLAN, "shared": {"instance": "x", "price": "cheap"}}, "shared.price is 'cheap': "),
        (
            {**PLAN, "regions": ["a", "b"], "shared": {"instance": "x", "price": 1}},
            "a plan for several Regions gives no price",
        ),
    ],
)
def test_a_wrong_plan_says_where(sm: RunSm, tmp_path: Path, plan: object, sentence: str) -> None:
    said = run_cost(sm, tmp_path, plan)
    assert (said.status, said.out) == (1, "")
    assert sentence in said.err


def test_every_price_has_a_source_and_the_file_its_date() -> None:
    found = json.loads(FILE.read_bytes())
    assert len(found["date"]) == 10
    for row in found["prices"]:
        assert row["source"] in found["sources"]
        assert dated_prices().of(row["region"], row["instance"]) > Decimal(0)
    rows = [(row["region"], row["instance"]) for row in found["prices"]]
    assert len(set(rows)) == len(rows)


def product(usage: str, price: str) -> str:
    """A row as AWS's price list gives it: JSON in a text."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": price}, "beginRange": "0", "endRange": "Inf"}
    return json.dumps(
        {
            "product": {"productFamily": "ML Instance", "attributes": {"usagetype": usage}, "sku": "S"},
            "serviceCode": "AmazonSageMaker",
            "terms": {"OnDemand": {"S.T": {"priceDimensions": {"S.T.U": dimension}}}},
        }
    )


def price_list(*rows: str) -> Any:
    """A server in the shape of AWS's price list, which moto does not have."""
    return answering(200, {"FormatVersion": "aws_v1", "PriceList": rows})


def test_live_prices_are_those_of_real_time_inference(
    sm: RunSm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        product("EU-AsyncInf:ml.g5.xlarge", "9"),
        product("EU-Host:ml.g5.xlarge", "1.5"),
        product("EU-Train:ml.g5.xlarge", "8"),
    ]
    plan = {
        "regions": ["eu-west-1"],
        "models": [{"instance": "ml.g5.xlarge", "price": 7}] * 2,
        "shared": {"instance": "ml.g5.xlarge"},
    }
    with price_list(*rows) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        said = run_cost(sm, tmp_path, plan, "--live")
    assert said.status == 0, said.err
    assert "own endpoint    2160.00" in said.out
    assert "shared endpoint        1080.00" in said.out
    (request,) = server.asked  # the same price is asked for once
    assert {row["Field"]: row["Value"] for row in json.loads(request)["Filters"]} == {
        "regionCode": "eu-west-1",
        "instanceName": "ml.g5.xlarge",
        "component": "Hosting",
    }


def test_a_price_that_aws_does_not_have_or_give_is_a_sentence(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with price_list(product("EU-Train:ml.g4dn.xlarge", "8")) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert "AWS's price list has no ml.g4dn.xlarge for real-time" in sm("cost", "--live").err
    with answering(400, {"__type": "AccessDeniedException", "Message": "not you"}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        said = sm("cost", "--live")
    assert said.err.startswith("sm: cannot read the price list: ")
    assert said.err.endswith("Without --live the file's prices hold.\n")


def test_the_page_shows_the_example_as_the_command_does(sm: RunSm) -> None:
    page = (HERE / "docs" / "deploy" / "invoke-and-cost.md").read_text()
    for line in sm("cost").out.splitlines():
        assert line in page


def test_an_instance_without_a_price_is_no_price_of_another() -> None:
    with pytest.raises(StartError, match=r"have no ml\.x in us-east-1"):
        dated_prices().of("us-east-1", "ml.x")
