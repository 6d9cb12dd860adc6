"""The dashboard in a real browser: its tables, and what is painted in its charts."""

from __future__ import annotations

from selenium.webdriver.remote.webelement import WebElement

from tests.e2e.browser.playground import Playground

#: JavaScript that counts a chart's coloured pixels, and by how many pixels the lowest of them is above its bottom.
#: The axes and the grid are grey.
COLOURED = """
const canvas = arguments[0].querySelector("canvas"), plot = arguments[0].querySelector(".u-over");
if (!canvas) return [0, 0];
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
const grey = (at) => Math.max(data[at], data[at + 1], data[at + 2]) - Math.min(data[at], data[at + 1], data[at + 2]) < 60;
let found = 0, lowest = 0;
for (let at = 0; at < data.length; at += 4)
  if (data[at + 3] > 99 && !grey(at)) { found++; lowest = Math.floor(at / 4 / canvas.width); }
return [found, plot.offsetTop + plot.offsetHeight - lowest / devicePixelRatio];
"""
#: A chart with a single point has more coloured pixels.
MIN_COLOURED_PIXELS = 10
TITLES = (
    "Requests per second by model",
    "Requests per second by status",
    "Latency",
    "In flight and queue",
    "Where the time goes: stages",
    "Memory",
)


class Dashboard(Playground):
    """One browser at the dashboard of one box."""

    def open_dashboard(self) -> None:
        """Open the dashboard in a fresh page, and wait for the first numbers."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/dashboard")
        self.wait(lambda: self.all("#processes-table tbody tr"))
        self.wait(lambda: self.has_values("Memory"))

    def row(self, table: str, name: str) -> list[str]:
        """Return the cells of the row whose first cell is ``name``, or empty cells if there is none."""
        code = "return [...document.querySelectorAll(arguments[0])].map(row => [...row.cells].map(cell => cell.innerText))"
        rows: list[list[str]] = self.script(code, f"#{table}-table tbody tr")
        return next((row for row in rows if row[0] == name), [""] * 10)

    def figure(self, title: str) -> WebElement:
        return next(each for each in self.all("#charts figure") if title in each.text)

    def plot(self, title: str) -> WebElement:
        return self.figure(title).find_element("css selector", ".plot")

    def has_values(self, title: str) -> bool:
        """Return true if the chart has a line or at least a point."""
        return bool(self.script(COLOURED, self.figure(title))[0] > MIN_COLOURED_PIXELS)

    def lowest_line(self, title: str) -> float:
        """Return how far a chart's lowest line is above its bottom, in pixels."""
        return float(self.script(COLOURED, self.figure(title))[1])

    def legend(self, title: str) -> list[str]:
        """Return the names of a chart's lines."""
        # At once, as the page draws its charts anew.
        code = (
            "const figure = [...document.querySelectorAll('#charts figure')].find(each => each.innerText.includes(arguments[0]));"
            "return [...figure.querySelectorAll('.legend li span')].map(item => item.innerText)"
        )
        return list(self.script(code, title))
