"""Boxes whose models and clients stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.boxes import CLIENT_FOLDERS, CLIENTS, RunningBox, StartBox, running_box
from tests.support.tritons import MODELS


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one decoupled model, which writes its notes beside the repository."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "notes").mkdir()
    MODELS["counts"].write(folder / "repository" / "counts")
    return folder / "repository"


@pytest.fixture(scope="session")
def start_streaming(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> StartBox:
    """A function that starts a box with one worker, these models and clients, and takes settings."""
    return partial(
        running_box,
        tmp_path_factory.mktemp("box"),
        repository,
        clients=(CLIENT_FOLDERS / "streaming", CLIENTS),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    )


@pytest.fixture(scope="session")
def box(start_streaming: StartBox) -> Iterator[RunningBox]:
    """A box that handles four callers at once; no test may break it."""
    with start_streaming(TRIREME_THREADS="4") as started:
        yield started


@pytest.fixture(scope="session")
def box_without_nginx(start_streaming: StartBox) -> Iterator[RunningBox]:
    with start_streaming(TRIREME_NGINX="off") as started:
        yield started


@pytest.fixture(scope="session")
def box_with_limits(start_streaming: StartBox) -> Iterator[RunningBox]:
    """A box that takes messages of at most 10,000 bytes, and whose streams may last longer than other answers."""
    with start_streaming(
        SAGEMAKER_MAX_REQUEST_SIZE="10000", SAGEMAKER_MODEL_SERVER_TIMEOUT="1", TRIREME_STREAM_TIMEOUT="5"
    ) as started:
        yield started


@pytest.fixture(scope="session")
def breakable_box(start_streaming: StartBox) -> Iterator[RunningBox]:
    """A box whose worker one test kills, and which another one stops."""
    with start_streaming() as started:
        yield started
