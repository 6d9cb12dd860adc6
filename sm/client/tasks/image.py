"""Tasks of a whole picture: classification, embeddings and segmentation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sm.client.base import TensorClient, TensorMetadata, Tensors
from sm.client.payloads import ImagePayload, Parameters
from sm.client.preprocessing import Preprocessing
from sm.client.results import Classes, Masks, ResultKind
from sm.client.tasks.task_file import Activation, TaskFile, probabilities, ranked, read_labels
from sm.client.tensor_roles import ImageInput, UnsuitableModel, find_image, find_output
from sm.errors import StartError


class Classification(TaskFile):
    """How the output becomes probabilities; ``none``: the graph has done it."""

    activation: Activation = "softmax"


class TopClasses(Parameters):
    """How many classes to answer."""

    top: int = Field(default=5, ge=1, le=1000, description="How many classes to answer.")


class ClassifiedImage(ImagePayload):
    """A picture to classify."""

    parameters: TopClasses = Field(default_factory=TopClasses)


class ImageClassification(TensorClient):
    """``[{"label", "score"}]``, the best first.

    Serves a model that takes one picture and has one output with a score for each class, whatever their
    names. ``preprocess.json`` says how a picture becomes its input.
    """

    payload: ClassVar[type[ImagePayload]] = ClassifiedImage
    result: ClassVar[ResultKind | None] = Classes()

    def setup(self) -> None:
        metadata = self.triton.metadata(self.model)
        image, scores = find_image(metadata), self.find_output()
        self.input, self.output = image.name, scores.name
        preprocessing = self.read_preprocessing(image)
        self.decode_size = preprocessing.decode_size
        # A model that takes bytes scales and normalises them in its own graph.
        self.to_tensor = preprocessing.unscaled if image.datatype == "UINT8" else preprocessing
        self.read_options(scores.shape[0])

    def find_output(self) -> TensorMetadata:
        """Find the output that the task reads. Raises :class:`UnsuitableModel`."""
        return find_output(self.triton.metadata(self.model), 1, ("logits",))

    def read_options(self, classes: int) -> None:
        """Read ``task.json`` and the names of the classes."""
        self.activation = Classification.read(self.repository / self.model).activation
        self.labels = read_labels(self.repository / self.model, self.output, classes)

    def read_preprocessing(self, image: ImageInput) -> Any:
        """Read ``preprocess.json``.

        Raises:
            StartError: The file is missing or wrong, or has another size than the model's input.
        """
        path = self.repository / self.model / "preprocess.json"
        preprocessing = Preprocessing.read(path)
        crop = preprocessing.crop
        if image.size(crop) != (crop, crop):
            raise StartError(
                f"{path} has crop {crop}, but {self.model!r} takes {image.height} by {image.width}."
            )
        return preprocessing

    def preprocess(self, payload: Any) -> Tensors:
        """Turn the picture into the model's input, float32 or uint8, such as [3, 224, 224]."""
        return {self.input: self.to_tensor(payload.pixels_at_least(*self.decode_size), payload.size)}

    def wanted(self, payload: ImagePayload) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return (self.output,)

    def postprocess(self, outputs: Tensors, payload: Any) -> Any:
        scores = probabilities(outputs[self.output].reshape(-1), self.activation)
        return ranked(scores, self.labels, payload.parameters.top)


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
        return find_output(self.triton.metadata(self.model), 3, ("logits", "out"))

    def read_options(self, classes: int) -> None:
        if classes == 1:
            raise UnsuitableModel(f"{self.model!r} scores 1 class in {self.output}; at least 2 are expected.")
        self.labels = read_labels(self.repository / self.model, self.output, classes)

    def read_preprocessing(self, image: ImageInput) -> Any:
        preprocessing = super().read_preprocessing(image)
        if preprocessing.fit != "squash":
            raise StartError(
                f"preprocess.json of {self.model!r} crops; masks are of the whole picture: set fit to squash."
            )
        return preprocessing

    def postprocess(self, outputs: Tensors, payload: Any) -> Any:
        import cv2  # the gateway's Lambda, which has classifiers of this module, has no OpenCV

        logits = outputs[self.output]
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
