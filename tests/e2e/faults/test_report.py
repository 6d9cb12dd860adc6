"""The attack's report finds every miss of the goal, in events without a box."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.faults import report
from tests.support.faults.callers import HANG, RESET, RIGHT, WRONG, Ping, Reply
from tests.support.faults.inputs import LINES, Sample

LINE = Sample("lines", "m", "/", LINES, b"", golden=[{"result": 1.5}, {"result": 3.5}])
LIST = replace(LINE, content_type="application/json", golden={"modelname": "m", "result": [1.5, 3.5]})
NOT_READY = {"error": "Triton is away", "code": "not_ready"}


def reply(started: float, ended: float, outcome: str = RIGHT, model: str = "m") -> Reply:
    return Reply("sample", model, started, ended, outcome)


@pytest.mark.parametrize(
    ("answer", "differs", "failed"),
    [
        ([{"result": 1.5}, {"result": 3.5}], False, []),
        ([{"result": 3.5}, {"result": 1.5}], True, []),
        ([{"result": 1.5}, NOT_READY], False, ["not_ready"]),
        ([{"result": 3.5}, NOT_READY], True, ["not_ready"]),
        ([{"result": 1.5}], True, []),
    ],
)
def test_the_records_of_a_list_are_compared_in_order(
    answer: list[dict[str, object]], differs: bool, failed: list[str]
) -> None:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in answer)
    assert bool(LINE.differences(body)) == differs
    assert LINE.failed_records(body) == failed
    values = [line.get("result", line) for line in answer]
    body = json.dumps({"modelname": "m", "result": values}).encode()
    assert bool(LIST.differences(body)) == differs
    assert LIST.failed_records(body) == failed


def test_the_recovery_time_is_that_of_the_slowest_model() -> None:
    replies = [
        reply(9.0, 10.5, "503"),
        reply(10.6, 10.9),
        reply(9.0, 12.0, "503", model="other"),
        reply(11.0, 13.0, model="other"),
        reply(12.5, 14.0, model="other"),
    ]
    # What was sent before the failure was seen proves nothing.
    assert report.recovery_time(replies, {"m", "other"}, since=10.0) == pytest.approx(4.0)
    assert report.recovery_time(replies, {"m"}, since=10.0) == pytest.approx(0.9)
    assert report.recovery_time(replies[:-1], {"m", "other"}, since=10.0) is None
    assert report.first_error(replies, since=10.0) == pytest.approx(0.5)
    assert report.first_error(replies[1:2], since=10.0) is None


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        (report.Row("f", 0.1, 3.0, Counter({RIGHT: 9, "503": 2, "429": 1}), "200"), []),
        (report.Row("f", 0.1, 3.0, Counter({WRONG: 1}), "200"), ["1 wrong answers"]),
        (report.Row("f", 0.1, 3.0, Counter({HANG: 2}), "200"), ["2 hangs"]),
        (report.Row("f", 0.1, None, Counter(), "200"), ["right answers did not come again"]),
        (report.Row("f", 0.1, 12.0, Counter(), "200"), ["back after 12.0 s"]),
        (report.Row("f", 0.1, 3.0, Counter({"500": 1}), "200"), ["callers saw: 500"]),
        (report.Row("f", 0.1, 3.0, Counter({RESET: 1}), "200"), ["callers saw: reset"]),
        (report.Row("f", 0.1, 3.0, Counter({RESET: 1}), "200", allowed=frozenset({RESET})), []),
    ],
)
def test_a_row_lists_the_goals_it_misses(row: report.Row, missed: list[str]) -> None:
    assert row.misses() == missed


def test_pings_are_summarized_by_status_and_slowest_answer() -> None:
    pings = [Ping(1.0, 5.0, 0), Ping(10.0, 0.01, 200), Ping(11.0, 0.02, 503), Ping(13.0, 0.5, 503)]
    assert report.summarize_pings(pings, since=10.0) == "503 for 2.5 s; slowest 0.50 s"
    # Two periods of 503; the time between them does not count.
    two_periods = [*pings[1:], Ping(20.0, 0.1, 200), Ping(30.0, 0.1, 503), Ping(31.0, 0.1, 503)]
    assert report.summarize_pings(two_periods, since=10.0) == "503 for 3.5 s; slowest 0.50 s"
    assert report.summarize_pings(pings[1:2], since=10.0) == "200; slowest 0.01 s"
