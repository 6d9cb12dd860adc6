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
TORCHVISION = {
    "resize": 256,
    "crop": 224,
    "channels": "RGB",
    "scale": 1 / 255,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}


def keras_input(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute tf.keras.applications.resnet50.preprocess_input, channels first."""
    return np.moveaxis(square[..., ::-1] - np.array([103.939, 116.779, 123.68]), -1, 0)


def torchvision_input(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the transforms of ResNet50_Weights."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return np.moveaxis((square / 255 - mean) / std, -1, 0)


def area_weights(length: int, new_length: int) -> NDArray[np.float64]:
    """Return [new_length, length]: the share of each old pixel in each new one."""
    edges = np.linspace(0, length, new_length + 1)
    low, high = edges[:-1, None], edges[1:, None]
    pixel = np.arange(length)
    overlap = np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0, None)
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


@pytest.mark.parametrize("size", [(480, 640), (300, 451), (256, 256), (1080, 607)])
def test_each_description_gives_the_input_that_its_library_defines(size: tuple[int, int]) -> None:
    picture = random_picture(*size)
    square = crop_and_resize(picture)
    # Pixels are rounded to whole numbers between resizing and the formula.
    assert np.abs(Preprocessing.read(KERAS)(picture) - keras_input(square)).max() <= 1.0
    assert np.abs(preprocessing()(picture) - torchvision_input(square)).max() <= 1 / 255 / 0.224


def test_without_resizing_the_input_is_exact() -> None:
    picture = random_picture(256, 256)
    square = picture[16:240, 16:240].astype(np.float64)
    assert np.allclose(Preprocessing.read(KERAS)(picture), keras_input(square), atol=2e-5)
    assert np.allclose(preprocessing()(picture), torchvision_input(square), atol=2e-6)


def test_both_layouts_hold_the_same_values() -> None:
    picture = random_picture(300, 400)
    assert np.array_equal(preprocessing(layout="HWC")(picture).transpose(2, 0, 1), preprocessing()(picture))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (2, 3)])
def test_only_the_centre_of_a_very_thin_picture_is_used(size: tuple[int, int]) -> None:
    picture = np.zeros((*size, 3), np.uint8)
    picture[
        size[0] // 2 - (size[0] > 1) : size[0] // 2 + 1, size[1] // 2 - (size[1] > 1) : size[1] // 2 + 1
    ] = 255
    square = preprocessing().centre_square(picture)
    assert max(square.shape[:2]) <= 2
    assert preprocessing()(picture).shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"channels": "GBR"}, "channels"),
        ({"crop": 300}, "crop"),
        ({"std": [1, 0, 1]}, "std.1"),
        ({"mean": [1, 2]}, "mean"),
        ({"mean": [1, 2, "NaN"]}, "mean.2"),
        ({"size": 224}, "size"),
    ],
)
def test_the_error_for_a_wrong_description_names_file_and_field(
    tmp_path: Path, changed: dict[str, object], expected: str
) -> None:
    path = tmp_path / "preprocess.json"
    path.write_text(json.dumps({**TORCHVISION, **changed}))
    with pytest.raises(StartError) as caught:
        Preprocessing.read(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_the_error_for_a_missing_description_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"preprocess\.json"):
        Preprocessing.read(tmp_path / "preprocess.json")


@pytest.mark.parametrize(
    ("margin", "side"), [({}, 512), ({"decode_margin": 3}, 768), ({"decode_margin": 1.5}, 384)]
)
def test_the_decode_margin_sets_how_small_a_picture_may_be_decoded(
    margin: dict[str, float], side: int
) -> None:
    assert preprocessing(**margin).decode_size == (side, side)


def test_a_decode_margin_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_margin"):
        preprocessing(decode_margin=0.5)
