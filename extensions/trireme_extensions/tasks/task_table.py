"""The table of tasks: the name in a ``task.json``, and the class that serves it. A new task is a row here."""

from __future__ import annotations

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
    "text2text-generation": ("text_to_text", "TextToText"),
    "token-classification": ("token_classification", "TokenClassification"),
    "zero-shot-classification": ("text", "ZeroShotClassification"),
}
