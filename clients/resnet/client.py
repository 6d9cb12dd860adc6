"""ImageNet classification: a picture in, its most likely classes out."""

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
    """Rows ``score:index:index:label``, best first, as the reference system prints them.

    The score is the logit (11.25), not a probability, because the reference prints logits. A caller who
    wants probabilities asks Triton's own API for the output ``probs``.

    Serves any model that takes one picture and has one output with a score for each class, whatever
    their names.
    """

    model = "resnet"
    payload = ClassifiedPicture
    result = Classes(row="{score}:{index}:{index}:{label}")
    samples = ("coffee.jpg", "cat.png")

    def setup(self) -> None:
        """Read ``preprocess.json`` and the labels from the model's folder: another ResNet brings its own."""
        folder = self.repository / self.model
        metadata = self.triton.metadata(self.model)
        image, scores = find_image(metadata), find_output(metadata, 1, ("logits",))
        self.input, self.output = image.name, scores.name
        preprocessing = self.read_preprocessing(image)
        self.decode_size = preprocessing.decode_size
        # A model that takes bytes scales and normalises them in its own graph.
        self.to_tensor = preprocessing.unscaled if image.datatype == "UINT8" else preprocessing
        self.labels = Labels.read(label_file(folder, scores.name), scores.shape[0])

    def read_preprocessing(self, image: ImageInput) -> Preprocessing | Squash:
        """Read ``preprocess.json``; without one, prepare pictures as the reference system does.

        Raises:
            StartError: The file is wrong, or has another size than the model's input.
        """
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
        preprocessing = Preprocessing.read(path)
        crop = preprocessing.crop
        if image.size(crop) != (crop, crop):
            raise StartError(
                f"{path} has crop {crop}, but {self.model!r} takes {image.height} by {image.width}."
            )
        return preprocessing

    def preprocess(self, payload: ClassifiedPicture) -> dict[str, Array]:
        """Turn the picture into the model's input, float32 or uint8 [3, 224, 224]."""
        return {self.input: self.to_tensor(payload.pixels_at_least(*self.decode_size), payload.size)}

    def wanted(self, payload: ClassifiedPicture) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return (self.output,)

    def postprocess(self, outputs: Tensors, payload: ClassifiedPicture) -> list[str]:
        """Turn the scores, float32 [classes], into rows."""
        scores = outputs[self.output].reshape(-1)
        best = np.argsort(-scores, kind="stable")[: payload.parameters.top]
        return [self.labels.row(scores[index], index) for index in best]
