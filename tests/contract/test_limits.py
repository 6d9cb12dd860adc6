"""How large a body may be."""

from __future__ import annotations

import contextlib

import pytest
import requests

from .container import JSON, Container, Question, assert_no_page

pytestmark = pytest.mark.modes("single", "batch")
#: Bytes that a real-time endpoint lets through.
REAL_TIME = 25 * 2**20
#: More than any of the platform's limits.
ABSURD = 2 * 2**30


def test_25_mib_are_not_too_large(container: Container) -> None:
    answer = container.invoke(Question(b"[" + b" " * (REAL_TIME - 2) + b"]"))
    container.expects(answer.status_code != 413, "25 MiB are a 413")
    assert answer.status_code < 500
    assert_no_page(answer)
    assert container.ask("GET", "/ping").status_code == 200


def test_2_gib_are_a_413_before_they_are_sent(container: Container) -> None:
    with container.connect() as line:
        line.sendall(
            f"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: {JSON}\r\n"
            f"Content-Length: {ABSURD}\r\n\r\n".encode()
        )
        said = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := line.recv(2**16):
                said += part
    status, _, _ = said.partition(b"\r\n")
    container.expects(b" 413 " in status, f"a body of 2 GiB is waited for: {status[:60]!r}")
    container.expects(b'"error"' in said, "the 413 is no JSON")


def test_a_body_in_chunks_is_read(container: Container) -> None:
    question = container.good()
    headers = {"Content-Type": question.content_type, **question.headers}
    answer = requests.post(
        f"{container.url}/invocations", data=iter([question.body]), headers=headers, timeout=60
    )
    container.expects(answer.status_code == 200, f"a chunked body is a {answer.status_code}")
