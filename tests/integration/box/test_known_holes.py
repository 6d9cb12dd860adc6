"""The known holes of Triton 2.51, tried from the public port: Triton survives, and nothing inside it is told.

docs/inside/known-holes.md lists the CVEs. NVIDIA's bulletins describe most of them in one sentence without a
path, so each way of attack that they name is tried on every route that leads to Triton.
"""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, command_line
from tests.support.disks import MOUNT_SMALL_DISK

ECHO: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
INFER, GENERATE = "/v2/models/echo/infer", "/v2/models/words/generate"
HEADER_SIZE = "Inference-Header-Content-Length"
#: Every path that takes a body as far as Triton, and those that must not.
POST_PATHS = (
    INFER,
    GENERATE,
    "/v2/models/words/generate_stream",
    "/v2/repository/index",
    "/invocations",
    "/v2/repository/models/echo/load",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/systemsharedmemory/region/x/register",
)
#: Names of the Python backend's regions, and of the box's own.
REGION_NAMES = ("triton_python_backend_shm", "/dev/shm", "trireme-")


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


@pytest.fixture(autouse=True)
def triton_survives(box: RunningBox) -> Iterator[None]:
    """After each attack the same Triton gives the right answer."""
    before = box.pid("tritonserver")
    yield
    answer = requests.post(box.url + INFER, json={"inputs": [ECHO]}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3]
    assert box.pid("tritonserver") == before


def refused(response: requests.Response) -> None:
    """Assert a caller's error that names nothing of Triton's inside."""
    assert 400 <= response.status_code < 500, response.text
    assert not any(name in response.text for name in REGION_NAMES), response.text


@pytest.mark.parametrize("path", POST_PATHS)
def test_half_a_million_tiny_chunks_overflow_no_stack(box: RunningBox, path: str) -> None:
    """CVE-2025-23310 and 23311: each chunk took 16 bytes of the stack of the thread that read it."""
    with socket.create_connection(("127.0.0.1", box.port), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.sendall(b"1\r\n[\r\n" * 500_000 + b"0\r\n\r\n")
        assert connection.recv(12).startswith(b"HTTP/1.1 4")


SHAPES = (
    [2**62, 4],
    [2**63 - 1],
    [2**32, 2**32],
    [-1, 3],
    [0, 3],
    [1] * 100_000,
    [2**64],
    [1.5],
    ["1"],
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape)[:20])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "UINT8", "FP64x"])
def test_a_shape_that_lies_allocates_nothing(box: RunningBox, shape: list[object], datatype: str) -> None:
    """CVE-2025-23321, 23323, 23324, 23326, 23327, 23328, 23331 and 33211: sizes, products and division."""
    tensor = {**ECHO, "shape": shape, "datatype": datatype}
    response = requests.post(box.url + INFER, json={"inputs": [tensor]}, timeout=30)
    # A tensor without elements is a good one.
    if not (shape == [0, 3] and response.status_code == 200):
        refused(response)


@pytest.mark.parametrize("size", [-1, 2**31, 2**63, 2**64 - 1, 2**64, 10**30, 1.5, "12", None])
def test_a_binary_size_that_lies_reads_nothing_else(box: RunningBox, size: object) -> None:
    """CVE-2025-23334 and 23328: bytes outside of the request."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    response = requests.post(
        box.url + INFER, data=head + bytes(12), headers={HEADER_SIZE: str(len(head))}, timeout=30
    )
    refused(response)


@pytest.mark.parametrize(
    "size", ["-1", "2147483648", "99999999999999999999", "0x10", "1e3", "", "5, 5", "nan"]
)
def test_a_malformed_header_reaches_nothing(box: RunningBox, size: str) -> None:
    """CVE-2026-24173, 24174 and 24175: malformed requests and headers."""
    response = requests.post(
        box.url + INFER, json={"inputs": [ECHO]}, headers={HEADER_SIZE: size}, timeout=30
    )
    if response.status_code != 200:
        refused(response)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inputs":[', b'[{"parameters":'])
@pytest.mark.parametrize("path", POST_PATHS[:5])
def test_deep_json_recurses_nowhere(box: RunningBox, path: str, opening: bytes) -> None:
    """CVE-2025-23325, and CVE-2025-33202's overflow of the stack."""
    response = requests.post(
        box.url + path, data=opening * 200_000, headers={"Content-Type": "application/json"}, timeout=30
    )
    refused(response)


def test_100_000_requested_outputs_are_one_error(box: RunningBox) -> None:
    """CVE-2026-24146: a large number of outputs."""
    outputs = [{"name": f"y{number}"} for number in range(100_000)]
    refused(requests.post(box.url + INFER, json={"inputs": [ECHO], "outputs": outputs}, timeout=60))
    same = {"inputs": [ECHO], "outputs": [{"name": "y"}] * 100_000}
    response = requests.post(box.url + INFER, json=same, timeout=60)
    if response.status_code == 200:
        assert len(response.json()["outputs"]) == 1
    else:  # from 2.71 on
        refused(response)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """400 MB of blanks in 2 MB."""
    return gzip.compress(b" " * 400_000_000, 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, deflate", "br", "GZIP"])
@pytest.mark.parametrize("path", [INFER, GENERATE, "/v2/repository/index"])
def test_a_compressed_bomb_is_never_unpacked_whole(
    box: RunningBox, bomb: bytes, path: str, coding: str
) -> None:
    """CVE-2026-24158, 24264 and 2025-33201: highly compressed bodies."""
    response = requests.post(
        box.url + path,
        data=bomb,
        headers={"Content-Encoding": coding},
        timeout=60,
    )
    refused(response)
    assert response.status_code in (400, 413, 415)


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "..%2f..%2fetc", "echo%00", "echo;id", "$(id)", "%7C", "a" * 5000, "%ff"]
)
@pytest.mark.parametrize("verb", ["infer", "config", "load"])
def test_a_path_as_a_models_name_opens_no_file(box: RunningBox, name: str, verb: str) -> None:
    """CVE-2025-23316 and 2026-24208, 24209, 47606, 47627, 47630: model control and traversal of paths."""
    path = f"/v2/repository/models/{name}/load" if verb == "load" else f"/v2/models/{name}/{verb}"
    request = requests.Request("GET" if verb == "config" else "POST", box.url, data=b"{}").prepare()
    request.url = box.url + path
    with requests.Session() as session:
        response = session.send(request, timeout=30, allow_redirects=False)
    refused(response)


def test_a_model_cannot_be_uploaded_with_a_configuration(box: RunningBox) -> None:
    """CVE-2026-24147, CVE-2025-23336 and CVE-2024-53880: a configuration and files in the load request."""
    override = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": "cHJpbnQoMSk="}}
    for path in ("/v2/repository/models/new/load", "/v2/repository/x/models/new/load"):
        response = requests.post(box.url + path, json=override, timeout=10)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("region", ["triton_python_backend_shm_region_1", "trireme-0", "/"])
def test_no_spelling_of_a_region_reaches_shared_memory(box: RunningBox, region: str) -> None:
    """CVE-2025-23318, 23319, 23329 and 23333: the Python backend's memory by its name."""
    named = {"shared_memory_region": region, "shared_memory_byte_size": 12}
    without_data = {key: value for key, value in ECHO.items() if key != "data"}
    for tensors in (
        {"inputs": [{**without_data, "parameters": named}]},
        {"inputs": [ECHO], "outputs": [{"name": "y", "parameters": named}]},
    ):
        response = requests.post(box.url + INFER, json=tensors, timeout=10)
        refused(response)
    for path in (f"/v2/systemsharedmemory/region/{region}/register", "/v2/cudasharedmemory/status"):
        response = requests.post(box.url + path, json={"key": region, "byte_size": 12}, timeout=10)
        assert response.status_code == 403


def test_200_streams_that_hang_up_at_once_free_nothing_twice(box: RunningBox) -> None:
    """CVE-2025-23322 and 2026-24266: a stream that is cancelled before it is processed."""
    body = json.dumps({"text": "a b c"}).encode()
    head = b"POST /v2/models/words/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", box.port), timeout=10) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def test_the_sagemaker_server_of_triton_is_off(box: RunningBox) -> None:
    """CVE-2025-33238: its SageMaker HTTP server. The router answers those routes itself."""
    assert "--allow-sagemaker=true" not in command_line(box.pid("tritonserver"))


@pytest.fixture
def full_box(boxes: Boxes) -> Iterator[RunningBox]:
    """A box whose /dev/shm has too little room for a large tensor of a Python model."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no file system of its own")
    prefix = MOUNT_SMALL_DISK.format(size=80, folder="/dev/shm")
    with boxes.own(("echo",), command_prefix=prefix) as started:
        yield started


@pytest.mark.exhaustive
def test_a_request_that_fills_shared_memory_is_told_no_regions_name(full_box: RunningBox) -> None:
    """CVE-2025-23320: the error of a full /dev/shm named the Python backend's region."""
    numbers = 6_000_000
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, numbers],
        "parameters": {"binary_data_size": 4 * numbers},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {HEADER_SIZE: str(len(head))}
    with ThreadPoolExecutor(8) as callers:
        responses = list(
            callers.map(
                lambda _: requests.post(
                    full_box.url + INFER, data=head + bytes(4 * numbers), headers=headers, timeout=90
                ),
                range(16),
            )
        )
    failed = [response for response in responses if response.status_code != 200]
    assert failed, "there was room for all of them"
    for response in failed:
        assert not any(name in response.text for name in REGION_NAMES), response.text
    answer = requests.post(full_box.url + INFER, json={"inputs": [ECHO]}, timeout=30)
    assert answer.status_code == 200, answer.text
