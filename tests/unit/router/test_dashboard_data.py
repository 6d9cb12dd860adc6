"""The route hands on what it reads: from a moment on, and compressed for who takes that."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient

from sm.router.routes import dashboard_data
from sm.router.routes.responses import handle_errors

LARGE = b'{"points":[' + b"0," * 2**16 + b"0]}"


def client(read: Callable[[float], bytes]) -> FlaskClient:
    app = Flask("test")
    handle_errors(app)
    app.register_blueprint(dashboard_data.blueprint(read))
    return app.test_client()


def test_the_moment_is_handed_on() -> None:
    asked: list[float] = []

    def read(since: float) -> bytes:
        asked.append(since)
        return b"{}"

    caller = client(read)
    for query in ("", "?since=17.5", "?since=-1"):
        assert caller.get(f"/dashboard/data{query}").status_code == 200
    assert asked == [0.0, 17.5, -1.0]


@pytest.mark.parametrize("since", ["", "yesterday", "nan", "inf", "1,5"])
def test_what_is_no_moment_is_refused(since: str) -> None:
    refused = client(lambda _: b"{}").get("/dashboard/data", query_string={"since": since})
    assert (refused.status_code, refused.get_json()["code"]) == (400, "bad_input")


def test_much_is_compressed_for_who_takes_it() -> None:
    caller = client(lambda _: LARGE)
    plain = caller.get("/dashboard/data")
    assert (plain.data, plain.headers.get("Content-Encoding")) == (LARGE, None)
    compressed = caller.get("/dashboard/data", headers={"Accept-Encoding": "gzip, br"})
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert len(compressed.data) < len(LARGE) / 50
    assert gzip.decompress(compressed.data) == LARGE
