"""The box that the bounded attacks share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import RunningBox
from tests.support.faults.boxes import attacked_box, learn_samples, make_repository
from tests.support.faults.inputs import Sample


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with attacked_box(tmp_path_factory.mktemp("box"), repository) as started:
        yield started


@pytest.fixture(scope="session")
def samples(box: RunningBox) -> list[Sample]:
    return learn_samples(box)
