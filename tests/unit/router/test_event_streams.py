"""Each part of a streamed answer is an event, or bytes, text or a line of JSON."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.client.results import Encoded, Picture
from sm.errors import ClientFailed
from sm.router.event_streams import events, raw_parts, split_events, with_final_error

PICTURE = Picture(np.zeros((2, 3, 3), np.uint8))


def sse_event(part: object) -> bytes:
    """Return the one event that ``part`` becomes."""
    (content,) = events(iter([part]), "m")
    return content


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(max_examples=50)
@given(json_values)
def test_an_object_is_an_event_and_anything_else_one_with_result_and_the_models_name(part: Any) -> None:
    event = re.fullmatch(rb"data: ([^\r\n]+)\n\n", sse_event(part))
    assert event
    assert json.loads(event[1]) == (part if isinstance(part, dict) else {"modelname": "m", "result": part})


@pytest.mark.parametrize(
    ("part", "event"),
    [
        (np.arange(2), b'{"modelname":"m","result":[0,1]}'),
        (b"\xff", b'{"modelname":"m","result":"/w=="}'),
        ({"score": np.float32(0.5)}, b'{"score":0.5}'),
        (Encoded(b'{\n"a":1}', "application/json"), b'{\ndata: "a":1}'),
    ],
)
def test_bytes_are_base64_and_arrays_lists_in_an_event(part: object, event: bytes) -> None:
    assert sse_event(part) == b"data: " + event + b"\n\n"


@pytest.mark.parametrize("part", [{"a": object()}, "\ud800", {1, 2}], ids=["object", "surrogate", "set"])
def test_a_part_that_cannot_be_sent_is_the_clients_error(part: object) -> None:
    for chunks in (events(iter([part]), "m"), raw_parts(iter([part]))):
        with pytest.raises(ClientFailed):
            next(chunks)


def test_raw_parts_are_bytes_text_or_lines_of_json() -> None:
    parts = ["gr\u00fcn", b"\xff\x00", {"a": 1}, Encoded(b"x", "text/csv")]
    assert list(raw_parts(iter(parts))) == ["gr\u00fcn".encode(), b"\xff\x00", b'{"a":1}\n', b"x"]
    assert next(raw_parts(iter([PICTURE]))).startswith(b"\x89PNG")


#: Events without their end, of some lines each.
LINES = st.binary(min_size=1, max_size=9).map(lambda line: line.replace(b"\n", b" "))
EVENTS = st.lists(st.lists(LINES, min_size=1, max_size=3).map(b"\n".join), max_size=4)


@settings(max_examples=60)
@given(EVENTS, LINES, st.lists(st.integers(1, 10), max_size=9))
def test_events_are_split_wherever_the_chunks_were_cut(
    whole: list[bytes], last: bytes, cuts: list[int]
) -> None:
    parts = [*(event + b"\n\n" for event in whole), last]
    remaining, chunks = b"".join(parts), []
    for cut in cuts:
        chunks.append(remaining[:cut])
        remaining = remaining[cut:]
    assert list(split_events(iter([*chunks, remaining]))) == parts


def test_an_error_is_the_last_event() -> None:
    failing = iter(MagicMock(side_effect=[b"data: 1\n\n", ClientFailed("it broke")]), b"")
    first, last = with_final_error(failing, "id-1")
    assert first == b"data: 1\n\n"
    event = re.fullmatch(rb"event: error\ndata: ([^\r\n]+)\n\n", last)
    assert event
    assert json.loads(event[1]) == {"error": "it broke", "code": "client_failed", "request_id": "id-1"}
