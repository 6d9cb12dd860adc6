"""Results are the same whether a client decodes a picture fully or scaled; all of it: ``python -m bench.accuracy``."""

from __future__ import annotations

import pytest

from bench.accuracy import Difference, client, compare
from bench.accuracy_pictures import enlarged, pictures
from sm.client.base import TensorClient
from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools.prepare.demo import prepare


@pytest.fixture(scope="module")
def clients() -> tuple[TensorClient, TensorClient]:
    prepare(Settings.read({}))
    return client("resnet"), client("yolov5")


def test_samples_enlarged_to_12_megapixels_give_the_same_results(
    clients: tuple[TensorClient, TensorClient],
) -> None:
    differences = [difference for picture in enlarged() for difference in compare(*clients, picture)]
    assert {difference.model for difference in differences if difference.scaled} == {"resnet", "yolov5"}
    assert not [difference for difference in differences if not difference.allowed]


@pytest.mark.exhaustive
def test_real_photographs_give_the_same_results(clients: tuple[TensorClient, TensorClient]) -> None:
    try:
        differences = [difference for picture in pictures() for difference in compare(*clients, picture)]
    except CommandError as error:
        pytest.skip(str(error))
    photographs = {difference.picture.name for difference in differences if not difference.picture.enlarged}
    assert len(photographs) >= 60
    certain = [difference for difference in differences if difference.certain >= 0.5 and difference.scaled]
    assert all(difference.same for difference in certain)
    assert mean_score(certain) <= 0.02


def mean_score(differences: list[Difference]) -> float:
    return sum(difference.score for difference in differences) / len(differences)
