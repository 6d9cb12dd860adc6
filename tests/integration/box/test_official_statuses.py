"""Every status under /v2 that differs from Triton's own port has a row on the page for the official container's users."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import RunningBox, command_line

PAGE = HERE / "docs" / "start" / "from-the-official-container.md"
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
ECHO = "/v2/models/echo/infer"


class Case(NamedTuple):
    """A request that Triton or the box refuses, the two statuses, and the first cell of its row on the page."""

    row: str
    triton: int
    box: int
    path: str = ECHO
    body: bytes = b"{}"
    method: str = "POST"
    headers: dict[str, str] = {}


def tensor(path: str = ECHO, **changes: Any) -> tuple[str, bytes]:
    """The path and the body of a request with one input, in which None removes a member."""
    members = {name: value for name, value in {**TENSOR, **changes}.items() if value is not None}
    return path, json.dumps({"inputs": [members]}).encode()


REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
UNFILLED = "`data` that does not fill its `shape`, a negative size"
CASES = [
    Case("JSON that cannot be read, or has no `inputs`", 500, 400, body=b"{"),
    Case("JSON that cannot be read, or has no `inputs`", 500, 400),
    Case(UNFILLED, 500, 400, *tensor(shape=[1, 3])),
    Case(UNFILLED, 500, 400, *tensor(shape=[1, -2])),
    Case("a parameter of the wrong type", 500, 400, body=tensor()[1].replace(b"}]}", b'}],"parameters":{"timeout":"x"}}')),
    Case("a `Content-Encoding` that is neither gzip nor deflate", 501, 415, *tensor(), headers={"Content-Encoding": "br"}),
    Case("a body that is not packed as its `Content-Encoding` says", 200, 400, *tensor(), headers={"Content-Encoding": "gzip"}),
    Case("a tensor in a shared-memory region that Triton does not know", 404, 403, *tensor(parameters=REGION, data=None)),
    Case("the status of shared-memory regions", 200, 403, "/v2/systemsharedmemory/status", method="GET"),
    Case("loading and unloading of models", 200, 403, "/v2/repository/models/echo/load"),
    Case("changes of the trace or log settings", 200, 403, "/v2/logging"),
    # Both statuses are the same.
    Case("", 404, 404, *tensor("/v2/models/unknown/infer")),
    Case("", 404, 404, *tensor("/v2/models/echo/versions/9/infer")),
    Case("", 400, 400, *tensor(name="unknown")),
    Case("", 400, 400, *tensor(datatype="INT32")),
    Case("", 404, 404, "/v2/models/unknown", b"", "GET"),
]  # fmt: skip


def triton_url(box: RunningBox) -> str:
    """Triton's own port behind a box."""
    (port,) = re.findall(r"--http-port=(\d+)", command_line(box.pid("--http-port=")))
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row or case.path)
def test_a_status_is_tritons_or_has_a_row_on_the_page(small_box: RunningBox, case: Case) -> None:
    def send(url: str) -> requests.Response:
        return requests.request(
            case.method, url + case.path, data=case.body, headers=case.headers, timeout=30
        )

    assert send(triton_url(small_box)).status_code == case.triton
    response = send(small_box.url)
    assert response.status_code == case.box, response.text
    assert list(response.json())[:3] == ["error", "code", "request_id"]
    assert response.headers["Content-Type"] == "application/json"
    if case.row:
        assert f"| {case.row} | {case.triton} | {case.box} |" in PAGE.read_text()
    else:
        assert case.triton == case.box


def test_the_readiness_of_an_unknown_model_has_tritons_status(small_box: RunningBox) -> None:
    """Triton 2.51 says 400, later ones say 404."""
    urls = (triton_url(small_box), small_box.url)
    statuses = [requests.get(f"{url}/v2/models/unknown/ready", timeout=30).status_code for url in urls]
    assert statuses in ([400, 400], [404, 404])
