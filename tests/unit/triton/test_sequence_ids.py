"""Which ids of a sequence a model tells from others."""

from __future__ import annotations

import json

import pytest
from tritonclient.grpc import model_config_pb2

from sm.errors import BadInput
from sm.triton.http_proxy import check_json
from sm.triton.sequence_ids import ANY, LARGEST, TEXT

WRONG = ["", -1, 0, 2**64, 1.5, 1.0, True, None, [1], {"a": 1}]


def check_id(body: bytes, *types: str) -> None:
    check_json(body, {}, 2**20, types=frozenset(types))


def is_taken(identity: object, types: set[str]) -> bool:
    """True if the id is taken in all places; False if it is refused in all."""
    found = set()
    for body in (
        {"parameters": {"sequence_id": identity}, "inputs": []},
        {"text": "a", "sequence_id": identity},
    ):
        try:
            check_id(json.dumps(body).encode(), *types)
            found.add(True)
        except BadInput:
            found.add(False)
    (taken,) = found
    return taken


@pytest.mark.parametrize("datatype", LARGEST)
def test_a_numeric_id_is_a_number_that_the_datatype_holds(datatype: str) -> None:
    model_config_pb2.DataType.Value(datatype)
    assert is_taken(1, {datatype})
    assert is_taken(LARGEST[datatype], {datatype})
    for wrong in (LARGEST[datatype] + 1, "user-1001", "7", *WRONG):
        assert not is_taken(wrong, {datatype}), wrong


def test_a_text_is_for_a_model_that_takes_texts_or_none() -> None:
    for types in ({TEXT}, {ANY}):
        assert is_taken("user-1001", types)
        assert not any(is_taken(wrong, types) for wrong in WRONG)
    assert is_taken(7, {ANY})
    assert not is_taken(7, {TEXT})
    assert not is_taken("a", {TEXT, "TYPE_UINT64"})


def test_a_key_that_is_there_twice_is_refused_as_triton_takes_another_one() -> None:
    for body in (
        b'{"sequence_id":"a","sequence_id":7}',
        b'{"parameters":{"sequence_id":7,"sequence\\u005fid":"a"}}',
        b'{"parameters":{"sequence_id":"a"},"parameters":{}}',
        b'{"p\\u0061rameters":{},"parameters":{"sequence_id":7}}',
        b'{"inputs":[{"parameters":{"sequence_id" : "a"}}],"parameters":{"sequence_id":7}}',
    ):
        with pytest.raises(BadInput):
            check_id(body, "TYPE_UINT64")


def test_its_name_in_a_text_is_no_key() -> None:
    for text in ('"sequence_id": 8', "sequence_id", "\\u0073", "é", "\\", '\\"sequence_id":'):
        for value in (text, [text], {"sequence": text}):
            check_id(json.dumps({"text_input": value, "sequence_id": 7}).encode(), "TYPE_UINT64")
    for body in (b"[]", b"7", b'{"parameters":7}', b'{"sequence_id" :\t7}'):
        check_id(body, "TYPE_UINT64")
