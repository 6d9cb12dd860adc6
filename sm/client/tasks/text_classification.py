"""Text classification: the labels of a text, such as its mood, with their probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from sm.client.base import TensorMetadata, Tensors
from sm.client.payloads import Parameters
from sm.client.results import Classes
from sm.client.tasks.task_file import Activation, probabilities, ranked, read_labels
from sm.client.tasks.text_task import TaskText, TextOptions, TextTask
from sm.client.tensor_roles import find_output


class Classification(TextOptions):
    """How scores become probabilities: of one label among all, or of each label by itself."""

    activation: Activation = "softmax"


class Top(Parameters):
    """How many labels to answer."""

    top: int = Field(default=5, ge=1, le=1000, description="How many labels to answer.")


class ClassifiedText(TaskText):
    """A text to classify."""

    parameters: Top = Field(default_factory=Top)


class TextClassification(TextTask):
    """``[{"label", "score"}]``, the best first."""

    options = Classification
    payload = ClassifiedText
    result = Classes()

    def read_options(self, folder: Path) -> TextOptions:
        settings = Classification.read(folder)
        self.activation = settings.activation
        return settings

    def find_output(self, folder: Path) -> TensorMetadata:
        output = find_output(self.triton.metadata(self.model), 1, ("logits",))
        self.labels = read_labels(folder, output.name, output.shape[0])
        return output

    def postprocess(self, outputs: Tensors, payload: ClassifiedText) -> list[dict[str, Any]]:
        logits = outputs[self.output.name].reshape(-1)
        return ranked(probabilities(logits, self.activation), self.labels, payload.parameters.top)
