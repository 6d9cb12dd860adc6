"""Clients of common tasks. A model whose folder has a ``task.json`` is served by its task's class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sm.client.tasks.task_table import TASKS

if TYPE_CHECKING:
    from sm.client.tasks.detection import ObjectDetection
    from sm.client.tasks.fill_mask import FillMask
    from sm.client.tasks.image import ImageClassification, ImageEmbeddings, ImageSegmentation
    from sm.client.tasks.question_answering import QuestionAnswering
    from sm.client.tasks.sound import AudioClassification, SpeechRecognition
    from sm.client.tasks.tabular import Tabular
    from sm.client.tasks.text import (
        SentenceEmbeddings,
        TextClassification,
        ZeroShotClassification,
    )
    from sm.client.tasks.text_to_text import TextToText
    from sm.client.tasks.token_classification import TokenClassification

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
