from collections.abc import Sequence

import numpy as np

from sm.client.base import Tensors
from sm.client.embeddings import EmbeddingClient, EmbeddingPayload
from sm.errors import BadInput


class Sentences(EmbeddingClient):
    """Turn a sentence into four numbers."""

    model = "sentences"

    def preprocess(self, payload: EmbeddingPayload) -> Tensors:
        return {"ids": np.array(self.tokens(payload), np.int64)}

    def preprocess_batch(self, payloads: Sequence[EmbeddingPayload]) -> Tensors:
        rows = [self.tokens(payload) for payload in payloads]
        longest = max(map(len, rows))
        return {"ids": np.array([row + [0] * (longest - len(row)) for row in rows], np.int64)}

    def postprocess(self, outputs: Tensors, payload: EmbeddingPayload) -> dict[str, object]:
        return self.embedding(outputs["vector"], len(self.tokens(payload)))

    def tokens(self, payload: EmbeddingPayload) -> list[int]:
        if "unreadable" in payload.text:
            raise BadInput("payload.text: is unreadable", field="payload.text")
        return payload.token_ids or [len(word) for word in payload.text.split()]
