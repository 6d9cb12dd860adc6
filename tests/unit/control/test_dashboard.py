"""The dashboard's data route returns points since a time, compressed if the caller accepts that."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient

from sm.control import pages
from sm.http.responses import handle_errors

LARGE_DATA = b'{"points":[' + b"0," * 2**16 + b"0]}"


def make_client(read: Callable[[float], bytes]) -> FlaskClient:
    app = Flask("test")
    handle_errors(app)
    app.register_blueprint(pages.data_blueprint(read))
    return app.test_client()


def test_the_since_parameter_is_passed_on() -> None:
    requested_times: list[float] = []

    def read(since: float) -> bytes:
        requested_times.append(since)
        return b"{}"

    http_client = make_client(read)
    for query in ("", "?since=17.5", "?since=-1"):
        assert http_client.get(f"/dashboard/data{query}").status_code == 200
    assert requested_times == [0.0, 17.5, -1.0]


@pytest.mark.parametrize("since", ["", "yesterday", "nan", "inf", "1,5"])
def test_an_invalid_since_parameter_is_refused(since: str) -> None:
    response = make_client(lambda _: b"{}").get("/dashboard/data", query_string={"since": since})
    assert (response.status_code, response.get_json()["code"]) == (400, "bad_input")


def test_large_data_is_compressed_if_the_caller_accepts_gzip() -> None:
    http_client = make_client(lambda _: LARGE_DATA)
    uncompressed = http_client.get("/dashboard/data")
    assert (uncompressed.data, uncompressed.headers.get("Content-Encoding")) == (LARGE_DATA, None)
    compressed = http_client.get("/dashboard/data", headers={"Accept-Encoding": "gzip, br"})
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert len(compressed.data) < len(LARGE_DATA) / 50
    assert gzip.decompress(compressed.data) == LARGE_DATA
