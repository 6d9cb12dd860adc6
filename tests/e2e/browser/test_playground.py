"""The playground in a real browser: every client has a form, a sample and a result, on a desktop and on a phone."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.support.ui import Select

from sm.settings import HERE
from tests.support.boxes import RunningBox
from tests.support.playground import PHONE, SCREENS, Playground

#: What the result of each client's first sample looks like.
RESULTS = {
    "resnet": ".bars .bar",
    "yolov5": "canvas.picture",
    "bert_base": "mark",
    "orders": "td",
    "telling": ".text-result",
}
#: The client whose result is examined on every screen and in every view: those of the others differ in the result.
EVERY_SCREEN = "yolov5"
CHELSEA = HERE / "clients/yolov5/sample/chelsea.jpg"


@pytest.mark.parametrize("model", RESULTS)
def test_a_sample_leads_to_a_result_that_everybody_can_use(page: Playground, model: str) -> None:
    page.open(model)
    page.sample()
    assert page.text("#time").startswith("200 in")
    page.wait(lambda: page.find(f"#view-result {RESULTS[model]}"))
    found = []
    for screen in SCREENS if model == EVERY_SCREEN else SCREENS[::2]:
        page.show_on(screen)
        found += page.serious_findings()
        assert page.overflow() == 0
    for tab in ("json", "time", "code"):
        page.view(tab)
        found += page.serious_findings() if model == EVERY_SCREEN else []
        assert page.overflow() == 0
    assert found == []
    assert page.complaints() == []


def test_boxes_are_drawn_two_clicks_after_opening_the_page(page: Playground) -> None:
    page.show_on(PHONE)
    page.open("yolov5")
    # The second click: what the person chooses is sent at once.
    page.field("image").send_keys(str(CHELSEA))
    page.answered()
    page.wait(lambda: page.find("canvas.picture"))
    assert page.text(".object-list") == "cat\n0.56"
    size = page.browser.execute_script(
        "const it = document.querySelector('canvas'); return [it.width, it.height]"
    )
    assert size == [451, 300]
    # The result is on the screen, and not somewhere below.
    top = page.browser.execute_script("return document.getElementById('output').getBoundingClientRect().top")
    assert top < PHONE.height / 2


def test_a_picture_that_is_dropped_is_sent(page: Playground) -> None:
    page.open("yolov5")
    page.drop(CHELSEA, page.wait(lambda: page.find("#payload .drop")))
    page.answered()
    page.wait(lambda: page.find("canvas.picture"))
    assert page.text(".object-list") == "cat\n0.56"


def test_a_picture_that_is_pasted_is_sent(page: Playground) -> None:
    page.open("resnet")
    page.copy_picture("samples/resnet/cat.png")
    page.browser.find_element("tag name", "body").send_keys(Keys.CONTROL, "v")
    page.answered()
    assert page.text("#time").startswith("200 in")
    assert "cat" in page.wait(lambda: page.text("#view-result .bars .name"))


def test_the_score_filters_without_a_new_request(page: Playground, page_box: RunningBox) -> None:
    page.open("yolov5")
    page.sample()
    page.wait(lambda: page.find(".object-list li"))
    before, asked = len(page.all(".object-list li")), page_box.metric("trireme_invocations_total", model="yolov5")
    page.browser.execute_script(
        "const it = document.querySelector('#view-result input[type=range]');"
        "it.value = 0.83; it.dispatchEvent(new Event('input'))"
    )
    assert 0 < len(page.all(".object-list li")) < before
    assert page_box.metric("trireme_invocations_total", model="yolov5") == asked


def test_hovering_a_box_shows_its_score(page: Playground) -> None:
    page.open("yolov5")
    page.sample(1)
    canvas = page.wait(lambda: page.find("canvas.picture"))
    ActionChains(page.browser).move_to_element(canvas).perform()
    assert page.wait(lambda: page.text(".tooltip")).startswith("cat 0.55")


def test_the_last_picture_is_gone_when_a_text_model_answers(page: Playground) -> None:
    page.open("yolov5")
    page.sample()
    page.wait(lambda: page.find("canvas.picture"))
    page.click("[data-model=bert_base]")
    page.wait(lambda: page.all("#payload textarea"))
    page.sample()
    assert page.all("#view-result canvas") == []
    assert [mark.text for mark in page.all("mark")][:1] != []


def test_a_result_of_no_kind_is_shown_as_json(page: Playground) -> None:
    page.open("yolov5")
    Select(page.field("format")).select_by_visible_text("rows")
    page.sample()
    page.wait(lambda: page.text("#view-json"))
    assert isinstance(page.shown_json()["result"][0][0], int)


def test_a_picture_of_the_answer_is_shown(page: Playground) -> None:
    page.open("yolov5")
    Select(page.field("format")).select_by_visible_text("image")
    page.sample()
    assert page.wait(lambda: page.find("#view-result img.picture"))
    assert page.find("#save-picture")


def test_a_recording_is_sent_as_it_is(page: Playground, tmp_path: Path) -> None:
    silence = bytes(200)
    header = b"RIFF" + struct.pack("<I", 36 + len(silence)) + b"WAVEfmt "
    header += struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8) + b"data" + struct.pack("<I", len(silence))
    (tmp_path / "beep.wav").write_bytes(header + silence)
    page.open("recording")
    page.field("audio").send_keys(str(tmp_path / "beep.wav"))
    page.answered()
    assert page.find("#payload audio")
    shown = {row.text.split("\n")[0]: row.text.split("\n")[1] for row in page.all(".bars li")}
    assert int(shown["silent"]) >= 200


@dataclass(frozen=True)
class Taker:
    """A client, its field for a file, and the content type of the request by the file's name."""

    model: str
    label: str
    sent: dict[str, str]


#: ``files`` is what ``sm new-client files --kind bytes`` writes. To both of the first a file of JSON goes in base64:
#: as it is, it would be a request.
TAKERS = (
    Taker(
        "files",
        "content",
        {"leaflet.pdf": "application/octet-stream", "numbers.json": "application/json"},
    ),
    Taker(
        "weigh",
        "content",
        {
            "leaflet.pdf": "application/pdf",
            "unknown.qqq": "application/octet-stream",
            "numbers.json": "application/json",
        },
    ),
    Taker(
        "whole",
        "file",
        {
            "rows.csv": "text/csv",
            "unknown.qqq": "application/octet-stream",
            "numbers.json": "application/json",
        },
    ),
)
CONTENT = b'{"payload": "not a request", "inputs": []}'


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.model)
def test_a_file_of_any_type_is_sent_from_the_page(page: Playground, tmp_path: Path, taker: Taker) -> None:
    page.open(taker.model)
    # A list of types would grey out other files in the system's own window.
    assert page.field(taker.label).get_attribute("accept") in (None, "")
    for name, content_type in taker.sent.items():
        file = tmp_path / name
        file.write_bytes(CONTENT)
        page.view("result")
        if name == next(iter(taker.sent)):
            page.drop(file, page.wait(lambda: page.find("#payload .drop")))
        else:
            page.field(taker.label).send_keys(str(file))
        assert page.answered().startswith("200 in")
        result = page.shown_json()["result"]
        assert result["bytes"] == len(CONTENT)
        assert result.get("content_type") in (None, content_type)
        page.view("code")
        assert f"'Content-Type: {content_type}'" in page.text("#code")
    assert page.complaints() == []


def test_the_content_type_of_a_file_can_be_changed_and_the_file_taken_back(
    page: Playground, tmp_path: Path
) -> None:
    (tmp_path / "rows.npy").write_bytes(CONTENT)
    page.open("whole")
    page.field("file").send_keys(str(tmp_path / "rows.npy"))
    page.answered()
    kind = page.wait(lambda: page.find("[aria-label='Content type of file']"))
    kind.clear()
    kind.send_keys("application/x-npy")
    page.run()
    page.wait(lambda: page.shown_json()["result"]["content_type"] == "application/x-npy")
    page.click("#payload .drop button")
    page.fill("body", '{"a": 1}')
    page.run()
    page.wait(lambda: page.shown_json()["result"] == {"bytes": 7, "content_type": "application/json"})
    assert page.serious_findings() == []


def test_a_file_that_is_the_whole_body_is_sent_alone(page: Playground, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"1,2")
    page.open("whole")
    next(each for each in page.all("button.quiet") if each.text == "Add a record").click()
    page.field("file").send_keys(str(tmp_path / "rows.csv"))
    page.wait(lambda: "a file is sent alone" in page.text("#payload"))


def test_a_photo_of_the_camera_is_sent(page: Playground) -> None:
    page.show_on(PHONE)
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        page.open("yolov5")
        camera = page.wait(lambda: page.find("#payload [capture]"))
        assert camera.get_attribute("capture") == "environment"
        assert (camera.get_attribute("type"), camera.get_attribute("accept")) == ("file", "image/*")
        assert page.text("#payload .camera") == "Camera"
        # What the phone's camera gives is a file of this control.
        camera.send_keys(str(CHELSEA))
        page.answered()
        page.wait(lambda: page.find("canvas.picture"))
        assert page.text(".object-list") == "cat\n0.56"
        assert page.serious_findings() == []
    finally:
        page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_a_client_of_a_team_has_a_form_with_every_kind_of_field(page: Playground) -> None:
    page.open("orders")
    page.sample()
    assert [row.text.split() for row in page.all("tbody tr")][:2] == [["pen", "3", "6"], ["ink", "1", "2"]]
    assert page.field("rounded").get_attribute("role") == "switch"
    assert "Share of the price." in page.text("#parameters")
    page.fill("discount", "0.5")
    page.click("[aria-label='lines 2'] .quiet")
    page.run()
    page.wait(lambda: len(page.all("#view-result tbody tr")) == 1)
    assert page.text("#view-result tbody tr").split() == ["pen", "3", "3"]


def test_records_are_sent_as_a_list(page: Playground) -> None:
    page.open("bert_base")
    page.fill("text", "Paris is the [MASK] of France.")
    next(each for each in page.all("button.quiet") if each.text == "Add a record").click()
    page.all("#payload textarea")[1].send_keys("no blank here")
    page.run()
    page.wait(lambda: len(page.all("#view-result h3")) == 2)
    assert page.text("#view-result mark") == "capital"
    assert "no [MASK]" in page.text("#view-result > .error")


def test_an_error_stands_beside_its_field(page: Playground) -> None:
    page.open("bert_base")
    page.fill("text", "no blank here")
    page.run()
    assert page.text("#time").startswith("422 in")
    field = page.field("text")
    assert field.get_attribute("aria-invalid") == "true"
    said = [page.text(f"#{part}") for part in str(field.get_attribute("aria-describedby")).split()]
    assert any("has no [MASK] to fill" in text for text in said)
    assert page.browser.switch_to.active_element == field
    page.fill("text", "now a [MASK] here")
    page.run()
    assert page.field("text").get_attribute("aria-invalid") is None


def test_a_stream_is_shown_as_it_comes(page: Playground) -> None:
    page.open("telling")
    page.fill("text", "one two three four five")
    page.fill("seconds", "0.3")
    page.click("#send")
    page.wait(lambda: page.text(".streaming").startswith("one"))
    assert "five" not in page.text(".streaming")
    page.answered()
    assert "first part after" in page.text("#time")
    assert page.text("#view-result .text-result").strip() == "one two three four five"


def test_where_the_time_went_and_what_was_asked_before(page: Playground) -> None:
    page.open("resnet")
    page.sample()
    page.sample(1)
    page.view("time")
    names = [row.text for row in page.all(".waterfall .name")]
    assert {"waited for a worker", "preprocess", "infer (Triton)", "postprocess"} <= set(names)
    page.wait(lambda: len(page.all("#history tbody tr")) == 2)


def test_the_code_that_is_shown_makes_the_same_request(page: Playground) -> None:
    page.open("bert_base")
    page.sample()
    answer = page.shown_json()
    page.view("code")
    assert "curl" in page.text("#code")
    command = subprocess.run(
        ["bash", "-c", page.text("#code")], capture_output=True, text=True, timeout=60, check=True
    )
    first = answer["result"][0]["token"]
    assert first in command.stdout
    Select(page.wait(lambda: page.find("#language"))).select_by_visible_text("Python requests")
    script = subprocess.run(
        [sys.executable, "-c", page.text("#code")], capture_output=True, text=True, timeout=60, check=True
    )
    assert first in script.stdout


def test_a_model_without_a_client_takes_its_tensors(page: Playground) -> None:
    page.open("doubles")
    assert "FP32 [2, 2]" in page.text("#payload")
    page.fill("x", "[[1, 2], [3, 4]]")
    page.run()
    page.wait(lambda: page.find("#view-result td"))
    assert page.text("#view-result tbody tr").split(maxsplit=3) == ["y", "FP32", "[2,2]", "[2,4,6,8]"]


def test_it_can_be_used_with_the_keyboard_alone(page: Playground) -> None:
    page.open("bert_base")
    page.field("text").send_keys(Keys.END, " ", Keys.CONTROL, Keys.ENTER)
    page.answered()
    page.browser.execute_script("document.getElementById('tab-result').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.browser.switch_to.active_element.get_attribute("id") == "tab-json"


def test_the_document_is_shown_by_a_viewer(page: Playground) -> None:
    page.browser.get(f"{page.url}/docs")
    page.wait(lambda: page.find("#operations-default-invoke, [id$=-invoke]"))
    assert page.complaints() == []
    loaded = page.browser.execute_script("return performance.getEntriesByType('resource').map(it => it.name)")
    assert loaded
    assert all(name.startswith(page.url) for name in loaded)
