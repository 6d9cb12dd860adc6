"""A Python model that answers nothing any more is loaded again after the deadline of its request, it alone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.faults.attack import model_pids, triton
from tests.support.tritons import DecoupledModel, Model

DEADLINE_S, MODEL_TIMEOUT_S = 3, 4
#: Hangs at a negative number, and sleeps that many seconds at another.
HANGS = """
number = float(tensor(request, "x").ravel()[0])
while number == -1:
    pass
while number == -2:
    time.sleep(1)
time.sleep(number)
"""
X, Y = {"x": ("FP32", [1])}, {"y": ("FP32", [1])}
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 0
input [{name: "x", data_type: TYPE_FP32, dims: [1]}]
output [{name: "y", data_type: TYPE_FP32, dims: [1]}]
ensemble_scheduling {step [
  {model_name: "before", model_version: -1, input_map {key: "x", value: "x"}, output_map {key: "y", value: "a"}},
  {model_name: "step", model_version: -1, input_map {key: "x", value: "a"}, output_map {key: "y", value: "b"}},
  {model_name: "after", model_version: -1, input_map {key: "x", value: "b"}, output_map {key: "y", value: "y"}}
]}
"""
HANGING = Model(f'{HANGS}\nreturn {{"y": tensor(request, "x")}}', X, Y)
PLAIN = Model('return {"y": tensor(request, "x")}', X, Y)
MODELS = {
    "alone": HANGING,
    "stream": DecoupledModel(f'{HANGS}\nyield {{"y": tensor(request, "x")}}', X, Y),
    "before": PLAIN,
    "step": HANGING,
    "after": PLAIN,
}


@pytest.fixture(scope="module")
def box(boxes: Boxes) -> Iterator[RunningBox]:
    with boxes.own(
        {**MODELS, "all": ENSEMBLE},
        SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS=str(DEADLINE_S),
        TRIREME_STREAM_TIMEOUT=str(DEADLINE_S),
        TRIREME_MODEL_TIMEOUT_SECONDS=str(MODEL_TIMEOUT_S),
    ) as started:
        yield started


def test_requests_that_wait_behind_one_that_hangs_get_their_answers(boxes: Boxes) -> None:
    with (
        boxes.own({"alone": HANGING}, SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS="10") as box,
        ThreadPoolExecutor(5) as pool,
    ):
        hanging = pool.submit(ask, box, "alone", -1)
        time.sleep(7)
        waiting = [pool.submit(ask, box, "alone", 0) for _ in range(4)]
        assert hanging.result().status_code == 504
        assert "X-Trireme-Repeated" not in hanging.result().headers
        for answer in (each.result() for each in waiting):
            assert answer.status_code == 200, answer.text
            assert answer.headers["X-Trireme-Repeated"] == "1"
        assert box.metric("trireme_model_hangs_total", model="alone") == 1


def ask(box: RunningBox, model: str, number: float, request_id: str = "") -> requests.Response:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [number]}
    return requests.post(
        f"{box.url}/v2/models/{model}/infer",
        json={"inputs": [tensor]},
        headers={"X-Request-Id": request_id} if request_id else {},
        timeout=30,
    )


def hang_up_after(box: RunningBox, model: str, number: float, seconds: float) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [number]}
    body = json.dumps({"inputs": [tensor]})
    with socket.create_connection(("127.0.0.1", box.port), timeout=10) as connection:
        connection.sendall(
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        time.sleep(seconds)


def processes(box: RunningBox) -> dict[str, list[int]]:
    return {name: model_pids(box, name) for name in MODELS}


def hangs(box: RunningBox) -> dict[str, float]:
    return {name: box.metric("trireme_model_hangs_total", model=name) for name in MODELS}


def check_reload(box: RunningBox, model: str, hang: Callable[[], object]) -> None:
    """Make ``model`` hang. It is replaced, and nothing else is."""
    before, server, counts = processes(box), triton(box), hangs(box)
    reloads = box.metric("trireme_model_reloads_total", model=model)
    hang()
    wait_until(
        lambda: box.metric("trireme_model_reloads_total", model=model) == reloads + 1,
        description="the reload",
    )
    if model != "stream":
        assert ask(box, model, 0).ok
    after = processes(box)
    assert {name for name in MODELS if after[name] != before[name]} == {model}
    assert triton(box) == server
    assert hangs(box) == {**counts, model: counts[model] + 1}


# The ensemble's step waits for ever.
@pytest.mark.parametrize(
    "number",
    [-1.0, pytest.param(-2.0, marks=pytest.mark.exhaustive)],
    ids=["computes for ever", "waits for ever"],
)
def test_a_model_that_hangs_is_loaded_again_and_nothing_else_is(box: RunningBox, number: float) -> None:
    request_id = f"hang{-number:.0f}"

    def hang() -> None:
        answer = ask(box, "alone", number, request_id)
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_passed"), answer.text

    check_reload(box, "alone", hang)
    lines = [json.loads(line) for line in box.log.read_text().splitlines() if request_id in line]
    # The request's own line has a status.
    assert "alone" in [line["model"] for line in lines if "status" not in line], lines


def test_a_model_whose_caller_hung_up_is_loaded_again_too(box: RunningBox) -> None:
    check_reload(box, "alone", lambda: hang_up_after(box, "alone", -1, 1.5))


def test_only_the_step_of_an_ensemble_that_hangs_is_loaded_again(box: RunningBox) -> None:
    def hang() -> None:
        assert ask(box, "all", -2).status_code == 504

    assert ask(box, "all", 0).ok
    check_reload(box, "step", hang)
    wait_until(lambda: ask(box, "all", 0).ok, description="the ensemble's answer")


def test_a_stream_that_never_begins_is_a_hang(box: RunningBox) -> None:
    def hang() -> None:
        requests.post(f"{box.url}/v2/models/stream/generate_stream", json={"x": -1.0}, timeout=30)

    check_reload(box, "stream", hang)


@pytest.mark.exhaustive
def test_a_model_that_is_only_slow_is_kept_within_its_own_time(box: RunningBox) -> None:
    """It takes longer than a request may, and less than the model timeout; then it has nothing to do."""
    before, counts = processes(box), hangs(box)
    assert ask(box, "alone", DEADLINE_S + 0.8).status_code == 504
    hang_up_after(box, "alone", 1.7, 1.2)
    time.sleep(DEADLINE_S + MODEL_TIMEOUT_S + 1)
    assert (processes(box), hangs(box)) == (before, counts)
