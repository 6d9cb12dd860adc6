"""Fill-mask: the most likely words in the place of ``[MASK]``."""

from __future__ import annotations

from tokenizers import Tokenizer

from sm.client.fill_mask import MaskClient

from .tokenizing import load_tokenizer


class BertBase(MaskClient):
    """Fill-mask: sentences with ``[MASK]`` filled, best first, each with its probability.

    Serves any model that takes ``input_ids`` and has one output with a score for each word.
    """

    model = "bert_base"

    def load_tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.home, self.output.shape[-1] if self.gives_logits else -1)
