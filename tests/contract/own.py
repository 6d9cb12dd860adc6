"""Trireme's own box in each of its modes, with small models: the one part that does not stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import running_box
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.tritons import MODELS

from .container import Container, ModelRequest, find_archives

#: A request body that every model here takes.
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'


@contextmanager
def start_box(mode: str, folder: Path) -> Iterator[Container]:
    """Start a Trireme box in that mode. It must keep every promise of the table."""
    with {"single": start_single_model, "mme": start_multi_model, "batch": start_batch}[mode](
        folder
    ) as container:
        yield container


@contextmanager
def start_single_model(folder: Path) -> Iterator[Container]:
    """Models, a default model and no client: as a team that comes from Triton runs it."""
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
def start_batch(folder: Path) -> Iterator[Container]:
    """For batch transform, set with the platform's own variables."""
    MODELS["echo"].write(folder / "model" / "echo")
    with running_box(
        folder,
        folder / "model",
        clients=(),
        SAGEMAKER_BATCH="true",
        SAGEMAKER_BATCH_STRATEGY="MULTI_RECORD",
        # Each body may be larger than the 25 MiB of a real-time endpoint.
        SAGEMAKER_MAX_CONCURRENT_TRANSFORMS="2",
        SAGEMAKER_MAX_PAYLOAD_IN_MB="50",
    ) as box:
        yield Container(box.url, "batch", complete=True, given_request=ModelRequest(BODY))


@contextmanager
def start_multi_model(folder: Path) -> Iterator[Container]:
    """Multi-model mode with an archive of each layout. Every model takes the same body."""
    platform = ArchiveFolder(folder / "archives")
    platform.write_flat("flat")
    platform.write_nested(
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
            given_request=ModelRequest(BODY),
            archives=tuple(find_archives(str(platform.home))),
        )
