"""Which request ids a caller may choose. tests/integration/supervisor/test_front.py tests the same in nginx."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.http import messages
from sm.http.messages import (
    LARGE_BODY_BYTES,
    LARGE_JSON_BYTES,
    caller_network,
    given_id,
    load_json,
    strict_json,
)
from tests.support.request_id_examples import ACCEPTED, INFERENCE, REFUSED, ROOT, TRACE


def wsgi_header(header: str, value: str) -> dict[str, str]:
    return {"HTTP_" + header.upper().replace("-", "_"): value}


@pytest.mark.parametrize(("header", "value"), ACCEPTED)
def test_an_id_in_the_grammar_of_aws_becomes_the_request_id(header: str, value: str) -> None:
    assert given_id(wsgi_header(header, value)) == value


@pytest.mark.parametrize(("header", "value"), REFUSED)
def test_any_other_id_is_ignored(header: str, value: str) -> None:
    assert given_id(wsgi_header(header, value)) is None


def test_the_id_chosen_by_nginx_comes_first_unless_it_is_malformed() -> None:
    callers_headers = {**wsgi_header(INFERENCE, "mine"), **wsgi_header(TRACE, ROOT)}
    assert given_id(callers_headers) == "mine"
    for chosen, expected in (("0123456789abcdef" * 2,) * 2, (ROOT, ROOT), ("x" * 300, "mine")):
        assert given_id({**callers_headers, **wsgi_header("X-Trireme-Request-Id", chosen)}) == expected


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("", ""),
    ],
)
def test_addresses_of_one_ipv6_network_are_one_caller(address: str, network: str) -> None:
    assert caller_network(address) == network


@pytest.mark.parametrize("unit", ["[" * 16 + "1" + "]" * 16 + ",", '"a",' + "[" * 90 + "]" * 90 + ","])
def test_a_large_body_of_little_but_brackets_is_not_read(unit: str) -> None:
    number = LARGE_JSON_BYTES // len(unit) + 1
    with pytest.raises(orjson.JSONDecodeError):
        load_json(f"[{unit * number}1]".encode())
    small = f"[{unit}1]".encode()
    assert load_json(small) == json.loads(small)


@pytest.mark.parametrize(
    "unit",
    [
        *("[],", "[[]],", "[[[[]]]],", "[[1],[2]],", "[[[[{}]]]],", "[[[[[0.5]]]]],", "[[[[[-1e300]]]]],"),
        *("[[[[[[[[[[[[18446744073709551616]]]]]]]]]]]],", "[[[[[[[[[[[[123456789012345678]]]]]]]]]]]],"),
        *('"[[[[",', r'"\\\"[[[[[[[[",', r'"\\\\","[[[[[[[[",', r'[[[[[["\u00e9\n"]]]]]],[[[[[[true]]]]]],'),
    ],
)
def test_lists_and_texts_of_brackets_are_read(unit: str) -> None:
    body = f"[{unit * (LARGE_JSON_BYTES // len(unit) + 1)}1]".encode()
    assert load_json(body) == orjson.loads(body)


@pytest.mark.parametrize("end", ["NaN]", "1e999]", "01]", "1", '"\\ud800"]', "1]]", "'a']"])
def test_a_large_body_of_lists_that_is_not_json_is_refused(end: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        load_json(("[" + "[[[[[1]]]]]," * LARGE_JSON_BYTES + end).encode())


#: Bytes from which a body is large, in the tests of small documents.
SMALL = 32
LONG = st.binary(min_size=SMALL, max_size=4 * SMALL).map(base64.b64encode).map(bytes.decode)
ODD = st.sampled_from(["A" * 3 * SMALL + "\u00e9", '\\"' + "A" * 3 * SMALL, "[" * 3 * SMALL, "1e9" * SMALL])
STRINGS = LONG | ODD | st.text(max_size=9)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    STRINGS | NUMBERS | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=5,
)


@given(
    VALUES,
    st.none() | st.integers(0, 400),
    st.sampled_from([b"", b'"', b"}", b'" 1}', b",", b"1e999", b"NaN"]),
)
@settings(max_examples=400)
def test_a_document_of_long_texts_is_read_as_by_orjson(
    document: Any, cut: int | None, inserted: bytes
) -> None:
    body = json.dumps(document, ensure_ascii=False).encode(errors="replace")
    if cut is not None:
        body = body[:cut] + inserted + body[cut:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "LARGE_JSON_BYTES", 0)
        patch.setattr(messages, "LARGE_BODY_BYTES", SMALL)
        patch.setattr(messages, "MAX_OPENING", 1)
        try:
            expected = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            with pytest.raises(orjson.JSONDecodeError) as caught:
                load_json(body)
            assert str(caught.value) == str(error)
            return
        assert repr(load_json(body)) == repr(expected)


def test_a_pictures_base64_is_read_by_the_parser_that_is_quick_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The usual one takes five to ten times as long."""
    value = {
        "modelname": "resnet",
        "payload": {"image": "QUJD" * LARGE_BODY_BYTES},
        "parameters": {"top": 0.5},
    }
    body = orjson.dumps(value)
    monkeypatch.setattr(orjson, "loads", None)
    assert load_json(body) == value


@pytest.mark.parametrize("text", ["NaN", "a NaN", '"NaN', "\\", '\\"NaN', '\\\\"', "-Infinity", "é"])
def test_words_for_no_number_are_null_outside_of_texts(text: str) -> None:
    value = [float("nan"), {text: [text, float("inf")]}, -float("inf"), text]
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert json.loads(strict_json(body)) == [None, {text: [text, None]}, None, text]
