"""``python -m tests.e2e.browser.screenshots``: take the documentation's pictures of the playground and the dashboard."""

from __future__ import annotations

import base64
import itertools
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome

from sm.settings import HERE, Settings
from tests.e2e.browser.dashboard import Dashboard
from tests.e2e.browser.playground import DESKTOP, PHONE, Playground, Screen
from tests.support.aws import fake_aws
from tests.support.boxes import RunningBox, running_box
from tests.support.browser import chromium
from tests.support.s3 import CREDENTIALS, client
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
        if screen is not PHONE:
            save(page, "dashboard-tables.jpg", clip=TABLES)


def upload(repository: Path, url: str) -> None:
    """Put the models into the bucket ``models`` of an S3."""
    s3 = client(url)
    s3.create_bucket(Bucket="models")
    for file in filter(Path.is_file, repository.rglob("*/*")):
        if file.suffix != ".pyc":
            s3.upload_file(str(file), "models", f"demo/{file.relative_to(repository)}")


def main() -> None:
    settings = Settings.read({})
    prepare(settings)
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        fake_aws() as s3,
        chromium() as browser,
    ):
        upload(settings.cache / "repository" / "cpu", f"http://{s3}")
        variables: Any = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://{s3}",
            "TRIREME_CACHE": f"{folder}/cache",
        }
        with running_box(Path(folder), None, clients=(), arguments="s3://models/demo/", **variables) as box:
            for shot in SCREENSHOTS:
                take_screenshot(Playground(browser, box.url), shot)
            take_dashboard(box, browser)


if __name__ == "__main__":
    main()
