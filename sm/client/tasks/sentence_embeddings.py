"""Sentence embeddings: a text becomes a vector, so that texts of like meaning have near vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PrivateAttr

from sm.client.base import Array, TensorMetadata, Tensors
from sm.client.embeddings import EmbeddingClient, EmbeddingPayload
from sm.client.tasks.text_task import TextOptions, TextTask
from sm.client.tensor_roles import UnsuitableModel, find_output
from sm.errors import WrongPayload


class Pooling(TextOptions):
    """How the vectors of the tokens become one."""

    truncate: bool = True  # as sentence-transformers does
    pooling: Literal["mean", "cls", "last"] = "mean"
    normalise: bool = True


class Sentence(EmbeddingPayload):
    """A text, or the ids of its tokens."""

    _tokens: int = PrivateAttr(default=0)


class SentenceEmbeddings(TextTask, EmbeddingClient):
    """``{"embedding": [...], "tokens": n}`` of a text. Also served as OpenAI's embeddings API.

    Serves a model with an output of one vector for each text, or one for each token, which are pooled.
    """

    options = Pooling
    payload = Sentence

    def read_options(self, folder: Path) -> TextOptions:
        settings = Pooling.read(folder)
        self.pooling, self.normalise = settings.pooling, settings.normalise
        return settings

    def find_output(self, folder: Path) -> TensorMetadata:  # noqa: ARG002  # it has no labels
        metadata = self.triton.metadata(self.model)
        try:
            return find_output(metadata, 1, ("sentence_embedding", "pooler_output"))
        except UnsuitableModel:
            return find_output(metadata, 2, ("last_hidden_state", "token_embeddings"))

    def preprocess_batch(self, payloads: Sequence[Any]) -> Tensors:
        with_text = [payload for payload in payloads if not payload.token_ids]
        encodings = iter(self.encode(with_text))
        ids = [payload.token_ids or next(encodings).ids for payload in payloads]
        for payload, record in zip(payloads, ids, strict=True):
            if payload.token_ids:
                self.check_ids(record)
            payload._tokens = len(record)
        return self.pad(ids, [[0] * len(record) for record in ids])

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse ids that the model has no token for, and too many."""
        size = self.tokenizer.get_vocab_size()
        field = "payload.token_ids"
        if max(ids) >= size:
            raise WrongPayload(f"{field}: {max(ids)} is not a token; there are {size:,}", field=field)
        if len(ids) > self.max_length:
            raise WrongPayload(
                f"{field}: {len(ids)} tokens are sent, the model takes {self.max_length}", field=field
            )

    def postprocess(self, outputs: Tensors, payload: Sentence) -> dict[str, object]:
        vector = self.pool(outputs[self.output.name], payload._tokens).astype(np.float32)
        if self.normalise:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)  # a zero vector stays zero
        return self.embedding(vector, payload._tokens)

    def pool(self, vectors: Array, tokens: int) -> Array:
        """Return the one vector [n] of an output [n], or of [padded, n], of which ``tokens`` rows count."""
        if len(self.output.shape) == 1:
            return vectors.reshape(-1)
        vectors = vectors.reshape(-1, vectors.shape[-1])[:tokens]
        if self.pooling == "mean":
            mean: Array = vectors.mean(axis=0)
            return mean
        first_or_last: Array = vectors[0 if self.pooling == "cls" else -1]
        return first_or_last
