"""Media types: every usual name, any charset or a 415, and ``Accept`` as RFC 9110 12.5.1 says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from sm.errors import BadInput, TriremeError, UnsupportedType
from sm.http import media_types
from sm.http.media_types import acceptable, choose, choose_kind, kind_of, parse, to_utf8, without_charset
from sm.http.messages import BINARY, BOM, JSON, NPY, OCTET_STREAM
from sm.router.classify import custom_attributes
from tests.support.hostile_pictures import encode
from tests.support.npy_bodies import encode_npy

PICTURES = ("image/jpeg", "image/png", "image/webp")
SOUNDS = ("audio/wav", "audio/x-wav", "audio/flac", "audio/mpeg", "audio/ogg")


@pytest.mark.parametrize("name", media_types.CANONICAL)
def test_every_name_of_a_type_means_the_same_in_any_case_and_with_parameters(name: str) -> None:
    kind = media_types.CANONICAL[name]
    assert kind_of(name.upper()) == kind_of(f" {name} ;a=b") == kind
    assert choose_kind(name, b"", (kind,)) == kind
    assert choose_kind(kind, b"", (name,)) == name


FILES = {
    **{f"image/{form.lower()}": encode(Image.new("RGB", (4, 4)), form) for form in ("JPEG", "PNG", "WEBP")},
    "audio/wav": b"RIFF\x24\0\0\0WAVEfmt ",
    "audio/flac": b"fLaC\0\0\0\x22",
    "audio/ogg": b"OggS\0\2",
    "audio/mpeg": b"ID3\4\0\0",
    NPY: encode_npy(np.zeros(2)),
}
UNTOLD = {
    PICTURES: ("application/x-image", "image/x-image", OCTET_STREAM, "binary/octet-stream", "image/bmp"),
    SOUNDS: (OCTET_STREAM, "audio/x-audio"),
    (NPY,): (OCTET_STREAM,),
}


@pytest.mark.parametrize("kind", FILES)
def test_the_bytes_tell_the_type_where_the_name_does_not(kind: str) -> None:
    (accepted,) = (kinds for kinds in UNTOLD if kind in kinds)
    for name in UNTOLD[accepted]:
        assert kind_of(choose_kind(name, FILES[kind], accepted)) == kind


@pytest.mark.parametrize(
    ("name", "body", "accepted"),
    [
        (OCTET_STREAM, b"a text", PICTURES),
        (OCTET_STREAM, b"a text", ("text/plain",)),
        (OCTET_STREAM, FILES["audio/wav"], PICTURES),
        ("image/gif", b"GIF89a", PICTURES),
        ("audio/x-audio", FILES["image/png"], PICTURES),
        ("text/plain", FILES["image/png"], PICTURES),
    ],
)
def test_what_a_client_does_not_take_is_not_guessed(
    name: str, body: bytes, accepted: tuple[str, ...]
) -> None:
    assert choose_kind(name, body, accepted) == ""


CHARSETS = (
    *("utf-8", "UTF-8", "utf8", "utf-8-sig", "utf-16", "utf-16le", "UTF-16BE", "utf-32", "us-ascii"),
    *("windows-1252", "iso-8859-1", "iso-8859-15", "shift_jis", "koi8-r", "gb18030"),
)
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=BOM.decode()) | st.sampled_from("ä€мир漢字")
)


@given(
    st.sampled_from(CHARSETS),
    st.sampled_from(["text/plain", "text/csv", "application/json", "application/x-ndjson", ""]),
    TEXTS,
    st.sampled_from(["", '"']),
)
def test_a_text_is_read_by_its_charset(charset: str, kind: str, text: str, quote: str) -> None:
    body = text.encode(charset, "ignore")
    header = f"{kind};x=y; Charset={quote}{charset}{quote}"
    assert to_utf8(body, header).decode() == body.decode(charset)


#: Python's codecs have the names of some.
UNKNOWN = (
    *("klingon", "base64", "hex", "zip", "rot13", "idna", "punycode", "unicode_escape", "utf-7", "charmap"),
    "a\0b",
)


@pytest.mark.parametrize(
    ("charset", "body", "error"),
    [
        *((charset, b"x", UnsupportedType) for charset in UNKNOWN),
        ("us-ascii", b"\xc3\xa4", BadInput),
        ("utf-16", b"abc", BadInput),
        ("shift_jis", b"\x81", BadInput),
        ("utf-16le", b"\x00\xd8", BadInput),
    ],
)
def test_an_unknown_charset_is_a_415_that_names_it_and_bytes_that_are_not_in_it_a_400(
    charset: str, body: bytes, error: type[TriremeError]
) -> None:
    with pytest.raises(error) as caught:
        to_utf8(body, f"text/csv; charset={charset}")
    if error is UnsupportedType:
        assert caught.value.details["charset"] == charset


def test_a_byte_order_mark_before_a_text_is_ignored_and_what_is_not_a_text_keeps_every_byte() -> None:
    for kind in ("text/plain", "text/csv", "application/json", "application/jsonlines", "text/libsvm", ""):
        assert to_utf8(BOM + b"1", kind) == b"1"
    for kind in ("image/png", OCTET_STREAM, NPY, f"{BINARY};json-header-size=3"):
        assert to_utf8(BOM + b"\xff", f"{kind}; charset=utf-16") == BOM + b"\xff"


def test_parameters_are_kept_without_the_charset() -> None:
    assert parse('text/csv; Header="present";charset=x').parameters["header"] == "present"
    assert without_charset('text/csv; header=present;charset="utf-16"') == "text/csv; header=present"


@given(st.binary(max_size=30), st.text(max_size=60))
def test_any_body_with_any_content_type_is_a_text_or_the_callers_error(body: bytes, header: str) -> None:
    try:
        to_utf8(body, header)
        to_utf8(body, f"text/plain; charset={header}")
    except TriremeError as error:
        assert error.status in (400, 415)
    assert set(acceptable(header, OFFERS)) <= set(OFFERS)


OFFERS = ("application/json", "text/csv", "application/x-npy", "image/png")
RANGES = ("application/json", "TEXT/CSV", "image/*", "text/*", "application/*", "*/*", "text/html")
WEIGHTS = ("", ";q=0", "; Q=0.3", ";q=0.300", ";q=0.9", ";q=1")
PARTS = st.tuples(st.sampled_from(RANGES), st.sampled_from(WEIGHTS))


@given(st.lists(PARTS, unique_by=lambda part: part[0].lower()))
def test_accept_is_negotiated_as_werkzeug_weighs_it(parts: list[tuple[str, str]]) -> None:
    header = " , ".join(map("".join, parts))
    weights = parse_accept_header(header.lower() or "*/*", MIMEAccept)
    liked = [offer for offer in OFFERS if weights.quality(offer)]
    assert acceptable(header, OFFERS) == tuple(sorted(liked, key=lambda offer: -weights.quality(offer)))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("  ", "application/json"),
        ("*", "application/json"),
        ("nonsense", "application/json"),
        ("text/csv;q=high", "application/json"),
        ("text/x-csv", "text/csv"),
        ("application/csv;q=0.9, application/json;q=0.8", "text/csv"),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "application/json"),
        ("application/json; charset=utf-8", "application/json"),
        ("application/json;indent=2;q=0.5, text/csv;q=0.4", "application/json"),
        ('application/json;profile="a,b;q=0", text/csv;q=0.5', "application/json"),
        (",, text/csv ,", "text/csv"),
        ("text/csv;q=2", "text/csv"),
        ("text/csv;q=nan", ""),
    ],
)
def test_odd_headers_and_other_names_are_negotiated(header: str, expected: str) -> None:
    assert choose(header, OFFERS) == expected


#: Headers without any media range: a list may have empty elements (RFC 9110, section 5.6.1.2).
EMPTY = (
    "",
    ";",
    " ; ",
    ";;",
    ",",
    ",;",
    ";,",
    ";q=1",
    ";q=0",
    "q=1",
    "q=0,;",
    ";text/csv",
    "/",
    "text/",
    "/csv",
)


@pytest.mark.parametrize("header", EMPTY)
def test_an_empty_element_of_accept_is_ignored(header: str) -> None:
    assert acceptable(header, (JSON, "text/csv")) == (JSON, "text/csv")
    assert media_types.most_wanted(header) == ""
    assert choose(f"{header},text/csv", (JSON, "text/csv")) == "text/csv"
    assert choose(f"text/csv;q=0.5,{header}", (JSON, "text/csv")) == "text/csv"


def test_no_short_header_is_an_error_of_its_parser() -> None:
    """Each header of up to four characters of those that have a meaning."""
    for length in range(5):
        for characters in product(' ,;="/*q1\\a', repeat=length):
            header = "".join(characters)
            # Without their caches, which many headers would only fill.
            media_types.read_accept.__wrapped__(header)
            media_types.without_charset.__wrapped__(header)
            custom_attributes(header)
            name = header.partition(";")[0].strip()
            assert media_types.parse.__wrapped__(header).name == (name or JSON)
