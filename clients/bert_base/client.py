"""Fill-mask: the most likely words in the place of ``[MASK]``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from sm.client.tasks import FillMask

from .tokenizing import load_tokenizer


class Preprocess(BaseModel):
    """``preprocess.json`` in the model's folder; ``tokenizer.json`` says how a text becomes word pieces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mask_token: str = Field(default="[MASK]", min_length=1)
    #: Word pieces in one text, [CLS] and [SEP] included.
    max_length: int = Field(default=512, ge=3)
    #: A longer text is refused before it is tokenized.
    max_characters: int = Field(default=2**15, ge=1)

    @classmethod
    def read(cls, path: Path) -> Preprocess:
        """Read the file; without one, return the values of BERT base."""
        return cls.model_validate_json(path.read_bytes()) if path.is_file() else cls()


class BertBase(FillMask):
    """Fill-mask: sentences with ``[MASK]`` filled, best first, each with its probability.

    Serves any model that takes ``input_ids`` and has one output with a score for each word.
    """

    model = "bert_base"

    def read_limits(self, folder: Path) -> Preprocess:
        return Preprocess.read(folder / "preprocess.json")

    def load_tokenizer(self, folder: Path) -> Tokenizer:
        return load_tokenizer(folder, self.signature.vocabulary_size)
