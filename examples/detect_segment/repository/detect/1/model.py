"""The detector, in Triton's python backend: a picture and classes in, boxes out.

It runs in the environment of this folder and imports nothing of the box.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import triton_python_backend_utils as triton

#: Pixels of a side of the detector's input, and the grey around the picture in it.
SIDE, GREY = 640, 114
#: Two boxes of a class whose overlap (intersection over union) is larger are one object.
MAX_OVERLAP = 0.45
#: The most objects of an answer: segmentation takes time for each.
MAX_OBJECTS = 20


class TritonPythonModel:
    """One instance: a process with a session of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        graph = Path(args["model_repository"]) / args["model_version"] / "detector.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised; its own lines are not JSON
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        # A row of the output is a box and a score for each class.
        self.class_count = self.session.get_outputs()[0].shape[1] - 4

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        image, classes, threshold = (
            triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("image", "classes", "threshold")
        )
        if not image.size or not classes.size or ((classes < 0) | (classes >= self.class_count)).any():
            return error_response(f"a picture and classes from 0 to {self.class_count - 1} are wanted")
        rows = self.session.run(None, {"images": to_tensor(image)})[0][0].T
        boxes, scores, class_ids = find_objects(rows, np.unique(classes), float(threshold[0]))
        return triton.InferenceResponse(
            [
                triton.Tensor("boxes", to_shares(boxes, image.shape[1], image.shape[0])),
                triton.Tensor("scores", scores),
                triton.Tensor("class_ids", class_ids),
            ]
        )


def fit(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the picture in the input, as large as fits."""
    ratio = min(SIDE / width, SIDE / height)
    inner_width, inner_height = max(1, round(width * ratio)), max(1, round(height * ratio))
    return (SIDE - inner_width) // 2, (SIDE - inner_height) // 2, inner_width, inner_height


def to_tensor(image: Any) -> Any:
    """Letterbox RGB uint8 [height, width, 3] into float32 [1, 3, SIDE, SIDE]."""
    left, top, width, height = fit(image.shape[1], image.shape[0])
    square = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    square[top : top + height, left : left + width] = cv2.resize(image, (width, height))
    return cv2.dnn.blobFromImage(square, 1 / 255)


def find_objects(rows: Any, classes: Any, threshold: float) -> tuple[Any, Any, Any]:
    """Find objects in rows [n, 4 + classes] (centre x, y, width, height, scores).

    Returns boxes [m, 4] (x1, y1, x2, y2), scores [m] and class ids [m], best first.
    """
    class_scores = rows[:, 4:][:, classes]
    scores = class_scores.max(axis=1)
    sure = scores > threshold
    class_ids = classes[class_scores[sure].argmax(axis=1)].astype(np.int32)
    scores, (x, y, width, height) = scores[sure], rows[sure, :4].T
    corners = np.stack([x - width / 2, y - height / 2, width, height], axis=1)
    selected = cv2.dnn.NMSBoxesBatched(
        corners.tolist(), scores.tolist(), class_ids.tolist(), threshold, MAX_OVERLAP
    )
    best = np.array(selected, np.intp).ravel()
    best = best[np.argsort(-scores[best], kind="stable")][:MAX_OBJECTS]
    boxes = np.concatenate([corners[best, :2], corners[best, :2] + corners[best, 2:]], axis=1)
    return boxes, scores[best].astype(np.float32), class_ids[best]


def to_shares(boxes: Any, width: int, height: int) -> Any:
    """Convert boxes from the input's pixels to shares of the picture, clipped to it."""
    left, top, inner_width, inner_height = fit(width, height)
    moved = (boxes - [left, top, left, top]) / [inner_width, inner_height, inner_width, inner_height]
    return moved.clip(0, 1).astype(np.float32)


def error_response(reason: str) -> Any:
    """Return a response that says that the request is wrong."""
    return triton.InferenceResponse(error=triton.TritonError(reason, triton.TritonError.INVALID_ARG))
