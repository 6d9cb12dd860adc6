"""Infinity's rerank (https://github.com/michaelfeil/infinity, fastapi_schemas/pymodels.py)."""

from __future__ import annotations

import time
import uuid
from typing import Any

from pydantic import Field

from trireme_extensions.search.cohere import DocumentsForm
from trireme_extensions.search.search import relevance


class InfinityRerank(DocumentsForm):
    """A request to Infinity's ``/rerank``. vLLM's is the same; here a document comes back as a text."""

    top_n: int | None = Field(None, ge=1)
    raw_scores: bool = False

    def parameters(self, client: Any) -> dict[str, object]:
        return {**super().parameters(client), **relevance(self.raw_scores)}

    def write(self, rows: list[Any]) -> dict[str, object]:
        return {
            "object": "rerank",
            "results": self.results(rows, self.top_n, as_text=True),
            "model": self.model,
            # Its clients fail without it. The tokens of a ranking are not counted here.
            "usage": {"prompt_tokens": 0, "total_tokens": 0},
            "id": f"infinity-{uuid.uuid4()}",
            "created": int(time.time()),
        }
