"""The dashboard's data of a real box after traffic, faults and loads, and ``sm top``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from openapi_schema_validator import OAS31Validator

from sm.run_state import Box
from tests.support.boxes import RunningBox, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint, running_endpoint
from tests.support.sm_command import RunSm, sm

__all__ = ["sm"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModelEndpoint]:
    """A multi-model box whose processes a test may kill."""
    folder = tmp_path_factory.mktemp("dashboard")
    with running_endpoint(folder, (), SAGEMAKER_MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint


def dashboard_data(box: RunningBox, since: float = 0.0) -> dict[str, Any]:
    response = requests.get(f"{box.url}/dashboard/data", params={"since": since}, timeout=5)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_requests_are_counted_in_points_and_last_minute_as_openapi_describes(
    endpoint: MultiModelEndpoint, sm: RunSm
) -> None:
    box = endpoint.box
    endpoint.load_successfully("counted", endpoint.platform.write_flat("counted", multiplying_model(2)))
    for _ in range(3):
        endpoint.infer_y("counted")
    assert endpoint.invoke("counted", {"inputs": []}).status_code == 400

    def data_with_requests() -> dict[str, Any] | None:
        data = dashboard_data(box)
        answers = data["box"]["last_minute"]["models"].get("counted", {}).get("answers", {})
        return data if sum(answers.values()) == 4 and data["box"]["models"] else None

    data = wait_until(data_with_requests, description="the requests in the dashboard's data")
    last_minute = data["box"]["last_minute"]
    assert (
        last_minute["models"]["counted"]["answers"] == last_minute["all"]["answers"] == {"2xx": 3, "4xx": 1}
    )
    assert 0 < last_minute["all"]["p50_ms"] <= last_minute["all"]["p99_ms"] < 60_000
    points = [
        point["models"]["counted"]["answers"] for point in data["points"] if "counted" in point["models"]
    ]
    assert sum(sum(answers.values()) for answers in points) == 4
    (row,) = data["box"]["models"]
    assert (row["name"], row["versions"], row["state"]) == ("counted", ["1"], "ready")
    assert row["bytes"] > 100
    assert abs(time.time() - row["used"]) < 120
    processes = {row["name"]: row for row in data["box"]["processes"]}
    assert processes.keys() == {"supervisor", "control", "nginx", "triton", "data"}
    assert all(row["memory"] > 10**6 and row["state"] == "ready" for row in processes.values())
    assert processes["data"]["processes"] == 3
    assert data["box"]["shared_memory"]["used"] > 0

    document = requests.get(f"{box.url}/openapi.json", timeout=5).json()
    OAS31Validator({"$ref": "#/components/schemas/History", **document}).validate(data)
    assert dashboard_data(box, data["points"][-1]["at"] + 60)["points"] == []

    top = sm("top", "--once", "--url", box.url)
    assert top.status == 0
    assert re.search(r"^counted +1 +- +/\S+/model +ready +\d+ B +[\d:]{8} *$", top.out, re.M), top.out
    assert re.search(r"^counted +0\.\d +.* ms +1 +0 +0 *$", top.out, re.M), top.out
    assert json.loads(sm("top", "--json", "--url", box.url).out)["box"]["ready"] is True


def test_sm_top_says_when_there_is_no_box_at_the_address(sm: RunSm, endpoint: MultiModelEndpoint) -> None:
    top = sm("top", "--once", "--url", "http://127.0.0.1:1")
    assert (top.status, top.out) == (1, "")
    assert top.err.startswith("sm: no box answers at http://127.0.0.1:1: ")
    assert "make serve" in top.err
    assert "looks like http://localhost:8080" in sm("top", "--url", "localhost:8080").err
    triton_url = f"http://127.0.0.1:{Box.load(endpoint.box.run_folder()).http_port}"
    assert "it is not a box of Trireme" in sm("top", "--once", "--url", triton_url).err
