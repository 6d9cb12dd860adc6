"""Cohere's rerank in its two versions, Jina's and vLLM's, which are like the first, and Voyage's.

https://docs.cohere.com/v1/reference/rerank, https://docs.cohere.com/v2/reference/rerank,
https://api.jina.ai/redoc, https://docs.vllm.ai (vllm/entrypoints/pooling/score), https://docs.voyageai.com/reference/reranker-api
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sm.errors import WrongPayload
from trireme_extensions.search.search import Document, RankingForm


class DocumentsForm(RankingForm):
    """A request with ``documents``, which the answer may repeat."""

    member = "documents"
    documents: list[Document] = Field(min_length=1)
    return_documents: bool = False

    def results(self, rows: list[Any], most: int | None, as_text: bool = False) -> list[dict[str, object]]:
        """Return the entries of an answer. ``as_text``: a document is a text, not an object with a text."""
        results: list[dict[str, object]] = []
        for index, score in self.ranked(rows, most):
            text = self.documents[index]
            shown = {"document": text if as_text else {"text": text}} if self.return_documents else {}
            results.append({"index": index, "relevance_score": score, **shown})
        return results


class RerankRequest(DocumentsForm):
    """A request to ``/v1/rerank``."""

    model: str
    top_n: int | None = Field(None, ge=1)

    def write(self, rows: list[Any]) -> dict[str, object]:
        return {"model": self.model, "results": self.results(rows, self.top_n)}


class VllmRerank(DocumentsForm):
    """A request to vLLM's ``/rerank``: it may name no model, and documents come back unless it says no."""

    return_documents: bool = True
    top_n: int | None = Field(None, ge=0)

    def write(self, rows: list[Any]) -> dict[str, object]:
        # Clients of vLLM send 0, which means all there.
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": self.model,
            "results": self.results(rows, self.top_n or None),
        }


class CohereRerank(RerankRequest):
    """A request to ``/v2/rerank``. The box decides which request runs first: ``priority`` means nothing."""

    max_tokens_per_doc: int | None = Field(None, ge=1)
    priority: int | None = None

    def parameters(self, client: Any) -> dict[str, object]:
        if self.max_tokens_per_doc is not None and self.max_tokens_per_doc < client.max_length:
            raise WrongPayload(
                "a document is cut off only where the model ends, at "
                f"{client.max_length} tokens with the query; leave it out, or send at least that",
                field=("max_tokens_per_doc",),
            )
        return super().parameters(client)

    def write(self, rows: list[Any]) -> dict[str, object]:
        return {
            "id": str(uuid.uuid4()),
            "results": self.results(rows, self.top_n),
            "meta": {"api_version": {"version": "2"}},
        }

    @staticmethod
    def describe_error(described: dict[str, object]) -> dict[str, object]:
        return described


class VoyageRerank(DocumentsForm):
    """A request to ``/v1/rerank`` of Voyage: it says ``top_k``, and may say what is cut off."""

    model: str
    top_k: int | None = Field(None, ge=1)
    truncation: bool = True

    @classmethod
    def is_form_of(cls, members: Mapping[str, object]) -> bool:
        return not members.keys().isdisjoint(("top_k", "truncation"))

    def parameters(self, client: Any) -> dict[str, object]:
        return {**super().parameters(client), **({} if self.truncation else {"truncate": False})}

    def write(self, rows: list[Any]) -> dict[str, object]:
        data = self.results(rows, self.top_k, as_text=True)
        return {"object": "list", "data": data, "model": self.model, "usage": {"total_tokens": 0}}
