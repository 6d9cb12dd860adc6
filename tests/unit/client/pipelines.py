"""Requests in Hugging Face's form, and folders of its form for each task."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from sm.client.base import Client
from sm.invocation import Invocation
from sm.models.table import models_of
from sm.router.answers import write_call
from sm.router.classify import RequestClassifier
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest, Message
from tests.support.onnx_graphs import write_graph
from tests.support.task_models import (
    load_task,
    load_translator,
    tones,
    write_constants,
    write_segmenter,
    write_sound_model,
    write_text_model,
    write_translator,
)
from trireme_extensions.tasks.hugging_face import read_folder

ANSWERS_FILE = Path(__file__).with_name("pipeline_answers.json")
LABELS: dict[str, tuple[str, ...]] = {
    "text-classification": ("sad", "glad", "mad"),
    "token-classification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    "zero-shot-classification": ("contradiction", "neutral", "entailment"),
    "image-classification": ("red", "green", "blue"),
    "object-detection": ("cat", "dog", "bird"),
    "image-segmentation": ("sky", "sea", "sand"),
    "audio-classification": ("|", "a", "b", "c"),
}
#: Tokens that a model reads.
MAX_TOKENS = {"token-classification": 14, "zero-shot-classification": 24}
GENERATED = ("text2text-generation", "summarization", "translation")
#: A text that no model reads at once.
LONG = {"question": "where ?", "context": "does . " * 150 + "live does ." + " . does" * 130}


def stand_in(name: str) -> Any:
    """Return what a name stands for: a long text, or a recording or the picture of a seed in base64."""
    if name == "#long":
        return LONG
    file = io.BytesIO()
    if name == "#sound":
        soundfile.write(file, tones("abba"), 16_000, format="WAV")
    else:
        pixels = np.random.default_rng(int(name[1:])).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def encoded(inputs: Any) -> Any:
    """Return inputs as a caller sends them."""
    if isinstance(inputs, list):
        return [encoded(each) for each in inputs]
    return stand_in(inputs) if isinstance(inputs, str) and inputs.startswith("#") else inputs


#: Scores that are made of the means of the channels.
CLASSIFIER = """(float[b,3,8,8] pixel_values) => (float[b,3] logits)
<float[3,3] layer = {2, -1, 0.5, 1, 3, -2, -1, 1, 2}> {
    means = ReduceMean<axes = [2, 3], keepdims = 0>(pixel_values)
    logits = MatMul(means, layer)
}"""
#: What a DETR finds in every picture, not in the order of the scores.
OBJECTS = {
    "logits": [[1, 2, 0, 1.5], [0, 0, 6, 1], [2, 0, 0, 9], [5, 0, 1, 0]],
    "pred_boxes": [[0.5, 0.5, 0.4, 0.9], [0.3, 0.4, 0.2, 0.3], [0.5, 0.5, 1, 1], [0.6, 0.7, 0.33, 0.21]],
}
PROCESSORS = {
    "image-classification": "ViTImageProcessor",
    "object-detection": "DetrImageProcessor",
    "image-segmentation": "SegformerImageProcessor",
}
STEPS = {
    "do_resize": True,
    "size": {"height": 8, "width": 8},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
    "do_reduce_labels": False,
    "do_pad": False,
}


def write_model(folder: Path, task: str) -> None:
    """Write a folder of Hugging Face's form for a task."""
    labels = LABELS.get(task, ())
    if task in GENERATED:
        write_translator(folder)
        (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 9, "num_beams": 1}))
    elif task == "audio-classification":
        write_sound_model(folder, task)
    elif task not in PROCESSORS:
        write_text_model(folder, "text-classification" if task.startswith("zero-shot") else task, labels)
        if task in MAX_TOKENS:
            described = {"tokenizer_class": "BertTokenizer", "model_max_length": MAX_TOKENS[task]}
            (folder / "tokenizer_config.json").write_text(json.dumps(described))
    else:
        if task == "object-detection":
            rows = {name: np.array(each, np.float32) for name, each in OBJECTS.items()}
            write_constants(folder, "pixel_values", rows)
        elif task == "image-segmentation":
            write_segmenter(folder, labels)
        else:
            write_graph(folder / "model.onnx", CLASSIFIER)
        config = {"model_type": "vit", "id2label": dict(enumerate(labels))}
        (folder / "config.json").write_text(json.dumps(config))
        steps = {"image_processor_type": PROCESSORS[task], **STEPS}
        (folder / "preprocessor_config.json").write_text(json.dumps(steps))


def load(folder: Path, task: str) -> Client:
    """Load the client of a task, as a start with ``HF_MODEL_ID`` and ``HF_TASK`` does."""
    folder.mkdir(exist_ok=True)
    write_model(folder, task)
    (folder / "labels.txt").unlink(missing_ok=True)
    read_folder(folder, task).write_files(folder)
    options = json.loads((folder / "task.json").read_text())
    return load_translator(folder, **options) if task in GENERATED else load_task(folder, **options)


def compact(value: Any, depth: int) -> str:
    """Return JSON with one item per line in what lies so deep, and everything deeper on the item's line."""
    if not depth or not isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(compact(each, depth - 1) for each in value) + "\n]"
    rows = (f"{json.dumps(name)}: {compact(each, depth - 1)}" for name, each in value.items())
    return "{\n" + ",\n".join(rows) + "\n}"


def parse(client: Client, body: Any, kind: str = "application/json") -> Any:
    classifier = RequestClassifier(models_of({client.name: client}), client.name)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classifier.parse(Message(content, {"content-type": kind}, {}, "id"))


def ask(client: Client, inputs: Any, **parameters: Any) -> Any:
    return ask_body(client, {"inputs": inputs, **({"parameters": parameters} if parameters else {})})


def ask_body(client: Client, body: Any, kind: str = "application/json") -> Any:
    request = parse(client, body, kind)
    assert isinstance(request, DispatchRequest)
    numbers = range(len(request.records))
    results = [run_record(request, Invocation(math.inf), number, request.place(number)) for number in numbers]
    assert request.call is not None
    return json.loads(write_call(request, request.call, iter(results)).read())
