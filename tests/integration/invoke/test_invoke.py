"""``sm invoke`` against the real box, by its URL and as boto3's endpoint."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from sm.settings import HERE, Settings
from sm.tools.build.prepare import prepare
from sm.tools.invoke.result_picture import CLASS_HEIGHT
from tests.support.boxes import RunningBox, free_port, running_box
from tests.support.sm_command import RunSm

CAT = HERE / "clients" / "resnet" / "sample" / "cat.png"
WORDS = HERE / "tests" / "support" / "client_folders" / "streaming" / "words"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """The demo's models, and a client that answers in parts."""
    settings = Settings.read({})
    prepare(settings)
    folder = tmp_path_factory.mktemp("invoke")
    shutil.copytree(WORDS, folder / "clients" / "words")
    repository = settings.cache / "repository" / "cpu"
    with running_box(folder, repository, clients=(folder / "clients",)) as started:
        yield started


@pytest.fixture(params=["url", "endpoint"])
def target(
    request: pytest.FixtureRequest, box: RunningBox, monkeypatch: pytest.MonkeyPatch, sm: RunSm
) -> str:
    """The same box by its URL, and by a name through boto3."""
    if request.param == "url":
        return box.url
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", box.url)
    return "my-endpoint"


def test_a_picture_is_answered_with_its_rows_and_the_time_it_took(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "resnet", "--image", CAT)
    assert said.status == 0, said.err
    assert json.loads(said.out)["result"][0].endswith(":Egyptian cat")
    assert re.match(r"200 in \d+\.\d ms, \d+ bytes of application/json\n", said.err)


def test_a_text_is_sent_as_it_is(box: RunningBox, sm: RunSm) -> None:
    said = sm("invoke", box.url, "--model", "bert_base", "--text", "Paris is the [MASK] of France.")
    assert json.loads(said.out)["result"][0]["token"] == "Paris is the capital of France."


def test_any_file_is_sent_with_its_type(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a b")
    by_name = sm("invoke", box.url, "--model", "words", "--file", "words.txt")
    assert json.loads(by_name.out)["result"] == ["a", "b"]
    named = sm("invoke", box.url, "--model", "words", "--file", "words.txt", "--content-type", "image/png")
    assert named.status == 1
    assert "415" in named.err


def test_boxes_are_drawn_on_the_picture_that_was_sent(target: str, sm: RunSm, tmp_path: Path) -> None:
    """By a URL the client says what its result is; of an endpoint the answer shows it."""
    picture = HERE / "clients" / "yolov5" / "sample" / "chelsea.jpg"
    if target.startswith("http"):
        words: tuple[object, ...] = ("--image", picture)
    else:
        payload = {"image": base64.b64encode(picture.read_bytes()).decode()}
        request = {"modelname": "yolov5", "payload": payload, "parameters": {"format": "detections"}}
        (tmp_path / "request.json").write_text(json.dumps(request))
        words = ("--json", "request.json")
    said = sm("invoke", target, "--model", "yolov5", *words, "--save-picture", "boxes.png")
    assert said.status == 0, said.err
    assert said.err.endswith(" ms, drawn in boxes.png\n")
    with Image.open(tmp_path / "boxes.png") as drawn, Image.open(picture) as sent:
        assert drawn.size == sent.size
        changed = (
            np.asarray(ImageChops.difference(drawn.convert("RGB"), sent.convert("RGB"))).max(axis=2) > 40
        )
    rows, columns = np.nonzero(changed)
    # The cat's box by the golden answer: 10 to 420 across, 0 to 297 down.
    assert (columns.min(), columns.max()) == (pytest.approx(11, abs=3), pytest.approx(420, abs=3))
    assert rows.max() == pytest.approx(296, abs=3)
    assert changed.mean() < 0.2


def test_classes_are_drawn_as_bars_under_the_picture(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    said = sm("invoke", box.url, "--model", "resnet", "--image", CAT, "--save-picture", "cat.jpg")
    assert said.status == 0, said.err
    with Image.open(tmp_path / "cat.jpg") as drawn, Image.open(CAT) as sent:
        assert drawn.height - sent.height == 3 * CLASS_HEIGHT


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "bert_base", "--text", "a [MASK]"), "--save-picture needs a request with a picture"),
        (("--image", CAT), "name the model whose answer is drawn, with --model: bert_base, resnet"),
        (("--model", "resnet", "--image", CAT, "-n", "2"), "--save-picture is for one request"),
        (("--model", "no_such", "--image", CAT), "the answer is 404"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(
    box: RunningBox, sm: RunSm, words: tuple[object, ...], sentence: str
) -> None:
    said = sm("invoke", box.url, *words, "--save-picture", "drawn.png")
    assert said.status == 1
    assert sentence in said.err
    assert not Path("drawn.png").exists()


def test_a_load_of_some_seconds_shows_bars_and_draws_a_plot(
    box: RunningBox, sm: RunSm, tmp_path: Path
) -> None:
    words = ("--model", "words", "--text", "a b", "-c", "2", "--plot", "load.svg")
    said = sm("invoke", box.url, *words, "--load", "0.5")
    assert said.status == 0, said.err
    assert re.match(r"\d+ of \d+ answered in 0\.\d+ s", said.out)
    assert "█" in said.out
    assert "requests for 0.5 s, 2 at once" in said.err
    drawn = (tmp_path / "load.svg").read_text()
    assert "p99 " in drawn
    assert "<svg" in drawn


def test_json_is_a_request_or_just_a_models_payload(box: RunningBox, sm: RunSm, tmp_path: Path) -> None:
    payload = {"text": "a b"}
    (tmp_path / "payload.json").write_text(json.dumps(payload))
    (tmp_path / "request.json").write_text(json.dumps({"modelname": "words", "payload": payload}))
    answers = [
        sm("invoke", box.url, *words)
        for words in (("--model", "words", "--json", "payload.json"), ("--json", "request.json"))
    ]
    assert [json.loads(said.out)["result"] for said in answers] == [["a", "b"], ["a", "b"]]


def test_raw_is_the_answers_bytes_and_nothing_else(box: RunningBox, sm: RunSm) -> None:
    said = sm("invoke", box.url, "--model", "words", "--text", "a b", "--raw")
    assert (said.out, said.err) == ('{"modelname":"words","result":["a","b"]}', "")


def test_a_picture_in_the_answer_becomes_a_file_that_overwrites_none(
    target: str, sm: RunSm, tmp_path: Path
) -> None:
    body = {"payload": json.loads((HERE / "clients/yolov5/sample/payload.json").read_text())}
    request = {"modelname": "yolov5", **body, "parameters": {"format": "image"}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    inside = sm("invoke", target, "--model", "yolov5", "--json", "request.json")
    whole = sm("invoke", target, "--model", "yolov5", "--json", "request.json", "--accept", "image/png")
    assert '"yolov5.png"' in inside.out
    assert "image/png: yolov5-2.png" in whole.out
    assert (tmp_path / "yolov5.png").read_bytes() == (tmp_path / "yolov5-2.png").read_bytes()
    assert (tmp_path / "yolov5.png").read_bytes().startswith(b"\x89PNG")


def test_an_error_of_the_container_is_its_own_sentence(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "rasnet", "--image", CAT)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("sm: the answer is 404 unknown_model: ")
    assert "rasnet" in said.err


def test_parts_are_shown_as_they_come(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "words", "--text", "one two", "--stream")
    assert [json.loads(line)["result"] for line in said.out.splitlines()] == ["one", "two"]


def test_a_stream_that_breaks_is_an_error_after_what_came(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "words", "--text", "one bad three", "--stream")
    assert said.status == 1
    assert [json.loads(line)["result"] for line in said.out.splitlines()] == ["one"]
    assert said.err == "sm: the stream broke: a bad word\n"


def test_an_error_before_the_stream_is_the_usual_one(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "rasnet", "--text", "one", "--stream")
    assert said.err.startswith("sm: the answer is 404 unknown_model: ")


def test_many_requests_are_a_table_and_a_histogram(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "words", "--text", "a", "-n", 40, "-c", 4)
    assert said.status == 0, said.out
    assert re.match(r"40 of 40 answered in [\d.]+ s: [\d.]+ a second\n", said.out)
    p50, p90, p99, most = (float(number) for number in said.out.splitlines()[2].split())
    assert 0 < p50 <= p90 <= p99 <= most
    rows = re.findall(r"ms +(\d+)", said.out.partition("\n\n")[2])
    assert sum(map(int, rows)) == 40
    assert "█" * 40 in said.out


def test_errors_of_many_requests_are_counted_by_their_code(target: str, sm: RunSm) -> None:
    said = sm("invoke", target, "--model", "rasnet", "--text", "a", "-n", 6, "-c", 2)
    assert said.status == 1
    assert said.out.startswith("0 of 6 answered")
    assert "6 × 404 unknown_model: " in said.out


def test_nobody_there_is_a_sentence_that_says_what_to_do(sm: RunSm) -> None:
    said = sm("invoke", f"http://127.0.0.1:{free_port()}", "--text", "a")
    assert said.status == 1
    assert said.err.startswith("sm: nobody answers at http://127.0.0.1:")
    assert said.err.endswith("Start a box with: make serve\n")


def test_what_is_neither_a_url_nor_a_name_is_said(sm: RunSm) -> None:
    said = sm("invoke", "localhost:8080", "--text", "a")
    assert (
        said.err == "sm: 'localhost:8080' is no endpoint's name, and a URL begins with http:// or https://.\n"
    )


def test_a_network_that_is_away_is_a_sentence(sm: RunSm) -> None:
    said = sm("invoke", "my-endpoint", "--text", "a")
    assert said.status == 1
    assert said.err.startswith("sm: cannot ask the endpoint my-endpoint: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--image", "nothing.png"), "nothing.png cannot be read: No such file or directory."),
        (
            ("--image", "garbage"),
            "garbage is no JPEG, PNG or WebP picture. Convert it, or send it with --json.",
        ),
        (("--json", "garbage"), "garbage is not JSON: "),
        (("--text", "a", "-c", "2"), "-c goes with -n or --load: "),
        (("--text", "a", "--async"), "--async is for an endpoint of SageMaker: give its name."),
    ],
)
def test_what_cannot_be_asked_is_not_sent(
    sm: RunSm, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "garbage").write_text("garbage")
    said = sm("invoke", *words)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"sm: {sentence}")
