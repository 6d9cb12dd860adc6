"""A package registry and a cache for the tests, and a small model that is built from a package."""

from tests.integration.build.tiny_recipe import cache, fetcher, models, registry, said, tiny, waits

__all__ = ["cache", "fetcher", "models", "registry", "said", "tiny", "waits"]
