"""The documentation builds without a warning, asks no other host for anything, and draws its diagrams in a browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sm.settings import HERE

pytestmark = pytest.mark.exhaustive

SITE = HERE / "docs" / "_site"


@pytest.fixture(scope="module")
def sphinx() -> str:
    """``sphinx-build``, installed by the Makefile if it is not there."""
    subprocess.run(["make", ".venv/docs/.done"], cwd=HERE, check=True, timeout=240)
    return str(HERE / ".venv/docs/bin/sphinx-build")


@pytest.fixture(scope="module")
def site(sphinx: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as ``make docs`` does."""
    out = tmp_path_factory.mktemp("site")
    done = build(sphinx, HERE, out)
    assert done.returncode == 0, done.stderr
    return out


def build(sphinx: str, source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    strict = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "--conf-dir", str(SITE)]
    command = [sphinx, *strict, *options, str(source), str(out)]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240)


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="((?:https?:)?//[^"]+)', page.read_text()
        )
        assert loaded == [], page.name


def test_a_browser_draws_the_diagrams_of_a_page_opened_as_a_file(site: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    from tests.support.browser import chromium

    with chromium("--host-resolver-rules=MAP * ~NOTFOUND") as browser:
        browser.get((site / "docs/inside/architecture.html").as_uri())
        count = "return document.querySelectorAll('pre.mermaid svg').length"
        WebDriverWait(browser, 30).until(lambda page: page.execute_script(count) == 1)
        colour = (
            "return document.querySelector('pre.mermaid svg style')?.textContent.match(/fill:(#\\w+)/)[1]"
        )
        light = browser.execute_script(colour)
        browser.execute_script("document.body.dataset.theme = 'dark'")
        WebDriverWait(browser, 30).until(lambda page: page.execute_script(colour) not in (None, light))
        log = browser.get_log("browser")  # type: ignore[no-untyped-call]
        assert [line for line in log if line["level"] == "SEVERE"] == []
