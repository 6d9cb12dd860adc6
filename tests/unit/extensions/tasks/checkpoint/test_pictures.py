"""A picture becomes what transformers' own image processors make of it, for public configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from trireme_extensions.tasks.checkpoint.pictures import picture_steps, processors
from trireme_extensions.tasks.picture_steps import PictureSteps

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
#: As on the hub, by the names of the classes; what differs from another only in numbers is left out.
CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    ("ViT", {"size": 224, "resample": 2, **HALF}),
    ("ViT", {"size": {"height": 96, "width": 160}}),
    ("ViT", {"do_rescale": False, "do_normalize": False}),
    ("ViT", {"do_resize": False, "image_mean": 0.4, "image_std": 0.2}),
    ("DeiT", {"size": 256, "crop_size": 224, **IMAGENET}),
    ("ConvNext", {"crop_pct": 0.875, "size": 224, "resample": 3, **IMAGENET}),
    ("ConvNext", {"size": {"shortest_edge": 384}}),
    ("Beit", {"crop_size": 224, "do_center_crop": False, "size": 224, **HALF}),
    ("MobileNetV1", {"crop_size": {"height": 192, "width": 192}, "size": {"shortest_edge": 220}, **HALF}),
    ("MobileViT", {"crop_size": 256, "do_flip_channel_order": True, "size": 288}),
    ("EfficientNet", {"size": {"height": 224, "width": 224}, "resample": 0, "include_top": True, "rescale_offset": False}),
    ("EfficientNet", {"size": {"height": 64, "width": 64}, "rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False, "do_normalize": False}),
    ("CLIP", {"size": {"shortest_edge": 60}, "crop_size": {"height": 75, "width": 81}}),
    ("Bit", {"size": {"shortest_edge": 256}, "crop_size": 224, **IMAGENET}),
    ("PoolFormer", {"crop_pct": 0.9, "size": 224, "crop_size": 224, **IMAGENET}),
    ("Levit", {"size": 224, "crop_size": 224}),
    ("Perceiver", {"crop_size": 256, "size": 224, **IMAGENET}),
    ("Segformer", {"size": 128, "reduce_labels": True}),
    ("DPT", {"size": 384, "keep_aspect_ratio": True, "ensure_multiple_of": 32, **HALF}),
    ("DPT", {"size": 100, "ensure_multiple_of": 32}),
    ("GLPN", {"size_divisor": 32}),
    ("Detr", {"format": "coco_detection", "max_size": 250, "size": 200, **IMAGENET}),
    ("RTDetr", {"size": {"max_height": 90, "max_width": 70}}),
    *((name, {}) for name in processors() if name),
]  # fmt: skip
SIZES = ((241, 160), (64, 97))


@pytest.mark.parametrize(("name", "fields"), CONFIGURATIONS)
def test_a_picture_becomes_what_transformers_makes_of_it(tmp_path: Path, name: str, fields: Any) -> None:
    config = {"image_processor_type": f"{name}ImageProcessor", **fields}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    steps = PictureSteps.model_validate_json(json.dumps(picture_steps(tmp_path, {})))
    # The processors of Pil need neither torch nor torchvision.
    processor = getattr(transformers, f"{name}ImageProcessorPil").from_dict(fields)
    for number, (height, width) in enumerate(SIZES):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3)).astype(np.uint8)
        expected = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(steps(pixels), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("fields", "config", "channels"),
    [
        ({"feature_extractor_type": "MobileViTFeatureExtractor"}, {}, "BGR"),
        ({}, {"model_type": "mobilevit"}, "BGR"),
        ({}, {"architectures": ["MobileViTForImageClassification"]}, "BGR"),
        ({}, {"model_type": "vit"}, "RGB"),
    ],
)
def test_a_class_may_have_an_older_name_or_none(
    tmp_path: Path, fields: Any, config: Any, channels: str
) -> None:
    described = {"size": {"shortest_edge": 32}, "crop_size": 32, **fields}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
    assert picture_steps(tmp_path, config)["channels"] == channels
