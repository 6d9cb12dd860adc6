"""The largest body that ``/invocations`` accepts."""

from __future__ import annotations

import contextlib
import http.client

import pytest
import requests

from .container import JSON, Container, ModelRequest, assert_not_html

pytestmark = pytest.mark.modes("single", "batch")
#: Bytes that a real-time endpoint lets through.
REAL_TIME_LIMIT_BYTES = 25 * 2**20
#: More than any of the platform's limits.
TOO_LARGE_BYTES = 2 * 2**30


def test_a_body_of_25_mib_is_not_a_413(container: Container) -> None:
    response = container.invoke(ModelRequest(b"[" + b" " * (REAL_TIME_LIMIT_BYTES - 2) + b"]"))
    container.expect(response.status_code != 413, "a body of 25 MiB is a 413")
    assert response.status_code < 500
    assert_not_html(response)
    assert container.request("GET", "/ping").status_code == 200


def test_a_body_of_2_gib_is_a_413_before_it_is_sent(container: Container) -> None:
    with container.connect() as connection:
        connection.sendall(
            f"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: {JSON}\r\n"
            f"Content-Length: {TOO_LARGE_BYTES}\r\n\r\n".encode()
        )
        response, status, received = http.client.HTTPResponse(connection), 0, b""
        with contextlib.suppress(TimeoutError, ConnectionError, http.client.HTTPException):
            response.begin()
            status, received = response.status, response.read()
    container.expect(status == 413, f"a body of 2 GiB is waited for: {status}")
    container.expect(b'"error"' in received, "the 413 is not JSON")


def test_a_chunked_body_is_accepted(container: Container) -> None:
    request = container.accepted_request()
    headers = {"Content-Type": request.content_type, **request.headers}
    response = requests.post(
        f"{container.url}/invocations", data=iter([request.body]), headers=headers, timeout=60
    )
    container.expect(response.status_code == 200, f"a chunked body is a {response.status_code}")
