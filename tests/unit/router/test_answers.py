"""A client's results become the body of an answer."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sm.client.base import Client
from sm.client.csv_rows import encode_csv
from sm.client.payloads import Payload
from sm.client.results import Boxes, Encoded, Masks, Picture, Table, TableRows
from sm.errors import BadInput, ClientFailed, NotAcceptable, TriremeError
from sm.http.messages import Answer
from sm.invocation import Invocation
from sm.router.answers import EncodedRecord, encode_failure, record_encoder, write, write_list
from sm.router.classify import choose_list_accept
from sm.router.request_types import DispatchRequest
from tests.support.client_sources import EmptyTriton


class AnyClient(Client):
    def inference(self, payload: Payload) -> object:
        return None


def request(**fields: Any) -> DispatchRequest:
    client = AnyClient(EmptyTriton(), Path(), Path())
    return DispatchRequest(**{"model": "m", "records": [1], "client": client, **fields})


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


def test_an_array_is_sent_as_npy_to_a_caller_that_accepts_it() -> None:
    answer = write(request(accept="application/x-npy"), np.arange(3))
    assert answer.content_type == "application/x-npy"
    assert np.load(io.BytesIO(answer.read()), allow_pickle=False).tolist() == [0, 1, 2]


@pytest.mark.parametrize("accept", ["application/x-npy", "application/json;q=0"])
def test_a_result_that_cannot_be_what_the_caller_accepts_is_a_406(accept: str) -> None:
    asked = request(accept="application/x-npy", accept_header=accept)
    with pytest.raises(NotAcceptable):
        write(asked, {"a": {"b": {"c": {"d": {"e": 1}}}}})
    # JSON may take the place of a type that is only one of the caller's, or the box's default.
    for header in ("", "application/x-npy, application/*;q=0.1"):
        asked = request(accept="application/x-npy", accept_header=header)
        assert write(asked, {"a": 1}).content_type == "application/json"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ({"embedding": np.array([1, 0.5], np.float32), "tokens": 3}, b"1.0,0.5,3"),
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


CELLS = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.integers() | st.floats(allow_nan=False)
)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_standard_library_reads_the_rows_of_a_table_back(rows: list[list[object]]) -> None:
    content = encode_csv(TableRows([dict(zip("abcd", row, strict=False)) for row in rows]), None)
    assert content is not None
    text = io.StringIO(content.decode() + "\n", newline="")
    assert list(csv.reader(text, strict=True)) == [[str(cell) for cell in row] for row in rows]
    # A record that is no table is one line of all its values.
    line = encode_csv([{"cells": row} for row in rows], None)
    assert line is not None
    text = io.StringIO(line.decode() + "\n", newline="")
    assert list(csv.reader(text, strict=True)) == [[str(cell) for row in rows for cell in row]]


def test_found_objects_are_no_line_of_csv() -> None:
    for kind in (Boxes(), Masks(), Table()):
        assert encode_csv([{"label": "a", "score": 1.0}], kind) is None


def write_list_for(accept: str, *results: object) -> Answer:
    asked = request(many=True, records=[*results], accept_header=accept)
    asked.accept = choose_list_accept(accept, "application/json", asked.client)
    encode = record_encoder(asked)

    def encode_or_fail(result: object) -> EncodedRecord:
        try:
            return encode_failure(result) if isinstance(result, TriremeError) else encode(result)
        except TriremeError as error:
            return encode_failure(error)

    return write_list(asked, map(encode_or_fail, results), Invocation(math.inf))


def test_a_list_is_sent_as_the_caller_accepts_it() -> None:
    for accept, body in (
        ("text/csv", b"1\n2"),
        ("text/csv, application/json;q=0.1", b"1\n2"),
        ("application/x-ndjson", b"1\n2"),
        ("application/jsonlines", b"1\n2"),
        ("text/html, */*;q=0.1", b'{"modelname":"m","result":[1,2]}'),
    ):
        assert write_list_for(accept, 1, 2).read() == body
    with pytest.raises(NotAcceptable):
        write_list_for("image/png", 1, 2)
    # A record that fails has no line in CSV, so the request fails; so does a list of which every record failed.
    for accept, results in (
        ("text/csv", (1, BadInput("first"))),
        ("", (BadInput("first"), BadInput("second"))),
    ):
        with pytest.raises(BadInput, match="first"):
            write_list_for(accept, *results)


def test_json_that_a_client_wrote_itself_has_no_words_for_nan() -> None:
    answer = write(
        request(), Encoded(b'[NaN, -Infinity, "NaN", "\\"NaN"]', "application/json; charset=utf-8")
    )
    assert json.loads(answer.read(), parse_constant=pytest.fail) == [None, None, "NaN", '"NaN']


def test_a_picture_is_png_bytes_or_base64_in_json() -> None:
    picture = Picture(np.zeros((2, 3, 3), np.uint8))
    sent = Image.open(io.BytesIO(write(request(accept="image/png"), picture).read()))
    assert (sent.format, sent.size) == ("PNG", (3, 2))
    single, among_others = json.loads(write(request(), [picture, Encoded(b"RIFF", "audio/wav")]).read())[
        "result"
    ]
    assert (single["content_type"], single["image"][:5]) == ("image/png", "iVBOR")
    assert among_others == {"body": "UklGRg==", "content_type": "audio/wav"}


def test_an_answer_that_the_client_encoded_is_sent_as_it_is() -> None:
    answer = write(request(accept="application/json"), Encoded(b"a,b", "text/csv"))
    assert (answer.read(), answer.content_type) == (b"a,b", "text/csv")


def test_the_error_for_bytes_in_a_result_names_their_position() -> None:
    result = {"label": np.array([b"cat"], object)}
    with pytest.raises(ClientFailed, match=r"result\.label\[0\]") as caught:
        write(request(), result)
    results = json.loads(write_list_for("", result, 1).read())["result"]
    assert results == [{"error": caught.value.sentence, "code": "client_failed"}, 1]
