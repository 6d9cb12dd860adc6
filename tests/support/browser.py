"""A real browser: Debian's Chromium, which looks nothing up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver

QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync")
ALONE = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-quic")


@contextmanager
def chromium(*arguments: str) -> Iterator[webdriver.Chrome]:
    """The browser, started with ``arguments`` besides the usual ones."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("there is no chromium: on Debian apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in (*QUIET, *ALONE, *arguments):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as started:
        yield started
