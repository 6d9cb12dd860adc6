"""The known holes of Triton 2.51, tried from the public port: Triton survives, and nothing inside it is told.

docs/inside/known-holes.md lists the CVEs. NVIDIA's bulletins describe most of them without a path, so each way of
attack that they name is tried on every route that leads to Triton.
"""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import requests

from tests.support.boxes import RunningBox, command_line, descendants, listening_ports
from tests.support.raw_http import begin_post

WITHOUT_DATA: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
ECHO = {**WITHOUT_DATA, "data": [1, 2, 3]}
INFER, GENERATE, INDEX = "/v2/models/echo/infer", "/v2/models/words/generate", "/v2/repository/index"
STREAM = "/v2/models/words/generate_stream"
HEADER_SIZE = "Inference-Header-Content-Length"
#: Every path that takes a body as far as Triton, and those that must not.
POST_PATHS = (
    INFER,
    GENERATE,
    STREAM,
    INDEX,
    "/invocations",
    "/v2/repository/models/echo/load",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/systemsharedmemory/region/x/register",
)
#: Names of the Python backend's regions, and of the box's own.
REGION_NAMES = ("triton_python_backend_shm", "/dev/shm", "trireme-")


class Attack(NamedTuple):
    path: str
    body: Any
    headers: dict[str, str] = {}
    method: str = "POST"
    #: True if the request may be a good one after all.
    may_succeed: bool = False


Attacks = Callable[[], Iterator[Attack]]


def lying_shapes() -> Iterator[Attack]:
    """CVE-2025-23321, 23323, 23324, 23326, 23327, 23328, 23331 and 33211: sizes, products and division."""
    for shape in (
        [2**62, 4],
        [2**63 - 1],
        [2**32, 2**32],
        [-1, 3],
        [0, 3],
        [1] * 100_000,
        [2**64],
        [1.5],
        ["1"],
    ):
        for datatype in ("FP32", "BYTES", "UINT8", "FP64x"):
            tensor = {**ECHO, "shape": shape, "datatype": datatype}
            # A tensor without elements is a good one.
            yield Attack(INFER, {"inputs": [tensor]}, may_succeed=shape == [0, 3])


def lying_sizes() -> Iterator[Attack]:
    """CVE-2025-23334 and 23328: bytes outside of the request. CVE-2026-24173, 24174 and 24175: malformed headers."""
    for size in (-1, 2**31, 2**63, 2**64 - 1, 2**64, 10**30, 1.5, "12", None):
        tensor = {**WITHOUT_DATA, "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [tensor]}).encode()
        yield Attack(INFER, head + bytes(12), {HEADER_SIZE: str(len(head))})
    for text in ("-1", "2147483648", "99999999999999999999", "0x10", "1e3", "", "5, 5", "nan"):
        yield Attack(INFER, {"inputs": [ECHO]}, {HEADER_SIZE: text}, may_succeed=True)


def deep_json() -> Iterator[Attack]:
    """CVE-2025-23325, and CVE-2025-33202's overflow of the stack."""
    for path in POST_PATHS[:5]:
        for opening in (b"[", b'{"a":', b'{"inputs":[', b'[{"parameters":'):
            yield Attack(path, opening * 200_000)


def many_outputs() -> Iterator[Attack]:
    """CVE-2026-24146: a large number of outputs."""
    outputs = [{"name": f"y{number}"} for number in range(100_000)]
    yield Attack(INFER, {"inputs": [ECHO], "outputs": outputs})
    yield Attack(INFER, {"inputs": [ECHO], "outputs": [{"name": "y"}] * 100_000}, may_succeed=True)


def compressed_bombs() -> Iterator[Attack]:
    """CVE-2026-24158, 24264 and 2025-33201: 400 MB in 2 MB."""
    bomb = gzip.compress(b" " * 400_000_000, 1)
    for path in (INFER, GENERATE, INDEX):
        for coding in ("gzip", "deflate", "gzip, deflate", "br", "GZIP"):
            yield Attack(path, bomb, {"Content-Encoding": coding})


def paths_as_names() -> Iterator[Attack]:
    """CVE-2025-23316 and 2026-24208, 24209, 47606, 47627, 47630: model control and traversal of paths."""
    for name in ("..", "%2e%2e", "..%2f..%2fetc", "echo%00", "echo;id", "$(id)", "%7C", "a" * 5000, "%ff"):
        yield Attack(f"/v2/models/{name}/infer", {})
        yield Attack(f"/v2/models/{name}/config", b"", method="GET")
        yield Attack(f"/v2/repository/models/{name}/load", {})


def uploaded_models() -> Iterator[Attack]:
    """CVE-2026-24147, CVE-2025-23336 and CVE-2024-53880: a configuration and files in the load request."""
    override = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": "cHJpbnQoMSk="}}
    for path in ("/v2/repository/models/new/load", "/v2/repository/x/models/new/load"):
        yield Attack(path, override)


def named_regions() -> Iterator[Attack]:
    """CVE-2025-23318, 23319, 23329 and 23333: the Python backend's memory by its name."""
    for region in ("triton_python_backend_shm_region_1", "trireme-0", "/"):
        named = {"shared_memory_region": region, "shared_memory_byte_size": 12}
        yield Attack(INFER, {"inputs": [{**WITHOUT_DATA, "parameters": named}]})
        yield Attack(INFER, {"inputs": [ECHO], "outputs": [{"name": "y", "parameters": named}]})
        for path in (f"/v2/systemsharedmemory/region/{region}/register", "/v2/cudasharedmemory/status"):
            yield Attack(path, {"key": region, "byte_size": 12})


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


@pytest.fixture(autouse=True)
def triton_survives(box: RunningBox) -> Iterator[None]:
    """After each kind of attack the same Triton gives the right answer."""
    before = box.pid("tritonserver")
    yield
    answer = requests.post(box.url + INFER, json={"inputs": [ECHO]}, timeout=30)
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3]
    assert box.pid("tritonserver") == before


@pytest.mark.parametrize(
    "attacks",
    [
        lying_shapes,
        lying_sizes,
        deep_json,
        many_outputs,
        compressed_bombs,
        paths_as_names,
        uploaded_models,
        named_regions,
    ],
)
def test_an_attack_is_refused_and_learns_nothing(box: RunningBox, attacks: Attacks) -> None:
    for path, body, headers, method, may_succeed in attacks():
        content = body if isinstance(body, bytes) else json.dumps(body)
        prepared = requests.Request(
            method, box.url, {"Content-Type": "application/json", **headers}, data=content
        ).prepare()
        prepared.url = box.url + path  # as it is written
        with requests.Session() as session:
            response = session.send(prepared, timeout=60, allow_redirects=False)
        attack = f"{method} {path[:80]} {headers} {content[:120]!r}: {response.text[:300]}"
        assert 400 <= response.status_code < 500 or (may_succeed and response.ok), attack
        assert not any(name in response.text for name in REGION_NAMES), attack


@pytest.mark.parametrize("path", POST_PATHS)
def test_half_a_million_tiny_chunks_overflow_no_stack(box: RunningBox, path: str) -> None:
    """CVE-2025-23310 and 23311: each chunk took 16 bytes of the stack of the thread that read it."""
    with socket.create_connection(("127.0.0.1", box.port), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.sendall(b"1\r\n[\r\n" * 500_000 + b"0\r\n\r\n")
        assert connection.recv(12).startswith(b"HTTP/1.1 4")


def test_200_streams_that_hang_up_at_once_free_nothing_twice(box: RunningBox) -> None:
    """CVE-2025-23322 and 2026-24266: a stream that is cancelled before it is processed."""
    for _ in range(200):
        begin_post(box.port, STREAM, b'{"text": "a b c"}').close()


def test_tritons_ports_are_on_loopback_and_its_sagemaker_server_is_off(box: RunningBox) -> None:
    """CVE-2025-33238: the router answers those routes itself."""
    assert "--allow-sagemaker=true" not in command_line(box.pid("tritonserver"))
    addresses = listening_ports(box.pid("tritonserver")).values()
    assert {address[-8:] for address in addresses} == {"0100007F"}
    listening = [listening_ports(pid) for pid in (box.process.pid, *descendants(box.process.pid))]
    opened = {port for ports in listening for port, address in ports.items() if set(address) == {"0"}}
    assert opened == {box.port}
