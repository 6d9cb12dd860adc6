"""The Triton that most of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.triton.transport import Transport
from tests.support.tritons import MODELS, Serving, new_serving


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A Triton with all of the small models; no test may end it."""
    serving = new_serving(tmp_path_factory.mktemp("triton"), list(MODELS))
    serving.start()
    yield serving
    serving.stop()


@pytest.fixture
def transport(triton: Serving) -> Iterator[Transport]:
    """A worker's transport; it leaves nothing behind."""
    made = Transport(triton.settings, triton.box)
    yield made
    made.close()
    assert triton.files() == []


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Serving]:
    """A Triton that a test may kill, not started yet."""
    serving = new_serving(tmp_path, ["echo", "fixed", "counts"])
    yield serving
    serving.stop()
