"""``/ping``: how the platform learns that a container lives."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .container import Container

#: Seconds the platform waits.
LIMIT = 2.0


def test_get_is_200_with_an_empty_body(container: Container) -> None:
    answer = container.ask("GET", "/ping", timeout=LIMIT)
    assert answer.status_code == 200
    container.expects(answer.content == b"", f"an empty body; it is {answer.text[:40]!r}")


def test_post_is_answered_too(container: Container) -> None:
    answer = container.ask("POST", "/ping", timeout=LIMIT)
    container.expects(answer.status_code == 200, f"POST /ping is {answer.status_code}")


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_another_method_is_a_405_in_json(container: Container, method: str) -> None:
    answer = container.ask(method, "/ping")
    container.expects(answer.status_code == 405, f"{method} /ping is {answer.status_code}")
    container.expects(
        answer.content.startswith(b'{"error":"Method Not Allowed"'), f"it says {answer.text[:60]!r}"
    )


@pytest.mark.modes("single")
def test_it_is_answered_within_2_s_while_32_callers_invoke(container: Container) -> None:
    asked, done = container.good(), threading.Event()

    def call() -> None:
        while not done.is_set():
            container.invoke(asked)

    with ThreadPoolExecutor(32) as callers:
        working = [callers.submit(call) for _ in range(32)]
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                began = time.monotonic()
                assert container.ask("GET", "/ping", timeout=LIMIT).status_code == 200
                assert time.monotonic() - began < LIMIT
        finally:
            done.set()
        for one in working:
            one.result()


def test_a_connection_is_accepted_within_250_ms(container: Container) -> None:
    for _ in range(5):
        container.connect(timeout=0.25).close()
