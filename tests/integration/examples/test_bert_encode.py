"""The example bert_encode turns sentences into vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from numpy.typing import NDArray

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox

EXAMPLE = HERE / "examples" / "bert_encode"
SAMPLE = EXAMPLE / "repository" / "code" / "bert_encode" / "sample"
SEQUENCE_LENGTH, EMBEDDING_SIZE, MAX_BATCH = 128, 384, 16
SENTENCES = (
    "A kitten sleeps on a sunny wall.",
    "Cats like to lie where it is warm.",
    "The central bank raised its interest rate again.",
    "Borrowing money has become more expensive.",
)


@pytest.fixture
def box(boxes: Boxes, example_repository: Callable[[str], Path]) -> RunningBox:
    return boxes(example_repository("bert_encode"))


def tensor_request(rows: int = 1, datatype: str = "INT32", length: int = SEQUENCE_LENGTH) -> dict[str, Any]:
    """The request of the reference system's caller: each row has other word pieces, padded to the length."""
    ids = np.zeros((rows, length), int)
    ids[:, :8] = 2000 + np.arange(rows * 8).reshape(rows, 8)
    return {
        "inputs": [
            {"name": name, "shape": list(data.shape), "datatype": datatype, "data": data.ravel().tolist()}
            for name, data in {"token_ids": ids, "attn_mask": (ids > 0).astype(int)}.items()
        ]
    }


def infer(url: str, body: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    response = requests.post(url, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in response.json()["outputs"]
    }


def test_the_sample_gives_the_golden_answer(box: RunningBox) -> None:
    payload, golden = (json.loads((SAMPLE / f"{name}.json").read_text()) for name in ("payload", "golden"))
    result = box.invoke("bert_encode", payload).json()["result"]
    np.testing.assert_allclose(result["embedding"], golden["embedding"], atol=1e-4)


def test_sentences_of_similar_meaning_have_similar_vectors(box: RunningBox) -> None:
    answer = box.invoke("bert_encode", list(SENTENCES)).json()
    vectors = np.array([result["embedding"] for result in answer["result"]])
    similarities = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(similarities), 1, atol=1e-5)
    assert min(similarities[0, 1], similarities[2, 3]) > 0.3
    assert similarities[:2, 2:].max() < 0.1


@pytest.mark.parametrize("text", ["", "word " * 200])
def test_an_empty_or_too_long_text_is_a_422_that_says_so(box: RunningBox, text: str) -> None:
    response = box.invoke("bert_encode", {"text": text})
    assert (response.status_code, response.json()["field"]) == (422, "payload.text")


def test_the_reference_systems_tensors_are_accepted_and_returned(box: RunningBox) -> None:
    outputs = infer(f"{box.url}/v2/models/bert_encode/infer", tensor_request(2))
    assert {name: array.shape for name, array in outputs.items()} == {
        "output": (2, SEQUENCE_LENGTH, EMBEDDING_SIZE),
        "pooled_output": (2, EMBEDDING_SIZE),
    }
    outputs_of_invocations = infer(f"{box.url}/invocations?modelname=bert_encode", tensor_request(2))
    np.testing.assert_allclose(outputs_of_invocations["pooled_output"], outputs["pooled_output"], atol=1e-5)


@pytest.mark.parametrize("changes", [{"datatype": "INT64"}, {"length": 64}, {"rows": MAX_BATCH + 1}])
def test_tensors_of_other_types_or_sizes_are_a_400(box: RunningBox, changes: dict[str, Any]) -> None:
    response = requests.post(
        f"{box.url}/v2/models/bert_encode/infer", json=tensor_request(**changes), timeout=60
    )
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


def test_an_unknown_word_piece_is_a_400_that_says_so(box: RunningBox) -> None:
    body = tensor_request()
    body["inputs"][0]["data"][3] = 99_999
    response = requests.post(f"{box.url}/v2/models/bert_encode/infer", json=body, timeout=60)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert "99999" in response.text
