"""The v2 protocol through the whole box: Triton's own responses, on /v2 and on /invocations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http as triton

from sm import __version__
from tests.support.boxes import RunningBox
from tests.support.raw_http import exchange

pytestmark = pytest.mark.core

ECHO_REQUEST: dict[str, Any] = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0.0, 1.0, 2.0]}]
}
ECHO_RESPONSE = {
    "model_name": "echo",
    "model_version": "1",
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [0.0, 1.0, 2.0]}],
}
INFER = "/v2/models/echo/infer"


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


def post(box: RunningBox, path: str = "/invocations", **options: Any) -> requests.Response:
    return requests.post(box.url + path, json=options.pop("body", ECHO_REQUEST), timeout=20, **options)


def check_echo(response: requests.Response) -> None:
    assert (response.status_code, response.json()) == (200, ECHO_RESPONSE)


def test_json_gets_tritons_response_with_no_key_added_or_lost(box: RunningBox) -> None:
    check_echo(post(box))
    assert post(box, body={**ECHO_REQUEST, "id": "mine"}).json() == {**ECHO_RESPONSE, "id": "mine"}


def test_the_server_metadata_is_tritons_plus_the_boxs_version(box: RunningBox) -> None:
    metadata = requests.get(f"{box.url}/v2", timeout=10).json()
    assert metadata.pop("trireme_version") == __version__
    assert sorted(metadata) == ["extensions", "name", "version"]
    # The box does not share memory with its callers.
    assert "statistics" in metadata["extensions"]
    assert not [name for name in metadata["extensions"] if "shared_memory" in name]


def test_a_request_is_counted_before_it_is_answered_and_unknown_names_add_no_series(box: RunningBox) -> None:
    def count() -> list[float]:
        labels = ({"model": "echo", "status": "200"}, {"model": "-", "status": "404"})
        return [box.metric("trireme_invocations_total", **each) for each in labels]

    before = count()
    for number in range(3):
        check_echo(post(box))
        assert post(box, f"/v2/models/stranger{number}/infer").status_code == 404
        assert post(box, params={"modelname": f"stranger{number}"}).status_code == 404
        assert count() == [before[0] + number + 1, before[1] + 2 * number + 2]
    assert "stranger" not in box.scrape()


def test_tritons_own_client_may_compress_and_send_texts(box: RunningBox) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{box.port}") as client:
        tensor = triton.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.array([[0, 1, 2]], np.float32))
        gzip = {f"{way}_compression_algorithm": "gzip" for way in ("request", "response")}
        assert client.infer("echo", [tensor], **gzip).as_numpy("y").tolist() == [[0, 1, 2]]
    if np.__version__.startswith("1."):  # the wheel's stubs lose strings on NumPy 2
        body = {"x": ["grüße", ""]}
        assert post(box, "/v2/models/words/generate", body=body).json()["y"] == ["GRÜSSE", ""]


@pytest.mark.parametrize("value", [b"gr\xfc\xdfe", "grüße".encode(), b"\xff"])
def test_a_header_or_a_path_that_is_not_ascii_changes_nothing(box: RunningBox, value: bytes) -> None:
    for path in ("/invocations", INFER):
        check_echo(post(box, path, headers={"X-Name": value}))
    answer = exchange(
        box.port, b"GET /v2/%b?%b HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n" % (value, value)
    )
    assert answer.split(b" ")[1] in (b"400", b"404")
    assert {"error", "code"} <= json.loads(answer.partition(b"\r\n\r\n")[2]).keys()


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        ("/invocations", "a" * 8000, 200),
        ("/invocations", "a" * 8001, 431),
        (INFER, "a" * 8001, 431),
        (f"{INFER}?{'a' * 9000}", "", 414),
    ],
    ids=("header that fits", "header", "long header", "URL"),
)
def test_a_head_that_triton_cannot_read_is_refused(
    box: RunningBox, path: str, name: str, status: int
) -> None:
    response = post(box, path, headers={"X-Name": name})
    assert (response.status_code, response.json().get("code")) == (
        status,
        None if status == 200 else "bad_input",
    )


EXTRA_SLASHES = """
/v2//x /v2//health/ready /v2/health//ready /v2/ /v2/health/ready/ //v2/health/ready /invocations/ //invocations
/endpoints//invocations /models//echo /models/echo/ //models /metrics/ /ping// //
"""


@pytest.mark.parametrize("path", EXTRA_SLASHES.split())
def test_a_path_with_an_extra_slash_is_never_a_redirect(box: RunningBox, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n"
    head, _, body = exchange(box.port, request.encode()).partition(b"\r\n\r\n")
    # werkzeug merges slashes at the start of a path.
    statuses = (b"200", b"405") if path.startswith("//") else ()
    assert head.split(b" ")[1] in (b"400", b"404", *statuses), head
    assert b"elsewhere" not in head + body


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", INFER, "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/v2/models/echo", "GET, HEAD"),
        ("TRACE", INFER, "POST"),
        ("TRACE", "/models/echo/invoke", "POST"),
        ("TRACE", "/ping", "GET, HEAD, POST"),
    ],
)
def test_a_405_names_the_methods_of_its_path(box: RunningBox, method: str, path: str, allowed: str) -> None:
    response = requests.request(method, f"{box.url}{path}", timeout=10)
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == allowed
    for name in allowed.split(", "):
        assert requests.request(name, f"{box.url}{path}", timeout=10).status_code != 405
