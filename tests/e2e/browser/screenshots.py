"""``python -m tests.e2e.browser.screenshots``: take the documentation's pictures of the playground and the dashboard."""

from __future__ import annotations

import base64
import itertools
import json
import tempfile
import time
from pathlib import Path

from selenium.webdriver import Chrome

from sm.settings import HERE, Settings
from tests.e2e.browser.dashboard import Dashboard
from tests.e2e.browser.playground import DESKTOP, PHONE, Playground, Screen
from tests.support.boxes import RunningBox, running_box
from tests.support.browser import chromium
from trireme_tools.prepare.demo import prepare

FOLDER = HERE / "docs" / "pictures"


#: Pictures of the playground after a client's first sample: model, screen and open tab.
SCREENSHOTS = {
    "playground.jpg": ("yolov5", DESKTOP, "result"),
    "playground-time.jpg": ("resnet", DESKTOP, "time"),
    "playground-phone.jpg": ("bert_base", PHONE, "result"),
}
DASHBOARD_SCREENSHOTS = {"dashboard.jpg": Screen(1280, 1180, "light"), "dashboard-phone.jpg": PHONE}
TRAFFIC_S = 75.0  # seconds of requests before the dashboard's picture, for lines in its charts


def take_playground(page: Playground) -> None:
    for file, (model, screen, tab) in SCREENSHOTS.items():
        page.show_on(screen)
        page.open(model)
        # Run it twice: the second response comes from a warm model.
        page.run_sample()
        page.run_sample()
        page.wait(lambda: page.all("#view-result canvas, #view-result .bar"))
        page.open_tab(tab)
        save(page, file)


#: JavaScript that returns where the dashboard's tables are in the page.
TABLES = """
const [first, last] = ["models", "events"].map(name => document.getElementById(`${name}-title`).closest("section"));
const top = first.getBoundingClientRect(), bottom = last.getBoundingClientRect().bottom;
return {x: 0, y: top.y + scrollY - 16, width: innerWidth, height: bottom - top.y + 32, scale: 1};
"""


def save(page: Playground, file: str, clip: str = "") -> None:
    """Save what the screen shows or, with ``clip``, the part of the page that this JavaScript returns."""
    options = {"format": "jpeg", "quality": 82}
    if clip:
        options |= {"clip": page.browser.execute_script(clip), "captureBeyondViewport": True}
    taken = page.browser.execute_cdp_cmd("Page.captureScreenshot", options)
    (FOLDER / file).write_bytes(base64.b64decode(taken["data"]))


def send_traffic(box: RunningBox, seconds: float) -> None:
    """Send the clients' samples for a while, and sometimes an invalid payload."""
    end = time.monotonic() + seconds
    for number in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        for name in ("bert_base", "resnet", "yolov5"):
            payload = json.loads((HERE / "clients" / name / "sample" / "payload.json").read_bytes())
            box.invoke(name, {} if number % 9 == 8 and name == "bert_base" else payload)


def take_dashboard(box: RunningBox, browser: Chrome) -> None:
    send_traffic(box, TRAFFIC_S)
    page = Dashboard(browser, box.url)
    for file, screen in DASHBOARD_SCREENSHOTS.items():
        page.show_on(screen)
        page.open_dashboard()
        save(page, file)
        if screen is not PHONE:
            save(page, "dashboard-tables.jpg", clip=TABLES)


def main() -> None:
    settings = Settings.read({})
    prepare(settings)
    FOLDER.mkdir(exist_ok=True)
    repository = settings.cache / "repository" / "cpu"
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        running_box(Path(folder), repository, clients=()) as box,
    ):
        take_playground(Playground(browser, box.url))
        take_dashboard(box, browser)


if __name__ == "__main__":
    main()
