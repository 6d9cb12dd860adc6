"""mAP by labels is that of pycocotools where it reads COCO's own two files."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.client_environments import python_with
from trireme_tools.build import box_labels, right_answers

#: COCO's way: the file of right boxes, and that of results.
REFERENCE = """
import json, sys
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
right = COCO(sys.argv[1])
evaluation = COCOeval(right, right.loadRes(sys.argv[2]), "bbox")
evaluation.evaluate(); evaluation.accumulate(); evaluation.summarize()
print(json.dumps(evaluation.stats[:2].tolist()))
"""
SIZE, INPUT = (320, 200), 160
CLASSES = ("cat", "dog", "bus")


def make(folder: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Write eight pictures with COCO's file; return results in COCO's form, and as a model answers them."""
    rng, rows, results, answers = np.random.default_rng(5), list[Any](), list[Any](), list[Any]()
    for picture in range(8):
        Image.new("RGB", SIZE).save(folder / f"{picture}.jpg")
        answer = []
        for _ in range(0 if picture == 7 else int(rng.integers(1, 6))):
            sides = rng.uniform(10, 80, 2)
            box, kind = [*(rng.uniform(0, 1, 2) * (np.array(SIZE) - sides)), *sides], int(rng.integers(1, 4))
            row = {"image_id": picture, "category_id": kind, "bbox": box, "area": float(np.prod(sides))}
            rows.append({**row, "id": len(rows) + 1, "iscrowd": int(rng.random() < 0.1)})
            for shift in rng.uniform(0, 0.4, int(rng.integers(0, 3))):
                moved = [box[0] + shift * sides[0], box[1], *box[2:]]
                kind = kind if rng.random() < 0.9 else 1
                results.append({**row, "category_id": kind, "bbox": moved, "score": float(rng.random())})
                # Half as large, in the middle of a square of 160 pixels.
                left, top, width, height = np.array(moved) / 2
                corners = left, top + 30, left + width, top + 30 + height
                answer.append([*corners, results[-1]["score"], kind - 1])
        answers.append(np.array([[*answer, [0] * 6]]))
    pictures = [
        {"id": place, "file_name": f"{place}.jpg", "width": SIZE[0], "height": SIZE[1]} for place in range(8)
    ]
    kinds = [{"id": place, "name": name} for place, name in enumerate(CLASSES, 1)]
    (folder / "annotations.json").write_text(
        json.dumps({"images": pictures, "categories": kinds, "annotations": rows})
    )
    return results, answers


@pytest.mark.exhaustive
def test_the_precision_is_that_of_coco_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_with("pycocotools==2.0.11", f"numpy=={importlib.metadata.version('numpy')}")
    monkeypatch.setattr(
        sys, "path", [*sys.path, *map(str, python.parents[1].glob("lib/python3*/site-packages"))]
    )
    results, answers = make(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    named: list[Any] = [(f"{place}.jpg", {"images": np.zeros((1, 3, INPUT, INPUT))}) for place in range(8)]
    place = right_answers.find_boxes(tmp_path)
    assert place is not None
    boxes = box_labels.read(place, tmp_path, named, tmp_path / "names.txt")
    ours = box_labels.mean_average_precision(zip(boxes, answers, strict=True))
    files = [str(place), str(tmp_path / "results.json")]
    said = subprocess.run([python, "-c", REFERENCE, *files], capture_output=True, text=True, check=True)
    theirs = json.loads(said.stdout.splitlines()[-1])
    assert ours == pytest.approx(theirs, abs=1e-9)
    assert 0.2 < theirs[0] < theirs[1] < 0.95
    empty = [np.zeros((0, 6))] * 8
    assert box_labels.mean_average_precision(zip(boxes, empty, strict=True)) == (0, 0)
    assert box_labels.mean_average_precision(zip(empty, answers, strict=True)) == (1, 1)
