"""The example t5_translate streams text through its client, and takes token ids in Triton's own protocol."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from tokenizers import Tokenizer

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="the wheel's python backend reads no strings on NumPy 2"
)

SAMPLE = HERE / "examples" / "t5_translate" / "repository" / "code" / "t5_translate" / "sample"
PROMPT = "translate English to German: The house is wonderful."
TRANSLATION = "Das Haus ist wunderbar."
#: A text whose translation takes many tokens.
LONG_PROMPT = "translate English to German: " + "The house is wonderful and the garden is large. " * 12


@pytest.fixture(scope="module")
def repository(example_repository: Callable[[str], Path]) -> Path:
    return example_repository("t5_translate")


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    """A box whose models have a small pool of shared memory."""
    return boxes(repository, SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE=str(2**20))


def request_stream(box: RunningBox, text: str, **parameters: object) -> requests.Response:
    """Request a stream of events; the body of the response is not read yet."""
    return requests.post(
        f"{box.url}/invocations",
        json={"modelname": "t5_translate", "payload": {"text": text}, "parameters": parameters},
        headers={"Accept": "text/event-stream"},
        stream=True,
        timeout=60,
    )


def read_events(response: requests.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def token_ids(repository: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(repository / "t5_translate" / "tokenizer.json"))
    return list(tokenizer.encode(text).ids)


def token_request(rows: list[list[int]], mask: list[list[int]] | None = None) -> dict[str, Any]:
    """The v2 request of a caller that has a tokenizer."""
    arrays = {"input_ids": rows, "attention_mask": mask or [[1] * len(row) for row in rows]}
    return {
        "inputs": [
            {"name": name, "shape": [len(data), len(data[0])], "datatype": "INT32", "data": data}
            for name, data in arrays.items()
        ]
    }


def infer_tokens(box: RunningBox, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"{box.url}/v2/models/t5_tokens/infer", json=body, timeout=60)


def test_the_sample_gets_its_golden_translation(box: RunningBox) -> None:
    response = box.invoke("t5_translate", json.loads((SAMPLE / "payload.json").read_text()))
    assert response.json() == {
        "modelname": "t5_translate",
        "result": json.loads((SAMPLE / "golden.json").read_text()),
    }


def test_tokens_are_streamed_and_join_to_the_translation(box: RunningBox) -> None:
    parts = [event["result"] for event in read_events(request_stream(box, PROMPT))]
    assert len(parts) > 4
    assert "".join(parts) == TRANSLATION


def test_max_tokens_limits_the_translation(box: RunningBox) -> None:
    assert (
        "".join(event["result"] for event in read_events(request_stream(box, PROMPT, max_tokens=2)))
        == "Das Haus"
    )


def test_tritons_generate_stream_needs_only_the_text(box: RunningBox) -> None:
    url = f"{box.url}/v2/models/t5_translate/generate_stream"
    response = requests.post(url, json={"text": PROMPT}, timeout=60)
    assert "".join(event["token"] for event in read_events(response)) == TRANSLATION


@pytest.mark.parametrize(
    ("text", "parameters", "field"),
    [
        *((text, {}, "payload.text") for text in ("", "  ", "word " * 600, "word " * 6000)),
        *((PROMPT, {"max_tokens": most}, "parameters.max_tokens") for most in (0, 257)),
    ],
)
def test_an_unsupported_text_or_parameter_is_a_422_that_says_why(
    box: RunningBox, text: str, parameters: dict[str, int], field: str
) -> None:
    for response in (
        request_stream(box, text, **parameters),
        box.invoke("t5_translate", {"text": text}, parameters=parameters),
    ):
        assert (response.status_code, response.json()["field"]) == (422, field), response.text


@pytest.mark.parametrize("body", [{"text": PROMPT, "max_tokens": 0}, {"text": " "}])
def test_the_model_itself_refuses_bad_requests_that_bypass_its_client(
    box: RunningBox, body: dict[str, object]
) -> None:
    response = requests.post(f"{box.url}/v2/models/t5_translate/generate_stream", json=body, timeout=60)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


def test_hanging_up_stops_the_model_between_tokens(box: RunningBox) -> None:
    response = request_stream(box, LONG_PROMPT, max_tokens=256)
    assert next(response.iter_lines(chunk_size=1)).startswith(b"data: ")
    response.close()
    match = wait_until(
        lambda: re.search(r"caller went away after (\d+) tokens", box.log.read_text()), 20, "the line"
    )
    assert int(match[1]) < 256


def test_token_ids_are_translated_to_token_ids(box: RunningBox, repository: Path) -> None:
    body = token_request([token_ids(repository, PROMPT)])
    (output,) = infer_tokens(box, body).json()["outputs"]
    assert (output["name"], output["datatype"]) == ("output", "INT32")
    assert output["data"] == [0, *token_ids(repository, TRANSLATION)]
    response = requests.post(f"{box.url}/invocations?modelname=t5_tokens", json=body, timeout=60)
    assert response.json()["outputs"] == [output]


@pytest.mark.parametrize(
    ("rows", "mask"),
    [
        ([[5, 40_000, 1]], None),
        ([[5, -1, 1]], None),
        ([[5, 6, 1]], [[0, 0, 0]]),
        ([[5, 6, 1]], [[1, 1]]),
        ([[5] * 513], None),
    ],
)
def test_invalid_token_ids_are_a_400(
    box: RunningBox, rows: list[list[int]], mask: list[list[int]] | None
) -> None:
    response = infer_tokens(box, token_request(rows, mask))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
