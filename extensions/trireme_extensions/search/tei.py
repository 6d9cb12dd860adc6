"""Text Embeddings Inference: ``/embed`` and ``/rerank`` (router/src/http/types.rs of its repository).

It serves one model, so that its requests name none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from sm.client.embeddings import shorten
from trireme_extensions.search.search import (
    EmbeddingsForm,
    RankingForm,
    SearchRequest,
    relevance,
)

#: It takes the names in small letters, and as its clients write them.
Direction = Annotated[
    Literal["left", "right"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class TeiForm(SearchRequest):
    """The members of both requests for a text that is too long, and the form of an error."""

    truncate: bool | None = None
    truncation_direction: Direction | None = None

    def truncation(self) -> dict[str, object]:
        """Return the client's parameters for what the request says of it."""
        asked = {"truncate": self.truncate, "truncation_direction": self.truncation_direction}
        return {name: value for name, value in asked.items() if value is not None}

    @staticmethod
    def describe_error(described: dict[str, object]) -> dict[str, object]:
        kinds = {"rate_limit_error": "Overloaded", "server_error": "Backend"}
        return {
            "error": described["message"],
            "error_type": kinds.get(str(described["type"]), "Validation"),
            # TEI does not say these two.
            "code": described["code"],
            "field": described["param"],
        }


class TeiEmbeddings(TeiForm, EmbeddingsForm):
    """A request to ``/embed``; the answer is a list of vectors, also for one text."""

    member = "inputs"
    start = b"["
    inputs: str | list[Any]
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: int | None = Field(None, ge=1)

    def parameters(self, client: Any) -> dict[str, object]:
        known = client.payload.parameter_names()
        # A team's own client decides itself what becomes of a text that is too long.
        asked = {**self.truncation(), "normalize": self.normalize}
        parameters = {name: value for name, value in asked.items() if name in known}
        if self.prompt_name is not None:
            parameters["prompt_name"] = self.prompt_name
        return parameters

    def vector(self, result: Mapping[str, Any]) -> object:
        vector = np.array(result["embedding"], np.float32)
        if self.dimensions:
            vector = shorten(vector, self.dimensions)
        # A vector of zeros stays that.
        return vector / max(np.linalg.norm(vector), np.float32(1e-12)) if self.normalize else vector

    def end(self, tokens: int) -> bytes:  # noqa: ARG002  # its answer does not say
        return b"]"


class TeiRerank(TeiForm, RankingForm):
    """A request to ``/rerank`` with ``texts``; the answer is a list of places and scores."""

    member = "texts"
    texts: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    raw_scores: bool = False
    return_text: bool = False
    top_n: int | None = Field(None, ge=1)

    @classmethod
    def is_form_of(cls, members: Mapping[str, object]) -> bool:
        return "texts" in members

    def parameters(self, client: Any) -> dict[str, object]:
        return {**super().parameters(client), **relevance(self.raw_scores), **self.truncation()}

    def write(self, rows: list[Any]) -> list[dict[str, object]]:
        return [
            {"index": index, "score": score, **({"text": self.texts[index]} if self.return_text else {})}
            for index, score in self.ranked(rows, self.top_n)
        ]
