"""Our own box in each of its modes, with small models: the one part that does not stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import running_box
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.tritons import MODELS

from .container import Container, Question, archives

#: What every model here takes.
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'


@contextmanager
def started(mode: str, folder: Path) -> Iterator[Container]:
    """A box of ours in that mode, which has to have every row."""
    with {"single": single, "mme": multi_model, "batch": batch}[mode](folder) as container:
        yield container


@contextmanager
def single(folder: Path) -> Iterator[Container]:
    """As a team runs it that comes from Triton: models, a default, and no client."""
    for name in ("counts", "echo"):
        MODELS[name].write(folder / "model" / name)
    with running_box(
        folder,
        folder / "model",
        clients=(),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
    ) as box:
        yield Container(box.url, complete=True, model="echo")


@contextmanager
def batch(folder: Path) -> Iterator[Container]:
    """For batch transform, the platform's way of saying so."""
    MODELS["echo"].write(folder / "model" / "echo")
    with running_box(
        folder,
        folder / "model",
        clients=(),
        SAGEMAKER_BATCH="true",
        SAGEMAKER_BATCH_STRATEGY="MULTI_RECORD",
        SAGEMAKER_MAX_CONCURRENT_TRANSFORMS="4",
        SAGEMAKER_MAX_PAYLOAD_IN_MB="25",
    ) as box:
        yield Container(box.url, "batch", complete=True, given=Question(BODY))


@contextmanager
def multi_model(folder: Path) -> Iterator[Container]:
    """With an archive of each layout, whose models all take the same body."""
    platform = ArchiveFolder(folder / "archives")
    platform.flat("flat")
    platform.nested(
        "nested",
        {
            "first": multiplying_model(2),
            "second": multiplying_model(3),
            "both": chain_config("first", "second"),
        },
    )
    with running_box(
        folder,
        folder / "nowhere",
        clients=(),
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
    ) as box:
        yield Container(
            box.url,
            "mme",
            complete=True,
            given=Question(BODY),
            archives=tuple(archives(str(platform.home))),
        )
