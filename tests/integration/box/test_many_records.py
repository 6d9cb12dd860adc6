"""Many small records: they take no more memory than the body and the response, and have a limit."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.boxes import RunningBox, wait_until
from tests.support.memory import PeakMemory
from tests.support.raw_http import begin_post

LINES = "application/jsonlines"
#: Bytes that a request may take beyond its body and its response.
MARGIN = 50 * 2**20
LIMIT = 100_000

Form = Callable[[list[bytes]], tuple[bytes, str]]


def json_list(records: list[bytes]) -> tuple[bytes, str]:
    return b'{"modelname":"slow","payload":[' + b",".join(records) + b"]}", "application/json"


def json_lines(records: list[bytes]) -> tuple[bytes, str]:
    return b"\n".join(records), LINES


@pytest.mark.parametrize("form", [json_list, json_lines])
def test_records_that_all_fail_take_no_memory(box: RunningBox, form: Form) -> None:
    for count, status, code in ((50_000, 422, "wrong_payload"), (5 * LIMIT, 413, "too_large")):
        body, content_type = form([b"0"] * count)
        peak = PeakMemory(box)
        response = box.send(body, content_type, params={"modelname": "slow"})
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert response.json().get("max_records", LIMIT) == LIMIT
        assert peak.bytes < len(body) + MARGIN


@pytest.mark.parametrize("form", [json_list, json_lines])
def test_failures_beside_successes_take_the_memory_of_their_answer(box: RunningBox, form: Form) -> None:
    """Behind 250 failures more than there are successes, no record is looked at."""
    body, content_type = form([b'{"seconds":0}'] * 100 + [b"0"] * 40_000)
    peak = PeakMemory(box)
    response = box.send(body, content_type, params={"modelname": "slow"})
    is_lines = response.headers["Content-Type"] == LINES
    rows = [*map(json.loads, response.content.split(b"\n"))] if is_lines else response.json()["result"]
    codes = [row.get("code", "ok") if isinstance(row, dict) else "ok" for row in rows]
    assert codes == ["ok"] * 100 + ["wrong_payload"] * 351 + ["not_run"] * 39_649
    # The response exists twice while its buffer grows.
    assert peak.bytes < len(body) + 2 * len(response.content) + MARGIN


@pytest.mark.parametrize("form", [json_list, json_lines])
def test_work_ends_when_the_caller_hangs_up(box: RunningBox, form: Form) -> None:
    body, content_type = form([b'{"seconds":0.05}'] * 20_000)  # about two minutes of work
    with begin_post(box.port, "/invocations?modelname=slow", body, content_type=content_type):
        wait_until(lambda: box.metric("trireme_in_flight") > 0, description="the request in the router")
    wait_until(lambda: box.metric("trireme_in_flight") == 0, 30, "the end of the work")
