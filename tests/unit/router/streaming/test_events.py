"""Parts become server-sent events, or bytes one behind the other."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.client.results import Encoded, Picture
from sm.errors import ClientFailed
from sm.router.streaming.server_sent_events import events, raw_parts, split_events, with_final_error

PICTURE = Picture(np.zeros((2, 3, 3), np.uint8))


def event(part: object) -> bytes:
    (only,) = events(iter([part]), "m")
    return only


def test_an_object_is_an_event_as_it_is() -> None:
    assert event({"token": "a", "score": np.float32(0.5)}) == b'data: {"token":"a","score":0.5}\n\n'


@pytest.mark.parametrize(
    ("part", "result"), [("a\nb", "a\nb"), (7, 7), ([1], [1]), (np.arange(2), [0, 1]), (b"\xff", "/w==")]
)
def test_any_other_part_is_a_result_with_its_models_name(part: object, result: object) -> None:
    text = event(part)
    assert text.startswith(b"data: ")
    assert text.endswith(b"\n\n")
    assert text.count(b"\n") == 2
    assert json.loads(text[6:]) == {"modelname": "m", "result": result}


def test_a_picture_is_sent_in_base64() -> None:
    assert json.loads(event(PICTURE)[6:])["result"]["content_type"] == "image/png"


def test_what_a_client_has_encoded_itself_is_one_event_of_as_many_lines() -> None:
    assert event(Encoded(b'{\n"a":1}', "application/json")) == b'data: {\ndata: "a":1}\n\n'


@pytest.mark.parametrize("part", [{"a": object()}, "\ud800", {1, 2}])
def test_a_part_that_cannot_be_sent_is_the_clients_fault(part: object) -> None:
    for chunks in (events(iter([part]), "m"), raw_parts(iter([part]))):
        with pytest.raises(ClientFailed, match="cannot be sent"):
            next(chunks)


def test_plain_parts_are_bytes_text_or_lines_of_json() -> None:
    parts = ["gr\u00fcn", b"\xff\x00", {"a": 1}, Encoded(b"x", "text/csv")]
    assert list(raw_parts(iter(parts))) == ["gr\u00fcn".encode(), b"\xff\x00", b'{"a":1}\n', b"x"]
    assert next(raw_parts(iter([PICTURE]))).startswith(b"\x89PNG")


@given(st.lists(st.integers(1, 10)))
def test_events_are_told_apart_wherever_they_were_cut(cuts: list[int]) -> None:
    parts = [b"data: 1\n\n", b"event: x\ndata: two\n\n", b"data: cut off"]
    text, chunks = b"".join(parts), []
    for cut in cuts:
        chunks.append(text[:cut])
        text = text[cut:]
    assert list(split_events(iter([*chunks, text]))) == parts


def test_an_error_is_the_last_event() -> None:
    def broken() -> Iterator[bytes]:
        yield b"data: 1\n\n"
        raise ClientFailed("it broke")

    first, last = with_final_error(broken(), "id-1")
    assert first == b"data: 1\n\n"
    kind, data, *rest = last.decode().split("\n")
    assert (kind, rest) == ("event: error", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {
        "error": "it broke",
        "code": "client_failed",
        "request_id": "id-1",
    }
