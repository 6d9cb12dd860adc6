"""OpenAI's embeddings (https://platform.openai.com/docs/api-reference/embeddings)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pybase64
from pydantic import Field

from sm.client.embeddings import shorten
from sm.router.forms.search import EmbeddingsForm, failure_of, read_records


class EmbeddingsRequest(EmbeddingsForm):
    """A request for vectors. ``user`` is OpenAI's, and means nothing here."""

    member = "input"
    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    def dispatched(self, client: Any) -> dict[str, object]:  # noqa: ARG002  # the same for all
        return {"payload": read_records(self.input, "input")}

    def write(self, rows: list[Any]) -> dict[str, object]:
        data = []
        for index, row in enumerate(rows):
            if "embedding" not in row:
                raise failure_of(row)
            vector = row["embedding"]
            if self.dimensions:
                vector = shorten(np.array(vector, np.float32), self.dimensions)
            if self.encoding_format == "base64":
                vector = pybase64.b64encode(np.array(vector, "<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = sum(row["tokens"] for row in rows)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}
