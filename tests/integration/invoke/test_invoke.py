"""``sm invoke`` against the real box, by its URL and as boto3's endpoint."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from sm.settings import HERE, Settings
from tests.support.box_fixture import Boxes
from tests.support.boxes import CLIENT_FOLDERS, RunningBox, free_port
from tests.support.sm_command import RunSm
from trireme_tools.invoke.result_picture import CLASS_HEIGHT
from trireme_tools.prepare.demo import prepare

CAT = HERE / "clients" / "resnet" / "sample" / "cat.png"


@pytest.fixture
def box(boxes: Boxes) -> RunningBox:
    """A box with the demo's models and the streaming client ``words``."""
    settings = Settings.read({})
    prepare(settings)
    words = (CLIENT_FOLDERS / "streaming" / "words" / "client.py").read_text()
    return boxes(settings.cache / "repository" / "cpu", ({"words/client.py": words},))


@pytest.fixture(params=["url", "endpoint"])
def target(
    request: pytest.FixtureRequest, box: RunningBox, monkeypatch: pytest.MonkeyPatch, sm: RunSm
) -> str:
    """The box's address: once its URL, and once an endpoint's name, which boto3 sends to the box."""
    if request.param == "url":
        return box.url
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", box.url)
    return "my-endpoint"


def test_a_picture_prints_its_result_and_the_time_it_took(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "resnet", "--image", CAT)
    assert result.status == 0, result.err
    assert json.loads(result.out)["result"][0].endswith(":Egyptian cat")
    assert re.match(r"200 in \d+\.\d ms, \d+ bytes of application/json\n", result.err)


def test_a_text_is_sent_unchanged(box: RunningBox, sm: RunSm) -> None:
    result = sm("invoke", box.url, "--model", "bert_base", "--text", "Paris is the [MASK] of France.")
    assert json.loads(result.out)["result"][0]["token"] == "Paris is the capital of France."


def test_any_file_is_sent_with_its_type(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a b")
    guessed_type = sm("invoke", box.url, "--model", "words", "--file", "words.txt")
    assert json.loads(guessed_type.out)["result"] == ["a", "b"]
    explicit_type = sm(
        "invoke", box.url, "--model", "words", "--file", "words.txt", "--content-type", "image/png"
    )
    assert explicit_type.status == 1
    assert "415" in explicit_type.err


def test_save_picture_draws_the_boxes_of_the_result(target: str, sm: RunSm, tmp_path: Path) -> None:
    """With a URL the client's schema tells what the result is; with an endpoint's name the answer shows it."""
    picture = HERE / "clients" / "yolov5" / "sample" / "chelsea.jpg"
    if target.startswith("http"):
        arguments: tuple[object, ...] = ("--image", picture)
    else:
        payload = {"image": base64.b64encode(picture.read_bytes()).decode()}
        request = {"modelname": "yolov5", "payload": payload, "parameters": {"format": "detections"}}
        (tmp_path / "request.json").write_text(json.dumps(request))
        arguments = ("--json", "request.json")
    result = sm("invoke", target, "--model", "yolov5", *arguments, "--save-picture", "boxes.png")
    assert result.status == 0, result.err
    assert result.err.endswith(" ms, drawn in boxes.png\n")
    with Image.open(tmp_path / "boxes.png") as result_picture, Image.open(picture) as original:
        assert result_picture.size == original.size
        changed_pixels = (
            np.asarray(ImageChops.difference(result_picture.convert("RGB"), original.convert("RGB"))).max(
                axis=2
            )
            > 40
        )
    rows, columns = np.nonzero(changed_pixels)
    # The cat's box in the golden answer: 10 to 420 across, 0 to 297 down.
    assert (columns.min(), columns.max()) == (pytest.approx(11, abs=3), pytest.approx(420, abs=3))
    assert rows.max() == pytest.approx(296, abs=3)
    assert changed_pixels.mean() < 0.2


def test_save_picture_draws_classes_as_bars_below_the_picture(
    box: RunningBox, sm: RunSm, tmp_path: Path
) -> None:
    result = sm("invoke", box.url, "--model", "resnet", "--image", CAT, "--save-picture", "cat.jpg")
    assert result.status == 0, result.err
    with Image.open(tmp_path / "cat.jpg") as result_picture, Image.open(CAT) as original:
        assert result_picture.height - original.height == 3 * CLASS_HEIGHT


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "bert_base", "--text", "a [MASK]"), "--save-picture"),
        (("--image", CAT), "--model"),
        (("--model", "resnet", "--image", CAT, "-n", "2"), "--save-picture"),
        (("--model", "no_such", "--image", CAT), "404"),
    ],
)
def test_a_result_that_cannot_be_drawn_is_one_sentence(
    box: RunningBox, sm: RunSm, arguments: tuple[object, ...], named: str
) -> None:
    result = sm("invoke", box.url, *arguments, "--save-picture", "drawn.png")
    assert result.status == 1
    assert named in result.err
    assert not Path("drawn.png").exists()


def test_load_prints_bars_and_writes_a_plot(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    arguments = ("--model", "words", "--text", "a b", "-c", "2", "--plot", "load.svg")
    result = sm("invoke", box.url, *arguments, "--load", "0.5")
    assert result.status == 0, result.err
    assert re.match(r"\d+ of \d+ answered in 0\.\d+ s", result.out)
    assert "█" in result.out
    assert "requests for 0.5 s, 2 at once" in result.err
    plot = (tmp_path / "load.svg").read_text()
    assert "p99 " in plot
    assert "<svg" in plot


def test_json_may_be_a_whole_request_or_a_payload(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    payload = {"text": "a b"}
    (tmp_path / "payload.json").write_text(json.dumps(payload))
    (tmp_path / "request.json").write_text(json.dumps({"modelname": "words", "payload": payload}))
    results = [
        sm("invoke", box.url, *arguments)
        for arguments in (("--model", "words", "--json", "payload.json"), ("--json", "request.json"))
    ]
    assert [json.loads(result.out)["result"] for result in results] == [["a", "b"], ["a", "b"]]


def test_raw_prints_only_the_bytes_of_the_response(box: RunningBox, sm: RunSm) -> None:
    result = sm("invoke", box.url, "--model", "words", "--text", "a b", "--raw")
    assert (result.out, result.err) == ('{"modelname":"words","result":["a","b"]}', "")


def test_a_picture_in_the_answer_is_saved_without_overwriting_a_file(
    target: str, sm: RunSm, tmp_path: Path
) -> None:
    body = {"payload": json.loads((HERE / "clients/yolov5/sample/payload.json").read_text())}
    request = {"modelname": "yolov5", **body, "parameters": {"format": "image"}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    in_json = sm("invoke", target, "--model", "yolov5", "--json", "request.json")
    as_png = sm("invoke", target, "--model", "yolov5", "--json", "request.json", "--accept", "image/png")
    assert '"yolov5.png"' in in_json.out
    assert "image/png: yolov5-2.png" in as_png.out
    assert (tmp_path / "yolov5.png").read_bytes() == (tmp_path / "yolov5-2.png").read_bytes()
    assert (tmp_path / "yolov5.png").read_bytes().startswith(b"\x89PNG")


def test_an_error_of_the_container_is_printed_as_its_sentence(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "rasnet", "--image", CAT)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("sm: the answer is 404 unknown_model")
    assert "rasnet" in result.err


def test_stream_prints_each_part(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "words", "--text", "one two", "--stream")
    assert [json.loads(line)["result"] for line in result.out.splitlines()] == ["one", "two"]


def test_a_broken_stream_is_an_error_after_the_parts_received(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "words", "--text", "one bad three", "--stream")
    assert result.status == 1
    assert [json.loads(line)["result"] for line in result.out.splitlines()] == ["one"]
    assert "a bad word" in result.err


def test_an_error_before_a_stream_is_the_usual_error(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "rasnet", "--text", "one", "--stream")
    assert result.err.startswith("sm: the answer is 404 unknown_model")


def test_many_requests_print_a_table_and_a_histogram(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "words", "--text", "a", "-n", 40, "-c", 4)
    assert result.status == 0, result.out
    assert re.match(r"40 of 40 answered in [\d.]+ s: [\d.]+ a second\n", result.out)
    p50, p90, p99, maximum = (float(number) for number in result.out.splitlines()[2].split())
    assert 0 < p50 <= p90 <= p99 <= maximum
    rows = re.findall(r"ms +(\d+)", result.out.partition("\n\n")[2])
    assert sum(map(int, rows)) == 40
    assert "█" * 40 in result.out


def test_errors_of_many_requests_are_counted_by_their_code(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "rasnet", "--text", "a", "-n", 6, "-c", 2)
    assert result.status == 1
    assert result.out.startswith("0 of 6 answered")
    assert "6 × 404 unknown_model: " in result.out


def test_without_a_box_the_error_says_how_to_start_one(sm: RunSm) -> None:
    result = sm("invoke", f"http://127.0.0.1:{free_port()}", "--text", "a")
    assert result.status == 1
    assert "make serve" in result.err


def test_a_target_that_is_neither_url_nor_name_is_an_error(sm: RunSm) -> None:
    result = sm("invoke", "localhost:8080", "--text", "a")
    assert (result.status, "'localhost:8080'" in result.err) == (1, True)


def test_an_unreachable_network_is_one_sentence(sm: RunSm) -> None:
    result = sm("invoke", "my-endpoint", "--text", "a")
    assert result.status == 1
    assert "my-endpoint" in result.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--image", "nothing.png"), "nothing.png"),
        (("--image", "garbage"), "garbage"),
        (("--json", "garbage"), "garbage"),
        (("--text", "a", "-c", "2"), "-c"),
        (("--text", "a", "--async"), "--async"),
    ],
)
def test_invalid_arguments_are_an_error_and_nothing_is_sent(
    sm: RunSm, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    (tmp_path / "garbage").write_text("garbage")
    result = sm("invoke", *arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"sm: {named}")
