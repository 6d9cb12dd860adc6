"""Which bodies are v2 requests. tests/integration/box/test_v2.py tests what Triton answers to them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import triton_to_np_dtype

from sm.errors import BadInput, NotAcceptable
from sm.http.messages import BINARY, JSON, OCTET_STREAM, Answer
from sm.router.request_types import Message
from sm.router.triton_requests import (
    as_accepted,
    header_size,
    headers_of,
    parsable_json,
    rename_model,
    to_answer,
    to_v2_answer,
    without_request_token,
)
from sm.triton.http_proxy import HEADER_SIZE, ProxyReply, check_json
from sm.triton.inference_plan import REQUEST_TOKEN


def test_each_event_of_a_stream_names_the_archive() -> None:
    event = b'data: {"model_name":"team-cats-1","text":"\\"model_name\\":\\"team-cats-1\\""}\n\n'
    answer = rename_model(Answer(iter([event, event]), "text/event-stream"), "team-cats-1", "team/cats")
    renamed = event.replace(b"team-cats-1", b"team/cats", 1)
    assert list(answer.body) == [renamed, renamed]


def test_triton_is_not_asked_to_compress_what_is_read_here() -> None:
    message = Message(b"", {"accept-encoding": "gzip, deflate", "accept": "*/*"}, {}, "id")
    assert headers_of(message) == {"accept": "*/*"}


@pytest.mark.parametrize("key", ["outputs", "output"], ids=["metadata", "configuration"])
def test_callers_do_not_see_the_output_of_a_models_token(key: str) -> None:
    described = {"name": "m", key: [{"name": "y"}, {"name": REQUEST_TOKEN}]}
    answer = without_request_token(Answer(json.dumps(described).encode(), JSON))
    assert strict(answer.read()) == {"name": "m", key: [{"name": "y"}]}


ANSWER = b'{"outputs":[{"name":"NaN \\"Infinity\\" Inf","data":[NaN,-Infinity,Infinity,1.5]}]}'
RIGHT = {"outputs": [{"name": 'NaN "Infinity" Inf', "data": [None, None, None, 1.5]}]}


def strict(text: bytes) -> object:
    return json.loads(text, parse_constant=pytest.fail)


def test_numbers_that_json_does_not_have_are_null_in_tritons_answers() -> None:
    answer = to_v2_answer(ProxyReply(200, {"content-type": JSON}, ANSWER))
    assert strict(answer.read()) == RIGHT
    tensors = bytes(range(256))
    size = {HEADER_SIZE: str(len(ANSWER)), "content-type": OCTET_STREAM}
    answer = to_v2_answer(ProxyReply(200, size, ANSWER + tensors))
    count = int(answer.headers[HEADER_SIZE])
    assert (strict(answer.read()[:count]), answer.read()[count:]) == (RIGHT, tensors)
    assert (
        to_answer(ProxyReply(200, size, ANSWER + tensors)).content_type
        == f"{BINARY};json-header-size={count}"
    )
    stream = to_v2_answer(ProxyReply(200, {"content-type": "text/event-stream"}, iter([b"data: [NaN]\n\n"])))
    assert list(stream.body) == [b"data: [null]\n\n"]


def test_an_output_that_is_not_utf8_has_no_form_in_json() -> None:
    with pytest.raises(NotAcceptable):
        to_v2_answer(ProxyReply(200, {"content-type": JSON}, b'{"outputs":[{"data":["\xff"]}]}'))
    assert to_v2_answer(ProxyReply(200, {"content-type": JSON}, '["ü"]'.encode())).read() == '["ü"]'.encode()


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", JSON),
        (f"{BINARY};json-header-size=0", f"{BINARY};json-header-size=2"),
        (OCTET_STREAM, OCTET_STREAM),
        ("text/html", None),
    ],
)
def test_tritons_answer_is_what_the_caller_accepts(accept: str, content_type: str | None) -> None:
    answer = Answer(b"{}", JSON)
    if content_type is None:
        with pytest.raises(NotAcceptable):
            as_accepted(answer, accept)
    else:
        assert as_accepted(answer, accept).content_type == content_type


INTEGERS = [f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)]
DTYPES = ("BOOL", *INTEGERS, "FP32", "FP64", "BYTES")


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.booleans())
def test_what_tritons_own_client_sends_passes_in_both_forms(
    datatype: str, shape: list[int], binary: bool
) -> None:
    tensor = InferInput("x", shape, datatype)
    array = np.resize(
        np.array([0, 1, 2]).astype("S1" if datatype == "BYTES" else triton_to_np_dtype(datatype)), shape
    )
    tensor.set_data_from_numpy(array.astype(object) if datatype == "BYTES" else array, binary_data=binary)
    body, size = InferenceServerClient.generate_request_body([tensor])
    headers = {} if size is None else {"inference-header-content-length": str(size)}
    check_json(body, headers, 2**25, has_tensors=True)
    length = len(body) if size is None else size
    content_type = {"content-type": f"{BINARY}; Json-Header-Size={length}"}
    assert header_size(Message(body, content_type, {}, "id")) == length


@given(st.text(max_size=20) | st.integers().map(str), st.binary(max_size=9))
@example("9" * 19, b"")
@example("-1", b"")
@example("\u0661", b"12")  # a digit that is not ASCII
def test_any_size_of_the_json_is_within_the_body_or_bad_input(size: str, body: bytes) -> None:
    message = Message(body, {"content-type": f"{BINARY};json-header-size={size}"}, {}, "id")
    try:
        assert header_size(message) == int(size) <= len(body)
    except BadInput:
        assert not (size.isascii() and size.isdigit() and int(size) <= len(body) and len(size) < 19)


@given(st.binary(max_size=40) | st.text('{}[]":,inputs0', max_size=40).map(str.encode))
@example(b"[" * 10_000)
@example(b'{"inputs":[{"shape":[9223372036854775807,2],"datatype":"FP32","name":"x","data":[1]}]}')
def test_any_json_for_triton_passes_or_is_bad_input(body: bytes) -> None:
    try:
        check_json(body, {}, 2**25, has_tensors=True)
    except BadInput as error:
        assert (error.status, error.code) == (400, "bad_input")


def test_an_ensembles_answer_has_each_key_once() -> None:
    """Triton repeats the parameters of a sequence for each output."""
    repeated = b'"sequence_id":7,"sequence_start":false,"sequence_end":false'
    body = b'{"model_name":"a","parameters":{%b,%b},"outputs":[{"name":"y","data":[1.5]}]}' % (
        repeated,
        repeated,
    )
    answer = parsable_json(body)
    json.loads(
        answer, object_pairs_hook=lambda pairs: pytest.fail("twice") if len(dict(pairs)) < len(pairs) else 0
    )
    assert json.loads(answer) == json.loads(body)
    assert parsable_json(b'{"parameters":{%b}}' % repeated) == b'{"parameters":{%b}}' % repeated
