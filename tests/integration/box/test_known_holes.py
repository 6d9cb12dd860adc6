"""What stands between the public port and Triton's known holes, on every route that leads to Triton.

docs/inside/known-holes.md lists the holes. Each request here is one step beyond a bound, or asks for what no caller
may have: a Triton that got it would answer with an error, or with what was asked for.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import requests

from sm.triton.http_proxy import MAX_BODY_BYTES, MAX_DEPTH
from tests.support.boxes import RunningBox, command_line, descendants, listening_ports

WITHOUT_DATA: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
ECHO = {**WITHOUT_DATA, "data": [1, 2, 3]}
INFER, GENERATE, INDEX = "/v2/models/echo/infer", "/v2/models/words/generate", "/v2/repository/index"
STREAM = "/v2/models/words/generate_stream"
HEADER_SIZE = "Inference-Header-Content-Length"
#: Every path that takes a body as far as Triton.
POST_PATHS = (INFER, GENERATE, STREAM, INDEX, "/invocations")
#: Names of the Python backend's regions, and of the box's own.
REGION_NAMES = ("triton_python_backend_shm", "/dev/shm", "trireme-")


class Beyond(NamedTuple):
    path: str
    body: Any
    statuses: tuple[int, ...]
    headers: dict[str, str] = {}
    method: str = "POST"


Requests = Callable[[], Iterator[Beyond]]


def shapes() -> Iterator[Beyond]:
    """One element more than the body has bytes, as JSON and beside four bytes of binary data."""
    length = len(json.dumps({"inputs": [{**ECHO, "shape": [100]}]}))
    yield Beyond(INFER, {"inputs": [{**ECHO, "shape": [length + 1]}]}, (400,))
    tensor = {**WITHOUT_DATA, "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [{**tensor, "shape": [100]}]}).encode()
    head = head.replace(b"[100]", b"[%d]" % (len(head) + 4 + 1))
    yield Beyond(INFER, head + bytes(4), (400,), {HEADER_SIZE: str(len(head))})


def sizes() -> Iterator[Beyond]:
    """A byte more than there is."""
    body = json.dumps({"inputs": [ECHO]}).encode()
    yield Beyond(INFER, body, (400,), {HEADER_SIZE: str(len(body) + 1)})
    head = json.dumps({"inputs": [{**WITHOUT_DATA, "parameters": {"binary_data_size": 13}}]}).encode()
    yield Beyond(INFER, head + bytes(12), (400,), {HEADER_SIZE: str(len(head))})


def levels() -> Iterator[Beyond]:
    deep = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    for path in POST_PATHS:
        yield Beyond(path, deep, (400,))
        yield Beyond(path, b'{"parameters":' + deep + b"}", (400, 422))


def codings() -> Iterator[Beyond]:
    """A byte more than a body may have once it is unpacked, and codings that Triton does not unpack."""
    packed, small = gzip.compress(bytes(MAX_BODY_BYTES + 1)), gzip.compress(b"{}")
    for path in (INFER, GENERATE, INDEX):
        yield Beyond(path, packed, (413,), {"Content-Encoding": "gzip"})
        for coding in ("gzip, deflate", "br", "GZIP"):
            yield Beyond(path, small, (415,), {"Content-Encoding": coding})


def names() -> Iterator[Beyond]:
    """A name that is a path, even if the path ends where a name may lead."""
    for name in ("..", "%2e%2e", "..%2fecho"):
        yield Beyond(f"/v2/models/{name}/infer", {}, (400, 403, 404))
        yield Beyond(f"/v2/models/{name}/config", b"", (400, 403, 404), method="GET")
        yield Beyond(f"/v2/repository/models/{name}/load", {}, (400, 403, 404))


def control() -> Iterator[Beyond]:
    """Models, settings and regions that only the box may change."""
    for path in (
        "/v2/repository/models/echo/load",
        "/v2/repository/models/echo/unload",
        "/v2/repository/x/models/new/load",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/region/x/register",
    ):
        yield Beyond(path, {"parameters": {}}, (403, 404))
    named = {"shared_memory_region": "mine", "shared_memory_byte_size": 12}
    yield Beyond(INFER, {"inputs": [{**WITHOUT_DATA, "parameters": named}]}, (403,))
    yield Beyond(INFER, {"inputs": [ECHO], "outputs": [{"name": "y", "parameters": named}]}, (403,))


def classes() -> Iterator[Beyond]:
    """Classes of truth values, however the request is written."""
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, -1]}]}
    outputs = [{"name": "x"}, {"name": "y", "parameters": {"classification": 1}}]
    text = json.dumps({**asked, "outputs": outputs})
    for body in (
        text,
        text.replace("classification", "cl\\u0061ssification"),
        text.replace(
            '"outputs"', '"outputs": [{"name": "y", "parameters": {"classification": 1}}], "outputs"'
        ),
    ):
        yield Beyond("/v2/models/positive/infer", body.encode(), (400,))
        yield Beyond("/v2/models/positive/versions/1/infer", body.encode(), (400,))
        yield Beyond("/invocations?modelname=positive", body.encode(), (400,))
        size = {HEADER_SIZE: str(len(body))}
        yield Beyond("/v2/models/positive/infer", body.encode(), (400,), size)


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


@pytest.fixture(autouse=True)
def triton_goes_on(box: RunningBox) -> Iterator[None]:
    """After each kind of request the same Triton gives the right answer."""
    before = box.pid("tritonserver")
    yield
    answer = requests.post(box.url + INFER, json={"inputs": [ECHO]}, timeout=30)
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3]
    assert box.pid("tritonserver") == before


@pytest.mark.parametrize("beyond", [shapes, sizes, levels, codings, names, control, classes])
def test_what_is_beyond_a_bound_is_refused_and_learns_nothing(box: RunningBox, beyond: Requests) -> None:
    for path, body, statuses, headers, method in beyond():
        content = body if isinstance(body, bytes) else json.dumps(body)
        prepared = requests.Request(
            method, box.url, {"Content-Type": "application/json", **headers}, data=content
        ).prepare()
        prepared.url = box.url + path  # as it is written
        with requests.Session() as session:
            response = session.send(prepared, timeout=60, allow_redirects=False)
        what = f"{method} {path} {headers} {content[:120]!r}: {response.status_code} {response.text[:300]}"
        assert response.status_code in statuses, what
        assert not any(name in response.text for name in REGION_NAMES), what


def test_classes_are_numbers_and_the_box_says_so_before_triton_is_asked(box: RunningBox) -> None:
    path, body, *_ = next(classes())
    refused = requests.post(box.url + path, data=body, timeout=30)
    assert (refused.status_code, refused.json()["field"]) == (400, "outputs")
    numbers = json.loads(body.replace(b'"name": "y"', b'"name": "x"').replace(b'{"name": "x"}, ', b""))
    answer = requests.post(box.url + path, json=numbers, timeout=30)
    assert answer.json()["outputs"][0]["data"] == ["1.000000:0"]


def test_tritons_ports_are_on_loopback_and_its_sagemaker_server_is_off(box: RunningBox) -> None:
    """The router answers the SageMaker routes itself."""
    assert "--allow-sagemaker=true" not in command_line(box.pid("tritonserver"))
    addresses = listening_ports(box.pid("tritonserver")).values()
    assert {address[-8:] for address in addresses} == {"0100007F"}
    listening = [listening_ports(pid) for pid in (box.process.pid, *descendants(box.process.pid))]
    opened = {port for ports in listening for port, address in ports.items() if set(address) == {"0"}}
    assert opened == {box.port}
