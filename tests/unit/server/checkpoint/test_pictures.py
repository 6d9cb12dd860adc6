"""A picture becomes what transformers' own image processors make of it, for public configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from sm.client.picture_steps import PictureSteps
from sm.errors import CommandError
from sm.server.checkpoint.pictures import COMMON, PROCESSORS, picture_steps

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
#: As on the hub, under the names of the models.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "google/vit-base-patch16-224": {"image_processor_type": "ViTImageProcessor", "size": 224, "resample": 2, **HALF},
    "vit, not square": {"image_processor_type": "ViTImageProcessor", "size": {"height": 96, "width": 160}},
    "facebook/deit-base": {"feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224, **IMAGENET},
    "facebook/convnext-tiny-224": {
        "feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, "size": 224, "resample": 3, **IMAGENET,
    },
    "facebook/convnext-base-384": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}},
    "microsoft/resnet-50": {
        "feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, "size": 224, "resample": 3, **IMAGENET,
    },
    "microsoft/beit-base": {
        "feature_extractor_type": "BeitFeatureExtractor", "crop_size": 224, "do_center_crop": False, "size": 224, **HALF,
    },
    "microsoft/swin-tiny": {"image_processor_type": "ViTImageProcessor", "resample": 3, "size": 224, **IMAGENET},
    "google/mobilenet_v1": {
        "image_processor_type": "MobileNetV1ImageProcessor", "crop_size": {"height": 192, "width": 192},
        "size": {"shortest_edge": 220}, **HALF,
    },
    "google/mobilenet_v2": {"image_processor_type": "MobileNetV2ImageProcessor", "size": {"shortest_edge": 256}, **HALF},
    "apple/mobilevit-small": {
        "image_processor_type": "MobileViTImageProcessor", "crop_size": 256, "do_flip_channel_order": True, "size": 288,
    },
    "google/efficientnet-b0": {
        "image_processor_type": "EfficientNetImageProcessor", "size": {"height": 224, "width": 224}, "resample": 0,
        "include_top": True, "rescale_offset": False, "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.47853944, 0.4732864, 0.47434163],
    },
    "efficientnet, offset": {
        "image_processor_type": "EfficientNetImageProcessor", "size": {"height": 64, "width": 64},
        "rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False, "include_top": False,
    },
    "openai/clip-vit-base": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224},
    "google/siglip-base": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 224, "width": 224}},
    "google/bit-50": {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 448}, "crop_size": 448},
    "facebook/dinov2-base": {
        "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "crop_size": 224, **IMAGENET,
    },
    "a crop larger than the picture": {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 60}, "crop_size": {"height": 75, "width": 81},
    },
    "sail/poolformer_s12": {
        "feature_extractor_type": "PoolFormerFeatureExtractor", "crop_pct": 0.9, "size": 224, "crop_size": 224, **IMAGENET,
    },
    "facebook/levit-128S": {"feature_extractor_type": "LevitFeatureExtractor", "size": 224, "crop_size": 224},
    "deepmind/vision-perceiver": {
        "feature_extractor_type": "PerceiverFeatureExtractor", "crop_size": 256, "size": 224, **IMAGENET,
    },
    "nvidia/segformer-b0": {"feature_extractor_type": "SegformerFeatureExtractor", "size": 512, "reduce_labels": True},
    "Intel/dpt-large": {
        "feature_extractor_type": "DPTFeatureExtractor", "size": 384, "keep_aspect_ratio": True,
        "ensure_multiple_of": 32, **HALF,
    },
    "dpt, squeezed": {"image_processor_type": "DPTImageProcessor", "size": 100, "ensure_multiple_of": 32},
    "vinvino02/glpn-kitti": {"image_processor_type": "GLPNImageProcessor", "size_divisor": 32},
    "czczup/textnet": {"image_processor_type": "TextNetImageProcessor", "size": {"shortest_edge": 100}},
    "facebook/detr-resnet-50": {
        "feature_extractor_type": "DetrFeatureExtractor", "format": "coco_detection", "max_size": 1333, "size": 800, **IMAGENET,
    },
    "detr, long": {"image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 200, "longest_edge": 250}},
    "hustvl/yolos-tiny": {"feature_extractor_type": "YolosFeatureExtractor", "max_size": 864, "size": 512, **IMAGENET},
    "PekingU/rtdetr": {"image_processor_type": "RTDetrImageProcessor", "size": {"height": 640, "width": 640}},
    "as large as fits": {"image_processor_type": "RTDetrImageProcessor", "size": {"max_height": 90, "max_width": 70}},
    "not scaled": {"image_processor_type": "ViTImageProcessor", "do_rescale": False, "do_normalize": False},
    "not resized": {"image_processor_type": "ViTImageProcessor", "do_resize": False},
    "one mean": {"image_processor_type": "ViTImageProcessor", "image_mean": 0.4, "image_std": 0.2},
    **{f"the defaults of {name}": {"image_processor_type": f"{name}ImageProcessor"} for name in PROCESSORS},
}  # fmt: skip
SIZES = ((333, 500), (241, 160), (64, 97))


def reference(config: dict[str, Any]) -> Any:
    """Return transformers' processor, which needs neither torch nor torchvision."""
    name = config.get("image_processor_type") or config["feature_extractor_type"]
    name = name.replace("FeatureExtractor", "ImageProcessor") + "Pil"
    return getattr(transformers, name).from_dict(
        {key: value for key, value in config.items() if key[-5:] != "_type"}
    )


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_picture_becomes_what_transformers_makes_of_it(tmp_path: Path, name: str) -> None:
    config = CONFIGURATIONS[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    steps = PictureSteps.model_validate_json(json.dumps(picture_steps(tmp_path, {})))
    processor = reference(config)
    for number, (height, width) in enumerate(SIZES):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3)).astype(np.uint8)
        expected = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
        answer = steps(pixels)
        assert answer.shape == expected.shape
        np.testing.assert_allclose(answer, expected, atol=2e-5)


def test_every_field_of_a_known_class_is_in_the_table() -> None:
    for name, processor in PROCESSORS.items():
        fields = getattr(transformers, f"{name}ImageProcessorPil").valid_kwargs.__annotations__.keys()
        assert fields <= COMMON.keys() | processor.fields.keys(), name


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"image_processor_type": "ImageGPTImageProcessor", "clusters": [[0, 0, 0]]}, "ImageGPT"),
        ({"image_processor_type": "DonutImageProcessor"}, "Donut"),
        ({"image_processor_type": "ViTImageProcessor", "pad_size": {"height": 9, "width": 9}}, "pad_size"),
        ({"image_processor_type": "DPTImageProcessor", "size_divisor": 14}, "size_divisor"),
        ({"size": 224}, "image_mean"),
        ({"image_processor_type": "ViTImageProcessor", "size": "large"}, "preprocessor_config.json"),
        ({"image_processor_type": "CLIPImageProcessor", "resample": 9}, "preprocessor_config.json"),
    ],
)
def test_what_is_not_done_is_refused(tmp_path: Path, config: dict[str, Any], field: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(CommandError, match=field):
        picture_steps(tmp_path, {})


@pytest.mark.parametrize(
    ("config", "channels"),
    [
        ({"model_type": "mobilevit"}, "BGR"),
        ({"architectures": ["MobileViTForImageClassification"]}, "BGR"),
        ({"model_type": "vit"}, "RGB"),
    ],
)
def test_a_class_that_is_not_named_is_that_of_the_model(tmp_path: Path, config: Any, channels: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 32}, "crop_size": 32}')
    assert picture_steps(tmp_path, config)["channels"] == channels
