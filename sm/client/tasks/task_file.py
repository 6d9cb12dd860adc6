"""The parts that all tasks share: ``task.json``, the output that they read, and the labels of its classes."""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import Self

from sm.client import tasks
from sm.client.base import TensorClient, TensorMetadata, Tensors
from sm.client.payloads import Parameters, read_description
from sm.client.tasks.task_table import TASKS
from sm.client.tensor_roles import find_output, label_file
from sm.errors import StartError

log = logging.getLogger(__name__)
TASK_FILE = "task.json"
#: How scores become probabilities; ``none``: the graph has done it, or they are a regression's.
Function = Literal["softmax", "sigmoid", "none"]
#: The activations that ``task.json`` may name. ``auto``: sigmoid for one class, else softmax, as
#: transformers' pipelines do.
Activation = Literal["auto", "softmax", "sigmoid", "none"]
Choice = TypeVar("Choice")
#: A choice whose name callers of transformers may write in capitals.
LowerCase = Annotated[
    Choice, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
]
#: How far the sum of a softmax in bf16 may be from 1.
SUM_TOLERANCE = 0.01
#: Rows of an output that are looked at for it, and the least probability that has a logarithm.
DOUBTED, SMALLEST = 4, 1e-38
#: Labels of an answer at most; more than any classifier has.
MAX_LABELS = 100_000


class TaskFile(BaseModel):
    """The options of every task's file. A task adds its own in a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    task: str = ""

    @classmethod
    def read(cls, model: Path, name: str = TASK_FILE) -> Self:
        """Read the file of this name in a model's folder; without one, return the defaults.

        Raises:
            StartError: A field is wrong; the sentence names it.
        """
        path = model / name
        return read_description(cls, path) if path.is_file() else cls()


class Task(TensorClient):
    """A client that reads one output of its model, as the files in the model's folder say."""

    options: ClassVar[type[TaskFile]] = TaskFile
    #: The file with the options.
    options_file: ClassVar[str] = TASK_FILE
    has_warned = False

    def setup(self) -> None:
        self.home, self.metadata = self.repository / self.model, self.triton.metadata(self.model)
        self.settings: Any = self.options.read(self.home, self.options_file)
        self.labels: tuple[str, ...] = ()
        self.output = self.find_output()

    @abstractmethod
    def find_output(self) -> TensorMetadata:
        """Find the output that the task reads, and read its labels.

        Raises:
            UnsuitableModel: The model does not have it.
        """

    def find_classes(self, rank: int, axis: int = -1, names: tuple[str, ...] = ("logits",)) -> TensorMetadata:
        """Find the output with a score for each class along ``axis``, and read the classes' names."""
        output = find_output(self.metadata, rank, names)
        self.labels = read_labels(self.home, output.name, output.shape[axis])
        return output

    def wanted(self, payload: Any) -> Sequence[str] | None:  # noqa: ARG002  # the same for all
        return (self.output.name,)

    def logits(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return scores for a softmax; their logarithms if the graph ends in one (``activation`` none)."""
        if self.settings.activation != "none":
            self.doubt(scores)
            return scores
        logarithms: NDArray[np.float64] = np.log(np.maximum(scores.astype(np.float64), SMALLEST))
        return logarithms

    def doubt(self, scores: NDArray[np.floating[Any]]) -> None:
        """Warn once if scores look like probabilities already, so that another softmax would flatten them."""
        is_chosen = self.has_warned or self.settings.activation != "auto"
        # Some rows tell: a text has one for each token.
        if not is_chosen and are_probabilities(scores.reshape(-1, scores.shape[-1])[:DOUBTED]):
            self.has_warned = True
            log.warning(
                "%s: the output %s has probabilities already, and a softmax makes others of them; if the "
                'graph ends in a softmax, set "activation": "none" in %s',
                self.model,
                self.output.name,
                self.options_file,
            )


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


def read_lines(path: Path) -> tuple[str, ...]:
    """Read the lines of a file. Raises :class:`StartError`."""
    try:
        return tuple(path.read_text("utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be read: {error}") from None


def softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return probabilities along the last axis, in float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def are_probabilities(scores: NDArray[np.floating[Any]]) -> bool:
    """True if the scores of several classes lie in 0..1 and have the sum 1, as a softmax makes them."""
    if scores.shape[-1] < 2 or not scores.size:
        return False
    is_within = bool(scores.min() >= 0 and scores.max() <= 1)
    return is_within and bool(np.allclose(scores.sum(axis=-1, dtype=np.float64), 1, atol=SUM_TOLERANCE))


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
