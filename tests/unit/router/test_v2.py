"""Which bodies are v2 requests. tests/integration/box/test_v2.py tests what Triton answers to them."""

from __future__ import annotations

import pytest

from sm.http.messages import Answer
from sm.plugins.registry import Registry
from sm.router.classify import (
    Classifier,
    DispatchRequest,
    JsonBody,
    Message,
    TritonRequest,
    estimate_parsed_bytes,
)
from sm.router.triton_requests import rename_model


@pytest.mark.parametrize(
    ("body", "is_v2"),
    [
        (b'{"inputs": []}', True),
        (b' {\n"id" : "1", "inputs": []}', True),
        (b'{"parameters": {"payload": 1}, "inputs": []}', True),
        (b'{"parameters": {"modelname": "m", "payload": 1}, "inputs": []}', True),
        (b'{"modelname": "m", "inputs": []}', True),
        (b'{"modelname": "m", "payload": {"inputs": []}}', False),
        (b'{"modelname": "m\\"", "payload": {"inputs": []}}', False),
        (b'{"payload": 1, "inputs": []}', False),
        (b'{"inputs"}', False),
        (b'["inputs"]', False),
    ],
)
def test_a_body_with_inputs_and_without_payload_is_v2(body: bytes, is_v2: bool) -> None:
    assert JsonBody(body).is_v2() is is_v2


@pytest.mark.parametrize(
    ("inference_type", "content_type", "body", "verb"),
    [
        ("infer", "application/octet-stream", b'{"inputs": []}', "infer"),
        ("generate", "application/octet-stream", b'{"text_input": "x"}', "generate"),
        ("generate_stream", "text/plain", b' {"text_input": "x"}', "generate_stream"),
        ("generate", "application/json", b'{"modelname": "m", "payload": 1}', ""),
    ],
)
def test_json_for_triton_may_have_any_content_type(
    inference_type: str, content_type: str, body: bytes, verb: str
) -> None:
    classifier = Classifier(Registry({}, models=("m",)), "m", inference_type=inference_type)
    request = classifier.parse(Message(body, {"content-type": content_type}, {}, "id"))
    if verb:
        assert isinstance(request, TritonRequest)
        assert (request.model, request.verb) == ("m", verb)
    else:
        assert isinstance(request, DispatchRequest)


def test_large_json_of_any_content_type_is_counted_before_it_is_parsed() -> None:
    body = b'{"id":"1","data":[' + b"[]," * 2**20 + b'[]],"inputs":[]}'
    headers = {"content-type": "application/octet-stream"}
    assert estimate_parsed_bytes(Message(body, headers, {}, "id")) > 2**26


def test_each_event_of_a_stream_names_the_archive() -> None:
    event = b'data: {"model_name":"team-cats-1","text":"\\"model_name\\":\\"team-cats-1\\""}\n\n'
    answer = rename_model(Answer(iter([event, event]), "text/event-stream"), "team-cats-1", "team/cats")
    renamed = event.replace(b"team-cats-1", b"team/cats", 1)
    assert list(answer.body) == [renamed, renamed]
