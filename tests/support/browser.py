"""Start Debian's Chromium, without any network traffic of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync"),
    # No network traffic of its own.
    *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-quic"),
)


@contextmanager
def chromium(*arguments: str) -> Iterator[webdriver.Chrome]:
    """Run the browser with ``arguments`` besides the usual ones. The test is skipped without Chromium."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("there is no chromium: on Debian apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in (*FLAGS, *arguments):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as started:
        yield started
