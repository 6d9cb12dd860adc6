"""ImageNet classification: a picture in, its most likely classes out."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from pydantic import Field

from sm.client import Classes, ImageInput, ImagePayload, Parameters, Tensors, label_file
from sm.client.tasks import ImageClassification

from .labels import Labels
from .squash import Squash

log = logging.getLogger(__name__)


class Options(Parameters):
    top: int = Field(default=3, ge=1, le=1000, description="How many classes to answer.")


class ClassifiedPicture(ImagePayload):
    parameters: Options = Field(default_factory=Options)


class Resnet(ImageClassification):
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

    def read_options(self, classes: int) -> None:
        """Read the labels from the model's folder: another ResNet brings its own."""
        self.rows = Labels.read(label_file(self.repository / self.model, self.output), classes)

    def read_preprocessing(self, image: ImageInput) -> Any:
        """Read ``preprocess.json``; without one, prepare pictures as the reference system does."""
        if (self.repository / self.model / "preprocess.json").is_file():
            return super().read_preprocessing(image)
        squash = Squash.of(image)
        log.info(
            "%s has no preprocess.json: pictures become %d by %d pixels, RGB, divided by 255",
            self.model,
            squash.width,
            squash.height,
        )
        return squash

    def postprocess(self, outputs: Tensors, payload: ClassifiedPicture) -> list[str]:
        """Turn the scores, float32 [classes], into rows."""
        scores = outputs[self.output].reshape(-1)
        best = np.argsort(-scores, kind="stable")[: payload.parameters.top]
        return [self.rows.row(scores[index], index) for index in best]
