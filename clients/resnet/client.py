"""ImageNet classification: a picture in, its likeliest classes out."""

from __future__ import annotations

import logging

import numpy as np
from pydantic import Field

from sm.client import (
    Array,
    Classes,
    ImageInput,
    ImagePayload,
    Parameters,
    Preprocessing,
    TensorClient,
    Tensors,
    find_image,
    find_output,
    label_file,
)
from sm.errors import StartError

from .labels import Labels
from .squash import Squash

log = logging.getLogger(__name__)


class Options(Parameters):
    top: int = Field(default=3, ge=1, le=1000, description="How many classes to answer.")


class ClassifiedPicture(ImagePayload):
    parameters: Options = Field(default_factory=Options)


class Resnet(TensorClient):
    """Rows ``score:index:index:label``, the likeliest first, as the reference system prints them.

    The score is the logit, not the probability: the reference asks Triton's classification extension
    for its model's one output, whose values (11.25) are no probabilities. A caller who wants
    probabilities has ``probs`` through Triton's own API.

    The model is any with one picture and one output of a score for each class, whatever their names.
    """

    model = "resnet"
    payload = ClassifiedPicture
    result = Classes(row="{score}:{index}:{index}:{label}")
    samples = ("coffee.jpg", "cat.png")

    def setup(self) -> None:
        """``preprocess.json`` and the labels travel with the model: another ResNet brings its own."""
        folder = self.repository / self.model
        metadata = self.triton.metadata(self.model)
        image, scores = find_image(metadata), find_output(metadata, 1, ("logits",))
        self.input, self.output = image.name, scores.name
        prepared = self.preparation(image)
        self.decode_size = prepared.decode_size
        # A model that takes bytes has the arithmetic in its graph.
        self.tensor = prepared.unscaled if image.datatype == "UINT8" else prepared
        self.labels = Labels.read(label_file(folder, scores.name), scores.shape[0])

    def preparation(self, image: ImageInput) -> Preprocessing | Squash:
        """As ``preprocess.json`` says; :class:`~sm.errors.StartError` if the model takes another size."""
        path = self.repository / self.model / "preprocess.json"
        if not path.is_file():
            squash = Squash.of(image)
            log.info(
                "%s has no preprocess.json: pictures become %d by %d pixels, RGB, divided by 255",
                self.model,
                squash.width,
                squash.height,
            )
            return squash
        prepared = Preprocessing.read(path)
        if image.size(prepared.crop) != (prepared.crop, prepared.crop):
            raise StartError(
                f"{path} has crop {prepared.crop}, but {self.model!r} takes {image.height} by {image.width}."
            )
        return prepared

    def preprocess(self, payload: ClassifiedPicture) -> dict[str, Array]:
        """The picture to the model's input, float32 or uint8 [3, 224, 224]."""
        return {self.input: self.tensor(payload.pixels_at_least(*self.decode_size), payload.size)}

    def wanted(self, payload: ClassifiedPicture) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return (self.output,)

    def postprocess(self, outputs: Tensors, payload: ClassifiedPicture) -> list[str]:
        """The scores, float32 [classes], to rows."""
        scores = outputs[self.output].reshape(-1)
        best = np.argsort(-scores, kind="stable")[: payload.parameters.top]
        return [self.labels.row(scores[index], index) for index in best]
