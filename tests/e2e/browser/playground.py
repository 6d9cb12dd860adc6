"""Operate the playground in a real browser, and read what it shows."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from sm.commands.progress import Progress
from sm.repository.cache import Cache
from sm.settings import Settings
from trireme_tools.prepare.packages import Fetcher, Source

ANSWER_TIMEOUT_S = 60  # for a model's first response on a busy machine
#: axe-core, which checks a page against WCAG. Only the tests use it.
AXE = Source(
    kind="npm",
    name="axe-core",
    version="4.14.1",
    sha256="e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
    size=708_405,
    licence="MPL-2.0",
)
SERIOUS = {"serious", "critical"}
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run({ resultTypes: ["violations"] }).then(
  found => done(found.violations.map(each => [each.impact, each.id, each.nodes[0].html.slice(0, 200)])),
  error => done([["critical", "axe", String(error)]]));
"""
Scheme = Literal["light", "dark"]


@dataclass(frozen=True)
class Screen:
    """The emulated screen: its size in CSS pixels, and the preferred colour scheme."""

    width: int
    height: int
    scheme: Scheme

    @property
    def is_phone(self) -> bool:
        return self.width < 500


DESKTOP, PHONE = Screen(1280, 900, "light"), Screen(360, 780, "dark")
SCREENS = (DESKTOP, Screen(1280, 900, "dark"), PHONE, Screen(360, 780, "light"))


@lru_cache(maxsize=1)
def fetch_axe() -> str:
    """Return the script of axe-core, which is fetched once into the cache."""
    settings = Settings.read({})
    cache = Cache(settings.cache)
    progress = Progress(sys.stderr)
    package = Fetcher(cache, progress, os.environ).fetch(AXE, "the browser tests")
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


class Playground:
    """A browser that shows the playground of one box."""

    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser, self.url = browser, url

    def show_on(self, screen: Screen) -> None:
        """Emulate this screen from now on."""
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": screen.width,
                "height": screen.height,
                "deviceScaleFactor": 1,
                "mobile": screen.is_phone,
            },
        )
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": screen.scheme}]},
        )

    def open(self, model: str) -> None:
        """Open the playground in a fresh page, and choose a model."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/")
        self.wait(lambda: self.find(f"[data-model='{model}']"))
        self.click(f"[data-model='{model}']")
        self.wait(lambda: self.all("#payload .field") or self.all("#payload fieldset"))

    def click(self, selector: str) -> None:
        self.wait(lambda: self.find(selector)).click()

    def find(self, selector: str) -> WebElement | None:
        found = self.all(selector)
        return found[0] if found else None

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the visible text of an element; empty if there is none."""
        found = self.find(selector)
        return found.text if found else ""

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, ANSWER_TIMEOUT_S, 0.05).until(lambda _: condition())

    def run_sample(self, number: int = 0) -> None:
        """Click a sample, and wait for its response."""
        self.wait(lambda: len(self.all("#samples .tile")) > number)
        self.all("#samples .tile")[number].click()
        self.wait_for_answer()

    def run(self) -> None:
        self.click("#send")
        self.wait_for_answer()

    def wait_for_answer(self) -> str:
        """Wait for the response, and return the line with its status and time."""
        return str(self.wait(lambda: self.text("#time")))

    def field(self, label: str) -> WebElement:
        """Return the form control with this label."""
        for each in self.all("#form label"):
            if each.text.removesuffix(" *") == label and (control := each.get_attribute("for")):
                return self.browser.find_element(By.ID, control)
        raise AssertionError(f"no field {label!r}")

    def fill(self, label: str, value: str) -> None:
        control = self.field(label)
        control.clear()
        control.send_keys(value)

    def drop(self, file: Path, zone: WebElement) -> None:
        """Drag a file to an element of the page, and drop it there."""
        rectangle = zone.rect
        place = {
            "x": rectangle["x"] + rectangle["width"] / 2,
            "y": rectangle["y"] + rectangle["height"] / 2,
            "data": {"items": [], "files": [str(file)], "dragOperationsMask": 1},
        }
        for kind in ("dragEnter", "dragOver", "drop"):
            self.browser.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **place})

    def shown_json(self) -> Any:
        return json.loads(self.browser.execute_script("return document.getElementById('answer').textContent"))

    def open_tab(self, name: str) -> None:
        self.click(f"#tab-{name}")

    def serious_violations(self) -> list[str]:
        """Return the serious and critical violations of WCAG that axe finds."""
        # The script has half a megabyte, so it is loaded once per page.
        if not self.browser.execute_script("return 'axe' in window"):
            self.browser.execute_script(fetch_axe())
        found = self.browser.execute_async_script(RUN_AXE)
        return [f"{rule}: {html}" for impact, rule, html in found if impact in SERIOUS]

    def console_errors(self) -> list[str]:
        """Return the errors in the browser's console: failed requests, policy violations, exceptions."""
        log = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in log if line["level"] == "SEVERE"]

    def download(self, selector: str, file: Path) -> None:
        """Click what downloads a file, and wait until it is there and complete.

        Chromium first writes files of other names beside it.
        """
        behaviour = {"behavior": "allow", "downloadPath": str(file.parent)}
        self.browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        self.click(selector)
        self.wait(lambda: list(file.parent.iterdir()) == [file] and file.stat().st_size)

    def colours(self, selector: str) -> tuple[str, str]:
        """Return the colour of an element's text and of its background."""
        found = self.find(selector)
        assert found is not None, selector
        return found.value_of_css_property("color"), found.value_of_css_property("background-color")

    def overflow_pixels(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        return int(
            self.browser.execute_script(
                "return Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)"
            )
        )

    def save_screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        height = self.browser.execute_script("return document.body.scrollHeight")
        width = self.browser.execute_script("return innerWidth")
        scheme = self.browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
        self.show_on(Screen(width, height, "dark" if scheme else "light"))
        self.browser.save_screenshot(str(path))
