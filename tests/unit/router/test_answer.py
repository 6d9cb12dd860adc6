"""A client's results become the body and headers of the answer."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sm.client.results import Encoded, Picture
from sm.errors import BadInput, ClientFailed, WrongPayload
from sm.http.messages import Answer, write_error
from sm.router.answers import encode_record, write, write_list
from sm.router.classify import DispatchRequest


def request(**fields: Any) -> DispatchRequest:
    return DispatchRequest(**{"model": "m", "records": [1], **fields})


def write_all(list_request: DispatchRequest, *results: object) -> Answer:
    """Encode the results of a list."""
    return write_list(list_request, (encode_record("m", result) for result in results))


def test_an_answer_repeats_the_model_and_holds_the_result() -> None:
    answer = write(request(), np.float32(0.5))
    assert json.loads(answer.read()) == {"modelname": "m", "result": 0.5}
    assert answer.content_type == "application/json"


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


def test_a_failed_records_error_stands_in_its_place() -> None:
    answer = write_all(request(many=True, records=[1, 2]), "yes", BadInput("no"))
    assert json.loads(answer.read())["result"] == ["yes", {"error": "no", "code": "bad_input"}]
    assert answer.status == 200


def test_a_list_of_which_every_record_failed_is_an_error() -> None:
    with pytest.raises(BadInput, match="first"):
        write_all(request(many=True, records=[1, 2]), BadInput("first"), BadInput("second"))


def test_an_array_is_sent_as_npy_to_a_caller_that_accepts_it() -> None:
    answer = write(request(accept="application/x-npy"), np.arange(3))
    assert answer.content_type == "application/x-npy"
    assert np.load(io.BytesIO(answer.read()), allow_pickle=False).tolist() == [0, 1, 2]


def test_a_result_that_is_no_array_is_json_even_if_npy_is_accepted() -> None:
    answer = write(request(accept="application/x-npy"), {"a": 1})
    assert answer.content_type == "application/json"


def test_a_picture_is_png_bytes_or_base64_in_json() -> None:
    picture = Picture(np.zeros((2, 3, 3), np.uint8))
    assert write(request(accept="image/png"), picture).read().startswith(b"\x89PNG")
    result = json.loads(write(request(), picture).read())["result"]
    assert result["content_type"] == "image/png"
    assert result["image"].startswith("iVBOR")


def test_json_lines_have_one_line_per_record() -> None:
    answer = write_all(request(many=True, records=[1, 2], accept="application/jsonlines"), [1], [2])
    assert answer.read() == b"[1]\n[2]"


def test_an_error_has_sentence_code_request_id_and_details() -> None:
    answer = write_error(WrongPayload("payload.a: is missing", field="payload.a"), "id-9")
    assert answer.status == 422
    assert json.loads(answer.read()) == {
        "error": "payload.a: is missing",
        "code": "wrong_payload",
        "request_id": "id-9",
        "field": "payload.a",
    }


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


def test_a_picture_inside_a_result_is_sent_as_base64() -> None:
    picture = Picture(np.zeros((2, 3, 3), np.uint8))
    result = json.loads(write(request(), {"count": 1, "drawn": picture}).read())["result"]
    assert (result["count"], result["drawn"]) == (1, picture.as_json())


def test_an_encoded_answer_within_a_list_is_sent_as_base64_with_its_type() -> None:
    answer = write(request(many=True, records=[{}, {}]), [Encoded(b"RIFF", "audio/wav"), "text"])
    entry = {"body": "UklGRg==", "content_type": "audio/wav"}
    assert json.loads(answer.read())["result"] == [entry, "text"]
