"""Our own box in each of its modes, with small models: the one part that does not stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import running
from tests.support.model_archives import Platform, ensemble, model
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
    with running(
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
    with running(
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
    platform = Platform(folder / "archives")
    platform.flat("flat")
    platform.nested("nested", {"first": model(2), "second": model(3), "both": ensemble("first", "second")})
    with running(
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
