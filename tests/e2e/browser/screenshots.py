"""``python -m tests.e2e.browser.screenshots``: take the documentation's pictures of the playground and the dashboard."""

from __future__ import annotations

import base64
import itertools
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from selenium.webdriver import Chrome

from sm.settings import HERE, Settings
from tests.e2e.browser.dashboard import Dashboard
from tests.e2e.browser.playground import DESKTOP, PHONE, Playground, Screen
from tests.support.boxes import RunningBox, running_box
from tests.support.browser import chromium
from trireme_tools.prepare.demo import prepare

FOLDER = HERE / "docs" / "pictures"


@dataclass(frozen=True)
class Screenshot:
    """A picture of the playground after a client's first sample. ``view`` is the open tab."""

    file: str
    model: str
    screen: Screen
    open_tab: str = "result"


SCREENSHOTS = (
    Screenshot("playground.jpg", "yolov5", DESKTOP),
    Screenshot("playground-time.jpg", "resnet", DESKTOP, "time"),
    Screenshot("playground-phone.jpg", "bert_base", PHONE),
)

DASHBOARD_SCREENSHOTS = {"dashboard.jpg": Screen(1280, 1180, "light"), "dashboard-phone.jpg": PHONE}
TRAFFIC_S = 75.0  # seconds of requests before the dashboard's picture, for lines in its charts


def take_screenshot(page: Playground, screenshot: Screenshot) -> None:
    """Run a sample in the playground, and save the picture."""
    page.show_on(screenshot.screen)
    page.open(screenshot.model)
    # Run it twice: the second response comes from a warm model.
    page.run_sample()
    page.run_sample()
    page.wait(lambda: page.all("#view-result canvas, #view-result .bar"))
    page.open_tab(screenshot.open_tab)
    save(page, screenshot.file)


def save(page: Playground, file: str) -> None:
    taken = page.browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "jpeg", "quality": 82})
    (FOLDER / file).write_bytes(base64.b64decode(taken["data"]))


def send_traffic(box: RunningBox, seconds: float) -> None:
    """Send the clients' samples for a while, and sometimes an invalid payload."""
    payloads = {
        name: json.loads((HERE / "clients" / name / "sample" / "payload.json").read_bytes())
        for name in ("bert_base", "resnet", "yolov5")
    }
    end = time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() > end:
            return
        for name, payload in payloads.items():
            box.invoke(name, {} if number % 9 == 8 and name == "bert_base" else payload)


def take_dashboard(box: RunningBox, browser: Chrome) -> None:
    send_traffic(box, TRAFFIC_S)
    page = Dashboard(browser, box.url)
    for file, screen in DASHBOARD_SCREENSHOTS.items():
        page.show_on(screen)
        page.open_dashboard()
        page.wait(lambda: page.has_values("Memory"))
        save(page, file)


def main() -> None:
    settings = Settings.read({})
    prepare(settings)
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_box(Path(folder), settings.cache / "repository" / "cpu", clients=()) as box,
        chromium() as browser,
    ):
        for shot in SCREENSHOTS:
            take_screenshot(Playground(browser, box.url), shot)
        take_dashboard(box, browser)


if __name__ == "__main__":
    main()
