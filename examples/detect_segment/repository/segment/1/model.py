"""SAM 2 (tiny), in Triton's python backend: a picture and boxes in, a mask for each box out.

The encoder takes seconds for a picture on a CPU, the decoder a tenth of a second for a box. So the encoder's
output for the last pictures is cached: another request for one of them is quick.
It runs in the environment of the model ``detect`` and imports nothing of the box.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import triton_python_backend_utils as triton

#: Pixels of a side of the encoder's input, into which the picture is stretched, and of a mask.
SIDE, MASK = 1024, 256
#: The normalisation that the encoder was trained with, for RGB from 0 to 255.
MEAN, DEVIATION = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
#: The decoder's labels for the first and the last corner of a box.
CORNERS = (2, 3)
#: Cached pictures, 17 MB each.
MAX_CACHED_PICTURES = 4


class TritonPythonModel:
    """One instance: a process with sessions and a cache of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        self.encoder = open_session(folder / "encoder.ort")
        self.decoder = open_session(folder / "decoder.onnx")
        self.feature_names = [output.name for output in self.encoder.get_outputs()]
        self.cache: OrderedDict[bytes, dict[str, Any]] = OrderedDict()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        image, boxes = (
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("image", "boxes")
        )
        masks, quality = np.empty((0, MASK, MASK), np.float32), np.empty(0, np.float32)
        if len(boxes):
            masks, quality = self.masks(self.encode(image), boxes)
        return triton.InferenceResponse([triton.Tensor("masks", masks), triton.Tensor("quality", quality)])

    def encode(self, image: Any) -> dict[str, Any]:
        """Return the encoder's features of a picture, RGB uint8 [height, width, 3], cached."""
        key = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()
        if key not in self.cache:
            stretched = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
            tensor = ((stretched - MEAN) / DEVIATION).astype(np.float32).transpose(2, 0, 1)[None]
            outputs = self.encoder.run(self.feature_names, {"image": np.ascontiguousarray(tensor)})
            self.cache[key] = dict(zip(self.feature_names, outputs, strict=True))
            if len(self.cache) > MAX_CACHED_PICTURES:
                self.cache.popitem(last=False)
        self.cache.move_to_end(key)
        return self.cache[key]

    def masks(self, picture: dict[str, Any], boxes: Any) -> tuple[Any, Any]:
        """Return for each box the best of the decoder's three masks, by its own estimate."""
        count = len(boxes)
        masks, quality = self.decoder.run(
            ["masks", "iou_predictions"],
            {
                **picture,
                "point_coords": boxes.reshape(count, 2, 2) * np.float32(SIDE),
                "point_labels": np.tile(np.array(CORNERS, np.float32), (count, 1)),
                "mask_input": np.zeros((count, 1, MASK, MASK), np.float32),
                "has_mask_input": np.zeros(1, np.float32),
            },
        )
        best = quality.argmax(axis=1)
        rows = np.arange(count)
        return masks[rows, best], quality[rows, best]


def open_session(graph: Path) -> Any:
    """Open a graph that uses all available cores, whose threads sleep while idle."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; its own lines are not JSON
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if graph.suffix == ".ort":  # already optimised
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
