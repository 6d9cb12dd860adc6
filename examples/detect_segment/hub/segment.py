"""SAM (ViT), in the place of ``segment/1/model.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as triton
from transformers import SamModel, SamProcessor

#: Pixels of a side of the network's input, and of a mask.
SIDE, MASK = 1024, 256


class TritonPythonModel:
    """One instance: a process with a network of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        weights = Path(args["model_repository"]) / args["model_version"] / "weights"
        self.processor = SamProcessor.from_pretrained(weights, local_files_only=True)
        self.network = SamModel.from_pretrained(weights, local_files_only=True).eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        image, boxes = (
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("image", "boxes")
        )
        masks, quality = np.empty((0, MASK, MASK), np.float32), np.empty(0, np.float32)
        if len(boxes):
            masks, quality = self.masks(image, boxes)
        return triton.InferenceResponse([triton.Tensor("masks", masks), triton.Tensor("quality", quality)])

    def masks(self, image: Any, boxes: Any) -> tuple[Any, Any]:
        """Return for each box the best of the network's three masks, by its own estimate."""
        height, width = image.shape[:2]
        corners = (boxes * [width, height, width, height]).tolist()
        inputs = self.processor(image, input_boxes=[corners], return_tensors="pt")
        with torch.inference_mode():
            outputs = self.network(
                pixel_values=inputs["pixel_values"], input_boxes=inputs["input_boxes"].float()
            )
        quality, best = outputs.iou_scores[0].max(dim=1)
        masks = outputs.pred_masks[0][torch.arange(len(best)), best]
        # SAM lays the picture into the upper left of its square; a mask here is of the picture alone.
        inner_height, inner_width = (inputs["reshaped_input_sizes"][0] * MASK / SIDE).round().int().tolist()
        cut = masks[None, :, : max(1, inner_height), : max(1, inner_width)]
        stretched = torch.nn.functional.interpolate(cut, (MASK, MASK), mode="bilinear")
        return stretched[0].numpy(), quality.numpy()
