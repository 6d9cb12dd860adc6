"""Files that all contestants of a run share: graphs, labels, vocabularies and recorded tensors.

FILES/models/<model>/                  what the model's recipe built: model.onnx, labels, a vocabulary
FILES/{inputs,outputs}/<model>.npz     the sample's tensors: what an ordinary service makes of it, a batch
                                       of one, and what the graph makes of that
FILES/box/{inputs,outputs}/<model>.npz the same of the box's own client and the demo's graph
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.contestant import MODELS
from bench.repositories import demo
from bench.samples import sample
from bench.work import WORKS, Array, Outputs, Run, runner
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.samples import InProcess
from sm.errors import CommandError
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.repository.cache import Cache
from sm.settings import HERE, Settings
from trireme_tools.prepare.recipes import Recipe


def prepare(folder: Path, settings: Settings) -> None:
    """Fill ``folder``; :class:`CommandError` where the demo's models are not there."""
    for part in ("models", "inputs", "outputs", "box/inputs", "box/outputs"):
        (folder / part).mkdir(parents=True)
    for model in MODELS:
        recipe = Recipe.load(HERE / "model" / model)
        built = Cache(settings.cache).models / model / recipe.key
        if not (built / "model.onnx").is_file() or not (demo() / model).is_dir():
            raise CommandError(f"{model} is not there; make it with: sm prepare")
        (folder / "models" / model).symlink_to(built)
        _record(model, folder)
        _record_box(model, folder / "box")


def _record(model: str, folder: Path) -> None:
    """Run the common work once on the sample, and save the graph's inputs and outputs."""
    work = WORKS[model](folder, "real")
    work.model.run = _Recording(work.model.run, folder, model)
    work(sample(model).content)


class _Recording:
    """Runs a graph and keeps its inputs and outputs."""

    def __init__(self, run: Run, folder: Path, model: str) -> None:
        self._run, self._folder, self._model = run, folder, model

    def __call__(self, inputs: Mapping[str, Array]) -> Outputs:
        outputs = self._run(inputs)
        np.savez(self._folder / "inputs" / f"{self._model}.npz", **inputs)
        np.savez(self._folder / "outputs" / f"{self._model}.npz", **outputs)
        return outputs

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Run it with the interface of an ONNX Runtime session."""
        outputs = self(inputs)
        return [outputs[name] for name in names or outputs]


def _record_box(model: str, folder: Path) -> None:
    """Record the box's client, with the demo's graph in this process instead of Triton."""
    graph = demo() / model / "1" / "model.onnx"
    recording = _Recording(runner(graph, 1), folder, model)
    source = ClientSource(model, HERE / "clients" / model / "client.py")
    triton = InProcess(Graph.read(graph), recording)
    client = load(source, triton, demo())
    check(client, source, triton)
    payload = json.loads((source.file.parent / "sample" / "payload.json").read_bytes())
    client.inference(client.payload.model_validate(payload))
