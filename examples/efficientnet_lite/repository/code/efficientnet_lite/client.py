"""Image classification: the most likely of ImageNet's 1,000 classes, by name."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from sm.client import Array, Classes, ImagePayload, Parameters, Preprocessing, TensorClient, Tensors
from sm.errors import StartError


class Options(Parameters):
    k: int = Field(5, ge=1, le=1000, description="How many labels to answer.")
    output: Literal["labels", "probabilities", "logits"] = Field(
        "labels", description="The best k by name, or a number for each of the 1,000 classes."
    )


class ClassifiedPicture(ImagePayload):
    parameters: Options = Field(default_factory=Options)


class Label(TypedDict):
    """A class by name, and its probability."""

    label: str
    score: float


class EfficientnetLite(TensorClient):
    """``labels``: ``{"label", "score"}``, best first; the scores of all classes add up to 1.

    ``probabilities`` and ``logits`` are the model's own outputs, in the order of its ``labels.txt``.
    """

    model = "efficientnet_lite"
    payload = ClassifiedPicture
    result = Classes()
    samples = ("coffee.jpg", "cat.png")
    inputs = {"input": ("FP32", (3, -1, -1))}
    outputs = {"logits": ("FP32", (-1,)), "probabilities": ("FP32", (-1,))}

    def setup(self) -> None:
        """Read ``preprocess.json`` and ``labels.txt`` from the model's folder: another has its own."""
        folder = self.repository / self.model
        self.preprocessing = Preprocessing.read(folder / "preprocess.json")
        self.labels = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
        (classes,) = self.triton.metadata(self.model).outputs["probabilities"].shape
        if classes != len(self.labels):
            raise StartError(f"{folder / 'labels.txt'} has {len(self.labels)} labels for {classes} classes.")

    def preprocess(self, payload: ClassifiedPicture) -> dict[str, Array]:
        """Turn the picture into ``input``, float32 [3, 224, 224]."""
        pixels = payload.pixels_at_least(*self.preprocessing.decode_size)
        return {"input": self.preprocessing(pixels, payload.size)}

    def postprocess(self, outputs: Tensors, payload: ClassifiedPicture) -> list[Label] | list[float]:
        """Turn ``probabilities`` and ``logits``, float32 [1000], into the requested output."""
        if payload.parameters.output != "labels":
            return list(outputs[payload.parameters.output].tolist())
        scores = outputs["probabilities"]
        best = np.argsort(-scores, kind="stable")[: payload.parameters.k]
        return [Label(label=self.labels[index], score=round(float(scores[index]), 4)) for index in best]
