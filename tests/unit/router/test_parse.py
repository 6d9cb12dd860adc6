"""A message is read as a dispatch request: model, version, records, parameters and accepted type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.client.base import Client
from sm.client.payloads import Payload
from sm.errors import BadInput, TriremeError, Unsupported, WrongPayload
from sm.http.messages import JSON, PNG
from sm.models.table import models_of
from sm.router.classify import RequestClassifier, choose_accept, custom_attributes, estimate_parsed_bytes
from sm.router.request_types import DispatchRequest, Message, RawRecord, TritonRequest


def message(
    body: object, headers: dict[str, str] | None = None, query: dict[str, str] | None = None
) -> Message:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(content, headers or {}, query or {}, "id-1")


class TextClient(Client):
    def inference(self, payload: Payload) -> object:
        return None


TEXT = TextClient(None, Path(), Path())  # type: ignore[arg-type]
MODELS = ("m", "mä/-", "other")


def parse_dispatch_request(message: Message, default_model: str) -> DispatchRequest:
    request = RequestClassifier(models_of(dict.fromkeys(MODELS, TEXT)), default_model).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(
    model=st.sampled_from(MODELS),
    version=st.none() | st.integers(1, 2**63 - 1) | st.from_regex(r"[1-9]{1,9}", fullmatch=True),
    payload=json_values.filter(lambda value: value != []),
    parameters=st.none() | st.dictionaries(st.text(max_size=8), json_values, max_size=3),
)
@settings(max_examples=50)
def test_a_dispatch_request_names_model_version_payload_and_parameters(
    model: str, version: int | str | None, payload: Any, parameters: dict[str, Any] | None
) -> None:
    body = {"modelname": model, "version": version, "payload": payload, "parameters": parameters}
    request = parse_dispatch_request(message(body), default_model="")
    assert (request.model, request.version) == (model, "" if version is None else str(version))
    assert request.many == isinstance(payload, list)
    assert list(request.records) == (payload if request.many else [payload])
    assert request.parameters == (parameters or {})


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"x-amzn-sagemaker-custom-attributes": "trace=1; modelname=m ;version=7"}, {}),
        ({"x-amzn-sagemaker-target-model": "m"}, {"version": "7"}),
        ({}, {"modelname": "m", "version": "7", "top": "2"}),
    ],
    ids=["custom attributes", "target model", "query"],
)
def test_a_raw_body_takes_its_model_from_attributes_target_model_or_query(
    headers: dict[str, str], query: dict[str, str]
) -> None:
    request = parse_dispatch_request(
        message(b"\xff\xd8", {"content-type": "image/jpeg", **headers}, query), "other"
    )
    assert (request.model, request.version) == ("m", "7")
    assert request.records == [RawRecord(b"\xff\xd8", "image/jpeg")]
    assert request.parameters == ({"top": "2"} if "top" in query else {})


DEEP = b"[" * 2000 + b"]" * 2000
NO_OBJECTS = (b"", b"  ", b"{", b"\xff", b'{"payload": NaN}', DEEP, b"1", b'"a"', b"null", b"[{}]")


@pytest.mark.parametrize("body", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_a_body_that_is_not_json_is_bad_input(body: bytes) -> None:
    with pytest.raises(BadInput):
        parse_dispatch_request(message(body), "")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"modelname": "m"}, "payload"),
        ({"modelname": 1, "payload": 1}, "modelname"),
        ({"modelname": "m", "payload": 1, "version": [1]}, "version"),
        ({"modelname": "m", "payload": 1, "version": True}, "version"),
        ({"modelname": "m", "payload": 1, "parameters": [1]}, "parameters"),
        ({"modelname": "m", "payload": []}, "payload"),
        ({"modelname": "m", "payload": 1, "paramaters": {}}, "paramaters"),
    ],
)
def test_the_error_for_a_wrong_member_names_it(body: object, field: str) -> None:
    with pytest.raises(WrongPayload) as caught:
        parse_dispatch_request(message(body), "")
    assert caught.value.details["field"] == field


ACCEPTED = {"": JSON, "*/*": JSON, PNG: PNG, f"{JSON};q=0.1, {PNG};q=0.9": PNG, "*/*;q=0": "", "font/*": ""}


@pytest.mark.parametrize(("header", "expected"), ACCEPTED.items())
def test_the_accepted_type_with_the_highest_preference_is_chosen(header: str, expected: str) -> None:
    assert choose_accept(header, JSON) == expected


NAMES = st.text(st.characters(exclude_characters=";=", exclude_categories=["Z", "C"]), min_size=1, max_size=9)


@settings(max_examples=50)
@given(st.dictionaries(NAMES, st.text("a=b ", max_size=5).map(str.strip)))
def test_custom_attributes_are_pairs_and_anything_else_is_ignored(attributes: dict[str, str]) -> None:
    pairs = [f" {name} ={value}" for name, value in attributes.items()]
    assert custom_attributes(";".join(["c000b4f9-df62", *pairs, ""])) == attributes


@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_request_or_an_error_with_a_status_below_500(body: bytes) -> None:
    try:
        request = RequestClassifier(models_of({}), "m").parse(message(body))
        assert isinstance(request, (DispatchRequest, TritonRequest))
    except TriremeError as error:
        assert error.status < 500 or isinstance(error, Unsupported)


@pytest.mark.parametrize(
    ("item", "bytes_each"),
    [(b"[]", 91), (b'{"a":1}', 256), (b"0.25", 60), (b"7", 26), (b"[[[]]]", 270)],
    ids=str,
)
def test_the_memory_of_parsed_json_is_estimated_within_a_factor_of_three(
    item: bytes, bytes_each: int
) -> None:
    """``bytes_each`` was measured with orjson, for each item of a list."""
    count = 2**20 // len(item)
    estimate = estimate_parsed_bytes(message(b"[" + b",".join([item] * count) + b"]"))
    assert bytes_each * count / 3 < estimate < bytes_each * count * 3


@pytest.mark.parametrize(
    ("body", "content_type", "least", "most"),
    [
        (b'{"payload":{"image":"' + b"A" * 2**21 + b'"}}', "application/json", 0, 0),
        (b"[" + b"0," * 1000 + b"0]", "application/json", 0, 0),
        (b"," * 2**21, "image/png", 0, 0),
        (b"1,2\n", "text/csv", 0, 0),
        (b"12," * 2**20 + b"\n" * 2**20, "text/csv", 100 * 2**20, 2**40),
        (b'{"data":[' + b"[]," * 2**20 + b'[]],"inputs":[]}', "application/octet-stream", 2**26, 2**40),
    ],
    ids=["a picture", "small", "no JSON", "small CSV", "cells of CSV", "JSON of any type"],
)
def test_only_bodies_that_need_a_large_parse_are_counted(
    body: bytes, content_type: str, least: int, most: int
) -> None:
    assert least <= estimate_parsed_bytes(message(body, {"content-type": content_type})) <= most
