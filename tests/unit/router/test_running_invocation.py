"""The request log decides which requests have a line and gives the reason of an error without the payload."""

from __future__ import annotations

import logging

import pytest

from sm.errors import (
    BadInput,
    ChosenStatus,
    ModelFailed,
    TooLarge,
    TriremeError,
    UnknownModel,
    WrongPayload,
    as_trireme_error,
)
from sm.router.running_invocation import MAX_REASON_CHARACTERS, LogSample, line_level, reason_of


@pytest.fixture(autouse=True)
def log_at_info_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize(
    ("status", "level"),
    [
        (200, logging.INFO),
        (499, logging.INFO),
        (400, logging.WARNING),
        (429, logging.WARNING),
        (500, logging.ERROR),
        (507, logging.ERROR),
    ],
)
def test_the_level_of_a_line_follows_its_status(status: int, level: int) -> None:
    assert line_level(LogSample(), status, 0.1) == level


def test_successes_are_sampled_but_errors_and_slow_requests_are_always_logged() -> None:
    sample = LogSample(fraction=0.25, slow_s=1.0, chance=iter([0.24, 0.25, 0.9]).__next__)
    assert line_level(sample, 200, 0.1)
    assert not line_level(sample, 200, 0.1)
    assert not line_level(sample, 200, 1.0)
    assert line_level(sample, 200, 1.01)
    assert all(line_level(sample, status, 0.1) for status in (400, 404, 429, 499, 500, 503))


def test_requests_below_the_log_level_have_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert [line_level(LogSample(), status, 0.1) for status in (200, 400, 500)] == [0, 0, logging.ERROR]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongPayload("payload.text: 'SECRET' is not a text"), "payload.text: '…' is not a text"),
        (WrongPayload('payload.text: "SEC\\"RET" is not a text'), "payload.text: '…' is not a text"),
        (BadInput("the line 'SECRET was never closed"), "the line '…'"),
        (BadInput("two\n  lines\x00"), "two lines\x00"),
        (UnknownModel("there is no model 'resnett'"), "there is no model 'resnett'"),
        (ChosenStatus(418, "SECRET"), "the script rejected the request with a message of its own"),
        (ModelFailed("SECRET"), "the model raised an exception: see Triton's lines of this time"),
    ],
)
def test_a_reason_says_what_is_wrong_without_what_was_sent(error: TriremeError, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_reason_is_short() -> None:
    assert len(reason_of(BadInput("x" * 10_000))) == MAX_REASON_CHARACTERS


def test_every_exception_has_the_status_of_its_answer() -> None:
    errors = (BadInput("x"), TooLarge("x"), GeneratorExit(), ZeroDivisionError())
    assert [as_trireme_error(error).status for error in errors] == [400, 413, 499, 500]
