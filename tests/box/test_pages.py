"""What people read of the box: its OpenAPI document, and the playground in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from sm.settings import HERE
from tests.box.running import RunningBox
from tests.browser import chromium

SENTENCE = {"text": "The world has [MASK] people."}


@pytest.fixture(scope="module")
def document(box: RunningBox) -> dict[str, Any]:
    return dict(requests.get(f"{box.url}/openapi.json", timeout=5).json())


def schema(document: dict[str, Any], name: str) -> Any:
    """A schema of the document, with the others beside it to refer to."""
    return OAS31Validator({"$ref": f"#/components/schemas/{name}", **document})


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, box: RunningBox) -> webdriver.Chrome:
    browser.get(box.url)
    WebDriverWait(browser, 20).until(lambda shown: shown.find_elements(By.CSS_SELECTOR, "#model option"))
    return browser


def answer(page: webdriver.Chrome) -> Any:
    """What the page shows once it has asked."""
    page.find_element(By.ID, "send").click()
    WebDriverWait(page, 30).until(lambda shown: shown.find_element(By.ID, "answer").is_displayed())
    return json.loads(page.find_element(By.ID, "answer").text)


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
        refused = box.invoke("bert_base", payload)
        assert refused.status_code == 422
        schema(document, "Error").validate(refused.json())


def test_every_route_of_the_document_is_one_of_the_box(document: dict[str, Any], box: RunningBox) -> None:
    for path, operations in document["paths"].items():
        if "get" in operations:
            address = path.format(name="resnet", model="resnet", version="1")
            # A WebSocket wants to be one.
            wanted = 200 if "200" in operations["get"]["responses"] else 400
            assert requests.get(f"{box.url}{address}", timeout=10).status_code == wanted, path


def test_the_page_may_load_nothing_from_elsewhere(box: RunningBox) -> None:
    shown = requests.get(box.url, timeout=5)
    assert shown.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert "http" not in shown.text.replace("<!doctype html>", "")


def test_a_sentence_is_filled_in_the_browser(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "model")).select_by_visible_text("bert_base")
    shown = answer(page)
    assert shown["modelname"] == "bert_base"
    assert len(shown["result"]) == 5
    assert page.find_element(By.ID, "time").text.startswith("200 in")


def test_boxes_are_drawn_on_a_picture_in_the_browser(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "model")).select_by_visible_text("yolov5")
    picture = HERE / "clients" / "yolov5" / "sample" / "chelsea.jpg"
    page.find_element(By.ID, "file").send_keys(str(picture))
    Select(page.find_element(By.CSS_SELECTOR, "[data-key=format]")).select_by_visible_text("detections")
    assert answer(page)["result"][0]["label"] == "cat"
    WebDriverWait(page, 10).until(lambda shown: shown.find_element(By.ID, "picture").is_displayed())
    assert page.execute_script("return document.getElementById('picture').width") == 451
    said = page.get_log("browser")  # type: ignore[no-untyped-call]
    assert [line for line in said if line["level"] == "SEVERE" and "favicon" not in line["message"]] == []


def test_a_mistake_is_shown_as_the_box_says_it(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "model")).select_by_visible_text("bert_base")
    field = page.find_element(By.ID, "payload")
    field.clear()
    field.send_keys('{"text": "no mask"}')
    assert "[MASK]" in answer(page)["error"]
