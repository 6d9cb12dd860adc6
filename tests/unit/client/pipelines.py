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
from sm.models.found_clients import models_of
from sm.router.answers import write_pipeline
from sm.router.classify import Classifier
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest, Message
from sm.server.hugging_face import read_folder
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

TEXT, MORE = "Ada lives in Paris.", "where does she live?"
PEOPLE = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
MASKED, TWICE = "ada [MASK] in paris .", "ada [MASK] in [MASK] ."
#: Words that the tokenizer parts, and one that it does not know.
PARTED = "Adas lives, zoe parisss"
QUESTION = {"question": "where does she live ?", "context": "Ada lives in Paris, she? where"}
LONG = {"question": "where ?", "context": "does . " * 150 + "live does ." + " . does" * 130}
CANDIDATES = {"candidate_labels": ["paris", "ada", "live"]}
LABELS: dict[str, tuple[str, ...]] = {
    "text-classification": ("sad", "glad", "mad"),
    "token-classification": PEOPLE,
    "zero-shot-classification": ("contradiction", "neutral", "entailment"),
    "image-classification": ("red", "green", "blue"),
    "object-detection": ("cat", "dog", "bird"),
    "image-segmentation": ("sky", "sea", "sand"),
    "audio-classification": ("|", "a", "b", "c"),
}
Request = tuple[Any, dict[str, Any]]
#: Inputs that begin with # stand for a picture or a recording.
REQUESTS: dict[str, list[Request]] = {
    "text-classification": [
        (TEXT, {}),
        ([TEXT], {}),
        ([TEXT, MORE], {}),
        ({"text": TEXT, "text_pair": MORE}, {}),
        ([{"text": TEXT, "text_pair": MORE}, {"text": MORE}], {}),
        *((inputs, {"top_k": top}) for inputs in (TEXT, [TEXT], [TEXT, MORE]) for top in (1, 2, 99, None)),
        ({"text": TEXT}, {"top_k": 2}),
        *((TEXT, {"function_to_apply": name}) for name in ("sigmoid", "softmax", "none", "SIGMOID", "tanh")),
        (TEXT, {"function_to_apply": None}),
        ([TEXT, MORE], {"function_to_apply": "none", "top_k": None}),
    ],
    "token-classification": [
        *((inputs, {}) for inputs in (TEXT, [TEXT], [TEXT, MORE], PARTED)),
        *(
            (inputs, {"aggregation_strategy": name})
            for inputs in (PARTED, [TEXT, PARTED])
            for name in ("none", "simple", "first", "average", "max", "MAX", "last", None)
        ),
        (PARTED, {"ignore_labels": []}),
        (PARTED, {"ignore_labels": ["B-PER", "I-LOC"]}),
        (PARTED, {"ignore_labels": ["PER"], "aggregation_strategy": "simple"}),
        (PARTED, {"ignore_labels": [], "aggregation_strategy": "average"}),
    ],
    "fill-mask": [
        *((inputs, {}) for inputs in (MASKED, [MASKED], [MASKED, "she [MASK]"], TWICE, [TWICE], TEXT)),
        *((MASKED, {"top_k": top}) for top in (1, 3)),
        (TWICE, {"top_k": 2}),
        (MASKED, {"targets": "paris"}),
        (MASKED, {"targets": ["paris", "lives", "ada"]}),
        (TWICE, {"targets": ["paris", "lives", "ada"], "top_k": 2}),
        (MASKED, {"targets": ["paris", "lived"], "top_k": 9}),
        (MASKED, {"targets": []}),
    ],
    "question-answering": [
        *((inputs, {}) for inputs in (QUESTION, [QUESTION], [QUESTION, LONG], LONG)),
        *((QUESTION, {name: top}) for name in ("top_k", "topk") for top in (1, 2, 5)),
        ([QUESTION, LONG], {"top_k": 3}),
        *((QUESTION, {"max_answer_len": most}) for most in (1, 2, 100)),
        *((each, {"handle_impossible_answer": True, "top_k": 9}) for each in (QUESTION, LONG)),
        (QUESTION, {"align_to_words": False, "top_k": 3}),
        (QUESTION, {"max_answer_len": 0}),
        (QUESTION, {"top_k": 0}),
        ({"question": "", "context": "ada"}, {}),
        ({"question": "ada"}, {}),
    ],
    "zero-shot-classification": [
        *((inputs, CANDIDATES) for inputs in (TEXT, [TEXT], [TEXT, MORE])),
        (TEXT, {"candidate_labels": "paris, ada"}),
        (TEXT, {"candidate_labels": ["paris"]}),
        (TEXT, {**CANDIDATES, "multi_label": True}),
        ([TEXT], {**CANDIDATES, "hypothesis_template": "she lives in {} ."}),
        (TEXT, {**CANDIDATES, "hypothesis_template": "she lives"}),
        (TEXT, {}),
        (TEXT, {"candidate_labels": []}),
    ],
    "image-classification": [
        *((inputs, {}) for inputs in ("#1", ["#1"], ["#1", "#2"])),
        *(("#1", {"top_k": top}) for top in (1, 2, 99, None)),
        *(("#1", {"function_to_apply": name}) for name in ("sigmoid", "none", "SOFTMAX", "tanh")),
    ],
    "object-detection": [
        *((inputs, {}) for inputs in ("#1", ["#1"], ["#1", "#2"])),
        *(("#1", {"threshold": least}) for least in (0.0, 0.3, 0.9, 1.0)),
    ],
    "image-segmentation": [(inputs, {}) for inputs in ("#1", ["#1"], ["#1", "#2"])],
    "audio-classification": [
        *((inputs, {}) for inputs in ("#sound", ["#sound"])),
        *(("#sound", {"top_k": top}) for top in (1, 99, None)),
        *(("#sound", {"function_to_apply": name}) for name in ("sigmoid", "none", "softmax", "tanh")),
    ],
    "text2text-generation": [
        *((inputs, {}) for inputs in ("ada lives in paris", ["ada lives"], ["ada", "ada lives in paris"])),
        *(("ada lives in paris", {"max_new_tokens": most}) for most in (1, 2)),
        *(("ada lives in paris", {"max_length": most}) for most in (2, 3)),
        ("ada lives in paris", {"num_beams": 3}),
        ("ada ada ada ada", {"no_repeat_ngram_size": 2, "num_beams": 1}),  # 4 by default since 4.50
        ("ada ada ada", {"repetition_penalty": 9.0}),
        ("ada", {"min_new_tokens": 3, "num_beams": 1}),
        ("ada lives", {"min_length": 2, "num_beams": 2, "length_penalty": 2.0, "early_stopping": True}),
        ("ada lives in paris", {"do_sample": False, "num_return_sequences": 1}),
    ],
    "summarization": [(inputs, {}) for inputs in ("ada lives in paris", ["ada"], ["ada", "lives"])],
    "translation": [(inputs, {}) for inputs in ("ada lives in paris", ["ada"])],
}
GENERATED = ("text2text-generation", "summarization", "translation")


def picture(name: str) -> str:
    """Return a picture, or a recording, in base64."""
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
    return picture(inputs) if isinstance(inputs, str) and inputs.startswith("#") else inputs


CLASSIFIER = """(float[b,3,8,8] pixel_values) => (float[b,3] logits)
<float[3,3] layer = {2, -1, 0.5, 1, 3, -2, -1, 1, 2}> {
    means = ReduceMean<axes = [2, 3], keepdims = 0>(pixel_values)
    logits = MatMul(means, layer)
}"""


def write_classifier(folder: Path) -> None:
    """Write a graph whose scores are made of the means of the channels."""
    write_graph(folder / "model.onnx", CLASSIFIER)


def write_detector(folder: Path) -> None:
    """Write a DETR that finds the same in every picture, not in the order of the scores."""
    logits = [[1, 2, 0, 1.5], [0, 0, 6, 1], [2, 0, 0, 9], [5, 0, 1, 0]]
    boxes = [[0.5, 0.5, 0.4, 0.9], [0.3, 0.4, 0.2, 0.3], [0.5, 0.5, 1, 1], [0.6, 0.7, 0.33, 0.21]]
    rows = {"logits": np.array(logits, np.float32), "pred_boxes": np.array(boxes, np.float32)}
    write_constants(folder, "pixel_values", rows)


PROCESSORS = {"object-detection": "DetrImageProcessor", "image-segmentation": "SegformerImageProcessor"}
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
        return
    if task == "audio-classification":
        write_sound_model(folder, task)
        return
    if not task.startswith(("image", "object")):
        own = "text-classification" if task.startswith("zero-shot") else task
        write_text_model(folder, own, labels)
        return
    {"image-segmentation": lambda each: write_segmenter(each, labels)}.get(
        task, write_detector if task == "object-detection" else write_classifier
    )(folder)
    config = {"model_type": "vit", "id2label": {str(number): each for number, each in enumerate(labels)}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": PROCESSORS.get(task, "ViTImageProcessor"), **STEPS})
    )


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


def parse(client: Client, body: Any) -> Any:
    classifier = Classifier(models_of({client.name: client}), client.name)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classifier.parse(Message(content, {"content-type": "application/json"}, {}, "id"))


def ask(client: Client, inputs: Any, **parameters: Any) -> Any:
    return ask_body(client, {"inputs": inputs, **({"parameters": parameters} if parameters else {})})


def ask_body(client: Client, body: Any) -> Any:
    request = parse(client, body)
    assert isinstance(request, DispatchRequest)
    numbers = range(len(request.records))
    results = [run_record(request, Invocation(math.inf), number, request.place(number)) for number in numbers]
    return json.loads(write_pipeline(request, results).read())
