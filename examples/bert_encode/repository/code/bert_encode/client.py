"""Sentence embeddings: a sentence in, a vector out."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, StringConstraints
from tokenizers import Tokenizer

from sm.client import Array, Table, TensorClient, Tensors, TextPayload
from sm.errors import WrongPayload

#: Word pieces that the model takes, [CLS] and [SEP] included.
LENGTH = 128
#: A longer text is refused before it is tokenized.
MAX_CHARACTERS = 8_192


class Sentence(TextPayload):
    """A sentence or two."""

    text: Annotated[str, StringConstraints(pattern=r"\S", max_length=MAX_CHARACTERS)] = Field(
        description="The sentence."
    )


class BertEncode(TensorClient):
    """A vector of length 1 for a sentence: the dot product of two is the similarity of the sentences."""

    model = "bert_encode"
    payload = Sentence
    result = Table(items="embedding")
    inputs: ClassVar = {"token_ids": ("INT32", (LENGTH,)), "attn_mask": ("INT32", (LENGTH,))}
    outputs: ClassVar = {"pooled_output": ("FP32", (-1,))}

    def setup(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.repository / self.model / "tokenizer.json"))

    def preprocess(self, payload: Sentence) -> dict[str, Array]:
        """Return the word pieces and the mask, both int32 [128], padded with 0."""
        ids = self.tokenizer.encode(payload.text).ids
        if len(ids) > LENGTH:
            raise WrongPayload(
                f"payload.text: is {len(ids)} word pieces long, the model takes {LENGTH}",
                field="payload.text",
            )
        padding = (0, LENGTH - len(ids))
        return {
            "token_ids": np.pad(np.array(ids, np.int32), padding),
            "attn_mask": np.pad(np.ones(len(ids), np.int32), padding),
        }

    def postprocess(self, outputs: Tensors, _payload: Sentence) -> dict[str, Array]:
        """Return ``pooled_output``, float32 [384]."""
        return {"embedding": outputs["pooled_output"]}
