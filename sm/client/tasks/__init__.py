"""Clients of common tasks. A model whose folder has a ``task.json`` is served by its task's class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm.client.tasks.fill_mask import FillMask
    from sm.client.tasks.image_classification import ImageClassification
    from sm.client.tasks.image_embeddings import ImageEmbeddings
    from sm.client.tasks.object_detection import ObjectDetection
    from sm.client.tasks.question_answering import QuestionAnswering
    from sm.client.tasks.sentence_embeddings import SentenceEmbeddings
    from sm.client.tasks.tabular import Tabular
    from sm.client.tasks.text_classification import TextClassification
    from sm.client.tasks.token_classification import TokenClassification
    from sm.client.tasks.zero_shot_classification import ZeroShotClassification

__all__ = [
    "FillMask",
    "ImageClassification",
    "ImageEmbeddings",
    "ObjectDetection",
    "QuestionAnswering",
    "SentenceEmbeddings",
    "Tabular",
    "TextClassification",
    "TokenClassification",
    "ZeroShotClassification",
]

#: The class of each task. Its module has the task's name, and is imported when a model needs it.
TASKS = {
    "fill-mask": "FillMask",
    "image-classification": "ImageClassification",
    "image-embeddings": "ImageEmbeddings",
    "object-detection": "ObjectDetection",
    "question-answering": "QuestionAnswering",
    "sentence-embeddings": "SentenceEmbeddings",
    "tabular": "Tabular",
    "text-classification": "TextClassification",
    "token-classification": "TokenClassification",
    "zero-shot-classification": "ZeroShotClassification",
}


def __getattr__(name: str) -> Any:
    for task, class_name in TASKS.items():
        if class_name == name:
            return getattr(import_module(f"{__name__}.{task.replace('-', '_')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
