"""``sm invoke`` against the real box, by its URL and as boto3's endpoint."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops

from sm.settings import HERE
from tests.support.boxes import RunningBox
from tests.support.demo_box import box, demo
from tests.support.sm_command import CommandResult, RunSm
from trireme_tools.invoke.result_picture import CLASS_HEIGHT

__all__ = ["box", "demo"]

CAT = HERE / "clients" / "resnet" / "sample" / "cat.png"


@pytest.fixture(params=["url", "endpoint"])
def target(
    request: pytest.FixtureRequest, box: RunningBox, monkeypatch: pytest.MonkeyPatch, sm: RunSm
) -> str:
    """The box's address: once its URL, and once an endpoint's name, which boto3 sends to the box."""
    if request.param == "url":
        return box.url
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", box.url)
    return "my-endpoint"


def result_of(result: CommandResult) -> Any:
    assert result.status == 0, result.err
    return json.loads(result.out)["result"]


def test_a_picture_or_a_text_prints_its_result(target: str, sm: RunSm) -> None:
    assert result_of(sm("invoke", target, "--model", "resnet", "--image", CAT))[0].endswith(":Egyptian cat")
    text = "Paris is the [MASK] of France."
    assert result_of(sm("invoke", target, "--model", "bert_base", "--text", text))[0]["token"] == (
        "Paris is the capital of France."
    )


def test_any_file_is_sent_with_its_type_and_json_is_a_request_or_a_payload(
    box: RunningBox, sm: RunSm, tmp_path: Path
) -> None:
    payload = {"text": "a b"}
    (tmp_path / "words.txt").write_text("a b")
    (tmp_path / "payload.json").write_text(json.dumps(payload))
    (tmp_path / "request.json").write_text(json.dumps({"modelname": "words", "payload": payload}))
    words = ("invoke", box.url, "--model", "words")
    for arguments in ((*words, "--file", "words.txt"), (*words, "--json", "payload.json")):
        assert result_of(sm(*arguments)) == ["a", "b"]
    assert result_of(sm("invoke", box.url, "--json", "request.json")) == ["a", "b"]
    assert sm(*words, "--file", "words.txt", "--content-type", "image/png").status == 1
    raw = sm(*words, "--text", "a b", "--raw")
    assert (raw.out, raw.err) == ('{"modelname":"words","result":["a","b"]}', "")


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
    with Image.open(tmp_path / "boxes.png") as drawn, Image.open(picture) as original:
        assert drawn.size == original.size
        difference = ImageChops.difference(drawn.convert("RGB"), original.convert("RGB"))
    changed_pixels = np.asarray(difference).max(axis=2) > 40
    rows, columns = np.nonzero(changed_pixels)
    # The cat's box in the golden answer: 10 to 420 across, 0 to 297 down.
    assert [columns.min(), columns.max(), rows.max()] == pytest.approx([11, 420, 296], abs=3)
    assert changed_pixels.mean() < 0.2


def test_save_picture_draws_classes_as_bars_below_the_picture(
    box: RunningBox, sm: RunSm, tmp_path: Path
) -> None:
    sm("invoke", box.url, "--model", "resnet", "--image", CAT, "--save-picture", "cat.jpg")
    with Image.open(tmp_path / "cat.jpg") as drawn, Image.open(CAT) as original:
        assert drawn.height - original.height == 3 * CLASS_HEIGHT


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
    assert (result.status, named in result.err) == (1, True)
    assert not Path("drawn.png").exists()


def test_a_picture_in_the_answer_is_saved_without_overwriting_a_file(
    target: str, sm: RunSm, tmp_path: Path
) -> None:
    body = {"payload": json.loads((HERE / "clients/yolov5/sample/payload.json").read_text())}
    request = {"modelname": "yolov5", **body, "parameters": {"format": "image"}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    for accept in ("application/json", "image/png"):
        result = sm("invoke", target, "--model", "yolov5", "--json", "request.json", "--accept", accept)
        assert result.status == 0, result.err
    saved = [(tmp_path / name).read_bytes() for name in ("yolov5.png", "yolov5-2.png")]
    assert saved[0] == saved[1]
    assert saved[0].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("model", "options", "printed"),
    [
        ("words", ("--text", "one two"), ["one", "two"]),
        ("words", ("--text", "one bad three"), ["one"]),
        ("rasnet", ("--text", "one"), []),
    ],
)
def test_stream_prints_each_part_and_an_error_after_those_received(
    target: str, sm: RunSm, model: str, options: tuple[str, ...], printed: list[str]
) -> None:
    result = sm("invoke", target, "--model", model, *options, "--stream")
    assert [json.loads(line)["result"] for line in result.out.splitlines()] == printed
    assert result.status == int(printed != ["one", "two"])


def test_many_requests_print_a_table_and_a_histogram(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "words", "--text", "a", "-n", 40, "-c", 4)
    assert (result.status, result.out.split()[:3]) == (0, ["40", "of", "40"])
    p50, p90, p99, maximum = (float(number) for number in result.out.splitlines()[2].split())
    assert 0 < p50 <= p90 <= p99 <= maximum
    rows = re.findall(r"ms +(\d+)", result.out.partition("\n\n")[2])
    assert sum(map(int, rows)) == 40


def test_load_lasts_its_time_and_writes_a_plot(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    arguments = ("--model", "words", "--text", "a b", "-c", "2", "--plot", "load.svg", "--load", "0.5")
    assert sm("invoke", box.url, *arguments).status == 0
    assert "<svg" in (tmp_path / "load.svg").read_text()


def test_an_error_of_the_container_is_printed_and_counted_by_its_code(target: str, sm: RunSm) -> None:
    result = sm("invoke", target, "--model", "rasnet", "--image", CAT)
    assert (result.status, result.out, "404 unknown_model" in result.err) == (1, "", True)
    result = sm("invoke", target, "--model", "rasnet", "--text", "a", "-n", 6, "-c", 2)
    assert (result.status, "6 × 404 unknown_model" in result.out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--image", "nothing.png"), "nothing.png"),
        (("--image", "garbage"), "garbage"),
        (("--json", "garbage"), "garbage"),
        (("--text", "a", "-c", "2"), "-c"),
        (("--text", "a", "--async"), "--async"),
        # Targets: one where nothing is, one that is neither URL nor name, and one that the network does not reach.
        (("http://127.0.0.1:9", "--text", "a"), "make serve"),
        (("localhost:8080", "--text", "a"), "'localhost:8080'"),
        (("my-endpoint", "--text", "a"), "my-endpoint"),
    ],
)
def test_invalid_arguments_and_unreachable_targets_are_an_error(
    sm: RunSm, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    (tmp_path / "garbage").write_text("garbage")
    result = sm("invoke", *arguments)
    assert (result.status, result.out, named in result.err) == (1, "", True)
