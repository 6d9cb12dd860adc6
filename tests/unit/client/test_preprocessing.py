"""A classifier's input, against a plain formula; Keras' and torchvision's differ in a description alone."""

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


def keras(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """What tf.keras.applications.resnet50.preprocess_input says, channels first."""
    return np.moveaxis(square[..., ::-1] - np.array([103.939, 116.779, 123.68]), -1, 0)


def torchvision(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """What ResNet50_Weights' transforms say."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return np.moveaxis((square / 255 - mean) / std, -1, 0)


def areas(length: int, wanted: int) -> NDArray[np.float64]:
    """[wanted, length]: how much of each old pixel lies under each new one."""
    edges = np.linspace(0, length, wanted + 1)
    low, high = edges[:-1, None], edges[1:, None]
    old = np.arange(length)
    overlap = np.clip(np.minimum(high, old + 1) - np.maximum(low, old), 0, None)
    return np.asarray(overlap / overlap.sum(1, keepdims=True), np.float64)


def centre_resized(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """224 x 224: the centred 224/256 of the short side, averaged by area, in float64."""
    height, width = pixels.shape[:2]
    side = round(min(height, width) * 224 / 256)
    top, left = (height - side) // 2, (width - side) // 2
    weights = areas(side, 224)
    planes = pixels[top : top + side, left : left + side].transpose(2, 0, 1).astype(np.float64)
    return np.asarray((weights @ planes @ weights.T).transpose(1, 2, 0), np.float64)


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


def described(**changed: object) -> Preprocessing:
    return Preprocessing.model_validate({**TORCHVISION, **changed})


@pytest.mark.parametrize("size", [(480, 640), (300, 451), (256, 256), (1080, 607)])
def test_keras_input_is_what_the_plain_formula_gives(size: tuple[int, int]) -> None:
    found = Preprocessing.read(KERAS)(noise(*size))
    # Pixels are rounded to whole numbers between resizing and the formula.
    assert np.abs(found - keras(centre_resized(noise(*size)))).max() <= 1.0


@pytest.mark.parametrize("size", [(480, 640), (300, 451), (256, 256), (1080, 607)])
def test_torchvision_input_is_what_the_plain_formula_gives(size: tuple[int, int]) -> None:
    found = described()(noise(*size))
    assert np.abs(found - torchvision(centre_resized(noise(*size)))).max() <= 1 / 255 / 0.224


def test_without_resizing_it_is_exact() -> None:
    picture = noise(256, 256)
    square = picture[16:240, 16:240].astype(np.float64)
    assert np.allclose(Preprocessing.read(KERAS)(picture), keras(square), atol=2e-5)
    assert np.allclose(described()(picture), torchvision(square), atol=2e-6)


def test_the_tensor_is_contiguous_float32() -> None:
    for layout, shape in (("CHW", (3, 224, 224)), ("HWC", (224, 224, 3))):
        found = described(layout=layout)(noise(300, 400))
        assert found.shape == shape
        assert found.dtype == np.float32
        assert found.flags.c_contiguous


def test_both_layouts_hold_the_same() -> None:
    picture = noise(300, 400)
    assert np.array_equal(described(layout="HWC")(picture).transpose(2, 0, 1), described()(picture))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (2, 3)])
def test_the_thinnest_picture_is_resized_from_its_centre_alone(size: tuple[int, int]) -> None:
    picture = np.zeros((*size, 3), np.uint8)
    picture[
        size[0] // 2 - (size[0] > 1) : size[0] // 2 + 1, size[1] // 2 - (size[1] > 1) : size[1] // 2 + 1
    ] = 255
    square = described().square(picture)
    assert max(square.shape[:2]) <= 2
    assert described()(picture).shape == (3, 224, 224)


def test_a_wide_picture_is_seen_in_its_middle() -> None:
    picture = np.zeros((100, 400, 3), np.uint8)
    picture[:, 150:250] = 255
    assert (described(mean=[0, 0, 0], std=[1, 1, 1], scale=1)(picture) == 255).all()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"channels": "GBR"}, "channels"),
        ({"crop": 300}, "crop 300 is larger than resize 256"),
        ({"std": [1, 0, 1]}, "std.1"),
        ({"mean": [1, 2]}, "mean"),
        ({"mean": [1, 2, "NaN"]}, "mean.2"),
        ({"size": 224}, "size"),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, changed: dict[str, object], named: str) -> None:
    path = tmp_path / "preprocess.json"
    path.write_text(json.dumps({**TORCHVISION, **changed}))
    with pytest.raises(StartError) as caught:
        Preprocessing.read(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_description_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"preprocess\.json cannot be read"):
        Preprocessing.read(tmp_path / "preprocess.json")


@pytest.mark.parametrize(
    ("margin", "side"), [({}, 512), ({"decode_margin": 3}, 768), ({"decode_margin": 1.5}, 384)]
)
def test_a_model_s_description_says_how_small_its_pictures_may_be_decoded(
    margin: dict[str, float], side: int
) -> None:
    assert described(**margin).decode_size == (side, side)


def test_a_margin_below_the_model_s_own_size_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_margin"):
        described(decode_margin=0.5)
