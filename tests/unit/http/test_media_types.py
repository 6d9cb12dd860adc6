"""Media types: every usual name, any charset or a 415, and ``Accept`` as RFC 9110 12.5.1 says."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sm.errors import BadInput, TriremeError, UnsupportedType
from sm.http import media_types
from sm.http.media_types import acceptable, choose, choose_kind, kind_of, parse, to_utf8, without_charset
from sm.http.messages import BOM, NPY, OCTET_STREAM

PICTURES = ("image/jpeg", "image/png", "image/webp")
SOUNDS = ("audio/wav", "audio/x-wav", "audio/flac", "audio/mpeg", "audio/ogg")


def picture(form: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, form)
    return file.getvalue()


FILES = {
    "image/jpeg": picture("JPEG"),
    "image/png": picture("PNG"),
    "image/webp": picture("WEBP"),
    "audio/wav": b"RIFF\x24\0\0\0WAVEfmt ",
    "audio/flac": b"fLaC\0\0\0\x22",
    "audio/ogg": b"OggS\0\2",
    "audio/mpeg": b"ID3\4\0\0",
}


@pytest.mark.parametrize("name", media_types.CANONICAL)
def test_every_name_of_a_type_means_the_same_in_any_case_and_with_parameters(name: str) -> None:
    kind = media_types.CANONICAL[name]
    assert kind_of(name.upper()) == kind_of(f" {name} ;a=b") == kind
    assert choose_kind(name, b"", (kind,)) == kind
    assert choose_kind(kind, b"", (name,)) == name


@pytest.mark.parametrize(
    "name", ["application/x-image", "image/x-image", OCTET_STREAM, "binary/octet-stream", "image/bmp"]
)
@pytest.mark.parametrize("kind", PICTURES)
def test_the_bytes_tell_the_type_of_a_picture(name: str, kind: str) -> None:
    assert choose_kind(name, FILES[kind], PICTURES) == kind


@pytest.mark.parametrize("kind", ["audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"])
def test_the_bytes_tell_the_type_of_a_recording(kind: str) -> None:
    for name in (OCTET_STREAM, "audio/x-audio"):
        assert kind_of(choose_kind(name, FILES[kind], SOUNDS)) == kind


def test_the_bytes_tell_an_array() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(2))
    assert choose_kind(OCTET_STREAM, file.getvalue(), (NPY,)) == NPY


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


TEXT = "Käse für 5 €"


@pytest.mark.parametrize("kind", ["text/plain", "text/csv", "application/json", "application/x-ndjson", ""])
@pytest.mark.parametrize(
    "charset",
    [
        "utf-8",
        "UTF-8",
        "utf8",
        "utf-8-sig",
        "utf-16",
        "utf-16le",
        "UTF-16BE",
        "utf-32",
        "windows-1252",
        "iso-8859-15",
    ],
)
def test_a_text_is_read_by_its_charset(kind: str, charset: str) -> None:
    for value in (charset, f'"{charset}"'):
        assert to_utf8(TEXT.encode(charset), f"{kind};x=y; Charset={value}").decode() == TEXT


@pytest.mark.parametrize(
    ("charset", "text"),
    [("shift_jis", "漢字"), ("iso-8859-1", "Ã¤"), ("us-ascii", "ada"), ("koi8-r", "мир"), ("gb18030", "字")],
)
def test_a_charset_of_another_script_is_read(charset: str, text: str) -> None:
    assert to_utf8(text.encode(charset), f"text/plain; charset={charset}").decode() == text


@pytest.mark.parametrize(
    "charset",
    [
        "klingon",
        "base64",
        "hex",
        "zip",
        "rot13",
        "idna",
        "punycode",
        "unicode_escape",
        "utf-7",
        "charmap",
        "a\0b",
    ],
)
def test_a_charset_that_is_not_known_is_a_415_that_names_it(charset: str) -> None:
    with pytest.raises(UnsupportedType) as caught:
        to_utf8(b"x", f"text/plain; charset={charset}")
    assert caught.value.details["charset"] == charset


@pytest.mark.parametrize(
    ("charset", "body"),
    [("us-ascii", b"\xc3\xa4"), ("utf-16", b"abc"), ("shift_jis", b"\x81"), ("utf-16le", b"\x00\xd8")],
)
def test_bytes_that_are_not_in_the_charset_are_bad_input(charset: str, body: bytes) -> None:
    with pytest.raises(BadInput):
        to_utf8(body, f"text/csv; charset={charset}")


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/csv", "application/json", "application/jsonlines", "text/libsvm", ""]
)
def test_a_byte_order_mark_before_a_text_is_ignored(kind: str) -> None:
    assert to_utf8(BOM + b"1", kind) == b"1"


def test_a_body_that_is_not_a_text_keeps_every_byte() -> None:
    for kind in (
        "image/png",
        OCTET_STREAM,
        NPY,
        "application/vnd.sagemaker-triton.binary+json;json-header-size=3",
    ):
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


OFFERS = ("application/json", "text/csv", "application/x-npy", "image/png")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", "application/json"),
        ("  ", "application/json"),
        ("*/*", "application/json"),
        ("*", "application/json"),
        ("nonsense", "application/json"),
        ("text/csv;q=high", "application/json"),
        ("text/csv", "text/csv"),
        ("TEXT/CSV", "text/csv"),
        ("text/x-csv", "text/csv"),
        ("application/csv;q=0.9, application/json;q=0.8", "text/csv"),
        ("text/html", ""),
        ("text/html, application/json", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "application/json"),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "application/json"),
        ("application/*", "application/json"),
        ("application/*;q=0.1, text/*", "text/csv"),
        ("text/*;q=0.5, application/x-npy;q=0", "text/csv"),
        ("application/json;q=0, */*", "text/csv"),
        ("*/*, application/json;q=0", "text/csv"),
        ("application/json;q=0, text/*;q=0, */*;q=0.1", "application/x-npy"),
        ("*/*;q=0", ""),
        ("application/json;q=0", ""),
        ("application/json;q=0.2, text/csv;q=0.9", "text/csv"),
        ("application/json; charset=utf-8", "application/json"),
        ("application/json;indent=2;q=0.5, text/csv;q=0.4", "application/json"),
        ('application/json;profile="a,b;q=0", text/csv;q=0.5', "application/json"),
        ("image/*, application/json;q=0.5", "image/png"),
        (",, text/csv ,", "text/csv"),
        ("text/csv;q=2", "text/csv"),
        ("text/csv;q=nan", ""),
    ],
)
def test_accept_is_negotiated(header: str, expected: str) -> None:
    assert choose(header, OFFERS) == expected


@given(st.text(max_size=80))
def test_any_accept_header_gives_some_of_the_offers(header: str) -> None:
    assert set(acceptable(header, OFFERS)) <= set(OFFERS)


@given(st.permutations([("application/json", 0.3), ("text/csv", 0.5), ("*/*", 0.1), ("image/*", 0.4)]))
def test_the_order_of_an_accept_header_does_not_count(parts: list[tuple[str, float]]) -> None:
    header = ", ".join(f"{name};q={quality}" for name, quality in parts)
    assert acceptable(header, OFFERS) == ("text/csv", "image/png", "application/json", "application/x-npy")
