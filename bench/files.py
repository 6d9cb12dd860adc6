"""Files that all contestants of a run share: graphs, labels, vocabularies and recorded tensors.

FILES/models/<model>/                  what the model's recipe built: model.onnx, labels, a vocabulary
FILES/{inputs,outputs}/<model>.npz     the sample's tensors: what an ordinary service makes of it, a batch
                                       of one, and what the graph makes of that
FILES/box/{inputs,outputs}/<model>.npz the same of the box's own client and the demo's graph
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.contestant import MODELS
from bench.recording import Recording
from bench.repositories import demo
from bench.samples import sample
from bench.work import WORKS, runner
from sm.errors import CommandError
from sm.plugins.checks import check
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.settings import HERE, Settings
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build.samples import InProcess
from trireme_tools.cache import Cache
from trireme_tools.prepare.recipes import Recipe


@contextmanager
def prepared() -> Iterator[Path]:
    """Fill a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
        prepare(Path(folder), Settings.read(os.environ))
        yield Path(folder)


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
    recording = work.model.run = Recording(work.model.run)
    work(sample(model).content)
    recording.save(folder, model)


def _record_box(model: str, folder: Path) -> None:
    """Record the box's client, with the demo's graph in this process instead of Triton."""
    graph = demo() / model / "1" / "model.onnx"
    recording = Recording(runner(graph, 1))
    source = ClientSource(model, HERE / "clients" / model / "client.py")
    triton = InProcess(Graph.read(graph), recording)
    client = load(source, triton, demo())
    check(client, source, triton)
    payload = json.loads((source.file.parent / "sample" / "payload.json").read_bytes())
    client.inference(client.payload.model_validate(payload))
    recording.save(folder, model)
