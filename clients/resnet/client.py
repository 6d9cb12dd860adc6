"""ImageNet classification: a picture in, its likeliest classes out."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from sm.base import Array, ImagePayload, Parameters, TensorClient, Tensors
from sm.errors import StartError
from sm.preprocessing import Preprocessing


class Options(Parameters):
    top: int = Field(default=3, ge=1, le=1000, description="How many classes to answer.")


class ClassifiedPicture(ImagePayload):
    parameters: Options = Field(default_factory=Options)


class Resnet(TensorClient):
    """Rows ``score:index:index:label``, the likeliest first, as the reference system prints them.

    The score is the logit, not the probability: the reference asks Triton's classification extension
    for its model's one output, whose values (11.25) are no probabilities. A caller who wants
    probabilities has ``probs`` through Triton's own API.
    """

    model = "resnet"
    payload = ClassifiedPicture
    inputs = {"input": ("FP32|UINT8", (-1, -1, -1))}
    outputs = {"logits": ("FP32", (-1,))}

    def setup(self) -> None:
        """``preprocess.json`` and ``labels.txt`` travel with the model: another ResNet brings its own."""
        folder = self.repository / self.model
        prepared = Preprocessing.read(folder / "preprocess.json")
        metadata = self.triton.metadata(self.model)
        # A model that takes bytes has the arithmetic in its graph.
        self.tensor = prepared.unscaled if metadata.inputs["input"].datatype == "UINT8" else prepared
        self.labels = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
        (classes,) = metadata.outputs["logits"].shape
        if classes != len(self.labels):
            raise StartError(f"{folder / 'labels.txt'} has {len(self.labels)} labels for {classes} classes.")

    def preprocess(self, payload: ClassifiedPicture) -> dict[str, Array]:
        """The picture to ``input``, float32 or uint8 [3, 224, 224]."""
        return {"input": self.tensor(payload.pixels)}

    def postprocess(self, outputs: Tensors, payload: ClassifiedPicture) -> list[str]:
        """``logits``, float32 [1000], to rows."""
        logits = outputs["logits"]
        best = np.argsort(-logits, kind="stable")[: payload.parameters.top]
        return [f"{logits[index]:f}:{index}:{index}:{self.labels[index]}" for index in best]
