"""Image classification: what a picture shows, with probabilities."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from sm.client.base import TensorClient, Tensors
from sm.client.payloads import ImagePayload, Parameters
from sm.client.preprocessing import Preprocessing
from sm.client.results import Classes
from sm.client.tasks.task_file import Activation, TaskFile, probabilities, ranked, read_labels
from sm.client.tensor_roles import ImageInput, find_image, find_output
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
    result = Classes()
    #: Names of the output, best first, if several have a score for each class.
    preferred_outputs = ("logits",)

    def setup(self) -> None:
        folder, metadata = self.repository / self.model, self.triton.metadata(self.model)
        image, scores = find_image(metadata), find_output(metadata, 1, self.preferred_outputs)
        self.input, self.output = image.name, scores.name
        preprocessing = self.read_preprocessing(image)
        self.decode_size = preprocessing.decode_size
        # A model that takes bytes scales and normalises them in its own graph.
        self.to_tensor = preprocessing.unscaled if image.datatype == "UINT8" else preprocessing
        self.activation = Classification.read(folder).activation
        self.read_labels(scores.shape[0])

    def read_labels(self, classes: int) -> None:
        """Read the names of the classes."""
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
