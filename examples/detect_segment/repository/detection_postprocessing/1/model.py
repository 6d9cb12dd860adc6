"""Masks for callers, in Triton's python backend: cleaned, in the picture's own size, run-length encoded.

It runs in the environment of the model ``detect``, which has pycocotools, and imports nothing of the box.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import triton_python_backend_utils as triton
from pycocotools import mask as coco

#: Islands and holes of fewer of a mask's 65,536 pixels are not the object's.
SPECK = 64
#: Pixels of the largest picture that the box decodes.
LARGEST = 64_000_000


class TritonPythonModel:
    """It needs nothing but its input."""

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        masks, size = (
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("masks", "size")
        )
        height, width = map(int, size)
        if min(height, width) < 1 or height * width > LARGEST:
            reason = f"a mask of {height} by {width} pixels cannot be made"
            return triton.InferenceResponse(error=triton.TritonError(reason, triton.TritonError.INVALID_ARG))
        encoded = [self.encoded(mask, width, height) for mask in masks]
        lengths = np.array([len(each) for each in encoded], np.int32)
        return triton.InferenceResponse(
            [
                triton.Tensor("rle", np.frombuffer(b"".join(encoded), np.uint8).copy()),
                triton.Tensor("lengths", lengths),
            ]
        )

    def encoded(self, mask: Any, width: int, height: int) -> bytes:
        """Float32 [256, 256], above 0 the object, to COCO's compressed run lengths."""
        large = cv2.resize(cleaned(mask), (width, height), interpolation=cv2.INTER_LINEAR)
        counts: bytes = coco.encode(np.asfortranarray(large > 0, np.uint8))["counts"]
        return counts


def cleaned(mask: Any) -> Any:
    """Without islands and holes that are specks."""
    mask = mask.copy()
    for foreground, instead in ((True, -1.0), (False, 1.0)):
        pieces = ((mask > 0) == foreground).astype(np.uint8)
        _, labels, statistics, _ = cv2.connectedComponentsWithStats(pieces, connectivity=8)
        specks = np.flatnonzero(statistics[:, cv2.CC_STAT_AREA] < SPECK)
        mask[np.isin(labels, specks[specks > 0])] = instead
    return mask
