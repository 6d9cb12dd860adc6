"""What differs between ``/v2`` and Triton's own port, measured on the two: the page has a row for each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import RunningBox, command_line
from tests.support.reference.official import ADMIN

PAGE = HERE / "docs" / "start" / "from-the-official-container.md"
X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
ECHO = "/v2/models/echo/infer"
#: Where Triton ends, and with it everybody's requests.
ENDS = 0


def encoded(document: object) -> bytes:
    return json.dumps(document).encode()


@dataclass(frozen=True)
class Case:
    """A request that Triton refuses, or that the box does, and the two statuses; ``row`` as the page has it."""

    row: str
    triton: int
    box: int
    path: str = ECHO
    body: bytes = b"{}"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
CASES = [
    Case("JSON that cannot be read, or has no `inputs`", 500, 400, body=b"{"),
    Case("JSON that cannot be read, or has no `inputs`", 500, 400),
    Case("`data` that does not fill its `shape`, a negative size", 500, 400, body=encoded({"inputs": [{**X, "shape": [1, 3]}]})),
    Case("`data` that does not fill its `shape`, a negative size", 500, 400, body=encoded({"inputs": [{**X, "shape": [1, -2]}]})),
    Case("a parameter of the wrong type", 500, 400, body=encoded({"inputs": [X], "parameters": {"timeout": "x"}})),
    Case("a `shape` that is larger than the body, JSON 1,000 levels deep", ENDS, 400, "/v2/models/words/infer", encoded({"inputs": [{**X, "datatype": "BYTES", "shape": [1000000]}]})),
    Case("a `Content-Encoding` that is neither gzip nor deflate", 501, 415, body=encoded({"inputs": [X]}), headers={"Content-Encoding": "br"}),
    Case("a body that is not packed as its `Content-Encoding` says", 200, 400, body=encoded({"inputs": [X]}), headers={"Content-Encoding": "gzip"}),
    Case("a tensor in a shared-memory region that Triton does not know", 404, 403, body=encoded({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": REGION}]})),
    Case("the status of shared-memory regions", 200, 403, "/v2/systemsharedmemory/status", method="GET"),
    Case("loading and unloading of models", 503, 403, "/v2/repository/models/echo/load", headers=ADMIN),
    Case("changes of the trace or log settings", 200, 403, "/v2/logging"),
    # The same statuses.
    Case("", 404, 404, "/v2/models/nobody/infer", encoded({"inputs": [X]})),
    Case("", 404, 404, "/v2/models/echo/versions/9/infer", encoded({"inputs": [X]})),
    Case("", 400, 400, body=encoded({"inputs": [{**X, "name": "nobody"}]})),
    Case("", 400, 400, body=encoded({"inputs": [{**X, "datatype": "INT32"}]})),
    Case("", 400, 400, "/v2/models/nobody/ready", b"", "GET"),
    Case("", 404, 404, "/v2/models/nobody", b"", "GET"),
    Case("", 405, 405, ECHO, b"", "GET"),
    Case("", 403, 403, "/v2/repository/index"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row or case.path}")
def test_a_status_is_triton_s_or_on_the_page(single_box: RunningBox, case: Case) -> None:
    (triton,) = single_box.pids("--http-port=")
    port = re.findall(r"--http-port=(\d+)", command_line(triton))[0]

    def ask(url: str) -> requests.Response:
        return requests.request(
            case.method, url + case.path, data=case.body, headers=case.headers, timeout=30
        )

    if case.triton != ENDS:
        assert ask(f"http://127.0.0.1:{port}").status_code == case.triton
    response = ask(single_box.url)
    assert response.status_code == case.box, response.text
    assert list(response.json())[:3] == ["error", "code", "request_id"]
    assert response.headers["Content-Type"] == "application/json"
    if case.row:
        triton_s = "the server ends" if case.triton == ENDS else str(case.triton)
        assert f"| {case.row} | {triton_s} | {case.box} |" in PAGE.read_text()
    else:
        assert case.triton == case.box
