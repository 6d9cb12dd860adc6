"""``POST /invocations``: an answer for a good request, a clear refusal for a bad one."""

from __future__ import annotations

import pytest

from .container import JSON, PREFIX, Container, Question, assert_no_page, refused

pytestmark = pytest.mark.modes("single", "batch")
#: What no server can have by chance.
NOBODY = "there-is-no-such-model"
GARBAGE = [b"", b"{", b"\x00\xff\xfe", b"[" * 10_000, b"null", b'"text"']


def test_a_good_request_is_a_200(container: Container) -> None:
    answer = container.invoke(container.good())
    assert answer.status_code == 200, answer.text[:500]


def test_its_answer_has_a_content_length(container: Container) -> None:
    answer = container.invoke(container.good())
    if "text/event-stream" in answer.headers["Content-Type"]:
        container.unasked("the answer is a stream")
    container.expects("Content-Length" in answer.headers, "the answer is chunked")
    assert int(answer.headers["Content-Length"]) == len(answer.content)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_another_method_is_a_405(container: Container, method: str) -> None:
    answer = container.ask(method, "/invocations")
    container.expects(answer.status_code == 405, f"{method} /invocations is {answer.status_code}")
    assert_no_page(answer)
    container.expects(container.error(answer).get("error") == "Method Not Allowed", "the official words")


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_refused_and_the_server_lives_on(container: Container, body: bytes) -> None:
    refused(container.invoke(Question(body)))
    assert container.ask("GET", "/ping").status_code == 200


def test_a_content_type_that_nobody_takes_is_a_415(container: Container) -> None:
    answer = container.invoke(container.addressed(Question(b"?", "application/x-of-nobody")))
    refused(answer)
    container.expects(answer.status_code == 415, f"it is a {answer.status_code}")


def test_an_unknown_model_is_a_404(container: Container) -> None:
    question = Question(b'{"inputs": []}', JSON, {f"{PREFIX}Target-Model": NOBODY})
    answer = container.invoke(question)
    container.expects(answer.status_code == 404, f"the model is not looked at: {answer.status_code}")
    assert_no_page(answer)


def test_an_unknown_path_is_a_404_in_json(container: Container) -> None:
    answer = container.ask("GET", "/there-is-no-such-path")
    assert answer.status_code == 404
    container.expects(JSON in answer.headers.get("Content-Type", ""), "it is no JSON")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/invocations", b"{"), ("GET", "/there-is-no-such-path", b""), ("PUT", "/invocations", b"")],
)
def test_every_error_has_one_shape(container: Container, method: str, path: str, body: bytes) -> None:
    answer = container.ask(method, path, data=body, headers={"Content-Type": JSON})
    members = container.error(answer)
    wanted = {"error": str, "code": str, "request_id": str}
    for name, kind in wanted.items():
        container.expects(isinstance(members.get(name), kind), f"the error has no {name}")


def test_a_dispatch_request_for_nobody_is_told_whom_there_is(container: Container) -> None:
    """The form that names its model in the body."""
    answer = container.ask("POST", "/invocations", json={"modelname": NOBODY, "payload": {}})
    container.expects(answer.status_code == 404, f"the dispatch form: {answer.status_code}")
    container.expects(NOBODY in container.error(answer).get("error", ""), "the name is in the error")


def test_a_caller_that_leaves_half_way_harms_nobody(container: Container) -> None:
    for _ in range(3):
        with container.connect() as line:
            line.sendall(
                b"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{"
            )
    assert container.invoke(container.good()).status_code == 200
