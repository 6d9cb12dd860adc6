"""The Triton that most tests of this folder share, and a fake S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.triton.transport import Transport
from tests.support.s3 import aws
from tests.support.tritons import MODELS, TritonProcess, prepare_triton

__all__ = ["aws"]


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A running Triton with all the small models; no test may stop it."""
    serving = prepare_triton(tmp_path_factory.mktemp("triton"), list(MODELS))
    serving.start()
    yield serving
    serving.stop()


@pytest.fixture
def transport(triton: TritonProcess) -> Iterator[Transport]:
    """A worker's transport. Fails if it leaves files in shared memory."""
    made = Transport(triton.settings, triton.box)
    yield made
    made.close()
    assert triton.shared_memory_files() == []


@pytest.fixture
def killable_triton(tmp_path: Path) -> Iterator[TritonProcess]:
    """A Triton that a test may kill. The test starts it."""
    serving = prepare_triton(tmp_path, ["echo", "fixed", "counts"])
    yield serving
    serving.stop()
