"""Triton's own words decide nothing where a caller or a model wrote them, and nothing runs twice that may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.support.boxes import WAIT_TIMEOUT_S, RunningBox, running_box
from tests.support.faults.words import PHRASES, write_models
from tests.support.tritons import Model

CLIENTS = """
import os
import signal

import numpy as np
from sm.client import TensorClient, TextPayload


class Client(TensorClient):
    payload, model, repeatable = TextPayload, {model!r}, {repeatable}

    def preprocess(self, payload):
        if payload.text == "die":
            with open({calls!r}, "a") as file:
                file.write(".")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.model == "grows":
            return {{"x": np.full(40_000, float(payload.text), np.float32)}}
        return {{"x": np.array([payload.text.encode()], object)}}

    def postprocess(self, outputs, payload):
        return len(outputs["y"])
"""
GROWS = """
with open({calls!r}, "a") as file:
    file.write(".")
x = tensor(request, "x")
return {{"y": np.repeat(x, int(x[0]))}}
"""
NUMBERS = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
#: The clients and their models; those that end with ``once`` may not be repeated.
CLIENT_MODELS = {"many": "says", "once": "says", "grows_many": "grows", "grows_once": "grows"}
ROUTES = {
    "infer": "/v2/models/says/infer",
    "invocations": "/invocations?modelname=says",
    "generate": "/v2/models/says/generate",
    "generate_stream": "/v2/models/streams/generate_stream",
}
ALL = ("many", "once", *ROUTES)
CODES = ("INTERNAL", "UNAVAILABLE", "NOT_FOUND", "INVALID_ARG", "CANCELLED", "UNKNOWN")


class Attacked:
    """A box, and the calls that its models have counted."""

    def __init__(self, box: RunningBox, calls: Path) -> None:
        self.box, self._calls = box, calls

    def calls(self) -> int:
        return len(self._calls.read_text())

    def fail(self, route: str, how: str, words: str) -> requests.Response:
        """Let the model fail, by a client or by Triton's own routes."""
        text = f"{how}|{words}"
        if route not in ROUTES:
            return self.box.invoke(route, {"text": text})
        return self.post(ROUTES[route], {"x": text} if "generate" in route else infer_body(data=[text]))

    def fail_once(self, route: str, how: str, words: str) -> tuple[int, str]:
        """Let the model fail, which must be called once. Return the answer's status and code."""
        before = self.calls()
        answer = self.fail(route, how, words)
        assert self.calls() == before + 1, (words, answer.text)
        return answer.status_code, answer.json()["code"]

    def post(self, path: str, body: object, **headers: str) -> requests.Response:
        return requests.post(f"{self.box.url}{path}", json=body, headers=headers, timeout=60)

    def replaced(self) -> tuple[object, ...]:
        """Return what changes if a request waits, or a model or Triton is started again."""
        waits = self.box.metric("trireme_invocation_duration_seconds_count", stage="wait")
        return self.box.pid("tritonserver"), waits, self.box.metric("trireme_model_reloads_total")


def infer_body(shape: tuple[int, ...] = (1,), data: object = ("x",), **members: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "BYTES", "shape": list(shape), "data": data}
    return {"inputs": [{**tensor, **members.pop("tensor", {})}], **members}


@pytest.fixture(scope="module")
def box_with_calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("words")
    repository, calls = folder / "model", folder / "calls"
    calls.touch()
    write_models(repository, calls)
    Model(GROWS.format(calls=str(calls)), *NUMBERS).write(repository / "grows")
    for name, model in CLIENT_MODELS.items():
        (folder / "clients" / name).mkdir(parents=True)
        source = CLIENTS.format(model=model, repeatable=name.endswith("many"), calls=str(calls))
        (folder / "clients" / name / "client.py").write_text(source)
    options: Any = {"clients": (folder / "clients",), "SAGEMAKER_MODEL_SERVER_WORKERS": "2"}
    with running_box(folder, repository, wait_until_ready=False, **options) as box:
        box.wait_ready(2 * WAIT_TIMEOUT_S)  # beside other work
        yield Attacked(box, calls)


@pytest.fixture
def attacked(box_with_calls: Attacked) -> Iterator[Attacked]:
    """No words make a request wait, or a model or Triton be started again."""
    before = box_with_calls.replaced()
    yield box_with_calls
    assert box_with_calls.replaced() == before


@pytest.mark.parametrize("route", ALL)
def test_an_exception_of_a_model_is_a_500_after_one_call(attacked: Attacked, route: str) -> None:
    for phrase in PHRASES:
        assert attacked.fail_once(route, "Exception", phrase) == (500, "model_failed"), phrase
    assert attacked.fail_once(route, "MemoryError", "no room") == (507, "out_of_memory")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("route", ["many", "once", "infer", "generate_stream"])
def test_what_a_model_reports_runs_once_whatever_it_says(attacked: Attacked, route: str, code: str) -> None:
    for phrase in PHRASES:
        status, error = attacked.fail_once(route, code, f"no: {phrase}")
        assert status in (400, 404, 500, 503) and error != "unknown_model", phrase
        if route == "once":  # also if the model says what Triton says, and nothing else
            assert attacked.fail_once(route, code, phrase)[0] >= 400


@pytest.mark.parametrize("route", ["infer", "invocations"])
def test_the_words_of_a_caller_are_a_400(attacked: Attacked, route: str) -> None:
    before = attacked.calls()
    for phrase in PHRASES:
        for body in (
            infer_body((5,), id=phrase),
            infer_body((5,), tensor={"name": phrase}),
            infer_body(outputs=[{"name": phrase}]),
            infer_body(tensor={"datatype": phrase}),
            infer_body((5,), id=f"] {phrase}", parameters={phrase: phrase}),
            infer_body(parameters={f"triton_{phrase}": 1}),
        ):
            answer = attacked.post(ROUTES[route], body)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_input"), (body, answer.text)
    assert attacked.calls() == before


@pytest.mark.parametrize("header", ["X-Amzn-SageMaker-Inference-Id", "X-Request-Id", "X-Amzn-Trace-Id"])
def test_the_id_of_a_request_says_nothing(attacked: Attacked, header: str) -> None:
    failing = {"modelname": "once", "payload": {"text": "Exception|no"}}
    for phrase in PHRASES:
        assert attacked.post(ROUTES["invocations"], infer_body((5,)), **{header: phrase}).status_code == 400
        before = attacked.calls()
        assert attacked.post("/invocations", failing, **{header: phrase}).status_code in (400, 500), phrase
        assert attacked.calls() <= before + 1


def test_an_output_that_outgrew_its_region_runs_no_client_twice_that_may_not(attacked: Attacked) -> None:
    for name, calls in (("grows_many", [1, 2]), ("grows_once", [1, 1])):
        for times, expected in zip((1, 3), calls, strict=True):
            before = attacked.calls()
            assert attacked.box.invoke(name, {"text": str(times)}).json()["result"] == 40_000 * times
            assert attacked.calls() == before + expected, (name, times)


@pytest.mark.parametrize(("client", "calls"), [("many", 2), ("once", 1)])
def test_nginx_gives_a_request_that_may_not_repeat_to_no_second_worker(
    attacked: Attacked, client: str, calls: int
) -> None:
    before = attacked.calls()
    assert attacked.box.invoke(client, {"text": "die"}).status_code == 503
    assert attacked.calls() == before + calls


@pytest.mark.parametrize("value", ["9" * 5000, "1_000", "+5", "-1", "\u0665", "0x5", "nan", "1e3", "1.0"])
def test_a_number_of_a_caller_that_is_none_is_a_400(attacked: Attacked, value: str) -> None:
    url, quoted = attacked.box.url, quote(value)
    size = {"Inference-Header-Content-Length": value.encode().decode("latin-1")}
    for answer in (
        requests.get(f"{url}/models?limit={quoted}", timeout=30),
        requests.get(f"{url}/models?next_page_token={quoted}&limit={quoted}", timeout=30),
        attacked.post(ROUTES["infer"], infer_body(), **size),
    ):
        assert answer.status_code in (200, 400, 414, 431), answer.text
        assert "Traceback" not in answer.text
