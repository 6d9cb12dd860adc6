"""What people read of the box: its OpenAPI document, and the files of its pages."""

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

SENTENCE = {"text": "The world has [MASK] people."}


@pytest.fixture(scope="module")
def document(box: RunningBox) -> dict[str, Any]:
    return dict(requests.get(f"{box.url}/openapi.json", timeout=5).json())


def schema(document: dict[str, Any], name: str) -> Any:
    """A schema of the document, with the others beside it to refer to."""
    return OAS31Validator({"$ref": f"#/components/schemas/{name}", **document})


def test_the_document_is_openapi(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_every_client_is_in_the_document(document: dict[str, Any], box: RunningBox) -> None:
    named = {row["name"] for row in requests.get(f"{box.url}/models", timeout=5).json()["models"]}
    assert {"resnet", "yolov5", "bert_base"} <= named
    assert all(f"{name}.Request" in document["components"]["schemas"] for name in named)


@pytest.mark.parametrize("name", ["resnet", "yolov5", "bert_base"])
def test_samples_and_their_answers_are_what_the_document_says(
    document: dict[str, Any], box: RunningBox, name: str
) -> None:
    sample = HERE / "clients" / name / "sample"
    payload = json.loads((sample / "payload.json").read_bytes())
    asked = {"modelname": name, "payload": payload}
    schema(document, f"{name}.Request").validate(asked)
    schema(document, f"{name}.Answer").validate(box.invoke(name, payload).json())


def test_what_the_document_refuses_the_box_refuses(document: dict[str, Any], box: RunningBox) -> None:
    for payload in ({"text": 7}, {}, {**SENTENCE, "more": 1}):
        assert not schema(document, "bert_base.Request").is_valid(
            {"modelname": "bert_base", "payload": payload}
        )
        response = box.invoke("bert_base", payload)
        assert response.status_code == 422
        schema(document, "Error").validate(response.json())


def test_every_route_of_the_document_is_one_of_the_box(document: dict[str, Any], box: RunningBox) -> None:
    for path, operations in document["paths"].items():
        if "get" in operations:
            name = {"/page/{name}": "main.js", "/samples/{client}/{name}": "coffee.jpg"}.get(path, "resnet")
            address = path.format(name=name, client="resnet", model="resnet", version="1")
            # A WebSocket wants to be one.
            wanted = 200 if "200" in operations["get"]["responses"] else 400
            assert requests.get(f"{box.url}{address}", timeout=10).status_code == wanted, path


def test_the_pages_may_load_nothing_from_elsewhere(box: RunningBox) -> None:
    for path in ("/", "/docs"):
        shown = requests.get(f"{box.url}{path}", timeout=5)
        assert shown.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = shown.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "http" not in policy
        assert "http" not in shown.text


def test_the_playground_is_under_300_kilobytes(box: RunningBox) -> None:
    page = requests.get(box.url, timeout=5).text
    names, total = set(re.findall(r'page/([\w.]+)"', page)), len(page)
    while names:
        text = requests.get(f"{box.url}/page/{names.pop()}", timeout=5).text
        total += len(text.encode())
        names |= set(re.findall(r'from "\./([\w.]+)"', text)) if total < 10**6 else set()
    assert 30_000 < total < 300_000


def test_a_file_of_the_page_is_sent_once(box: RunningBox) -> None:
    first = requests.get(f"{box.url}/page/main.js", timeout=5)
    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    again = requests.get(
        f"{box.url}/page/main.js", headers={"If-None-Match": first.headers["ETag"]}, timeout=5
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_viewer_is_sent_as_the_caller_takes_it(box: RunningBox, encoding: str) -> None:
    got = requests.get(f"{box.url}/page/swagger-ui.css", headers={"Accept-Encoding": encoding}, timeout=5)
    assert got.headers.get("Content-Encoding", "identity") == encoding
    assert ".swagger-ui" in got.text


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
def test_no_other_file_is_served(box: RunningBox, path: str) -> None:
    response = requests.get(f"{box.url}{path}", timeout=5)
    assert (response.status_code, response.json()["code"]) == (404, "not_found"), response.text


def test_a_sample_is_served_as_a_file_and_not_as_a_page(box: RunningBox) -> None:
    sample = requests.get(f"{box.url}/samples/resnet/coffee.jpg", timeout=5)
    assert sample.content == (HERE / "clients/resnet/sample/coffee.jpg").read_bytes()
    assert sample.headers["Content-Type"] == "image/jpeg"
    assert "sandbox" in sample.headers["Content-Security-Policy"]


def test_who_asks_is_told_where_the_time_went_and_nobody_else(box: RunningBox) -> None:
    picture = (HERE / "clients/resnet/sample/coffee.jpg").read_bytes()
    told = box.send(picture, "image/jpeg", params={"modelname": "resnet"}, headers={"X-Trireme-Timing": "1"})
    entries = re.findall(r"([a-z]+);dur=([0-9.]+)", told.headers["Server-Timing"])
    names = [name for name, _ in entries]
    assert names == ["queue", "decode", "preprocess", "infer", "postprocess", "total"]
    spent = {name: float(value) for name, value in entries}
    assert sum(spent[name] for name in names[1:5]) <= spent["total"]
    plain = box.send(picture, "image/jpeg", params={"modelname": "resnet"})
    assert "Server-Timing" not in plain.headers
