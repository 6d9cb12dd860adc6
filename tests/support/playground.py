"""The playground in a real browser: what a person does, and what they see."""

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

from sm.cache import Cache
from sm.settings import Settings
from sm.tools.build.fetch import Fetcher
from sm.tools.build.package_registries import Registries
from sm.tools.build.package_sources import Source
from sm.tools.progress import Progress

#: Seconds: a model's first answer on a busy machine.
ANSWER_TIMEOUT_S = 60
#: Checks a page against WCAG; only the tests use it.
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
    """What is emulated: CSS pixels, and the colours that the person prefers."""

    width: int
    height: int
    scheme: Scheme

    @property
    def is_phone(self) -> bool:
        return self.width < 500


DESKTOP, PHONE = Screen(1280, 900, "light"), Screen(360, 780, "dark")
SCREENS = (DESKTOP, Screen(1280, 900, "dark"), PHONE, Screen(360, 780, "light"))
#: Puts a picture of the box into the clipboard, as a person does who copies one.
COPY = """
const done = arguments[arguments.length - 1];
fetch(arguments[0]).then(answer => answer.blob())
  .then(blob => navigator.clipboard.write([new ClipboardItem({ [blob.type]: blob })]))
  .then(() => done(""), error => done(String(error)));
"""


@lru_cache(maxsize=1)
def axe() -> str:
    """The script of axe-core, fetched once into the cache."""
    settings = Settings.read({})
    cache = Cache(settings.cache)
    progress = Progress(sys.stderr)
    package = Fetcher(cache, Registries(cache, progress, os.environ), progress).fetch(
        AXE, "the browser tests"
    )
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


class Playground:
    """One browser at one box."""

    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser, self.url = browser, url

    def show_on(self, screen: Screen) -> None:
        """Emulate a screen from now on."""
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
        """Open the page anew, and choose a model."""
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
        """What can be seen of an element; empty where there is none."""
        found = self.find(selector)
        return found.text if found else ""

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, ANSWER_TIMEOUT_S, 0.05).until(lambda _: condition())

    def sample(self, number: int = 0) -> None:
        """Click a sample, and wait for its answer."""
        self.wait(lambda: len(self.all("#samples .tile")) > number)
        self.all("#samples .tile")[number].click()
        self.answered()

    def run(self) -> None:
        self.click("#send")
        self.answered()

    def answered(self) -> str:
        """The line with status and time, once it is there."""
        return str(self.wait(lambda: self.text("#time")))

    def field(self, label: str) -> WebElement:
        """The control that a label names."""
        for each in self.all("#form label"):
            if each.text.removesuffix(" *") == label and (control := each.get_attribute("for")):
                return self.browser.find_element(By.ID, control)
        raise AssertionError(f"no field {label!r}")

    def fill(self, label: str, value: str) -> None:
        control = self.field(label)
        control.clear()
        control.send_keys(value)

    def drop(self, file: Path, zone: WebElement) -> None:
        """Drag a file over a place of the page, and let it go there."""
        rectangle = zone.rect
        place = {
            "x": rectangle["x"] + rectangle["width"] / 2,
            "y": rectangle["y"] + rectangle["height"] / 2,
            "data": {"items": [], "files": [str(file)], "dragOperationsMask": 1},
        }
        for kind in ("dragEnter", "dragOver", "drop"):
            self.browser.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **place})

    def copy_picture(self, address: str) -> None:
        """Put a picture of the box into the clipboard."""
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        self.browser.execute_cdp_cmd(
            "Browser.grantPermissions", {"origin": self.url, "permissions": permissions}
        )
        failure = self.browser.execute_async_script(COPY, address)
        assert not failure, failure

    def shown_json(self) -> Any:
        return json.loads(self.browser.execute_script("return document.getElementById('answer').textContent"))

    def view(self, name: str) -> None:
        self.click(f"#tab-{name}")

    def serious_findings(self) -> list[str]:
        """What axe finds that keeps people out."""
        # Half a megabyte: once for each page is enough.
        if not self.browser.execute_script("return 'axe' in window"):
            self.browser.execute_script(axe())
        found = self.browser.execute_async_script(RUN_AXE)
        return [f"{rule}: {html}" for impact, rule, html in found if impact in SERIOUS]

    def complaints(self) -> list[str]:
        """What the browser's console has of errors: refused requests, policy, exceptions."""
        log = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in log if line["level"] == "SEVERE"]

    def overflow(self) -> int:
        """Pixels that the page is wider than the screen."""
        return int(
            self.browser.execute_script(
                "return Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)"
            )
        )

    def picture(self, path: Path) -> None:
        """Save what is on the whole page."""
        height = self.browser.execute_script("return document.body.scrollHeight")
        width = self.browser.execute_script("return innerWidth")
        scheme = self.browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
        self.show_on(Screen(width, height, "dark" if scheme else "light"))
        self.browser.save_screenshot(str(path))
