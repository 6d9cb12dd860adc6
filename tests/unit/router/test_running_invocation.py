"""The request log decides which requests have a line and gives the reason of an error without the payload."""

from __future__ import annotations

import logging
import math

import pytest

from sm.errors import BadInput, ChosenStatus, ModelFailed, TriremeError, UnknownModel, WrongPayload
from sm.router import running_invocation
from sm.router.running_invocation import (
    MAX_REASON_CHARACTERS,
    LogSample,
    RunningInvocation,
    in_company,
    line_level,
    reason_of,
)


def test_successes_are_sampled_but_errors_and_slow_requests_are_always_logged_unless_below_the_log_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    levels = {200: "INFO", 499: "INFO", 400: "WARNING", 429: "WARNING", 500: "ERROR", 507: "ERROR"}
    found = {status: logging.getLevelName(line_level(LogSample(), status, 0.1)) for status in levels}
    assert found == levels
    sample = LogSample(fraction=0.25, slow_s=1.0, chance=iter([0.24, 0.25, 0.9]).__next__)
    assert [bool(line_level(sample, 200, seconds)) for seconds in (0.1, 0.1, 1.0, 1.01)] == [
        True,
        False,
        False,
        True,
    ]
    assert all(line_level(sample, status, 0.1) for status in (400, 404, 429, 499, 500, 503))
    caplog.set_level(logging.ERROR)
    assert [line_level(LogSample(), status, 0.1) for status in (200, 400, 500)] == [0, 0, logging.ERROR]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongPayload("payload.text: 'SECRET' is not a text"), "payload.text: '…' is not a text"),
        (WrongPayload('payload.text: "SEC\\"RET" is not a text'), "payload.text: '…' is not a text"),
        (BadInput("the line 'SECRET was never closed"), "the line '…'"),
        (BadInput("two\n  lines\x00"), "two lines\x00"),
        (BadInput("x" * 10_000), "x" * (MAX_REASON_CHARACTERS - 1)),
        (UnknownModel("there is no model 'resnett'"), "there is no model 'resnett'"),
        (ChosenStatus(418, "SECRET"), ""),
        (ModelFailed("SECRET"), ""),
    ],
)
def test_a_reason_says_what_is_wrong_without_what_was_sent(error: TriremeError, reason: str) -> None:
    found = reason_of(error)
    assert found.startswith(reason)
    assert found
    assert len(found) <= MAX_REASON_CHARACTERS
    assert "SECRET" not in found


def test_two_invocations_at_once_are_company_and_for_a_moment_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who sends one request after the other finds the way free each time."""

    def invocation() -> RunningInvocation:
        return RunningInvocation(math.inf, request_id="id")

    monkeypatch.setattr(running_invocation, "_last_company", -math.inf)
    with invocation():
        assert not in_company()
        with invocation():
            assert in_company()
        assert in_company()
        monkeypatch.setattr(running_invocation, "COMPANY_S", 0.0)
        assert not in_company()
