"""Tasks of a whole picture: classification, embeddings and segmentation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sm.client.base import TensorMetadata, Tensors
from sm.client.described import Activation, ModelOptions, PictureClient
from sm.client.payloads import ImagePayload
from sm.client.results import Classes, Masks, ResultKind
from sm.client.tensor_roles import ImageInput, UnsuitableModel, find_output
from sm.errors import StartError
from trireme_extensions.tasks.picture_steps import read_for
from trireme_extensions.tasks.task_file import Classifier, TaskFile, Top, unit_vector


class ImageClassificationOptions(TaskFile):
    """How the output becomes probabilities; ``none``: the graph has done it."""

    activation: Activation = "auto"


class ClassifiedImage(ImagePayload):
    """A picture to classify."""

    parameters: Top = Field(default_factory=Top)


class ImageClassification(PictureClient, Classifier):
    """``[{"label", "score"}]``, the best first.

    Serves a model that takes one picture and has one output with a score for each class, whatever their
    names. ``preprocess.json`` says how a picture becomes its input.
    """

    options: ClassVar[type[ModelOptions] | None] = ImageClassificationOptions
    payload: ClassVar[type[ImagePayload]] = ClassifiedImage
    result: ClassVar[ResultKind | None] = Classes()

    def read_preprocessing(self, image: ImageInput) -> Any:
        return read_for(image, self.home / "preprocess.json", self.model)


class Normalised(TaskFile):
    """Whether the vector has the length 1."""

    normalise: bool = True


class ImageEmbeddings(ImageClassification):
    """``{"embedding": [...]}`` of a picture.

    Serves a model with an output of one vector for each picture, or one for each patch, of which the first
    counts, as of a vision transformer.
    """

    options = Normalised
    payload: ClassVar[type[ImagePayload]] = ImagePayload
    result = None

    def find_output(self) -> TensorMetadata:
        try:
            return find_output(self.metadata, 1, ("image_embeds", "pooler_output"))
        except UnsuitableModel:
            return find_output(self.metadata, 2, ("last_hidden_state",))

    def postprocess(self, outputs: Tensors, payload: Any) -> Any:  # noqa: ARG002
        output = outputs[self.output.name]
        # The first of a model's patches is that of the whole picture.
        vector = output.reshape(-1, output.shape[-1])[0].astype(np.float32)
        return {"embedding": unit_vector(vector) if self.settings.normalise else vector}


#: Pixels of a mask's longer side at most: the scores of all classes are enlarged to it, one after the other.
MAX_MASK_SIDE = 1024


class ImageSegmentation(ImageClassification):
    """``[{"label", "share", "mask": {"size", "counts"}}]``: the pixels of each class, the most first.

    A mask is COCO's run lengths, of the picture's size, or of at most :data:`MAX_MASK_SIDE` pixels on the
    longer side. Serves a model with an output of a score for each class and pixel, such as SegFormer.
    """

    payload: ClassVar[type[ImagePayload]] = ImagePayload
    result = Masks()

    def find_output(self) -> TensorMetadata:
        output = self.find_classes(3, 0, ("logits", "out"))
        if output.shape[0] == 1:
            raise UnsuitableModel(f"{self.model!r} scores 1 class in {output.name}; at least 2 are expected.")
        return output

    def read_preprocessing(self, image: ImageInput) -> Any:
        preprocessing = super().read_preprocessing(image)
        if not preprocessing.keeps_whole:
            raise StartError(
                f"preprocess.json of {self.model!r} crops; masks are of the whole picture: set fit to squash."
            )
        return preprocessing

    def postprocess(self, outputs: Tensors, payload: Any) -> Any:
        import cv2  # the gateway's Lambda, which has classifiers of this module, has no OpenCV

        logits = outputs[self.output.name]
        ratio = min(1.0, MAX_MASK_SIDE / max(payload.size))
        width, height = (max(1, round(side * ratio)) for side in payload.size)
        best = np.full((height, width), -np.inf, np.float32)
        classes = np.zeros((height, width), np.int32)
        for number, plane in enumerate(logits.reshape(logits.shape[-3:])):
            scores = cv2.resize(plane, (width, height), interpolation=cv2.INTER_LINEAR)
            classes[scores > best] = number
            np.maximum(best, scores, out=best)
        rows = [
            {
                "label": self.labels[number],
                "share": sum(counts[1::2]) / classes.size,
                "mask": {"size": [height, width], "counts": counts},
            }
            for number, counts in run_lengths(classes).items()
        ]
        return sorted(rows, key=lambda row: -row["share"])


def run_lengths(classes: NDArray[np.int32]) -> dict[int, list[int]]:
    """Return COCO's run lengths of each class of a map [height, width]: down the columns, first outside."""
    flat = classes.T.ravel()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(flat)) + 1))
    ends, of_run = np.append(starts[1:], flat.size), flat[starts]
    found = {}
    for number in np.unique(of_run).tolist():
        edges = np.stack((starts[of_run == number], ends[of_run == number]), axis=1).ravel()
        counts = np.diff(edges, prepend=0, append=flat.size).tolist()
        found[number] = counts if counts[-1] else counts[:-1]
    return found
