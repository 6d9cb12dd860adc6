"""OpenAI's embeddings (https://platform.openai.com/docs/api-reference/embeddings)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pybase64
from pydantic import Field

from sm.client.embeddings import shorten
from sm.client.results import dumps
from sm.router.forms.search import EmbeddingsForm, InputRecords


class EmbeddingsRequest(EmbeddingsForm):
    """A request for vectors. ``user`` is OpenAI's, and means nothing here."""

    member = "input"
    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    def dispatched(self, client: Any) -> dict[str, object]:  # noqa: ARG002  # the same for all
        return {"payload": InputRecords(self.input, "input")}

    def vector(self, result: Mapping[str, Any]) -> object:
        vector = result["embedding"]
        if self.dimensions:
            vector = shorten(np.array(vector, np.float32), self.dimensions)
        if self.encoding_format == "base64":
            vector = pybase64.b64encode(np.array(vector, "<f4").tobytes()).decode()
        return vector

    def entry(self, index: int, vector: bytes) -> bytes:
        return b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)

    def frame(self, tokens: int) -> tuple[bytes, bytes]:
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        end = dumps({"model": self.model, "usage": usage}).removeprefix(b"{")
        return b'{"object":"list","data":[', b"]," + end
