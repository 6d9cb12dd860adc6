"""Preprocessing gives the input that Keras and torchvision define; they differ only in their descriptions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sm.client.preprocessing import Preprocessing
from sm.errors import StartError
from sm.settings import HERE

KERAS = HERE / "model" / "resnet" / "preprocess.json"
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TORCHVISION = {"resize": 256, "crop": 224, "channels": "RGB", "scale": 1 / 255, "mean": MEAN, "std": STD}


def keras_input(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute tf.keras.applications.resnet50.preprocess_input, channels first."""
    return np.moveaxis(square[..., ::-1] - np.array([103.939, 116.779, 123.68]), -1, 0)


def torchvision_input(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the transforms of ResNet50_Weights."""
    return np.moveaxis((square / 255 - np.array(MEAN)) / np.array(STD), -1, 0)


def area_weights(length: int, new_length: int) -> NDArray[np.float64]:
    """Return [new_length, length]: the share of each old pixel in each new one."""
    edges = np.linspace(0, length, new_length + 1)
    pixel = np.arange(length)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    overlap = np.clip(overlap, 0, None)
    return np.asarray(overlap / overlap.sum(1, keepdims=True), np.float64)


def crop_and_resize(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Crop the centred 224/256 of the short side and average it by area to 224 x 224, in float64."""
    height, width = pixels.shape[:2]
    side = round(min(height, width) * 224 / 256)
    top, left = (height - side) // 2, (width - side) // 2
    weights = area_weights(side, 224)
    planes = pixels[top : top + side, left : left + side].transpose(2, 0, 1).astype(np.float64)
    return np.asarray((weights @ planes @ weights.T).transpose(1, 2, 0), np.float64)


def random_picture(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


def preprocessing(**fields: object) -> Preprocessing:
    return Preprocessing.model_validate({**TORCHVISION, **fields})


@pytest.mark.parametrize(
    "size", [(280, 320), (300, 451), (256, 256), (540, 303), (1, 1), (1, 4000), (4000, 1)]
)
def test_each_description_gives_the_input_that_its_library_defines(size: tuple[int, int]) -> None:
    picture = random_picture(*size)
    square = crop_and_resize(picture)
    # Pixels are rounded to whole numbers between resizing and the formula; without resizing the input is exact.
    rounding = 2e-5 if size == (256, 256) else 1.0
    assert np.abs(Preprocessing.read(KERAS)(picture) - keras_input(square)).max() <= rounding
    found = preprocessing()(picture)
    assert np.abs(found - torchvision_input(square)).max() <= rounding / 255 / 0.224 + 2e-6
    assert np.array_equal(preprocessing(layout="HWC")(picture).transpose(2, 0, 1), found)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"channels": "GBR"}, "channels"),
        ({"crop": 300}, "crop"),
        ({"std": [1, 0, 1]}, r"std\.1"),
        ({"mean": [1, 2]}, "mean"),
        ({"mean": [1, 2, "NaN"]}, r"mean\.2"),
        ({"decode_margin": 0.5}, "decode_margin"),
        (None, ""),
    ],
)
def test_the_error_for_a_wrong_or_missing_description_names_file_and_field(
    tmp_path: Path, changed: dict[str, object] | None, field: str
) -> None:
    path = tmp_path / "preprocess.json"
    if changed is not None:
        path.write_text(json.dumps({**TORCHVISION, **changed}))
    with pytest.raises(StartError, match=rf"preprocess\.json.*{field}"):
        Preprocessing.read(path)


@pytest.mark.parametrize(("margin", "side"), [(2, 512), (3, 768), (1.5, 384)])
def test_the_decode_margin_sets_how_small_a_picture_may_be_decoded(margin: float, side: int) -> None:
    assert preprocessing(decode_margin=margin).decode_size == (side, side)
