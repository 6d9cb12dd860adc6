"""Fill-mask: the most likely words in the place of ``[MASK]``."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from sm.client.tasks import FillMask
from sm.client.tasks.fill_mask import MaskOptions

from .tokenizing import load_tokenizer


class BertBase(FillMask):
    """Fill-mask: sentences with ``[MASK]`` filled, best first, each with its probability.

    Serves any model that takes ``input_ids`` and has one output with a score for each word.
    """

    model = "bert_base"

    def read_limits(self, folder: Path) -> MaskOptions:
        """Read ``preprocess.json``; without one, return the values of BERT base."""
        return MaskOptions.read(folder, "preprocess.json")

    def load_tokenizer(self, folder: Path) -> Tokenizer:
        return load_tokenizer(folder, self.signature.vocabulary_size)
