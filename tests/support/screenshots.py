"""``python -m tests.support.screenshots``: the pictures of the playground and the dashboard that the pages show."""

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
from sm.tools.build.prepare import prepare
from tests.support.boxes import RunningBox, running_box
from tests.support.browser import chromium
from tests.support.dashboard import Dashboard
from tests.support.playground import DESKTOP, PHONE, Playground, Screen

FOLDER = HERE / "docs" / "pictures"


@dataclass(frozen=True)
class Shot:
    """A picture of a client's first sample. ``view``: the tab that is open."""

    file: str
    model: str
    screen: Screen
    view: str = "result"


SHOTS = (
    Shot("playground.jpg", "yolov5", DESKTOP),
    Shot("playground-time.jpg", "resnet", DESKTOP, "time"),
    Shot("playground-phone.jpg", "bert_base", PHONE),
)

DASHBOARD_SHOTS = {"dashboard.jpg": Screen(1280, 1180, "light"), "dashboard-phone.jpg": PHONE}
#: Seconds of requests before the dashboard is taken: enough for lines in its charts.
TRAFFIC_S = 75.0


def take(page: Playground, shot: Shot) -> None:
    """Do what a person does, and save what they see."""
    page.show_on(shot.screen)
    page.open(shot.model)
    # The second answer is that of a model that is warm.
    page.sample()
    page.sample()
    page.wait(lambda: page.all("#view-result canvas, #view-result .bar"))
    page.view(shot.view)
    save(page, shot.file)


def save(page: Playground, file: str) -> None:
    taken = page.browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "jpeg", "quality": 82})
    (FOLDER / file).write_bytes(base64.b64decode(taken["data"]))


def ask(box: RunningBox, seconds: float) -> None:
    """Send the clients' samples for a while, and now and then what a client refuses."""
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
    ask(box, TRAFFIC_S)
    page = Dashboard(browser, box.url)
    for file, screen in DASHBOARD_SHOTS.items():
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
        for shot in SHOTS:
            take(Playground(browser, box.url), shot)
        take_dashboard(box, browser)


if __name__ == "__main__":
    main()
