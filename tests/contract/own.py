"""Trireme's own box in each of its modes, with small models: the one part that does not stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.boxes import running_box
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.tritons import MODELS

from .container import Container, ModelRequest, find_archives

#: A request body that every model here takes.
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'


#: What the box of a mode serves: models, or archives of each layout. There is no client, as a team that comes from
#: Triton runs it.
SERVED: dict[str, tuple[str, ...]] = {"single": ("counts", "echo"), "batch": ("echo",), "mme": ()}
#: The platform's own variables for each mode.
VARIABLES = {
    "single": {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "echo", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": "true"},
    "batch": {
        "SAGEMAKER_BATCH": "true",
        "SAGEMAKER_BATCH_STRATEGY": "MULTI_RECORD",
        # Each body may be larger than the 25 MiB of a real-time endpoint.
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "2",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "50",
    },
    "mme": {"SAGEMAKER_MULTI_MODEL": "true"},
}


def write_served(mode: str, folder: Path) -> ArchiveFolder:
    """Write the models of a mode to ``folder/model`` and its archives, and return their folder."""
    for name in SERVED[mode]:
        MODELS[name].write(folder / "model" / name)
    platform = ArchiveFolder(folder / "archives")
    if mode == "mme":
        steps = {"first": multiplying_model(2), "second": multiplying_model(3)}
        platform.write_flat("flat")
        platform.write_nested("nested", {**steps, "both": chain_config(*steps)})
    return platform


@contextmanager
def start_box(mode: str, folder: Path) -> Iterator[Container]:
    """Start a Trireme box in that mode. It must keep every promise of the table."""
    platform = write_served(mode, folder)
    variables: dict[str, Any] = {**VARIABLES[mode], "TRIREME_MODEL_ARCHIVES": str(platform.home)}
    with running_box(folder, folder / "model", clients=(), **variables) as box:
        yield Container(
            box.url,
            mode,
            complete=True,
            model="echo" if mode == "single" else "",
            given_request=None if mode == "single" else ModelRequest(BODY),
            archives=tuple(find_archives(str(platform.home))),
        )
