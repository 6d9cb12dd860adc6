"""The boxes that most tests share, and the demo models that one of them serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.demo_box import box, cat, demo
from tests.support.tritons import MODELS

__all__ = ["box", "cat", "demo"]


@pytest.fixture(scope="session")
def small_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with small models, ``echo`` for requests that name none, and a client; no test may break it."""
    folder = tmp_path_factory.mktemp("small")
    for name in ("counts", "echo", "fixed", "raises", "words"):
        MODELS[name].write(folder / "model" / name)
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENT_FOLDERS / "platform",),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
    ) as started:
        yield started
