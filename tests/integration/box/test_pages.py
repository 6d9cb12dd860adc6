"""The OpenAPI document of the box and the files of its pages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import requests
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from sm.settings import HERE
from tests.support.boxes import RunningBox

TEXT_PAYLOAD = {"text": "The world has [MASK] people."}


@pytest.fixture(scope="module")
def openapi(box: RunningBox) -> dict[str, Any]:
    return dict(requests.get(f"{box.url}/openapi.json", timeout=5).json())


def schema_validator(openapi: dict[str, Any], name: str) -> Any:
    """A validator for one schema of the document, which may refer to the others."""
    return OAS31Validator({"$ref": f"#/components/schemas/{name}", **openapi})


def test_the_openapi_document_is_valid(openapi: dict[str, Any]) -> None:
    validate(openapi)
    assert openapi["openapi"].startswith("3.1")


def test_every_client_is_in_the_openapi_document(openapi: dict[str, Any], box: RunningBox) -> None:
    names = {row["name"] for row in requests.get(f"{box.url}/models", timeout=5).json()["models"]}
    assert {"resnet", "yolov5", "bert_base"} <= names
    assert all(f"{name}.Request" in openapi["components"]["schemas"] for name in names)


@pytest.mark.parametrize("name", ["resnet", "yolov5", "bert_base"])
def test_samples_and_their_answers_match_the_openapi_schemas(
    openapi: dict[str, Any], box: RunningBox, name: str
) -> None:
    sample = HERE / "clients" / name / "sample"
    payload = json.loads((sample / "payload.json").read_bytes())
    request = {"modelname": name, "payload": payload}
    schema_validator(openapi, f"{name}.Request").validate(request)
    schema_validator(openapi, f"{name}.Answer").validate(box.invoke(name, payload).json())


def test_the_box_refuses_what_its_openapi_schema_refuses(openapi: dict[str, Any], box: RunningBox) -> None:
    for payload in ({"text": 7}, {}, {**TEXT_PAYLOAD, "more": 1}):
        assert not schema_validator(openapi, "bert_base.Request").is_valid(
            {"modelname": "bert_base", "payload": payload}
        )
        response = box.invoke("bert_base", payload)
        assert response.status_code == 422
        schema_validator(openapi, "Error").validate(response.json())


def test_every_get_route_of_the_openapi_document_exists(openapi: dict[str, Any], box: RunningBox) -> None:
    for path, operations in openapi["paths"].items():
        if "get" in operations:
            name = {"/page/{name}": "main.js", "/samples/{client}/{name}": "coffee.jpg"}.get(path, "resnet")
            url_path = path.format(name=name, client="resnet", model="resnet", version="1")
            # A WebSocket route answers a plain GET with 400.
            expected_status = 200 if "200" in operations["get"]["responses"] else 400
            assert requests.get(f"{box.url}{url_path}", timeout=10).status_code == expected_status, path


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
