"""Which bodies are v2 requests. tests/integration/box/test_v2.py tests what Triton answers to them."""

from __future__ import annotations

import json

import pytest

from sm.errors import NotAcceptable
from sm.http.messages import BINARY, JSON, OCTET_STREAM, Answer
from sm.router.classify import (
    Message,
    estimate_parsed_bytes,
)
from sm.router.triton_requests import (
    as_accepted,
    headers_of,
    rename_model,
    to_answer,
    to_v2_answer,
    without_request_token,
)
from sm.triton.http_proxy import HEADER_SIZE, Reply
from sm.triton.inference_plan import REQUEST_TOKEN


def test_large_json_of_any_content_type_is_counted_before_it_is_parsed() -> None:
    body = b'{"id":"1","data":[' + b"[]," * 2**20 + b'[]],"inputs":[]}'
    headers = {"content-type": "application/octet-stream"}
    assert estimate_parsed_bytes(Message(body, headers, {}, "id")) > 2**26


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
    answer = to_v2_answer(Reply(200, {"content-type": JSON}, ANSWER))
    assert strict(answer.read()) == RIGHT
    tensors = bytes(range(256))
    size = {HEADER_SIZE: str(len(ANSWER)), "content-type": OCTET_STREAM}
    answer = to_v2_answer(Reply(200, size, ANSWER + tensors))
    count = int(answer.headers[HEADER_SIZE])
    assert (strict(answer.read()[:count]), answer.read()[count:]) == (RIGHT, tensors)
    assert to_answer(Reply(200, size, ANSWER + tensors)).content_type == f"{BINARY};json-header-size={count}"
    stream = to_v2_answer(Reply(200, {"content-type": "text/event-stream"}, iter([b"data: [NaN]\n\n"])))
    assert list(stream.body) == [b"data: [null]\n\n"]


def test_an_output_that_is_not_utf8_has_no_form_in_json() -> None:
    with pytest.raises(NotAcceptable):
        to_v2_answer(Reply(200, {"content-type": JSON}, b'{"outputs":[{"data":["\xff"]}]}'))
    assert to_v2_answer(Reply(200, {"content-type": JSON}, '["ü"]'.encode())).read() == '["ü"]'.encode()


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
