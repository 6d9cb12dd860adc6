"""Clients of common tasks. A model whose folder has a ``task.json`` is served by its task's class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trireme_extensions.tasks.task_table import TASKS

if TYPE_CHECKING:
    from trireme_extensions.tasks.detection import ObjectDetection as ObjectDetection
    from trireme_extensions.tasks.fill_mask import FillMask as FillMask
    from trireme_extensions.tasks.image import ImageClassification as ImageClassification
    from trireme_extensions.tasks.image import ImageEmbeddings as ImageEmbeddings
    from trireme_extensions.tasks.image import ImageSegmentation as ImageSegmentation
    from trireme_extensions.tasks.question_answering import QuestionAnswering as QuestionAnswering
    from trireme_extensions.tasks.sound import AudioClassification as AudioClassification
    from trireme_extensions.tasks.sound import SpeechRecognition as SpeechRecognition
    from trireme_extensions.tasks.tabular import Tabular as Tabular
    from trireme_extensions.tasks.text import SentenceEmbeddings as SentenceEmbeddings
    from trireme_extensions.tasks.text import TextClassification as TextClassification
    from trireme_extensions.tasks.text import ZeroShotClassification as ZeroShotClassification
    from trireme_extensions.tasks.text_to_text import TextToText as TextToText
    from trireme_extensions.tasks.token_classification import TokenClassification as TokenClassification

__all__ = [name for _, name in TASKS.values()]


def __getattr__(name: str) -> Any:
    module = next((module for module, class_name in TASKS.values() if class_name == name), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
