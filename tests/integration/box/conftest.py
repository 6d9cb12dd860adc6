"""The boxes that most tests share, and the models that they serve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.demo_box import box, cat, demo
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint
from tests.support.task_models import (
    new_model,
    write_segmenter,
    write_sound_model,
    write_text_model,
    write_tokenizer,
    write_translator,
)
from tests.support.tritons import MODELS, Model

__all__ = ["box", "cat", "demo"]


#: Clients of pictures and of tensors: the model's input is x, FP32 [-1, -1], and its output y.
SOURCES = {
    "shape.py": """
import time

from sm.client import Client, ImagePayload


class Shape(Client):
    payload = ImagePayload

    def inference(self, image):
        shape = image.pixels.shape
        time.sleep(0.3)
        return shape
""",
    "plain.py": """
from sm.client import TensorClient, TensorPayload


class Plain(TensorClient):
    model, payload = "echo", TensorPayload

    def preprocess(self, payload):
        return {"x": payload.array}

    def postprocess(self, outputs, payload):
        return outputs["y"]
""",
}


@pytest.fixture
def small_box(boxes: Boxes) -> RunningBox:
    """A box with small models, ``echo`` for requests that name none, sessions, and little room for pictures."""
    return boxes(
        ("counts", "echo", "fixed", "positive", "raises", "words"),
        ("platform", SOURCES),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        TRIREME_DECODE_MEMORY_MB="150",
    )


@pytest.fixture
def multi_model(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode."""
    return shared_endpoint(
        boxes,
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        TRIREME_STREAM_STALL_SECONDS="3",
        TRIREME_RESTARTS="50",  # more than the tests' faults cause
    )


#: The sum, the number, the longest and the shortest of the ids that are not padding. Slow enough that callers meet.
SENTENCES = Model(
    "time.sleep(0.01)\n"
    'ids = tensor(request, "ids").astype(np.float32)\n'
    "count, shortest = (ids > 0).sum(1), np.where(ids > 0, ids, np.inf).min(1)\n"
    'return {"vector": np.stack([ids.sum(1), count, ids.max(1), shortest], 1).astype(np.float32)}',
    {"ids": ("INT64", [-1])},
    {"vector": ("FP32", [4])},
    max_batch_size=8,
)
#: A vector for each token, as encoders have: its id, and the square.
ENCODER = Model(
    'ids = tensor(request, "input_ids").astype(np.float32)\n'
    'return {"last_hidden_state": np.stack([ids, ids**2], 2)}',
    {"input_ids": ("INT64", [-1])},
    {"last_hidden_state": ("FP32", [-1, 2])},
    max_batch_size=8,
)
#: The number of a pair's tokens.
RANKER = Model(
    'return {"logits": tensor(request, "attention_mask").sum(1, keepdims=True).astype(np.float32)}',
    {"input_ids": ("INT64", [-1]), "attention_mask": ("INT64", [-1])},
    {"logits": ("FP32", [1])},
    max_batch_size=8,
)


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A team's folder: models that the command wrote and others, and clients that tests of reloads edit."""
    folder = tmp_path_factory.mktemp("team")
    source = folder / "source"
    write_text_model(source / "mood", "text-classification", ("sad", "glad", "mad"))
    new_model("mood", folder, source / "mood", "--task", "text-classification")
    write_segmenter(source / "areas", ("red", "green", "blue"))
    files = {"labels": "labels.txt", "preprocess": "preprocess.json"}
    options = [f"--{name}={source / 'areas' / file}" for name, file in files.items()]
    new_model("areas", folder, source / "areas" / "model.onnx", "--task", "image-segmentation", *options)
    new_model("speech", folder, write_sound_model(source / "speech", "automatic-speech-recognition"))
    new_model("german", folder, write_translator(source / "german"))
    for name, model, task in (
        ("echo", MODELS["echo"], {}),
        ("sentences", SENTENCES, {}),
        ("encoder", ENCODER, {"task": "sentence-embeddings"}),
        ("ranker", RANKER, {"task": "text-classification", "relevance": "none", "max_length": 12}),
    ):
        model.write(folder / "model" / name)
        if task:
            write_tokenizer(folder / "model" / name)
            (folder / "model" / name / "task.json").write_text(json.dumps(task))
    (folder / "clients").mkdir()
    return folder


@pytest.fixture
def team_box(boxes: Boxes, team: Path) -> RunningBox:
    """A box that serves the team's folder and reloads what is edited."""
    # On a busy machine Triton's start takes longer than the default wait.
    return boxes(
        team / "model",
        ("embeddings", team / "clients"),
        arguments="--reload",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        TRIREME_WAIT_SECONDS="50",
    )
