from __future__ import annotations

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
from tests.support.triton_words import SAID, Said


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said.release} {said.words}"[:60])
def test_each_status_of_triton_becomes_its_error(said: Said) -> None:
    failure = translate_status(said.code, said.words)
    assert (type(failure.error), failure.finished) == (said.kind, said.finished)


def test_an_unknown_status_is_the_models_failure() -> None:
    assert translate_status(Code.UNKNOWN, "").kind is ModelFailed


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: ..."),
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
    ("code", "message", "error_class"),
    [
        (
            Code.INVALID_ARGUMENT,
            f"{ID}expected 5 string elements for inference input 'x' for model 'm', got 1",
            BadInput,
        ),
        (Code.UNAVAILABLE, f"{ID}Exceeds maximum queue size", Overloaded),
        (Code.UNAVAILABLE, "[request id: a\nb] ] c] Exceeds maximum queue size", Overloaded),
    ],
)
def test_the_id_of_a_request_says_nothing(code: Code, message: str, error_class: type[Exception]) -> None:
    assert type(translate_status(code, message).error) is error_class


#: Triton's own sentences, and words of them.
PHRASES = [
    "in a not-ready state",
    "Request for unknown model: 'm' version 1 is not at ready state",
    "Request for unknown model: 'm' is not found",
    "Request for unknown model: 'm' has no available versions",
    "unknown model",
    "failed to get model version from specified version string 'x', version should be an integral value > 0",
    "Exceeds maximum queue size",
    "maximum queue size",
    "Request timeout expired",
    "timeout expired",
    "Unable to find shared memory region: 'trireme-1'",
    "shared memory size specified with the request for output 'y' (8 bytes) should be at least 80 bytes to hold the results",
    "failed to connect to all addresses",
    "Socket closed",
    "Server exiting",
    "Stub process 'm_0_0' is not healthy.",
    "Failed to obtain the health mutex.",
    "CUDA error: out of memory",
    "out of memory",
    "MemoryError",
    "std::bad_alloc",
    "failed to allocate 8 bytes",
    "Failed to increase the shared memory pool size for key 'x'",
    "failed to parse the request JSON buffer: x at 1",
    "Unable to parse 'data': attempt to access JSON non-array as array",
    "Failed to process the request(s) for model 'm_0', message: MemoryError: x",
    "in ensemble 'e', Stub process 'm_0_0' is not healthy.",
    "[request id: x] Exceeds maximum queue size",
]
#: Where a caller's or a model's words stand in Triton's texts, and what the caller gets.
PLACES = {
    "an id": (
        Code.INVALID_ARGUMENT,
        "[request id: {}] unexpected shape for input 'x' for model 'm'. Expected [2], got [3]. ",
        BadInput,
    ),
    "an id with its end": (
        Code.INVALID_ARGUMENT,
        "[request id: ] {}] inference request batch-size must be <= 8 for 'm'",
        BadInput,
    ),
    "a name of an input": (Code.INVALID_ARGUMENT, "unexpected inference input '{}' for model 'm'", BadInput),
    "a name in a shape's error": (
        Code.INVALID_ARGUMENT,
        "[request id: 7] unexpected shape for input '] {}' for model 'm'. Expected [2], got [3]. ",
        BadInput,
    ),
    "a name of an output": (
        Code.INVALID_ARGUMENT,
        "unexpected inference output '{}' for model 'm'",
        BadInput,
    ),
    "a sequence": (
        Code.INVALID_ARGUMENT,
        "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence",
        BadInput,
    ),
    "a version": (
        Code.INVALID_ARGUMENT,
        "invalid model version specified '{}' , version should be an integral value > 0",
        BadInput,
    ),
    "an exception": (
        Code.INTERNAL,
        "Failed to process the request(s) for model 'm_0', message: ValueError: {}\n\nAt:\n  model.py(3): execute\n",
        ModelFailed,
    ),
    "an exception of a step": (
        Code.INTERNAL,
        "in ensemble 'e', Failed to process the request(s) for model 'm_0', message: ValueError: {}",
        ModelFailed,
    ),
    "an exception with Triton's sign": (
        Code.INTERNAL,
        "Failed to process the request(s) for model 'm_0', message: KeyError: \"', message: {}\"",
        ModelFailed,
    ),
    "a quotation": (Code.INTERNAL, "the word '{}' is not known", ModelFailed),
    "the end of a model's text": (Code.INTERNAL, "no: {}", ModelFailed),
    "the beginning of a model's text": (Code.INTERNAL, "{} (said a caller)", None),
    "a model's refusal": (Code.INVALID_ARGUMENT, "no: {}", BadInput),
    "what a model does not find": (Code.NOT_FOUND, "no word {}", NotFound),
    "a model that says it is away": (Code.UNAVAILABLE, "no: {}", Unavailable),
    "a model's cancellation": (Code.CANCELLED, "no: {}", ModelFailed),
    "the error of a stream": (Code.UNKNOWN, "no: {}", ModelFailed),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_words_of_a_caller_or_a_model_decide_nothing(place: str) -> None:
    code, form, error_class = PLACES[place]
    for phrase in PHRASES:
        failure = translate_status(code, form.format(phrase))
        # A text that begins like one about memory or JSON may have any end: only its status may differ.
        expected = (error_class,) if error_class else (ModelFailed, OutOfMemory, BadInput)
        assert failure.kind in expected, phrase
        assert not failure.lost_region, phrase
        assert not failure.overflowed, phrase
        assert (failure.stalled, failure.subject) == (None, None), phrase


def test_a_stream_is_refused_without_a_code() -> None:
    assert translate_status(None, "Request for unknown model: 'm' is not found").kind is UnknownModel
    assert translate_status(None, "[request id: <id_unknown>] Exceeds maximum queue size").kind is Overloaded
    assert translate_status(None, "unexpected inference input 'unknown model' for model 'm'").kind is BadInput


def test_what_triton_says_of_another_model_is_what_the_model_said() -> None:
    absent = translate_status(Code.NOT_FOUND, "Request for unknown model: 'other' is not found")
    assert absent.of("other", 0.01).kind is UnknownModel
    assert absent.of("m", 0.01).kind is NotFound
    unready = translate_status(
        Code.UNAVAILABLE, "Request for unknown model: 'other' version 1 is not at ready state"
    )
    assert unready.of("other", 0.01).kind is Refused
    assert unready.of("m", 0.01).kind is Unavailable


def test_a_step_of_an_ensemble_is_a_part_of_it() -> None:
    text = "in ensemble 'e', Request for unknown model: 'step' has no available versions"
    assert translate_status(Code.NOT_FOUND, text).of("e", 0.01).kind is UnknownModel


def test_a_process_that_answered_at_once_did_not_stall() -> None:
    failure = translate_status(Code.INTERNAL, "Stub process 'm_0_0' is not healthy.")
    assert failure.of("m", 1.0).stalled == "m_0_0"
    assert failure.of("m", 0.2).stalled is None
    assert failure.of("m", 0.2).kind is ModelFailed


def test_an_unknown_shared_memory_region_is_reported_as_lost() -> None:
    assert translate_status(Code.NOT_FOUND, "Unable to find shared memory region: 'trireme-1'").lost_region


def test_the_error_of_a_model_shows_neither_traceback_nor_instance() -> None:
    message = (
        "Failed to process the request(s) for model instance 'a_b_0_0', message: ValueError: no\n\nAt:\n"
        "  /somewhere/model.py(7): execute\n"
    )
    assert translate_status(Code.INTERNAL, message).error.sentence == "model 'a_b' failed: ValueError: no"


def test_the_path_of_the_run_folder_is_left_out() -> None:
    text = "ValueError: '/tmp/trireme-abcdefgh/archives/x1/files/1/a.txt' (/x/trireme-abcdefgh/models/m:1) and /etc/hosts"
    assert sentence(text) == "ValueError: '1/a.txt' (m:1) and /etc/hosts"


@pytest.mark.parametrize(
    "repeated", ["/", "/trireme-abcdefgh", "] ", "_1", "' ", "trireme-a", "\n", "(", "'"]
)
def test_a_sentence_of_a_long_text_is_made_at_once(repeated: str) -> None:
    for form in ("[request id: {}] no", "{}", "Failed to process the request(s) for model '{}', message: no"):
        assert len(sentence(form.format(repeated * 500_000))) <= 500
