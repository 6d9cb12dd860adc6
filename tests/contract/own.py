"""Our own box in each of its modes, with small models: the one part that does not stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.box.running import running
from tests.triton.serving import MODELS

from .container import Container


@contextmanager
def started(mode: str, folder: Path) -> Iterator[Container]:
    """A box of ours in that mode, which has to have every row."""
    with {"single": single}[mode](folder) as container:
        yield container


@contextmanager
def single(folder: Path) -> Iterator[Container]:
    """As a team runs it that comes from Triton: models, a default, and no client."""
    for name in ("counts", "echo"):
        MODELS[name].write(folder / "model" / name)
    with running(folder, folder / "model", clients=(), SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo") as box:
        yield Container(box.url, complete=True, model="echo")
