"""Read ``preprocessor_config.json`` of a picture's model, as the class that it names reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import Fields, FileField, read_object, refuse
from trireme_extensions.tasks.picture_steps import PictureSteps

FILE = "preprocessor_config.json"
STANDARD = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
#: Pillow's numbers of the filters.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
BILINEAR, BICUBIC = 2, 3
OBEYED = FileField("obeyed")
CALL = FileField("without effect", "of a call")

#: The fields of every image processor of transformers.
COMMON: Fields = {
    **dict.fromkeys(
        (
            *("do_resize", "size", "default_to_square", "resample", "do_center_crop", "crop_size"),
            *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
        ),
        OBEYED,
    ),
    **dict.fromkeys(
        ("data_format", "device", "disable_grouping", "input_data_format", "return_tensors"), CALL
    ),
    "auto_map": FileField("without effect", "code of a repository is never run"),
    "feature_extractor_type": FileField("obeyed", "the older name of `image_processor_type`"),
    "image_processor_type": FileField("obeyed", "the class; one that is not in this page is refused"),
    "processor_class": FileField("without effect", "says where the file comes from"),
    "do_convert_rgb": FileField("without effect", "every picture becomes RGB"),
    "do_pad": FileField("without effect", "one picture needs no padding; `pad_size` is refused"),
    "image_seq_length": FileField("without effect", "of the text beside a picture"),
    "pad_size": FileField("refused", "makes a frame around the picture"),
}
REDUCE = {"do_reduce_labels": FileField("without effect", "of training")}
DETR: Fields = {
    "do_convert_annotations": FileField("without effect", "of training"),
    "format": FileField("without effect", "of training"),
    "max_size": FileField("obeyed", "the longest edge in older files"),
    "pad_and_return_pixel_mask": FileField("without effect", "as `do_pad`"),
}


@dataclass(frozen=True)
class Processor:
    """An image processor of transformers: the values of what a file leaves out, and fields of its own."""

    defaults: Mapping[str, Any]
    fields: Fields


def _processor(
    norm: tuple[list[float], list[float]] | None,
    size: Any,
    fields: Fields | None = None,
    *,
    crop: int | None = None,
    resample: int = BICUBIC,
    **more: Any,
) -> Processor:
    defaults = {
        "do_resize": True, "do_rescale": True, "do_normalize": norm is not None, "size": size,
        "resample": resample, "image_mean": norm and norm[0], "image_std": norm and norm[1],
        "default_to_square": True, "rescale_factor": 1 / 255,
        "do_center_crop": crop is not None and more.pop("crops", True),
        "crop_size": crop and {"height": crop, "width": crop}, **more,
    }  # fmt: skip
    return Processor(defaults, fields or {})


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def _short(side: int) -> dict[str, int]:
    return {"shortest_edge": side}


RATIO: dict[str, Any] = {"default_to_square": False}
DETR_SIZE = {"shortest_edge": 800, "longest_edge": 1333}
#: The processors of pictures, by their class's name without ``ImageProcessor``.
PROCESSORS: Mapping[str, Processor] = {
    "Beit": _processor(STANDARD, _square(224), REDUCE, crop=224, crops=False),
    "Bit": _processor(CLIP, _short(224), crop=224, **RATIO),
    "Blip": _processor(CLIP, _square(384)),
    "CLIP": _processor(CLIP, _short(224), crop=224, **RATIO),
    "ChineseCLIP": _processor(CLIP, _short(224), crop=224, **RATIO),
    "ConditionalDetr": _processor(IMAGENET, DETR_SIZE, DETR, resample=BILINEAR, **RATIO),
    "ConvNext": _processor(STANDARD, _short(384), {"crop_pct": OBEYED}, crop_pct=224 / 256, **RATIO),
    "DPT": _processor(
        STANDARD,
        _square(384),
        {
            **REDUCE,
            "ensure_multiple_of": OBEYED,
            "keep_aspect_ratio": OBEYED,
            "size_divisor": FileField("refused", "makes a frame around the picture"),
        },
        ensure_multiple_of=1,
        keep_aspect_ratio=False,
    ),
    "DeformableDetr": _processor(IMAGENET, DETR_SIZE, DETR, resample=BILINEAR, **RATIO),
    "DeiT": _processor(STANDARD, _square(256), crop=224),
    "Detr": _processor(IMAGENET, DETR_SIZE, DETR, resample=BILINEAR, **RATIO),
    "EfficientNet": _processor(
        STANDARD,
        _square(346),
        {"include_top": OBEYED, "rescale_offset": OBEYED},
        crop=289,
        crops=False,
        rescale_offset=False,
        include_top=True,
    ),
    "GLPN": _processor(None, None, {"size_divisor": OBEYED}, resample=BILINEAR, size_divisor=32),
    "Levit": _processor(IMAGENET, _short(224), crop=224, **RATIO),
    "MobileNetV1": _processor(STANDARD, _short(256), crop=224, resample=BILINEAR, **RATIO),
    "MobileNetV2": _processor(STANDARD, _short(256), REDUCE, crop=224, resample=BILINEAR, **RATIO),
    "MobileViT": _processor(
        None,
        _short(224),
        {**REDUCE, "do_flip_channel_order": OBEYED},
        crop=256,
        do_flip_channel_order=True,
        **RATIO,
    ),
    "Perceiver": _processor(IMAGENET, _square(224), crop=256),
    "PoolFormer": _processor(IMAGENET, _short(224), {"crop_pct": OBEYED}, crop=224, crop_pct=0.9, **RATIO),
    "Pvt": _processor(IMAGENET, _square(224)),
    "RTDetr": _processor(IMAGENET, _square(640), DETR, resample=BILINEAR, do_normalize=False, **RATIO),
    "Segformer": _processor(IMAGENET, _square(512), REDUCE, resample=BILINEAR),
    "Siglip": _processor(STANDARD, _square(224), **RATIO),
    "TextNet": _processor(
        IMAGENET,
        _short(640),
        {"size_divisor": OBEYED},
        crop=224,
        crops=False,
        resample=BILINEAR,
        size_divisor=32,
        **RATIO,
    ),
    "ViT": _processor(STANDARD, _square(224), resample=BILINEAR),
    "Yolos": _processor(IMAGENET, DETR_SIZE, DETR, resample=BILINEAR, **RATIO),
}
#: The class for a type of model, where the file does not name it; the others have the type's own name.
KINDS = {
    **dict.fromkeys(("aimv2", "altclip", "groupvit", "metaclip_2", "mlcd", "xclip"), "CLIP"),
    **dict.fromkeys(("align",), "EfficientNet"),
    **dict.fromkeys(("deimv2",), "RTDetr"),
    **dict.fromkeys(("lw_detr",), "DeformableDetr"),
    **dict.fromkeys(("table-transformer",), "Detr"),
    **dict.fromkeys(("depth_anything",), "DPT"),
    **dict.fromkeys(("ijepa",), "ViT"),
    **dict.fromkeys(("pixio",), "Bit"),
    **dict.fromkeys(
        (
            "alexnet",
            "dinat",
            "swiftformer",
            "swin",
            "swinv2",
            "vit_mae",
            "vit_msn",
        ),
        "ViT",
    ),
    **dict.fromkeys(
        (
            "bit",
            "dinov2",
            "focalnet",
            "hiera",
        ),
        "Bit",
    ),
    **dict.fromkeys(("conditional_detr",), "ConditionalDetr"),
    **dict.fromkeys(
        (
            "convnextv2",
            "cvt",
            "regnet",
            "resnet",
            "van",
        ),
        "ConvNext",
    ),
    **dict.fromkeys(("data2vec-vision",), "Beit"),
    **dict.fromkeys(("deformable_detr",), "DeformableDetr"),
    **dict.fromkeys(("mobilenet_v1",), "MobileNetV1"),
    **dict.fromkeys(("mobilenet_v2",), "MobileNetV2"),
    **dict.fromkeys(("mobilevitv2",), "MobileViT"),
    **dict.fromkeys(("pvt_v2",), "Pvt"),
    **dict.fromkeys(("rt_detr",), "RTDetr"),
    **dict.fromkeys(("upernet",), "Segformer"),
}


def picture_steps(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``preprocess.json`` for a folder; nothing if no file describes its pictures.

    Raises:
        CommandError: The class is unknown, or asks for what is not done here; the sentence names the field.
    """
    path = folder / FILE
    described = read_object(path)
    if not described:
        path = folder / "processor_config.json"
        described = read_object(path).get("image_processor") or {}
    if not described:
        return {}
    name = _class_of(described, config)
    processor = PROCESSORS.get(name)
    if processor is None and name:
        raise CommandError(
            f"{path}: the image processor {name!r} is not one of those that are known here: "
            f"{', '.join(PROCESSORS)}. Describe its steps in a file, and name it with --preprocess."
        )
    # Without a name only what the file says itself is known.
    processor = processor or _processor(None, None, resample=BILINEAR)
    refuse(
        path, described, {**COMMON, **processor.fields}, "Describe the steps in a file, with --preprocess."
    )
    own = {key: value for key, value in described.items() if key in COMMON or key in processor.fields}
    values = {**processor.defaults, **{key: value for key, value in own.items() if value is not None}}
    if values.get("rescale_offset") and "include_top" not in own:
        raise CommandError(
            f"{path} has rescale_offset and does not say include_top, with which transformers divides by "
            "image_std once more: add include_top to the file."
        )
    if not name:
        values["do_normalize"] = described.get("do_normalize", True)
    try:
        steps = _steps(path, name, values)
        PictureSteps.model_validate(steps)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CommandError(f"{path} cannot be read: {type(error).__name__}: {error}.") from None
    return steps


def _class_of(described: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the class of an image processor without its suffix; empty if no file tells."""
    for field in ("image_processor_type", "feature_extractor_type"):
        if described.get(field):
            return re.sub("(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(described[field]))
    known = {re.sub("[^a-z0-9]", "", kind): name for kind, name in KINDS.items()}
    known |= {name.lower(): name for name in PROCESSORS}
    architecture = str((config.get("architectures") or [""])[0])
    names = (config.get("model_type") or "", re.sub("(For|Model).*$", "", architecture))
    return next(
        (
            known[key]
            for key in (re.sub("[^a-z0-9]", "", str(each).lower()) for each in names)
            if key in known
        ),
        "",
    )


def _steps(path: Path, name: str, values: dict[str, Any]) -> dict[str, Any]:
    steps: dict[str, Any] = {"resample": FILTERS[values["resample"]], **_normalised(path, name, values)}
    size = _sides(values["size"], values["default_to_square"], values.get("max_size"), name in DETR_CLASSES)
    crop = _sides(values["crop_size"], True) if values["do_center_crop"] and name not in NEVER_CROPS else None
    if name == "Perceiver":
        if values["do_center_crop"]:
            own = _sides(values["crop_size"], True)
            steps["crop_share"] = [size[side] / own[side] for side in ("height", "width")]
        crop = None
    if values["do_resize"]:
        steps |= _resized(path, name, size, values)
    if name == "ConvNext" and values["do_resize"] and "crop" in steps and crop:
        raise CommandError(
            f"{path}: do_center_crop behind crop_pct is not done here: --preprocess names other steps."
        )
    if crop is not None:
        steps["crop"] = [crop["height"], crop["width"]]
    return steps


DETR_CLASSES = ("ConditionalDetr", "DeformableDetr", "Detr", "Yolos")
#: The processors that never crop, whatever their file says.
NEVER_CROPS = (*DETR_CLASSES, "DPT", "GLPN", "RTDetr", "Segformer")


def _resized(path: Path, name: str, size: dict[str, int], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the step that resizes."""
    if name == "GLPN":
        return {"multiple": values["size_divisor"], "rounding": "down"}
    if name == "DPT":
        return {
            "size": [size["height"], size["width"]],
            "keep_ratio": bool(values["keep_aspect_ratio"]),
            "multiple": values["ensure_multiple_of"],
        }
    shortest = size.get("shortest_edge")
    if name == "ConvNext":
        if shortest is None:
            raise CommandError(f"{path}: size is {size}; ConvNext takes a shortest_edge.")
        if shortest >= 384:  # ConvNext squeezes the whole picture then
            return {"size": [shortest, shortest]}
        return {"shortest_edge": int(shortest / values["crop_pct"]), "crop": [shortest, shortest]}
    if name == "PoolFormer":
        if shortest is None and size["height"] != size["width"]:
            return {"size": [int(size[side] / values["crop_pct"]) for side in ("height", "width")]}
        return {"shortest_edge": int((shortest or size["height"]) / values["crop_pct"])}
    if name == "Levit" and shortest:
        return {"shortest_edge": int((256 / 224) * shortest)}
    if name == "TextNet":
        return {"shortest_edge": size["shortest_edge"], "multiple": values["size_divisor"], "rounding": "up"}
    if shortest:
        longest = size.get("longest_edge")
        whole = {"multiple": 16, "rounding": "down"} if name == "Yolos" else {}
        return {"shortest_edge": shortest, **({"longest_edge": longest, **whole} if longest else {})}
    if size.get("max_height") and size.get("max_width"):
        return {"within": [size["max_height"], size["max_width"]]}
    return {"size": [size["height"], size["width"]]}


def _sides(size: Any, to_square: bool, longest: int | None = None, is_detr: bool = False) -> dict[str, int]:
    """Return a size by the names of its sides, as transformers reads older files."""
    if size is None or isinstance(size, dict):
        return size or {}
    if not isinstance(size, int):
        return {"height": size[0], "width": size[1]}
    if is_detr:
        return {"shortest_edge": size, "longest_edge": longest or 1333}
    return {"height": size, "width": size} if to_square else {"shortest_edge": size}


def _normalised(path: Path, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what becomes of each value of a pixel, as ``(pixel * scale - mean) / std``."""
    mean, std = [0.0] * 3, [1.0] * 3
    is_normalised = values["do_normalize"] and name != "MobileViT"  # which never does
    if is_normalised or values.get("include_top"):
        if values["image_mean"] is None or values["image_std"] is None:
            raise CommandError(
                f"{path} normalises, but has no image_mean and image_std: add both to the file."
            )
        std = _channels(values["image_std"])
    if is_normalised:
        mean = _channels(values["image_mean"])
    if values.get("rescale_offset") and values["do_rescale"]:
        mean = [each + 1 for each in mean]
    if values.get("include_top") and is_normalised:
        std = [each**2 for each in std]  # EfficientNet divides once more
    return {
        "channels": "BGR" if values.get("do_flip_channel_order") else "RGB",
        "scale": values["rescale_factor"] if values["do_rescale"] else 1.0,
        "mean": mean,
        "std": std,
    }


def _channels(values: Any) -> list[float]:
    return [float(each) for each in values] if isinstance(values, list) else [float(values)] * 3
