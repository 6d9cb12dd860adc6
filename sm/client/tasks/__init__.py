"""Clients of common tasks. A model whose folder has a ``task.json`` is served by its task's class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm.client.tasks.detection import ObjectDetection
    from sm.client.tasks.fill_mask import FillMask
    from sm.client.tasks.generation import TextToText
    from sm.client.tasks.image import ImageClassification, ImageEmbeddings, ImageSegmentation
    from sm.client.tasks.question_answering import QuestionAnswering
    from sm.client.tasks.sound import AudioClassification, SpeechRecognition
    from sm.client.tasks.tabular import Tabular
    from sm.client.tasks.text import (
        SentenceEmbeddings,
        TextClassification,
        ZeroShotClassification,
    )
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

#: The module and the class of each task; a module is imported when a model needs it.
TASKS = {
    "audio-classification": ("sound", "AudioClassification"),
    "automatic-speech-recognition": ("sound", "SpeechRecognition"),
    "fill-mask": ("fill_mask", "FillMask"),
    "image-classification": ("image", "ImageClassification"),
    "image-embeddings": ("image", "ImageEmbeddings"),
    "image-segmentation": ("image", "ImageSegmentation"),
    "object-detection": ("detection", "ObjectDetection"),
    "question-answering": ("question_answering", "QuestionAnswering"),
    "sentence-embeddings": ("text", "SentenceEmbeddings"),
    "tabular": ("tabular", "Tabular"),
    "text-classification": ("text", "TextClassification"),
    "text2text-generation": ("generation", "TextToText"),
    "token-classification": ("token_classification", "TokenClassification"),
    "zero-shot-classification": ("text", "ZeroShotClassification"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, class_name in TASKS.values() if class_name == name), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
