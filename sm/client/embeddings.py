"""Clients that turn a text into a vector. The box also serves them as OpenAI's embeddings API."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from sm.client.base import Array, TensorClient
from sm.client.payloads import TextPayload
from sm.errors import WrongPayload

#: Ids of tokens in a record. No model reads as many; each has its own limit.
MAX_TOKENS = 2**17


class EmbeddingPayload(TextPayload):
    """A text, or the ids of its tokens."""

    text: str = Field(default="", description="The text.", examples=["A man is playing the guitar."])
    token_ids: list[Annotated[int, Field(ge=0)]] = Field(
        default=[],
        min_length=1,
        max_length=MAX_TOKENS,
        description="The ids of its tokens, in place of the text.",
    )

    @model_validator(mode="after")
    def check_one(self) -> EmbeddingPayload:
        """Refuse a record with both, or with neither."""
        if len(self.model_fields_set & {"text", "token_ids"}) != 1:
            raise ValueError("send text or token_ids, one of the two")
        return self


class EmbeddingClient(TensorClient):
    """A client whose result is what :meth:`embedding` returns: it is also served at ``/v1/embeddings``.

    Example::

        class Sentences(EmbeddingClient):
            model = "sentences"

            def preprocess(self, payload: EmbeddingPayload) -> Tensors:
                return {"input_ids": np.array(payload.token_ids or self.tokenizer.encode(payload.text).ids)}

            def postprocess(self, outputs: Tensors, payload: EmbeddingPayload) -> dict[str, object]:
                return self.embedding(outputs["vector"], tokens=12)
    """

    payload = EmbeddingPayload

    @staticmethod
    def embedding(vector: Array, tokens: int) -> dict[str, object]:
        """Return the result of a record.

        Args:
            vector: float32 [n].
            tokens: The tokens that the model read, special ones included.
        """
        return {"embedding": vector, "tokens": tokens}


def shorten(vector: Array, dimensions: int) -> Array:
    """Return the first numbers of a vector, with the length that the whole vector had."""
    if dimensions > len(vector):
        raise WrongPayload(f"dimensions: this model has {len(vector)}", field="dimensions")
    head: Array = vector[:dimensions]
    length = np.linalg.norm(head)
    return head * (np.linalg.norm(vector) / length) if length else head
