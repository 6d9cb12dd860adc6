"""The example sentence_search: its model through ``sm new-model``, and its page in a real browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from werkzeug.utils import send_from_directory

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.browser import chromium
from tests.support.http_server import serving
from tests.support.task_models import new_model

EXAMPLE = HERE / "examples" / "sentence_search"


@pytest.mark.exhaustive
def test_the_page_finds_the_sentences_about_a_question(boxes: Boxes, tmp_path: Path) -> None:
    subprocess.run((sys.executable, EXAMPLE / "make_model.py", tmp_path), check=True)
    new_model("sentences", tmp_path, tmp_path / "checkpoint")
    shutil.copy(EXAMPLE / "index.html", tmp_path)
    with (
        # Another server than the box has the page.
        serving(lambda request: send_from_directory(tmp_path, request.path[1:], request.environ)) as page,
        boxes.own(tmp_path / "model", TRIREME_CORS_ORIGINS=page) as box,
        chromium() as browser,
    ):

        def text(element: str) -> str:
            return browser.find_element(By.ID, element).text

        browser.get(f"{page}/index.html?box={box.url}")
        wait_until(lambda: "sentences" in text("state"))
        browser.find_element(By.ID, "query").send_keys("what happens when a caller disconnects")
        # Ten are shown for the whole question, the best one first.
        wait_until(lambda: "disconnects" in text("found").partition("\n")[0])
        wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "#found li")) == 10)
        state = text("state")
        box.stop()
        browser.find_element(By.ID, "query").send_keys("?")
        wait_until(lambda: text("state") != state)
