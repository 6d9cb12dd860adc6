"""The playground in a real browser: forms, samples, files, results and code, on a desktop and on a phone."""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

from sm.run_state import Box
from sm.settings import HERE
from tests.e2e.browser.playground import PHONE, SCREENS, Playground
from tests.support.boxes import RunningBox

#: An element of the result of each client's first sample.
RESULTS = {
    "resnet": ".bars .bar",
    "yolov5": "canvas.picture",
    "bert_base": "mark",
    "orders": "td",
    "telling": ".text-result",
}
#: The client that is checked on every screen and in every view. The pages of the others differ only in the result.
CHECKED_ON_ALL_SCREENS = "yolov5"
#: JavaScript that counts the painted pixels in some columns of a canvas.
COLUMN_HEIGHTS = """
const [canvas, columns] = arguments, context = canvas.getContext("2d");
return columns.map(x => context.getImageData(x, 0, 1, canvas.height).data.filter((value, at) => at % 4 === 3 && value > 0).length);
"""
CHELSEA = str(HERE / "clients/yolov5/sample/chelsea.jpg")


@pytest.mark.parametrize("model", RESULTS)
def test_a_sample_leads_to_a_result_that_everybody_can_use(page: Playground, model: str) -> None:
    page.open(model)
    page.run_sample()
    assert page.text("#time").startswith("200 ")
    page.wait(lambda: page.find(f"#view-result {RESULTS[model]}"))
    is_checked = model == CHECKED_ON_ALL_SCREENS
    for screen in SCREENS if is_checked else SCREENS[::2]:
        page.show_on(screen)
        assert page.serious_violations() == []
        assert page.overflow_pixels() == 0
    for tab in ("json", "time", "code"):
        page.open_tab(tab)
        assert not is_checked or page.serious_violations() == []
        assert page.overflow_pixels() == 0
    assert page.console_errors() == []


def test_boxes_are_drawn_two_clicks_after_opening_the_page(page: Playground) -> None:
    page.show_on(PHONE)
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        page.open("yolov5")
        # The second click takes a photo or chooses a file, which is sent at once.
        camera = page.wait(lambda: page.find("#payload [capture]"))
        offered = [camera.get_attribute(name) for name in ("type", "accept", "capture")]
        assert offered == ["file", "image/*", "environment"]
        for control in (camera, page.field("image")):
            control.send_keys(CHELSEA)
            page.wait_for_answer()
            page.wait(lambda: page.text(".object-list") == "cat\n0.56")
    finally:
        page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    assert page.script("const it = document.querySelector('canvas'); return [it.width, it.height]") == [
        451,
        300,
    ]
    # The result is on the screen: nobody has to scroll to it.
    top = page.script("return document.getElementById('output').getBoundingClientRect().top")
    assert top < PHONE.height / 2


def test_the_score_slider_filters_without_a_new_request(page: Playground, page_box: RunningBox) -> None:
    page.open("yolov5")
    page.run_sample()
    page.wait(lambda: page.find(".object-list li"))
    objects_before = len(page.all(".object-list li"))
    requests_before = page_box.metric("trireme_invocations_total", model="yolov5")
    page.script(
        "const slider = document.querySelector('#view-result input[type=range]');"
        "slider.value = 0.83; slider.dispatchEvent(new Event('input'))"
    )
    assert 0 < len(page.all(".object-list li")) < objects_before
    assert page_box.metric("trireme_invocations_total", model="yolov5") == requests_before


def test_a_picture_in_the_answer_is_shown(page: Playground) -> None:
    page.open("yolov5")
    Select(page.field("format")).select_by_visible_text("image")
    page.run_sample()
    assert page.wait(lambda: page.find("#view-result img.picture"))
    assert page.find("#save-picture")


def test_a_recording_in_the_answer_is_played_drawn_and_downloaded(page: Playground, tmp_path: Path) -> None:
    page.open("answers_file")
    Select(page.field("kind")).select_by_visible_text("audio/wav")
    assert page.run().startswith("200 ")
    player = page.wait(lambda: page.find("#view-result audio"))
    seconds = page.wait(lambda: page.script("return arguments[0].duration", player))
    assert seconds == pytest.approx(1.0)
    drawn = page.wait(lambda: page.find("canvas.waveform"))
    # The tone becomes louder, so its picture becomes higher.
    heights = page.script(COLUMN_HEIGHTS, drawn, [60, 320, 600])
    assert 0 < heights[0] < heights[1] < heights[2]
    assert page.serious_violations() == []
    page.download("#save-answer", tmp_path / "answer.wav")
    with wave.open(str(tmp_path / "answer.wav")) as recording:
        assert recording.getnframes() == recording.getframerate()
    page.open_tab("code")
    assert "--output 'answer.wav'" in page.text("#code")
    assert page.console_errors() == []


#: Clients, their field for a file, and the content type of the request by the file's name. ``sm new-client files
#: --kind bytes`` writes ``files``. The page sends a file of JSON to the first two as base64: as a raw body it would
#: be read as a request.
UNKNOWN = {"unknown.qqq": "application/octet-stream", "numbers.json": "application/json"}
FILE_CLIENTS = {
    "files": ("content", {"leaflet.pdf": "application/octet-stream", **UNKNOWN}),
    "weigh": ("content", {"leaflet.pdf": "application/pdf", **UNKNOWN}),
    "whole": ("file", {"rows.csv": "text/csv", **UNKNOWN}),
}
CONTENT = b'{"payload": "not a request", "inputs": []}'


@pytest.mark.parametrize("client", FILE_CLIENTS)
def test_a_file_of_any_type_is_sent_from_the_page(page: Playground, tmp_path: Path, client: str) -> None:
    label, content_types = FILE_CLIENTS[client]
    page.open(client)
    # A list of types would grey out other files in the system's own window.
    assert page.field(label).get_attribute("accept") in (None, "")
    for number, (name, content_type) in enumerate(content_types.items()):
        file = tmp_path / name
        file.write_bytes(CONTENT)
        page.open_tab("result")
        page.field(label).send_keys(str(file)) if number else page.drop(file)
        assert page.wait_for_answer().startswith("200 ")
        result = page.shown_json()["result"]
        assert result["bytes"] == len(CONTENT)
        assert result.get("content_type") in (None, content_type)
        page.open_tab("code")
        assert f"'Content-Type: {content_type}'" in page.text("#code")
    assert page.console_errors() == []


def test_a_teams_client_has_a_form_with_every_kind_of_field(page: Playground) -> None:
    page.open("orders")
    page.run_sample()
    assert [row.text.split() for row in page.all("tbody tr")][:2] == [["pen", "3", "6"], ["ink", "1", "2"]]
    assert page.field("rounded").get_attribute("role") == "switch"
    page.fill("discount", "0.5")
    page.click("[aria-label='lines 2'] .quiet")
    page.run()
    page.wait(lambda: len(page.all("#view-result tbody tr")) == 1)
    assert page.text("#view-result tbody tr").split() == ["pen", "3", "3"]


def test_records_are_sent_as_a_list_also_with_the_keyboard_alone(page: Playground) -> None:
    page.open("bert_base")
    page.fill("text", "Paris is the [MASK] of France.")
    next(button for button in page.all("button.quiet") if button.text == "Add a record").click()
    page.all("#payload textarea")[1].send_keys("no blank here", Keys.CONTROL, Keys.ENTER)
    page.wait_for_answer()
    page.wait(lambda: len(page.all("#view-result h3")) == 2)
    assert page.text("#view-result mark") == "capital"
    assert page.text("#view-result > .error")
    page.script("document.getElementById('tab-result').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.browser.switch_to.active_element.get_attribute("id") == "tab-json"


def test_an_error_is_shown_beside_its_field(page: Playground) -> None:
    page.open("bert_base")
    page.fill("text", "no blank here")
    assert page.run().startswith("422 ")
    field = page.field("text")
    assert field.get_attribute("aria-invalid") == "true"
    descriptions = [page.text(f"#{part}") for part in str(field.get_attribute("aria-describedby")).split()]
    assert any("[MASK]" in text for text in descriptions)
    assert page.browser.switch_to.active_element == field
    page.fill("text", "now a [MASK] here")
    page.run()
    assert page.field("text").get_attribute("aria-invalid") is None


def test_a_stream_is_shown_while_it_arrives(page: Playground, tmp_path: Path) -> None:
    permission = tmp_path / "permission"
    page.open("telling")
    page.fill("text", f"one two {permission} five")
    page.click("#send")
    page.wait(lambda: page.text(".streaming").startswith("one"))
    assert "five" not in page.text(".streaming")
    permission.touch()
    page.wait_for_answer()
    assert page.text("#view-result .text-result").strip() == f"one two {permission} five"


def test_the_time_view_shows_the_stages_and_the_last_requests(page: Playground) -> None:
    page.open("resnet")
    page.run_sample()
    page.run_sample(1)
    page.open_tab("time")
    stages = {row.text for row in page.all(".waterfall .name")}
    assert {"waited for a worker", "preprocess", "infer (Triton)", "postprocess"} <= stages
    page.wait(lambda: len(page.all("#history tbody tr")) == 2)


def test_a_model_without_a_client_has_a_form_for_its_tensors(page: Playground) -> None:
    page.open("doubles")
    page.fill("x", "[[1, 2], [3, 4]]")
    page.run()
    page.wait(lambda: page.find("#view-result td"))
    assert page.text("#view-result tbody tr").split(maxsplit=3) == ["y", "FP32", "[2,2]", "[2,4,6,8]"]


@pytest.fixture
def without_echo(page_box: RunningBox) -> Iterator[Callable[[], None]]:
    """Unload a client's model; call what this yields to load it again."""
    state = Box.load(page_box.run_folder())

    def control(verb: str) -> None:
        url = f"http://127.0.0.1:{state.http_port}/v2/repository/models/echo/{verb}"
        assert requests.post(url, headers=dict(state.http_keys), json={}, timeout=60).ok

    control("unload")
    yield lambda: control("load")
    control("load")


def test_a_model_that_is_not_ready_is_red_and_cannot_be_run_until_it_is(
    page: Playground, without_echo: Callable[[], None]
) -> None:
    page.open("late")
    for _ in range(2):  # the second time on a page that is loaded anew
        page.wait(lambda: page.find("[data-model=late].bad"))
        page.wait(lambda: "unloaded" in page.text("#summary"))
        assert page.find("#send:disabled")
        page.browser.find_element("tag name", "body").send_keys(Keys.CONTROL, Keys.ENTER)
        assert page.text("#time") == "" and page.serious_violations() == []
        page.browser.refresh()
    # Such a box is not ready, and the page asks.
    assert [error for error in page.console_errors() if "/ping" not in error] == []
    without_echo()
    page.wait(lambda: page.find("[data-model=late]:not(.bad)"))
    page.fill("text", "abc")
    page.run()
    assert page.shown_json()["result"] == "ABC"


def test_the_api_document_is_shown_by_a_viewer(page: Playground) -> None:
    page.browser.get(f"{page.url}/docs")
    page.wait(lambda: page.find("[id$=-invoke]"))
    assert page.text(".opblock-summary-path") == "/invocations"
    groups = [group.get_attribute("data-tag") for group in page.all(".opblock-tag")]
    assert groups == ["Inference", "Models", "SageMaker", "Triton", "Operations", "Pages", "OpenAI"]
    title = page.wait(lambda: page.find(".info .title"))
    colours = []
    for screen, selector in zip(SCREENS, ("html:not(.dark-mode)", "html.dark-mode"), strict=False):
        page.show_on(screen)
        page.wait(lambda selector=selector: page.find(selector))  # type: ignore[misc]
        colours.append(title.value_of_css_property("color"))
    assert colours[0] != colours[1]
    assert page.console_errors() == []
    assert page.loads_from_elsewhere() == []
