"""Turn masks into what callers read: cleaned, in the picture's own size, run-length encoded.

It runs in the environment of the model ``detect``, which has pycocotools, and imports nothing of the box.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import triton_python_backend_utils as triton
from pycocotools import mask as coco

#: Islands and holes with fewer pixels, of a mask's 65,536, are removed.
MIN_REGION_PIXELS = 64
#: Pixels of the largest picture that the box decodes.
MAX_PIXELS = 64_000_000


class TritonPythonModel:
    """The model has no state."""

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        masks, size = (
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("masks", "size")
        )
        height, width = map(int, size)
        if min(height, width) < 1 or height * width > MAX_PIXELS:
            reason = f"a mask of {height} by {width} pixels cannot be made"
            return triton.InferenceResponse(error=triton.TritonError(reason, triton.TritonError.INVALID_ARG))
        encoded = [self.encode(mask, width, height) for mask in masks]
        lengths = np.array([len(counts) for counts in encoded], np.int32)
        return triton.InferenceResponse(
            [
                triton.Tensor("rle", np.frombuffer(b"".join(encoded), np.uint8).copy()),
                triton.Tensor("lengths", lengths),
            ]
        )

    def encode(self, mask: Any, width: int, height: int) -> bytes:
        """Encode float32 [256, 256], above 0 the object, as COCO's compressed run lengths."""
        large = cv2.resize(remove_specks(mask), (width, height), interpolation=cv2.INTER_LINEAR)
        counts: bytes = coco.encode(np.asfortranarray(large > 0, np.uint8))["counts"]
        return counts


def remove_specks(mask: Any) -> Any:
    """Return the mask without small islands and holes."""
    mask = mask.copy()
    for foreground, replacement in ((True, -1.0), (False, 1.0)):
        regions = ((mask > 0) == foreground).astype(np.uint8)
        _, labels, statistics, _ = cv2.connectedComponentsWithStats(regions, connectivity=8)
        specks = np.flatnonzero(statistics[:, cv2.CC_STAT_AREA] < MIN_REGION_PIXELS)
        mask[np.isin(labels, specks[specks > 0])] = replacement
    return mask
