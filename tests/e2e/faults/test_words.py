"""Triton's own words decide nothing where a caller or a model wrote them, and nothing runs twice that may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.boxes import RunningBox
from tests.support.faults.words import PHRASES

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

    def __init__(self, box: RunningBox) -> None:
        self.box = box

    def calls(self) -> int:
        return len((self.box.folder / "calls").read_text())

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

    def post(self, path: str, body: object) -> requests.Response:
        return requests.post(f"{self.box.url}{path}", json=body, timeout=60)

    def replaced(self) -> tuple[object, ...]:
        """Return what changes if a request waits, or a model or Triton is started again."""
        waits = self.box.metric("trireme_invocation_duration_seconds_count", stage="wait")
        return self.box.pid("tritonserver"), waits, self.box.metric("trireme_model_reloads_total")


def infer_body(shape: tuple[int, ...] = (1,), data: object = ("x",), **members: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "BYTES", "shape": list(shape), "data": data}
    return {"inputs": [{**tensor, **members.pop("tensor", {})}], **members}


@pytest.fixture
def attacked(words_box: RunningBox) -> Iterator[Attacked]:
    """No words make a request wait, or a model or Triton be started again."""
    found = Attacked(words_box)
    before = found.replaced()
    yield found
    assert found.replaced() == before


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
