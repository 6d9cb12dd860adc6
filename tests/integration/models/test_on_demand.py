"""Models that are loaded when requests name them, on a real box and a real Triton."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from sm.run_state import Box
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import infer, states

MODELS = 12
#: MiB: Triton itself, and about four of the models.
MEMORY_MB = 170


def unload_all(box: RunningBox) -> None:
    for name, state in states(box).items():
        if state == "loaded":
            requests.delete(f"{box.url}/models/{name}", timeout=60)


@pytest.fixture(scope="module")
def box(boxes: Boxes) -> Iterator[RunningBox]:
    models = {
        **{f"m{number}": multiplying_model(number + 1) for number in range(MODELS)},
        "slow": multiplying_model(1, seconds=1),
        "broken": multiplying_model(1, failing="RuntimeError('no weights')"),
    }
    with boxes.own(
        models,
        TRIREME_MODELS="on-demand",
        TRIREME_MODEL_MEMORY_MB=str(MEMORY_MB),
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        TRIREME_RESTARTS="50",
    ) as running:
        yield running


def test_all_who_ask_for_a_model_wait_for_one_load(box: RunningBox) -> None:
    unload_all(box)
    before = box.metric("trireme_model_loads_total", model="slow", outcome="loaded")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: infer(box.url, "slow"), range(12)))
    assert {answer.status_code for answer in answers} == {200}
    assert (states(box)["slow"], states(box)["m1"]) == ("loaded", "unloaded")
    assert box.metric("trireme_model_loads_total", model="slow", outcome="loaded") == before + 1
    assert box.metric("trireme_model_load_seconds_total", model="slow", part="load") >= 1


def test_a_model_that_cannot_be_loaded_says_why(box: RunningBox) -> None:
    answer = infer(box.url, "broken")
    assert (answer.status_code, "no weights" in answer.text) == (503, True)
    assert states(box)["broken"] == "failed"
    assert infer(box.url, "nobody").status_code == 404
    assert box.metric("trireme_model_loads_total", model="broken", outcome="failed") > 0


@pytest.mark.exhaustive
def test_callers_of_more_models_than_there_is_room_for_get_the_answers_of_theirs(box: RunningBox) -> None:
    unload_all(box)
    evicted = box.metric("trireme_model_evictions_total")
    weights = [1 / (rank + 1) for rank in range(MODELS)]

    def call(seed: int) -> None:
        for number in random.Random(seed).choices(range(MODELS), weights, k=10):
            answer = infer(box.url, f"m{number}")
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"][0]["data"] == [number + 1, 2 * number + 2]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(call, range(6)))
    assert box.metric("trireme_model_evictions_total") > evicted
    assert Counter(states(box).values())["loaded"] < MODELS


def test_nobody_gets_a_404_for_a_model_that_a_restarted_triton_has_not(box: RunningBox) -> None:
    """As after a start of Triton in which the load failed: the box believes that it has the model."""
    unload_all(box)
    assert infer(box.url, "m4").status_code == 200
    port = Box.load(box.run_folder()).http_port
    statuses = Counter[int]()
    with ThreadPoolExecutor(6) as pool:
        for _ in range(2):
            answer = requests.post(f"http://127.0.0.1:{port}/v2/repository/models/m4/unload", timeout=20)
            assert answer.status_code == 200
            statuses.update(pool.map(lambda _: infer(box.url, "m4").status_code, range(12)))
    assert statuses == {200: 24}


def test_a_restarted_triton_has_the_models_again_and_one_it_could_not_load_when_it_can(
    box: RunningBox,
) -> None:
    for name in ("m1", "m3"):
        assert infer(box.url, name).status_code == 200
    repository = Path(box.environment["TRIREME_MODEL_REPOSITORY"])
    (repository / "m3").rename(repository.parent / "m3")
    box.kill_and_wait_for_restart("triton")
    assert infer(box.url, "m1").status_code == 200
    wait_until(lambda: infer(box.url, "m3").status_code == 404, description="the model gone")
    (repository.parent / "m3").rename(repository / "m3")
    assert infer(box.url, "m3").status_code == 200


@pytest.mark.parametrize("process", ["control", "triton"])
def test_a_request_whose_load_is_cut_off_is_answered_by_the_next_process(
    box: RunningBox, process: str
) -> None:
    unload_all(box)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(infer, box.url, "slow")
        wait_until(lambda: states(box)["slow"] == "loading", description="the load begun")
        box.kill_and_wait_for_restart(process)
        assert answer.result().status_code == 200, answer.result().text
