"""A message to a dispatch request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.client.base import Client
from sm.client.payloads import BodyPayload
from sm.errors import BadInput, TriremeError, Unsupported, WrongPayload
from sm.plugins.registry import Registry
from sm.router.classify import Classifier
from sm.router.invocation import (
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


class Script(Client):
    payload = BodyPayload

    def inference(self, payload: BodyPayload) -> object:
        return payload.body


def script() -> Registry:
    return Registry({"script": Script(None, Path(), Path())})  # type: ignore[arg-type]  # it calls no Triton


def read(asked: Message, default_model: str, registry: Registry | None = None) -> DispatchRequest:
    request = Classifier(registry or Registry({}), default_model).parse(asked)
    assert isinstance(request, DispatchRequest)
    return request


def test_a_dispatch_request_names_model_version_payload_and_parameters() -> None:
    body = {"modelname": "m", "version": "2", "payload": {"a": 1}, "parameters": {"top": 3}}
    call = read(message(body), default_model="")
    assert (call.model, call.version, call.records, call.many) == ("m", "2", [{"a": 1}], False)
    assert call.parameters == {"top": 3}


def test_a_list_of_payloads_is_many_records() -> None:
    call = read(message({"modelname": "m", "payload": [1, 2]}), "")
    assert call.many
    assert call.records == [1, 2]


def test_a_version_may_be_a_number() -> None:
    assert read(message({"modelname": "m", "version": 3, "payload": 1}), "").version == "3"


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"x-amzn-sagemaker-custom-attributes": "trace=1; modelname=m ;version=7"}, {}),
        ({"x-amzn-sagemaker-target-model": "m"}, {"version": "7"}),
        ({}, {"modelname": "m", "version": "7"}),
    ],
)
def test_a_raw_body_takes_its_model_from_attributes_target_model_or_query(
    headers: dict[str, str], query: dict[str, str]
) -> None:
    call = read(message(b"\xff\xd8", {"content-type": "image/jpeg", **headers}, query), "other")
    assert (call.model, call.version) == ("m", "7")
    assert call.records == [RawRecord(b"\xff\xd8", "image/jpeg")]


def test_a_request_that_names_no_model_goes_to_the_default() -> None:
    assert read(message(b"x", {"content-type": "text/plain; charset=utf-8"}), "sole").model == "sole"


def test_the_query_gives_parameters_to_a_raw_body() -> None:
    call = read(message(b"x", {"content-type": "text/plain"}, {"modelname": "m", "top": "2"}), "")
    assert call.parameters == {"top": "2"}


@pytest.mark.parametrize(
    "body", [b"", b"  ", b"{", b"\xff", b'{"payload": NaN}', b"[" * 10_000 + b"]" * 10_000]
)
def test_a_body_that_is_not_json_is_bad_input(body: bytes) -> None:
    with pytest.raises(BadInput, match="empty|not JSON"):
        read(message(body), "")


@pytest.mark.parametrize("body", [[], "text", 1, None, True])
def test_json_that_is_no_object_is_bad_input(body: object) -> None:
    with pytest.raises(BadInput, match="must be a JSON object"):
        read(message(body), "")


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
def test_a_member_of_the_wrong_shape_is_named(body: object, field: str) -> None:
    with pytest.raises(WrongPayload) as caught:
        read(message(body), "")
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
    ],
)
def test_the_type_a_caller_wants_most_is_taken(header: str, expected: str) -> None:
    assert choose_accept(header, "application/json") == expected


def test_custom_attributes_that_are_no_pair_are_left_alone() -> None:
    assert custom_attributes("c000b4f9-df62; a=b=c ;;k=") == {"a": "b=c", "k": ""}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_an_invocation_or_an_error_with_a_status_below_500(body: bytes) -> None:
    try:
        request = Classifier(Registry({}), "m").parse(message(body))
        assert isinstance(request, (DispatchRequest, TritonRequest))
    except TriremeError as error:
        assert error.status < 500 or isinstance(error, Unsupported)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_headers_are_read(attributes: str, accept: str) -> None:
    headers = {
        "content-type": "text/plain",
        "x-amzn-sagemaker-custom-attributes": attributes,
        "accept": accept,
    }
    assert read(message(b"x", headers), "m").records


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [1]}',
        b'{"payload": 1}',
        b"[1]",
        b"{",
        b"",
        b'{"modelname": "m", "payload": 1, "more": 2}',
    ],
)
def test_a_client_that_takes_bodies_gets_any_as_it_is(body: bytes) -> None:
    call = read(message(body), "script", script())
    assert (call.model, call.records) == ("script", [RawRecord(body, "application/json")])


def test_a_whole_dispatch_request_is_one_for_every_client() -> None:
    call = read(message({"modelname": "other", "payload": 1}), "script", script())
    assert (call.model, call.records) == ("other", [1])


@pytest.mark.parametrize(
    ("item", "bytes_each"), [(b"[]", 91), (b'{"a":1}', 256), (b"0.25", 60), (b"7", 26), (b"[[[]]]", 270)]
)
def test_what_large_json_takes_when_it_is_parsed_is_told_within_a_factor_of_three(
    item: bytes, bytes_each: int
) -> None:
    """``bytes_each``: as measured with orjson, for each item of a list."""
    count = 2**20 // len(item)
    told = estimate_parsed_bytes(message(b"[" + b",".join([item] * count) + b"]"))
    assert bytes_each * count / 3 < told < bytes_each * count * 3


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"payload":{"image":"' + b"A" * 2**21 + b'"}}', {}),
        (b"[" + b"0," * 1000 + b"0]", {}),
        (b"," * 2**21, {"content-type": "image/png"}),
    ],
    ids=["a picture", "small", "no JSON"],
)
def test_other_bodies_are_not_parsed_to_more_than_they_are(body: bytes, headers: dict[str, str]) -> None:
    assert estimate_parsed_bytes(message(body, headers)) == 0
