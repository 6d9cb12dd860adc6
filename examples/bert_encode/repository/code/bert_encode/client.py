"""What a sentence means, as a vector."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, StringConstraints
from tokenizers import Tokenizer

from sm.client import Array, Table, TensorClient, Tensors, TextPayload
from sm.errors import WrongPayload

#: Word pieces that the model takes, the marks at both ends included.
LENGTH = 128
#: A text of more characters is refused uncounted.
CHARACTERS = 8_192


class Sentence(TextPayload):
    """A sentence or two."""

    text: Annotated[str, StringConstraints(pattern=r"\S", max_length=CHARACTERS)] = Field(
        description="The sentence."
    )


class BertEncode(TensorClient):
    """A vector of length 1 for a sentence: the product of two says how alike the sentences are."""

    model = "bert_encode"
    payload = Sentence
    result = Table(items="embedding")
    inputs: ClassVar = {"token_ids": ("INT32", (LENGTH,)), "attn_mask": ("INT32", (LENGTH,))}
    outputs: ClassVar = {"pooled_output": ("FP32", (-1,))}

    def setup(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.repository / self.model / "tokenizer.json"))

    def preprocess(self, payload: Sentence) -> dict[str, Array]:
        """Word pieces and a mask that says where they are, int32 [128] both."""
        ids = self.tokenizer.encode(payload.text).ids
        if len(ids) > LENGTH:
            raise WrongPayload(
                f"payload.text: is {len(ids)} word pieces long, the model takes {LENGTH}",
                field="payload.text",
            )
        missing = (0, LENGTH - len(ids))
        return {
            "token_ids": np.pad(np.array(ids, np.int32), missing),
            "attn_mask": np.pad(np.ones(len(ids), np.int32), missing),
        }

    def postprocess(self, outputs: Tensors, _payload: Sentence) -> dict[str, Array]:
        """``pooled_output``, float32 [384]."""
        return {"embedding": outputs["pooled_output"]}
