"""The known answers of the sample, from code that shares nothing with the models and the client.

    python examples/detect_segment/recipe/golden.py REPOSITORY

``REPOSITORY`` is the assembled one. Boxes come from OpenCV's own runtime (the models use ONNX Runtime),
suppression is a plain loop, Pillow makes the inputs. SAM's encoder is in a format that ONNX Runtime alone
reads, so it computes the masks here too, from Pillow's input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from PIL import Image

SAMPLE = Path(__file__).parents[1] / "repository/code/detect_segment/sample"
THRESHOLD, OVERLAP = 0.5, 0.45


def main(repository: Path) -> None:
    """Write golden.json, and masks.png: the masks of its objects, one below the other."""
    image = Image.open(SAMPLE / "collage.jpg").convert("RGB")
    labels = (repository / "detect/labels.txt").read_text().splitlines()
    objects = detect_objects(image, repository / "detect/1/detector.onnx")
    answer = [
        {
            "label": labels[class_id],
            "score": round(score, 4),
            "box": dict(zip(("x1", "y1", "x2", "y2"), [round(side, 1) for side in box], strict=True)),
        }
        for score, class_id, box in objects
    ]
    (SAMPLE / "golden.json").write_text(json.dumps(answer, indent=1) + "\n")
    masks = segment_objects(image, [box for _, _, box in objects], repository / "segment/1")
    Image.fromarray(np.concatenate(masks) * np.uint8(255)).convert("1").save(SAMPLE / "masks.png")


def detect_objects(image: Image.Image, graph: Path) -> list[tuple[float, int, list[float]]]:
    """Score, class id and box of each object, the best first."""
    ratio = min(640 / image.width, 640 / image.height)
    width, height = round(image.width * ratio), round(image.height * ratio)
    left, top = (640 - width) // 2, (640 - height) // 2
    square = Image.new("RGB", (640, 640), (114, 114, 114))
    # Pillow's resize would average; the models take the four nearest pixels, as an affine map does.
    scale = (image.width / width, 0, 0, 0, image.height / height, 0)
    small = image.transform((width, height), Image.Transform.AFFINE, scale, Image.Resampling.BILINEAR)
    square.paste(small, (left, top))
    network = cv2.dnn.readNetFromONNX(str(graph))
    network.setInput((np.asarray(square, np.float32) / 255).transpose(2, 0, 1)[None])
    objects: list[tuple[float, int, list[float]]] = []
    rows = [row for row in network.forward()[0].T if row[4:].max() > THRESHOLD]
    for x, y, w, h, *scores in sorted(rows, key=lambda row: -row[4:].max()):
        sides = [(x - w / 2 - left), (y - h / 2 - top), (x + w / 2 - left), (y + h / 2 - top)]
        limits = [image.width, image.height, image.width, image.height]
        box = [float(min(max(side / ratio, 0), limit)) for side, limit in zip(sides, limits, strict=True)]
        class_id = int(np.argmax(scores))
        if all(
            other_class != class_id or overlap(box, other_box) <= OVERLAP
            for _, other_class, other_box in objects
        ):
            objects.append((float(max(scores)), class_id, box))
    return objects


def overlap(first: list[float], second: list[float]) -> float:
    """Intersection over union."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    common = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return common / (sum(areas) - common)


def segment_objects(image: Image.Image, boxes: list[list[float]], folder: Path) -> list[Any]:
    """Return a mask, uint8 [height, width], for each box; the boxes are sent one by one."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    encoder = onnxruntime.InferenceSession(folder / "encoder.ort", options)
    decoder = onnxruntime.InferenceSession(folder / "decoder.onnx", options)
    pixels = np.asarray(image.resize((1024, 1024), Image.Resampling.BILINEAR), np.float32) / 255
    pixels = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    names = [output.name for output in encoder.get_outputs()]
    features = encoder.run(names, {"image": pixels.astype(np.float32).transpose(2, 0, 1)[None]})
    masks = []
    for box in boxes:
        corners = np.array(box).reshape(1, 2, 2) / (image.width, image.height) * 1024
        logits, quality = decoder.run(
            ["masks", "iou_predictions"],
            {
                **dict(zip(names, features, strict=True)),
                "point_coords": corners.astype(np.float32),
                "point_labels": np.array([[2, 3]], np.float32),
                "mask_input": np.zeros((1, 1, 256, 256), np.float32),
                "has_mask_input": np.zeros(1, np.float32),
            },
        )
        best = Image.fromarray(logits[0, quality[0].argmax()])
        masks.append((np.asarray(best.resize(image.size, Image.Resampling.BILINEAR)) > 0).astype(np.uint8))
    return masks


if __name__ == "__main__":
    main(Path(sys.argv[1]))
