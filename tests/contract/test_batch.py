"""Batch transform: what the container wants to be sent, and JSON lines."""

from __future__ import annotations

import json

import pytest

from .container import Container, Question, json_of

pytestmark = pytest.mark.modes("batch")
LINES = "application/jsonlines"


@pytest.fixture
def lines(container: Container) -> list[bytes]:
    """Lines that get an answer each."""
    question = container.good()
    if question.content_type not in (LINES, "application/json"):
        container.unasked("the --body is no JSON")
    # A JSON text of one line is a line.
    given = question.body.strip().split(b"\n") if question.content_type == LINES else [question.body]
    if any(not is_json(line) for line in given):
        container.unasked("the --body is no line of JSON")
    return given * 3


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def send(container: Container, lines: list[bytes]) -> list[bytes]:
    """The lines of the answer."""
    question = Question(b"\n".join(lines), LINES, container.good().headers)
    answer = container.invoke(question)
    container.expects(answer.status_code != 415, "it does not take JSON lines")
    assert answer.status_code == 200, answer.text[:500]
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    return answer.content.strip().split(b"\n")


def test_it_says_what_it_wants_to_be_sent(container: Container) -> None:
    answer = container.ask("GET", "/execution-parameters")
    container.expects(answer.status_code == 200, f"/execution-parameters is {answer.status_code}")
    found = json_of(answer)
    assert found["MaxConcurrentTransforms"] > 0
    assert found["BatchStrategy"] in ("SINGLE_RECORD", "MULTI_RECORD")
    assert found["MaxPayloadInMB"] >= 0
    # What the platform refuses otherwise.
    assert found["MaxConcurrentTransforms"] * found["MaxPayloadInMB"] <= 100


def test_what_it_says_it_takes_is_not_too_large(container: Container) -> None:
    answer = container.ask("GET", "/execution-parameters")
    container.expects(answer.status_code == 200, f"/execution-parameters is {answer.status_code}")
    body = b" " * int(answer.json()["MaxPayloadInMB"] * 2**20)
    assert container.invoke(Question(body)).status_code != 413


def test_a_line_in_is_a_line_out(container: Container, lines: list[bytes]) -> None:
    answers = send(container, lines)
    assert len(answers) == len(lines)
    assert all(is_json(line) for line in answers)


def test_lines_are_answered_in_their_order(container: Container, lines: list[bytes]) -> None:
    """The one that is none has its place among the others."""
    for place in (0, len(lines) // 2, len(lines)):
        answers = send(container, [*lines[:place], b"this is no JSON", *lines[place:]])
        assert len(answers) == len(lines) + 1
        wrong = [number for number, line in enumerate(answers) if b'"error"' in line]
        container.expects(wrong == [place], f"the error is at {wrong}, not at {place}")


def test_lines_of_which_none_can_be_answered_are_an_error(container: Container, lines: list[bytes]) -> None:
    answer = container.invoke(Question(b"no\nJSON", LINES, container.good().headers))
    assert 400 <= answer.status_code < 500
