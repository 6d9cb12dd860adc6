"""A model to run on several runtimes: its plain graph, and its client's answers to the samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import engines
from bench.engines import Feed, Run
from sm.client.base import Client
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.recipes import Recipe
from sm.commands.build.samples import PICTURES, InProcess
from sm.commands.golden import differences
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.repository.cache import Cache
from sm.router.answer import dumps
from sm.settings import HERE, Settings

MODELS = ("resnet", "yolov5", "bert_base")
TEXTS = (
    "The world has [MASK] people.",
    "Paris is the [MASK] of France.",
    "She opened the [MASK] and looked out.",
    "A [MASK] is a small animal that eats [MASK].",
    "They sailed across the [MASK] in a wooden boat.",
    "He wrote a long letter to his [MASK] before he left the country for good.",
)


@dataclass(frozen=True)
class Subject:
    """A model's plain graph with what its client makes of the samples."""

    name: str
    graph: Path
    repository: Path
    feeds: tuple[Feed, ...]
    answers: tuple[Any, ...]
    outputs: tuple[list[Any], ...]

    @property
    def names(self) -> tuple[list[str], list[str]]:
        graph = Graph.read(self.graph)
        return [value.name for value in graph.inputs], [value.name for value in graph.outputs]


class Recorder:
    """A way to run a graph, as a session has it; it keeps what went in and out."""

    def __init__(self, run: Run, names: Sequence[str]) -> None:
        self.run_feed, self.names = run, list(names)
        self.feeds: list[Feed] = []
        self.outputs: list[list[Any]] = []

    def run(self, wanted: list[str], feed: Feed, /) -> list[Any]:
        outputs = self.run_feed(feed)
        self.feeds.append(feed)
        self.outputs.append(outputs)
        return [outputs[self.names.index(name)] for name in wanted]


def subject(name: str, folder: Path) -> Subject:
    """Read a model from the cache of ``sm prepare``, with the samples' answers by ONNX Runtime."""
    recipe = Recipe.load(HERE / "model" / name)
    built = Cache(Settings.read({}).cache).models / name / recipe.key
    repository = folder / "repository"
    (repository / name).mkdir(parents=True)
    for path in (*built.iterdir(), HERE / "model" / name / "preprocess.json"):
        (repository / name / path.name).symlink_to(path)
    plain = Subject(name, built / "model.onnx", repository, (), (), ())
    recorder = Recorder(engines.runner("onnxruntime", plain.graph, plain.names, 2), plain.names[1])
    answers = tuple(client_answers(plain, plain.graph, recorder))
    return Subject(name, plain.graph, repository, tuple(recorder.feeds), answers, tuple(recorder.outputs))


def client_answers(of: Subject, graph: Path, recorder: Recorder) -> Iterator[Any]:
    """Yield the client's answers to its samples, with ``graph`` run by ``recorder``."""
    source = ClientSource(of.name, HERE / "clients" / of.name / "client.py")
    triton = InProcess(Graph.read(graph), recorder)
    client = load(source, triton, of.repository)
    check(client, source, triton)
    for payload in payloads(client):
        yield json.loads(dumps(client.inference(client.payload.model_validate(payload))))


def payloads(client: Client) -> Iterator[dict[str, Any]]:
    if "image" not in client.payload.model_fields:
        yield from ({"text": text} for text in TEXTS)
        return
    for path in sorted((client.folder / "sample").iterdir()):
        if path.suffix in PICTURES:
            yield {"image": path.read_bytes()}


def accuracy(of: Subject, way: str, file: Path) -> str:
    """``5 of 6 alike, within 0.02``; where a way gives other tensors, the answers alone."""
    graph = file if way in engines.ONNXRUNTIME else of.graph
    names = [value.name for value in Graph.read(graph).outputs]
    recorder = Recorder(engines.runner(way, file, of.names, 2), names)
    answers = list(client_answers(of, graph, recorder))
    alike = sum(
        not list(differences(answer, known)) for answer, known in zip(answers, of.answers, strict=True)
    )
    if [output.shape for output in recorder.outputs[0]] != [output.shape for output in of.outputs[0]]:
        return f"{alike} of {len(answers)} alike"
    worst = max(
        float(np.abs(a - b).max())
        for outputs, expected in zip(recorder.outputs, of.outputs, strict=True)
        for a, b in zip(outputs, expected, strict=True)
    )
    return f"{alike} of {len(answers)} alike, within {worst:.2g}"
