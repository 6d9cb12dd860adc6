"""Grounding DINO, in the place of ``detect/1/model.py``: it finds the phrases of ``labels.txt``."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as triton
from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

#: The most objects of an answer: segmentation takes time for each.
MAX_OBJECTS = 20


class TritonPythonModel:
    """One instance: a process with a network of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        home = Path(args["model_repository"])
        weights = home / args["model_version"] / "weights"
        self.labels = (home / "labels.txt").read_text(encoding="utf-8").splitlines()
        self.processor = AutoProcessor.from_pretrained(weights, local_files_only=True)
        network = AutoModelForZeroShotObjectDetection.from_pretrained(weights, local_files_only=True)
        self.network = network.eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        image, classes, threshold = (
            triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("image", "classes", "threshold")
        )
        class_count = len(self.labels)
        if not image.size or not classes.size or ((classes < 0) | (classes >= class_count)).any():
            reason = f"a picture and classes from 0 to {class_count - 1} are wanted"
            return triton.InferenceResponse(error=triton.TritonError(reason, triton.TritonError.INVALID_ARG))
        boxes, scores, class_ids = self.find_objects(image, np.unique(classes), float(threshold[0]))
        return triton.InferenceResponse(
            [
                triton.Tensor("boxes", boxes),
                triton.Tensor("scores", scores),
                triton.Tensor("class_ids", class_ids),
            ]
        )

    def find_objects(self, image: Any, classes: Any, threshold: float) -> tuple[Any, Any, Any]:
        """Return boxes [n, 4] as shares, scores [n] and class ids [n], best first."""
        names = {self.labels[index].lower(): index for index in classes.tolist()}
        text = " ".join(f"{name}." for name in names)
        inputs = self.processor(images=image, text=text, return_tensors="pt")
        with torch.inference_mode():
            outputs = self.network(**inputs)
        (detections,) = self.processor.post_process_grounded_object_detection(
            # In a picture of 1 by 1, pixels are shares.
            outputs,
            inputs["input_ids"],
            threshold=threshold,
            text_threshold=threshold / 2,
            target_sizes=[(1, 1)],
        )
        best = detections["scores"].argsort(descending=True)[:MAX_OBJECTS].numpy()
        # The label has the words of the text that an object matches, perhaps only a part of a name.
        class_ids = [
            names[difflib.get_close_matches(detections["text_labels"][index], names, 1, 0)[0]]
            for index in best
        ]
        boxes = detections["boxes"].clamp(0, 1).numpy()[best].astype(np.float32).reshape(-1, 4)
        return boxes, detections["scores"].numpy()[best].astype(np.float32), np.array(class_ids, np.int32)
