"""AWS's own reader takes the frames."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from sm.errors import ClientFailed, DeadlinePassed, TriremeError
from sm.router.aws_frames import MAX_PAYLOAD_BYTES, frame, frames


def parse_frames(content: bytes) -> list[Any]:
    buffer = EventStreamBuffer()
    buffer.add_data(content)
    return list(buffer)


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=5), st.binary())
def test_any_frame_is_read_back(headers: dict[str, str], payload: bytes) -> None:
    (message,) = parse_frames(frame(headers, payload))
    assert (message.headers, message.payload) == (headers, payload)


def test_each_chunk_is_a_payload_part_and_one_larger_than_a_frame_several() -> None:
    chunk = bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256) + b"end"
    parsed = [parse_frames(content) for content in frames(iter([b"one", chunk]))]
    first, *others = [message for messages in parsed for message in messages]
    assert (first.payload, b"".join(each.payload for each in others), len(others)) == (b"one", chunk, 2)
    assert (first.headers[":message-type"], first.headers[":event-type"]) == ("event", "PayloadPart")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ClientFailed("it broke"), "StreamBroken"), (DeadlinePassed("too late"), "ModelInvocationTimeExceeded")],
)
def test_an_error_is_the_last_frame(error: TriremeError, code: str) -> None:
    first, last = parse_frames(b"".join(frames(iter(MagicMock(side_effect=[b"one", error]), b""))))
    assert first.payload == b"one"
    assert last.headers[":message-type"] == "exception"
    assert last.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(last.payload) == {"Message": error.sentence, "ErrorCode": code}
