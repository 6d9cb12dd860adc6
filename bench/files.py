"""What all contestants of a run share: graphs, labels, vocabularies, and recorded outputs.

FILES/models/<model>/     model.onnx, and what lies beside it, linked from the demo's repository
FILES/outputs/<model>.npz the outputs for the sample, each under its name
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.contestant import MODELS
from bench.samples import sample
from bench.work import WORKS, Array, Outputs
from sm.build.cache import Cache
from sm.errors import StartError
from sm.settings import Settings

BESIDE = ("labels.txt", "tokenizer.json", "preprocess.json")


def prepare(folder: Path, settings: Settings) -> None:
    """Fill ``folder``; :class:`StartError` where the demo's models are not there."""
    repository = Cache(settings.cache).repositories / "cpu"
    for model in MODELS:
        graph = repository / model / "1" / "model.onnx"
        if not graph.is_file():
            raise StartError(f"{graph} is missing; make it with: sm prepare")
        place = folder / "models" / model
        place.mkdir(parents=True)
        for file in (graph, *(repository / model / name for name in BESIDE)):
            if file.exists():
                (place / file.name).symlink_to(file)
    for part in ("inputs", "outputs"):
        (folder / part).mkdir()
    for model in MODELS:
        record(model, folder)


def record(model: str, folder: Path) -> None:
    """Run ``model`` once on its sample, and keep what it takes and gives."""
    work = WORKS[model](folder, "real")
    run = work.model.run

    def recording(inputs: Mapping[str, Array]) -> Outputs:
        outputs = run(inputs)
        np.savez(folder / "inputs" / f"{model}.npz", **inputs)
        np.savez(folder / "outputs" / f"{model}.npz", **outputs)
        return outputs

    work.model.run = recording
    work(sample(model).content)
