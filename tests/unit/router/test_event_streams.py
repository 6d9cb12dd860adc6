"""Each part of a streamed answer is an event, or bytes, text or a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.client.results import Encoded, Picture
from sm.errors import (
    ClientFailed,
)
from sm.router.event_streams import events, raw_parts, split_events, with_final_error

PICTURE = Picture(np.zeros((2, 3, 3), np.uint8))


def sse_event(part: object) -> bytes:
    """Return the one event that ``part`` becomes."""
    (content,) = events(iter([part]), "m")
    return content


def test_an_object_is_sent_unchanged_as_an_event() -> None:
    assert sse_event({"token": "a", "score": np.float32(0.5)}) == b'data: {"token":"a","score":0.5}\n\n'


@pytest.mark.parametrize(
    ("part", "result"), [("a\nb", "a\nb"), (7, 7), ([1], [1]), (np.arange(2), [0, 1]), (b"\xff", "/w==")]
)
def test_any_other_part_is_sent_as_result_with_the_models_name(part: object, result: object) -> None:
    text = sse_event(part)
    assert text.startswith(b"data: ")
    assert text.endswith(b"\n\n")
    assert text.count(b"\n") == 2
    assert json.loads(text[6:]) == {"modelname": "m", "result": result}


def test_an_encoded_part_of_several_lines_is_one_event() -> None:
    assert sse_event(Encoded(b'{\n"a":1}', "application/json")) == b'data: {\ndata: "a":1}\n\n'


@pytest.mark.parametrize("part", [{"a": object()}, "\ud800", {1, 2}], ids=["object", "surrogate", "set"])
def test_a_part_that_cannot_be_sent_is_the_clients_error(part: object) -> None:
    for chunks in (events(iter([part]), "m"), raw_parts(iter([part]))):
        with pytest.raises(ClientFailed, match="cannot be sent"):
            next(chunks)


def test_raw_parts_are_bytes_text_or_lines_of_json() -> None:
    parts = ["gr\u00fcn", b"\xff\x00", {"a": 1}, Encoded(b"x", "text/csv")]
    assert list(raw_parts(iter(parts))) == ["gr\u00fcn".encode(), b"\xff\x00", b'{"a":1}\n', b"x"]
    assert next(raw_parts(iter([PICTURE]))).startswith(b"\x89PNG")


@given(st.lists(st.integers(1, 10)))
def test_events_are_split_wherever_the_chunks_were_cut(cuts: list[int]) -> None:
    parts = [b"data: 1\n\n", b"event: x\ndata: two\n\n", b"data: cut off"]
    remaining, chunks = b"".join(parts), []
    for cut in cuts:
        chunks.append(remaining[:cut])
        remaining = remaining[cut:]
    assert list(split_events(iter([*chunks, remaining]))) == parts


def test_an_error_is_the_last_event() -> None:
    def failing_events() -> Iterator[bytes]:
        yield b"data: 1\n\n"
        raise ClientFailed("it broke")

    first, last = with_final_error(failing_events(), "id-1")
    assert first == b"data: 1\n\n"
    event_line, data_line, *rest = last.decode().split("\n")
    assert (event_line, rest) == ("event: error", ["", ""])
    assert json.loads(data_line.removeprefix("data: ")) == {
        "error": "it broke",
        "code": "client_failed",
        "request_id": "id-1",
    }
