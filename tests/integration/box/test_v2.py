"""The v2 protocol through the whole box: Triton's own responses, on /v2 and on /invocations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http as triton

from sm import __version__
from tests.support.boxes import RunningBox
from tests.support.raw_http import exchange

pytestmark = pytest.mark.core

X = np.arange(3, dtype=np.float32)
ECHO_REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": X.tolist()}]}
ECHO_RESPONSE = {
    "model_name": "echo",
    "model_version": "1",
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": X.tolist()}],
}


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


@pytest.fixture
def client(box: RunningBox) -> Iterator[Any]:
    """Triton's own client."""
    with triton.InferenceServerClient(f"127.0.0.1:{box.port}") as triton_client:
        yield triton_client


def test_json_gets_tritons_response_with_no_key_added_or_lost(box: RunningBox) -> None:
    assert box.send(json.dumps(ECHO_REQUEST).encode()).json() == ECHO_RESPONSE
    request_with_id = {**ECHO_REQUEST, "id": "mine"}
    assert box.send(json.dumps(request_with_id).encode()).json() == {**ECHO_RESPONSE, "id": "mine"}


def test_the_server_metadata_is_tritons_plus_the_boxs_version(box: RunningBox) -> None:
    metadata = requests.get(f"{box.url}/v2", timeout=10).json()
    assert metadata.pop("trireme_version") == __version__
    assert sorted(metadata) == ["extensions", "name", "version"]
    assert metadata["name"] == "triton"
    # The box does not share memory with its callers.
    assert "statistics" in metadata["extensions"]
    assert not [name for name in metadata["extensions"] if "shared_memory" in name]


def test_unknown_model_names_add_no_metrics(box: RunningBox) -> None:
    count_before = box.metric("trireme_invocations_total", model="-", status="404")
    for number in range(5):
        url = f"{box.url}/v2/models/stranger{number}/infer"
        assert requests.post(url, json=ECHO_REQUEST, timeout=10).status_code == 404
        assert (
            box.send(json.dumps(ECHO_REQUEST).encode(), params={"modelname": f"stranger{number}"}).status_code
            == 404
        )
    assert "stranger" not in box.scrape()
    assert box.metric("trireme_invocations_total", model="-", status="404") == count_before + 10


def test_a_request_is_counted_before_it_is_answered(box: RunningBox) -> None:
    count_before = box.metric("trireme_invocations_total", model="echo", status="200")
    for number in range(10):
        assert box.send(json.dumps(ECHO_REQUEST).encode()).status_code == 200
        count = box.metric("trireme_invocations_total", model="echo", status="200")
        assert count == count_before + number + 1


def test_tritons_own_client_may_compress(client: Any) -> None:
    tensor = triton.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(X[None])
    result = client.infer(
        "echo", [tensor], request_compression_algorithm="gzip", response_compression_algorithm="gzip"
    )
    np.testing.assert_array_equal(result.as_numpy("y"), X[None])


@pytest.mark.parametrize("path", ["/v2", "/v2/health/ready", "/v2/models/echo", "/v2/models/echo/infer"])
def test_a_request_after_a_head_request_gets_its_own_response(box: RunningBox, path: str) -> None:
    for _ in range(8):
        head = requests.head(f"{box.url}{path}", timeout=10)
        assert (head.status_code, head.content) == (405 if path.endswith("infer") else 200, b"")
        response = box.send(json.dumps(ECHO_REQUEST).encode())
        assert (response.status_code, response.json()) == (200, ECHO_RESPONSE)


@pytest.mark.parametrize("value", [b"gr\xfc\xdfe", "grüße".encode(), b"\xff"])
def test_a_header_that_is_not_ascii_changes_nothing(box: RunningBox, value: bytes) -> None:
    headers: dict[str, str | bytes] = {"X-Name": value, "Content-Type": "application/json"}
    for path in ("/invocations", "/v2/models/echo/infer"):
        response = requests.post(
            f"{box.url}{path}", data=json.dumps(ECHO_REQUEST), headers=headers, timeout=10
        )
        assert (response.status_code, response.json()) == (200, ECHO_RESPONSE)
    assert requests.get(f"{box.url}/v2/health/ready", headers={"X-Name": value}, timeout=10).ok


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/invocations", {"X-Name": "a" * 8000}, 200),
        ("/invocations", {"X-Name": "a" * 8001}, 431),
        ("/v2/models/echo/infer", {"X-Name": "a" * 9000}, 431),
        (f"/v2/models/echo/infer?{'a' * 9000}", {}, 414),
    ],
    ids=("header that fits", "header", "long header", "URL"),
)
def test_a_head_that_triton_cannot_read_is_refused_at_once(
    box: RunningBox, path: str, headers: dict[str, str], status: int
) -> None:
    response = requests.post(f"{box.url}{path}", json=ECHO_REQUEST, headers=headers, timeout=10)
    assert response.status_code == status, response.text
    assert (status == 200) or response.json()["code"] == "bad_input"


@pytest.mark.parametrize("path", [b"/v2/gr\xfc\xdfe", "/v2/models/grüße".encode(), b"/v2/\xff?\xff=\xff"])
def test_a_path_that_is_not_ascii_is_a_4xx(box: RunningBox, path: bytes) -> None:
    response = exchange(box.port, b"GET " + path + b" HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\r\n")
    assert response.split(b" ")[1] in (b"400", b"404")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["code"] in (
        "bad_input",
        "not_found",
        "unknown_model",
    )


@pytest.mark.parametrize(
    "path",
    [
        "/v2//x",
        "/v2//health/ready",
        "/v2/health//ready",
        "/v2/",
        "/v2/health/ready/",
        "//v2/health/ready",
        "/invocations/",
        "/invocations//",
        "//invocations",
        "/endpoints//invocations",
        "/models//echo",
        "/models/echo/",
        "//models",
        "/metrics/",
        "/ping//",
        "//",
    ],
)
def test_a_path_with_an_extra_slash_is_never_a_redirect(box: RunningBox, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n"
    head, _, body = exchange(box.port, request.encode()).partition(b"\r\n\r\n")
    # werkzeug merges slashes at the start of a path.
    statuses = (b"200", b"405") if path.startswith("//") else ()
    assert head.split(b" ")[1] in (b"400", b"404", *statuses), head
    assert b"elsewhere" not in head + body
    assert path == "//" or json.loads(body)


@pytest.mark.skipif(not np.__version__.startswith("1."), reason="the wheel's stubs lose strings on NumPy 2")
def test_texts_pass_through_generate_and_infer(box: RunningBox, client: Any) -> None:
    response = requests.post(f"{box.url}/v2/models/words/generate", json={"x": ["grüße", ""]}, timeout=10)
    assert response.json()["y"] == ["GRÜSSE", ""]
    tensor = triton.InferInput("x", [1], "BYTES")
    tensor.set_data_from_numpy(np.array(["a text"], dtype=object))
    assert client.infer("words", [tensor]).as_numpy("y").tolist() == [b"A TEXT"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/echo/infer", "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/v2/models/echo", "GET, HEAD"),
        ("TRACE", "/v2/models/echo/infer", "POST"),
        ("TRACE", "/invocations", "POST"),
        ("TRACE", "/models/echo/invoke", "POST"),
        ("TRACE", "/ping", "GET, HEAD, POST"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_a_405_with_those_that_it_has(
    box: RunningBox, method: str, path: str, allowed: str
) -> None:
    response = requests.request(method, f"{box.url}{path}", timeout=10)
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == allowed
    # Each method that the header names leads to another answer.
    for name in allowed.split(", "):
        assert requests.request(name, f"{box.url}{path}", timeout=10).status_code != 405
