"""The dashboard's data route returns points since a time, compressed if the caller accepts that."""

from __future__ import annotations

import gzip

import pytest
from flask import Flask
from flask.testing import FlaskClient

from sm.http.responses import handle_errors
from trireme_extensions.observe.dashboard import blueprint

LARGE_DATA = b'{"points":[' + b"0," * 2**16 + b"0]}"


@pytest.fixture
def http_client() -> FlaskClient:
    """A route that has data since the time 0 alone."""
    app = Flask("test")
    handle_errors(app)
    app.register_blueprint(blueprint(lambda since: b"{}" if since else LARGE_DATA))
    return app.test_client()


@pytest.mark.parametrize("since", ["", "yesterday", "nan", "inf", "1,5"])
def test_an_invalid_since_parameter_is_refused(http_client: FlaskClient, since: str) -> None:
    assert http_client.get("/dashboard/data?since=17.5").data == b"{}"
    response = http_client.get("/dashboard/data", query_string={"since": since})
    assert (response.status_code, response.get_json()["code"]) == (400, "bad_input")


def test_the_numbers_are_json_alone(http_client: FlaskClient) -> None:
    response = http_client.get("/dashboard/data", headers={"Accept": "text/html"})
    assert (response.status_code, response.get_json()["code"]) == (406, "not_acceptable")


def test_large_data_is_compressed_if_the_caller_accepts_gzip(http_client: FlaskClient) -> None:
    uncompressed = http_client.get("/dashboard/data")
    assert (uncompressed.data, uncompressed.headers.get("Content-Encoding")) == (LARGE_DATA, None)
    compressed = http_client.get("/dashboard/data", headers={"Accept-Encoding": "gzip, br"})
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert len(compressed.data) < len(LARGE_DATA) / 50
    assert gzip.decompress(compressed.data) == LARGE_DATA
