"""The clients answer alike whether a picture is decoded in full or smaller; in full: python -m bench.accuracy."""

from __future__ import annotations

import pytest

from bench.accuracy import Difference, client, compare
from bench.accuracy_pictures import enlarged, pictures
from sm.client.base import TensorClient
from sm.errors import StartError
from sm.settings import Settings
from sm.tools.build.prepare import prepare


@pytest.fixture(scope="module")
def clients() -> tuple[TensorClient, TensorClient]:
    prepare(Settings.read({}))
    return client("resnet"), client("yolov5")


def test_the_samples_with_12_megapixels_are_answered_alike(
    clients: tuple[TensorClient, TensorClient],
) -> None:
    found = [one for picture in enlarged() for one in compare(*clients, picture)]
    assert {one.model for one in found if one.scaled} == {"resnet", "yolov5"}
    assert not [one for one in found if not one.allowed]


@pytest.mark.exhaustive
def test_real_photographs_are_answered_alike(clients: tuple[TensorClient, TensorClient]) -> None:
    try:
        found = [one for picture in pictures() for one in compare(*clients, picture)]
    except StartError as error:
        pytest.skip(str(error))
    photographs = {one.picture.name for one in found if not one.picture.enlarged}
    assert len(photographs) >= 60
    sure = [one for one in found if one.certain >= 0.5 and one.scaled]
    assert all(one.same for one in sure)
    assert mean_score(sure) <= 0.02


def mean_score(found: list[Difference]) -> float:
    return sum(one.score for one in found) / len(found)
