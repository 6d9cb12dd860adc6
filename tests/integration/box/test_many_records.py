"""Bodies of many small records: the box holds no more than what comes in and goes out, and knows an end."""

from __future__ import annotations

import json
import socket
import time

import pytest
import requests

from tests.support.boxes import RunningBox, wait_until
from tests.support.memory import Peak

LINES = "application/jsonlines"
#: Bytes that a request may take beyond its body and its answer.
MARGIN = 50 * 2**20


def as_list(records: list[bytes]) -> tuple[bytes, str]:
    return b'{"modelname":"slow","payload":[' + b",".join(records) + b"]}", "application/json"


def as_lines(records: list[bytes]) -> tuple[bytes, str]:
    return b"\n".join(records), LINES


def codes(response: requests.Response) -> list[str]:
    """What became of each record."""
    if response.headers["Content-Type"] == LINES:
        rows = [json.loads(line) for line in response.content.split(b"\n")]
    else:
        rows = response.json()["result"]
    return [row.get("code", "ok") if isinstance(row, dict) else "ok" for row in rows]


@pytest.mark.parametrize("form", [as_list, as_lines])
@pytest.mark.parametrize("record", [b"0", b'{"second":0}'])
def test_records_that_all_fail_cost_no_memory(box: RunningBox, form: object, record: bytes) -> None:
    assert callable(form)
    body, content_type = form([record] * 50_000)
    peak = Peak(box)
    response = box.send(body, content_type, params={"modelname": "slow"})
    assert (response.status_code, response.json()["code"]) == (422, "wrong_payload")
    assert peak.bytes < len(body) + MARGIN


@pytest.mark.parametrize("form", [as_list, as_lines])
def test_failures_beside_one_success_cost_what_is_sent_of_them(box: RunningBox, form: object) -> None:
    assert callable(form)
    body, content_type = form([b"0"] * 20_000 + [b'{"seconds":0}'] + [b"0"] * 20_000)
    peak = Peak(box)
    response = box.send(body, content_type, params={"modelname": "slow"})
    assert response.status_code == 200
    assert codes(response) == ["wrong_payload"] * 20_000 + ["ok"] + ["wrong_payload"] * 20_000
    # The answer is there twice while the body that it was written to grows.
    assert peak.bytes < len(body) + 2 * len(response.content) + MARGIN


@pytest.mark.parametrize("form", [as_list, as_lines])
def test_more_records_than_are_accepted_are_a_413_with_the_number(box: RunningBox, form: object) -> None:
    assert callable(form)
    body, content_type = form([b"0"] * 500_000)
    peak = Peak(box)
    response = box.send(body, content_type, params={"modelname": "slow"})
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert "100,000" in response.json()["error"]
    assert response.json()["max_records"] == 100_000
    assert peak.bytes < len(body) + MARGIN


def test_lists_in_lines_count_together(box: RunningBox) -> None:
    line = b'{"modelname":"slow","payload":[' + b",".join([b"0"] * 30_000) + b"]}"
    rows = [b'{"seconds":0}', *[line] * 4]
    answer = box.send(b"\n".join(rows), LINES, params={"modelname": "slow"})
    assert sorted(codes(answer)) == ["ok", "too_large", *["wrong_payload"] * 3]


@pytest.mark.parametrize("form", [as_list, as_lines])
def test_nobody_works_for_a_caller_that_has_hung_up(box: RunningBox, form: object) -> None:
    assert callable(form)
    body, content_type = form([b'{"seconds":0.05}'] * 20_000)  # some two minutes of work
    head = (
        f"POST /invocations?modelname=slow HTTP/1.1\r\nHost: box\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", box.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: box.metric("trireme_in_flight") > 0, description="the request in the router")
        time.sleep(0.5)  # some records are done
    wait_until(lambda: box.metric("trireme_in_flight") == 0, 30, "the end of the work")
