"""The dashboard in a real browser: charts and tables of a box that works, and of one that has faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

from tests.support.boxes import RunningBox, running_box
from tests.support.dashboard import Dashboard
from tests.support.model_archives import ArchiveFolder, multiplying_model
from tests.support.multi_model_endpoint import Endpoint
from tests.support.playground import DESKTOP, SCREENS


@pytest.fixture(scope="module")
def busy_box(page_box: RunningBox) -> RunningBox:
    """The box after some requests, one of them refused."""
    for text in ("Paris is the [MASK] of France.", "A [MASK] day.", "no blank here"):
        page_box.invoke("bert_base", {"text": text})
    doubled = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    assert requests.post(f"{page_box.url}/v2/models/doubles/infer", json=doubled, timeout=30).ok
    return page_box


@pytest.fixture
def dashboard(browser: webdriver.Chrome, busy_box: RunningBox) -> Dashboard:
    page = Dashboard(browser, busy_box.url)
    page.complaints()
    return page


def test_the_requests_are_in_the_charts_and_in_the_tables(dashboard: Dashboard) -> None:
    dashboard.show_on(DESKTOP)
    dashboard.open_dashboard()
    dashboard.wait(lambda: dashboard.row("models", "bert_base")[7] == "1")  # refused
    assert dashboard.row("models", "bert_base")[1:3] == ["1", "ready"]
    assert dashboard.row("models", "bert_base")[3] != "0/s"
    assert dashboard.row("models", "doubles")[2] == "ready"
    assert dashboard.row("processes", "triton")[1] == "ready"
    for title in dashboard.TITLES:
        dashboard.wait(partial(dashboard.has_values, title))
    assert "bert_base" in dashboard.legend("Requests per second by model")
    assert {"2xx", "4xx"} <= set(dashboard.legend("Requests per second by status"))
    assert "infer" in dashboard.legend("Where the time goes: stages")
    assert dashboard.text("#state") == "ready"
    loaded = dashboard.browser.execute_script(
        "return performance.getEntriesByType('resource').map(it => it.name)"
    )
    assert loaded
    assert all(name.startswith(dashboard.url) for name in loaded)


def test_everybody_can_read_it(dashboard: Dashboard) -> None:
    dashboard.open_dashboard()
    dashboard.wait(lambda: dashboard.has_values("Memory"))
    for screen in SCREENS:
        dashboard.show_on(screen)
        assert dashboard.serious_findings() == []
        assert dashboard.overflow() == 0
        # The charts are painted anew, in the colours of the scheme.
        dashboard.wait(lambda: dashboard.has_values("Memory"))
    assert dashboard.complaints() == []


def test_it_can_be_used_with_the_keyboard_alone(dashboard: Dashboard) -> None:
    dashboard.show_on(DESKTOP)
    dashboard.open_dashboard()
    dashboard.wait(lambda: dashboard.has_values("Memory"))
    plot = dashboard.plot("Memory")
    before = str(plot.get_attribute("aria-label"))
    assert "triton" in before
    dashboard.browser.execute_script("arguments[0].focus()", plot)
    dashboard.browser.switch_to.active_element.send_keys(Keys.HOME)
    dashboard.wait(lambda: plot.get_attribute("aria-label") != before)
    # Another model's past.
    choice = Select(dashboard.browser.find_element("id", "model"))
    choice.select_by_visible_text("doubles")
    assert list(dashboard.legend("Requests per second by model")) == ["doubles"]


@pytest.fixture
def faulty_box(tmp_path: Path) -> Iterator[Endpoint]:
    platform = ArchiveFolder(tmp_path / "models")
    with running_box(
        tmp_path,
        None,
        clients=(),
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        yield Endpoint(box, platform)


@pytest.mark.exhaustive
def test_faults_show_and_do_not_break_the_page(browser: webdriver.Chrome, faulty_box: Endpoint) -> None:
    box = faulty_box.box
    for name in ("staying", "leaving"):
        faulty_box.loaded(name, faulty_box.platform.flat(name, multiplying_model()))
        faulty_box.y(name)
    page = Dashboard(browser, box.url)
    page.show_on(DESKTOP)
    page.open_dashboard()
    page.wait(lambda: page.row("models", "leaving")[2:3] == ["ready"])
    faulty_box.unload("leaving")
    page.wait(lambda: "the model leaving was unloaded" in page.text("#events"))
    assert page.row("models", "leaving")[2:3] == ["not served"]
    stalled = box.workers()[0]
    os.kill(stalled, signal.SIGSTOP)
    page.wait(lambda: page.row("processes", "data")[1] == "ready, 1 stopped")
    os.kill(stalled, signal.SIGKILL)
    page.wait(lambda: "worker of data ended" in page.text("#events"))
    os.kill(box.child("triton")["pid"], signal.SIGKILL)
    page.wait(lambda: "triton was started again" in page.text("#events"))
    page.wait(lambda: page.row("models", "staying")[2:3] == ["ready"] and page.text("#state") == "ready")
    assert page.row("processes", "triton")[4] == "1"
    assert page.serious_findings() == []
    # Of a box that is gone the charts stay.
    box.stop()
    page.wait(lambda: "Seen last at" in page.text("#state"))
    assert page.has_values("Memory")
