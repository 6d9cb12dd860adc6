"""The last hour of a real box: what its own numbers say after traffic, faults and loads, and ``sm top``."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from openapi_schema_validator import OAS31Validator

from sm.run_state import Box
from sm.server.history.recorder import Recorder
from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.model_archives import ArchiveFolder, multiplying_model
from tests.support.multi_model_endpoint import Endpoint
from tests.support.sm_command import RunSm, sm

__all__ = ["sm"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A box whose models come and go, and whose processes a test may end."""
    folder = tmp_path_factory.mktemp("dashboard")
    platform = ArchiveFolder(folder / "models")
    with running_box(
        folder,
        None,
        clients=(),
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        yield Endpoint(box, platform)


def numbers(box: RunningBox, since: float = 0.0) -> dict[str, Any]:
    response = requests.get(f"{box.url}/dashboard/data", params={"since": since}, timeout=5)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_requests_are_in_the_points_and_in_the_last_minute_and_as_the_document_says(
    endpoint: Endpoint, sm: RunSm
) -> None:
    box = endpoint.box
    endpoint.loaded("asked", endpoint.platform.flat("asked", multiplying_model(2)))
    for _ in range(3):
        endpoint.y("asked")
    assert endpoint.invoke("asked", {"inputs": []}).status_code == 400

    def recorded() -> dict[str, Any] | None:
        found = numbers(box)
        answers = found["box"]["last_minute"]["models"].get("asked", {}).get("answers", {})
        return found if sum(answers.values()) == 4 and found["box"]["models"] else None

    found = wait_until(recorded, description="the requests in the numbers")
    recent = found["box"]["last_minute"]
    assert recent["models"]["asked"]["answers"] == recent["all"]["answers"] == {"2xx": 3, "4xx": 1}
    assert 0 < recent["all"]["p50_ms"] <= recent["all"]["p99_ms"] < 60_000
    points = [point["models"]["asked"]["answers"] for point in found["points"] if "asked" in point["models"]]
    assert sum(sum(answers.values()) for answers in points) == 4
    (row,) = found["box"]["models"]
    assert (row["name"], row["versions"], row["state"]) == ("asked", ["1"], "ready")
    processes = {row["name"]: row for row in found["box"]["processes"]}
    assert processes.keys() == {"supervisor", "control", "nginx", "triton", "data"}
    assert all(row["memory"] > 10**6 and row["state"] == "ready" for row in processes.values())
    assert processes["data"]["processes"] == 3
    assert found["box"]["shared_memory"]["used"] > 0

    document = requests.get(f"{box.url}/openapi.json", timeout=5).json()
    OAS31Validator({"$ref": "#/components/schemas/History", **document}).validate(found)
    assert numbers(box, found["points"][-1]["at"] + 60)["points"] == []

    said = sm("top", "--once", "--url", box.url)
    assert said.status == 0
    assert re.search(r"^asked +1 +ready +0\.\d +.* ms +1 +0 +0 *$", said.out, re.M), said.out
    assert json.loads(sm("top", "--json", "--url", box.url).out)["box"]["ready"] is True


def test_faults_and_loads_are_events_and_show_in_the_tables(endpoint: Endpoint) -> None:
    """The same recorder as the box's own, looking when the test says so."""
    box = endpoint.box
    recorder = Recorder(Box.load(box.run_folder()))

    def look() -> dict[str, Any]:
        recorder.record_point()
        return dict(json.loads(recorder.read(time.time())))

    def texts() -> list[str]:
        return [event["text"] for event in look()["events"]]

    def row(name: str) -> dict[str, Any]:
        return next(dict(row) for row in look()["box"]["processes"] if row["name"] == name)

    endpoint.loaded("leaving", endpoint.platform.flat("leaving", multiplying_model()))
    look()
    endpoint.unload("leaving")
    assert "the model leaving was unloaded" in texts()

    master = row("data")["pid"]
    assert master == box.child("data")["pid"]
    stalled = box.workers()[0]
    os.kill(stalled, signal.SIGSTOP)
    try:
        wait_until(lambda: row("data")["stopped"] == 1, description="a stopped worker")
    finally:
        os.kill(stalled, signal.SIGCONT)
    wait_until(lambda: "all processes of data run again" in texts(), description="its return")
    os.kill(stalled, signal.SIGKILL)
    wait_until(lambda: "1 worker of data ended" in texts(), description="its end")
    wait_until(lambda: row("data")["restarts"] == 1, description="the count")

    triton = row("triton")["pid"]
    os.kill(triton, signal.SIGKILL)
    wait_until(lambda: row("triton")["state"] != "ready", description="a Triton that is gone")
    assert all(
        multiplying_model["state"] in ("unknown", "not ready")
        for multiplying_model in look()["box"]["models"]
    )
    wait_until(lambda: row("triton")["state"] == "ready", description="a new Triton")
    assert row("triton")["restarts"] == 1
    assert "triton was started again" in texts()
    # The box's own numbers go on.
    at = numbers(box)["box"]["at"]
    wait_until(lambda: numbers(box)["box"]["at"] > at, description="a later look of the box itself")


def test_sm_top_says_what_is_not_there(sm: RunSm, endpoint: Endpoint) -> None:
    said = sm("top", "--once", "--url", "http://127.0.0.1:1")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("sm: no box answers at http://127.0.0.1:1: ")
    assert "make serve" in said.err
    assert "looks like http://localhost:8080" in sm("top", "--url", "localhost:8080").err
    elsewhere = f"http://127.0.0.1:{Box.load(endpoint.box.run_folder()).http_port}"
    assert "it is no box of Trireme" in sm("top", "--once", "--url", elsewhere).err


def test_nonsense_for_a_moment_is_refused(endpoint: Endpoint) -> None:
    response = requests.get(f"{endpoint.url}/dashboard/data?since=today", timeout=5)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
