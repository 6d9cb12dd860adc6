"""A new version that gets a share of the requests first, on a real box and a real Triton."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.integration.models.pushed_model import Pushed, expected, pushed
from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.multi_model_endpoint import REQUEST_BODY
from trireme_extensions.observe.canary_judge import MIN_REQUESTS


@pytest.fixture(scope="module")
def shared(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    with pushed(boxes, tmp_path_factory.mktemp("canary"), SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true") as model:
        yield model


@pytest.fixture
def model(shared: Pushed) -> Iterator[Pushed]:
    yield shared
    shared.decide("rollback")  # what a failed test has left


NEW_SESSION = {"requestType": "NEW_SESSION"}
IDS = [f"request-{number}" for number in range(150)]


@pytest.mark.exhaustive
def test_a_canary_gets_its_share_by_the_request_id_whatever_is_restarted(model: Pushed) -> None:
    stable = model.factor()
    canary = model.write()
    assert model.push(canary=30).json() == {"modelName": "scaled", "state": "canary"}
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(model.factor, IDS))
        assert set(first) == {stable, canary}
        assert 0.2 < first.count(canary) / len(IDS) < 0.4
        numbers = model.row()["canary"]
        assert numbers["canary"]["requests"] == first.count(canary)
        assert numbers["stable"]["requests"] == first.count(stable)
        os.kill(model.box.workers()[0], signal.SIGKILL)
        model.box.wait_for_workers(2)
        model.box.kill_and_wait_for_restart("control")
        assert list(pool.map(model.factor, IDS)) == first
    numbers = model.row()["canary"]
    assert (numbers["percent"], numbers["auto"]) == (30, False)
    assert numbers["canary"]["requests"] + numbers["stable"]["requests"] == 2 * len(IDS)
    assert numbers["canary"]["p50_ms"] > 0

    # All parts of a request, and Triton's own protocol, are answered by the same version.
    for identity, factor in zip(IDS[:20], first, strict=False):
        answer = model.ask(identity, [{"x": [1, 2]}] * 10)
        assert answer.json()["result"] == [expected(factor)] * 10
        name = "canary" if factor == canary else "stable"
        assert answer.headers["X-Trireme-Version"].endswith(f"; {name}")
        headers = {"X-Amzn-SageMaker-Inference-Id": identity}
        url = f"{model.box.url}/v2/models/scaled/infer"
        v2 = requests.post(url, json=REQUEST_BODY, headers=headers, timeout=60).json()
        assert (v2["model_name"], v2["outputs"][0]["data"]) == ("scaled", [factor, 2 * factor])
    assert model.box.metric("trireme_variant_duration_seconds_count", model="scaled", variant="canary") > 0

    # It cannot be mistaken for a model of its own, and the box is ready.
    rows = requests.get(f"{model.box.url}/models", timeout=10).json()["models"]
    assert [row["modelName"] for row in rows] == ["scaled"]
    assert model.box.ping()[0] == 200
    assert model.push().status_code == 409

    assert model.command("--promote").returncode == 0
    assert {model.factor(identity) for identity in IDS[:40]} == {canary}
    assert "canary" not in model.row()
    assert "X-Trireme-Version" not in model.ask("after").headers
    wait_until(lambda: model.left() == 1, description="one version left")


def test_without_a_canary_there_is_nothing_to_decide(model: Pushed) -> None:
    for action in ("promote", "rollback"):
        assert model.decide(action).status_code == 409
    assert model.command("--promote").returncode == 1


@pytest.mark.parametrize(
    "body", [{"canary": 0}, {"canary": 100}, {"canary": "10"}, {"auto": True}, {"other": 1}]
)
def test_an_impossible_share_is_refused(model: Pushed, body: dict[str, Any]) -> None:
    assert model.push(**body).status_code == 422


def test_a_session_stays_on_the_version_on_which_it_began(model: Pushed) -> None:
    def opened() -> dict[str, str]:
        headers = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
        answer = requests.post(f"{model.box.url}/invocations", json=NEW_SESSION, headers=headers, timeout=60)
        return {"X-Amzn-SageMaker-Session-Id": answer.headers["X-Amzn-SageMaker-Session-Id"]}

    stable = model.factor()
    old = [opened() for _ in range(6)]
    canary = model.write()
    assert model.push(canary=50).json()["state"] == "canary"
    time.sleep(1)  # a session's time is in whole seconds
    new = [opened() for _ in range(16)]
    for number in range(4):
        assert {model.factor(f"{number}-{each}", **session) for each, session in enumerate(old)} == {stable}
    factors = [{model.factor(f"{number}", **session) for number in range(5)} for session in new]
    assert all(len(found) == 1 for found in factors)
    assert {factor for found in factors for factor in found} == {stable, canary}
    assert model.decide("rollback").json() == {"modelName": "scaled", "state": "rolled_back"}
    assert {model.factor(f"{number}") for number in range(40)} == {stable}
    assert model.row()["version_error"]


def test_the_box_promotes_a_canary_that_is_not_worse(model: Pushed) -> None:
    canary = model.write()
    with model.callers() as statuses:
        pushed = model.command("--canary", "50", "--auto")
    assert pushed.returncode == 0, pushed
    assert model.factor("after") == canary
    assert set(statuses) == {"200"}
    assert statuses["200"] >= 2 * MIN_REQUESTS


@pytest.mark.exhaustive
def test_the_box_rolls_back_a_canary_that_is_clearly_worse(model: Pushed) -> None:
    stable = model.factor()
    model.write(execute="os._exit(1)")
    with model.callers():
        pushed = model.command("--canary", "20", "--auto")
    assert pushed.returncode == 1, pushed
    assert model.row()["version_error"]
    assert {model.factor(f"{number}") for number in range(40)} == {stable}
    assert model.box.ping()[0] == 200


def test_what_callers_send_wrong_rolls_nothing_back(model: Pushed) -> None:
    canary = model.write()
    assert model.push(canary=50, auto=True).json()["state"] == "canary"
    for number in range(60):
        assert model.ask(f"wrong-{number}", {"x": "no number"}).status_code == 422
    numbers = model.row()["canary"]
    assert (numbers["canary"]["requests"], numbers["stable"]["requests"]) == (0, 0)
    with model.callers() as statuses:
        wait_until(lambda: "canary" not in model.row(), description="the end of the canary")
    assert (model.factor("after"), set(statuses)) == (canary, {"200"})


def test_a_list_with_a_record_that_the_version_failed_is_one_of_its_errors(model: Pushed) -> None:
    """What the caller sent wrong is not, and the other records are answered."""
    right, failing, wrong = {"x": [1, 2]}, {"x": [9, 2]}, {"x": "no number"}
    model.write(fault="if payload.x[0] == 9: raise RuntimeError('broken')")
    assert model.push(canary=50).json()["state"] == "canary"
    for identity in IDS[:30]:
        assert model.ask(identity, [right, wrong]).status_code == 200
        answer = model.ask(identity, [right, failing])
        assert answer.status_code == 200
        is_canary = answer.headers["X-Trireme-Version"].endswith("; canary")
        assert ("error" in answer.json()["result"][1]) == is_canary
        lines = "\n".join(json.dumps({"payload": payload}) for payload in (right, failing))
        headers = {"Content-Type": "application/jsonlines", "X-Amzn-SageMaker-Inference-Id": identity}
        url = f"{model.box.url}/invocations?modelname=scaled"
        assert requests.post(url, data=lines, headers=headers, timeout=60).status_code == 200
    numbers = model.row()["canary"]
    assert numbers["stable"]["errors"] == 0
    # Of the three requests of an id, one had only what the caller sent wrong.
    assert numbers["canary"]["errors"] == 2 * numbers["canary"]["requests"] / 3 > 0
    assert numbers["verdict"] == "worse"
