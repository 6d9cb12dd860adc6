"""SAM 2 (tiny), in Triton's python backend: a picture and boxes in, a mask for each box out.

The encoder sees the picture and takes seconds on a processor, the decoder sees a box and takes a tenth of
one. So what the encoder made of the last pictures is kept: another question about one of them is quick.
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
#: What the encoder was trained with, for RGB from 0 to 255.
MEAN, DEVIATION = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
#: The decoder's marks for a box's first and last corner.
CORNERS = (2, 3)
#: Pictures remembered, 17 MB each.
REMEMBERED = 4


class TritonPythonModel:
    """One instance: a process with sessions and a memory of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        self.encoder = session(folder / "encoder.ort")
        self.decoder = session(folder / "decoder.onnx")
        self.names = [output.name for output in self.encoder.get_outputs()]
        self.seen: OrderedDict[bytes, dict[str, Any]] = OrderedDict()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        image, boxes = (
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("image", "boxes")
        )
        masks, quality = np.empty((0, MASK, MASK), np.float32), np.empty(0, np.float32)
        if len(boxes):
            masks, quality = self.masks(self.encoded(image), boxes)
        return triton.InferenceResponse([triton.Tensor("masks", masks), triton.Tensor("quality", quality)])

    def encoded(self, image: Any) -> dict[str, Any]:
        """What the decoder needs of a picture, RGB uint8 [height, width, 3]."""
        key = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()
        if key not in self.seen:
            stretched = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
            tensor = ((stretched - MEAN) / DEVIATION).astype(np.float32).transpose(2, 0, 1)[None]
            outputs = self.encoder.run(self.names, {"image": np.ascontiguousarray(tensor)})
            self.seen[key] = dict(zip(self.names, outputs, strict=True))
            if len(self.seen) > REMEMBERED:
                self.seen.popitem(last=False)
        self.seen.move_to_end(key)
        return self.seen[key]

    def masks(self, picture: dict[str, Any], boxes: Any) -> tuple[Any, Any]:
        """Of the three masks that the decoder offers for a box, the one it thinks best."""
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
        every = np.arange(count)
        return masks[every, best], quality[every, best]


def session(graph: Path) -> Any:
    """A graph on all cores that are at hand, its threads asleep while there is nothing to do."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if graph.suffix == ".ort":  # it was optimised when it was made, for another kind of processor
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
