"""A message is read as a dispatch request: model, version, records, parameters and accepted type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.client.base import Client
from sm.client.payloads import Payload
from sm.errors import BadInput, TriremeError, Unsupported, WrongPayload
from sm.models.found_clients import FoundLoader, models_of
from sm.models.table import Models, Row, Served, Table
from sm.plugins.discovery import Found
from sm.router.classify import (
    Classifier,
    DispatchRequest,
    Message,
    RawRecord,
    TritonRequest,
    choose_accept,
    custom_attributes,
    estimate_parsed_bytes,
)


def message(
    body: object, headers: dict[str, str] | None = None, query: dict[str, str] | None = None
) -> Message:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(content, headers or {}, query or {}, "id-1")


class TextClient(Client):
    def inference(self, payload: Payload) -> object:
        return None


class EveryName(dict[str, Row]):
    def get(self, name: str, default: object = None) -> Row:
        return Row(Served(name, TextClient(None, Path(), Path()), name))  # type: ignore[arg-type]


class AnyClient(FoundLoader):
    """Has a client for each name."""

    def _fill(self, _: Found) -> None:
        self.table = Table(EveryName())


def parse_dispatch_request(message: Message, default_model: str) -> DispatchRequest:
    request = Classifier(Models(AnyClient(Found({}))), default_model).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


def test_a_dispatch_request_names_model_version_payload_and_parameters() -> None:
    body = {"modelname": "m", "version": "2", "payload": {"a": 1}, "parameters": {"top": 3}}
    request = parse_dispatch_request(message(body), default_model="")
    assert (request.model, request.version, request.records, request.many) == ("m", "2", [{"a": 1}], False)
    assert request.parameters == {"top": 3}


def test_a_version_may_be_a_number() -> None:
    assert parse_dispatch_request(message({"modelname": "m", "version": 3, "payload": 1}), "").version == "3"


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"x-amzn-sagemaker-custom-attributes": "trace=1; modelname=m ;version=7"}, {}),
        ({"x-amzn-sagemaker-target-model": "m"}, {"version": "7"}),
        ({}, {"modelname": "m", "version": "7"}),
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


def test_the_query_sets_the_parameters_of_a_raw_body() -> None:
    request = parse_dispatch_request(
        message(b"x", {"content-type": "text/plain"}, {"modelname": "m", "top": "2"}), ""
    )
    assert request.parameters == {"top": "2"}


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b"{", b"\xff", b'{"payload": NaN}', b"[" * 10_000 + b"]" * 10_000],
    ids=["empty", "blank", "cut off", "not UTF-8", "NaN", "deep"],
)
def test_a_body_that_is_not_json_is_bad_input(body: bytes) -> None:
    with pytest.raises(BadInput, match="empty|not JSON"):
        parse_dispatch_request(message(body), "")


@pytest.mark.parametrize("body", [[], "text", 1, None, True])
def test_json_that_is_no_object_is_bad_input(body: object) -> None:
    with pytest.raises(BadInput, match="must be a JSON object"):
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
    assert caught.value.sentence.startswith(field)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("image/png", "image/png"),
        ("application/json;q=0.1, image/png;q=0.9", "image/png"),
        ("image/png;q=high", "application/json"),
        ("application/json;q=0", ""),
        ("*/*;q=0", ""),
        ("font/*", ""),
    ],
)
def test_the_accepted_type_with_the_highest_preference_is_chosen(header: str, expected: str) -> None:
    assert choose_accept(header, "application/json") == expected


def test_custom_attributes_that_are_not_pairs_are_ignored() -> None:
    assert custom_attributes("c000b4f9-df62; a=b=c ;;k=") == {"a": "b=c", "k": ""}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_request_or_an_error_with_a_status_below_500(body: bytes) -> None:
    try:
        request = Classifier(models_of({}), "m").parse(message(body))
        assert isinstance(request, (DispatchRequest, TritonRequest))
    except TriremeError as error:
        assert error.status < 500 or isinstance(error, Unsupported)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_header_values_are_accepted(attributes: str, accept: str) -> None:
    headers = {
        "content-type": "text/plain",
        "x-amzn-sagemaker-custom-attributes": attributes,
        "accept": accept,
    }
    assert parse_dispatch_request(message(b"x", headers), "m").records


@pytest.mark.parametrize(
    ("item", "bytes_each"),
    [(b"[]", 91), (b'{"a":1}', 256), (b"0.25", 60), (b"7", 26), (b"[[[]]]", 270)],
    ids=["lists", "objects", "floats", "integers", "nested lists"],
)
def test_the_memory_of_parsed_json_is_estimated_within_a_factor_of_three(
    item: bytes, bytes_each: int
) -> None:
    """``bytes_each`` was measured with orjson, for each item of a list."""
    count = 2**20 // len(item)
    estimate = estimate_parsed_bytes(message(b"[" + b",".join([item] * count) + b"]"))
    assert bytes_each * count / 3 < estimate < bytes_each * count * 3


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"payload":{"image":"' + b"A" * 2**21 + b'"}}', {}),
        (b"[" + b"0," * 1000 + b"0]", {}),
        (b"," * 2**21, {"content-type": "image/png"}),
    ],
    ids=["a picture", "small", "no JSON"],
)
def test_bodies_that_need_no_large_parse_are_estimated_as_0(body: bytes, headers: dict[str, str]) -> None:
    assert estimate_parsed_bytes(message(body, headers)) == 0
