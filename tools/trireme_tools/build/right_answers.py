"""The right answers of a team's inputs, where their folder has them: labels of pictures, or boxes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.errors import CommandError
from trireme_extensions.convert.graph_runner import Feed
from trireme_tools.build import box_labels
from trireme_tools.build.golden_answers import CONFIDENCE, Golden
from trireme_tools.build.measure import Input

#: The threshold of boxes that are compared with right ones: precision is averaged over all scores.
LEAST_SCORE = 0.001
#: The file with the right label of each input, as lines ``file,label``; a label is its place in the output.
LABELS = "labels.csv"
#: COCO's file beside the pictures, as its documentation and Roboflow name it.
COCO = ("annotations.json", "_annotations.coco.json")
#: YOLO's folder with a ``NAME.txt`` for ``NAME.jpg``: in the pictures' folder, or in place of ``images``.
YOLO, IMAGES = "labels", "images"


def read_inputs(folder: Path, named: Sequence[tuple[str, Feed]], golden: Golden, names: Path) -> list[Input]:
    """Return a team's inputs with the answers of fp32 and, where the folder has them, the right labels.

    ``names``: the file with the names of the model's classes.

    Raises:
        CommandError: The labels cannot be read, an input has none, or they do not fit the answers.
    """
    labels = read_labels(folder)
    if labels:
        _check_labels(folder / LABELS, [name for name, _ in named], labels, golden)
    if labels and (missing := sorted({name for name, _ in named} - labels.keys())):
        raise CommandError(f"{folder / LABELS} has no label for {', '.join(missing[:3])}.")
    boxes: Sequence[NDArray[Any] | None] = [None] * len(named)
    if "boxes" in golden.kinds.values() and (place := find_boxes(folder)):
        boxes = box_labels.read(place, folder, named, names)
    return [
        Input(feed, answer, name, labels.get(name), right)
        for (name, feed), answer, right in zip(named, golden.answers, boxes, strict=True)
    ]


def _check_labels(path: Path, names: Sequence[str], labels: Mapping[str, int], golden: Golden) -> None:
    """Raise :class:`CommandError` unless each file has one record, and its label a place in the scores."""
    output = next((name for name, kind in golden.kinds.items() if kind == "labels"), None)
    if output is None:
        raise CommandError(
            f"{path} has labels, and the model's answers are not scores of labels: without the file int8 is "
            "compared with fp32."
        )
    for name, answer in zip(names, golden.answers, strict=True):
        if names.count(name) > 1 or len(answer[output]) != 1:
            raise CommandError(f"{path}: {name} has several records, and one label: give each a file.")
        if labels.get(name, 0) >= (count := answer[output].shape[-1]):
            raise CommandError(
                f"{path}: {name} has the label {labels[name]}; {output} has {count}, from 0 on."
            )


def with_low_threshold(folder: Path, feed: Feed) -> Feed:
    """Return an input whose graph answers boxes from half the score on, so that one just below counts too.

    All of them, if ``folder`` has the right ones.
    """
    if CONFIDENCE not in feed:
        return feed
    factor = 0 if find_boxes(folder) else 0.5
    return {**feed, CONFIDENCE: np.maximum(feed[CONFIDENCE] * np.float32(factor), np.float32(LEAST_SCORE))}


def find_boxes(folder: Path) -> Path | None:
    """Return the file or folder with the right boxes of the pictures in ``folder``; None if there is none."""
    places = [*(folder / name for name in COCO), folder / YOLO]
    before, images, behind = f"{folder.absolute()}/".rpartition(f"/{IMAGES}/")
    if images:  # Ultralytics' rule
        places.append(Path(before, YOLO, behind))
    return next((path for path in places if path.exists()), None)


def read_labels(folder: Path) -> dict[str, int]:
    """Read :data:`LABELS`; empty without it. Raises :class:`CommandError` with the wrong line."""
    path = folder / LABELS
    if not path.is_file():
        return {}
    labels = {}
    for number, row in enumerate(csv.reader(path.read_text("utf-8-sig").splitlines()), 1):
        if len(row) != 2 or not row[1].strip().isdigit() or not (folder / row[0]).is_file():
            raise CommandError(
                f"{path}, line {number}: a file of the folder and the number of its label are expected."
            )
        labels[row[0]] = int(row[1])
    return labels
