"""Operate the box's pages in a real browser, and read what they show."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from sm.settings import Settings
from trireme_tools.cache import Cache
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.progress import Progress

ANSWER_TIMEOUT_S = 60  # for a model's first response on a busy machine
#: axe-core, which checks a page against WCAG. Only the tests use it.
AXE_SHA256 = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"
AXE = PackageFile("npm", "axe-core", "4.14.1", AXE_SHA256, 708_405, "MPL-2.0")
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run({ resultTypes: ["violations"] }).then(
  found => done(found.violations.map(each => [each.impact, each.id, each.nodes[0].html.slice(0, 200)])),
  error => done([["critical", "axe", String(error)]]));
"""


@dataclass(frozen=True)
class Screen:
    """The emulated screen: its size in CSS pixels, and the preferred colour scheme, ``light`` or ``dark``."""

    width: int
    height: int
    scheme: str


DESKTOP, PHONE = Screen(1280, 900, "light"), Screen(360, 780, "dark")
SCREENS = (DESKTOP, Screen(1280, 900, "dark"), PHONE, Screen(360, 780, "light"))


@lru_cache(maxsize=1)
def fetch_axe() -> str:
    """Return the script of axe-core, which is fetched once into the cache."""
    fetcher = Fetcher(Cache(Settings.read({}).cache), Progress(sys.stderr), os.environ)
    with tarfile.open(fetcher.fetch(AXE, "the browser tests")) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


class Playground:
    """A browser that shows the playground of one box."""

    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser, self.url = browser, url
        self.show_on(DESKTOP)
        self.console_errors()  # of the page before

    def show_on(self, screen: Screen) -> None:
        """Emulate this screen from now on."""
        size = {"width": screen.width, "height": screen.height, "mobile": screen.width < 500}
        scheme = {"name": "prefers-color-scheme", "value": screen.scheme}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"deviceScaleFactor": 1, **size})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, model: str) -> None:
        """Open the playground in a fresh page, and choose a model."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/")
        self.click(f"[data-model='{model}']")
        self.wait(lambda: self.all("#payload .field, #payload fieldset"))

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

    def script(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, ANSWER_TIMEOUT_S, 0.05).until(lambda _: condition())

    def run_sample(self, number: int = 0) -> None:
        """Click a sample, and wait for its response."""
        self.wait(lambda: len(self.all("#samples .tile")) > number)
        self.all("#samples .tile")[number].click()
        self.wait_for_answer()

    def run(self) -> str:
        """Send the form, and return the line with the response's status and time."""
        self.click("#send")
        return self.wait_for_answer()

    def wait_for_answer(self) -> str:
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

    def drop(self, file: Path) -> None:
        """Drag a file to the payload's field, and drop it there."""
        zone = self.wait(lambda: self.find("#payload .drop")).rect
        place = {"x": zone["x"] + zone["width"] / 2, "y": zone["y"] + zone["height"] / 2}
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            event = {"type": kind, "data": data, **place}
            self.browser.execute_cdp_cmd("Input.dispatchDragEvent", event)

    def shown_json(self) -> Any:
        return json.loads(self.script("return document.getElementById('answer').textContent"))

    def open_tab(self, name: str) -> None:
        self.click(f"#tab-{name}")

    def serious_violations(self) -> list[str]:
        """Return the serious and critical violations of WCAG that axe finds."""
        # The script has half a megabyte, so it is loaded once per page.
        if not self.script("return 'axe' in window"):
            self.script(fetch_axe())
        found = self.browser.execute_async_script(RUN_AXE)
        return [f"{rule}: {html}" for impact, rule, html in found if impact in ("serious", "critical")]

    def console_errors(self) -> list[str]:
        """Return the errors in the browser's console: failed requests, policy violations, exceptions."""
        log = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in log if line["level"] == "SEVERE"]

    def loads_from_elsewhere(self) -> list[str]:
        """Return the addresses outside of the box from which the page has loaded something."""
        names = self.script("return performance.getEntriesByType('resource').map(it => it.name)")
        assert names
        return [name for name in names if not name.startswith(self.url)]

    def download(self, selector: str, file: Path) -> None:
        """Click what downloads a file, and wait until only it is there: Chromium first writes others beside it."""
        behaviour = {"behavior": "allow", "downloadPath": str(file.parent)}
        self.browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        self.click(selector)
        self.wait(lambda: list(file.parent.iterdir()) == [file] and file.stat().st_size)

    def overflow_pixels(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        page = "document.documentElement"
        return int(self.script(f"return Math.max(0, {page}.scrollWidth - {page}.clientWidth)"))
