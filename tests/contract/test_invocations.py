"""``POST /invocations``: a 200 for a good request, a clear error for a bad one."""

from __future__ import annotations

import pytest

from .container import JSON, PREFIX, UNKNOWN_MODEL, Container, ModelRequest, assert_not_html, assert_refused

pytestmark = pytest.mark.modes("single", "batch")
MALFORMED_BODIES = [b"", b"{", b"\x00\xff\xfe", b"[" * 10_000, b"null", b'"text"']


def test_a_good_request_is_a_200(container: Container) -> None:
    response = container.invoke(container.accepted_request())
    assert response.status_code == 200, response.text[:500]


def test_a_response_has_a_content_length(container: Container) -> None:
    response = container.invoke(container.accepted_request())
    if "text/event-stream" in response.headers["Content-Type"]:
        container.cannot_tell("the answer is a stream")
    container.expect("Content-Length" in response.headers, "the answer is chunked")
    assert int(response.headers["Content-Length"]) == len(response.content)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_another_method_is_a_405(container: Container, method: str) -> None:
    response = container.request(method, "/invocations")
    container.expect(response.status_code == 405, f"{method} /invocations is {response.status_code}")
    assert_not_html(response)
    container.expect(container.error(response).get("error") == "Method Not Allowed", "it has another error")


@pytest.mark.parametrize("body", MALFORMED_BODIES, ids=range(len(MALFORMED_BODIES)))
def test_a_malformed_body_is_refused_and_the_server_lives_on(container: Container, body: bytes) -> None:
    assert_refused(container.invoke(ModelRequest(body)))
    assert container.request("GET", "/ping").status_code == 200


def test_an_unknown_content_type_is_a_415(container: Container) -> None:
    request = container.with_target_model(ModelRequest(b"?", "application/x-unknown"))
    container.expect_refusal(container.invoke(request), 415)


def test_an_unknown_model_is_a_404(container: Container) -> None:
    request = ModelRequest(b'{"inputs": []}', JSON, {f"{PREFIX}Target-Model": UNKNOWN_MODEL})
    response = container.invoke(request)
    container.expect(response.status_code == 404, f"an unknown model is not refused: {response.status_code}")
    assert_not_html(response)


def test_an_unknown_path_is_a_404_in_json(container: Container) -> None:
    response = container.request("GET", "/there-is-no-such-path")
    assert response.status_code == 404
    container.expect(JSON in response.headers.get("Content-Type", ""), "the 404 is not JSON")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/invocations"), ("GET", "/there-is-no-such-path"), ("PUT", "/invocations")]
)
def test_every_error_has_one_shape(container: Container, method: str, path: str) -> None:
    members = container.error(container.request(method, path, data=b"{", headers={"Content-Type": JSON}))
    for name in ("error", "code", "request_id"):
        container.expect(isinstance(members.get(name), str), f"the error has no {name}")


def test_a_dispatch_request_for_an_unknown_model_is_a_404_that_names_it(container: Container) -> None:
    """A dispatch request names its model in the body."""
    response = container.request("POST", "/invocations", json={"modelname": UNKNOWN_MODEL, "payload": {}})
    container.expect(response.status_code == 404, f"the dispatch form: {response.status_code}")
    container.expect(
        UNKNOWN_MODEL in container.error(response).get("error", ""), "the error does not name the model"
    )


def test_a_caller_that_hangs_up_half_way_does_not_harm_the_next(container: Container) -> None:
    for _ in range(3):
        with container.connect() as connection:
            connection.sendall(
                b"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{"
            )
    assert container.invoke(container.accepted_request()).status_code == 200
