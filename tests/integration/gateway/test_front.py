"""A request's time and shape, as Lambda and API Gateway give them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from app import app
from chalice.app import Request
from chalicelib.front import DEADLINE_MARGIN_S, available_seconds


class Context:
    """What Lambda says of itself."""

    aws_request_id = "of-lambda"

    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def get_remaining_time_in_millis(self) -> int:
        return self.milliseconds


def event(method: str, path: str) -> dict[str, Any]:
    return {
        "requestContext": {"httpMethod": method, "resourcePath": path},
        "headers": {},
        "pathParameters": {},
        "stageVariables": {},
        "multiValueQueryStringParameters": None,
        "body": None,
    }


@pytest.mark.parametrize(("left", "granted"), [(28_000, 25.0), (3_000, 3 - DEADLINE_MARGIN_S), (500, 0.0)])
def test_a_request_never_gets_more_time_than_lambda_has(left: int, granted: float) -> None:
    assert available_seconds(Request(event("GET", "/models"), Context(left)), 25.0) == pytest.approx(granted)


def test_without_lambda_the_setting_alone_counts() -> None:
    assert available_seconds(Request(event("GET", "/models"), object()), 7.0) == 7.0


def test_a_refusal_bears_lambdas_own_request_id() -> None:
    answer = app(event("DELETE", "/models"), Context(1000))
    assert answer["statusCode"] == 405
    assert json.loads(answer["body"])["request_id"] == "of-lambda"
