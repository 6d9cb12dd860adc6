"""What Triton says becomes an error by its own words, and never by those of a caller or a model."""

from __future__ import annotations

from typing import Any

import pytest
from grpc import StatusCode as Code

from sm.errors import (
    BadInput,
    Interrupted,
    ModelFailed,
    NotFound,
    OutOfMemory,
    Overloaded,
    Refused,
    Unavailable,
    UnknownModel,
)
from sm.triton.triton_errors import sentence, translate_client_status, translate_status
from tests.support.faults.words import PHRASES
from tests.support.triton_words import SAID, Said

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Failed to connect to remote host: "


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said.release} {said.words}"[:60])
def test_each_status_of_triton_becomes_its_error(said: Said) -> None:
    failure = translate_status(said.code, said.words)
    assert (type(failure.error), failure.finished) == (said.kind, said.finished)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        # gRPC 1.70 and 1.85 of a port at which nobody listens.
        (Code.UNAVAILABLE, f"{REFUSED}connect: Connection refused (111)"),
        (Code.UNAVAILABLE, f"{REFUSED}Connection refused"),
        (Code.UNAVAILABLE, "Socket closed"),
        (Code.UNAVAILABLE, "Stream removed (Socket closed)"),
        (Code.UNAVAILABLE, "recvmsg:Connection reset by peer"),
        (Code.CANCELLED, "Channel closed!"),
    ],
)
def test_only_grpcs_client_speaks_of_connections(code: Code, text: str) -> None:
    assert translate_client_status(code, text).kind is Interrupted
    assert translate_status(code, text).kind in (Unavailable, ModelFailed)
    assert translate_client_status(code, f"no: {text}").kind in (Unavailable, ModelFailed)


#: What Triton 2.51 said to requests with the id ``x] Exceeds maximum queue size``, with and without its words.
ID = "[request id: x] Exceeds maximum queue size] "


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (Code.INVALID_ARGUMENT, f"{ID}expected 5 string elements for inference input 'x', got 1", BadInput),
        (Code.UNAVAILABLE, f"{ID}Exceeds maximum queue size", Overloaded),
        (Code.UNAVAILABLE, "[request id: a\nb] ] c] Exceeds maximum queue size", Overloaded),
        (Code.UNKNOWN, "", ModelFailed),
    ],
)
def test_the_id_of_a_request_says_nothing(code: Code, message: str, kind: type[Exception]) -> None:
    assert type(translate_status(code, message).error) is kind


SHAPE = "unexpected shape for input '{}' for model 'm'. Expected [2], got [3]. "
RAISED = "Failed to process the request(s) for model 'm_0', message: "
#: Where a caller's or a model's words stand in Triton's texts, and what the caller gets.
PLACES = [
    (Code.INVALID_ARGUMENT, "[request id: {}] " + SHAPE.format("x"), BadInput),
    (Code.INVALID_ARGUMENT, "[request id: ] {}] inference request batch-size must be <= 8 for 'm'", BadInput),
    (Code.INVALID_ARGUMENT, "unexpected inference input '{}' for model 'm'", BadInput),
    (Code.INVALID_ARGUMENT, "[request id: 7] " + SHAPE.format("] {}"), BadInput),
    (Code.INVALID_ARGUMENT, "unexpected inference output '{}' for model 'm'", BadInput),
    (Code.INVALID_ARGUMENT, "inference request for sequence {} to model 'm' must specify the START flag", BadInput),
    (Code.INVALID_ARGUMENT, "invalid model version specified '{}' , version should be an integral value", BadInput),
    (Code.INTERNAL, RAISED + "ValueError: {}\n\nAt:\n  model.py(3): execute\n", ModelFailed),
    (Code.INTERNAL, "in ensemble 'e', " + RAISED + "ValueError: {}", ModelFailed),
    (Code.INTERNAL, "[request id: {}] " + RAISED + "ValueError: no", ModelFailed),
    (Code.INTERNAL, RAISED + "KeyError: \"', message: {}\"", ModelFailed),
    (Code.INTERNAL, "the word '{}' is not known", ModelFailed),
    (Code.INTERNAL, "no: {}", ModelFailed),
    # A text that begins like one about memory or JSON may have any end: only its status may differ.
    (Code.INTERNAL, "{} (said a caller)", (ModelFailed, OutOfMemory, BadInput)),
    (Code.INVALID_ARGUMENT, "no: {}", BadInput),
    (Code.NOT_FOUND, "no word {}", NotFound),
    (Code.UNAVAILABLE, "no: {}", Unavailable),
    (Code.CANCELLED, "no: {}", ModelFailed),
    (Code.UNKNOWN, "no: {}", ModelFailed),
]  # fmt: skip


@pytest.mark.parametrize(("code", "form", "kinds"), PLACES)
def test_the_words_of_a_caller_or_a_model_decide_nothing(code: Code, form: str, kinds: Any) -> None:
    for phrase in PHRASES:
        failure = translate_status(code, form.format(phrase))
        assert issubclass(failure.kind, kinds), phrase
        assert not failure.lost_region, phrase
        assert not failure.overflowed, phrase
        assert (failure.stalled, failure.subject) == (None, None), phrase


@pytest.mark.parametrize(
    ("code", "text", "model", "seconds", "kind"),
    [
        # A stream is refused without a code.
        (None, "Request for unknown model: 'm' is not found", "m", 0.01, UnknownModel),
        (None, "[request id: <id_unknown>] Exceeds maximum queue size", "m", 0.01, Overloaded),
        (None, "unexpected inference input 'unknown model' for model 'm'", "m", 0.01, BadInput),
        # What Triton says of another model is what the model said; a step of an ensemble is a part of it.
        (Code.NOT_FOUND, "Request for unknown model: 'other' is not found", "other", 0.01, UnknownModel),
        (Code.NOT_FOUND, "Request for unknown model: 'other' is not found", "m", 0.01, NotFound),
        (Code.UNAVAILABLE, "Request for unknown model: 'o' version 1 is not at ready state", "o", 0.01, Refused),
        (Code.UNAVAILABLE, "Request for unknown model: 'o' version 1 is not at ready state", "m", 0.01, Unavailable),
        (Code.NOT_FOUND, "in ensemble 'e', Request for unknown model: 's' has no available versions", "e", 0.01, UnknownModel),
        # A process that answered at once did not stall.
        (Code.INTERNAL, "Stub process 'm_0_0' is not healthy.", "m", 0.2, ModelFailed),
    ],
)  # fmt: skip
def test_a_failure_is_of_the_model_that_was_called(
    code: Code | None, text: str, model: str, seconds: float, kind: type
) -> None:
    failure = translate_status(code, text).of(model, seconds)
    assert (failure.kind, failure.stalled) == (kind, None)


@pytest.mark.parametrize(
    ("text", "instance"),
    [
        ("Stub process 'm_0_0' is not healthy.", "m_0_0"),
        ("[request id: 7] in ensemble 'all', Stub process 'm_0_1' is not healthy.", "m_0_1"),
        ("Stub process is not healthy.", ""),
        ("Failed to obtain the health mutex.", ""),
    ],
)
def test_a_process_that_answered_late_stalled(text: str, instance: str) -> None:
    assert translate_status(Code.INTERNAL, text).of("m", 1.0).stalled == instance


def test_what_a_caller_reads_shows_neither_traceback_nor_instance_nor_run_folder() -> None:
    message = "Failed to process the request(s) for model instance 'a_b_0_0', message: ValueError: no\n\nAt:\n  /somewhere/model.py(7): execute\n"
    assert translate_status(Code.INTERNAL, message).error.sentence == "model 'a_b' failed: ValueError: no"
    text = "'/tmp/trireme-abcdefgh/archives/x1/files/1/a.txt' (/x/trireme-abcdefgh/models/m:1) and /etc/hosts"
    assert sentence(text) == "'1/a.txt' (m:1) and /etc/hosts"


@pytest.mark.parametrize(
    "repeated", ["/", "/trireme-abcdefgh", "] ", "_1", "' ", "trireme-a", "\n", "(", "'"]
)
def test_a_sentence_of_a_long_text_is_made_at_once(repeated: str) -> None:
    for form in ("[request id: {}] no", "{}", "Failed to process the request(s) for model '{}', message: no"):
        assert len(sentence(form.format(repeated * 500_000))) <= 500
