"""Model repositories for a Triton: the models that are instant, and those with everybody's settings."""

from __future__ import annotations

import os
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from bench.contestant import MODELS, PROCESSES, THREADS
from sm.settings import HERE, Settings
from trireme_extensions.convert.targets import GRAPH, descriptions
from trireme_tools.cache import Cache
from trireme_tools.prepare.cpu_repository import run_on_cpu

INSTANT_MODEL = Path(__file__).with_name("instant_model.py")
RUNNER = "model.py"


def demo() -> Path:
    """Return the repository of the CPU target, as ``sm prepare`` leaves it."""
    return Cache(Settings.read(os.environ).cache).repositories / "cpu"


def box_instant(repository: Path, files: Path) -> None:
    """Write the demo's configurations and files, with models that return its graphs' recorded outputs."""
    for model in MODELS:
        folder = repository / model
        folder.mkdir(parents=True)
        for file in (demo() / model).iterdir():
            if file.is_file():
                (folder / file.name).symlink_to(file)
        _answer_at_once(folder, files / "box" / "outputs" / f"{model}.npz")


def plain_instant(repository: Path, files: Path) -> None:
    """Write the configurations of the common graphs, with models that return their recorded outputs."""
    for model in MODELS:
        _plain(repository / model, files)
        _answer_at_once(repository / model, files / "outputs" / f"{model}.npz")


def plain(repository: Path, files: Path) -> None:
    """Write the common graphs, each with as many processes and threads as the other contestants have."""
    for model in MODELS:
        _plain(repository / model, files)
        file = repository / model / "config.pbtxt"
        config = text_format.Parse(file.read_text(), pb.ModelConfig())
        del config.instance_group[:]
        config.instance_group.add(count=PROCESSES, kind=pb.ModelInstanceGroup.KIND_CPU)
        config.parameters["threads"].string_value = str(THREADS)
        file.write_text(text_format.MessageToString(config))


def _plain(folder: Path, files: Path) -> None:
    """Write a model of a common graph, as ``sm prepare`` would finish it."""
    described = HERE / "model" / folder.name
    (folder / "1").mkdir(parents=True)
    for file in (files / "models" / folder.name).iterdir():
        (folder / "1" / file.name if file.name == GRAPH else folder / file.name).symlink_to(file.resolve())
    for file in descriptions(described):
        (folder / file.name).symlink_to(file)
    run_on_cpu(folder, described / "config.pbtxt", "the benchmark's graph")


def _answer_at_once(folder: Path, outputs: Path) -> None:
    version = folder / "1"
    version.mkdir(exist_ok=True)
    (version / RUNNER).unlink(missing_ok=True)
    (version / RUNNER).symlink_to(INSTANT_MODEL)
    (version / "outputs.npz").symlink_to(outputs)
