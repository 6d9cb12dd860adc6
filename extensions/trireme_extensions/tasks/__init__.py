"""Clients of common tasks. A model whose folder has a ``task.json`` is served by its task's class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trireme_extensions.tasks.task_table import TASKS

if TYPE_CHECKING:
    from trireme_extensions.tasks.detection import ObjectDetection
    from trireme_extensions.tasks.fill_mask import FillMask
    from trireme_extensions.tasks.image import ImageClassification, ImageEmbeddings, ImageSegmentation
    from trireme_extensions.tasks.question_answering import QuestionAnswering
    from trireme_extensions.tasks.sound import AudioClassification, SpeechRecognition
    from trireme_extensions.tasks.tabular import Tabular
    from trireme_extensions.tasks.text import (
        SentenceEmbeddings,
        TextClassification,
        ZeroShotClassification,
    )
    from trireme_extensions.tasks.text_to_text import TextToText
    from trireme_extensions.tasks.token_classification import TokenClassification

__all__ = [
    "AudioClassification",
    "FillMask",
    "ImageClassification",
    "ImageEmbeddings",
    "ImageSegmentation",
    "ObjectDetection",
    "QuestionAnswering",
    "SentenceEmbeddings",
    "SpeechRecognition",
    "Tabular",
    "TextClassification",
    "TextToText",
    "TokenClassification",
    "ZeroShotClassification",
]


def __getattr__(name: str) -> Any:
    module = next((module for module, class_name in TASKS.values() if class_name == name), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
