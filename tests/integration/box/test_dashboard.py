"""The dashboard's data of a real box after traffic."""

from __future__ import annotations

from typing import Any

import requests
from openapi_schema_validator import OAS31Validator

from tests.support.boxes import RunningBox, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.run_folder import unknown_files


def dashboard_data(box: RunningBox, since: float = 0.0) -> dict[str, Any]:
    response = requests.get(f"{box.url}/dashboard/data", params={"since": since}, timeout=5)
    return dict(response.json())


def test_requests_are_in_the_data_as_openapi_describes(multi_model: MultiModelEndpoint) -> None:
    endpoint, box = multi_model, multi_model.box
    assert unknown_files(box.run_folder()) == set()
    endpoint.load_successfully("counted", endpoint.platform.write_flat("counted", multiplying_model(2)))
    for _ in range(3):
        endpoint.infer_y("counted")
    assert endpoint.invoke("counted", {"inputs": []}).status_code == 400

    def data_with_requests() -> dict[str, Any] | None:
        data = dashboard_data(box)
        answers = data["box"]["last_minute"]["models"].get("counted", {}).get("answers", {})
        return data if answers == {"2xx": 3, "4xx": 1} and data["box"]["models"] else None

    data = wait_until(data_with_requests, description="the requests in the dashboard's data")
    points = [point["models"].get("counted", {}).get("answers", {}) for point in data["points"]]
    assert sum(sum(answers.values()) for answers in points) == 4
    (row,) = data["box"]["models"]
    assert (row["name"], row["versions"], row["state"]) == ("counted", ["1"], "ready")
    assert row["used"] <= data["points"][-1]["at"] + 60
    processes = {row["name"]: row for row in data["box"]["processes"]}
    assert processes.keys() == {"supervisor", "control", "nginx", "triton", "data"}
    assert all(row["memory"] > 10**6 and row["state"] == "ready" for row in processes.values())
    document = requests.get(f"{box.url}/openapi.json", timeout=5).json()
    OAS31Validator({"$ref": "#/components/schemas/History", **document}).validate(data)
    assert dashboard_data(box, data["points"][-1]["at"] + 60)["points"] == []
    assert endpoint.unload("counted").status_code == 200
