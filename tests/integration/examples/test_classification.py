"""The example efficientnet_lite in a real box: an ONNX classifier with the names of its classes."""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from sm.client.images import decode
from sm.client.preprocessing import Preprocessing
from sm.settings import HERE
from sm.tools.build.recipes import PACKAGE, Recipe
from sm.tools.golden import differences
from tests.support.boxes import RunningBox, running_box

MODEL = "efficientnet_lite"
EXAMPLE = HERE / "examples" / MODEL
SAMPLE = EXAMPLE / "repository/code" / MODEL / "sample"
GOLDEN = json.loads((SAMPLE / "golden-pictures.json").read_bytes())


@pytest.fixture(scope="module")
def repository(example_repository: Callable[[str], Path]) -> Path:
    return example_repository(MODEL)


@pytest.fixture(scope="module")
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("classification")
    with running_box(folder, repository, TRIREME_CLIENTS="") as box:
        yield box


def ask(box: RunningBox, name: str, **asked: str) -> requests.Response:
    """A picture of the sample as the whole body, what is asked of it in the query."""
    content_type = "image/png" if name.endswith("png") else "image/jpeg"
    return box.send((SAMPLE / name).read_bytes(), content_type, params={"modelname": MODEL, **asked})


def result(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_picture_gets_the_five_labels_that_pytorch_gives_it(box: RunningBox, name: str) -> None:
    assert list(differences(result(ask(box, name)), GOLDEN[name])) == []


def test_k_says_how_many(box: RunningBox) -> None:
    (espresso,) = result(ask(box, "coffee.jpg", k="1"))
    assert espresso["label"] == "espresso"
    every = result(ask(box, "coffee.jpg", k="1000"))
    assert len(every) == 1000
    assert sum(each["score"] for each in every) == pytest.approx(1, abs=0.05)  # of rounded scores


def test_the_raw_outputs_are_to_be_had(box: RunningBox, repository: Path) -> None:
    probabilities = np.array(result(ask(box, "cat.png", output="probabilities")))
    logits = np.array(result(ask(box, "cat.png", output="logits")))
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    labels = (repository / MODEL / "labels.txt").read_text().splitlines()
    assert labels[probabilities.argmax()] == GOLDEN["cat.png"][0]["label"]
    assert np.exp(logits) / np.exp(logits).sum() == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.parametrize("asked", [{"k": "0"}, {"k": "1001"}, {"k": "some"}, {"output": "picture"}])
def test_a_wrong_parameter_is_a_422_that_names_it(box: RunningBox, asked: dict[str, str]) -> None:
    response = ask(box, "cat.png", **asked)
    assert (response.status_code, response.json()["field"]) == (422, f"parameters.{next(iter(asked))}")


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_tritons_classification_extension_knows_the_names(
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
    assert [label for _, _, label in rows] == [each["label"] for each in GOLDEN["coffee.jpg"][:3]]
    assert rows[0][1] == "967"


def test_the_weights_file_may_ask_for_nothing_but_tensors() -> None:
    recipe = state_dict()
    file = io.BytesIO(pickle.dumps(recipe.MAGIC) + pickle.dumps(print))
    with pytest.raises(recipe.RefusedFile, match=r"asks for builtins\.print, which is refused"):
        recipe.read(file)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "damaged"), (b"PK\3\4", "damaged"), (pickle.dumps(1), "no PyTorch file of the old kind")],
)
def test_a_file_that_is_none_is_refused(content: bytes, why: str) -> None:
    recipe = state_dict()
    with pytest.raises(recipe.RefusedFile, match=why):
        recipe.read(io.BytesIO(content))


def state_dict() -> Any:
    """The recipe's reader; loading the recipe makes its package."""
    Recipe.load(EXAMPLE)
    return importlib.import_module(f"{PACKAGE}.{MODEL}.state_dict")
