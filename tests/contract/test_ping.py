"""``/ping``: how the platform learns that a container lives."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .container import Container

#: Seconds that the platform waits for an answer, and for a connection.
ANSWER_LIMIT_S, CONNECTION_LIMIT_S = 2.0, 0.25


def test_get_is_200_with_an_empty_body(container: Container) -> None:
    answer = container.ask("GET", "/ping", timeout=ANSWER_LIMIT_S)
    assert answer.status_code == 200
    container.expects(answer.content == b"", f"an empty body; it is {answer.text[:40]!r}")


def test_post_is_answered_too(container: Container) -> None:
    answer = container.ask("POST", "/ping", timeout=ANSWER_LIMIT_S)
    container.expects(answer.status_code == 200, f"POST /ping is {answer.status_code}")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS"])
def test_another_method_is_a_405_in_json(container: Container, method: str) -> None:
    answer = container.ask(method, "/ping")
    container.expects(answer.status_code == 405, f"{method} /ping is {answer.status_code}")
    container.expects(
        answer.content.startswith(b'{"error":"Method Not Allowed"'), f"it says {answer.text[:60]!r}"
    )


@pytest.mark.modes("single")
def test_it_is_answered_within_2_s_while_32_callers_invoke(container: Container) -> None:
    question, done = container.good(), threading.Event()

    def call() -> None:
        while not done.is_set():
            container.invoke(question)

    with ThreadPoolExecutor(32) as callers:
        working = [callers.submit(call) for _ in range(32)]
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                began = time.monotonic()
                assert container.ask("GET", "/ping", timeout=ANSWER_LIMIT_S).status_code == 200
                assert time.monotonic() - began < ANSWER_LIMIT_S
        finally:
            done.set()
        for caller in working:
            caller.result()


def test_a_connection_is_accepted_within_250_ms(container: Container) -> None:
    for _ in range(5):
        container.connect(timeout=CONNECTION_LIMIT_S).close()
