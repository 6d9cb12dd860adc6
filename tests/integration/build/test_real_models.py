"""Two real models from their packages can be built with one command, served by a box and invoked.

silero-vad has a scalar input, a branch on it, and outputs of unknown sizes. PaddleOCR's detector takes any
height and width that is a multiple of 32.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
import requests
from numpy.typing import NDArray

from sm.commands.build.build_request import BuildRequest
from sm.commands.build.model_builder import ModelBuilder
from sm.commands.progress import Progress
from sm.repository.cache import Cache
from sm.repository.manifest import Manifest
from sm.settings import Settings
from tests.support.boxes import RunningBox, running_box
from trireme_tools.prepare.packages import Fetcher, Registries, Source

pytestmark = pytest.mark.exhaustive

SPEECH_PACKAGE = Source(
    "pypi",
    "silero-vad",
    "6.2.3",
    "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    11_317_527,
    "MIT",
)
TEXT_PACKAGE = Source(
    "pypi",
    "rapidocr_onnxruntime",
    "1.4.4",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    14_915_192,
    "Apache-2.0",
)
GRAPHS = {
    "speech": (SPEECH_PACKAGE, "silero_vad/data/silero_vad.onnx"),
    "text_detector": (TEXT_PACKAGE, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    cache, progress = Cache(Settings.read(os.environ).cache), Progress(io.StringIO())
    fetcher = Fetcher(cache, Registries(cache, progress, os.environ), progress)
    folder, paths = tmp_path_factory.mktemp("graphs"), {}
    for name, (source, member) in GRAPHS.items():
        with zipfile.ZipFile(fetcher.fetch(source, name)) as wheel:
            paths[name] = Path(wheel.extract(member, folder))
    return paths


@pytest.fixture(scope="module")
def repository(graphs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    (folder / "model").mkdir()
    builder = ModelBuilder(Cache(folder / "cache"), folder / "model", Progress(io.StringIO()))
    for name, path in graphs.items():
        builder.build(BuildRequest(name, "cpu", folder / "out", path))
    return folder / "out"


@pytest.fixture(scope="module")
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with running_box(tmp_path_factory.mktemp("box"), repository, clients=()) as started:
        yield started


def infer(box: RunningBox, model: str, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Send tensors with the v2 protocol's binary extension; return the outputs."""
    datatypes = {"float32": "FP32", "int64": "INT64"}
    tensors = [
        {
            "name": name,
            "datatype": datatypes[str(array.dtype)],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    head = json.dumps({"inputs": tensors}).encode()
    response = requests.post(
        f"{box.url}/v2/models/{model}/infer",
        data=head + b"".join(array.tobytes() for array in inputs.values()),
        headers={
            "Inference-Header-Content-Length": str(len(head)),
            "Content-Type": "application/octet-stream",
        },
        timeout=60,
    )
    assert response.status_code == 200, response.text
    return {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in response.json()["outputs"]
    }


@pytest.mark.parametrize(("rate", "window"), [(16000, 512), (8000, 256)])
def test_speech_probabilities_equal_those_of_the_packages_graph(
    box: RunningBox, graphs: dict[str, Path], rate: int, window: int
) -> None:
    source = onnxruntime.InferenceSession(graphs["speech"], providers=["CPUExecutionProvider"])
    state = expected_state = np.zeros((2, 1, 128), np.float32)
    generator = np.random.default_rng(1)
    for sound in (np.zeros(window), np.sin(np.arange(window) * 880 / rate), generator.normal(0, 0.3, window)):
        samples = sound.astype(np.float32)[None]
        outputs = infer(box, "speech", {"input": samples, "state": state, "sr": np.array([rate])})
        source_inputs = {"input": samples, "state": expected_state, "sr": np.array(rate)}
        probability, expected_state = source.run(["output", "stateN"], source_inputs)
        assert outputs["output"] == pytest.approx(probability, abs=1e-5)
        assert outputs["stateN"] == pytest.approx(expected_state, abs=1e-4)
        state = outputs["stateN"]


def test_the_text_detector_finds_words_where_they_are(box: RunningBox) -> None:
    page = np.full((160, 480, 3), 255, np.uint8)
    cv2.putText(page, "Trireme serves", (40, 90), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)
    pixels = (page.astype(np.float32) / 255 - 0.5) / 0.5
    outputs = infer(box, "text_detector", {"x": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
    (text_scores,) = outputs.values()
    assert text_scores.shape == (1, 1, 160, 480)
    assert text_scores[0, 0, 60:85, 60:400].mean() > 0.5
    assert text_scores[0, 0, 120:, :].max() < 0.3


def test_the_manifest_records_the_sizes_that_were_compared(repository: Path) -> None:
    manifest = Manifest.read(repository / "text_detector" / "1")
    assert manifest is not None
    assert manifest.accuracy is not None
    assert {"1x32", "1x64", "8x64"} <= set(manifest.accuracy.sizes)
