"""The example efficientnet_lite in a real box: an ONNX classifier with class names."""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from sm.client.images import decode
from sm.client.preprocessing import Preprocessing
from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from trireme_tools.prepare.recipes import PACKAGE, Recipe

MODEL = "efficientnet_lite"
EXAMPLE = HERE / "examples" / MODEL
SAMPLE = EXAMPLE / "repository/code" / MODEL / "sample"
GOLDEN = json.loads((SAMPLE / "golden-pictures.json").read_bytes())


@pytest.fixture(scope="module")
def repository(example_repository: Callable[[str], Path]) -> Path:
    return example_repository(MODEL)


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    return boxes(repository)


def classify(box: RunningBox, name: str, **parameters: str) -> requests.Response:
    """Send a sample picture as the raw body, with the parameters in the query."""
    content_type = "image/png" if name.endswith("png") else "image/jpeg"
    return box.send((SAMPLE / name).read_bytes(), content_type, params={"modelname": MODEL, **parameters})


def result_of(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_picture_gets_the_five_labels_of_pytorch(box: RunningBox, name: str) -> None:
    assert list(differences(result_of(classify(box, name)), GOLDEN[name])) == []


def test_k_sets_the_number_of_labels(box: RunningBox) -> None:
    (espresso,) = result_of(classify(box, "coffee.jpg", k="1"))
    assert espresso["label"] == "espresso"
    all_classes = result_of(classify(box, "coffee.jpg", k="1000"))
    assert len(all_classes) == 1000
    assert sum(row["score"] for row in all_classes) == pytest.approx(1, abs=0.05)  # of rounded scores


def test_a_caller_can_get_probabilities_or_logits(box: RunningBox, repository: Path) -> None:
    probabilities = np.array(result_of(classify(box, "cat.png", output="probabilities")))
    logits = np.array(result_of(classify(box, "cat.png", output="logits")))
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    labels = (repository / MODEL / "labels.txt").read_text().splitlines()
    assert labels[probabilities.argmax()] == GOLDEN["cat.png"][0]["label"]
    assert np.exp(logits) / np.exp(logits).sum() == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_tritons_classification_extension_gives_class_names(
    box: RunningBox, repository: Path, output: str
) -> None:
    pixels = decode((SAMPLE / "coffee.jpg").read_bytes())
    tensor = Preprocessing.read(repository / MODEL / "preprocess.json")(pixels)
    body = {
        "inputs": [
            {
                "name": "input",
                "datatype": "FP32",
                "shape": [1, *tensor.shape],
                "data": tensor.ravel().tolist(),
            }
        ],
        "outputs": [{"name": output, "parameters": {"classification": 3}}],
    }
    response = requests.post(f"{box.url}/v2/models/{MODEL}/infer", json=body, timeout=60)
    assert response.status_code == 200, response.text
    rows = [row.split(":", 2) for row in response.json()["outputs"][0]["data"]]
    assert [label for _, _, label in rows] == [row["label"] for row in GOLDEN["coffee.jpg"][:3]]
    assert rows[0][1] == "967"


def test_a_weights_file_that_unpickles_anything_but_tensors_is_refused() -> None:
    reader = state_dict_reader()
    file = io.BytesIO(pickle.dumps(reader.MAGIC) + pickle.dumps(print))
    with pytest.raises(reader.RefusedFile, match=r"builtins\.print"):
        reader.read(file)


@pytest.mark.parametrize("content", [b"", b"PK\3\4", pickle.dumps(1)])
def test_a_file_that_is_no_weights_file_is_refused(content: bytes) -> None:
    reader = state_dict_reader()
    with pytest.raises(reader.RefusedFile):
        reader.read(io.BytesIO(content))


def state_dict_reader() -> Any:
    """The recipe's reader of weights files; loading the recipe makes its package importable."""
    Recipe.load(EXAMPLE)
    return importlib.import_module(f"{PACKAGE}.{MODEL}.state_dict")
