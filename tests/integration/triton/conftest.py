"""The Triton that most tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sm.models.table import Models
from sm.router import app
from sm.router.invocation_routes import Router
from sm.run_state import Box
from sm.settings import Settings
from sm.triton.calls import Calls
from sm.triton.transport import Transport
from tests.integration.triton.models import FOLDER_MODELS
from tests.support.tritons import CreateRouter, TritonProcess, prepare_triton


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A running Triton with the models of this folder's tests; no test may stop it."""
    names = ["counts", "echo", "fixed", "identity", "ones", "refuses", "slow", "words"]
    serving = prepare_triton(tmp_path_factory.mktemp("triton"), names)
    for name, model in FOLDER_MODELS.items():
        model.write(serving.box.repository / name)
    serving.start()
    (serving.box.run / "ready").touch()
    yield serving
    serving.stop()


@pytest.fixture
def notes(triton: TritonProcess) -> Path:
    """The folder into which the models write what they see, emptied."""
    for note in triton.notes.iterdir():
        note.unlink()
    return triton.notes


@pytest.fixture
def transport(triton: TritonProcess) -> Iterator[Transport]:
    """A worker's transport. Fails if it leaves files in shared memory."""
    made = Transport(triton.settings, triton.box)
    yield made
    made.close()
    assert triton.shared_memory_files() == []


@pytest.fixture
def create_router() -> Iterator[CreateRouter]:
    """Create routers as workers do; their connections to Triton are closed at the end of the test."""
    with ExitStack() as routers:

        def create(settings: Settings, box: Box, models: Models) -> Router:
            router = app.create(settings, box, models, Calls.of(box, settings.wait_seconds))
            routers.callback(router.flow.triton.close)
            return router

        yield create
