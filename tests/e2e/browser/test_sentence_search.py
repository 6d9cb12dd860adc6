"""The example sentence_search: its model through ``sm new-model``, and its page in a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.browser import chromium
from tests.support.task_models import new_model

EXAMPLE = HERE / "examples" / "sentence_search"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sentences, the model and the page, as the example's commands write them."""
    folder = tmp_path_factory.mktemp("search")
    subprocess.run((sys.executable, EXAMPLE / "make_model.py", folder), check=True)
    new_model("sentences", folder, folder / "checkpoint")
    shutil.copy(EXAMPLE / "index.html", folder)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[str]:
    """The address of the page, which another server serves than the box."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.exhaustive
def test_the_page_finds_the_sentences_about_a_question(boxes: Boxes, folder: Path, page: str) -> None:
    assert len(json.loads((folder / "sentences.json").read_text())) > 200
    with boxes.own(folder / "model", TRIREME_CORS_ORIGINS=page) as box, chromium() as browser:
        browser.get(f"{page}/?box={box.url}")
        wait_until(lambda: "sentences" in browser.find_element(By.ID, "state").text)
        browser.find_element(By.ID, "query").send_keys("what happens when a caller disconnects")
        best = wait_until(lambda: complete(browser))
        assert "disconnects" in best
        box.stop()
        browser.find_element(By.ID, "query").send_keys("?")
        wait_until(lambda: "does not answer" in browser.find_element(By.ID, "state").text)


def complete(browser: webdriver.Chrome) -> str:
    """Return the best sentence once ten are shown for the whole question."""
    items = [item.text for item in browser.find_elements(By.CSS_SELECTOR, "#found li")]
    return items[0] if len(items) == 10 and "disconnect" in items[0] else ""
