"""The dashboard in a real browser: its tables, and what is painted in its charts."""

from __future__ import annotations

from typing import ClassVar

from selenium.webdriver.remote.webelement import WebElement

from tests.support.playground import Playground

#: Counts the pixels that have a colour: axes and grid, which are on the canvas too, are grey.
PAINTED = """
const canvas = arguments[0].querySelector("canvas");
if (!canvas) return 0;
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
const grey = (at) => Math.max(data[at], data[at + 1], data[at + 2]) - Math.min(data[at], data[at + 1], data[at + 2]) < 60;
let found = 0;
for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 99 && !grey(at)) found++;
return found;
"""
#: Pixels of a single point.
MIN_PIXELS = 10


class Dashboard(Playground):
    """One browser at the dashboard of one box."""

    TITLES: ClassVar[tuple[str, ...]] = (
        "Requests per second by model",
        "Requests per second by status",
        "Latency",
        "In flight and queue",
        "Where the time goes: stages",
        "Memory",
    )

    def open_dashboard(self) -> None:
        """Open it anew, and wait for the first numbers."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/dashboard")
        self.wait(lambda: self.all("#processes-table tbody tr"))

    def row(self, table: str, name: str) -> list[str]:
        """The cells of the row that ``name`` begins, read at one moment; empty cells where there is none."""
        rows: list[list[str]] = self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(row => [...row.cells].map(cell => cell.innerText))",
            f"#{table}-table tbody tr",
        )
        return next((row for row in rows if row[0] == name), [""] * 10)

    def figure(self, title: str) -> WebElement:
        return next(each for each in self.all("#charts figure") if title in each.text)

    def plot(self, title: str) -> WebElement:
        return self.figure(title).find_element("css selector", ".plot")

    def has_values(self, title: str) -> bool:
        """Whether there is a line or at least a point in the chart."""
        return bool(self.browser.execute_script(PAINTED, self.figure(title)) > MIN_PIXELS)

    def legend(self, title: str) -> dict[str, str]:
        """The values of a chart's lines, by their names."""
        return dict(
            self.browser.execute_script(
                "return [...arguments[0].querySelectorAll('.legend li')].map("
                "item => [item.querySelector('span').innerText, item.querySelector('b').innerText])",
                self.figure(title),
            )
        )
