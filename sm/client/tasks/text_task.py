"""The base of tasks that read texts: load the tokenizer, tokenize, and pad records that go together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr
from tokenizers import Encoding, Tokenizer

from sm.client.base import TensorClient, TensorMetadata, Tensors
from sm.client.payloads import Payload, TextPayload
from sm.client.tasks.task_file import TaskFile
from sm.client.tasks.text_inputs import TextInputs
from sm.errors import StartError, WrongPayload


class TextOptions(TaskFile):
    """The options of every task that reads texts."""

    max_length: int = Field(default=512, ge=3, description="Tokens of a text, special ones included.")
    max_characters: int = Field(default=2**15, ge=1, description="A longer text is not tokenized.")
    truncate: bool = Field(default=False, description="Read the beginning of a text that is too long.")


class TaskText(TextPayload):
    """A text."""

    _encoding: Encoding | None = PrivateAttr(default=None)


def load_tokenizer(model: Path) -> Tokenizer:
    """Load ``tokenizer.json`` of a model's folder. Nothing else is: no code and no pickle of a repository.

    Raises:
        StartError: The file is missing or damaged.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        raise StartError(
            f"{path} is missing: save_pretrained() of a fast tokenizer of transformers writes it. A "
            "tokenizer that needs Python code of its repository is not loaded"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise StartError(f"{path} cannot be read: {error}") from None


class TextTask(TensorClient):
    """A client whose model reads the tokens of a text, or of a pair of texts."""

    options: ClassVar[type[TextOptions]] = TextOptions
    payload: ClassVar[type[Payload]] = TaskText
    #: What is cut off a text that is too long.
    truncation: ClassVar[str] = "longest_first"

    def setup(self) -> None:
        folder, metadata = self.repository / self.model, self.triton.metadata(self.model)
        self.inputs_of_text = TextInputs.of(metadata)
        self.output = self.find_output(folder)
        self.tokenizer = load_tokenizer(folder)
        # tokenizer.json may ask for padding, which depends on the records that go together.
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        settings = self.read_options(folder)
        self.max_characters = settings.max_characters
        self.max_length = min(settings.max_length, self.inputs_of_text.length or settings.max_length)
        if settings.truncate:
            self.tokenizer.enable_truncation(self.max_length, strategy=self.truncation)
        vocabulary = self.tokenizer.get_vocab()
        names = (name for name in ("[PAD]", "<pad>") if name in vocabulary)
        self.padding_id = vocabulary[next(names, next(iter(vocabulary)))]

    def read_options(self, folder: Path) -> TextOptions:
        """Read ``task.json``; a task with options of its own keeps them here."""
        return self.options.read(folder)

    @abstractmethod
    def find_output(self, folder: Path) -> TensorMetadata:
        """Find the output that the task reads, and read its labels.

        Raises:
            UnsuitableModel: The model does not have it.
        """

    def text_of(self, payload: Any) -> str | tuple[str, str]:
        """Return the text of a record, or its pair of texts."""
        text: str = payload.text
        return text

    def encode(self, payloads: Sequence[Any]) -> list[Encoding]:
        """Tokenize the texts, in parallel.

        Raises:
            WrongPayload: A text is longer than the model takes.
        """
        texts = [self.text_of(payload) for payload in payloads]
        for text in texts:
            characters = len(text) if isinstance(text, str) else sum(map(len, text))
            if characters > self.max_characters:
                raise self.too_long(f"has over {self.max_characters:,} characters")
        encodings: list[Encoding] = self.tokenizer.encode_batch(texts)
        for encoding in encodings:
            if len(encoding.ids) > self.max_length:
                raise self.too_long(
                    f"is {len(encoding.ids)} tokens long, the model takes {self.max_length}; with truncate "
                    "in task.json it reads the beginning"
                )
        return encodings

    def too_long(self, problem: str) -> WrongPayload:
        """Return the error for a text that is too long."""
        return WrongPayload(f"payload.text: {problem}", field="payload.text")

    def preprocess(self, payload: Any) -> Tensors:
        return {name: rows[0] for name, rows in self.preprocess_batch([payload]).items()}

    def preprocess_batch(self, payloads: Sequence[Any]) -> Tensors:
        encodings = self.encode(payloads)
        for payload, encoding in zip(payloads, encodings, strict=True):
            payload._encoding = encoding
        return self.pad([encoding.ids for encoding in encodings], [each.type_ids for each in encodings])

    def pad(self, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> Tensors:
        """Return the model's inputs [records, longest], in which the attention to padding is 0."""
        longest = self.inputs_of_text.length or max(map(len, ids))
        shape = len(ids), longest
        padded = np.full(shape, self.padding_id, np.int64)
        attention, padded_types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, (record, record_types) in enumerate(zip(ids, types, strict=True)):
            padded[row, : len(record)], attention[row, : len(record)] = record, 1
            padded_types[row, : len(record)] = record_types
        return self.inputs_of_text.to_tensors(padded, attention, padded_types)

    def wanted(self, payload: Any) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return (self.output.name,)
