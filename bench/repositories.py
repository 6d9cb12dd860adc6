"""Model repositories for a Triton: the models that are instant, and those with everybody's settings."""

from __future__ import annotations

import os
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from bench.contestant import MODELS, PROCESSES, THREADS
from sm.build.cache import Cache
from sm.settings import HERE, Settings

ONNX_MODEL = HERE / "sm" / "triton" / "onnx_cpu" / "model.py"
INSTANT_MODEL = Path(__file__).with_name("instant_model.py")


def instant(repository: Path, files: Path) -> None:
    """Each model under its own name and configuration, but its outputs are the recorded ones."""
    for model in MODELS:
        version = _model(repository, model, files, _config(model))
        (version / "model.py").symlink_to(INSTANT_MODEL)
        (version / "outputs.npz").symlink_to(files / "outputs" / f"{model}.npz")


def same(repository: Path, files: Path) -> None:
    """The graphs that all have, each in as many processes, with as many threads, as all have."""
    for model in MODELS:
        config = _config(model)
        del config.instance_group[:]
        config.instance_group.add(count=PROCESSES, kind=pb.ModelInstanceGroup.KIND_CPU)
        config.parameters["threads"].string_value = str(THREADS)
        version = _model(repository, model, files, config)
        (version / "model.py").symlink_to(ONNX_MODEL)
        (version / "model.onnx").symlink_to(files / "models" / model / "model.onnx")


def _config(model: str) -> pb.ModelConfig:
    """The demo's own."""
    demo = Cache(Settings.read(os.environ).cache).repositories / "cpu" / model / "config.pbtxt"
    return text_format.Parse(demo.read_text(), pb.ModelConfig())


def _model(repository: Path, model: str, files: Path, config: pb.ModelConfig) -> Path:
    """The model's folder but for its version's content; that version's folder."""
    version = repository / model / "1"
    version.mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(text_format.MessageToString(config))
    for file in (files / "models" / model).iterdir():
        if file.suffix != ".onnx":
            (repository / model / file.name).symlink_to(file)
    return version
