"""The OpenAPI document of the box and the files of its pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import RunningBox


def get(box: RunningBox, path: str, **headers: str) -> requests.Response:
    sent: dict[str, Any] = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(f"{box.url}{path}", headers=sent, timeout=5)


def test_the_pages_may_load_nothing_from_elsewhere(box: RunningBox) -> None:
    for path in ("/", "/docs"):
        response = get(box, path)
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = response.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= {*policy}
        assert "camera=()" in response.headers["Permissions-Policy"]
        assert "http" not in response.headers["Content-Security-Policy"] + response.text


def test_the_playground_is_under_300_kilobytes(box: RunningBox) -> None:
    page = get(box, "").text
    names, total = set(re.findall(r'page/([\w.]+)"', page)), len(page)
    while names:
        text = get(box, f"/page/{names.pop()}").text
        total += len(text.encode())
        names |= set(re.findall(r'from "\./([\w.]+)"', text)) if total < 10**6 else set()
    assert 30_000 < total < 300_000


def test_an_unchanged_page_file_is_a_304(box: RunningBox) -> None:
    first = get(box, "/page/main.js")
    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    second = get(box, "/page/main.js", If_None_Match=first.headers["ETag"])
    assert (second.status_code, second.content) == (304, b"")


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_api_viewer_is_compressed_if_the_caller_accepts_it(box: RunningBox, encoding: str) -> None:
    response = get(box, "/page/swagger-ui.css", Accept_Encoding=encoding)
    assert response.headers.get("Content-Encoding", "identity") == encoding


OTHER_FILES = """
/page/none.js /page/swagger-ui.LICENSE.txt /page/..%2fapp.py
/samples/resnet/golden.json /samples/resnet/..%2fclient.py /samples/none/payload.json
"""


@pytest.mark.parametrize("path", OTHER_FILES.split())
def test_other_files_are_404s(box: RunningBox, path: str) -> None:
    response = get(box, path)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_a_sample_is_served_sandboxed_with_its_own_type(box: RunningBox) -> None:
    sample = get(box, "/samples/resnet/coffee.jpg")
    assert sample.content == (HERE / "clients/resnet/sample/coffee.jpg").read_bytes()
    assert sample.headers["Content-Type"] == "image/jpeg"
    assert "sandbox" in sample.headers["Content-Security-Policy"]


def test_server_timing_is_sent_only_if_the_caller_asks(box: RunningBox, cat: bytes) -> None:
    timed, plain = (
        box.send(cat, "image/png", params={"modelname": "resnet"}, headers=headers)
        for headers in ({"X-Trireme-Timing": "1"}, {})
    )
    entries = re.findall(r"([a-z]+);dur=([0-9.]+)", timed.headers["Server-Timing"])
    milliseconds = {name: float(value) for name, value in entries}
    stages = ["decode", "preprocess", "infer", "postprocess"]
    assert [*milliseconds] == ["queue", *stages, "total"]
    assert sum(milliseconds[name] for name in stages) <= milliseconds["total"]
    assert "Server-Timing" not in plain.headers
