"""Fixtures: a box with a streaming model and streaming clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.support import boxes as boxes
from tests.support.boxes import RunningBox
from tests.support.tritons import MODELS

CLIENTS = boxes.CLIENT_FOLDERS / "streaming"
StartBox = Callable[..., AbstractContextManager[RunningBox]]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one decoupled model, which writes its notes beside the repository."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "notes").mkdir()
    MODELS["counts"].write(folder / "repository" / "counts")
    return folder / "repository"


@pytest.fixture(scope="session")
def start(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> StartBox:
    """A function that starts a box with these models and clients, and takes settings."""
    clients = (CLIENTS, boxes.CLIENTS)
    return partial(boxes.running_box, tmp_path_factory.mktemp("box"), repository, clients=clients)


@pytest.fixture(scope="session")
def box(start: StartBox) -> Iterator[RunningBox]:
    """A box that handles four callers at once; no test may break it."""
    with start(SAGEMAKER_MODEL_SERVER_WORKERS="1", TRIREME_THREADS="4") as started:
        yield started
