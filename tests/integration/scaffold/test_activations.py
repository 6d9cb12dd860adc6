"""A graph that ends in a softmax answers with its own probabilities: no task makes others of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from sm.plugins.sources import ClientSource
from sm.repository.model_makers import RepositorySource, make
from sm.router.answers import dumps
from sm.settings import Settings
from tests.support.onnx_graphs import write_graph
from tests.support.task_models import (
    ask,
    describe_pictures,
    in_process,
    load_client,
    load_task,
    new_model,
    write_constants,
    write_sound_model,
    write_text_model,
)
from trireme_extensions.convert.targets import GRAPH
from trireme_extensions.tasks.hugging_face import ModelSource
from trireme_extensions.tasks.task_file import TASK_FILE
from trireme_tools.scaffold.new_model import SAMPLES

LABELS = ("sad", "glad", "mad")
LOGITS = np.array([2.0, 0.5, -1.0], np.float32)
PARTS = "most = ReduceMax(raw, end) less = Sub(raw, most) powers = Exp(less) total = ReduceSum(powers, end)"
BRANCH = """c = Constant<value = bool {1}>()
    logits = If<then_branch = a () => (float[b,n] p) { p = Softmax(raw) },
                else_branch = e () => (float[b,n] q) { q = Softmax(raw) }>(c)"""
#: How graphs end, and what is left for the task.
ENDS = {
    "softmax": ("logits = Softmax(raw)", "none"),
    "behind others": (
        "p = Softmax(raw) c = Cast<to = 10>(p) i = Identity(c) logits = Cast<to = 1>(i)",
        "none",
    ),
    "logarithms": ("logits = LogSoftmax(raw)", "softmax"),
    "logarithm of one": ("p = Softmax(raw) logits = Log(p)", "softmax"),
    "in parts": (f"end = Constant<value_ints = [-1]>() {PARTS} logits = Div(powers, total)", "none"),
    "in a branch": (BRANCH, "none"),
}


def end_in(graph: Path, text: str, opset: int = 18) -> None:
    """Let the output ``logits`` of a graph go through more nodes, of which the input is ``raw``."""
    model = onnx.load(graph)
    for node in model.graph.node:
        names = ["raw" if name == "logits" else name for name in node.output]
        node.output[:] = names
    added = parser.parse_graph(f"g (float[b,n] raw) => (float[b,n] logits) {{ {text} }}")
    model.graph.node.extend(added.node)
    model.opset_import[0].version = opset
    onnx.save(model, graph)


def write_picture_model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    write_constants(folder, "pixel_values", {"logits": LOGITS})
    describe_pictures(folder, LABELS, resize=8, crop=8, fit="squash")
    return folder / "model.onnx"


def write_model(folder: Path, task: str) -> tuple[Path, tuple[object, ...]]:
    """Write a model with plain scores; return its graph and the options of ``sm new-model``."""
    if task != "image-classification":
        return write_text_model(folder, task, () if task == "fill-mask" else LABELS), ("--task", task)
    graph, files = write_picture_model(folder), {"labels": "labels.txt", "preprocess": "preprocess.json"}
    return graph, (
        "--task",
        task,
        *(part for name, file in files.items() for part in (f"--{name}", folder / file)),
    )


def write_checkpoint(folder: Path, task: str) -> Path:
    """Write a folder as ``HF_MODEL_ID`` names one, with plain scores; return its graph."""
    if task == "audio-classification":
        return write_sound_model(folder, task) / "model.onnx"
    graph, _ = write_model(folder, task)
    if task == "image-classification":
        steps = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": 8, "width": 8},
            "image_mean": [0, 0, 0],
            "image_std": [1, 1, 1],
        }
        config = {"architectures": ["ViTForImageClassification"], "id2label": dict(enumerate(LABELS))}
        for name, content in (("preprocessor_config", steps), ("config", config)):
            (folder / f"{name}.json").write_text(json.dumps(content))
        for name in ("labels.txt", "preprocess.json"):
            (folder / name).unlink()
    return graph


def scores(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: scores(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [scores(value) for value in answer]
    return pytest.approx(answer, abs=2e-3) if isinstance(answer, float) else answer


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "task", ["image-classification", "text-classification", "token-classification", "fill-mask"]
)
def test_new_model_reads_the_end_of_the_graph_and_the_answer_is_that_of_the_plain_scores(
    task: str, end: str, tmp_path: Path
) -> None:
    answers = []
    for kind in ("plain", "ended"):
        graph, options = write_model(tmp_path / kind, task)
        text, remaining = ENDS[end]
        if kind == "ended":
            end_in(graph, text)
        model = new_model("mood", tmp_path / f"{kind}-models", graph, *options)
        answers.append(json.loads((model / "sample" / "golden.json").read_text()))
    assert json.loads((model / "task.json").read_text())["activation"] == remaining
    assert answers[1] == scores(answers[0])


@pytest.mark.parametrize(("end", "remaining"), [ENDS["behind others"], ENDS["logarithms"]])
@pytest.mark.parametrize("task", ["audio-classification", "image-classification", "text-classification"])
def test_a_folder_that_the_box_builds_answers_with_the_graphs_own_probabilities(
    task: str, end: str, remaining: str, tmp_path: Path
) -> None:
    """``HF_MODEL_ID`` reads the end of the graph as ``sm new-model`` does."""
    answers, settings = [], Settings.read({"HF_TASK": task, "TRIREME_CACHE": str(tmp_path / "cache")})
    payload = {"text": "Ada lives in Paris."} if task.startswith("text") else SAMPLES[task]
    for kind in ("plain", "ended"):
        (tmp_path / kind).mkdir()
        graph = write_checkpoint(tmp_path / kind, task)
        if kind == "ended":
            end_in(graph, end, 17)
        repository, said = make(settings, RepositorySource(tmp_path / kind, "HF_MODEL_ID"))
        assert bool(said) == (kind == "ended")
        model = repository / kind
        client = load_client(
            ClientSource(kind, model / TASK_FILE, "task"), in_process(model / "1" / GRAPH), repository
        )
        answers.append(json.loads(dumps(client.inference(client.payload.model_validate(payload)))))
    assert json.loads((model / TASK_FILE).read_text())["activation"] == remaining
    assert answers[1] == scores(answers[0])


def test_a_score_of_a_pair_of_texts_is_not_changed_again(tmp_path: Path) -> None:
    graph = write_checkpoint(tmp_path, "text-classification")
    end_in(graph, "logits = Sigmoid(raw)")
    source = ModelSource(graph, "text-classification")
    source.describe({"activation": "sigmoid", "relevance": "sigmoid"})
    assert source.read_activation()
    described = json.loads(source.files[TASK_FILE])
    assert (described["activation"], described["relevance"]) == ("none", "none")


def test_the_output_that_the_task_reads_decides(tmp_path: Path) -> None:
    graph = write_graph(
        tmp_path / GRAPH,
        "(float[b,3] x) => (float[b,3] shares, float[b,3] logits) { logits = Neg(x) shares = Softmax(x) }",
    )
    source = ModelSource(graph.path, "text-classification")
    source.describe({})
    assert not source.read_activation()
    assert "activation" not in json.loads(source.files[TASK_FILE])


def test_scores_of_each_label_by_itself_stay_as_they_are(tmp_path: Path) -> None:
    graph, options = write_model(tmp_path / "own", "image-classification")
    end_in(graph, "logits = Sigmoid(raw)")
    model = new_model("mood", tmp_path, graph, *options)
    best, *_ = json.loads((model / "sample" / "golden.json").read_text())
    assert best["score"] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "count"), [({}, 1), ({"activation": "softmax"}, 0), ({"activation": "none"}, 0)]
)
def test_a_model_that_is_no_graph_is_known_by_its_answers(
    options: Any, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan or a Python model has no nodes to read: its outputs lie in 0..1 and their sum is 1."""
    graph = write_text_model(tmp_path, "text-classification", LABELS)
    end_in(graph, "logits = Softmax(raw)")
    client = load_task(tmp_path, task="text-classification", **options)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ask(client, text="Ada lives in Paris.")
    assert len([record for record in caplog.records if record.name == "sm.client.described"]) == count


def test_plain_scores_are_not_doubted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text_model(tmp_path, "text-classification", LABELS)
    ask(load_task(tmp_path, task="text-classification"), text="Ada lives in Paris.")
    assert not [record for record in caplog.records if record.name == "sm.client.described"]
