"""The parts that all tasks share: ``task.json``, and the scores of classes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BeforeValidator, Field

from sm.client.base import TensorClient, TensorMetadata, Tensors
from sm.client.described import Activation, DescribedClient, ModelOptions, read_lines, softmax
from sm.client.payloads import Parameters
from sm.client.tensor_roles import find_output, label_file
from sm.errors import StartError
from trireme_extensions import tasks
from trireme_extensions.tasks.task_table import TASKS

log = logging.getLogger(__name__)
TASK_FILE = "task.json"
#: How scores become probabilities; ``none``: the graph has done it, or they are a regression's.
Function = Literal["softmax", "sigmoid", "none"]
Choice = TypeVar("Choice")
#: A choice whose name callers of transformers may write in capitals.
LowerCase = Annotated[
    Choice, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
]
#: Labels of an answer at most; more than any classifier has.
MAX_LABELS = 100_000


class TaskFile(ModelOptions):
    """The options of every task's file. A task adds its own in a subclass."""


class Task(DescribedClient):
    """A client whose options are in ``task.json``."""

    options: ClassVar[type[ModelOptions] | None] = TaskFile
    options_file = TASK_FILE

    def find_classes(self, rank: int, axis: int = -1, names: tuple[str, ...] = ("logits",)) -> TensorMetadata:
        """Find the output with a score for each class along ``axis``, and read the classes' names."""
        output = find_output(self.metadata, rank, names)
        self.labels = read_labels(self.home, output.name, output.shape[axis])
        return output


class Top(Parameters):
    """How many labels to answer, and how their scores are made. The names are those of transformers too."""

    top: int = Field(
        default=5,
        ge=1,
        le=MAX_LABELS,
        validation_alias=AliasChoices("top", "top_k"),
        description="How many labels to answer.",
    )
    function_to_apply: LowerCase[Function] | None = Field(
        default=None, description="How scores become probabilities, in place of what the model's files say."
    )


class Classifier(Task):
    """A client whose output has a score for each class; the best are the answer."""

    def find_output(self) -> TensorMetadata:
        return self.find_classes(1)

    def postprocess(self, outputs: Tensors, payload: Any) -> Any:
        options = payload.parameters
        function = options.function_to_apply or self.activation(payload)
        output = outputs[self.output.name].reshape(-1)
        if function in ("auto", "softmax"):
            self.doubt(output)
        scores = probabilities(output, function)
        return ranked(scores, self.labels, options.top)

    def activation(self, payload: Any) -> Activation:  # noqa: ARG002  # the same for most
        """Return how the scores of a record become probabilities, unless its request says it."""
        chosen: Activation = self.settings.activation
        return chosen


def task_class(file: Path) -> type[TensorClient]:
    """Return the class for the task that a ``task.json`` names.

    Raises:
        StartError: The file is not JSON, or its task is unknown.
    """
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StartError(f"it cannot be read: {error}.") from None
    task = content.get("task") if isinstance(content, dict) else None
    if task not in TASKS:
        raise StartError(f"task is {task!r}; there are: {', '.join(TASKS)}.")
    found: type[TensorClient] = getattr(tasks, TASKS[task][1])
    return found


def read_labels(model: Path, output: str, classes: int) -> tuple[str, ...]:
    """Read one label a line from the model's folder; without a file, a class's label is its number.

    Args:
        model: The model's folder.
        output: The output with the scores, whose ``label_filename`` counts first.
        classes: How many classes the model scores; -1: unknown.

    Raises:
        StartError: The file cannot be read, or has another number of labels than the model has classes.
    """
    path = label_file(model, output)
    if path is None:
        return tuple(map(str, range(classes)))
    labels = read_lines(path)
    if classes not in (-1, len(labels)):
        raise StartError(f"{path} has {len(labels)} labels for {classes} classes")
    return labels


def probabilities(logits: NDArray[np.floating[Any]], activation: Activation) -> NDArray[np.floating[Any]]:
    """Return the scores of classes, of which one holds (softmax), or each by itself (sigmoid)."""
    if activation == "none":
        return logits
    if activation == "auto":
        activation = "softmax" if logits.shape[-1] > 1 else "sigmoid"
    if activation == "softmax":
        return softmax(logits)
    halves: NDArray[np.float64] = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))  # never overflows
    return halves


def unit_vector(vector: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return a vector with the length 1, float32; a zero vector stays zero."""
    length = max(float(np.linalg.norm(vector)), 1e-12)
    unit: NDArray[np.float32] = (vector / np.float32(length)).astype(np.float32)
    return unit


def ranked(scores: NDArray[np.floating[Any]], labels: tuple[str, ...], top: int) -> list[dict[str, Any]]:
    """Return the best labels with their scores; of equal ones, the first."""
    best = np.argsort(-scores, kind="stable")[:top]
    return [{"label": labels[index], "score": float(scores[index])} for index in best]
