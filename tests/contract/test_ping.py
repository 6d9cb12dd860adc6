"""``/ping``, by which the platform learns that a container lives."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from .container import Container

#: The platform's limits for a response and for a connection.
ANSWER_LIMIT_S, CONNECTION_LIMIT_S = 2.0, 0.25


def test_get_is_200_with_an_empty_body(container: Container) -> None:
    response = container.request("GET", "/ping", timeout=ANSWER_LIMIT_S)
    assert response.status_code == 200
    container.expect(response.content == b"", f"an empty body; it is {response.text[:40]!r}")


def test_post_is_answered_too(container: Container) -> None:
    response = container.request("POST", "/ping", timeout=ANSWER_LIMIT_S)
    container.expect(response.status_code == 200, f"POST /ping is {response.status_code}")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS"])
def test_any_other_method_is_a_405_in_json(container: Container, method: str) -> None:
    response = container.request(method, "/ping")
    container.expect(response.status_code == 405, f"{method} /ping is {response.status_code}")
    container.expect(
        response.content.startswith(b'{"error":"Method Not Allowed"'), f"it says {response.text[:60]!r}"
    )


@pytest.mark.modes("single")
def test_it_is_answered_within_2_s_while_32_callers_invoke(container: Container) -> None:
    request, stop = container.accepted_request(), threading.Event()

    def call() -> None:
        while not stop.is_set():
            container.invoke(request)

    with ThreadPoolExecutor(32) as callers:
        calls = [callers.submit(call) for _ in range(32)]
        try:
            for _ in range(10):
                assert container.request("GET", "/ping", timeout=ANSWER_LIMIT_S).status_code == 200
        finally:
            stop.set()
        for call_result in calls:
            call_result.result()


def test_a_connection_is_accepted_within_250_ms(container: Container) -> None:
    for _ in range(5):
        container.connect(timeout=CONNECTION_LIMIT_S).close()
