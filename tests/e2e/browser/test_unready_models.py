"""The playground shows models that are not ready and clients that broke, in red, and does not run them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from selenium import webdriver
from selenium.webdriver import Keys

from sm.run_state import Box
from tests.e2e.browser.playground import DESKTOP, Playground
from tests.support.box_fixture import Boxes
from tests.support.boxes import CLIENT_FOLDERS, RunningBox

LATE = """
from sm.client import Client, TextPayload


class Late(Client):
    payload, models = TextPayload, ("echo",)

    def inference(self, payload):
        return payload.text.upper()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The team's clients."""
    folder = tmp_path_factory.mktemp("unready")
    shutil.copytree(CLIENT_FOLDERS / "page" / "orders", folder / "clients" / "orders")
    (folder / "clients" / "late.py").write_text(LATE)
    return folder


@pytest.fixture(scope="module")
def box(boxes: Boxes, folder: Path) -> Iterator[RunningBox]:
    explicit: Any = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--model-control-mode=explicit --load-model=echo"}
    with boxes.own(("echo",), (folder / "clients",), arguments="--reload", **explicit) as started:
        yield started


@pytest.fixture
def team_page(browser: webdriver.Chrome, box: RunningBox) -> Playground:
    shown = Playground(browser, box.url)
    shown.show_on(DESKTOP)
    shown.console_errors()
    return shown


def check_cannot_be_run(page: Playground, name: str, reason: str) -> None:
    """The model is red with its reason, on the open page and on a page that is loaded anew."""
    for is_last in (False, True):
        page.wait(lambda: page.find(f"[data-model={name}].bad"))
        page.wait(lambda: reason in page.text("#summary"))
        send = page.find("#send")
        assert send is not None
        assert not send.is_enabled()
        page.browser.find_element("tag name", "body").send_keys(Keys.CONTROL, Keys.ENTER)
        assert page.text("#time") == ""
        assert page.serious_violations() == []
        if not is_last:
            page.browser.refresh()
    assert page.console_errors() == []


@pytest.mark.exhaustive
def test_a_broken_client_cannot_be_run_until_it_is_mended(team_page: Playground, folder: Path) -> None:
    source = folder / "clients" / "orders" / "client.py"
    working = source.read_text()
    team_page.open("orders")
    source.write_text(f"{working}\nimport nowhere_to_be_found\n")
    check_cannot_be_run(team_page, "orders", "nowhere_to_be_found")
    # Nobody meant to serve the built-in clients without their models.
    assert not team_page.find("[data-model=resnet]")
    source.write_text(working)
    team_page.wait(lambda: team_page.find("[data-model=orders]:not(.bad)"))
    team_page.wait(lambda: team_page.all("#payload fieldset, #payload .field"))
    team_page.run()
    assert team_page.text("#time").startswith("200 in")


def test_a_model_that_is_not_ready_cannot_be_run_until_it_is(team_page: Playground, box: RunningBox) -> None:
    state = Box.load(box.run_folder())
    repository = f"http://127.0.0.1:{state.http_port}/v2/repository/models/echo"
    team_page.open("late")
    assert requests.post(f"{repository}/unload", headers=dict(state.http_keys), json={}, timeout=60).ok
    check_cannot_be_run(team_page, "late", "unloaded")
    assert requests.post(f"{repository}/load", headers=dict(state.http_keys), json={}, timeout=60).ok
    team_page.wait(lambda: team_page.find("[data-model=late]:not(.bad)"))
    team_page.fill("text", "abc")
    team_page.run()
    assert team_page.shown_json()["result"] == "ABC"
