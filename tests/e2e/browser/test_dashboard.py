"""The dashboard in a real browser: charts and tables of a box that works, and of one with faults."""

from __future__ import annotations

import base64
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

from tests.e2e.browser.dashboard import TITLES, Dashboard
from tests.e2e.browser.playground import SCREENS
from tests.support.boxes import RunningBox, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint, running_endpoint

SLOW_REQUEST_S = 3.0
MIN_DISTANCE_PX = 4.0  # of a line from the chart's bottom; on a linear axis it would lie there


# For the session, like the browser: the box counts these requests while the browser starts.
@pytest.fixture(scope="session")
def busy_box(page_box: RunningBox) -> RunningBox:
    """The box after some requests, one of which fails."""
    for text in ("Paris is the [MASK] of France.", "A [MASK] day.", "no blank here"):
        page_box.invoke("bert_base", {"text": text})
    tensors = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    assert requests.post(f"{page_box.url}/v2/models/doubles/infer", json=tensors, timeout=30).ok
    for content in ("abcd", "abcdef"):
        encoded = base64.b64encode(content.encode()).decode()
        assert page_box.invoke("weigh", {"content": encoded}).status_code == 200
    return page_box


@pytest.fixture
def dashboard(busy_box: RunningBox, browser: webdriver.Chrome) -> Dashboard:
    return Dashboard(browser, busy_box.url)


def test_requests_are_in_the_charts_and_in_the_tables(dashboard: Dashboard) -> None:
    def failed_requests() -> int:
        box = requests.get(f"{dashboard.url}/dashboard/data", timeout=30).json()["box"]
        return int(box["last_minute"]["all"]["answers"].get("4xx", 0))

    # The page asks for new points every five seconds. It is opened when the point is there.
    wait_until(lambda: failed_requests() == 1, description="the point with the failed request")
    dashboard.open_dashboard()
    dashboard.wait(lambda: dashboard.row("requests", "bert_base")[5] == "1")
    assert dashboard.row("requests", "bert_base")[1] != "0/s"
    _, version, engine, source, size, used, state = dashboard.row("models", "bert_base")
    assert (version, engine, state) == ("1", "onnxruntime fp32", "ready")
    assert source.endswith("/models/bert_base") and size.endswith(" MB") and used.count(":") == 2
    assert dashboard.row("models", "doubles")[6] == dashboard.row("processes", "triton")[1] == "ready"
    own = ["file_bytes", "kind=text", "weigh", "histogram", "2", "2", "5"]
    dashboard.wait(lambda: dashboard.row("own", "file_bytes") == own)
    for title in TITLES:
        dashboard.wait(partial(dashboard.has_values, title))
    assert "bert_base" in dashboard.legend("Requests per second by model")
    assert {"2xx", "4xx"} <= {*dashboard.legend("Requests per second by status")}
    assert "infer" in dashboard.legend("Where the time goes: stages")
    assert dashboard.text("#state") == "ready"
    assert dashboard.loads_from_elsewhere() == []


def test_the_dashboard_is_readable_on_every_screen_and_works_with_the_keyboard(dashboard: Dashboard) -> None:
    dashboard.open_dashboard()
    for screen in SCREENS:
        dashboard.show_on(screen)
        assert dashboard.serious_violations() == []
        assert dashboard.overflow_pixels() == 0
        # The charts are painted anew, in the colours of the scheme.
        dashboard.wait(lambda: dashboard.has_values("Memory"))
    plot = dashboard.plot("Memory")
    last_values = str(plot.get_attribute("aria-label"))
    assert "triton" in last_values
    dashboard.script("arguments[0].focus()", plot)
    dashboard.browser.switch_to.active_element.send_keys(Keys.HOME)
    dashboard.wait(lambda: plot.get_attribute("aria-label") != last_values)
    Select(dashboard.browser.find_element("id", "model")).select_by_visible_text("doubles")
    assert dashboard.legend("Requests per second by model") == ["doubles"]
    assert dashboard.console_errors() == []


def test_one_slow_request_does_not_flatten_the_latency_chart(
    dashboard: Dashboard, busy_box: RunningBox, tmp_path: Path
) -> None:
    permission = tmp_path / "permission"
    threading.Timer(SLOW_REQUEST_S, permission.touch).start()
    assert busy_box.invoke("telling", {"text": f"one {permission} two"}).status_code == 200

    def has_outlier() -> bool:
        points = requests.get(f"{busy_box.url}/dashboard/data", timeout=30).json()["points"]
        times = [point["all"]["p50_ms"] for point in points if point["all"]["p50_ms"]]
        return len(times) > 1 and max(times) > 1000 * SLOW_REQUEST_S / 2

    wait_until(has_outlier, description="a point with the slow request")
    dashboard.open_dashboard()
    dashboard.wait(lambda: dashboard.has_values("Latency"))
    assert dashboard.lowest_line("Latency") > MIN_DISTANCE_PX


@pytest.fixture
def faulty_box(tmp_path: Path) -> Iterator[MultiModelEndpoint]:
    with running_endpoint(tmp_path, (), SAGEMAKER_MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint


@pytest.mark.exhaustive
def test_faults_are_shown_and_do_not_break_the_page(
    browser: webdriver.Chrome, faulty_box: MultiModelEndpoint
) -> None:
    box = faulty_box.box
    for name in ("staying", "leaving"):
        faulty_box.load_successfully(name, faulty_box.platform.write_flat(name, multiplying_model()))
        faulty_box.infer_y(name)
    page = Dashboard(browser, box.url)
    page.open_dashboard()
    page.wait(lambda: page.row("models", "leaving")[6:] == ["ready"])
    faulty_box.unload("leaving")
    page.wait(lambda: page.row("models", "leaving")[0] == "")
    # The dashed line of this event is at the chart too, and beside it says what happened.
    page.script("arguments[0].focus()", page.plot("Memory"))

    def moves_to_event() -> bool:
        page.browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
        return "leaving" in page.figure("Memory").text

    page.wait(moves_to_event)
    assert page.row("requests", "leaving")[0] == "leaving"
    stalled = box.workers()[0]
    os.kill(stalled, signal.SIGSTOP)
    page.wait(lambda: page.row("processes", "data")[1] == "ready, 1 stopped")
    os.kill(stalled, signal.SIGKILL)
    page.wait(lambda: "worker of data ended" in page.text("#events"))
    os.kill(box.child("triton")["pid"], signal.SIGKILL)
    page.wait(lambda: page.row("processes", "triton")[4] == "1")
    page.wait(lambda: page.row("models", "staying")[6:] == ["ready"] and page.text("#state") == "ready")
    assert page.serious_violations() == []
    # When the box is gone, the charts stay.
    box.stop()
    page.wait(lambda: "Seen last at" in page.text("#state"))
    assert page.has_values("Memory")
