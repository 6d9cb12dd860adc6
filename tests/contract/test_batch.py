"""Batch transform: ``/execution-parameters`` and JSON lines."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from .container import Container, ModelRequest, read_json

pytestmark = pytest.mark.modes("batch")
LINES = "application/jsonlines"


@pytest.fixture
def lines(container: Container) -> list[bytes]:
    """Three lines of JSON that the container answers."""
    request = container.accepted_request()
    if request.content_type not in (LINES, "application/json"):
        container.cannot_tell("the --body is not JSON")
    # A JSON text without a line break is a line.
    body_lines = request.body.strip().split(b"\n") if request.content_type == LINES else [request.body]
    if any(not is_json(line) for line in body_lines):
        container.cannot_tell("the --body is not a line of JSON")
    return body_lines * 3


def is_json(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        json.loads(line)
        return True
    return False


@pytest.fixture
def parameters(container: Container) -> Any:
    response = container.request("GET", "/execution-parameters")
    container.expect(response.status_code == 200, f"/execution-parameters is {response.status_code}")
    return read_json(response)


def send_lines(container: Container, lines: list[bytes]) -> list[bytes]:
    """Send the lines as one request, and return the lines of the response."""
    request = ModelRequest(b"\n".join(lines), LINES, container.accepted_request().headers)
    response = container.invoke(request)
    container.expect(response.status_code != 415, "it does not take JSON lines")
    assert response.status_code == 200, response.text[:500]
    assert int(response.headers["Content-Length"]) == len(response.content)
    return response.content.strip().split(b"\n")


def test_execution_parameters_are_within_the_platforms_limits(container: Container, parameters: Any) -> None:
    assert parameters["MaxConcurrentTransforms"] > 0
    assert parameters["BatchStrategy"] in ("SINGLE_RECORD", "MULTI_RECORD")
    assert parameters["MaxPayloadInMB"] >= 0
    # The platform refuses more than 100 MB in flight.
    assert parameters["MaxConcurrentTransforms"] * parameters["MaxPayloadInMB"] <= 100


def test_a_body_of_the_stated_payload_limit_is_not_a_413(container: Container, parameters: Any) -> None:
    body = b" " * int(parameters["MaxPayloadInMB"] * 2**20)
    assert container.invoke(ModelRequest(body)).status_code != 413


def test_each_line_gets_one_line_of_answer(container: Container, lines: list[bytes]) -> None:
    answers = send_lines(container, lines)
    assert len(answers) == len(lines)
    assert all(is_json(line) for line in answers)


def test_lines_are_answered_in_their_order(container: Container, lines: list[bytes]) -> None:
    """A line that is not JSON gets its error at its own place among the others."""
    for position in (0, len(lines) // 2, len(lines)):
        answers = send_lines(container, [*lines[:position], b"this is not JSON", *lines[position:]])
        assert len(answers) == len(lines) + 1
        error_places = [index for index, line in enumerate(answers) if b'"error"' in line]
        container.expect(error_places == [position], f"the error is at {error_places}, not at {position}")


def test_a_request_without_one_good_line_is_an_error(container: Container, lines: list[bytes]) -> None:
    response = container.invoke(ModelRequest(b"no\nJSON", LINES, container.accepted_request().headers))
    assert 400 <= response.status_code < 500
