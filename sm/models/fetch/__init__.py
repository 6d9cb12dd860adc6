"""Fetch the models of a start: their addresses, the downloads, and the cache that keeps what was fetched."""
