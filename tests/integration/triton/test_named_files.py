"""A real Triton loads models whose configurations name files: from the overlay, and from an archive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from sm.models.archive_layout import Archive
from sm.models.staging import Staging
from sm.repository import overlay
from sm.repository.machine import Machine
from tests.support.tritons import MODELS, TritonProcess, prepare_triton

WARM_UP = """
model_warmup {
  name: "kept" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 input_data_file: "x.raw" } }
}
"""


def write(folder: Path, place: str) -> None:
    """Write an echo with labels at ``place``, which is a link out of its folder, and data for its warm-up."""
    MODELS["echo"].write(folder)
    config = folder / "config.pbtxt"
    text = config.read_text().replace('{name: "y"', f'{{name: "y", label_filename: "{place}"')
    config.write_text(f"{text}{WARM_UP}")
    (folder / "warmup").mkdir()
    (folder / "warmup" / "x.raw").write_bytes(bytes(16))
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text("cat\ndog\n")


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """Two models of a repository, of which one has its labels elsewhere, and one of an archive."""
    folder = tmp_path_factory.mktemp("named")
    serving = prepare_triton(folder, [])
    write(serving.box.repository / "plain", "labels.txt")
    write(serving.box.repository / "linked", "texts/labels.txt")
    shutil.move(serving.box.repository / "linked" / "texts", folder / "texts")
    (serving.box.repository / "linked" / "texts").symlink_to(folder / "texts")
    served = overlay.for_triton(serving.box.repository, serving.box.run / "repository", Machine())
    write(folder / "archived", "labels.txt")
    staging = Staging(served, folder / "archives")
    staging.add(
        Archive.read(staging.copy(folder / "archived", "id", "archived"), folder / "archived"),
        {"archived": "archived"},
    )
    serving.box = replace(serving.box, overlay=served)
    serving.start()
    yield serving
    serving.stop()


@pytest.mark.parametrize("model", ["plain", "linked", "archived"])
def test_an_answer_has_the_labels(triton: TritonProcess, model: str) -> None:
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 3]}],
        "outputs": [{"name": "y", "parameters": {"classification": 1}}],
    }
    answer = requests.post(
        f"http://127.0.0.1:{triton.box.http_port}/v2/models/{model}/infer", data=json.dumps(body), timeout=60
    )
    assert answer.json()["outputs"][0]["data"] == ["3.000000:1:dog"]
