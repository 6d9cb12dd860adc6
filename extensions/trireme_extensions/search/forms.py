"""The rows of search. A body is of the first row of its path that it fits, and else of the last."""

from __future__ import annotations

from trireme_extensions.search.cohere import CohereRerank, RerankRequest, VllmRerank, VoyageRerank
from trireme_extensions.search.infinity import InfinityRerank
from trireme_extensions.search.openai import EmbeddingsRequest, OpenAIEmbeddings
from trireme_extensions.search.search import SearchForm
from trireme_extensions.search.tei import TeiEmbeddings, TeiRerank

#: The errors of a path whose requests are TEI's or vLLM's.
OF_SERVERS = ("TeiError", "OpenAIError")
FORMS = (
    OpenAIEmbeddings("/v1/embeddings", EmbeddingsRequest),
    SearchForm("/v1/rerank", VoyageRerank),
    SearchForm("/v1/rerank", RerankRequest),
    SearchForm("/v2/rerank", CohereRerank, "CohereError"),
    SearchForm("/rerank", TeiRerank, *OF_SERVERS),
    SearchForm("/rerank", VllmRerank, *OF_SERVERS),
    SearchForm("/infinity/rerank", InfinityRerank),
    SearchForm("/embed", TeiEmbeddings, "TeiError"),
)
