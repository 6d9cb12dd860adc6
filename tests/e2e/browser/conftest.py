"""One box and one browser for all tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.e2e.browser.playground import Playground
from tests.support.box_fixture import Boxes, boxes
from tests.support.boxes import RunningBox
from tests.support.browser import chromium
from tests.support.demo_box import demo
from tests.support.tritons import MODELS, Model
from trireme_tools.scaffold.writing import NewClient

__all__ = ["boxes", "demo"]

DOUBLES = Model('return {"y": 2 * tensor(request, "x")}', {"x": ("FP32", [2, 2])}, {"y": ("FP32", [2, 2])})
#: A client that is not ready while its model is unloaded.
LATE = """
from sm.client import Client, TextPayload


class Late(Client):
    payload, models = TextPayload, ("echo",)

    def inference(self, payload):
        return payload.text.upper()
"""


@pytest.fixture(scope="session")
def page_box(boxes: Boxes, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with the demo's models, models without a client, a team's clients, and a client from ``sm new-client``."""
    folder = tmp_path_factory.mktemp("page")
    repository = folder / "models"
    repository.mkdir()
    for path in demo.iterdir():
        (repository / path.name).symlink_to(path)
    DOUBLES.write(repository / "doubles")
    MODELS["echo"].write(repository / "echo")
    NewClient("files", "bytes").write(folder / "team")
    (repository / "files").symlink_to(folder / "team" / "model" / "files")
    clients = ("page", folder / "team" / "clients", {"late.py": LATE})
    explicit: Any = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--model-control-mode=explicit --load-model=*"}
    with boxes.own(repository, clients, **explicit) as started:
        yield started


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    # With this cache every page begins a process of its own, which costs 0.2 s a test.
    with chromium("--disable-features=BackForwardCache") as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, page_box: RunningBox) -> Playground:
    return Playground(browser, page_box.url)
