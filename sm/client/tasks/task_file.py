"""The ``task.json`` of a model's folder: its task, and the options of that task's class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import Self

from sm.client import tasks
from sm.client.base import TensorClient
from sm.client.payloads import read_description
from sm.client.tensor_roles import label_file
from sm.errors import StartError

TASK_FILE = "task.json"
#: How scores become probabilities; ``none``: the graph has done it.
Activation = Literal["softmax", "sigmoid", "none"]


class TaskFile(BaseModel):
    """What every task's file has. A task adds its options in a subclass."""

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
    if task not in tasks.TASKS:
        raise StartError(f"task is {task!r}; there are: {', '.join(tasks.TASKS)}.")
    found: type[TensorClient] = getattr(tasks, tasks.TASKS[task][1])
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
    try:
        labels = tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be read: {error}") from None
    if classes not in (-1, len(labels)):
        raise StartError(f"{path} has {len(labels)} labels for {classes} classes")
    return labels


def softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return probabilities along the last axis, in float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def probabilities(logits: NDArray[np.floating[Any]], activation: Activation) -> NDArray[np.floating[Any]]:
    """Return the scores of classes, of which one holds (softmax), or each by itself (sigmoid)."""
    if activation == "none":
        return logits
    if activation == "softmax":
        return softmax(logits)
    halves: NDArray[np.float64] = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))  # never overflows
    return halves


def ranked(scores: NDArray[np.floating[Any]], labels: tuple[str, ...], top: int) -> list[dict[str, Any]]:
    """Return the best labels with their scores; of equal ones, the first."""
    best = np.argsort(-scores, kind="stable")[:top]
    return [{"label": labels[index], "score": float(scores[index])} for index in best]
