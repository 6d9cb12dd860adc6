"""Image embeddings: a picture becomes a vector, so that pictures of like content have near vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from sm.client.base import TensorMetadata, Tensors
from sm.client.payloads import ImagePayload
from sm.client.tasks.image_classification import ImageClassification
from sm.client.tasks.task_file import TaskFile
from sm.client.tensor_roles import UnsuitableModel, find_output


class Normalised(TaskFile):
    """Whether the vector has the length 1."""

    normalise: bool = True


class ImageEmbeddings(ImageClassification):
    """``{"embedding": [...]}`` of a picture.

    Serves a model with an output of one vector for each picture, or one for each patch, of which the first
    counts, as of a vision transformer.
    """

    payload: ClassVar[type[ImagePayload]] = ImagePayload
    result = None

    def find_output(self) -> TensorMetadata:
        metadata = self.triton.metadata(self.model)
        try:
            return find_output(metadata, 1, ("image_embeds", "pooler_output"))
        except UnsuitableModel:
            return find_output(metadata, 2, ("last_hidden_state",))

    def read_options(self, classes: int) -> None:  # noqa: ARG002  # a vector has no labels
        self.normalise = Normalised.read(self.repository / self.model).normalise

    def postprocess(self, outputs: Tensors, payload: Any) -> Any:  # noqa: ARG002
        output = outputs[self.output]
        # The first of a model's patches is that of the whole picture.
        vector = output.reshape(-1, output.shape[-1])[0].astype(np.float32)
        length = max(float(np.linalg.norm(vector)), 1e-12) if self.normalise else 1.0
        return {"embedding": vector / np.float32(length)}
