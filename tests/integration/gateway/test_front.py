"""The time of a request and the request id, as Lambda gives them."""

from __future__ import annotations

import json

import pytest
from app import app
from chalice.app import Request
from chalicelib.front import DEADLINE_MARGIN_S, available_seconds

from tests.support.gateways import api_gateway_event


class LambdaContext:
    """A fake of the context that Lambda passes to the function."""

    aws_request_id = "of-lambda"

    def __init__(self, milliseconds: int) -> None:
        self.get_remaining_time_in_millis = lambda: milliseconds


@pytest.mark.parametrize(
    ("context", "expected_s"),
    [
        (LambdaContext(28_000), 25.0),
        (LambdaContext(3_000), 3 - DEADLINE_MARGIN_S),
        (LambdaContext(500), 0.0),
        (object(), 25.0),
    ],
)
def test_a_request_never_gets_more_time_than_lambda_has(context: object, expected_s: float) -> None:
    request = Request(api_gateway_event("GET", "/models"), context)
    assert available_seconds(request, 25.0) == pytest.approx(expected_s)


def test_an_error_has_lambdas_request_id() -> None:
    response = app(api_gateway_event("DELETE", "/models"), LambdaContext(1000))
    assert response["statusCode"] == 405
    assert json.loads(response["body"])["request_id"] == "of-lambda"
