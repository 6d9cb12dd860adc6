"""The OpenAPI document of the box and the files of its pages."""

from __future__ import annotations

import re

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import RunningBox


def test_the_pages_may_load_nothing_from_elsewhere(box: RunningBox) -> None:
    for path in ("/", "/docs"):
        response = requests.get(f"{box.url}{path}", timeout=5)
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert "camera=()" in response.headers["Permissions-Policy"]
        assert "http" not in response.text


def test_the_playground_is_under_300_kilobytes(box: RunningBox) -> None:
    page = requests.get(box.url, timeout=5).text
    names, total = set(re.findall(r'page/([\w.]+)"', page)), len(page)
    while names:
        text = requests.get(f"{box.url}/page/{names.pop()}", timeout=5).text
        total += len(text.encode())
        names |= set(re.findall(r'from "\./([\w.]+)"', text)) if total < 10**6 else set()
    assert 30_000 < total < 300_000


def test_an_unchanged_page_file_is_a_304(box: RunningBox) -> None:
    first = requests.get(f"{box.url}/page/main.js", timeout=5)
    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    second = requests.get(
        f"{box.url}/page/main.js", headers={"If-None-Match": first.headers["ETag"]}, timeout=5
    )
    assert (second.status_code, second.content) == (304, b"")


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_api_viewer_is_compressed_if_the_caller_accepts_it(box: RunningBox, encoding: str) -> None:
    response = requests.get(
        f"{box.url}/page/swagger-ui.css", headers={"Accept-Encoding": encoding}, timeout=5
    )
    assert response.headers.get("Content-Encoding", "identity") == encoding
    assert ".swagger-ui" in response.text


@pytest.mark.parametrize(
    "path",
    [
        "/page/none.js",
        "/page/swagger-ui.LICENSE.txt",
        "/page/..%2fapp.py",
        "/samples/resnet/golden.json",
        "/samples/resnet/..%2fclient.py",
        "/samples/none/payload.json",
    ],
)
def test_other_files_are_404s(box: RunningBox, path: str) -> None:
    response = requests.get(f"{box.url}{path}", timeout=5)
    assert (response.status_code, response.json()["code"]) == (404, "not_found"), response.text


def test_a_sample_is_served_sandboxed_with_its_own_type(box: RunningBox) -> None:
    sample = requests.get(f"{box.url}/samples/resnet/coffee.jpg", timeout=5)
    assert sample.content == (HERE / "clients/resnet/sample/coffee.jpg").read_bytes()
    assert sample.headers["Content-Type"] == "image/jpeg"
    assert "sandbox" in sample.headers["Content-Security-Policy"]


def test_server_timing_is_sent_only_if_the_caller_asks(box: RunningBox) -> None:
    picture = (HERE / "clients/resnet/sample/coffee.jpg").read_bytes()
    timed_response = box.send(
        picture, "image/jpeg", params={"modelname": "resnet"}, headers={"X-Trireme-Timing": "1"}
    )
    entries = re.findall(r"([a-z]+);dur=([0-9.]+)", timed_response.headers["Server-Timing"])
    names = [name for name, _ in entries]
    assert names == ["queue", "decode", "preprocess", "infer", "postprocess", "total"]
    milliseconds = {name: float(value) for name, value in entries}
    assert sum(milliseconds[name] for name in names[1:5]) <= milliseconds["total"]
    plain_response = box.send(picture, "image/jpeg", params={"modelname": "resnet"})
    assert "Server-Timing" not in plain_response.headers
