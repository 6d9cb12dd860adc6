"""A client's results become the body of an answer, the events of a stream, or AWS's frames."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from sm.client.csv_rows import encode_csv
from sm.client.results import Boxes, Encoded, Masks, Picture, Table, TableRows
from sm.deadline import Deadline, current, running
from sm.errors import (
    BadInput,
    CallerGone,
    ClientFailed,
    DeadlinePassed,
    NotAcceptable,
    StreamStalled,
    TriremeError,
)
from sm.http.messages import Answer
from sm.router.answers import (
    MAX_PAYLOAD_BYTES,
    MIN_RATE,
    Stream,
    encode_record,
    events,
    frame,
    frames,
    raw_parts,
    record_encoder,
    split_events,
    with_final_error,
    write,
    write_list,
)
from sm.router.classify import DispatchRequest
from sm.triton.read_ahead import PATIENCE


def request(**fields: Any) -> DispatchRequest:
    return DispatchRequest(**{"model": "m", "records": [1], **fields})


def write_all(list_request: DispatchRequest, *results: object) -> Answer:
    """Encode the results of a list."""
    return write_list(list_request, (encode_record("m", result) for result in results))


def test_arrays_that_are_not_contiguous_are_sent() -> None:
    answer = write(request(), np.arange(6).reshape(2, 3).T)
    assert json.loads(answer.read())["result"] == [[0, 3], [1, 4], [2, 5]]


def test_a_dataclass_is_sent_with_its_public_fields_and_its_pictures() -> None:
    @dataclass
    class Drawn:
        label: str
        picture: Picture
        _weight: float = 0.5

    answer = write(request(), [Drawn("cat", Picture(np.zeros((1, 1, 3), np.uint8)))])
    (drawn,) = json.loads(answer.read())["result"]
    assert (drawn["label"], drawn["picture"]["content_type"]) == ("cat", "image/png")
    assert set(drawn) == {"label", "picture"}


def test_a_list_of_which_every_record_failed_is_an_error() -> None:
    with pytest.raises(BadInput, match="first"):
        write_all(request(many=True, records=[1, 2]), BadInput("first"), BadInput("second"))


def test_an_array_is_sent_as_npy_to_a_caller_that_accepts_it() -> None:
    answer = write(request(accept="application/x-npy"), np.arange(3))
    assert answer.content_type == "application/x-npy"
    assert np.load(io.BytesIO(answer.read()), allow_pickle=False).tolist() == [0, 1, 2]


@pytest.mark.parametrize("accept", ["application/x-npy", "image/png", "text/html", "application/json;q=0"])
def test_a_result_that_cannot_be_what_the_caller_accepts_is_a_406(accept: str) -> None:
    asked = request(accept="application/x-npy", accept_header=accept)
    with pytest.raises(NotAcceptable):
        write(asked, {"a": {"b": {"c": {"d": {"e": 1}}}}})
    asked = request(accept="application/x-npy", accept_header=f"{accept}, application/*;q=0.1")
    if "q=0" not in accept:
        assert write(asked, {"a": 1}).content_type == "application/json"


def test_the_boxs_default_type_is_not_the_callers_so_json_may_take_its_place() -> None:
    assert write(request(accept="application/x-npy"), {"a": 1}).content_type == "application/json"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ([{"label": "a, b", "score": 0.5}, {"label": "c", "score": 0.25}], b'"a, b",0.5,c,0.25'),
        ({"embedding": np.array([1, 0.5], np.float32), "tokens": 3}, b"1.0,0.5,3"),
        ({"text": "ada"}, b"ada"),
        (7, b"7"),
        (np.float32(0.5), b"0.5"),
        (np.array([[1, 2], [3, 4]]), b"1,2\n3,4"),
        (TableRows([{"y": 1, "z": None}, {"y": [2, 3], "z": b"x"}]), b"1,\n2,3,x"),
        (Picture(np.zeros((2, 3, 3), np.uint8)), None),
        ({"bytes": b"\xff"}, None),
    ],
)
def test_a_result_is_a_line_of_csv_or_a_406(result: object, line: bytes | None) -> None:
    asked = request(accept="text/csv", accept_header="text/csv")
    if line is None:
        with pytest.raises(NotAcceptable):
            write(asked, result)
    else:
        answer = write(asked, result)
        assert (answer.read(), answer.content_type) == (line, "text/csv")


def test_found_objects_are_no_line_of_csv() -> None:
    for kind in (Boxes(), Masks(), Table()):
        assert encode_csv([{"label": "a", "score": 1.0}], kind) is None


def write_list_for(accept: str, *results: object) -> Answer:
    asked = request(many=True, records=[*results], accept_header=accept)
    encode = record_encoder(asked)
    return write_list(asked, map(encode, results))


def test_a_list_is_sent_as_the_caller_accepts_it() -> None:
    for accept, body in (
        ("text/csv", b"1\n2"),
        ("text/csv, application/json;q=0.1", b"1\n2"),
        ("application/x-ndjson", b"1\n2"),
        ("text/html, */*;q=0.1", b'{"modelname":"m","result":[1,2]}'),
    ):
        assert write_list_for(accept, 1, 2).read() == body
    with pytest.raises(NotAcceptable):
        write_list_for("image/png", 1, 2)


def test_a_record_that_fails_has_no_line_in_csv_so_the_request_fails() -> None:
    with pytest.raises(BadInput):
        write_list_for("text/csv", 1, BadInput("wrong"))


def test_json_that_a_client_wrote_itself_has_no_words_for_nan() -> None:
    answer = write(
        request(), Encoded(b'[NaN, -Infinity, "NaN", "\\"NaN"]', "application/json; charset=utf-8")
    )
    assert json.loads(answer.read(), parse_constant=pytest.fail) == [None, None, "NaN", '"NaN']


def test_a_picture_is_png_bytes_or_base64_in_json() -> None:
    picture = Picture(np.zeros((2, 3, 3), np.uint8))
    assert write(request(accept="image/png"), picture).read().startswith(b"\x89PNG")
    result = json.loads(write(request(), picture).read())["result"]
    assert result["content_type"] == "image/png"
    assert result["image"].startswith("iVBOR")


def test_json_lines_have_one_line_per_record() -> None:
    answer = write_all(request(many=True, records=[1, 2], accept="application/jsonlines"), [1], [2])
    assert answer.read() == b"[1]\n[2]"


def test_an_answer_that_the_client_encoded_is_sent_as_it_is() -> None:
    answer = write(request(accept="application/json"), Encoded(b"a,b", "text/csv"))
    assert (answer.read(), answer.content_type) == (b"a,b", "text/csv")


def test_the_error_for_bytes_in_a_result_names_their_position() -> None:
    result = {"label": np.array([b"cat"], object)}
    with pytest.raises(
        ClientFailed, match=r"result of 'm' cannot be sent: result\.label\[0\] is bytes"
    ) as caught:
        write(request(), result)
    results = json.loads(write_all(request(many=True, records=[1, 2]), result, 1).read())["result"]
    assert results == [{"error": caught.value.sentence, "code": "client_failed"}, 1]


def test_an_encoded_answer_within_a_list_is_sent_as_base64_with_its_type() -> None:
    answer = write(request(many=True, records=[{}, {}]), [Encoded(b"RIFF", "audio/wav"), "text"])
    entry = {"body": "UklGRg==", "content_type": "audio/wav"}
    assert json.loads(answer.read())["result"] == [entry, "text"]


class RecordingResources:
    """Resources of a stream: records when they are released, and with which error."""

    def __init__(self) -> None:
        self.released_with: list[type[BaseException] | None] = []
        self.chunks_sent = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.released_with.append(type(error))
            raise
        self.released_with.append(None)

    def count(self, _: bytes) -> None:
        self.chunks_sent += 1

    def stream(self, chunks: Iterator[bytes]) -> Stream:
        return Stream(chunks, self.open(), self.count)


@pytest.fixture
def resources() -> RecordingResources:
    return RecordingResources()


def test_a_stream_releases_its_resources_at_its_end(resources: RecordingResources) -> None:
    stream = resources.stream(iter([b"a", b"", b"b"]))
    assert resources.released_with == []
    assert list(stream) == [b"a", b"", b"b"]
    assert (resources.released_with, resources.chunks_sent) == ([None], 3)


def test_an_error_before_the_first_chunk_is_raised_at_once(resources: RecordingResources) -> None:
    def failing_chunks() -> Iterator[bytes]:
        raise BadInput("no")
        yield b""

    with pytest.raises(BadInput):
        resources.stream(failing_chunks())
    assert resources.released_with == [BadInput]


@pytest.mark.parametrize("chunks_read", [0, 1, 2])
def test_closing_a_stream_closes_its_generator_and_resources(
    resources: RecordingResources, chunks_read: int
) -> None:
    closed: list[bool] = []

    def endless_chunks() -> Iterator[bytes]:
        try:
            while True:
                yield b"a"
        finally:
            closed.append(True)

    stream = resources.stream(endless_chunks())
    for _ in range(chunks_read):
        next(stream)
    stream.close()
    assert closed == [True]
    assert resources.released_with == [GeneratorExit]
    assert list(stream) == []


def test_each_chunk_is_computed_under_the_deadline_of_the_streams_start(
    resources: RecordingResources,
) -> None:
    caller_gone = threading.Event()

    def chunks_that_check_the_deadline() -> Iterator[bytes]:
        for _ in range(3):
            deadline = current()
            assert deadline is not None
            deadline.check()
            yield b"a"

    with running(Deadline(time.monotonic() + 60, caller_gone.is_set)):
        stream = resources.stream(chunks_that_check_the_deadline())
    assert current() is None
    assert [next(stream), next(stream)] == [b"a", b"a"]
    caller_gone.set()
    with pytest.raises(CallerGone):
        next(stream)


def test_a_stream_may_be_read_in_another_thread(resources: RecordingResources) -> None:
    with running(Deadline(time.monotonic() + 60)):
        stream = resources.stream(iter([b"a", b"b"]))
    chunks: list[bytes] = []
    thread = threading.Thread(target=lambda: chunks.extend(stream))
    thread.start()
    thread.join(10)
    assert chunks == [b"a", b"b"]
    assert resources.released_with == [None]


def test_a_stream_whose_last_chunk_was_never_taken_has_stalled(
    resources: RecordingResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, "seconds", 0.05)
    stream = resources.stream(iter([b"a", b"b"]))
    next(stream)
    time.sleep(0.1)
    stream.close()
    assert resources.released_with == [StreamStalled]


def test_a_caller_who_takes_too_little_loses_the_stream(
    resources: RecordingResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, "seconds", 0.02)
    slow, fast = (resources.stream(iter([bytes(size)] * 3)) for size in (1, MIN_RATE))
    for stream in (slow, fast):
        next(stream)
    time.sleep(0.1)
    with pytest.raises(StreamStalled):
        next(slow)
    next(fast)
    assert resources.released_with == [StreamStalled]


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


def parse_frames(content: bytes) -> list[Any]:
    buffer = EventStreamBuffer()
    buffer.add_data(content)
    return list(buffer)


def failing_chunks(error: TriremeError) -> Iterator[bytes]:
    yield b"one"
    raise error


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=5), st.binary())
def test_any_frame_is_read_back(headers: dict[str, str], payload: bytes) -> None:
    (message,) = parse_frames(frame(headers, payload))
    assert (message.headers, message.payload) == (headers, payload)


def test_each_chunk_is_a_payload_part() -> None:
    parsed = [parse_frames(content) for content in frames(iter([b"one", b"two"]))]
    assert [[message.payload for message in messages] for messages in parsed] == [[b"one"], [b"two"]]
    assert parsed[0][0].headers == {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }


def test_a_chunk_larger_than_a_frame_is_several() -> None:
    chunk = bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256) + b"end"
    parts = [message.payload for content in frames(iter([chunk])) for message in parse_frames(content)]
    assert (len(parts), b"".join(parts)) == (2, chunk)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ClientFailed("it broke"), "StreamBroken"), (DeadlinePassed("too late"), "ModelInvocationTimeExceeded")],
)
def test_an_error_is_the_last_frame(error: TriremeError, code: str) -> None:
    first, last = parse_frames(b"".join(frames(failing_chunks(error))))
    assert first.payload == b"one"
    assert last.headers[":message-type"] == "exception"
    assert last.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(last.payload) == {"Message": error.sentence, "ErrorCode": code}
