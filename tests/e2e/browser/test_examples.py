"""The playground with the example clients: the first sample of each leads to the result that the client describes."""

from __future__ import annotations

import pytest
from selenium import webdriver

from tests.support.boxes import RunningBox
from tests.support.playground import DESKTOP, PHONE, Playground, Screen

pytestmark = pytest.mark.exhaustive

#: An element of each client's result.
RESULTS = {
    "efficientnet_lite": ".bars .bar",
    "bert_encode": "td",
    "detect_segment": "canvas.picture",
    "t5_translate": ".text-result",
}


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop-light", "phone-dark"])
@pytest.mark.parametrize("model", RESULTS)
def test_a_sample_leads_to_a_result(
    browser: webdriver.Chrome, examples_box: RunningBox, model: str, screen: Screen
) -> None:
    page = Playground(browser, examples_box.url)
    page.show_on(screen)
    page.open(model)
    page.run_sample()
    assert page.text("#time").startswith("200 in")
    page.wait(lambda: page.find(f"#view-result {RESULTS[model]}"))
    assert page.serious_violations() == []
    assert page.overflow_pixels() == 0
