"""The playground shows models that are not ready in red, and does not run them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from selenium import webdriver
from selenium.webdriver import Keys

from sm.run_state import Box
from tests.e2e.browser.playground import Playground
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox

LATE = """
from sm.client import Client, TextPayload


class Late(Client):
    payload, models = TextPayload, ("echo",)

    def inference(self, payload):
        return payload.text.upper()
"""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unready") / "clients"
    folder.mkdir()
    (folder / "late.py").write_text(LATE)
    return folder


@pytest.fixture(scope="module")
def box(boxes: Boxes, clients: Path) -> Iterator[RunningBox]:
    explicit: Any = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--model-control-mode=explicit --load-model=echo"}
    with boxes.own(("echo",), (clients,), arguments="--reload", **explicit) as started:
        yield started


@pytest.fixture
def team_page(browser: webdriver.Chrome, box: RunningBox) -> Playground:
    return Playground(browser, box.url)


def check_cannot_be_run(page: Playground, name: str, reason: str) -> None:
    """The model is red with its reason, on the open page and on a page that is loaded anew."""
    for is_new in (False, True):
        if is_new:
            page.browser.refresh()
        page.wait(lambda: page.find(f"[data-model={name}].bad"))
        page.wait(lambda: reason in page.text("#summary"))
        assert page.find("#send:disabled")
        page.browser.find_element("tag name", "body").send_keys(Keys.CONTROL, Keys.ENTER)
        assert page.text("#time") == ""
        assert page.serious_violations() == []
    assert page.console_errors() == []


def test_a_model_that_is_not_ready_cannot_be_run_until_it_is(team_page: Playground, box: RunningBox) -> None:
    state = Box.load(box.run_folder())

    def control(verb: str) -> None:
        url = f"http://127.0.0.1:{state.http_port}/v2/repository/models/echo/{verb}"
        assert requests.post(url, headers=dict(state.http_keys), json={}, timeout=60).ok

    team_page.open("late")
    control("unload")
    check_cannot_be_run(team_page, "late", "unloaded")
    control("load")
    team_page.wait(lambda: team_page.find("[data-model=late]:not(.bad)"))
    team_page.fill("text", "abc")
    team_page.run()
    assert team_page.shown_json()["result"] == "ABC"
