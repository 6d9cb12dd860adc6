"""OpenAI's embeddings (https://platform.openai.com/docs/api-reference/embeddings)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pybase64
from pydantic import Field

from sm.client.embeddings import shorten
from sm.client.results import dumps
from sm.models.table import Models
from trireme_extensions.search.search import EmbeddingsForm, SearchForm, clients_for


class EmbeddingsRequest(EmbeddingsForm):
    """A request for vectors. ``user`` is OpenAI's, and means nothing here."""

    member = "input"
    start = b'{"object":"list","data":['
    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    def vector(self, result: Mapping[str, Any]) -> object:
        vector = result["embedding"]
        if self.dimensions:
            vector = shorten(np.array(vector, np.float32), self.dimensions)
        if self.encoding_format == "base64":
            vector = pybase64.b64encode(np.array(vector, "<f4").tobytes()).decode()
        return vector

    def entry(self, index: int, vector: bytes) -> bytes:
        return b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)

    def end(self, tokens: int) -> bytes:
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return b"]," + dumps({"model": self.model, "usage": usage}).removeprefix(b"{")


def list_models(models: Models) -> object:
    """Return the clients that give embeddings, as OpenAI lists models."""
    rows = [
        {
            "id": client.name,
            "object": "model",
            "created": int(client.folder.stat().st_mtime),
            "owned_by": "trireme",
        }
        for client in clients_for(EmbeddingsRequest, models)
    ]
    return {"object": "list", "data": rows}


class OpenAIEmbeddings(SearchForm):
    """``/v1/embeddings``, and the list of its models."""

    lists: ClassVar[Mapping[str, Any]] = {"/v1/models": list_models}
