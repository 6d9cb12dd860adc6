"""The box that the attacks share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.e2e.faults import FULL
from tests.support.boxes import WAIT_TIMEOUT_S, RunningBox, running_box
from tests.support.faults.attack import attacked_box, learn_samples, make_repository
from tests.support.faults.inputs import Sample
from tests.support.faults.words import write_models


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("faults"))


def each_time(fixture_name: str, config: pytest.Config) -> Literal["function", "session"]:
    """In full each test has a fresh box, as a box delays each further restart in a row more."""
    return "function" if FULL else "session"


@pytest.fixture(scope=each_time)
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with attacked_box(tmp_path_factory.mktemp("box"), repository) as started:
        yield started


@pytest.fixture(scope=each_time)
def samples(box: RunningBox) -> list[Sample]:
    return learn_samples(box)


@pytest.fixture(scope="session")
def words_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box whose models fail as they are asked; they note each call in ``calls`` of its folder."""
    folder = tmp_path_factory.mktemp("words")
    write_models(folder)
    options: Any = {"clients": (folder / "clients",), "SAGEMAKER_MODEL_SERVER_WORKERS": "2"}
    with running_box(folder, folder / "model", wait_until_ready=False, **options) as started:
        started.wait_ready(2 * WAIT_TIMEOUT_S)  # beside other work
        yield started
