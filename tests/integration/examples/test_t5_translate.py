"""Text to text: token by token through its client, and token ids in Triton's own protocol."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import requests
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from examples.t5_translate.recipe.unsigned import unsigned
from sm.settings import HERE, Settings
from sm.tools.check.triton_server import triton
from tests.support.boxes import RunningBox, command_line, descendants, running_box, wait_until

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="the wheel's python backend reads no strings on NumPy 2"
)

SAMPLE = HERE / "examples" / "t5_translate" / "repository" / "code" / "t5_translate" / "sample"
HOUSE = "translate English to German: The house is wonderful."
GERMAN = "Das Haus ist wunderbar."
#: Something that the model has much to say about.
LONG = "translate English to German: " + "The house is wonderful and the garden is large. " * 12


@pytest.fixture(scope="module")
def repository(example_repository: Callable[[str], Path]) -> Path:
    return example_repository("t5_translate")


@pytest.fixture(scope="module")
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """The example alone; each of its models has a small pool of shared memory."""
    folder = tmp_path_factory.mktemp("t5")
    with running_box(
        folder, repository, clients=(), SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE=str(2**20)
    ) as started:
        yield started


def streamed(box: RunningBox, text: str, **parameters: object) -> requests.Response:
    """The answer as events, its body not read yet."""
    return requests.post(
        f"{box.url}/invocations",
        json={"modelname": "t5_translate", "payload": {"text": text}, "parameters": parameters},
        headers={"Accept": "text/event-stream"},
        stream=True,
        timeout=60,
    )


def events(answer: requests.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def ids(repository: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(repository / "t5_translate" / "tokenizer.json"))
    return list(tokenizer.encode(text).ids)


def tensors(rows: list[list[int]], mask: list[list[int]] | None = None) -> dict[str, Any]:
    """The request of a caller who has a tokenizer."""
    both = {"input_ids": rows, "attention_mask": mask or [[1] * len(row) for row in rows]}
    return {
        "inputs": [
            {"name": name, "shape": [len(data), len(data[0])], "datatype": "INT32", "data": data}
            for name, data in both.items()
        ]
    }


def tokens(box: RunningBox, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"{box.url}/v2/models/t5_tokens/infer", json=body, timeout=60)


def test_the_house_is_wonderful(box: RunningBox) -> None:
    response = box.invoke("t5_translate", json.loads((SAMPLE / "payload.json").read_text()))
    assert response.json() == {
        "modelname": "t5_translate",
        "result": json.loads((SAMPLE / "golden.json").read_text()),
    }


def test_tokens_leave_one_by_one_and_make_the_whole(box: RunningBox) -> None:
    parts = [event["result"] for event in events(streamed(box, HOUSE))]
    assert len(parts) > 4
    assert "".join(parts) == GERMAN


def test_max_tokens_cuts_the_answer(box: RunningBox) -> None:
    assert "".join(event["result"] for event in events(streamed(box, HOUSE, max_tokens=2))) == "Das Haus"


def test_tritons_own_stream_needs_the_text_alone(box: RunningBox) -> None:
    url = f"{box.url}/v2/models/t5_translate/generate_stream"
    answer = requests.post(url, json={"text": HOUSE}, timeout=60)
    assert "".join(event["token"] for event in events(answer)) == GERMAN


def test_callers_at_once_get_their_own_answers(box: RunningBox) -> None:
    prompts = [f"translate English to German: The {thing} is good." for thing in ("house", "book", "wine")]
    alone = [box.invoke("t5_translate", {"text": prompt}).json() for prompt in prompts]
    with ThreadPoolExecutor(9) as crowd:
        together = list(
            crowd.map(lambda text: box.invoke("t5_translate", {"text": text}).json(), prompts * 3)
        )
    assert len({answer["result"]["translation"] for answer in alone}) == 3
    assert together == alone * 3


@pytest.mark.parametrize(
    ("text", "parameters", "status", "sentence"),
    [
        ("", {}, 422, "payload.text"),
        ("  ", {}, 422, "payload.text"),
        ("word " * 600, {}, 422, "602 word pieces long, the model takes 512"),
        ("word " * 6000, {}, 422, "payload.text"),
        (HOUSE, {"max_tokens": 0}, 422, "parameters.max_tokens"),
        (HOUSE, {"max_tokens": 257}, 422, "parameters.max_tokens"),
    ],
)
def test_what_it_cannot_do_is_a_4xx_that_says_so(
    box: RunningBox, text: str, parameters: dict[str, int], status: int, sentence: str
) -> None:
    for response in (
        streamed(box, text, **parameters),
        box.invoke("t5_translate", {"text": text}, parameters=parameters),
    ):
        assert (response.status_code, sentence in response.json()["error"]) == (status, True), response.text


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"text": HOUSE, "max_tokens": 0}, "max_tokens is 0; it is from 1 to 256"),
        ({"text": " "}, "text is empty"),
    ],
)
def test_without_its_client_the_model_says_so_itself(
    box: RunningBox, body: dict[str, object], sentence: str
) -> None:
    response = requests.post(f"{box.url}/v2/models/t5_translate/generate_stream", json=body, timeout=60)
    assert (response.status_code, response.json()["error"]) == (400, sentence)


def test_a_caller_that_leaves_stops_the_model_between_tokens(box: RunningBox) -> None:
    answer = streamed(box, LONG, max_tokens=256)
    assert next(answer.iter_lines(chunk_size=1)).startswith(b"data: ")
    answer.close()
    said = wait_until(
        lambda: re.search(r"caller went away after (\d+) tokens", box.log.read_text()), 20, "the line"
    )
    assert int(said[1]) < 256


def test_weights_over_the_whole_of_int8_multiply_exactly_on_any_processor() -> None:
    weights = np.array([[-128], [127], [127], [127]], np.int8)
    constants = {"b": weights, "a_zero": np.array(3, np.uint8), "b_zero": np.array(-7, np.int8)}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b", "a_zero", "b_zero"], ["y"])],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    unsigned(graph)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    a = np.array([[0, 255, 255, 255]], np.uint8)
    (y,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"a": a})
    assert y == (a.astype(int) - 3) @ (weights.astype(int) + 7)


def test_token_ids_become_token_ids(box: RunningBox, repository: Path) -> None:
    body = tensors([ids(repository, HOUSE)])
    (output,) = tokens(box, body).json()["outputs"]
    assert (output["name"], output["datatype"]) == ("output", "INT32")
    assert output["data"] == [0, *ids(repository, GERMAN)]
    through = requests.post(f"{box.url}/invocations?modelname=t5_tokens", json=body, timeout=60)
    assert through.json()["outputs"] == [output]


def test_rows_of_different_length_end_in_padding(box: RunningBox, repository: Path) -> None:
    long, short = ids(repository, HOUSE), ids(repository, "translate English to German: yes")
    missing = len(long) - len(short)
    mask = [[1] * len(long), [1] * len(short) + [0] * missing]
    (output,) = tokens(box, tensors([long, short + [0] * missing], mask)).json()["outputs"]
    width = output["shape"][1]
    first, second = output["data"][:width], output["data"][width:]
    german = ids(repository, GERMAN)
    assert first[: len(german) + 1] == [0, *german]
    assert set(first[len(german) + 1 :]) | set(second[second.index(1) + 1 :]) == {0}


@pytest.mark.parametrize(
    ("rows", "mask", "sentence"),
    [
        ([[5, 40_000, 1]], None, "not from 0 to 32127"),
        ([[5, -1, 1]], None, "not from 0 to 32127"),
        ([[5, 6, 1]], [[0, 0, 0]], "attention_mask is 1 where there is text"),
        ([[5, 6, 1]], [[1, 1]], "not the same"),
        ([[5] * 513], None, "the model takes 1 to 512"),
    ],
)
def test_ids_that_mean_nothing_are_a_400_that_says_so(
    box: RunningBox, rows: list[list[int]], mask: list[list[int]] | None, sentence: str
) -> None:
    response = tokens(box, tensors(rows, mask))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert sentence in response.json()["error"]


def test_its_shared_memory_is_as_large_as_was_said(box: RunningBox, repository: Path) -> None:
    assert "shm-default-byte-size=1048576" in triton_line(box.process.pid)
    large = Settings.read({"SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": str(24 * 2**20)})
    with triton(("t5_translate",), repository, large) as transport:
        lines = triton_line(os.getpid())
        text = np.array([HOUSE.encode()], dtype=object)
        answers = transport.stream("t5_translate", {"text": text})
        assert b"".join(answer["token"][0] for answer in answers).decode() == GERMAN
    assert f"shm-default-byte-size={24 * 2**20}" in lines


def triton_line(pid: int) -> str:
    """The command lines of the Tritons below a process."""
    return " ".join(line for line in map(command_line, descendants(pid)) if "tritonserver" in line)
