"""Which bodies are v2 requests. tests/integration/box/test_v2.py tests what Triton answers to them."""

from __future__ import annotations

from sm.http.messages import Answer
from sm.router.classify import (
    Message,
    estimate_parsed_bytes,
)
from sm.router.triton_requests import rename_model


def test_large_json_of_any_content_type_is_counted_before_it_is_parsed() -> None:
    body = b'{"id":"1","data":[' + b"[]," * 2**20 + b'[]],"inputs":[]}'
    headers = {"content-type": "application/octet-stream"}
    assert estimate_parsed_bytes(Message(body, headers, {}, "id")) > 2**26


def test_each_event_of_a_stream_names_the_archive() -> None:
    event = b'data: {"model_name":"team-cats-1","text":"\\"model_name\\":\\"team-cats-1\\""}\n\n'
    answer = rename_model(Answer(iter([event, event]), "text/event-stream"), "team-cats-1", "team/cats")
    renamed = event.replace(b"team-cats-1", b"team/cats", 1)
    assert list(answer.body) == [renamed, renamed]
