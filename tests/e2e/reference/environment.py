"""The environment of the systems that answers are compared with, and what they answer there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_environments import HOME, python_with

#: Everything whose version may change an answer or a graph. Ultralytics is under the AGPL: tests alone install it.
VERSIONS = (
    "torch==2.14.1",
    "torchvision==0.29.1",
    "transformers==5.23.0",
    "sentence-transformers==6.2.0",
    "ultralytics==8.4.190",
    "onnx==1.23.2",
    "onnxruntime==1.31.1",
    "onnxslim==0.1.98",
    "soundfile==0.14.0",
)
SCRIPT = Path(__file__).with_name("make_references.py")
TIMEOUT_S = 900


def references() -> Path:
    """Return the folder with the models and the answers of other systems, which it makes once."""
    try:
        python = python_with(*VERSIONS)
    except subprocess.CalledProcessError as error:
        pytest.skip(
            f"torch, transformers and Ultralytics cannot be installed: pip ended with {error.returncode}"
        )
    key = hashlib.sha256(str(python).encode() + SCRIPT.read_bytes()).hexdigest()[:16]
    folder = HOME / f"references-{key}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=HOME) as made:
            # Ultralytics writes its settings into a folder of its own there.
            names = {"PATH": os.environ["PATH"], "HOME": made, "YOLO_CONFIG_DIR": made}
            done = subprocess.run(
                [python, SCRIPT, f"{made}/out"],
                cwd=made,
                env=names,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            Path(made, "out").rename(folder)
    return folder


def answers(folder: Path, name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the task of a model, and the requests with the system's answers."""
    found = json.loads((folder / f"{name}.json").read_text())
    return found["task"], found["rows"]
