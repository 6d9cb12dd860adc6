"""The documentation builds without a warning, asks no other host for anything, and draws its diagrams in a browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from sm.settings import HERE
from tests.support.browser import chromium


@pytest.mark.exhaustive
def test_the_site_loads_nothing_from_another_host_and_draws_its_diagrams_as_a_file(tmp_path: Path) -> None:
    # As make docs does, into a folder of the test's own.
    subprocess.run(["make", ".venv/docs/.done"], cwd=HERE, check=True, timeout=240)
    strict = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "--conf-dir", "docs/_site"]
    command = [str(HERE / ".venv/docs/bin/sphinx-build"), *strict, ".", str(tmp_path)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    elsewhere = re.compile(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="((?:https?:)?//[^"]+)')
    for page in pages:
        assert elsewhere.findall(page.read_text()) == [], page.name
    with chromium("--host-resolver-rules=MAP * ~NOTFOUND") as browser:
        browser.get((tmp_path / "docs/inside/architecture.html").as_uri())
        diagram = "document.querySelector('pre.mermaid svg style')?.textContent.match(/fill:(#\\w+)/)[1]"
        light = WebDriverWait(browser, 30).until(lambda page: page.execute_script(f"return {diagram}"))
        browser.execute_script("document.body.dataset.theme = 'dark'")
        WebDriverWait(browser, 30).until(
            lambda page: page.execute_script(f"return {diagram}") not in (None, light)
        )
        log = browser.get_log("browser")  # type: ignore[no-untyped-call]
        assert [line for line in log if line["level"] == "SEVERE"] == []
