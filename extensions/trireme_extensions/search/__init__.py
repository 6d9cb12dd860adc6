"""``/v1/embeddings`` and ``/v1/rerank``: the requests of other systems for search."""
