"""Read ``preprocessor_config.json`` of a picture's model, as the class that it names reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from PIL.Image import Resampling

from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import Fields, fields_of, read_object, read_table, refuse
from trireme_extensions.tasks.picture_steps import PictureSteps

FILE = "preprocessor_config.json"


class Processor(NamedTuple):
    """An image processor of transformers: the values of what a file leaves out, and its fields."""

    defaults: Mapping[str, Any]
    fields: Fields


@cache
def processors() -> Mapping[str, Processor]:
    """Return the processors of pictures, by their class's name without ``ImageProcessor``.

    The one without a name is of a file that names none: only what the file says itself is known.
    """
    known = read_table("image_processors")
    rows = {**known["processor"], "": {"do_normalize": False, "resample": Resampling.BILINEAR}}
    return {name: _processor(known, **row) for name, row in rows.items()}


def _processor(known: Mapping[str, Any], norm: str = "", fields: str = "", **values: Any) -> Processor:
    defaults = {**known["defaults"], **(known["norm"][norm] if norm else {}), **values}
    return Processor(
        defaults, {**fields_of("pictures"), **(fields_of("image_processor", fields) if fields else {})}
    )


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
    if name not in processors():
        raise CommandError(
            f"{path}: the image processor {name!r} is not one of those that are known here: "
            f"{', '.join(filter(None, processors()))}. Describe its steps in a file, and name it with "
            "--preprocess."
        )
    processor = processors()[name]
    refuse(path, described, processor.fields, "Describe the steps in a file, with --preprocess.")
    own = {key: value for key, value in described.items() if key in processor.fields}
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
    kinds = read_table("image_processors")["kinds"]
    known = {re.sub("[^a-z0-9]", "", kind): name for kind, name in kinds.items()}
    known |= {name.lower(): name for name in processors() if name}
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
    resample = Resampling(values["resample"]).name.lower()  # files have Pillow's number
    steps: dict[str, Any] = {"resample": resample, **_normalised(path, name, values)}
    size = _sides(
        values.get("size"), values["default_to_square"], values.get("max_size"), name in DETR_CLASSES
    )
    crops = values["do_center_crop"] and name not in NEVER_CROPS
    crop = _sides(values.get("crop_size"), True) if crops else None
    if name == "Perceiver":
        if values["do_center_crop"]:
            own = _sides(values.get("crop_size"), True)
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
        if values.get("image_mean") is None or values.get("image_std") is None:
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
