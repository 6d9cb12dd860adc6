"""Odd requests in every form harm neither the box nor the next caller."""

from __future__ import annotations

import json

import pytest

from tests.support.boxes import RunningBox
from tests.support.faults.fuzz import Fuzz, judge
from tests.support.faults.inputs import Sample
from tests.support.faults.requests_at_random import FORMS, RandomRequest, draw_request

SEED, REQUESTS = 1, 400
SHAPED = json.dumps({"error": "no", "code": "bad_input", "request_id": "1"}).encode()


def test_odd_requests_get_client_errors_and_harm_nobody(box: RunningBox, samples: list[Sample]) -> None:
    fuzz = Fuzz(box, samples, SEED, REQUESTS).run()
    assert not fuzz.misses(), fuzz.findings
    assert fuzz.golden["200"] == REQUESTS // 25


def test_a_seed_and_a_number_always_make_the_same_request() -> None:
    requests = [draw_request(SEED, number) for number in range(REQUESTS)]
    assert requests == [draw_request(SEED, number) for number in range(REQUESTS)]
    assert {each.form for each in requests} == set(FORMS)
    assert requests != [draw_request(SEED + 1, number) for number in range(REQUESTS)]


@pytest.mark.parametrize(
    ("status", "body", "complete", "column", "finding"),
    [
        (200, b"{}", True, "2xx", ""),
        (400, SHAPED, True, "4xx", ""),
        (400, b"<html>no</html>", True, "4xx", "400 in HTML"),
        (400, b"no", True, "4xx", "400 text/plain in another shape: b'no'"),
        (500, SHAPED, True, "5xx", f"500 {SHAPED!r}"),
        (501, SHAPED, True, "5xx", ""),
        (0, b"", True, "no answer", "a whole request, and no answer"),
        (0, b"", False, "no answer", ""),
        (-1, b"", False, "hangs", "no answer in 20 s"),
    ],
)
def test_an_answer_is_classified_and_a_wrong_one_is_a_finding(
    status: int, body: bytes, complete: bool, column: str, finding: str
) -> None:
    request = RandomRequest("garbage", "POST", "/", b"", complete)
    assert judge(request, status, "text/plain", body) == (column, finding)


def test_a_501_is_a_finding_for_a_request_of_known_http() -> None:
    assert judge(RandomRequest("v2 JSON", "POST", "/", b""), 501, "application/json", SHAPED)[1]
