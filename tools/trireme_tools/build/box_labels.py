"""The right boxes of pictures, in YOLO's form or COCO's, and the mean average precision by pycocotools.

Boxes are rows x1, y1, x2, y2, class, and whether it is a crowd, in the pixels of the model's input.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client import ImagePayload
from sm.client.described import read_lines
from sm.client.detection import Letterbox
from sm.errors import CommandError
from trireme_extensions.convert.graph_runner import Feed
from trireme_tools.build.samples import PICTURES

Boxes = NDArray[np.float64]


def read(place: Path, folder: Path, named: Sequence[tuple[str, Feed]], names: Path) -> list[Boxes]:
    """Return the right boxes of each picture that is named with its input.

    A picture without a file of YOLO's has none, as for Ultralytics.

    Args:
        place: The folder ``labels`` of YOLO's files, or COCO's file.
        folder: Has the pictures.
        named: Each picture's file, and what the client made of it.
        names: The file with the model's classes, a name a line.

    Raises:
        CommandError: The boxes cannot be read, or do not fit the pictures or the model.
    """
    classes = read_lines(names) if names.is_file() else ()
    if odd := [name for name, _ in named if Path(name).suffix not in PICTURES]:
        raise CommandError(f"{place} has boxes of pictures, and {odd[0]} in {folder} is not a picture.")
    sizes = {name: ImagePayload(image=(folder / name).read_bytes()).size for name, _ in named}
    if place.is_dir():
        shares = {name: _read_yolo(place / f"{Path(name).stem}.txt", len(classes)) for name in sizes}
    else:
        shares = _read_coco(place, sizes, classes)
    if not any(map(len, shares.values())):
        raise CommandError(f"{place} has no box for any of the {len(sizes)} pictures in {folder}.")
    return [_in_input(shares[name], sizes[name], feed) for name, feed in named]


def _in_input(shares: Boxes, size: tuple[int, int], feed: Feed) -> Boxes:
    """Return boxes in the pixels of a letterboxed input."""
    sides = next(array.shape[-2:] for array in feed.values() if array.ndim == 4)
    at = Letterbox(size=sides, fill=0, channels="RGB", scale=1).fit(*size)
    return shares * (*(at.width, at.height) * 2, 1, 1) + (*(at.left, at.top) * 2, 0, 0)


def _read_yolo(path: Path, classes: int) -> Boxes:
    """Read a file of YOLO's; places are shares of the picture. ``classes``: 0 if that is unknown."""
    rows = []
    lines = path.read_text("utf-8-sig", errors="replace").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            kind, *places = map(float, line.split())
            points = np.array(places).reshape(-1, 2)
            is_whole = len(points) >= 2 and bool(((points >= 0) & (points <= 1)).all())
            if not is_whole or not kind.is_integer() or not 0 <= kind < (classes or np.inf):
                raise ValueError
        except ValueError:
            raise CommandError(
                f"{path}, line {number}: a class{f' below {classes}' if classes else ''} and its centre "
                "x and y, width and height are expected, as shares of the picture from 0 to 1."
            ) from None
        if len(points) == 2:
            points = np.stack([points[0] - points[1] / 2, points[0] + points[1] / 2])
        rows.append([*points.min(0), *points.max(0), kind, 0])
    unique: Boxes = np.unique(np.array(rows).reshape(-1, 6), axis=0)  # as Ultralytics does
    return unique


def _read_coco(path: Path, sizes: Mapping[str, tuple[int, int]], classes: Sequence[str]) -> dict[str, Boxes]:
    """Read COCO's file. A category is the model's class of its name, as their numbers differ."""
    rows: dict[str, list[list[float]]] = {name: [] for name in sizes}
    where = "is not in COCO's form"
    try:
        coco = json.loads(path.read_text("utf-8-sig"))
        kinds = {each["id"]: each["name"] for each in coco["categories"]}
        pictures = {Path(each["file_name"]).name: each for each in coco["images"]}
        for name, size in sizes.items():
            where = f"has no picture {name} of {size[0]} by {size[1]} pixels"
            if (pictures[name]["width"], pictures[name]["height"]) != size:
                raise ValueError
        names = {pictures[name]["id"]: name for name in sizes}
        for number, row in enumerate(coco["annotations"]):
            where = f"has a wrong bbox in annotations.{number}, or a category that is not in labels.txt"
            if name := names.get(row["image_id"], ""):
                left, top, width, height = map(float, row["bbox"])
                box = np.array([left, top, left + width, top + height]) / (sizes[name] * 2)
                if not np.isfinite(box).all() or min(width, height) < 0:
                    raise ValueError
                rows[name].append([*box, classes.index(kinds[row["category_id"]]), bool(row.get("iscrowd"))])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CommandError(f"{path} {where}.") from None
    return {name: np.array(found).reshape(-1, 6) for name, found in rows.items()}


def mean_average_precision(pairs: Iterable[tuple[Boxes, NDArray[Any]]]) -> tuple[float, float]:
    """Return mAP@0.5:0.95 and mAP@0.5 by pycocotools; 1 if there is no right box.

    ``pairs``: the right boxes of each picture, and an answer's: rows x1, y1, x2, y2, score, class.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    right, found, pictures = list[dict[str, Any]](), list[tuple[float, ...]](), list[dict[str, int]]()
    for picture, (boxes, answer) in enumerate(pairs):
        pictures.append({"id": picture})
        for x1, y1, x2, y2, kind, is_crowd in boxes.tolist():
            place = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
            known = {
                "id": len(right) + 1,
                "image_id": picture,
                "category_id": int(kind),
            }  # an id of 0 is none
            right.append(known | place | {"iscrowd": int(is_crowd)})
        for x1, y1, x2, y2, score, kind in answer.reshape(-1, answer.shape[-1])[:, :6].tolist():
            found += [(picture, x1, y1, x2 - x1, y2 - y1, score, kind)] if score > 0 else []
    if not (right and found):
        return (0.0, 0.0) if right else (1.0, 1.0)
    truth = COCO()
    truth.dataset = {
        "images": pictures,
        "annotations": right,
        "categories": [{"id": kind} for kind in {row["category_id"] for row in right}],
    }
    with redirect_stdout(io.StringIO()):  # it prints a table
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(np.array(found)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    whole, half = (float(value) for value in evaluation.stats[:2])
    return (whole, half) if whole >= 0 else (1.0, 1.0)  # all right boxes are crowds
