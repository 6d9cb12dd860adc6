"""One record that crashes its model fails alone, and costs two processes, whatever it came with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.tritons import Model

CRASHES = """
x = tensor(request, "x")
if (x == 13).any():
    os.kill(os.getpid(), 9)
return {"y": x * 2}
"""
#: Numbers of the records, among which 13 is one.
NUMBERS = list(range(32))
MODEL = "fragile_model"


@pytest.fixture
def box(boxes: Boxes) -> Iterator[RunningBox]:
    """A box of its own for each test: five deaths within a minute make a model unstable."""
    model = Model(CRASHES, {"x": ("FP32", [1])}, {"y": ("FP32", [1])}, max_batch_size=32)
    with boxes.own(
        {MODEL: model}, ("crashing",), SAGEMAKER_MODEL_SERVER_WORKERS="1", TRIREME_THREADS="32"
    ) as started:
        yield started


def in_a_list(box: RunningBox) -> list[Any]:
    answer = box.invoke("fragile", [{"x": number} for number in NUMBERS])
    assert answer.status_code == 200, answer.text
    results: list[Any] = answer.json()["result"]
    return results


def in_lines(box: RunningBox) -> list[Any]:
    body = "\n".join(json.dumps({"x": number}) for number in NUMBERS)
    answer = box.send(body.encode(), "application/jsonlines", params={"modelname": "fragile"})
    assert answer.status_code == 200, answer.text
    return [row.get("result", row) for row in map(json.loads, answer.text.splitlines())]


def from_callers(box: RunningBox) -> list[Any]:
    def ask(number: int) -> Any:
        body = box.invoke("fragile", {"x": number}).json()
        return body.get("result", body)

    with ThreadPoolExecutor(len(NUMBERS)) as pool:
        return list(pool.map(ask, NUMBERS))


@pytest.mark.parametrize(
    "send",
    [in_a_list, *(pytest.param(send, marks=pytest.mark.exhaustive) for send in (in_lines, from_callers))],
)
def test_a_record_that_crashes_its_model_fails_alone_after_two_deaths(box: RunningBox, send: Any) -> None:
    def reloads() -> float:
        return box.metric("trireme_model_reloads_total", model=MODEL)

    before = reloads()
    results = send(box)
    assert {number: result for number, result in enumerate(results) if number != 13} == {
        number: 2.0 * number for number in NUMBERS if number != 13
    }
    assert results[13]["code"] == "model_crashed"
    wait_until(lambda: box.invoke("fragile", {"x": 1}).ok, description="the model's answer")
    assert reloads() == before + 2
